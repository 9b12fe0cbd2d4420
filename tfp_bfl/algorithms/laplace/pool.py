"""A posterior from sums of the clients at one point: Laplace's approximation, or an exact last layer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_bfl.algorithms.laplace.posterior import Expansion, Head, Laplace, as_vector, laplace, linear_head
from tfp_bfl.algorithms.laplace.shared import SharedCurvature, times, trace
from tfp_bfl.errors import InvalidArgument, check_number
from tfp_bfl.posterior import unflatten
from tfp_bfl.tensors import Array
from tfp_bfl.weights import ClientCurvature, ModelWeights

NUM_HEAD_WEIGHTS = 2  # kernel and bias
Rows = Mapping[str, ClientCurvature]


class Curvatures(NamedTuple):
    """The posterior is Laplace's approximation at the server's weights, from the sums of all clients.

    The weights stay as the clients have trained them together where one leaves; of an exact last layer they are those
    that the other clients' sums give.

    Fields:
      head: prior and temperature; of an exact last layer also likelihood and noise.
      exact: the posterior is that of a last layer, whose mean moves (`linear_head`).
      groups: the number of each weight tensor's group, which has a prior of its own; () for one prior.
    """

    head: Head = Head()
    exact: bool = False
    groups: tuple[int, ...] = ()

    def at(self, temperature: float) -> Curvatures:
        """Return the settings with another posterior temperature."""
        return self._replace(head=self.head._replace(temperature=temperature))

    def approximate(self, rows: Rows, weights: ModelWeights) -> Laplace:
        """Compute Laplace's approximation (`laplace.posterior.laplace`), or the posterior of a last layer, from the
        sums of all clients, added in float64.
        """
        if not rows:
            raise InvalidArgument("A posterior is made of clients' sums: one client at least must be left.")
        parts = list(rows.values())
        total = lambda field: tf.nest.map_structure(
            lambda *x: np.sum(np.stack(x).astype(np.float64), 0), *(getattr(part, field) for part in parts)
        )
        mode = _mode(rows, weights)
        if self.exact:
            number = sum(int(part.num_examples) for part in parts)
            sums = total("curvature"), as_vector(total("gradient")), total("nll"), as_vector(mode), np.float64(number)
            return linear_head(Expansion(*sums), mode, self.head)
        return laplace(
            mode,
            total("curvature"),
            total("gradient"),
            float(total("nll")),
            prior_stddev=self.head.prior_stddev,
            groups=self.groups or None,
            temperature=self.head.temperature,
        )

    def pool(self, rows: Rows, weights: ModelWeights) -> ModelWeights:
        """Return the server's weights with the posterior of `approximate`."""
        below = len(weights.point) - len(_mode(rows, weights)) if rows else 0
        q = self.approximate(rows, weights).posterior
        return weights._replace(posterior=q, point=tuple(weights.point[:below]))

    def check(self, rows: Rows, weights: ModelWeights) -> None:
        """Raise InvalidArgument or ValueError for sums that make no posterior, or do not fit the weights."""
        if not rows:
            self.approximate(rows, weights)
        mode = [np.shape(x) for x in _mode(rows, weights)]
        size = sum(math.prod(shape) for shape in mode)
        form, dtypes = _form(rows), {np.asarray(x).dtype for row in rows.values() for x in tf.nest.flatten(row[2:])}
        fits = dtypes == {np.dtype(np.float64 if self.exact else np.float32)}
        for row in rows.values():
            fits = fits and mode == [np.shape(x) for x in row.gradient] and np.shape(row.nll) == ()
            fits = fits and _form({"": row}) == form and _fits(row.curvature, mode, size)
        mean, variance = weights.moments
        fits = fits and [np.shape(x) for x in mean] == [np.shape(x) for x in variance]
        fits = fits and all(bool(np.all(np.asarray(x) >= 0)) for x in variance)
        fits = fits and set(self.groups) == set(range(len(set(self.groups))))
        diagonal = form == "diagonal"
        fits = fits and len(self.groups) in (0, len(mode)) and (diagonal or not self.groups)
        numbers = [x for x in self.head[1:] if x is not None]
        fits = fits and (not self.exact or (not diagonal and len(mode) == NUM_HEAD_WEIGHTS))
        if not fits or any(check_number(x, "a setting") <= 0 for x in numbers):
            raise ValueError

    def align(self, own: Any, others: Any) -> Rows:
        """Return the rows of other clients, which must be at the same weights.

        Sums for an exact last layer may be at different weights of that layer: they are expanded at those of `own`,
        which is exact for Gaussian labels.
        """
        rows: Rows = others.rows
        weights = others.weights
        shapes = lambda rows: [np.shape(x) for x in tf.nest.flatten(next(iter(rows.values()))[2:])]
        alike = _form(own.rows) == _form(rows) and shapes(own.rows) == shapes(rows)
        alike = alike and self.exact == others.settings.exact
        if alike and self.exact:
            mode = _mode(own.rows, own.weights)
            stack = tf.nest.map_structure(lambda *x: np.stack(x), *rows.values())
            moved: Any = expanded_at(stack, as_vector(_mode(rows, weights)), as_vector(mode))
            moved = tf.nest.map_structure(np.asarray, moved)
            rows = {client: tf.nest.map_structure(lambda x, k=k: x[k], moved) for k, client in enumerate(rows)}
            weights = weights._replace(point=(*weights.point[: -len(mode)], *mode))
        here, there = tf.nest.flatten(own.weights), tf.nest.flatten(weights)
        if not alike or len(here) != len(there) or not all(np.array_equal(x, y) for x, y in zip(here, there)):
            raise InvalidArgument(
                "The other clients' sums are of another structure or at other weights than these: let the clients "
                "compute them at the weights of this model."
            )
        return rows

    def measured(self, rows: Rows) -> tuple[str, Sequence[float]]:
        """Return the name of a number that says how much each client contributes, and this number of each."""
        traces = [trace(row.curvature) for row in rows.values()]
        return "share of the curvature", [x / sum(traces) for x in traces]

    def found(self, rows: Rows, weights: ModelWeights) -> dict[str, Any]:
        """Return what a record states of the posterior besides its scores, the noise as the labels are scaled."""
        found = self.approximate(rows, weights)
        noise = {} if found.noise_stddev is None else {"noise_stddev": found.noise_stddev}
        numbers = {x: getattr(found, x) for x in ("log_marginal_likelihood", "effective_parameters", "distance")}
        of_all = {"structure": _form(rows), "temperature": self.head.temperature}
        return {"prior_stddev": found.prior_stddev.tolist(), **numbers, **noise, **of_all}


