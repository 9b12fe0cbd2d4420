"""The effect of one hostile client of eleven on the pooled posterior: `python -m experiments.robustness.influence`.

Ten honest clients have moved 0.05 from an anchor of sd 0.003, give or take 0.003; the eleventh sends the opposite, or a
number that nobody sends. The table has how far the pooled means are from what the ten honest ones give, over the honest
change: 1 is all of it, 2 the opposite. Its last row says what a round leaves out by itself (`federated.faults`).

The table `breakdown` has the same by the number of hostile clients.
"""

from __future__ import annotations

import itertools
import pathlib

import numpy as np
import tensorflow as tf

import tfp_bfl as bfl
from experiments.robustness.config import KERNEL, KERNELS, RULES
from experiments.tables import write
from tfp_bfl.federated.faults import FAULTS, Limits, find_fault

CLIENTS, SIZE, CHANGE, STDDEV = 10, 200, 0.05, 0.003
DEFENCES = ("none", "clip:1", "trimmed:0.2", "median", "centered_clip")
# Name -> the hostile client's change of the mean, its standard deviation and its weight.
POISONS = {
    "opposite": (-1.0, STDDEV, 1.0),
    "opposite, times 100": (-100.0, STDDEV, 1.0),
    "opposite, sd 1e-5": (-1.0, 1e-5, 1.0),
    "opposite, sd 1e-6": (-1.0, 1e-6, 1.0),
    "opposite, weight 1e9": (-1.0, STDDEV, 1e9),
    "mean 1e20": (1e20 / CHANGE, STDDEV, 1.0),
    "sd 1e15": (1.0, 1e15, 1.0),
}


def influence(rule: str, defence: str, poison: str, hostile: int = 1) -> str:
    """Return the shift of the pooled mean that so many hostile clients of eleven make, or that it is not finite."""
    change, stddev, weight = POISONS[poison]
    rng, honest = np.random.default_rng(0), CLIENTS + 1 - hostile
    own = CHANGE + STDDEV * rng.normal(size=(honest, SIZE))
    means = np.concatenate([own, np.full((hostile, SIZE), change * CHANGE)])
    stddevs = np.full((CLIENTS + 1, SIZE), STDDEV)
    stddevs[honest:] = stddev
    anchor = bfl.posterior.MeanField(tf.zeros([SIZE]), tf.fill([SIZE], STDDEV**2))
    stacked = bfl.posterior.MeanField(*(tf.constant(x, tf.float32) for x in (means, stddevs**2)))
    if rule == KERNEL:
        made = bfl.algorithms.kernel.kernel_posterior(**KERNELS[defence])
    else:
        made = bfl.rules.RULES[rule]()
        made = made if defence == "none" else bfl.rules.parse_robust(defence)(made)
    pool = lambda number, weights: bfl.rules.aggregate(
        made, tf.nest.map_structure(lambda x: x[:number], stacked), weights, anchor
    ).mean.numpy()
    poisoned = pool(CLIENTS + 1, [1.0] * honest + [weight] * hostile)
    shift = np.abs(poisoned - pool(honest, None)).mean() / CHANGE
    return f"{shift:.3g}" if np.isfinite(shift) else "not finite"


def fault(poison: str) -> str:
    """Return the reason why a round leaves the client out, or "". A weight is a number of examples."""
    change, stddev, weight = POISONS[poison]
    leaf = lambda value: (tf.fill([SIZE], tf.constant(value, tf.float32)),)
    none = bfl.posterior.MeanField((), ())
    weights = bfl.weights.ModelWeights(bfl.posterior.MeanField(leaf(change * CHANGE), leaf(stddev**2)), (), none)
    result = bfl.weights.ClientResult(weights, tf.constant(int(100 * weight), tf.int64), None)  # type: ignore[arg-type]
    code = find_fault(result, weights, tf.constant(weight), Limits(min_stddev=1e-5), tf.constant(100, tf.int64))
    return FAULTS[int(code)]


def table() -> list[list[str]]:
    """Return a row for each rule and robust aggregation, a column for each poison; last, what the round rejects."""
    rows = [
        [rule, defence, *(influence(rule, defence, poison) for poison in POISONS)]
        for rule, defence in (*itertools.product(RULES, DEFENCES), *((KERNEL, defence) for defence in KERNELS))
    ]
    return [["rule", "robust aggregation", *POISONS], *rows, ["any", "bounds of a round", *map(fault, POISONS)]]


def breakdown() -> list[list[str]]:
    """Return a row for each robust aggregation and poison, a column for each number of equal hostile clients."""
    kinds = [("log_linear_pool", defence) for defence in DEFENCES] + [(KERNEL, defence) for defence in KERNELS]
    numbers = range(1, (CLIENTS + 1) // 2 + 2)
    rows = [
        [rule, defence, poison, *(influence(rule, defence, poison, number) for number in numbers)]
        for poison, (rule, defence) in itertools.product(list(POISONS)[:2], kinds)
    ]
    return [["rule", "robust aggregation", "poison", *(f"{number} of {CLIENTS + 1}" for number in numbers)], *rows]


if __name__ == "__main__":
    results = pathlib.Path(__file__).parent / "results"
    write(table(), results / "influence")
    write(breakdown(), results / "breakdown")
