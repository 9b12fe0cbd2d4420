"""The tables of the normality study: by setting, and by weight tensor of the network."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from experiments.kernel_posterior.client_stacks import (
    Setting,
    cell_of,
    groups,
    leaves,
    model_of,
    settings,
    start_accuracy,
)
from experiments.kernel_posterior.normality_statistics import Normality, normality, normality_summary
from experiments.tables import mean_and_sd, write
from tfp_bfl.algorithms.kernel.bandwidths import silverman

# Of Gaussian stacks: how many with the clients' covariance, and how many independent coordinates in the other.
REPLICATES = 10
REFERENCE = 30_000
COLUMNS = {
    "ks_rejected": "KS below 0.05, %",
    "lilliefors_rejected": "Lilliefors below 0.05, %",
    "median_abs_skewness": "median abs. skewness",
    "skewness_q05": "skewness: 5 %",
    "skewness_median": "skewness: 50 %",
    "skewness_q95": "skewness: 95 %",
    "excess_kurtosis_q05": "excess kurtosis: 5 %",
    "excess_kurtosis_median": "excess kurtosis: 50 %",
    "excess_kurtosis_q95": "excess kurtosis: 95 %",
}
CORRELATED = "the same, Gaussian with their covariance, %"
HALF_AGREE = "Silverman's h is 0, %"
OF_LEAVES = ("lilliefors_rejected", "median_abs_skewness", "excess_kurtosis_median")


def gaussian_with_covariance(stack: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return Gaussian clients [S, D] with the covariance that the clients of the stack have: of rank S - 1.

    x_i = sum_j g_ij (w_j - mean) / sqrt(S - 1),   g_ij ~ N(0, 1)
    """
    centred = stack - stack.mean(0, dtype=np.float64).astype(stack.dtype)
    weights = rng.standard_normal((len(stack), len(stack))) / np.sqrt(len(stack) - 1)
    return weights.astype(stack.dtype) @ centred


def silverman_bandwidths(stack: np.ndarray) -> np.ndarray:
    """Return the bandwidths [D]; 0 where the middle half of the clients agree."""
    ordered = tf.constant(np.sort(stack, 0).T.astype(np.float64))
    return silverman(ordered, False)[0].numpy()


def reference(num_clients: int) -> Normality:
    """Return the same statistics of Gaussian clients with independent weights."""
    return normality(np.random.default_rng([0, num_clients]).standard_normal((num_clients, REFERENCE)))


def write_tables(size: str, output: pathlib.Path, seeds: Sequence[int]) -> None:
    """Write normality.md and .csv, a row a setting, and normality_leaves with a row a setting and weight tensor."""
    factors = [name.replace("_", " ") for name in Setting._fields]
    rows = [
        [
            *factors,
            "accuracy at the start",
            *list(COLUMNS.values())[:2],
            CORRELATED,
            *list(COLUMNS.values())[2:],
            HALF_AGREE,
        ]
    ]
    by_leaf = [[*factors, "weights", "of them", *(COLUMNS[name] for name in OF_LEAVES)]]
    model = model_of(cell_of(settings(size)[0], size, 0))
    for setting in settings(size):
        own = [f"{value:g}" for value in setting]
        stacks = list(groups(setting, output, seeds))
        results = [normality(stack) for stack in stacks]
        cells = _cells([normality_summary(result) for result in results], COLUMNS)
        rng = np.random.default_rng(0)
        drawn = [normality(gaussian_with_covariance(stacks[0], rng)) for _ in range(REPLICATES)]
        correlated = _cells([normality_summary(result) for result in drawn], ("lilliefors_rejected",))
        accuracy = mean_and_sd(start_accuracy(setting, output, seeds), 3)
        zero = mean_and_sd([100 * np.mean(silverman_bandwidths(stack) == 0) for stack in stacks], 1)
        rows.append([*own, accuracy, *cells[:2], *correlated, *cells[2:], zero])
        first = 0
        for name, shape in leaves(model):
            last = first + int(np.prod(shape))
            parts = [
                Normality(*(x[first:last] for x in r[:-1]), int(np.isnan(r.statistic[first:last]).sum()))
                for r in results
            ]
            by_leaf.append([*own, name, str(last - first), *_cells([normality_summary(p) for p in parts], OF_LEAVES)])
            first = last
    for number in dict.fromkeys(setting.clients for setting in settings(size)):
        cells = _cells([normality_summary(reference(number))], COLUMNS)
        rows.append(["independent Gaussian", "", str(number), "", "", *cells[:2], "", *cells[2:], ""])
    write(rows, output / "normality")
    write(by_leaf, output / "normality_leaves")


def _cells(summaries: Sequence[dict[str, float]], names: Sequence[str] | dict[str, str]) -> list[str]:
    """Return the mean over groups of clients, and the standard deviation of several; shares in per cent."""
    values = {name: [summary[name] for summary in summaries] for name in names}
    return [
        mean_and_sd([100 * x for x in values[name]], 1) if name.endswith("rejected") else mean_and_sd(values[name], 2)
        for name in names
    ]
