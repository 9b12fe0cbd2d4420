"""The tables of a report: what runs were set to, scored and cost, and what that means for each client."""

from __future__ import annotations

import functools
import numbers
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tfp_bfl.evaluation.out_of_distribution import auroc_interval, out_of_distribution
from tfp_bfl.labels import duration, label_of
from tfp_bfl.plots.page import Cell, Headline, Table
from tfp_bfl.plots.results import RunResults

DASH = "\u2013"
# Prefixes of scores of parts of a run.
_OF_PARTS = ("last_round_", "member_")
MOST_CLIENTS = 200

# key of the summary -> (hint, format)
_HEADLINES = {
    "accuracy": ("fraction of test examples predicted correctly", "{:.1%}"),
    "test_nll": ("nats per test example; lower is better", "{:.3f}"),
    "rmse": ("root mean square error, in units of the label", "{:.4g}"),
    "coverage": ("fraction of the labels inside; 90 % is ideal", "{:.1%}"),
    "ece": ("expected calibration error; 0 is ideal", "{:.3f}"),
    "epistemic_share": ("epistemic part of the predictive variance", "{:.1%}"),
}
_COSTS: dict[str, Callable[[float], str]] = {
    "seconds": duration,
    "train_seconds": duration,
    "ms_per_step": "{:.3g} ms".format,
    "worker_mb": "{:.0f} MB".format,
    "process_mb": "{:.0f} MB".format,
    "upload_mb": "{:.3g} MB".format,
    "download_mb": "{:.3g} MB".format,
    "pruned_weights": "{:,.0f}".format,
}
# Of a summary, what other parts of the page show.
_ELSEWHERE = (
    *("versions", "warnings", "method", "baselines", "classes", "confusion_matrix", "clients", "adapted_clients"),
)
# A score of a site -> its heading and form.
# A score of a client -> its heading and form.
_OF_CLIENTS = {
    **{"accuracy": ("accuracy", ".3f"), "rmse": ("RMSE", ".4g"), "sensitivity": ("sensitivity", ".3f")},
    **{"specificity": ("specificity", ".3f"), "test_nll": ("NLL", ".3f"), "coverage": ("coverage", ".3f")},
    "p_value": ("p", ".2g"),
}
# Which direction is better; others have none.
BETTER = {
    "accuracy": 1,
    "rmse": -1,
    "mae": -1,
    "test_nll": -1,
    "ece": -1,
    "brier": -1,
    "mce": -1,
    "macro_recall": 1,
    "macro_precision": 1,
    "auroc": 1,
    "sensitivity": 1,
    "specificity": 1,
    "crps": -1,
}
BETTER |= {f"{prefix}{name}": direction for prefix in _OF_PARTS for name, direction in BETTER.items()}
BETTER |= {
    f"{adapted}{group}_accuracy{least}": 1
    for group in ("client", "unseen_client")
    for adapted in ("", "adapted_")
    for least in ("", "_least")
}


# Scores from 0 to 1 that are a share of examples or of probability, besides every accuracy.
_SHARES = {"ece", "mce", "macro_recall", "macro_precision", "coverage", "epistemic_share"}


def is_share(key: str) -> bool:
    """Return whether a score is a share of 1, which can be written as a percentage."""
    for prefix in _OF_PARTS:
        key = key.removeprefix(prefix)
    return key in _SHARES or key.removesuffix("_least").endswith("accuracy")


def headlines(run: RunResults) -> list[Headline]:
    """Return the results that the page shows large."""
    return [
        Headline(label_of(key), form.format(float(run.summary[key])), hint)
        for key, (hint, form) in _HEADLINES.items()
        if run.summary.get(key) is not None
    ]


def results(runs: Sequence[RunResults]) -> Table:
    """Return the scores of the runs; of one run those that are not shown large already."""
    single = len(runs) == 1
    leave_out = {*_COSTS, *_ELSEWHERE, *(_HEADLINES if single else ())}
    summaries = [
        dict(flatten({key: value for key, value in run.summary.items() if key not in leave_out})) for run in runs
    ]
    for summary in summaries:
        if "aleatoric" in summary and "epistemic" in summary:
            summary["variance"] = float(summary["aleatoric"]) + float(summary["epistemic"])
    rows = []
    for key in _together(_keys(summaries)):
        values = [summary.get(key) for summary in summaries]
        if all(value is None for value in values):
            continue  # Such as the round of a collapse that did not come.
        rows.append((label_of(key), [_cell(value) for value in values]))
    return Table("Results", _heads(runs), rows)


