"""Logistic regression on covertype: QLSD++, LSD++ and DG-SGLD against long chains of MALA."""

from __future__ import annotations

import functools
import time
from typing import Any

import click
import numpy as np
import tensorflow as tf

import tfp_bfl as bfl
from experiments.qlsd import config, logistic
from experiments.samplers import exact_chains

Options = dict[str, Any]


def table() -> tuple[np.ndarray, np.ndarray]:
    """Return the columns [581012, 54] and labels from 0 to 6, as scikit-learn keeps them.

    Raises:
      UsageError: they were not fetched.
    """
    from sklearn.datasets import fetch_covtype

    try:
        columns, labels = fetch_covtype(download_if_missing=False, return_X_y=True)
    except OSError:
        raise click.UsageError(
            "covertype is not there: sklearn.datasets.fetch_covtype(), called once where there is internet, fetches it."
        ) from None
    return columns, labels.astype(np.int32) - 1


def model_of(num_columns: int, num_classes: int) -> tf.keras.Model:
    """Return softmax regression of columns of which one is constant."""
    dense = tf.keras.layers.Dense(num_classes, use_bias=False, kernel_initializer="zeros")
    return tf.keras.Sequential([tf.keras.Input((num_columns,)), dense])


@functools.cache
def task(examples: int) -> tuple[Any, logistic.Task]:
    """Return the model and clients of one size, with standardised examples drawn without replacement and a constant."""
    settings: Any = config.COVERTYPE
    columns, labels = table()
    rows = np.random.default_rng(settings["data_seed"]).permutation(len(labels))[:examples]
    columns, labels = columns[rows], labels[rows]
    spread = columns.std(0)
    columns = (columns - columns.mean(0)) / np.where(spread > 0, spread, 1)
    columns = np.concatenate([columns, np.ones((len(rows), 1))], 1).astype(np.float32)
    number = int(labels.max()) + 1
    build = functools.partial(model_of, columns.shape[1], number)
    source = bfl.data.Source("covertype", "train", columns, labels, tuple(map(str, range(number))))
    found = bfl.training.find_mode(build, columns, labels, prior_stddev=settings["prior_stddev"])
    features = columns.astype(np.float64)
    return build, logistic.Task(
        source.partition(bfl.data.iid(settings["clients"]), seed=settings["data_seed"]),
        features,
        labels,
        found.point[0].ravel().astype(np.float64),
        float(np.linalg.eigvalsh(features.T @ features)[-1] / 2 + settings["prior_stddev"] ** -2),
    )


def run(options: Options) -> dict[str, Any]:
    """Run a cell: quantiles of U and U - min U of each chain, and bits of a client's message.

    DG-SGLD's coupling is a multiple of 1 / M.
    """
    build, held = task(options["examples"])
    if options.get("algorithm") == "mala":
        return mala(build, held, options)
    if "relative_coupling" in options:
        options = {**options, "coupling": options["relative_coupling"] / held.curvature}
    found = logistic.run_on(build, held, options)
    found.pop("examples")
    return found


def mala(build: Any, held: logistic.Task, options: Options) -> dict[str, Any]:
    """Return chains of MALA from the mode, gamma = D^(-1/3) / M."""
    started, size = time.perf_counter(), len(held.mode)
    chains = exact_chains(
        bfl.training.Potential(build()),
        held.features.astype(np.float32),
        held.labels,
        np.tile(held.mode, (options["runs"], 1)),
        num_draws=(options["rounds"] - options["burn_in"]) // options["every"],
        burn_in=options["burn_in"],
        thin=options["every"],
        kernel="mala",
        prior_stddev=options["prior_stddev"],
        step_size=size ** (-1 / 3) / held.curvature,
    )
    draws = np.swapaxes(chains.draws.numpy(), 0, 1)
    found = logistic.quantiles(held, options, draws.reshape(*draws.shape[:2], held.features.shape[1], -1))
    found.pop("examples")
    return {
        **found,
        "acceptance": float(np.mean(chains.acceptance_rate)),
        "seconds": time.perf_counter() - started,
    }
