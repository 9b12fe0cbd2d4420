"""From a prepared run to its record: training, predictions, comparisons. Runs, cells and trials go this way alike."""

from __future__ import annotations

import contextlib
import datetime
import logging
import pathlib
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import Any, NamedTuple

import numpy as np

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl import edges
from tfp_bfl.app.one_run import backbone, build, client_scores
from tfp_bfl.app.one_run.client_scores import RowsByClient
from tfp_bfl.app.one_run.job import Job
from tfp_bfl.app.one_run.records import truth
from tfp_bfl.app.options.config import RunConfig
from tfp_bfl.app.options.resolve import method, stated
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.faces import keras, tf
from tfp_bfl.options import class_weights

logger = logging.getLogger(__name__)

MB = 2**20
_OF_CLASSES = ("probabilities", "entropy", "epistemic")
_OF_NUMBERS = ("mean", "stddev", "epistemic", "low", "high", "nll")
VERSIONED = ("tfp_bfl", "tensorflow", "tf_keras", "tensorflow_probability", "tensorflow_federated", "numpy")


class Finished(NamedTuple):
    """Hold the record of a training: of a run, of a benchmark's cell or of a trial.

    `about` are the data, the method and the program; scores are of the test rows, of a trial of held-out training rows;
    costs are seconds and megabytes; of a cell the rounds are those that were evaluated.
    """

    options: Mapping[str, Any]
    about: Mapping[str, Any]
    scores: Mapping[str, Any]
    cost: Mapping[str, Any]
    rounds: Sequence[Mapping[str, Any]] = ()
    warnings: Sequence[str] = ()

    def summary(self) -> dict[str, Any]:
        """Return what summary.json of a run holds: its folder has options and rounds in files of their own."""
        return {**self.scores, **self.about, **self.cost, "warnings": list(self.warnings)}


def train(
    job: Job,
    monitor: bfl.federated.Monitor,
    *,
    clients: bfl.data.ClientData | None = None,
    folder: pathlib.Path | None = None,
    start: bfl.weights.ModelWeights | None = None,
    runtime: object = None,
) -> bfl.federated.SimulationResult:
    """Run the rounds of a job, over its clients as the engine takes them, None for as they are."""
    config, test = job.config, {"test data": f"{job.test.num_examples} examples ({job.test.sha256()[:8]})"}
    test |= backbone.stated(config, job.train.image_shape)
    kept = config.checkpoint_every, config.keep_checkpoints, test
    return bfl.federated.simulate(
        job.trained,
        job.clients if clients is None else clients,
        rounds=config.rounds,
        cohorts=bfl.federated.Cohorts(config.cohort_size, config.popularity, config.dropout, config.max_retries),
        seed=config.seed,
        checkpoints=None if folder is None else bfl.federated.Checkpointing(folder, *kept),
        monitor=monitor,
        start=start,
        prediction=bfl.federated.Prediction(config.average_rounds, batch_norm_examples=job.batch_norm_examples),
        engine=bfl.federated.Backend(job.engine, runtime),
    )


def about(job: Job, user_data: bfl.data.OwnData | None) -> dict[str, Any]:
    """Return the method as it trained, the date, versions of packages, and the digest of data that may name clients."""
    weight = job.config.class_weight
    return {
        "method": {
            **job.config.parameters,
            **method(stated(job.config, job.weights, job.process.settings)),
        },
        "trained": job.process.settings,
        **({"class_weights": class_weights.by_class(weight, job.clients)} if weight else {}),
        "date": datetime.date.today().isoformat(),
        "versions": versions(),
        **({"data": bfl.data.digest(user_data)} if user_data else {}),
        **({"notes": list(job.notes)} if job.notes else {}),
    }


def versions() -> dict[str, str]:
    """Return the versions of the installed packages that the numbers of a run depend on."""
    found = {}
    for name in VERSIONED:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def permuted(
    result: bfl.federated.SimulationResult, evaluate: Callable[[keras.Model], Mapping[str, float]]
) -> dict[str, float]:
    """Return the scores with permuted standard deviations of the layers' weights; nothing for a model without them."""
    if result.ensemble or not tf.nest.flatten(result.state.weights.posterior):
        return {}
    with bfl.evaluation.permuted_stddevs(result.model):
        found = evaluate(result.model)
    return {f"permuted_{name}": found[name] for name in ("accuracy", "rmse", "test_nll", "ece") if name in found}