def _together(keys: list[str]) -> list[str]:
    """Return the keys, those of parts that add up one after another."""
    parts = [key for key in ("aleatoric", "epistemic", "variance") if key in keys]
    place = keys.index(parts[0]) if parts else 0
    return [*(k for k in keys[:place] if k not in parts), *parts, *(k for k in keys[place:] if k not in parts)]


def _cell(value: object) -> Cell:
    score = _number(value)
    return typed(value) if score is None else Cell(_score(score))


def typed(value: object, form: Callable[[Any], str] = lambda value: text(value)) -> Cell:
    """Return the cell of a recorded value: what is no number is text, whatever its first letter."""
    value = value.numpy() if hasattr(value, "numpy") and getattr(value, "shape", None) == () else value
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return Cell(form(value), is_words=not (is_number or value is None))


def _number(value: object) -> float | None:
    """Return a result as a float; None for what is not one, or counts."""
    value = value.numpy() if hasattr(value, "numpy") else value
    return float(value) if isinstance(value, numbers.Real) and not isinstance(value, numbers.Integral) else None


def _score(score: float) -> str:
    """Format a score; a small one keeps its digits."""
    return f"{score:.1e}" if 0 < abs(score) < 5e-4 else f"{score:.4f}"


def costs(runs: Sequence[RunResults]) -> Table:
    """Return time, memory and exchange, as far as the runs recorded them."""
    rows = []
    for key, form in _COSTS.items():
        values = [run.summary.get(key) for run in runs]
        if any(values):  # A run without workers has none of their memory.
            rows.append((label_of(key), [Cell(DASH if value is None else form(float(value))) for value in values]))
    return Table("Time, memory and messages", _heads(runs), rows)


def settings(runs: Sequence[RunResults], differing: bool | None = None) -> Table:
    """Return the settings of the runs: only those that differ, only those that do not, or all."""
    configs = [{key: typed(value) for key, value in flatten({**run.config, **_versions(run)})} for run in runs]
    rows = []
    for key in _keys(configs):
        values = [config.get(key, Cell(DASH)) for config in configs]
        if differing is None or differing == (len(set(values)) > 1):
            rows.append((key, values if differing is not False else values[:1]))
    return Table("Configuration", _heads(runs) if differing is not False else [], rows)


def _versions(run: RunResults) -> dict[str, Any]:
    return {"versions": run.summary["versions"]} if run.summary.get("versions") else {}


def out_of_distribution_scores(runs: Sequence[RunResults], quantities: Mapping[str, str]) -> Table:
    """Return the AUROC, with its 95 % interval, and AUPR of each score: key -> what it is called."""
    rows: list[tuple[str, list[Cell]]] = []
    for quantity, name in quantities.items():
        scores = [_separation(run, quantity) for run in runs]
        for i, area in enumerate(("AUROC", "AUPR")):
            values = [None if pair is None else pair[i] for pair in scores]
            rows.append((f"{area} of the {name}", [Cell(text(value)) for value in values]))
    return Table("Scores", _heads(runs), rows)


