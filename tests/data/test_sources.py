import re
import types

import numpy as np
import pytest
import tensorflow as tf

from tests.kit import refuses
from tfp_bfl import data
from tfp_bfl.data import _tfds
from tfp_bfl.data.sizes import resized
from tfp_bfl.errors import InvalidArgument


def test_digits_are_the_images_of_scikit_learn_scaled_to_bytes():
    from sklearn.datasets import load_digits

    train, test = data.load("digits"), data.load("digits", split="test")
    assert train.features.dtype == np.uint8 and train.labels.dtype == np.int32
    assert train.element_shape == (8, 8, 1) and train.num_classes == 10
    assert train.class_names == tuple("0123456789")
    assert train.num_examples + test.num_examples == 1797
    bunch = load_digits()
    ours = np.concatenate([train.features, test.features])[..., 0]
    theirs = np.rint(bunch.images * 255 / 16).astype(np.uint8)
    as_rows = lambda images: sorted(map(bytes, images.reshape(len(images), -1)))
    assert as_rows(ours) == as_rows(theirs)
    assert ours.max() == 255 and ours.min() == 0


@pytest.mark.parametrize("name", ["digits", "breast_cancer"])
def test_embedded_split_is_stratified_and_fixed(name):
    train, test = data.load(name), data.load(name, split="test")
    of_train, of_test = np.bincount(train.labels), np.bincount(test.labels)
    np.testing.assert_allclose(of_test, 0.2 * (of_train + of_test), atol=0.5)
    np.testing.assert_array_equal(train.features, data.load(name).features)
    assert (train.name, test.split) == (name, "test")


