"""The average of the last rounds: one model from the posteriors after each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_bfl.contracts import CLIENT_POSTERIOR, CURVATURE, GAUSSIAN, HEAD_SUMS
from tfp_bfl.errors import InvalidArgument, check_count, shown
from tfp_bfl.federated.process import BayesianProcess
from tfp_bfl.posterior import MeanField
from tfp_bfl.weights import ModelWeights

# The smallest variance for which the precision is finite in float32.
_LEAST_VARIANCE = float(np.finfo(np.float32).tiny)


class Averaged(NamedTuple):
    """The averaged `ModelWeights` of the last `rounds`, and the metrics of the model that predicts with them."""

    rounds: int
    weights: ModelWeights
    metrics: dict[str, Any]


def check_average_rounds(process: BayesianProcess, average_rounds: int | None, rounds: int) -> int:
    """Return R, the number of rounds to average; 1 for None."""
    if average_rounds is None:
        return 1
    check_count(average_rounds, "average_rounds")
    if average_rounds > rounds:
        raise InvalidArgument(
            f"average_rounds is {shown(average_rounds)}, but the run has {rounds} rounds: give at most that many."
        )
    if average_rounds == 1:
        return 1
    if process.thinning is not None:
        problem = "the rounds of this algorithm are samples of a chain, which predict together already"
    elif process.is_personal:
        problem = "this algorithm trains a model for each client"
    elif process.client_work.sends == CLIENT_POSTERIOR:
        problem = "the posterior of this algorithm has covariances between weights"
    elif process.client_work.sends in (CURVATURE, HEAD_SUMS):
        problem = "each round of this algorithm replaces the posterior"
    else:
        return average_rounds
    raise InvalidArgument(
        f"average_rounds averages one posterior over rounds, and {problem}: leave average_rounds out."
    )


def average_of(process: BayesianProcess, average_rounds: int, rounds: int, like: ModelWeights) -> RoundAverage:
    """Return the `RoundAverage` of a process: plain for a Gaussian of how the clients' weights differ."""
    return RoundAverage(average_rounds, rounds, like, plain=process.server_step.takes == GAUSSIAN)


class RoundAverage:
    """Average the predictive weights of rounds `first` to `rounds`, R in number.

        1 / s^2 = (1 / R) sum_r 1 / s_r^2,    m = s^2 (1 / R) sum_r m_r / s_r^2    (Gaussian weights)
        w = (1 / R) sum_r w_r                                     (point weights, BatchNorm's moving statistics)

    With `plain`, means and variances are averaged as they are. A Gaussian of how the clients' weights differ (FedAG) is
    no posterior of each round: with few clients its variance is often near 0, and a precision of one round would rule
    the average.

    The averaged Gaussian is the weighted geometric mean of the R posteriors (`rules.log_linear_pool` with equal
    weights). Moving variances are averaged as they are: rounds see the same data, so that a moving mean that differs
    between rounds says nothing about the variance of the activations. `sums`, float64, go into checkpoints; they are
    empty before round `first`. `like` are predictive weights before the first round.
    """

    def __init__(self, average_rounds: int, rounds: int, like: ModelWeights, plain: bool = False):
        if not isinstance(like.posterior, MeanField):
            raise InvalidArgument(
                f"average_rounds averages Gaussians without covariances, and this posterior is a "
                f"{type(like.posterior).__name__}: leave average_rounds out."
            )
        self._rounds = average_rounds
        self._like, self._plain = like, plain
        self.first = rounds - average_rounds + 1
        self.sums: list[np.ndarray] = []

    def add(self, number: int, weights: Callable[[], ModelWeights]) -> None:
        """Add the weights after round `number`, which are computed only if the round belongs to the average."""
        if number < self.first:
            return
        terms = self._terms(weights())
        self.sums = [a + b for a, b in zip(self.sums, terms)] if self.sums else terms

    def restore(self, number: int, first: int | None, sums: Sequence[np.ndarray]) -> None:
        """Continue from the checkpoint of round `number`, with sums that begin with round `first`."""
        if number < self.first:
            return
        shapes = [x.shape for x in self._terms(self._like)]
        if first != self.first or [x.shape for x in sums] != shapes:
            raise InvalidArgument(
                f"The checkpoint of round {number} holds no sum of the rounds from {self.first} on: ask for at least "
                f"{number + self._rounds} rounds, or choose another folder."
            )
        self.sums = [np.asarray(x) for x in sums]

    def weights(self) -> ModelWeights:
        """Return the average, in the types of the weights."""
        leaves = [x / self._rounds for x in self.sums]
        if not self._plain:
            n = len(tf.nest.flatten(self._like.posterior.mean))
            precisions, informations, others = leaves[:n], leaves[n : 2 * n], leaves[2 * n :]
            leaves = [*(b / a for a, b in zip(precisions, informations)), *(1 / a for a in precisions), *others]
        like = tf.nest.flatten(self._like)
        return tf.nest.pack_sequence_as(self._like, [np.asarray(x, np.asarray(y).dtype) for x, y in zip(leaves, like)])

    def _terms(self, weights: ModelWeights) -> list[np.ndarray]:
        return _exact(weights) if self._plain else _natural(weights)


def _exact(part: object) -> list[np.ndarray]:
    return [np.asarray(x, np.float64) for x in tf.nest.flatten(part)]


def _natural(weights: ModelWeights) -> list[np.ndarray]:
    """Return precisions, precisions times means, point weights and moving statistics, in float64."""
    precisions = [1 / np.maximum(v, _LEAST_VARIANCE) for v in _exact(weights.posterior.variance)]
    informations = [p * m for p, m in zip(precisions, _exact(weights.posterior.mean))]
    return [*precisions, *informations, *_exact(weights.point), *_exact(weights.moments)]
