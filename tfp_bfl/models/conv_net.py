"""Three convolutions and three dense layers: the network of Jeon et al. 2023."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from tfp_bfl import keras
from tfp_bfl.errors import check_count
from tfp_bfl.models.kinds import Blocks, KindOptions, check_image_shape


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
