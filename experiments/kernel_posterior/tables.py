"""The study's tables: a long one of all scores, and accuracy by partition or option."""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from experiments.kernel_posterior.config import DATASETS
from experiments.tables import interval, mean_and_sd, paired, write
from tfp_bfl import evaluation

Run = dict[str, Any]
RATE = ", clients' rate "
THRESHOLD = 0.8
LAST = 10
SCORES = ("accuracy", "test_nll", "ece", "macro_recall", "macro_precision")


def method(run: Run) -> str:
    """Return the name of a run's method in tables."""
    options = run["options"]
    published = DATASETS[options["dataset"]]["learning_rate"]
    rate = options.get("learning_rate", published)
    own = "" if rate == published else f"{RATE}{rate:g}"
    return f"{options['algorithm']}, server {options['server']}{own}"


def setting(run: Run) -> str:
    """Return the name of a run's data and their size."""
    options = run["options"]
    popularity = f", popularity {options['popularity']:g}" if options.get("popularity") else ""
    dataset = "" if options["dataset"] == "mnist" else f"{options['dataset']}, "
    amount = f"{options['local_epochs']} epochs, {options['cohort_size']} clients{popularity}"
    return f"{dataset}{options['partition']}, {amount}"


def last_rounds(run: Run, metric: str = "accuracy") -> float:
    """Return the mean of a metric over the last ten evaluations."""
    return float(evaluation.running_mean(run["rounds"], metric, LAST)[-1])


def last_alone(run: Run) -> float:
    """Return `last_rounds` of accuracy with no round's predictions averaged with others'."""
    return float(np.mean(run["alone"][-LAST:])) if "alone" in run else last_rounds(run)


# What is compared in pairs: a run's score, and its digits.
PAIRED: dict[str, tuple[Callable[[Run], float | None], int]] = {
    f"points, last {LAST}": (lambda run: 100 * last_rounds(run), 2),
    "points, each round alone": (lambda run: 100 * last_alone(run), 2),
    "points, the round's clients": (lambda run: 100 * last_rounds(run, "cohort_accuracy"), 2),
    f"rounds to {THRESHOLD}": (lambda run: evaluation.rounds_to(run["rounds"], THRESHOLD), 1),
    "NLL at the end": (lambda run: run["metrics"]["test_nll"], 3),
    "ECE at the end": (lambda run: run["metrics"]["ece"], 3),
}


def grouped(runs: list[Run]) -> dict[tuple[str, str], list[Run]]:
    """Return the seeds of each setting and method, in the order of the runs."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((setting(run), method(run)), []).append(run)
    return groups


def write_tables(table: str, runs: list[Run], output: pathlib.Path) -> None:
    """Write TABLE.md and .csv, and TABLE_accuracy with a column a setting."""
    if not runs:
        return
    groups = grouped(runs)
    header = ["setting", "method", *SCORES, f"accuracy, last {LAST}", "each alone", f"last {LAST}, the round's clients"]
    header += [f"rounds to {THRESHOLD}", "epistemic share", "seeds", "s a run"]
    rows = [header, *(_row(*key, seeds) for key, seeds in groups.items())]
    write(rows, output / table)
    settings = list(dict.fromkeys(key[0] for key in groups))
    methods = list(dict.fromkeys(key[1] for key in groups))
    cell = lambda s, m: mean_and_sd([last_rounds(r) for r in groups[s, m]]) if (s, m) in groups else ""
    pivot = [["method", *settings], *([m, *(cell(s, m) for s in settings)] for m in methods)]
    write(pivot, output / f"{table}_accuracy")
    if table in ("server_steps", "popularity_of_writers", "chosen_rates"):
        write(pairs_table(runs), output / f"{table}_pairs")


def pairs_table(runs: list[Run]) -> list[list[str]]:
    """Return each method less every FedAvg in the same setting: means and 95 % intervals of the seeds that both have.

    Then those that predict with many rounds, less what each of the rounds scores alone.
    """
    table = [["setting", "method", "less", "seeds", *PAIRED]]
    groups = grouped(runs)
    for (where, how), (same, base) in itertools.product(groups, groups):
        own, other = ({run["options"]["seed"]: run for run in groups[key]} for key in ((where, how), (same, base)))
        seeds = sorted(own.keys() & other.keys())
        if same == where and base != how and base.startswith("FedAvg") and len(seeds) > 1:
            entries = [
                _entry(*score, *([side[seed] for seed in seeds] for side in (own, other))) for score in PAIRED.values()
            ]
            table.append([where, how, base, str(len(seeds)), *entries])
    for (where, how), own in groups.items():
        if len(own) > 1 and all("alone" in run for run in own):
            together, by_itself = (dict(enumerate(map(score, own))) for score in (last_rounds, last_alone))
            gain = paired(together, by_itself)
            table.append([where, how, "its own rounds alone", str(len(own)), interval(gain, 2, 100) if gain else ""])
            table[-1] += [""] * (len(PAIRED) - 1)
    return table


def _entry(score: Callable[[Run], float | None], digits: int, own: list[Run], other: list[Run]) -> str:
    """Return the entry of the seeds with both scores, with their number if it is not all."""
    first, second = (dict(enumerate(map(score, side))) for side in (own, other))
    seeds = [i for i in first if first[i] is not None and second[i] is not None]
    difference = paired({i: first[i] for i in seeds}, {i: second[i] for i in seeds})
    if difference is None:
        return ""
    return interval(difference, digits) + (f" ({len(seeds)} seeds)" if len(seeds) < len(own) else "")


def _row(where: str, how: str, seeds: list[Run]) -> list[str]:
    scores = [mean_and_sd([run["metrics"][name] for run in seeds]) for name in SCORES]
    last = [mean_and_sd([last_rounds(run, name) for run in seeds]) for name in ("accuracy", "cohort_accuracy")]
    last.insert(1, mean_and_sd([last_alone(run) for run in seeds]) if "alone" in seeds[0] else "")
    reached = [evaluation.rounds_to(run["rounds"], THRESHOLD) for run in seeds]
    rounds = "never" if None in reached else mean_and_sd([float(r) for r in reached if r], 1)
    shares = [
        run["metrics"]["epistemic"] / (run["metrics"]["epistemic"] + run["metrics"]["aleatoric"]) for run in seeds
    ]
    seconds = np.median([run["seconds"] for run in seeds])
    return [where, how, *scores, *last, rounds, mean_and_sd(shares), str(len(seeds)), f"{seconds:.0f}"]