def of_both(run: RunResults, quantity: str) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Return an uncertainty of the test set and of the out-of-distribution examples, each None if not recorded."""
    inside = {**run.uncertainties, **(run.numbers or {}), "unusual": run.unusual}
    return inside.get(quantity), (run.out_of_distribution or {}).get(quantity)


def _separation(run: RunResults, quantity: str) -> tuple[str, str] | None:
    """Return the AUROC with its interval, and the AUPR, in digits."""
    inside, outside = of_both(run, quantity)
    if inside is None or outside is None or not (np.any(inside) or np.any(outside)):
        return None
    found = out_of_distribution(inside, outside)
    low, high = auroc_interval(found.auroc, len(inside), len(outside))
    return f"{found.auroc:.3f} [{low:.3f}, {high:.3f}]", f"{found.aupr:.3f}"


def clients(run: RunResults, key: str = "clients") -> Table:
    """Return the scores of each client on its own test rows, and the rounds in which it was left out."""
    scores, faulty = run.summary[key], faulty_rounds(run.rounds)
    numbers = {name: str(k) for k, name in enumerate(run.client_names)}
    counts = None if run.label_counts is None else np.asarray(run.label_counts).sum(1)
    held = {name: f"{counts[int(k)]:g}" for name, k in numbers.items()} if counts is not None else {}
    columns = [name for name in _OF_CLIENTS if any(name in row for row in scores)]
    rows = []
    for row in scores[:MOST_CLIENTS]:
        cells = [held.get(row["client"], DASH)] if held else []
        cells += [str(row["n"]), *(with_interval(row, name) for name in columns)]
        cells += [str(faulty.get(numbers.get(row["client"], row["client"]), 0))] if faulty else []
        rows.append((str(row["client"]), [Cell(x) for x in cells]))
    head = ["client", *(["training rows"] if held else []), "test rows n", *(_OF_CLIENTS[name][0] for name in columns)]
    return Table("Clients", [*head, *(["faulty rounds"] if faulty else [])], rows)


def clients_beside(runs: Sequence[RunResults]) -> Table:
    """Return the accuracy or RMSE of each client by several runs, in the order of the first."""
    every = [{row["client"]: row for row in run.summary.get("clients", ())} for run in runs]
    names = list(dict.fromkeys(name for rows in every for name in rows))[:MOST_CLIENTS]
    score = lambda row: with_interval(row, "rmse" if "rmse" in row else "accuracy")
    rows = [(name, [Cell(score(found[name]) if name in found else DASH) for found in every]) for name in names]
    return Table("Clients", ["client", *(run.name for run in runs)], rows)


def with_interval(row: Mapping[str, Any], name: str) -> str:
    """Return a score of a client with its interval, if it has one."""
    form = _OF_CLIENTS[name][1]
    if name not in row:
        return DASH
    ends = f" [{row[f'{name}_low']:{form}}, {row[f'{name}_high']:{form}}]" if f"{name}_low" in row else ""
    return f"{row[name]:{form}}{ends}"


def client_sizes(run: RunResults) -> Table:
    """Return the numbers of examples and classes of each client, and the rounds in which it was left out."""
    counts, faulty = np.asarray(run.label_counts), faulty_rounds(run.rounds)
    names = run.client_names or [str(k) for k in range(len(counts))]
    rows = []
    for k in range(min(len(counts), MOST_CLIENTS)):
        cells = [
            f"{counts[k].sum():g}",
            str(np.count_nonzero(counts[k])),
            *([str(faulty.get(str(k), 0))] * bool(faulty)),
        ]
        rows.append((names[k], [Cell(cell) for cell in cells]))
    return Table("Clients", ["client", "examples", "classes", *(["faulty rounds"] if faulty else [])], rows)


def faulty_rounds(rounds: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Count the rounds in which each client was left out."""
    counts: dict[str, int] = {}
    for row in rounds:
        for client in row.get("faulty_clients") or {}:
            counts[str(client)] = counts.get(str(client), 0) + 1
    return counts


def rounds(run: RunResults) -> Table:
    """Return all that was recorded of each round."""
    columns = [key for key in _keys(run.rounds) if key != "round"]
    rows = [
        (text(row.get("round")), [typed(row.get(key), functools.partial(_in_round, key)) for key in columns])
        for row in run.rounds
    ]
    # Of a round these are sums over its clients.
    names = {"seconds": "Time", "pruned_weights": "Pruned weights, all clients"}
    heads = [names.get(key) or label_of(key) for key in columns]
    return Table(f"Rounds ({len(rows)})", ["Round", *heads], rows)


def _in_round(key: str, value: Any) -> str:
    return duration(float(value)) if value is not None and key in ("seconds", "train_seconds") else text(value)


def _heads(runs: Sequence[RunResults]) -> list[str]:
    return ["", *(run.name for run in runs)] if len(runs) > 1 else []


def _keys(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return all keys, in the order in which they first come."""
    return list(dict.fromkeys(key for row in rows for key in row))


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Return the values of nested mappings under dotted names."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def text(value: object) -> str:
    """Return a value as a reader wants it."""
    if value is None or (isinstance(value, Mapping) and not value):
        return DASH
    if getattr(value, "shape", None) == () and hasattr(value, "numpy"):
        value = value.numpy()
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return "; ".join(f"{key}: {text(item)}" for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(text(item) for item in value) or DASH
    if isinstance(value, numbers.Real) and not isinstance(value, numbers.Integral):
        return f"{float(value):.4g}"
    return str(value)
