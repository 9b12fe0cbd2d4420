"""The networks: a multilayer perceptron for tables, LeNet-5, the network of Jeon et al. 2023, and ResNet-20; and any
differentiable log density as a Keras model, so that rounds, chains and files take it as they take a network.
"""

from collections.abc import Callable, Sequence
from typing import Any, Unpack

import numpy as np
import tensorflow as tf

from tfp_bfl import keras
from tfp_bfl.errors import InvalidArgument, check_count, check_counts, lookup
from tfp_bfl.models.blocks import NORMALIZATIONS, Blocks, KindOptions, check_classes, check_image_shape


def mlp(
    kind: str = "flipout",
    input_shape: Sequence[int] = (30,),
    num_classes: int = 2,
    normalization: str = "none",
    hidden: Sequence[int] = (64, 32),
    activation: str = "relu",
    **options: Unpack[KindOptions],
) -> keras.Model:
    """Build dense layers on the flattened input; no hidden layer is logistic regression.

    Args:
      hidden: units of the hidden layers.
      activation: of the hidden layers, one of Keras'.
      normalization: "none", as there is no convolution.
      others: as `tfp_bfl.models.lenet`.

    Returns:
      A `tf.keras.Model` from inputs `[B, *input_shape]` to logits [B, C].

    Example:
      >>> model = bfl.models.mlp("flipout", input_shape=(30,), num_classes=2)
      >>> model.output_shape, model.count_params()
      ((None, 2), 8162)
    """
    check_classes(num_classes)
    lookup(NORMALIZATIONS, normalization, "normalization")
    if normalization != "none":
        raise InvalidArgument(
            f"normalization is {normalization!r}, but mlp has no convolution to normalize: leave it out."
        )
    blocks = Blocks(kind, normalization=normalization, **options)
    inputs = blocks.keras.Input(tuple(input_shape))
    with blocks.precision():
        x = blocks.keras.layers.Flatten()(inputs)
        for units in hidden:
            x = blocks.dense(x, units, activation)
        logits = blocks.logits(x, num_classes)
    return blocks.keras.Model(inputs, logits, name=f"{'mlp' if hidden else 'linear'}_{kind}")


def linear(
    kind: str = "flipout",
    input_shape: Sequence[int] = (30,),
    num_classes: int = 2,
    normalization: str = "none",
    **options: Unpack[KindOptions],
) -> keras.Model:
    """Build one dense layer on the flattened input: logistic regression, or the head of a backbone.

    Args:
      others: as `tfp_bfl.models.mlp`, without hidden layers.

    Example:
      >>> model = bfl.models.linear("flipout", input_shape=(1280,), num_classes=10)
      >>> model.output_shape, model.count_params()
      ((None, 10), 25610)
    """
    return mlp(kind, input_shape, num_classes, normalization, hidden=(), **options)


def lenet(
    kind: str = "flipout",
    input_shape: Sequence[int] = (28, 28, 1),
    num_classes: int = 10,
    normalization: str = "none",
    **options: Unpack[KindOptions],
) -> keras.Model:
    """Build LeNet-5: two 5 x 5 convolutions with 6 and 16 filters, each pooled, and dense layers of 120, 84 and C.

    61,706 point weights for 28 x 28 x 1 images. Convolutions keep the size ("same"), so that images from 8 x 8 fit; on
    images of 16 x 16 and more the second one is "valid", as in the original.

    Args:
      kind: "deterministic", "mc_dropout", "flipout" or "variational_dropout".
      input_shape: [height, width, channels], at least 8 x 8.
      num_classes: C.
      normalization: "none", "batch" or "group", after each convolution.
      **options: of `tfp_bfl.models.blocks.Blocks`: prior_stddev ("fan_in", or the standard deviation of the prior on
        every weight of kind "flipout"), dropout_rate (0.2, of kind "mc_dropout"), variational_bias, initial_stddev,
        min_stddev, variational_layers, variational_initializer, parametrization, logit_range, kl_weight, precision,
        seed; keras=3 for a `keras.Model` of Keras 3.

    Returns:
      A `tf.keras.Model` from images [B, height, width, channels] in [0, 1] to logits [B, C].

    Example:
      >>> model = bfl.models.lenet("flipout", input_shape=(8, 8, 1))
      >>> model.output_shape, model.count_params()
      ((None, 10), 42536)
    """
    shape = check_image_shape("lenet", input_shape, num_classes, smallest=8)
    blocks = Blocks(kind, normalization=normalization, **options)
    images = blocks.keras.Input(shape)
    with blocks.precision():
        x = blocks.convolution(images, 6, 5)
        x = blocks.keras.layers.MaxPooling2D()(x)
        x = blocks.convolution(x, 16, 5, padding="valid" if min(shape[:2]) >= 16 else "same")
        x = blocks.keras.layers.MaxPooling2D()(x)
        x = blocks.keras.layers.Flatten()(x)
        x = blocks.dense(x, 120, "relu")
        x = blocks.dense(x, 84, "relu")
        logits = blocks.logits(x, num_classes)
    return blocks.keras.Model(images, logits, name=f"lenet_{kind}")


