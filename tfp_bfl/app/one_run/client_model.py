"""The personal model of a client, for algorithms with personal models, and its description."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl.app.one_run import build, datasets
from tfp_bfl.app.one_run.records import config_with_code
from tfp_bfl.app.options.config import RunConfig
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.files import name
from tfp_bfl.options.methods import ALGORITHMS, PERSONAL, in_words

if TYPE_CHECKING:
    from tfp_bfl import keras


def client_model(
    run: str | os.PathLike, client: int, code: Mapping[str, str] = {}
) -> tuple[keras.Model, bfl.export.Info]:
    """Return the model that predicts for a client, from 0, after a run's last round, with scores on the whole test set.

    A client with a number beyond the run's clients was never in training, and gets what the algorithm has for
    such; meta_vd the variances of the mean embedding.
    """
    folder = pathlib.Path(run)
    info = bfl.export.read_info(bfl.export.find(run))
    if not (folder / "config.yaml").is_file():
        raise InvalidArgument(f"{name(run)} is a model, not the folder of a run, which holds those of the clients.")
    config = config_with_code(folder, code)
    if not config.is_personal:
        personal = in_words(algorithm for algorithm, method in ALGORITHMS.items() if PERSONAL in method.gives)
        raise InvalidArgument(
            f"{config.algorithm} makes one model for all clients, and only {personal} one for each: leave --client out."
        )
    test = datasets.load(config).test
    process = build.process(config, test, lambda: None)
    weights = process.personal_weights(last_state(process, config, folder), client)
    model = bfl.weights.predictive_model(process.model_fn(), weights)
    scores = bfl.evaluation.evaluate(
        model,
        test.features,
        test.labels,
        num_samples=config.num_samples,
        seed=config.seed,
        precision=config.evaluation_precision,
    ).metrics
    of_client = {"client": client, "client_in_training": client < config.clients}
    return model, info._replace(metrics=scores, data={**(info.data or {}), **of_client})


def last_state(process: bfl.federated.BayesianProcess, config: RunConfig, folder: pathlib.Path) -> Any:
    """Read the state after a run's last round from its checkpoints."""
    return _last_checkpoint(process, config, folder).state


def final_weights(
    process: bfl.federated.BayesianProcess, config: RunConfig, folder: pathlib.Path
) -> bfl.weights.ModelWeights:
    """Read the weights with which a run's model predicts, of its last round or averaged over several."""
    state, record = _last_checkpoint(process, config, folder)
    weights = process.predictive_weights(state)
    number, done = config.average_rounds or 1, int(state.round)
    if number == 1:
        return weights
    average = bfl.federated.averaging.average_of(process, number, done, weights)
    average.restore(done, record.average_from, record.sums)
    return average.weights()


def _last_checkpoint(process: bfl.federated.BayesianProcess, config: RunConfig, folder: pathlib.Path) -> Any:
    first = process.local.initialize()._replace(seed=np.int32(config.seed))
    checkpoints = bfl.federated.Checkpoints(folder / "checkpoints", process.description)
    checkpoint = checkpoints.latest(first, process.state_spec)
    if checkpoint is None:
        raise InvalidArgument(f"The run in {name(folder)} has no checkpoints any more, which hold its weights.")
    return checkpoint
