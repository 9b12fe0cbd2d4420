"""Logistic regression of the source: QLSD++ against LSD++ by the 99 % HPD region of their chains."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

import tfp_bfl as bfl
from experiments.qlsd import config, gaussian
from tfp_bfl.federated.memory import find_row
from tfp_bfl.federated.round import fold

Options = dict[str, Any]
# After the last of a chain, in which its messages are encoded: a whole one from an anchor to the next.
ROUNDS_TO_MEASURE = 100


class Task(NamedTuple):
    """A federation and its posterior.

    Fields:
      clients: their examples.
      features: of all of them [N, F], in [0, 1].
      labels: [N].
      mode: the least potential's place [F * C].
      curvature: M = lambda_max(X^T X) / 2 + 1 / t^2, an upper bound of the potential's.
    """

    clients: bfl.data.Clients
    features: np.ndarray
    labels: np.ndarray
    mode: np.ndarray
    curvature: float


def settings_of(study: str) -> Options:
    """Return the data and sizes of a study of logistic regression."""
    return {**config.LOGISTICS, **config.PUBLISHED_DATA}[study]


def model(study: str = "logistic") -> tf.keras.Model:
    """Return softmax regression without intercepts, as in the source."""
    return tf.keras.Sequential(
        [
            tf.keras.Input(bfl.data.load(settings_of(study)["dataset"], split="train").element_shape),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(10, use_bias=False, kernel_initializer="zeros"),
        ]
    )


@functools.cache
def task(study: str = "logistic") -> Task:
    """Return clients with uniformly many examples each, drawn without replacement, and the mode by L-BFGS."""
    settings = settings_of(study)
    source = bfl.data.load(settings["dataset"], split="train")
    rng = np.random.default_rng(settings["data_seed"])
    sizes = rng.integers(settings["fewest"], settings["below"], settings["clients"])
    order, ends = rng.permutation(source.num_examples), np.cumsum([0, *sizes])
    rows = order[: ends[-1]]
    features = source.features[rows].reshape(len(rows), -1).astype(np.float64) / 255
    build = functools.partial(model, study)
    found = bfl.training.find_mode(
        build, source.features[rows], source.labels[rows], prior_stddev=settings["prior_stddev"]
    )
    largest = np.linalg.eigvalsh(features.T @ features)[-1]
    return Task(
        bfl.data.Clients(source, [order[a:b] for a, b in itertools.pairwise(ends)]),
        features,
        source.labels[rows],
        found.point[0].ravel().astype(np.float64),
        float(largest / 2 + settings["prior_stddev"] ** -2),
    )


def potentials(features: np.ndarray, labels: np.ndarray, weights: np.ndarray, prior_stddev: float) -> np.ndarray:
    """Return U of weights [R, F, C]: cross-entropy over all classes, summed, and the prior's; [R]."""
    found = []
    for w in weights.astype(np.float64):
        logits = features @ w
        top = logits.max(-1)
        log_sum = top + np.log(np.exp(logits - top[:, np.newaxis]).sum(-1))
        nll = np.sum(log_sum - np.take_along_axis(logits, labels[:, np.newaxis], 1)[:, 0])
        found.append(nll + np.sum(w**2) / (2 * prior_stddev**2))
    return np.array(found)


def hpd_quantile(potentials: np.ndarray, tail: float) -> float:
    """Return eta_a, with which {theta: U(theta) <= eta_a} holds 1 - a of the draws: the (1 - a) quantile of U [R]."""
    return float(np.quantile(potentials, 1 - tail))


def errors_of(etas: Sequence[float], reference: Sequence[float], same: bool) -> list[float]:
    """Return |eta - eta_ref| / |eta_ref| of chains [M] and reference chains [M]: of the same seed, or of any two
    others.
    """
    pairs = [(i, j) for i in range(len(etas)) for j in range(len(reference)) if (i == j) == same]
    return [abs(etas[i] - reference[j]) / abs(reference[j]) for i, j in pairs]