def test_breast_cancer_is_standardised_with_the_train_split():
    train, test = data.load("breast_cancer"), data.load("breast_cancer", split="test")
    assert train.features.dtype == np.float32 and train.element_shape == (30,)
    assert train.class_names == ("malignant", "benign")
    np.testing.assert_allclose(train.features.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(train.features.std(0), 1, atol=1e-5)
    assert np.abs(test.features.mean(0)).max() > 1e-3  # its own mean is another


def test_subset_is_seeded_without_replacement_and_keeps_the_order():
    source = data.load("digits")
    numbered = data.Source("n", "train", np.arange(100)[:, None], source.labels[:100], source.class_names)
    few = numbered.subset(30, seed=1)
    picked = few.features[:, 0].astype(int)
    assert few.num_examples == 30 and (np.diff(picked) > 0).all()
    np.testing.assert_array_equal(few.labels, numbered.labels[picked])
    np.testing.assert_array_equal(picked, numbered.subset(30, seed=1).features[:, 0])
    assert (picked != numbered.subset(30, seed=2).features[:, 0]).any()
    refuses("num_examples is 101, but must be at most the 100 of n/train", numbered.subset, 101, seed=0)


def test_as_dataset_gives_examples_in_order_and_a_partition_is_no_text():
    source = data.load("digits").subset(5, seed=0)
    refuses(r"'dirichlet:0.5', but must be .* dirichlet\(num_clients=10", source.partition, "dirichlet:0.5", seed=0)
    rows = list(source.as_dataset().as_numpy_iterator())
    np.testing.assert_array_equal(np.stack([x for x, _ in rows]), source.features)
    assert [y for _, y in rows] == source.labels.tolist()


def test_list_sources_names_what_load_takes():
    embedded = {"digits", "breast_cancer", "diabetes", "heart_disease"}
    assert {*embedded, "cifar10", "mnist", "fashion_mnist"} == set(data.list_sources())


def test_heart_disease_has_the_patients_of_four_hospitals():
    train, test = data.load("heart_disease"), data.load("heart_disease", "test")
    clients, names = train.clients, ("Cleveland", "Hungary", "Switzerland", "VA Long Beach")
    assert train.client_names == test.client_names == names and train.class_names == ("no", "yes")
    assert [k + sum(test.owners == name) for k, name in zip(clients.sizes, names)] == [304, 293, 123, 200]
    chol = [c.name for c in train.columns].index("chol[missing]")
    empty = clients.examples(2).features[:, chol] * train.columns[chol].stddev + train.columns[chol].mean
    np.testing.assert_allclose(empty, 1, atol=1e-6)  # No cholesterol in Switzerland.
    few = train.subset(100, seed=0)
    assert sum(few.clients.sizes) == 100 and len(few.owners) == 100
    assert data.read_own(train).client_names == names and data.names_clients("heart_disease")
    arguments = "x", "train", np.zeros((1, 1)), [0], ("a", "b")
    refuses("owners have the shape", data.Source, *arguments, owners=np.array(["a", "b"]))


@pytest.mark.parametrize(
    ("name", "split", "message"),
    [
        ("digits", "validation", "digits has no split 'validation': its splits are 'test', 'train'."),
        ("owner:name", "train", "has a namespace, but must be one of TFDS's own"),
        ("huggingface:mnist/a:1.0.0", "train", "has a namespace"),
        ("digitz", "train", "There is no data source 'digitz': did you mean 'digits'"),
        ("fasion_mnist", "train", "did you mean 'fashion_mnist'"),
        ("CIFAR10", "train", "did you mean 'cifar10'"),
        ("qqqqqq", "train", "choose one of 'breast_cancer', 'diabetes', 'digits', 'heart_disease', 'cifar10'"),
        ("a b", "train", "TFDS can't read the data source 'a b'"),
        ("iris", "train", "iris is not image classification"),
        ("cats_vs_dogs", "train", "cats_vs_dogs has images of several sizes"),
        (3, "train", "both must be strings"),
    ],
)
def test_bad_names_and_splits_are_one_sentence(name, split, message):
    refuses(re.escape(message), data.load, name, split=split)


def test_images_of_several_sizes_of_tfds_are_resized():
    """By a dataset's builder as TFDS has them: images are resized one by one, as those of folders are."""
    rng = np.random.default_rng(0)
    images = [rng.integers(256, size=(*rng.integers(3, 20, 2), 3)).astype(np.uint8) for _ in range(7)]
    spec = (tf.TensorSpec([None, None, 3], tf.uint8), tf.TensorSpec([], tf.int64))
    pairs = tf.data.Dataset.from_generator(lambda: zip(images, range(7)), output_signature=spec)
    features = {
        "image": types.SimpleNamespace(shape=(None, None, 3)),
        "label": types.SimpleNamespace(names=[*"abcdefg"]),
    }
    splits = {"train": types.SimpleNamespace(num_examples=7)}
    info = types.SimpleNamespace(splits=splits, supervised_keys=("image", "label"), features=features)
    builder = types.SimpleNamespace(info=info, as_dataset=lambda **options: pairs)
    found, labels, names = _tfds.read(builder, "photographs", "train", (6, 5))
    assert labels.tolist() == [*range(7)] and names == (*"abcdefg",)
    for pixels, image in zip(found, images, strict=True):
        np.testing.assert_array_equal(pixels, resized(image[None], (6, 5))[0])


def test_unprepared_without_network_says_how_to_prepare(tmp_path, monkeypatch):
    monkeypatch.setattr(_tfds, "_reachable", lambda builder: False)
    message = rf"^kmnist is not prepared in {tmp_path} .*tfds build kmnist --data_dir {tmp_path}"
    refuses(message, data.load, "kmnist", data_dir=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("failure", [OSError("no route\nto host"), KeyboardInterrupt()])
def test_failed_download_leaves_no_half_folder(tmp_path, monkeypatch, failure):
    import tensorflow_datasets as tfds

    # Of another process, and so not ours to delete.
    (tmp_path / "kmnist" / "incomplete.OLD_1.0.0").mkdir(parents=True)

    def fail(builder):
        (tmp_path / "downloads" / "kmnist" / "a.gz.tmp.1").mkdir(parents=True)
        (tmp_path / "downloads" / "kmnist" / "whole.gz").touch()
        (tmp_path / "kmnist" / "incomplete.NEW_3.0.1").mkdir()
        raise failure

    monkeypatch.setattr(_tfds, "_reachable", lambda builder: True)
    monkeypatch.setattr(tfds.core.DatasetBuilder, "download_and_prepare", fail)
    expected = InvalidArgument if isinstance(failure, Exception) else type(failure)
    with pytest.raises(expected) as caught:
        data.load("kmnist", data_dir=tmp_path)
    if expected is InvalidArgument:
        assert "its download failed (no route)" in str(caught.value)
    left = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*")}
    downloads = (f"downloads{path}" for path in ("", "/kmnist", "/kmnist/whole.gz"))
    assert left == {"kmnist", "kmnist/incomplete.OLD_1.0.0", *downloads}


def test_reachable_asks_the_hosts_of_the_dataset(monkeypatch):
    builder = types.SimpleNamespace(url_infos={"http://one.example/a": 0, "https://one.example/b": 0})
    asked = []

    def connect(address, timeout):
        asked.append(address)
        raise OSError

    monkeypatch.setattr(_tfds.urllib.request, "getproxies", dict)
    monkeypatch.setattr(_tfds.socket, "create_connection", connect)
    assert not _tfds._reachable(builder)
    assert asked == [("one.example", 443), ("one.example", 80)]


@pytest.mark.deep(after="tests/data/test_sources.py")
def test_loads_a_prepared_tfds_dataset():
    if not pytest.importorskip("tensorflow_datasets").builder("fashion_mnist").is_prepared():
        pytest.skip("fashion_mnist is not prepared: run `tfds build fashion_mnist`")
    test = data.load("fashion_mnist", split="test")
    assert test.features.shape == (10000, 28, 28, 1) and test.features.dtype == np.uint8
    assert test.labels.dtype == np.int32 and test.class_names[0] == "T-shirt/top"
    np.testing.assert_array_equal(np.bincount(test.labels), np.full(10, 1000))
    np.testing.assert_array_equal(data.load("fashion_mnist", split="test").features, test.features)
    assert data.load("fashion_mnist", split="train[:1%]").num_examples == 600
    refuses("fashion_mnist has no split 'val': its splits are 'test'", data.load, "fashion_mnist", split="val")
