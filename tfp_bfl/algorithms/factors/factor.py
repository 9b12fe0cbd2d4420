"""Approximate likelihood factors, one for each client, as natural parameters; and posteriors that are their product."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_bfl.errors import InvalidArgument, check_number, shown
from tfp_bfl.posterior import MeanField, flatten, unflatten
from tfp_bfl.tensors import Scalar, TensorTree
from tfp_bfl.weights import ModelWeights

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


class ClientFactor(NamedTuple):
    """A client's factor of the posterior.

    Fields:
      num_examples: that it was trained on, scalar int32.
      site: the factor.
    """

    num_examples: Any
    site: Factor


Rows = Mapping[str, ClientFactor]


class Factors(NamedTuple):
    """The posterior is the prior times the clients' sites.

    What a client taught the others, and the point weights, stay where it leaves.

    Fields:
      precision, shift: natural parameters of the prior: leaves like the posterior's mean, float64.
    """

    precision: tuple[Any, ...]
    shift: tuple[Any, ...]

    @classmethod
    def without(cls, rows: Rows, posterior: MeanField) -> Factors:
        """Return the prior of a posterior: what is left of it without its clients' sites."""
        precision = 1 / _vector(posterior.variance)
        total = Factor(precision, precision * _vector(posterior.mean))
        left = (x - sum(_vector(row.site[i]) for row in rows.values()) for i, x in enumerate(total))
        return cls(*(tuple(x.numpy() for x in unflatten(part, posterior.mean)) for part in left))

    def pool(self, rows: Rows, weights: ModelWeights) -> ModelWeights:
        """Return the server's weights with the prior times the sites as the posterior."""
        precision, shift = self._natural(rows)
        if np.any(precision <= 0):
            raise InvalidArgument("A site is no factor of the posterior: its precision is not below the posterior's.")
        shaped = lambda flat: unflatten(tf.cast(flat, tf.float32), self.precision)
        return weights._replace(posterior=MeanField(shaped(shift / precision), shaped(1 / precision)))

    def check(self, rows: Rows, weights: ModelWeights) -> None:
        """Raise InvalidArgument or ValueError for rows that make no posterior."""
        size = sum(np.size(x) for x in self.precision)
        fits = size > 0 and [np.shape(x) for x in self.precision] == [np.shape(x) for x in self.shift]
        fits = fits and all(np.shape(x) == (size,) for row in rows.values() for x in row.site)
        mean, variance = weights.moments
        fits = fits and [np.shape(x) for x in mean] == [np.shape(x) for x in variance]
        if not fits or any(np.any(row.site.precision < 0) for row in rows.values()):
            raise ValueError
        self.pool(rows, weights)

    def align(self, own: Any, others: Any) -> Rows:
        """Return the rows of other clients."""
        shapes = lambda held: [np.shape(x) for x in tf.nest.flatten((held.weights, held.settings))]
        if shapes(own) != shapes(others):
            raise InvalidArgument(
                "The other clients' model has other shapes: their sites are over other weights than these."
            )
        return others.rows

    def measured(self, rows: Rows) -> tuple[str, Sequence[float]]:
        """Return the name of a number that says how much each client contributes, and this number of each."""
        total = float(tf.reduce_sum(self._natural(rows).precision))
        return "share of the precision", [float(np.sum(np.float64(x.site.precision))) / total for x in rows.values()]

    def found(self, rows: Rows, weights: ModelWeights) -> dict[str, Any]:
        """Return what a record states of the posterior besides its scores: nothing."""
        del rows, weights
        return {}

    def _natural(self, rows: Rows) -> Factor:
        parts = (self.precision, self.shift)
        return Factor(*(_vector(x) + sum(_vector(row.site[i]) for row in rows.values()) for i, x in enumerate(parts)))


def _vector(leaves: TensorTree) -> tf.Tensor:
    return flatten(tf.nest.map_structure(lambda x: tf.cast(x, tf.float64), leaves))