def conv_net(
    kind: str = "variational_dropout",
    input_shape: Sequence[int] = (32, 32, 3),
    num_classes: int = 10,
    normalization: str = "none",
    width: int = 64,
    **options: Unpack[KindOptions],
) -> keras.Model:
    """Build three 3 x 3 convolutions with `width` filters, each with ReLU and pooled; dense layers of 4 w, 2 w and C
    units.

    Args:
      input_shape: [height, width, channels], at least 8 x 8.
      width: w.
      variational_layers: by default the second dense layer alone, as published; "all" for all.
      others: as `tfp_bfl.models.lenet`. The authors' network has variational_initializer="uniform", in which noise of
        one standard deviation is larger relative to the weights.

    Returns and raises as `tfp_bfl.models.lenet`; InvalidArgument also for a width below 1.

    Source: Jeon et al. 2023 (arXiv:2510.20225), their public code.

    Example:
      >>> model = bfl.models.conv_net("mc_dropout", input_shape=(28, 28, 1))
      >>> model.output_shape, model.count_params()
      ((None, 10), 256394)
    """
    shape = check_image_shape("conv_net", input_shape, num_classes, smallest=8)
    check_count(width, "width")
    options.setdefault("variational_layers", ("dense_1",))
    blocks = Blocks(kind, normalization=normalization, **options)
    images = blocks.keras.Input(shape)
    with blocks.precision():
        x = images
        for _ in range(3):
            x = blocks.convolution(x, width, 3)
            x = blocks.keras.layers.MaxPooling2D()(x)
        x = blocks.keras.layers.Flatten()(x)
        x = blocks.dense(x, 4 * width, blocks.keras.layers.LeakyReLU(0.1))
        x = blocks.dense(x, 2 * width, blocks.keras.layers.LeakyReLU(0.1))
        logits = blocks.logits(x, num_classes)
    return blocks.keras.Model(images, logits, name=f"conv_net_{kind}")


def resnet20(
    kind: str = "flipout",
    input_shape: Sequence[int] = (32, 32, 3),
    num_classes: int = 10,
    normalization: str = "batch",
    **options: Unpack[KindOptions],
) -> keras.Model:
    """Build ResNet-20: a 3 x 3 convolution, nine blocks of two (three each with 16, 32, 64 filters), pooling, dense.

    Shortcuts have no weights (option A: stride 2, zeros for the new channels). About 0.27 million point weights.

    Args:
      input_shape: [height, width, channels], at least 8 x 8.
      others: as `tfp_bfl.models.lenet`.

    Returns and raises as `tfp_bfl.models.lenet`.

    Example:
      >>> model = bfl.models.resnet20("deterministic", input_shape=(32, 32, 3))
      >>> model.output_shape, model.count_params()
      ((None, 10), 271098)
    """
    shape = check_image_shape("resnet20", input_shape, num_classes, smallest=8)
    blocks = Blocks(kind, normalization=normalization, **options)
    images = blocks.keras.Input(shape)
    with blocks.precision():
        x = blocks.convolution(images, 16, 3)
        for filters in (16, 32, 64):
            for block in range(3):
                strides = 2 if block == 0 and filters > 16 else 1
                shortcut = x if strides == 1 else _shrink(blocks.keras, x)
                x = blocks.convolution(x, filters, 3, strides=strides)
                x = blocks.convolution(x, filters, 3, add=shortcut)
        x = blocks.keras.layers.GlobalAveragePooling2D()(x)
        logits = blocks.logits(x, num_classes)
    return blocks.keras.Model(images, logits, name=f"resnet20_{kind}")


def _shrink(of: Any, x: Any) -> Any:
    """Return [B, H, W, D] -> [B, H / 2, W / 2, 2 D]: every second pixel, zeros for the new channels."""
    new = x.shape[-1] // 2
    # The mean of one pixel: half the time of slicing with strides, forth and back.
    x = of.layers.AveragePooling2D(pool_size=1, strides=2)(x)
    pad = tf.pad if of is keras else of.ops.pad
    return pad(x, [[0, 0], [0, 0], [0, 0], [new, new]])


class _LogDensity(keras.layers.Layer):
    def __init__(self, function: Callable[[tf.Tensor, tf.Tensor], tf.Tensor], start: np.ndarray, **options: object):
        super().__init__(**options)
        self._given = {"function": function, "start": start}
        self._function = function
        self.parameters = self.add_weight("parameters", start.shape, initializer=tf.constant_initializer(start))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), **self._given}

    def call(self, rows: tf.Tensor) -> tf.Tensor:
        return self._function(self.parameters, rows)[:, tf.newaxis]


def density(
    log_density: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
    num_parameters: int,
    num_features: int,
    start: object = 0.0,
) -> keras.Model:
    """Return a model with one vector as its weight, and the log density of each row of the data as output.

        log_density = lambda theta, rows: -tf.reduce_sum(tf.square(rows - theta), -1) / 2
        model = bfl.models.density(log_density, 2, 2)

    Args:
      log_density: (theta [D], rows [B, F]) -> log p(row | theta) in nats [B], differentiable in theta.
      num_parameters: D.
      num_features: F.
      start: theta at first, [D] or one number for all.

    Returns:
      A model for `likelihood="density"`; labels of the data are zeros.
    """
    check_counts(num_parameters=num_parameters, num_features=num_features)
    start = np.asarray(start, np.float32)
    if start.shape not in ((), (num_parameters,)):
        raise InvalidArgument(f"start has the shape {start.shape}, but must be one number or ({num_parameters},).")
    values = log_density(tf.zeros([num_parameters]), tf.zeros([3, num_features]))
    if tuple(values.shape) != (3,):
        raise InvalidArgument(
            f"log_density gives {tuple(values.shape)} for three rows, but must give one number a row: (3,)."
        )
    rows = keras.Input((num_features,))
    layer = _LogDensity(log_density, np.broadcast_to(start, num_parameters))
    return keras.Model(rows, layer(rows), name="density")
