"""Coverage of every known client, by sets with a promise for each client and with one for all clients at once.

python -m experiments.limits.known        # trains 10 models
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterable, Sequence

import numpy as np
from scipy import stats

import tfp_bfl as bfl
from experiments.limits import run
from experiments.tables import mean_and_sd, write

PARTITION, SEEDS, AT_LEAST = "dirichlet:0.1", range(10), 0.88
# Row of the table -> options of `calibrate_clients`.
PROMISES: dict[str, run.Options] = {
    "for each client, confidence 0.9": {"confidence": 0.9},
    "for each client, confidence 0.99": {"confidence": 0.99},
    "for all clients at once, confidence 0.9": {"confidence": 0.9, "together": True},
}
CHANCE = "exactly 0.9 at each client, by the chance of counting alone"
Row = tuple[float, float, float]


def measure(predicted: run.Predicted, options: run.Options) -> dict[str, Row]:
    """Return coverage of the worst known client, mean coverage, and mean size of the sets, for each promise."""
    of_held_out, of_known, _ = predicted
    histogram = bfl.evaluation.label_histogram
    own = [histogram(*pair) if pair else None for pair in of_held_out]
    histograms, found = [h for h in own if h is not None], {}
    for name, promise in PROMISES.items():
        calibration = bfl.evaluation.calibrate_clients(histograms, options["coverage"], **promise)
        pairs = [run.covered(pair, calibration.limit(h)) for pair, h in zip(of_known, own) if counted(pair, options)]
        coverage, size = np.transpose(pairs)
        found[name] = float(coverage.min()), float(coverage.mean()), float(size.mean())
    return found


def counted(pair: object, options: run.Options) -> bool:
    """Return whether a client has enough examples to count on."""
    return isinstance(pair, tuple) and len(pair[1]) >= options["counted"]


def chance(numbers: Sequence[int], coverage: float, at_least: float = AT_LEAST) -> float:
    """Return the probability that every client's frequency is at least `at_least`, if its coverage is `coverage`.

    Args:
      numbers: of the examples that are counted, of each client.
      coverage: of the sets of each client.
      at_least: the frequency.
    """
    return float(np.prod([stats.binom.sf(np.ceil(at_least * n - 1e-9) - 1, n, coverage) for n in numbers]))


def table(rows: Iterable[tuple[run.Predicted, run.Options]]) -> list[list[str]]:
    """Return mean and standard deviation over the seeds for each promise, and the fraction of seeds by `chance`."""
    measured, by_chance = [], []
    for predicted, options in rows:
        measured.append(measure(predicted, options))
        numbers = [len(pair[1]) for pair in predicted[1] if pair and counted(pair, options)]
        by_chance.append(chance(numbers, options["coverage"]))
    lines = [["promise", "worst known client", f"seeds with {AT_LEAST:g} each", "mean coverage", "classes in a set"]]
    for name in PROMISES:
        worst, mean, size = np.transpose([row[name] for row in measured])
        scores = [mean_and_sd(list(x), 3) for x in (worst, mean, size)]
        lines.append([name, scores[0], f"{int(np.sum(worst >= AT_LEAST))} of {len(worst)}", *scores[1:]])
    return [*lines, [CHANCE, "", f"{np.mean(by_chance):.1%} expected", "", ""]]


def main() -> None:
    """Train the models and write the table."""
    every = [{**run.COMMON, "partition": PARTITION, "seed": seed} for seed in SEEDS]
    rows = ((run.predictions(options), options) for options in every)
    write(table(rows), pathlib.Path(__file__).parent / "results" / "known")


if __name__ == "__main__":
    main()
