"""Scores of each client on its own test rows at the end of a run: by one model, or by models of the clients."""

from __future__ import annotations

import json
import logging
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl.app.one_run.records import in_units, names_in
from tfp_bfl.app.options.config import RunConfig
from tfp_bfl.data.equal_partitions import GIVEN
from tfp_bfl.errors import InvalidArgument, shown
from tfp_bfl.options import class_weights

if TYPE_CHECKING:
    from tfp_bfl.app.one_run.job import Job

logger = logging.getLogger(__name__)

NAME = "clients.jsonl"
# Of a client's training examples, to adapt to.
EXAMPLES = 64
# Of the prediction sets that are counted.
COVERAGE = 0.9


class RowsByClient(NamedTuple):
    """Rows of a source that belong to clients: the places of each, perhaps none, and the names that the data have."""

    source: bfl.data.Source
    rows: Sequence[np.ndarray]
    names: Sequence[str] = ()

    @property
    def num_clients(self) -> int:
        """K."""
        return len(self.rows)

    @property
    def called(self) -> list[str]:
        """The names of the clients, or their numbers."""
        return list(self.names) or [str(k) for k in range(len(self.rows))]

    def examples(self, k: int) -> tuple[None, np.ndarray, np.ndarray]:
        """Return None, features and labels of client k, as `personal.evaluate_clients` takes them."""
        return None, self.source.features[self.rows[k]], self.source.labels[self.rows[k]]

    @property
    def places(self) -> np.ndarray:
        """All rows, client by client."""
        return np.concatenate(self.rows)

    @property
    def owners(self) -> np.ndarray:
        """The client of each of `places`."""
        return np.repeat(np.arange(len(self.rows)), [len(rows) for rows in self.rows])


def everybody(clients: bfl.data.Clients, unseen: bfl.data.Clients | None) -> bfl.data.Clients:
    """Return the training clients followed by the held-out clients."""
    return clients if unseen is None else bfl.data.Clients(clients.source, (*clients.indices, *unseen.indices))


def named(config: RunConfig, owners: np.ndarray | None) -> dict[str, np.ndarray]:
    """Return the arrays of a file of predictions that name the client of each row; {} for artificial clients."""
    if config.partition != GIVEN or owners is None:
        return {}
    names, client = np.unique(owners.astype(str), return_inverse=True)
    return {"client": client.astype(np.int32), "client_names": names}


def shards(
    config: RunConfig, test: bfl.data.Source, clients: bfl.data.Clients, is_personal: bool = False
) -> RowsByClient | None:
    """Return the test rows of each client: its own, where training and test data name the clients.

    Clients that the test data name and the training data do not are the last. Artificial clients have no test rows;
    with `evaluate_clients` each gets a part of every class, as in training.
    """
    if is_personal and config.evaluate_clients and test.target is not None:
        raise InvalidArgument(
            f"evaluate_clients is of classification, and {test.name} has numbers for labels: leave it out."
        )
    names = names_in(clients) if config.partition == GIVEN else []
    if names and test.owners is not None:
        every = list(dict.fromkeys([*names, *test.client_names]))
        parts = RowsByClient(test, test.rows_of(every), every)
        return with_models(parts, config, len(names), is_personal) if config.evaluate_clients else parts
    if not config.evaluate_clients:
        return None
    if config.partition == GIVEN:
        raise InvalidArgument(
            f"evaluate_clients scores each client on its own test rows, and the test data of {config.data_name} do not "
            "name the clients: leave out evaluate_clients, or test_data, so that a fifth of each client's rows is held "
            "out."
        )
    return RowsByClient(test, test.partition(bfl.data.like(clients), seed=config.seed).indices)


def with_models(parts: RowsByClient, config: RunConfig, number: int, is_personal: bool) -> RowsByClient:
    """Return test rows of clients that each have a model, as far as the algorithm makes a model for each."""
    if parts.num_clients > number and is_personal:
        raise InvalidArgument(
            f"{config.algorithm} scores each client by a model of its own, and {shown(parts.called[number])} of the "
            "test data has no training rows: leave its test rows out."
        )
    return parts


def scored(
    job: Job,
    result: bfl.federated.SimulationResult,
    final: object,
    held: dict[str, np.ndarray] | None,
    folder: pathlib.Path,
) -> tuple[dict[str, Any], list[str]]:
    """Return what a summary records of each client, and warnings; with evaluate_clients, write clients.jsonl."""
    parts = job.shards
    if parts is None:
        return {}, []
    found: dict[str, Any] = {}
    if job.config.evaluate_clients and job.is_personal:
        before, after, lines = personal(job, result, parts)
        for name, evaluations in {"clients": before, **({"adapted_clients": after} if after else {})}.items():
            probabilities = np.concatenate([each.probabilities for each in evaluations])
            found[name] = rows_of(parts, probabilities, parts.source.labels[parts.places])
    else:
        found["clients"] = of_model(parts, final, held)
        lines = []
        scores = {row["client"]: row for row in found["clients"] if row["n"]}
        for k, name in enumerate(parts.called[: job.everybody.num_clients]):
            metrics = {key: x for key, x in scores.get(name, {}).items() if key in ("accuracy", "rmse", "test_nll")}
            if metrics:
                lines.append(bfl.algorithms.personal.ClientScores(k, len(job.everybody.indices[k]), metrics))
    if job.config.evaluate_clients:
        _write(folder, lines, parts)
        found |= _summarise(lines, job.clients.num_clients)
    warnings = bfl.evaluation.client_warnings(found["clients"])
    for warning in warnings:
        logger.warning(warning)
    return found, warnings


