"""ResNet-20 in its CIFAR form (He et al. 2016, section 4.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

import tensorflow as tf

from tfp_bfl import keras as keras_2
from tfp_bfl.models.kinds import Blocks, KindOptions, check_image_shape


def resnet20(
    kind: str = "flipout",
    input_shape: Sequence[int] = (32, 32, 3),
    num_classes: int = 10,
    normalization: str = "batch",
    **options: Unpack[KindOptions],
) -> keras_2.Model:
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


def _shrink(keras: Any, x: Any) -> Any:
    """Return [B, H, W, D] -> [B, H / 2, W / 2, 2 D]: every second pixel, zeros for the new channels."""
    new = x.shape[-1] // 2
    # The mean of one pixel: half the time of slicing with strides, forth and back.
    x = keras.layers.AveragePooling2D(pool_size=1, strides=2)(x)
    pad = tf.pad if keras is keras_2 else keras.ops.pad
    return pad(x, [[0, 0], [0, 0], [0, 0], [new, new]])
