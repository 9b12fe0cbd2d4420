"""A structure of tensors as one vector, and back."""

import math
from typing import Any

import tensorflow as tf

from tfp_bfl.tensors import TensorTree


def flatten(leaves: TensorTree) -> tf.Tensor:
    """Return a structure of tensors as one vector [D].

    Example:
      >>> bfl.posterior.flatten([np.ones([1, 2], np.float32), np.zeros([1], np.float32)]).numpy().tolist()
      [1.0, 1.0, 0.0]
    """
    return tf.concat([tf.reshape(x, [-1]) for x in tf.nest.flatten(leaves)] or [tf.zeros([0])], 0)


def unflatten(vector: tf.Tensor, like: TensorTree) -> Any:
    """Return vectors [..., D] as a structure like `like`; its leaves have their shapes after the same
    leading axes.

    Example:
      >>> kernel, bias = bfl.posterior.unflatten(np.arange(3.0), [np.ones([1, 2]), np.zeros([1])])
      >>> kernel.numpy().tolist(), bias.numpy().tolist()
      ([[0.0, 1.0]], [2.0])
    """
    leaves = tf.nest.flatten(like)
    parts = tf.split(vector, [math.prod(x.shape) for x in leaves], -1) if leaves else []
    leading = [-1 if n is None else n for n in vector.shape[:-1]]
    shaped = [tf.reshape(part, [*leading, *x.shape]) for part, x in zip(parts, leaves)]
    return tf.nest.pack_sequence_as(like, shaped)
