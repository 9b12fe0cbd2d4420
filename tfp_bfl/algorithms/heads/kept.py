"""Heads of clients that a server keeps apart, so that they can leave and join (`algorithms.held`)."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_bfl.algorithms.heads import softmax
from tfp_bfl.algorithms.heads.classes import NUM_DRAWS
from tfp_bfl.algorithms.heads.posterior import HEADS, Fitted, HeadSettings, at_temperature, fit, fit_softmax
from tfp_bfl.algorithms.heads.step import temperature_of
from tfp_bfl.algorithms.heads.sums import ClassSums, as_matrix, repaired
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.weights import ModelWeights, ServerMessage


class ClientFeatures(NamedTuple):
    """The sums of a client over its examples.

    Fields:
      client: its number, int32.
      num_examples: int32, those held back included.
      counts, totals, gram: as of `sums.ClassSums`.
    """

    client: Any
    num_examples: Any
    counts: Any
    totals: Any
    gram: Any


Rows = Mapping[str, ClientFeatures]


class Heads(NamedTuple):
    """The head is that of the sums of all clients, exact for "gaussian" and "ridge".

    The mode of "softmax" stays as the clients have found it together where one leaves: its covariance alone changes.

    Fields:
      place: of the head in `posterior.HEADS`.
      temperature: of softmax.
      stddev: of the prior; None for the maximum of the marginal likelihood.
      fisher: mean of the Fisher information [C, C], and precision of the prior, of "softmax".
    """

    place: int
    temperature: float
    stddev: float | None = None
    fisher: Any = None
    precision: Any = None

    def at(self, temperature: float) -> Heads:
        """Return the settings with another softmax temperature."""
        return self._replace(temperature=temperature)

    def approximate(self, rows: Rows, weights: ModelWeights) -> Fitted:
        """Compute the head from the sums of all clients."""
        if not rows:
            raise InvalidArgument("A head is made of clients' sums: one client at least must be left.")
        total = functools.reduce(lambda a, b: ClassSums(*map(np.add, a, b)), (row[2:] for row in rows.values()))
        total = repaired(ClassSums(*map(tf.constant, total)))  # Rows of few bits may be those of a few examples.
        if HEADS[self.place] != "softmax":
            return fit(total, HeadSettings(HEADS[self.place], self.stddev), NUM_DRAWS)
        basis, mode = softmax.basis_of(total), as_matrix(weights.point[-2:])
        number = tf.reduce_sum(total.counts)
        return fit_softmax(
            basis, tf.linalg.solve(basis.vectors, mode), number * self.fisher, np.float64(self.precision)
        )

    def pool(self, rows: Rows, weights: ModelWeights) -> ModelWeights:
        """Return the server's weights with the posterior of `approximate` at the temperature."""
        q = at_temperature(self.approximate(rows, weights).posterior, self.temperature)
        return weights._replace(posterior=q, point=tuple(weights.point[:-2]))

    def check(self, rows: Rows, weights: ModelWeights) -> None:
        """Raise InvalidArgument or ValueError for sums that make no head, or do not fit the weights."""
        if not rows:
            self.approximate(rows, weights)
        size, classes = np.shape(weights.point[-2])
        shapes = [(classes,), (classes, size), (size * (size + 1) // 2,)]
        fits = all([np.shape(x) for x in row[2:]] == shapes for row in rows.values()) and 0 <= self.place < len(HEADS)
        fits = fits and all(bool(np.all(row.counts >= 0)) for row in rows.values()) and self.temperature > 0
        is_softmax = fits and HEADS[self.place] == "softmax"
        if not fits or is_softmax != (np.shape(self.fisher) == (classes, classes)) or not (self.stddev or 1) > 0:
            raise ValueError

    def align(self, own: Any, others: Any) -> Rows:
        """Return the rows of other clients, which must be of features of the same network."""
        below = lambda held: tf.nest.flatten(held.weights)[:-2]
        alike = self.place == others.settings.place and len(below(own)) == len(below(others))
        shapes = [[np.shape(x) for x in held.weights.point[-2:]] for held in (own, others)]
        if not alike or shapes[0] != shapes[1] or not all(map(np.array_equal, below(own), below(others))):
            raise InvalidArgument(
                "The other clients' sums are of another head or another network than these: let the clients compute "
                "them with the network of this model."
            )
        rows: Rows = others.rows
        return rows

    def measured(self, rows: Rows) -> tuple[str, Sequence[float]]:
        """Return the name of a number that says how much each client contributes, and this number of each."""
        numbers = [float(np.sum(row.counts)) for row in rows.values()]
        return "share of the examples", [x / sum(numbers) for x in numbers]

    def found(self, rows: Rows, weights: ModelWeights) -> dict[str, Any]:
        """Return what a record states of the head besides its scores."""
        found = {name: float(x) for name, x in self.approximate(rows, weights).found.items()}
        if "prior_stddev" in found:
            found["prior_stddev"] = [found["prior_stddev"]]  # type: ignore[assignment]
        return {"head": HEADS[self.place], "softmax_temperature": self.temperature, **found}


def settings_of(state: Any, settings: HeadSettings) -> Heads:
    """Return how rows are pooled after the rounds of a `step.HeadState`."""
    heads = Heads(HEADS.index(settings.head), temperature_of(state, settings), settings.stddev)
    if settings.head != "softmax":
        return heads
    fisher = np.asarray(state.search.fisher) / np.sum(state.features.counts)
    return heads._replace(fisher=fisher, precision=float(state.search.precision))


def rows_of_clients(process: Any, weights: ModelWeights, clients: Any) -> dict[str, ClientFeatures]:
    """Let each client compute its sums anew, and return these by its number."""
    work, message = process.client_work.build(), ServerMessage(weights, tf.constant(0))
    rows = {}
    for k in range(clients.num_clients):
        result = work(message, tf.nest.map_structure(tf.constant, clients.examples(k)), tf.constant([0, 0]))
        number = int(result.num_examples)
        sums = (np.asarray(x) * number for x in result.weights.features)
        rows[str(k)] = ClientFeatures(np.int32(k), np.int32(number), *sums)
    return rows
