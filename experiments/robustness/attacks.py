"""Hostile clients: honest work, spoilt before it is sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfp_bfl.contracts import ClientWork
from tfp_bfl.weights import ClientResult, ModelWeights, ServerMessage


def spoil(local: ModelWeights, anchor: ModelWeights, change: float, variance: float) -> ModelWeights:
    """Return mean = anchor + change (local - anchor), point weights likewise, variance = variance x local."""
    move = lambda x, a: a + change * (x - a)
    means = tf.nest.map_structure(move, local.posterior.mean, anchor.posterior.mean)
    variances = tf.nest.map_structure(lambda v: variance * v, local.posterior.variance)
    posterior = local.posterior._replace(mean=means, variance=variances)
    return local._replace(posterior=posterior, point=tf.nest.map_structure(move, local.point, anchor.point))


def attacked(client_work: ClientWork, hostile: int, change: float, variance: float) -> ClientWork:
    """Return client work in which clients with numbers below `hostile` send the result of `spoil`."""

    def build() -> Callable[[ServerMessage, Any, tf.Tensor], ClientResult]:
        work = client_work()

        def spoilt_work(message: ServerMessage, examples: Any, seed: tf.Tensor) -> ClientResult:
            result = work(message, examples, seed)
            spoilt = spoil(result.weights, message.weights, change, variance)
            choose = lambda bad, own: tf.where(examples.client[0] < hostile, bad, own)
            return result._replace(weights=tf.nest.map_structure(choose, spoilt, result.weights))

        return spoilt_work

    return ClientWork(build)
