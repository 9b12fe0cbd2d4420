"""The toy of the source: chains over a Gaussian posterior that 20 clients of unequal sizes and means hold together."""

from __future__ import annotations

import functools
import itertools
import time
from typing import Any

import numpy as np
import tensorflow as tf

import tfp_bfl as bfl
from experiments.qlsd import config, gaussian
from tfp_bfl.algorithms.chains.driver import ROUNDS_AT_ONCE
from tfp_bfl.algorithms.chains.work import draw_batch
from tfp_bfl.training.potential import Potential

Options = dict[str, Any]
WITHOUT_PRIOR: Any = {"likelihood": "density", "prior_stddev": None}
# Rounds of which messages are encoded.
ENCODED_ROUNDS = 20


def log_density(theta: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Return log N(row; theta, I) without constants, [B]."""
    return -tf.reduce_sum(tf.square(rows - theta), -1) / 2


@functools.cache
def tables() -> tuple[np.ndarray, ...]:
    """Return clients' examples [N_i, D]: means N(0, 5^2 I), examples N(mean, I)."""
    settings: Any = config.GAUSSIAN
    rng = np.random.default_rng(settings["data_seed"])
    means = rng.normal(0, settings["client_stddev"], (len(settings["sizes"]), settings["dim"]))
    return tuple(rng.normal(m, 1, (n, len(m))).astype(np.float32) for n, m in zip(settings["sizes"], means))


def mode() -> np.ndarray:
    """Return theta* [D], the posterior's mean, in float64."""
    return np.concatenate(tables()).mean(0, dtype=np.float64)


def federation() -> bfl.data.Clients:
    rows = np.concatenate(tables())
    ends = np.cumsum([0, *map(len, tables())])
    source = bfl.data.Source("gaussians", "train", rows, np.zeros(len(rows), np.int32), ("none",))
    return bfl.data.Clients(source, [np.arange(a, b) for a, b in itertools.pairwise(ends)])


def model() -> tf.keras.Model:
    dim: Any = config.GAUSSIAN["dim"]
    return bfl.models.density(log_density, dim, dim, mode())


def process_of(estimator: str, compressor: str, batch_size: float | None, step: float) -> bfl.federated.BayesianProcess:
    """Return a chain at the step size step / L that starts at theta*."""
    rows = np.concatenate(tables())
    fixed = None
    if estimator == "fixed_point":
        labels = np.zeros(len(rows), np.int32)
        fixed = bfl.training.find_mode(model, rows, labels, **WITHOUT_PRIOR)  # Which begins there.
    return bfl.algorithms.qlsd(
        model,
        step_size=step / len(rows),
        estimator=estimator,
        compressor=compressor,
        batch_size=batch_size,
        fixed_point=fixed,
        count_bits=False,
        **WITHOUT_PRIOR,
    )


def run(options: Options) -> dict[str, Any]:
    """Run the chains of a cell: their errors, variances and messages beside what is known exactly."""
    estimator, compressor, share = options["estimator"], options["compressor"], options["batch_size"]
    process, clients = process_of(estimator, compressor, share, options["step"]), federation()
    thinning = bfl.federated.Thinning(options["burn_in"])
    chains_of = functools.partial(bfl.algorithms.chains.simulate_chains, process, clients, thinning=thinning, xla=True)
    number = min(options["runs"], config.RUNS_AT_ONCE)
    started = time.perf_counter()
    # Of as many rounds as a call of the graph has: the next one finds it traced and compiled.
    chains_of(min(options["rounds"], ROUNDS_AT_ONCE), num_chains=number, seed=0)
    compiling, started = time.perf_counter() - started, time.perf_counter()
    norms, squares, last = [], [], np.zeros((0, len(mode())))
    for seed in range(0, options["runs"], number):
        draws = chains_of(options["rounds"], num_chains=number, seed=seed).draws.point[0][: options["runs"] - seed]
        norms += [float(np.mean(np.linalg.norm(chain.astype(np.float64), axis=-1))) for chain in draws]
        squares += [float(np.mean((chain - mode()) ** 2)) for chain in draws]
        last = draws[:, -1]
    seconds = time.perf_counter() - started
    return {
        **scores(options, np.array(norms), np.array(squares)),
        **bits(estimator, compressor, share, last),
        "seconds": compiling + seconds,
        "seconds_per_1e5_steps": seconds / (options["rounds"] * number * len(range(0, options["runs"], number))) * 1e5,
    }


def scores(options: Options, norms: np.ndarray, squares: np.ndarray) -> dict[str, Any]:
    """Score the runs' means of ||theta|| and of (theta - theta*)^2, each [M]: errors, ratios of variances, controls."""
    center, posterior, dim = float(np.linalg.norm(mode())), 1 / sum(map(len, tables())), len(mode())
    errors = (norms - gaussian.norm_mean(center, posterior, dim)) ** 2
    ratios = squares / posterior
    kind, _, levels = options["compressor"].partition(":")
    omega = gaussian.quantiser_factor(dim, int(levels)) if kind == "quantiser" else 0.0
    star = options["estimator"] == "fixed_point"
    expected = gaussian.stationary_variance(
        tables(), options["step"], star=star, share=options["batch_size"], omega=omega
    )
    kept = options["rounds"] - options["burn_in"]
    of = functools.partial(gaussian.expected_error, center, posterior, dim, number=kept)
    error_of = lambda values: float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0
    return {
        "error": float(errors.mean()),
        "error_se": error_of(errors),
        "bias": float(np.mean(norms) - gaussian.norm_mean(center, posterior, dim)),
        "bias_se": error_of(norms),
        "ratio": float(ratios.mean()),
        "ratio_se": error_of(ratios),
        "expected_ratio": expected,
        "expected_error": of(ratio=expected, correlation=1 - options["step"]),
        "exact_draws": of(ratio=1, correlation=0.0),
        "exact_chain": of(ratio=1, correlation=1 - options["step"]),
        "twice_the_variance": of(ratio=2, correlation=0.0),
    }


def bits(estimator: str, compressor: str, share: float | None, states: np.ndarray) -> dict[str, float]:
    """Return bits of a client's message at states [M, D]: by the bound, by the levels' entropy and as encoded.

    32 bits of norm are in each; without compression all are 32 D.
    """
    found, dim = bfl.compression.parse_compressor(compressor), states.shape[1]
    potential, center = Potential(model(), "density"), tf.constant(mode(), tf.float32)
    gradient = tf.function(potential.gradient, autograph=False, reduce_retracing=True)
    lengths, levels, seeds = [], [], iter(range(10**9))
    for state in states[:ENCODED_ROUNDS]:
        for table in tables():
            here = tf.ones([len(table)], tf.bool)
            rows, counts = draw_batch(here, tf.constant(len(table)), share, tf.constant([next(seeds), 1]))
            batch = tf.gather(table, rows), tf.zeros(tf.shape(rows), tf.int32), counts
            h = gradient(tf.constant(state, tf.float32), *batch)[1]
            if estimator == "fixed_point":
                h -= gradient(center, *batch)[1]
            message = tf.nest.map_structure(lambda x: x.numpy(), found.compress(h, tf.constant([next(seeds), 2])))
            lengths.append(8 * len(found.encode(message)))
            if isinstance(message, bfl.compression.Quantised):
                levels.append(message.levels)
    plain = 32 * dim
    return {
        "bits_bound": float(found.bound(dim)),
        "bits_entropy": 32 + dim * gaussian.entropy(np.stack(levels)) if levels else float(plain),
        "bits_coder": float(np.mean(lengths)),
    }


def run_budget(options: Options) -> dict[str, Any]:
    """Run chains of as many rounds as a budget of bits a client pays for, by the bound: their errors."""
    found = bfl.compression.parse_compressor(options["compressor"])
    rounds = int(options["bits"] / found.bound(len(mode())))
    process = process_of(options["estimator"], options["compressor"], options["batch_size"], options["step"])
    started, norms, squares = time.perf_counter(), [], []
    number, clients = min(options["runs"], config.RUNS_AT_ONCE), federation()
    for seed in range(0, options["runs"], number):
        chains = bfl.algorithms.chains.simulate_chains(process, clients, rounds, num_chains=number, seed=seed, xla=True)
        draws = chains.draws.point[0][: options["runs"] - seed].astype(np.float64)
        norms += [float(x) for x in np.linalg.norm(draws, axis=-1).mean(-1)]
        squares += [float(x) for x in ((draws - mode()) ** 2).mean((1, 2))]
    measured = scores({**options, "rounds": rounds, "burn_in": 0}, np.array(norms), np.array(squares))
    return {
        "rounds": rounds,
        "bits_bound": found.bound(len(mode())),
        **measured,
        "seconds": time.perf_counter() - started,
    }
