"""Features of any type as the numbers that models compute with."""

from __future__ import annotations

import tensorflow as tf

from tfp_bfl.errors import InvalidArgument

_IMAGES = 4  # dimensions of a batch of images


def as_floats(features: tf.Tensor) -> tf.Tensor:
    """Return features as float32: bytes of images divided by 255, other numbers as they are.

    Args:
      features: [B, ...] of any numeric type; images [B, height, width, channels] of bytes or floats.

    Raises:
      InvalidArgument: images of whole numbers that are not bytes, of which the type does not say the scale.
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
