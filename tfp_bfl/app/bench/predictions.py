"""Predictions of a trained method for test and held-out rows, client by client where it has personal models."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl.app.one_run import build, client_scores
from tfp_bfl.app.one_run.client_scores import Parts
from tfp_bfl.app.one_run.job import Job
from tfp_bfl.app.one_run.records import truth
from tfp_bfl.data._random import generator
from tfp_bfl.errors import InvalidArgument

if TYPE_CHECKING:
    from tfp_bfl import keras

_OF_CLASSES = ("probabilities", "entropy", "epistemic")
_OF_NUMBERS = ("mean", "stddev", "epistemic", "low", "high", "nll")


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
    if job.shards is not None:
        return client_scores.with_models(job.shards, job.config, job.everybody.num_clients)
    if job.test.target is not None:
        return Parts(job.test, [np.arange(job.test.num_examples)])
    return Parts(job.test, job.test.partition(bfl.data.like(job.clients), seed=job.config.seed).indices)


def predict(job: Job, model: keras.Model, parts: Parts) -> Predicted:
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
    _, after, _ = client_scores.personal(job, result, parts)
    arrays = {name: np.concatenate([getattr(each, name) for each in after]) for name in _OF_CLASSES}
    return Predicted(truth(parts.source.select(parts.places)), parts.owners, arrays, {})


Predict = Callable[[Parts], Predicted]
