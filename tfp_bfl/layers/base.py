"""The part of this library's layers that differs between Keras 2 and Keras 3.

A class without Keras computes. A layer is derived from it and from `Keras2Layer`, or from `keras_3.Keras3Layer`.
"""

from typing import Any

import tensorflow as tf

from tfp_bfl import keras
from tfp_bfl.errors import InvalidArgument, MissingDependency

# The base of the classes without Keras: for type checkers, a layer of either Keras.
OfEitherKeras: Any = object


class Keras2Layer(keras.layers.Layer):
    """A layer of Keras 2."""

    _keras: Any = keras

    def __call__(self, inputs: object, *args: object, **kwargs: object) -> Any:
        if type(inputs).__module__ == "keras.src.backend.common.keras_tensor":
            kind = type(self).__name__
            raise InvalidArgument(
                f"The layer {self.name!r} ({kind}) is a layer of Keras 2, but its input is of Keras 3: use "
                f"tfp_bfl.layers.keras_3.{kind}."
            )
        return super().__call__(inputs, *args, **kwargs)

    def _add_variable(
        self, name: str, shape: list[int], initializer: object, constraint: object = None, autocast: bool = True
    ) -> tf.Variable:
        return self.add_weight(
            name, shape, initializer=initializer, constraint=constraint, experimental_autocast=autocast
        )

    def _add_kl(self) -> None:
        self.add_loss(lambda: self.kl_weight * self.kl_divergence())


def check_keras_3(keras: Any) -> None:
    """Check that the package `keras` is Keras 3 and computes by TensorFlow.

    Raises:
      MissingDependency: it is Keras 2.
      InvalidArgument: it has another backend.
    """
    if int(keras.__version__.partition(".")[0]) < 3:
        raise MissingDependency(
            f"tfp_bfl.layers.keras_3 needs Keras 3, but the package keras is {keras.__version__}: use Python 3.12 or "
            "3.13, or the layers of tfp_bfl.layers."
        )
    backend = keras.config.backend()
    if backend != "tensorflow":
        raise InvalidArgument(
            f"Keras 3 computes by {backend}, but must compute by TensorFlow: set the environment variable "
            "KERAS_BACKEND=tensorflow before the program imports keras."
        )


_IMAGES = 4  # dimensions of a batch of images


def as_floats(features: tf.Tensor) -> tf.Tensor:
    """Return features as float32: bytes of images divided by 255, other numbers as they are.

    Args:
      features: [B, ...] of any numeric type; images [B, height, width, channels] of bytes or floats.
    """
    features = tf.convert_to_tensor(features)
    if features.dtype.is_integer and features.shape.rank == _IMAGES and features.dtype != tf.uint8:
        raise InvalidArgument(
            f"images have the type {features.dtype.name}, but must be bytes (uint8), or floats from 0 to 1: convert "
            "them with astype('uint8')."
        )
    if features.dtype == tf.uint8 and features.shape.rank != 2:
        return tf.image.convert_image_dtype(features, tf.float32)
    return tf.cast(features, tf.float32)
