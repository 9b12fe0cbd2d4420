"""The effect of a memory: logistic regression on Synthetic(1, 1), coarse messages, and the posterior's variances."""

from __future__ import annotations

import functools
import itertools
import time
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

import tfp_bfl as bfl
from experiments.qlsd import config
from experiments.samplers import exact_chains

Options = dict[str, Any]
# With three the trajectory is half a period of the prior's: draws turn from side to side at the same distance.
LEAPFROG_STEPS = 2


class Task(NamedTuple):
    """A federation and its posterior.

    Fields:
      clients: their rows s x [N_i, D], where the label s is -1 or 1.
      rows: of all of them [N, D].
      mode: the least potential's place [D].
      curvature: M = lambda_max(X^T X) / 4 + the prior's precision, an upper bound of the potential's.
    """

    clients: bfl.data.Clients
    rows: np.ndarray
    mode: np.ndarray
    curvature: float


def log_density(theta: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Return log p(s | x, theta) = log sigmoid(s x theta), [B]."""
    return tf.math.log_sigmoid(tf.linalg.matvec(rows, theta))


def synthetic(rng: np.random.Generator, number: int, dim: int) -> np.ndarray:
    """Return a client's rows s x [number, dim] of Synthetic(1, 1).

    a, B ~ N(0, 1);  W [dim, 2], c [2] ~ N(a, 1);  v ~ N(B, I)
    x ~ N(v, diag(j^-1.2)),  j = 1, ..., dim;  the label is argmax (W^T x + c)

    Source: Li et al. 2020 (arXiv:1812.06127), section 5.1, of two classes.
    """
    a, b = rng.normal(size=2)
    weights, shift = rng.normal(a, 1, (dim, 2)), rng.normal(a, 1, 2)
    x = rng.normal(rng.normal(b, 1, dim), np.arange(1, dim + 1) ** -0.6, (number, dim))
    return (2 * np.argmax(x @ weights + shift, 1) - 1)[:, np.newaxis] * x


def model(start: Any = 0.0) -> tf.keras.Model:
    """Return logistic regression without an intercept: one vector of weights."""
    dim: Any = config.MEMORY["dim"]
    return bfl.models.density(log_density, dim, dim, start)


@functools.cache
def task() -> Task:
    """Return clients with uniformly many examples each, and the mode by L-BFGS."""
    settings: Any = config.MEMORY
    rng = np.random.default_rng(settings["data_seed"])
    sizes = rng.integers(settings["fewest"], settings["below"], settings["clients"])
    rows = np.concatenate([synthetic(rng, n, settings["dim"]) for n in sizes]).astype(np.float32)
    labels, ends = np.zeros(len(rows), np.int32), np.cumsum([0, *sizes])
    source = bfl.data.Source("synthetic", "train", rows, labels, ("none",))
    stddev = settings["prior_precision"] ** -0.5
    found = bfl.training.find_mode(model, rows, labels, prior_stddev=stddev, likelihood="density")
    largest = np.linalg.eigvalsh(rows.T.astype(np.float64) @ rows)[-1]
    return Task(
        bfl.data.Clients(source, [np.arange(a, b) for a, b in itertools.pairwise(ends)]),
        rows,
        found.point[0],
        float(largest / 4 + settings["prior_precision"]),
    )


def run(options: Options) -> dict[str, Any]:
    """Run the chains of a cell: the variances of the weights along each."""
    started = time.perf_counter()
    found = exact(options) if options["method"] == "HMC" else langevin(options)
    # Centred first: of float32, over many draws.
    chains = np.asarray(found.pop("chains"), np.float64)
    return {
        "variances": [float(x) for x in chains.var(1).ravel()],
        "examples": len(task().rows),
        "curvature": task().curvature,
        **found,
        "seconds": time.perf_counter() - started,
    }


def exact(options: Options) -> dict[str, Any]:
    """Return draws [M, R, D] of the posterior itself."""
    held = task()
    found = exact_chains(
        bfl.training.Potential(model(), "density"),
        held.rows,
        np.zeros(len(held.rows), np.int32),
        np.tile(held.mode, (options["runs"], 1)),
        num_draws=options["rounds"],
        burn_in=options["burn_in"],
        prior_stddev=options["prior_precision"] ** -0.5,
        num_leapfrog_steps=LEAPFROG_STEPS,
    )
    chains = np.swapaxes(found.draws.numpy(), 0, 1)
    squares = np.square(chains - chains.mean((0, 1)))
    return {
        "chains": chains,
        "acceptance": float(np.mean(found.acceptance_rate)),
        "scale_reduction": float(np.max(bfl.posterior.potential_scale_reduction(chains))),
        "effective_draws": float(np.min(bfl.posterior.effective_sample_size(squares))),
    }


def langevin(options: Options) -> dict[str, Any]:
    """Return draws [M, R, D] of QLSD++ from the mode, all of them, at the step 1 / M."""
    held = task()
    process = bfl.algorithms.qlsd(
        functools.partial(model, held.mode),
        step_size=1 / held.curvature,
        prior_stddev=options["prior_precision"] ** -0.5,
        compressor=options["compressor"],
        memory=options["memory"],
        refresh_every=options["refresh_every"],
        batch_size=options["batch_size"],
        likelihood="density",
        count_bits=False,
    )
    chains = bfl.algorithms.chains.simulate_chains(
        process, held.clients, options["rounds"], num_chains=options["runs"], seed=0, xla=True
    )
    return {"chains": chains.draws.point[0]}


def expected_variances(step: float) -> np.ndarray:
    """Return diag(V^-1) of the Gaussian at the mode, of a chain with exact gradients at the step size step / M: [D].

    V = H (I - (step / M) H / 2),   H = sum_j p_j (1 - p_j) x_j x_j^T + I / t^2;  step 0 is the posterior's own
    """
    held, settings = task(), config.MEMORY
    rows: Any = held.rows.astype(np.float64)
    p = 1 / (1 + np.exp(-rows @ held.mode))
    values, vectors = np.linalg.eigh(
        (rows.T * (p * (1 - p))) @ rows + settings["prior_precision"] * np.eye(rows.shape[1])
    )
    return np.square(vectors) @ (1 / (values * (1 - step / held.curvature * values / 2)))


def variances(summary: dict[str, Any]) -> np.ndarray:
    """Return the variances of a cell's chains [M, D]."""
    return np.reshape(summary["variances"], (-1, summary["options"]["dim"]))


def apart(variances: np.ndarray, others: np.ndarray) -> list[float]:
    """Return ||v_m - v'_m|| of variances [M, D] and others [M, D] or [D], for each chain."""
    return [float(x) for x in np.linalg.norm(variances - others, axis=-1)]
