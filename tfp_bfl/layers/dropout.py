"""Monte Carlo dropout."""

from typing import Any

import tensorflow as tf

from tfp_bfl import keras
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.layers import noise
from tfp_bfl.layers.base import Keras2Layer, OfEitherKeras


class Dropout(OfEitherKeras):
    """The layer without Keras."""

    def __init__(self, rate: float = 0.2, at_prediction: bool = True, **kwargs: object):
        super().__init__(**kwargs)
        if not 0 <= rate < 1:
            raise InvalidArgument(f"rate must be at least 0 and below 1, but is {rate}.")
        self.rate = rate
        self.at_prediction = at_prediction

    def call(self, inputs: tf.Tensor, training: object = None) -> tf.Tensor:
        is_off = self.rate == 0 or not self.trainable or not (self.at_prediction or training)
        if is_off or noise.mode() == "mean":
            return inputs
        (seed,) = noise.next_seeds(1)
        # Stateless by hand: tf.nn.experimental.stateless_dropout divides and selects in twice as many ops.
        shape = tf.shape(inputs)
        if noise.mode() == "shared":
            # By its static shape where that is known: a mask that does not depend on the batch.
            own = inputs.shape[1:]
            shape = [1, *own] if own.is_fully_defined() else tf.concat([[1], shape[1:]], 0)
        keep = tf.random.stateless_uniform(shape, seed) >= self.rate
        return tf.where(keep, inputs * (1 / (1 - self.rate)), 0)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "rate": self.rate, "at_prediction": self.at_prediction}


@keras.utils.register_keras_serializable("tfp_bfl")
class MCDropout(Dropout, Keras2Layer):
    """Dropout that stays on at prediction (Gal & Ghahramani 2016): its masks are draws from a posterior.

    y = x z / (1 - rate),   z ~ Bernoulli(1 - rate) for each unit of each example

    One mask for the whole batch in `sampling("shared")`; off in `sampling("mean")`.

    Args:
      rate: share of units that are dropped, at least 0 and below 1.
      at_prediction: False for ordinary dropout, in training alone, with masks that are drawn as here.
    """