def expanded_at(rows: ClientCurvature, at: Array, to: Array) -> ClientCurvature:
    """Return sums for a last layer as the same quadratic functions, expanded at other weights.

    Args:
      rows: leaves [K, ...].
      at, to: the weights of the layer, flattened one tensor after another [D].
    """
    like = tuple(tf.TensorSpec(x.shape[1:]) for x in rows.gradient)
    gradient = tf.concat([tf.reshape(x, [-1, math.prod(x.shape[1:])]) for x in rows.gradient], 1)
    pushed = times(rows.curvature, to - at)
    nll = rows.nll + tf.tensordot(gradient + 0.5 * pushed, to - at, 1)
    return rows._replace(gradient=unflatten(gradient + pushed, like), nll=nll)


def _mode(rows: Rows, weights: ModelWeights) -> tuple[Any, ...]:
    """Return the weights that the posterior is over: as many of the last as a client's gradient has."""
    number = len(next(iter(rows.values())).gradient)
    return tuple(weights.point[len(weights.point) - number :])


def _form(rows: Rows) -> str:
    """Return the structure of the first client's curvature."""
    curvature = next(iter(rows.values())).curvature
    shared = isinstance(curvature, SharedCurvature)
    return "kronecker" if shared else "diagonal" if isinstance(curvature, tuple) else "last_layer"


def _fits(curvature: Any, mode: list[tuple[int, ...]], size: int) -> bool:
    """Return whether a curvature is one over weights of these shapes."""
    if isinstance(curvature, SharedCurvature):
        width, classes = size // mode[-1][0], mode[-1][0]
        shapes = [(width * (width + 1) // 2,), (classes, classes)]
        return [np.shape(x) for x in curvature] == shapes and len(mode) == NUM_HEAD_WEIGHTS
    if isinstance(curvature, tuple):
        return mode == [np.shape(x) for x in curvature] and all(bool(np.all(x >= 0)) for x in curvature)
    return np.shape(curvature) == (size, size)
