"""Factors of a posterior, one for each client: sites, as natural parameters."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import tensorflow as tf

from tfp_bfl.errors import InvalidArgument, check_number, shown
from tfp_bfl.posterior.mean_field import MeanField
from tfp_bfl.tensors import Scalar, TensorTree

# Where nobody has said how many clients there are.
_DAMPING = 0.1


class Site(NamedTuple):
    """A Gaussian factor of a posterior over D weights, by natural parameters: exp(shift w - precision w^2 / 2).

    Fields:
      precision: at least 0 [D].
      shift: precision times mean [D].
    """

    precision: Any
    shift: Any


def natural(posterior: MeanField) -> Site:
    """Return the natural parameters of a mean-field Gaussian over D weights: 1 / s^2 and mean / s^2."""
    precision = tf.math.reciprocal(flatten(posterior.variance))
    return Site(precision, precision * flatten(posterior.mean))


def flatten(leaves: TensorTree) -> tf.Tensor:
    """Return a structure of tensors as one vector [D]."""
    return tf.concat([tf.reshape(x, [-1]) for x in tf.nest.flatten(leaves)] or [tf.zeros([0])], 0)


def unflatten(vector: tf.Tensor, like: TensorTree) -> Any:
    """Return vectors [..., D] as a structure like `like`; its leaves have their shapes after the same
    leading axes.
    """
    leaves = tf.nest.flatten(like)
    parts = tf.split(vector, [math.prod(x.shape) for x in leaves], -1)
    shaped = [tf.reshape(part, [*vector.shape[:-1], *x.shape]) for part, x in zip(parts, leaves)]
    return tf.nest.pack_sequence_as(like, shaped)


def check_damping(damping: float | None) -> None:
    """Raise InvalidArgument for a damping that is neither None nor above 0 and at most 1."""
    if damping is not None and check_number(damping, "damping") > 1:
        raise InvalidArgument(f"damping is {shown(damping)}, but must be above 0 and at most 1.")


def damping_of(damping: float | None, num_clients: Scalar) -> tf.Tensor:
    """Return the damping of sites in a federation of K clients: 1 / K where it is None, and 0.1 for K = 0,
    not known.
    """
    if damping is not None:
        return tf.constant(damping)
    clients = tf.cast(num_clients, tf.float32)
    return tf.where(clients > 0, 1 / tf.maximum(clients, 1.0), _DAMPING)