def process_of(build: Any, held: Task, options: Options) -> bfl.federated.BayesianProcess:
    """Return the chain of a cell over the posterior of the model that `build` gives: QLSD++, DG-SGLD or FSGLD."""
    algorithm = options.get("algorithm", "qlsd")
    given = {name: options[name] for name in ("prior_stddev", "batch_size")}
    if algorithm == "dg_sgld":
        how = {name: options[name] for name in ("coupling", "local_steps")}
        return bfl.algorithms.dg_sgld(build, step_size=options["coupling"] / 10, **how, **given)
    given["step_size"] = 1 / (5 * held.curvature)
    if algorithm == "fsgld":
        parts = map(held.clients.examples, range(held.clients.num_clients))
        fit = functools.partial(
            bfl.algorithms.chains.local_langevin.fit_surrogate, build, prior_stddev=options["prior_stddev"]
        )
        surrogates = [fit(part.features, part.labels) for part in parts]
        return bfl.algorithms.fsgld(build, surrogates, local_steps=options["local_steps"], **given)
    how = {name: options[name] for name in ("compressor", "refresh_every")}
    return bfl.algorithms.qlsd(build, estimator="anchored", count_bits=False, **how, **given)


def bits(process: bfl.federated.BayesianProcess, held: Task, options: Options, state: Any) -> dict[str, float]:
    """Return bits of a client's message in the rounds after a state: by the bound, by the levels' entropy and as
    encoded.

    The entropy is that of one law for all levels of all messages, with 32 bits of norm. Those of the rivals, and
    without compression, go uncompressed.
    """
    size, clients = len(held.mode), held.clients
    plain = dict.fromkeys(("bits_bound", "bits_entropy", "bits_coder"), 32.0 * size)
    found = bfl.compression.parse_compressor(options.get("compressor", "none"))
    if found.name == "none":
        return plain
    work, lengths, levels = process.client_work(), [], []
    everyone, most = range(clients.num_clients), max(clients.sizes)
    # Of one size, so that the work is traced once: rows of client -1 do not count.
    fill = lambda x: tf.constant(np.pad(x, [(0, most - len(x)), *[(0, 0)] * (x.ndim - 1)]))
    parts = [
        bfl.data.ClientExamples(fill(part.client + 1) - 1, fill(part.features), fill(part.labels))
        for part in map(clients.examples, everyone)
    ]
    for _ in range(ROUNDS_TO_MEASURE):
        state = tf.nest.map_structure(tf.constant, state)
        sent = process.round.broadcast(state)
        for k in everyone:
            row, _ = find_row(sent.message.memory, tf.constant(k))
            seed = fold(sent.seed, sent.message.round, k)
            code = work(sent.message._replace(memory=row), parts[k], seed).sent.code
            message = tf.nest.map_structure(lambda x: x.numpy(), code)
            lengths.append(8 * len(found.encode(message)))
            levels.append(message.levels)
        state = process.local.next(state, [clients.dataset(k) for k in everyone]).state
    return {
        "bits_bound": float(found.bound(size)),
        "bits_entropy": 32 + size * gaussian.entropy(np.stack(levels)),
        "bits_coder": float(np.mean(lengths)),
    }


def quantiles(held: Task, options: Options, chains: np.ndarray) -> dict[str, Any]:
    """Return 99 % quantiles of U and U - min U, and means of the latter, [M] each, of chains [M, R, F, C]."""
    of = functools.partial(potentials, held.features, held.labels, prior_stddev=options["prior_stddev"])
    least = float(of(weights=held.mode.reshape(1, *chains.shape[2:]))[0])
    values = [of(weights=chain) for chain in chains]
    return {
        "least": least,
        "weights": len(held.mode),
        "examples": len(held.labels),
        "curvature": held.curvature,
        "quantile": [hpd_quantile(u, options["tail"]) for u in values],
        "quantile_above_least": [hpd_quantile(u - least, options["tail"]) for u in values],
        "mean_above_least": [float(np.mean(u - least)) for u in values],
    }


def run_on(build: Any, held: Task, options: Options) -> dict[str, Any]:
    """Run the chains of a cell on a task: quantiles of U and U - min U of each, and bits of a client's message."""
    started = time.perf_counter()
    process = process_of(build, held, options)
    chains = bfl.algorithms.chains.simulate_chains(
        process,
        held.clients,
        options["rounds"],
        num_chains=options["runs"],
        cohort_size=1 if options.get("algorithm") == "fsgld" else None,
        seed=0,
        thinning=bfl.federated.Thinning(options["burn_in"], options["every"]),
        xla=True,
    )
    seconds = time.perf_counter() - started
    return {
        **quantiles(held, options, chains.draws.point[0]),
        **bits(process, held, options, tf.nest.map_structure(lambda x: x[0], chains.state)),
        "seconds": seconds,
        "seconds_per_1e5_steps": seconds / (options["rounds"] * options["runs"]) * 1e5,
    }


def run(options: Options) -> dict[str, Any]:
    """Run a cell on digits or MNIST."""
    return run_on(functools.partial(model, options["study"]), task(options["study"]), options)
