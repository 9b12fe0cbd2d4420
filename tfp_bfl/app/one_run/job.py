"""The parts of a run, prepared once: configuration, data, clients, process and scores."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl.app.one_run import build, client_scores, datasets, records
from tfp_bfl.app.options.config import RunConfig
from tfp_bfl.app.options.own_model import NO_CODE, Code
from tfp_bfl.app.options.resolve import POINT, of_gaussians, resolved, title
from tfp_bfl.errors import InvalidArgument, counted
from tfp_bfl.faces import keras
from tfp_bfl.options import methods

# Of a prediction of the test set.
EXAMPLES_AT_ONCE = 500


class Job(NamedTuple):
    """Hold what a run is made of.

    Fields:
      config: with all defaults filled in.
      sample: one example or more of the training data.
      shown: the test examples of evaluations after rounds.
      process: of an ensemble, that of the first member; `trained` is what `simulate` runs.
      everybody: the clients in training, and those that are not.
      shards: of each of these the test rows; None where the data name no clients and nobody asked for their scores.
    """

    config: RunConfig
    code: Code
    weights: str
    engine: str
    sample: bfl.data.Source
    train: bfl.data.Source
    test: bfl.data.Source
    shares: datasets.Shares
    shown: bfl.data.Source
    process: bfl.federated.BayesianProcess
    trained: Any
    everybody: bfl.data.Clients
    shards: client_scores.RowsByClient | None
    notes: tuple[str, ...] = ()

    @property
    def clients(self) -> bfl.data.Clients:
        """The clients in training."""
        return self.shares.clients

    @property
    def is_personal(self) -> bool:
        """Whether clients are scored by models of their own, also those of a user's algorithm."""
        return scores_personal(self.config, self.process)

    @property
    def prediction(self) -> dict[str, Any]:
        """The options of a prediction."""
        return build.prediction(self.config)

    @property
    def batch_norm_examples(self) -> Any:
        """Features on which BatchNorm's statistics are computed for each draw; None where there are none."""
        return build.batch_norm_examples(self.config, self.shares.server)

    def settled(self, config: RunConfig) -> RunConfig:
        """Return a configuration of this run with all defaults filled in."""
        return resolved(config, self.test.target is not None, self.weights, self.config.kind)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about the run, one sentence each."""
        return of_gaussians(self.config, self.weights)

    def score(self, model: keras.Model) -> Any:
        """Evaluate a model on the test set."""
        return build.scorer(self.config, self.test)(model, self.test.features, self.test.labels)

    def evaluate(self, model: keras.Model) -> dict[str, float]:
        """Return a model's metrics on the examples of `shown`."""
        return build.scorer(self.config, self.test)(model, self.shown.features, self.shown.labels).metrics

    def apart(self, model: keras.Model) -> dict[str, np.ndarray] | None:
        """Return the predictions of the examples on which nobody trains; None if there are none."""
        if not self.shares.calibration:
            return None
        _, features, labels = self.shares.calibration.examples(0)
        scored = build.scorer(self.config, self.test)(model, features, labels)
        owners = None if self.train.owners is None else self.train.owners[self.shares.calibration.indices[0]]
        predictions = records.predictions_of(scored, records.in_units(labels, self.test.target))
        return {**predictions, **client_scores.named(self.config, owners)}

    def unusual(self, model: keras.Model) -> bfl.evaluation.Unusual | None:
        """Return the score of unusual examples, calibrated on the examples of `apart`; None where there is none."""
        if not self.shares.calibration or self.config.ensemble:
            return None
        held_out = self.shares.calibration.examples(0).features
        try:
            return bfl.evaluation.fit_unusual(model, self.clients, held_out, num_classes=self.test.num_classes)
        except InvalidArgument:  # A model of which it has no features.
            return None

    def in_words(self) -> str:
        """Return the line that a run begins with: its task and its sizes."""
        sizes = self.clients.sizes
        each = " to ".join(f"{size:,}" for size in sorted({sizes.min(), sizes.max()}))
        return (
            f"{title(self.config, self.weights)}; {each} examples per client, {sizes.sum():,} in total; "
            f"{self.test.num_examples:,} to test; {counted(self.config.rounds, 'round')}, engine {self.engine}"
        )


def prepare(
    config: RunConfig,
    user_data: bfl.data.OwnData | None,
    code: Code = NO_CODE,
    keep: Callable[[bfl.data.Clients], bfl.data.Clients] = lambda clients: clients,
) -> Job:
    """Read the data of a run, and build its process; `keep` gives the clients with the examples that it may use."""
    engine = bfl.federated.check_engine(config.engine)
    if engine == "local":
        bfl.federated.share_cores(config.cohort_size or config.clients)
    sample = user_data.train if user_data else datasets.peek(config)
    # Reading is TensorFlow's work, building is Python's: side by side they take the time of the longer one.
    with concurrent.futures.ThreadPoolExecutor() as pool:
        read = pool.submit(_read, config, user_data, keep)
        shared: Any = {name: lambda name=name: getattr(read.result()[2], name) for name in ("unlabelled", "clients")}
        config, weights = build.settle(config, sample, code)
        process, trained = records.processes(config, lambda x: build.process(x, sample, code=code, **shared))
        train, test, shares = read.result()
    bfl.federated.check_clients(process, shares.clients, config.cohort_size, config.popularity)
    bfl.federated.check_average_rounds(process, config.average_rounds, config.rounds)
    if config.augmentation is not None and len(train.element_shape) != 3:
        what = "features of the backbone" if config.backbone else f"examples of shape {list(train.element_shape)}"
        raise InvalidArgument(f"augmentation is of images, and the model takes {what}: leave it out.")
    if weights != POINT or methods.POINT in methods.method_of(config.algorithm).requires or config.ensemble:
        number = min(test.num_examples, EXAMPLES_AT_ONCE)
        bfl.evaluation.check_num_samples(records.num_samples(config), number, test.num_outputs)
    everybody = client_scores.everybody(shares.clients, shares.unseen)
    shards = client_scores.shards(config, test, everybody, scores_personal(config, process))
    shown = test.subset(min(config.evaluation_examples, test.num_examples), seed=config.seed)
    notes = tuple(user_data.notes if user_data else ())
    if config.hold_out and records.is_private(config, process):
        notes += ("The exported model has no output unusual: epsilon does not cover ranges and features of examples.",)
    return Job(
        config, code, weights, engine, sample, train, test, shares, shown, process, trained, everybody, shards, notes
    )


def scores_personal(config: RunConfig, process: bfl.federated.BayesianProcess) -> bool:
    """Return whether clients are scored by models of their own."""
    return process.is_personal or config.adapts


def _read(
    config: RunConfig,
    user_data: bfl.data.OwnData | None,
    keep: Callable[[bfl.data.Clients], bfl.data.Clients],
) -> tuple[bfl.data.Source, bfl.data.Source, datasets.Shares]:
    """Return the training data, the test data, and who has which of the former."""
    own = user_data or datasets.load(config)
    shares = datasets.shares(config, own.train, own.clients)
    return own.train, own.test, shares._replace(clients=keep(shares.clients))
