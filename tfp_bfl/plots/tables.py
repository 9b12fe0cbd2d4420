"""The tables of a report: what runs were set to, scored and cost, and what that means for each class and client."""

import numbers
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tfp_bfl.evaluation.classification import class_scores
from tfp_bfl.evaluation.unusual import auroc_interval, out_of_distribution
from tfp_bfl.labels import duration, label_of
from tfp_bfl.plots.page import Cell, Headline, Table, by_row, table
from tfp_bfl.plots.results import RunResults

DASH = "\u2013"
# Prefixes of scores of parts of a run.
_OF_PARTS = ("last_round_", "member_")
# Clients in a table, classes in a table of scores, and classes in a confusion matrix.
MOST_CLIENTS, MOST_CLASSES, MOST_CONFUSED = 200, 50, 12

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
    **dict.fromkeys(("seconds", "train_seconds"), duration),
    "ms_per_step": "{:.3g} ms".format,
    **dict.fromkeys(("worker_mb", "process_mb"), "{:.0f} MB".format),
    **dict.fromkeys(("upload_mb", "download_mb"), "{:.3g} MB".format),
    "pruned_weights": "{:,.0f}".format,
}
# Of a summary, what other parts of the page show.
_ELSEWHERE = (
    "trained",  # Stated above the table, as far as the model uses it.
    *("versions", "warnings", "method", "baselines", "classes", "confusion_matrix", "clients", "adapted_clients"),
)
# A score of a client -> its heading and form.
_OF_CLIENTS = {
    **{"accuracy": ("accuracy", ".3f"), "rmse": ("RMSE", ".4g"), "sensitivity": ("sensitivity", ".3f")},
    **{"specificity": ("specificity", ".3f"), "test_nll": ("NLL", ".3f"), "coverage": ("coverage", ".3f")},
    "p_value": ("p", ".2g"),
}
# Scores of a baseline -> digits.
_OF_BASELINES = {"accuracy": ".3f", "rmse": ".4g", "test_nll": ".3f", "crps": ".4g"}
# Which direction is better; others have none.
_HIGHER = ("macro_recall", "macro_precision", "auroc", "sensitivity", "specificity")
BETTER = {"accuracy": 1, **dict.fromkeys(("rmse", "mae", "test_nll", "ece", "brier", "mce"), -1)}
BETTER |= {**dict.fromkeys(_HIGHER, 1), "crps": -1}
BETTER |= {f"{prefix}{name}": direction for prefix in _OF_PARTS for name, direction in BETTER.items()}
_PREFIXES = ("client", "adapted_client", "unseen_client", "adapted_unseen_client")
BETTER |= {f"{prefix}_accuracy{least}": 1 for prefix in _PREFIXES for least in ("", "_least")}
# Scores from 0 to 1 that are a fraction of examples or of probability, besides every accuracy.
_SHARES = {"ece", "mce", "macro_recall", "macro_precision", "coverage", "epistemic_share"}


def is_share(key: str) -> bool:
    """Return whether a score is a fraction, which can be written as a percentage."""
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
    leave_out = {*_COSTS, *_ELSEWHERE, *(_HEADLINES if len(runs) == 1 else ())}
    summaries = [dict(flatten({key: x for key, x in run.summary.items() if key not in leave_out})) for run in runs]
    for summary in summaries:
        if "aleatoric" in summary and "epistemic" in summary:
            summary["variance"] = float(summary["aleatoric"]) + float(summary["epistemic"])
    keys = _keys(summaries)
    # Those that add up stand one after another.
    parts = [key for key in ("aleatoric", "epistemic", "variance") if key in keys]
    place = keys.index(parts[0]) if parts else 0
    keys = [*(k for k in keys[:place] if k not in parts), *parts, *(k for k in keys[place:] if k not in parts)]
    values = {key: [summary.get(key) for summary in summaries] for key in keys}
    # A key without values: such as the round of a collapse that did not come.
    rows = [(label_of(key), map(_cell, x)) for key, x in values.items() if any(value is not None for value in x)]
    return _beside("Results", runs, rows)


def _cell(value: object) -> Cell:
    """Return the cell of a score; a small one keeps its digits, and a large whole one has no decimals."""
    value = _plain(value)
    if not isinstance(value, numbers.Real) or isinstance(value, numbers.Integral):
        return typed(value)
    score = float(value)
    is_count = score.is_integer() and abs(score) >= 1000
    return Cell(f"{score:.1e}" if 0 < abs(score) < 5e-4 else f"{score:,.0f}" if is_count else f"{score:.4f}")


