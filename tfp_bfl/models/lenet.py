"""LeNet-5 (LeCun et al. 1998) with ReLU and max pooling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from tfp_bfl import keras
from tfp_bfl.models.kinds import Blocks, KindOptions, check_image_shape


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
      **options: of `tfp_bfl.models.kinds.Blocks`: prior_stddev ("fan_in", or the standard deviation of the prior on
        every weight of kind "flipout"), dropout_rate (0.2, of kind "mc_dropout"), variational_bias, initial_stddev,
        min_stddev, variational_layers, variational_initializer, parametrization, logit_range, kl_weight, precision,
        seed; keras=3 for a `keras.Model` of Keras 3.

    Returns:
      A `tf.keras.Model` from images [B, height, width, channels] in [0, 1] to logits [B, C].

    Raises:
      InvalidArgument: no such kind, normalization or layer, or a shape that it can't take.

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
