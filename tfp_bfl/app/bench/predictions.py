"""Predictions of a trained method for test and held-out rows, client by client where it has personal models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl.app.one_run import build, client_scores
from tfp_bfl.app.one_run.job import Job
from tfp_bfl.app.one_run.records import truth
from tfp_bfl.data._random import generator
from tfp_bfl.errors import InvalidArgument

if TYPE_CHECKING:
    import tensorflow as tf

_OF_CLASSES = ("probabilities", "entropy", "epistemic")
_OF_NUMBERS = ("mean", "stddev", "epistemic", "low", "high")


class Parts(NamedTuple):
    """Rows of a source that belong to clients.

    Fields:
      source: of the rows.
      rows: of each client, places in the source; a client may have none.
    """

    source: bfl.data.Source
    rows: Sequence[np.ndarray]

    def of(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return features and labels of client k."""
        return self.source.features[self.rows[k]], self.source.labels[self.rows[k]]

    @property
    def places(self) -> np.ndarray:
        """All rows, client by client."""
        return np.concatenate(self.rows)

    @property
    def owners(self) -> np.ndarray:
        """The client of each of `places`."""
        return np.repeat(np.arange(len(self.rows)), [len(rows) for rows in self.rows])


class Predicted(NamedTuple):
    """Predictions for the rows of `Parts`, in the order of its `places`.

    Fields:
      labels: the truth [N].
      owners: the client of each row [N].
      arrays: of an `Evaluation` or a `RegressionEvaluation`, by name.
      metrics: of a model for all clients, as evaluated; {} for personal models.
    """

    labels: np.ndarray
    owners: np.ndarray
    arrays: dict[str, np.ndarray]
    metrics: dict[str, float]


def set_aside(clients: bfl.data.Clients, share: float, seed: int) -> tuple[bfl.data.Clients, Parts]:
    """Take a share of each client's examples, drawn by the seed: the clients with the rest, and that share.

    A client gives round(share n) of its n examples, and keeps one at least.

    Raises:
      InvalidArgument: no client has enough examples to give one.
    """
    rest, held = [], []
    for k, rows in enumerate(clients.indices):
        number = min(round(share * len(rows)), len(rows) - 1)
        order = generator(seed, f"bench {k}").permutation(len(rows))
        held.append(np.sort(rows[order[:number]]))
        rest.append(np.sort(rows[order[number:]]))
    if not sum(map(len, held)):
        raise InvalidArgument(f"A share of {share} of each client's examples is none: hold out a larger share.")
    return bfl.data.Clients(clients.source, rest), Parts(clients.source, held)


def test_parts(job: Job) -> Parts:
    """Return the test rows of each client: its own where the data name the clients, else by its share of each class."""
    named = job.train.client_names if job.config.partition == "given" else ()
    if named and job.test.owners is not None:
        return Parts(job.test, job.test.rows_of(named))
    if job.test.target is not None:
        return Parts(job.test, [np.arange(job.test.num_examples)])
    return Parts(job.test, job.test.partition(bfl.data.like(job.clients), seed=job.config.seed).indices)


def predict(job: Job, model: tf.keras.Model, parts: Parts) -> Predicted:
    """Return the predictions of one model for all clients."""
    places = parts.places
    source = parts.source.select(places)
    found = build.scorer(job.config, source)(model, source.features, source.labels)
    names = _OF_CLASSES if source.target is None else _OF_NUMBERS
    arrays = {name: getattr(found, name) for name in names}
    return Predicted(truth(source), parts.owners, arrays, found.metrics)


def predict_personal(job: Job, result: bfl.federated.SimulationResult, parts: Parts) -> Predicted:
    """Return the predictions of each client's own model after one step of adaptation on its training examples.

    Raises:
      InvalidArgument: the labels are numbers.
    """
    if parts.source.target is not None:
        raise InvalidArgument(f"{job.config.algorithm} has personal models, which are measured for classes only.")
    found: list[Any] = []
    options = job.prediction

    def evaluate(model: tf.keras.Model, features: Any, labels: Any) -> dict[str, float]:
        # A client without rows has no predictions.
        found.append(bfl.evaluation.evaluate(model, features, labels, **options) if len(labels) else None)
        return found[-1].metrics if found[-1] else {}

    shards = _Shards(parts)
    adapted = client_scores.one_step(job.config, job.process, job.clients)
    bfl.federated.evaluate_clients(
        job.process,
        result,
        job.clients,
        shards,  # type: ignore[arg-type]
        evaluate,
        adaptation=adapted,
        most_examples=client_scores.EXAMPLES,
        seed=job.config.seed,
        noise=job.config.client_noise,
    )
    after = [each for each in found[1::2] if each]
    arrays = {name: np.concatenate([getattr(each, name) for each in after]) for name in _OF_CLASSES}
    return Predicted(truth(parts.source.select(parts.places)), parts.owners, arrays, {})


class _Shards:
    """Rows of clients as `evaluate_clients` asks for them."""

    def __init__(self, parts: Parts) -> None:
        self._parts, self.num_clients = parts, len(parts.rows)

    def examples(self, k: int) -> tuple[None, np.ndarray, np.ndarray]:
        return (None, *self._parts.of(k))


Predict = Callable[[Parts], Predicted]