def typed(value: object, form: Callable[[Any], str] = lambda value: text(value)) -> Cell:
    """Return the cell of a recorded value: what is no number is text, whatever its first letter."""
    value = _plain(value)
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return Cell(form(value), is_words=not (is_number or value is None))


def _plain(value: Any) -> Any:
    return value.numpy() if hasattr(value, "numpy") and getattr(value, "shape", None) == () else value


def costs(runs: Sequence[RunResults]) -> Table:
    """Return time, memory and exchange, as far as the runs recorded them."""
    values = {key: [run.summary.get(key) for run in runs] for key in _COSTS}
    written = lambda key: [DASH if x is None else _COSTS[key](float(x)) for x in values[key]]
    # A run without workers has none of their memory.
    rows = [(label_of(key), written(key)) for key in _COSTS if any(values[key])]
    return _beside("Time, memory and messages", runs, rows)


def settings(runs: Sequence[RunResults], differing: bool | None = None) -> Table:
    """Return the settings of the runs: only those that differ, only those that do not, or all."""
    versions = lambda run: {"versions": run.summary["versions"]} if run.summary.get("versions") else {}
    configs = [{key: typed(value) for key, value in flatten({**run.config, **versions(run)})} for run in runs]
    rows = []
    for key in _keys(configs):
        values = [config.get(key, Cell(DASH)) for config in configs]
        if differing is None or differing == (len(set(values)) > 1):
            rows.append((key, values if differing is not False else values[:1]))
    return _beside("Configuration", runs, rows) if differing is not False else table("Configuration", [], rows)


def out_of_distribution_scores(runs: Sequence[RunResults], quantities: Mapping[str, str]) -> Table:
    """Return the AUROC, with its 95 % interval, and AUPR of each score: key -> what it is called."""
    rows = []
    for quantity, name in quantities.items():
        scores = []
        for run in runs:
            inside, outside = of_both(run, quantity)
            if inside is None or outside is None or not (np.any(inside) or np.any(outside)):
                scores.append((DASH, DASH))
                continue
            found = out_of_distribution(inside, outside)
            low, high = auroc_interval(found.auroc, len(inside), len(outside))
            scores.append((f"{found.auroc:.3f} [{low:.3f}, {high:.3f}]", f"{found.aupr:.3f}"))
        rows += [(f"{area} of the {name}", [pair[i] for pair in scores]) for i, area in enumerate(("AUROC", "AUPR"))]
    return _beside("Scores", runs, rows)


