"""The study's tables: a long one of all scores, and accuracy by partition or option."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np

from experiments.tables import mean_and_sd, write
from tfp_bfl import evaluation

Run = dict[str, Any]
THRESHOLD = 0.8
LAST = 10
SCORES = ("accuracy", "test_nll", "ece", "macro_recall", "macro_precision")


def method(run: Run) -> str:
    """How a table calls what a run did."""
    options = run["options"]
    return f"{options['algorithm']}, server {options['server']}"


def setting(run: Run) -> str:
    """On what, and how much of it."""
    options = run["options"]
    popularity = f", popularity {options['popularity']:g}" if options.get("popularity") else ""
    dataset = "" if options["dataset"] == "mnist" else f"{options['dataset']}, "
    amount = f"{options['local_epochs']} epochs, {options['cohort_size']} clients{popularity}"
    return f"{dataset}{options['partition']}, {amount}"


def last_rounds(run: Run, metric: str = "accuracy") -> float:
    """The mean of a metric over the last ten evaluations."""
    return float(evaluation.running_mean(run["rounds"], metric, LAST)[-1])


def grouped(runs: list[Run]) -> dict[tuple[str, str], list[Run]]:
    """The seeds of each setting and method, in the order of the runs."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((setting(run), method(run)), []).append(run)
    return groups


def write_tables(table: str, runs: list[Run], output: pathlib.Path) -> None:
    """Writes TABLE.md and .csv, and TABLE_accuracy with a column a setting."""
    if not runs:
        return
    groups = grouped(runs)
    header = ["setting", "method", *SCORES, f"accuracy, last {LAST}", f"last {LAST}, the round's clients"]
    header += [f"rounds to {THRESHOLD}", "epistemic share", "seeds", "s a run"]
    rows = [header, *(_row(*key, seeds) for key, seeds in groups.items())]
    write(rows, output / table)
    settings = list(dict.fromkeys(key[0] for key in groups))
    methods = list(dict.fromkeys(key[1] for key in groups))
    cell = lambda s, m: mean_and_sd([last_rounds(r) for r in groups[s, m]]) if (s, m) in groups else ""
    pivot = [["method", *settings], *([m, *(cell(s, m) for s in settings)] for m in methods)]
    write(pivot, output / f"{table}_accuracy")
    if table == "server_steps":
        write(pairs_table(runs), output / f"{table}_pairs")


def pairs_table(runs: list[Run]) -> list[list[str]]:
    """Accuracy of the last rounds less FedAvg's of the same seeds, in points, with the 95 % interval of other seeds."""
    table = [["setting", "method", "less", "points", "from", "to", "seeds"]]
    groups = grouped(runs)
    servers = list(dict.fromkeys(run["options"]["server"] for run in runs))
    for where in dict.fromkeys(key[0] for key in groups):
        for (_, how), own in ((key, own) for key, own in groups.items() if key[0] == where):
            for base in (f"FedAvg, server {server}" for server in servers):
                first, second = (
                    {run["options"]["seed"]: 100 * last_rounds(run) for run in g}
                    for g in (own, groups.get((where, base), []))
                )
                seeds = sorted(first.keys() & second.keys())
                if how == base or len(seeds) < 2:
                    continue
                d = evaluation.paired_difference([first[s] for s in seeds], [second[s] for s in seeds])
                table.append([where, how, base, f"{d.mean:+.2f}", f"{d.low:+.2f}", f"{d.high:+.2f}", str(len(seeds))])
    return table


def _row(where: str, how: str, seeds: list[Run]) -> list[str]:
    scores = [mean_and_sd([run["metrics"][name] for run in seeds]) for name in SCORES]
    last = [mean_and_sd([last_rounds(run, name) for run in seeds]) for name in ("accuracy", "cohort_accuracy")]
    reached = [evaluation.rounds_to(run["rounds"], THRESHOLD) for run in seeds]
    rounds = "never" if None in reached else mean_and_sd([float(r) for r in reached if r], 1)
    shares = [
        run["metrics"]["epistemic"] / (run["metrics"]["epistemic"] + run["metrics"]["aleatoric"]) for run in seeds
    ]
    seconds = np.median([run["seconds"] for run in seeds])
    return [where, how, *scores, *last, rounds, mean_and_sd(shares), str(len(seeds)), f"{seconds:.0f}"]