def of_model(parts: RowsByClient, final: Any, held: dict[str, np.ndarray] | None = None) -> list[dict[str, Any]]:
    """Return the rows of the clients by one model, with the coverage of its sets or intervals."""
    places, target = parts.places, parts.source.target
    names = ("mean", "low", "high", "nll") if target is not None else ("probabilities",)
    labels = np.asarray(parts.source.labels)[places]
    arrays = {name: getattr(final, name)[places] for name in names}
    return of_predictions(parts, arrays, in_units(labels, target), held)


def of_predictions(
    parts: RowsByClient, arrays: Mapping[str, np.ndarray], labels: np.ndarray, held: Mapping[str, np.ndarray] | None
) -> list[dict[str, Any]]:
    """Return the rows of the clients, with the coverage of the sets or intervals."""
    if "mean" in arrays:
        covered = (arrays["low"] <= labels) & (labels <= arrays["high"])
        return rows_of(parts, arrays["mean"], labels, covered=covered, losses=arrays["nll"])
    inside = None if held is None else sets_hold(arrays["probabilities"], labels, held)
    return rows_of(parts, arrays["probabilities"], labels, covered=inside)


def sets_hold(probabilities: np.ndarray, labels: np.ndarray, held: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """Return whether the sets of `COVERAGE` by held-out examples hold each label; None where these are too few."""
    try:
        limit = bfl.evaluation.conformal_limit(held["probabilities"], held["labels"], COVERAGE)
    except InvalidArgument:
        return None
    return bfl.evaluation.prediction_sets(probabilities, limit)[np.arange(len(labels)), labels]


def rows_of(parts: RowsByClient, predictions: np.ndarray, labels: np.ndarray, **given: Any) -> list[dict[str, Any]]:
    """Return `evaluation.client_scores` of predictions for `RowsByClient.places`."""
    owners = np.array(parts.called, object)[parts.owners]
    return bfl.evaluation.client_scores(predictions, labels, owners, names=parts.called, **given)


def personal(
    job: Job, result: bfl.federated.SimulationResult, parts: RowsByClient
) -> tuple[list[Any], list[Any], list[bfl.algorithms.personal.ClientScores]]:
    """Evaluate the model of every client that has test rows, before and after one adaptation step at the inner rate."""
    adapts = job.config.adapts
    found: list[Any] = []

    def evaluate(model: Any, features: Any, labels: Any) -> dict[str, float]:
        found.append(bfl.evaluation.evaluate(model, features, labels, **job.prediction) if len(labels) else None)
        return found[-1].metrics if found[-1] else {}

    scores = bfl.algorithms.personal.evaluate_clients(
        job.process,
        result,
        job.everybody,
        parts,  # type: ignore[arg-type]
        evaluate,
        adaptation=one_step(job.config, job.process, job.clients) if adapts else None,
        most_examples=EXAMPLES,
        seed=job.config.seed,
        noise=job.config.client_noise,
    )
    every = 2 if adapts else 1
    before, after = ([each for each in found[start::every] if each] if start < every else [] for start in range(2))
    return before, after, [score for score in scores if score.before]


def one_step(config: RunConfig, process: bfl.federated.BayesianProcess, trained: bfl.data.Clients) -> Any:
    """Return the client work of one adaptation step at the inner rate, with the augmentation of training and by its
    loss, that of the examples of the step: a sum of KL terms is divided by their number. Learned variances too adapt
    at this rate. The KL term of p_fed_bayes is to the common posterior and left out.
    """
    of_loss: Any = {"kl_weight": 0.0}
    if config.algorithm != "p_fed_bayes":
        of_loss = {name: getattr(config, name) for name in ("kl_weight", "kl_reduction")}
    if config.class_weight:
        of_loss |= class_weights.likelihood(config.class_weight, lambda: trained)
    work = bfl.algorithms.personal.work.meta_learning(
        process.model_fn,
        local_epochs=1,
        batch_size=EXAMPLES,
        learning_rate=config.inner_rate,
        clip_norm=config.clip_norm,
        **of_loss,
        logit_rate=0.0 if getattr(config, "variances", None) == "constant_variances" else None,
    )
    return work if config.augmentation is None else bfl.clients.augmented(work, config.augmentation)


def _summarise(scores: list[bfl.algorithms.personal.ClientScores], number: int) -> dict[str, float]:
    """Return the clients' mean accuracy and the least one, before and after the step; of those from
    `number` on apart. Numbers have none.
    """
    summary = {}
    groups = {
        "client": [x for x in scores if x.client < number],
        "unseen_client": [x for x in scores if x.client >= number],
    }
    for group, part in groups.items():
        if not part or "accuracy" not in part[0].before:
            continue
        for when, adapted in {"": False, "adapted_": True}.items() if part[0].after else {"": False}.items():
            of_all = bfl.algorithms.personal.summarise_clients(part, adapted=adapted)
            summary[f"{when}{group}_accuracy"] = of_all["uniform"]
            summary[f"{when}{group}_accuracy_least"] = of_all["least"]
    return summary


def _write(folder: pathlib.Path, scores: list[bfl.algorithms.personal.ClientScores], parts: RowsByClient) -> None:
    """Write the scores to the folder, as one line of JSON for each client."""
    named = lambda k: {"name": parts.names[k]} if parts.names else {}
    lines = "".join(json.dumps({**each._asdict(), **named(each.client)}) + "\n" for each in scores)
    (folder / NAME).write_text(lines, encoding="utf-8")
