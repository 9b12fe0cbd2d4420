"""Approximate likelihood factors of a posterior, one for each client, as natural parameters; and their damping."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from tfp_bfl.errors import InvalidArgument, check_number, shown
from tfp_bfl.posterior import MeanField, flatten
from tfp_bfl.tensors import Scalar

# Where nobody has said how many clients there are.
_DAMPING = 0.1


class Factor(NamedTuple):
    """A Gaussian factor of a posterior over D weights, by natural parameters: exp(shift w - precision w^2 / 2).

    Fields:
      precision: at least 0 [D].
      shift: precision times mean [D].
    """

    precision: Any
    shift: Any


def natural(posterior: MeanField) -> Factor:
    """Return the natural parameters of a mean-field Gaussian over D weights: 1 / s^2 and mean / s^2."""
    precision = tf.math.reciprocal(flatten(posterior.variance))
    return Factor(precision, precision * flatten(posterior.mean))


def check_damping(damping: float | None) -> None:
    """Raise InvalidArgument for a damping that is neither None nor above 0 and at most 1."""
    if damping is not None and check_number(damping, "damping") > 1:
        raise InvalidArgument(f"damping is {shown(damping)}, but must be above 0 and at most 1.")


def damping_of(damping: float | None, num_clients: Scalar) -> tf.Tensor:
    """Return the damping of factors in a federation of K clients: 1 / K where it is None, and 0.1 for K = 0,
    not known.
    """
    if damping is not None:
        return tf.constant(damping)
    clients = tf.cast(num_clients, tf.float32)
    return tf.where(clients > 0, 1 / tf.maximum(clients, 1.0), _DAMPING)
