"""Training before the federation, on the server's own share of the data."""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tfp_bfl import keras
from tfp_bfl.data import Clients
from tfp_bfl.errors import InvalidArgument, check_count
from tfp_bfl.federated.process import BayesianProcess
from tfp_bfl.federated.simulation import simulate
from tfp_bfl.weights import ModelWeights, get_weights


class Pretrained(NamedTuple):
    """The weights of the best epoch, its number from 1, its validation accuracy, and the metrics of all epochs."""

    weights: ModelWeights
    epoch: int
    accuracy: float
    rounds: list[dict[str, Any]]


def pretrain(
    process: BayesianProcess,
    server: Clients,
    evaluate: Callable[[keras.Model], dict[str, float]],
    max_epochs: int = 100,
    patience: int = 10,
    seed: int = 0,
    runtime: Any | None = None,
    *,
    engine: str | None = None,
) -> Pretrained:
    """Train the global model with early stopping: a federation of one client, the server.

    The best epoch is the first with the highest validation accuracy; training ends `patience` epochs after it. Fischer
    et al. 2024 (arXiv:2403.15263) start distributed weight consolidation so, from a tenth of the data. Each epoch is a
    round, so that the optimizer's state starts anew with it.

    The process has rounds that are epochs (local_epochs=1), with any rule that leaves a single client as it is, such as
    `tfp_bfl.rules.naive_weighted_average()`; `evaluate` gives metrics with "accuracy" on data that are not trained on.
    """
    check_count(patience, "patience")
    if server.num_clients != 1:
        raise InvalidArgument(f"The server pre-trains as one client, but there are {server.num_clients}.")
    best: list[tuple[float, ModelWeights]] = []
    since = 0

    def validate(model: keras.Model) -> dict[str, float]:
        nonlocal since
        metrics = evaluate(model)
        since += 1
        if not best or metrics["accuracy"] > best[0][0]:
            weights = tf.nest.map_structure(lambda x: x.numpy(), get_weights(model))
            best[:] = [(metrics["accuracy"], weights)]
            since = 0
        return metrics

    result = simulate(
        process,
        server,
        max_epochs,
        seed=seed,
        evaluate=validate,
        stop=lambda row: since >= patience,
        runtime=runtime,
        engine=engine,
    )
    ((accuracy, weights),) = best
    return Pretrained(weights, len(result.rounds) - since, accuracy, result.rounds)
