"""Any differentiable log density as a Keras model, so that rounds, chains and files take it as they take a network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_bfl import keras
from tfp_bfl.errors import InvalidArgument, check_counts


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

    Raises:
      InvalidArgument: numbers below 1, a start of another shape, or a function that does not give [B].
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