def of_both(run: RunResults, quantity: str) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Return an uncertainty of the test set and of the out-of-distribution examples, each None if not recorded."""
    inside = {**run.uncertainties, **(run.numbers or {}), "unusual": run.unusual}
    return inside.get(quantity), (run.out_of_distribution or {}).get(quantity)


def of_classes(run: RunResults) -> tuple[str, list[Table]]:
    """Return a sentence on the classes, and tables: scores of each class and, of few classes, the confusion matrix."""
    scores = class_scores(run.probabilities, run.labels)
    names = [str(name) for name in run.class_names] or [str(c) for c in range(len(scores.confusion))]
    number = lambda value: DASH if np.isnan(value) else f"{value:.3f}"
    columns = zip(names, scores.confusion.sum(1), scores.recall, scores.precision)
    rows = [(name, [f"{count}", number(recall), number(precision)]) for name, count, recall, precision in columns]
    tables = [table("Scores of each class", ["class", "examples", "recall", "precision"], rows[:MOST_CLASSES])]
    if len(names) <= MOST_CONFUSED:
        confusion = [(name, map(str, row)) for name, row in zip(names, scores.confusion.tolist())]
        tables.append(table("Confusion matrix", ["label, predicted as", *names], confusion))
    words = [f"Balanced accuracy {scores.balanced_accuracy:.3f}"]
    words += [] if scores.auroc is None else [f"AUROC {scores.auroc:.3f}"]
    for what, name in (("sensitivity", names[-1]), ("specificity", names[0])):
        if (recall := getattr(scores, what)) is not None:
            words += [f"{what} (recall of {name}) {recall.value:.3f} [{recall.low:.3f}, {recall.high:.3f}]"]
    more = f" The first {MOST_CLASSES} classes." if len(names) > MOST_CLASSES else ""
    interval = " Brackets: 95 % intervals (Wilson)." if scores.sensitivity or scores.specificity else ""
    return f"{'; '.join(words)}.{interval}{more}", tables


def baselines(runs: Sequence[RunResults]) -> Table:
    """Return the scores of the runs and of their baselines; without rows if no run recorded a baseline."""
    recorded = [run for run in runs if run.summary.get("baselines")]
    together: dict[str, Mapping[str, float]] = {}
    for run in recorded:
        together[run.name if len(runs) > 1 else "model"] = run.summary
    for run in recorded:
        for name, metrics in run.summary["baselines"].items():
            # Runs on the same data share their baselines.
            alike = together.get(name, metrics) == metrics
            together[name if alike else f"{name} ({run.name})"] = metrics
    used = [key for key in _OF_BASELINES if any(key in metrics for metrics in together.values())]
    cell = lambda metrics, key: format(metrics[key], _OF_BASELINES[key]) if key in metrics else DASH
    rows = [(name, [cell(metrics, key) for key in used]) for name, metrics in together.items()]
    return table("Baselines", ["prediction", *map(label_of, used)], rows)


def clients(run: RunResults, key: str = "clients") -> Table:
    """Return the scores of each client on its own test rows, and the rounds in which it was left out."""
    scores, faulty = run.summary[key], faulty_rounds(run.rounds)
    places = {name: str(k) for k, name in enumerate(run.client_names)}
    counts = None if run.label_counts is None else np.asarray(run.label_counts).sum(1)
    held = {name: f"{counts[int(k)]:g}" for name, k in places.items()} if counts is not None else {}
    columns = [name for name in _OF_CLIENTS if any(name in row for row in scores)]
    rows = []
    for row in scores[:MOST_CLIENTS]:
        cells = [held.get(row["client"], DASH)] if held else []
        cells += [str(row["n"]), *(with_interval(row, name) for name in columns)]
        cells += [str(faulty.get(places.get(row["client"], row["client"]), 0))] if faulty else []
        rows.append((str(row["client"]), cells))
    head = ["client", *(["training rows"] if held else []), "test rows n", *(_OF_CLIENTS[name][0] for name in columns)]
    return table("Clients", [*head, *(["faulty rounds"] if faulty else [])], rows)


def clients_beside(runs: Sequence[RunResults]) -> list[Table]:
    """Return each score of the clients by several runs, in the order of the first."""
    every = [{row["client"]: row for row in run.summary.get("clients", ())} for run in runs]
    names = list(dict.fromkeys(name for rows in every for name in rows))[:MOST_CLIENTS]
    scores = [key for key in _OF_CLIENTS if key != "p_value" and any(key in x for rows in every for x in rows.values())]
    beside = lambda key: [(name, [with_interval(found.get(name, {}), key) for found in every]) for name in names]
    head = ["client", *(run.name for run in runs)]
    return [table(f"Clients: {_OF_CLIENTS[key][0]}", head, beside(key)) for key in scores]


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
    of = lambda k: [str(faulty.get(str(k), 0))] if faulty else []
    held = enumerate(zip(names, counts[:MOST_CLIENTS]))
    rows = [(name, [f"{own.sum():g}", str(np.count_nonzero(own)), *of(k)]) for k, (name, own) in held]
    return table("Clients", ["client", "examples", "classes", *(["faulty rounds"] if faulty else [])], rows)


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
    is_time = lambda key, value: value is not None and key in ("seconds", "train_seconds")
    form = lambda key: lambda value: duration(float(value)) if is_time(key, value) else text(value)
    cells = lambda row: [typed(row.get(key), form(key)) for key in columns]
    rows = [(text(row.get("round")), cells(row)) for row in run.rounds]
    # Of a round these are sums over its clients.
    names = {"seconds": "Time", "pruned_weights": "Pruned weights, all clients"}
    return table(f"Rounds ({len(rows)})", ["Round", *(names.get(key) or label_of(key) for key in columns)], rows)


def _beside(title: str, runs: Sequence[RunResults], values: Iterable[tuple[str, Iterable[str | Cell]]]) -> Table:
    """Return a table of names and their values by run: of one run pairs, of several a row for each run."""
    return table(title, [], values) if len(runs) == 1 else by_row(title, [run.name for run in runs], values)


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
    value = _plain(value)
    if value is None or (isinstance(value, Mapping) and not value):
        return DASH
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return "; ".join(f"{key}: {text(item)}" for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(text(item) for item in value) or DASH
    if isinstance(value, numbers.Real) and not isinstance(value, numbers.Integral):
        return f"{float(value):.4g}"
    return str(value)
