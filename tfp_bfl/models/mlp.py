"""A multilayer perceptron, for tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from tfp_bfl import keras
from tfp_bfl.errors import InvalidArgument, lookup
from tfp_bfl.models.kinds import NORMALIZATIONS, Blocks, KindOptions, check_classes


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

    Raises:
      InvalidArgument: no such kind, a normalization, or fewer than two classes.

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
    return blocks.keras.Model(inputs, logits, name=f"mlp_{kind}")