def exchanged(rounds: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the megabytes to and from clients in all rounds, as far as they were counted."""
    ways = [way for way in ("upload", "download") if f"{way}_bits" in rounds[-1]]
    return {f"{way}_mb": sum(row[f"{way}_bits"] for row in rounds) / (8 * MB) for way in ways}


def compared(job: Job, final: Any, simple: Sequence[bfl.evaluation.Baseline]) -> list[str]:
    """Return the warnings of a model that is no better than predictions without features.

    Probabilities of a training with class weights are of another population, and are not compared.
    """
    config, test = job.config, job.test
    if config.class_weight is not None:
        return []
    # Of rare classes a good model has the accuracy of the most frequent one, and a better NLL.
    better = is_better(final, simple[0], test)
    chance = None if better else no_better_than_chance(final.metrics, test, config)
    found = [*([chance] if chance else []), *worse_than(final, list(simple), test)]
    for warning in found:
        logger.warning(warning)
    return found


def no_better_than_chance(metrics: Mapping[str, Any], test: bfl.data.Source, config: RunConfig) -> str | None:
    """Return a warning if the model predicts a constant."""
    if test.target is not None:
        of_mean = test.target.stddev * float(np.sqrt(np.mean(np.square(test.labels, dtype=np.float64))))
        return bfl.federated.constant_warning(metrics["rmse"], of_mean)
    share = float(np.bincount(test.labels).max() / test.num_examples)
    return bfl.federated.chance_warning(metrics["accuracy"], share, getattr(config, "learning_rate", None))


class Predicted(NamedTuple):
    """Hold predictions for the rows of `RowsByClient`, in the order of its `places`: labels [N], the client of each
    [N], arrays of an evaluation by name, and the metrics of a model for all clients, {} for personal models.
    """

    labels: np.ndarray
    owners: np.ndarray
    arrays: dict[str, np.ndarray]
    metrics: dict[str, float]


def predict(job: Job, result: bfl.federated.SimulationResult, model: keras.Model, parts: RowsByClient) -> Predicted:
    """Return the predictions for rows of clients: by one model, or by those of the clients where these are personal."""
    source = parts.source.select(parts.places)
    if not job.is_personal:
        found = build.scorer(job.config, source)(model, source.features, source.labels)
        names = _OF_CLASSES if source.target is None else _OF_NUMBERS
        arrays = {name: getattr(found, name) for name in names}
        return Predicted(truth(source), parts.owners, arrays, found.metrics)
    if source.target is not None:
        raise InvalidArgument(f"{job.config.algorithm} has personal models, which are measured for classes only.")
    before, after, _ = client_scores.personal(job, result, parts)
    arrays = {name: np.concatenate([getattr(each, name) for each in after or before]) for name in _OF_CLASSES}
    return Predicted(truth(source), parts.owners, arrays, {})


# In the records of a summary.
MOST_CLASSES = 30


def baselines(clients: bfl.data.Clients, test: bfl.data.Source) -> list[bfl.evaluation.Baseline]:
    """Score the baselines on the test data.

    For classes the class frequencies, for numbers mean and standard deviation of the training labels, and the
    baselines of edges, such as linear models.
    """
    if test.target is None:
        constant = bfl.evaluation.class_frequencies(clients.label_counts().sum(0), test.labels)
    else:
        labels = np.concatenate([clients.source.labels[part] for part in clients.indices]).astype(np.float64)
        mean, stddev = labels.mean(), labels.std()
        scale, shift = test.target.scale, test.target.mean
        constant = bfl.evaluation.training_mean(shift + scale * mean, scale * stddev, truth(test))
    return [constant, *(found for baselines_of in edges.parts("baselines") for found in baselines_of(clients, test))]


def worse_than(final: object, found: list[bfl.evaluation.Baseline], test: bfl.data.Source) -> list[str]:
    """Return a warning in a list if a model is worse than a baseline on the test data."""
    losses = _losses(final, test)
    better = bfl.evaluation.better_baseline(losses, found)
    if better is None:
        return []
    return [bfl.federated.notices.baseline_warning(float(losses.mean()), better.name, better.metrics["test_nll"])]


def is_better(final: object, baseline: bfl.evaluation.Baseline, test: bfl.data.Source) -> bool:
    """Return whether a model is better than a baseline on the test data, by more than chance."""
    model = bfl.evaluation.Baseline("model", {}, _losses(final, test))
    return bfl.evaluation.better_baseline(baseline.losses, [model]) is not None


def _losses(final: Any, test: bfl.data.Source) -> np.ndarray:
    """Return the negative log likelihood of each test label by a model."""
    if test.target is None:
        return bfl.evaluation.baselines.nll_of_classes(final.probabilities, test.labels)
    return bfl.evaluation.baselines.nll_of_numbers(final.mean, final.stddev, truth(test))


def of_classes_in(final: Any, test: bfl.data.Source) -> dict[str, Any]:
    """Return what a summary records of each class: examples, recall, precision, and the confusion matrix."""
    if test.target is not None or test.num_classes > MOST_CLASSES:
        return {}
    scores = bfl.evaluation.class_scores(final.probabilities, test.labels)
    number = lambda x: None if np.isnan(x) else float(x)
    classes = {
        name: {"examples": int(examples), "recall": number(recall), "precision": number(precision)}
        for name, examples, recall, precision in zip(
            test.class_names, scores.confusion.sum(1), scores.recall, scores.precision
        )
    }
    return {"classes": classes, "confusion_matrix": scores.confusion.tolist()}


def sensitivity_in(final: Any, test: bfl.data.Source) -> dict[str, float]:
    """Return sensitivity and specificity with their 95 % intervals; nothing unless there are two classes."""
    if test.target is not None or test.num_classes != 2:
        return {}
    scores, found = bfl.evaluation.class_scores(final.probabilities, test.labels), dict[str, float]()
    for name in ("sensitivity", "specificity"):
        recall = getattr(scores, name)
        if recall is not None:
            found |= {name: recall.value, f"{name}_low": recall.low, f"{name}_high": recall.high}
    return found
