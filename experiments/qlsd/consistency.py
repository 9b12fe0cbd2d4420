"""Variances of chains with batches of one example as the number of examples N grows, at steps 0.1 / N."""

from __future__ import annotations

import functools
import time
from typing import Any

import numpy as np

import tfp_bfl as bfl
from experiments.qlsd import gaussian
from experiments.qlsd.toy import WITHOUT_PRIOR, log_density

Options = dict[str, Any]


def tables(options: Options) -> list[np.ndarray]:
    """Return the examples [N / b, D] of b clients of one size: means N(0, I), examples N(mean, I)."""
    rng = np.random.default_rng(options["data_seed"])
    clients, dim = options["clients"], options["dim"]
    means = rng.normal(0, 1, (clients, dim))
    size = options["examples"] // clients
    return [rng.normal(mean, 1, (size, dim)).astype(np.float32) for mean in means]


def run(options: Options) -> dict[str, Any]:
    """Run the chains of a cell from the mode.

    Returns:
      variance: mean squared distance from the mode of a coordinate, over runs and rounds, with its standard error over
        runs.
      ratio: the same over the posterior's, 1 / N.
      expected_ratio: of the closed form, without the memories' part of the noise.
      bias: root of the mean squared distance of the runs' means from the mode, in posterior standard deviations.
    """
    parts, started = tables(options), time.perf_counter()
    rows, dim = np.concatenate(parts), options["dim"]
    mode = rows.mean(0, dtype=np.float64)
    source = bfl.data.Source("gaussians", "train", rows, np.zeros(len(rows), np.int32), ("none",))
    clients = bfl.data.Clients(source, np.split(np.arange(len(rows)), len(parts)))
    process = bfl.algorithms.qlsd(
        functools.partial(bfl.models.density, log_density, dim, dim, mode),
        step_size=options["step"] / len(rows),
        batch_size=options["batch_size"],
        count_bits=False,
        **{name: options[name] for name in ("estimator", "compressor", "refresh_every")},
        **WITHOUT_PRIOR,
    )
    thinning = bfl.federated.Thinning(options["burn_in"])
    chains = bfl.algorithms.chains.simulate_chains(
        process, clients, options["rounds"], num_chains=options["runs"], seed=0, thinning=thinning, xla=True
    )
    apart = chains.draws.point[0].astype(np.float64) - mode
    squares = np.square(apart).mean((1, 2))
    kind, _, levels = options["compressor"].partition(":")
    expected = gaussian.stationary_variance(
        parts,
        options["step"],
        star=options["estimator"] == "anchored",
        share=options["batch_size"] / len(parts[0]),
        omega=gaussian.quantiser_factor(dim, int(levels)) if kind == "quantiser" else 0.0,
    )
    return {
        "variance": float(squares.mean()),
        "variance_se": float(squares.std(ddof=1) / np.sqrt(len(squares))),
        "ratio": float(squares.mean() * len(rows)),
        "expected_ratio": expected,
        "bias": float(np.sqrt(np.square(apart.mean(1)).mean() * len(rows))),
        "seconds": time.perf_counter() - started,
    }
