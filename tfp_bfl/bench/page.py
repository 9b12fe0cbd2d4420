"""Write a benchmark as one static HTML page: tables in HTML, figures in SVG, a script that sorts and filters."""

from __future__ import annotations

import base64
import hashlib
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from tfp_bfl.bench import ranks, scatter, summary
from tfp_bfl.bench.reading import SCORES, Bench, BenchRecord, arrange, finite, read, score_of, shorten
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.files.writing import write_bytes
from tfp_bfl.labels import label_of
from tfp_bfl.plots.page import Cell, Table, environment
from tfp_bfl.plots.repeats import compare
from tfp_bfl.plots.tables import DASH, MOST_CLIENTS, text, with_interval

_FIRST = "test_nll"  # Classification and regression have it.
_FULL = 500
_ABOUT = {
    "dataset": "Dataset",
    "model": "Model",
    "task": "Task",
    "clients": "Clients",
    "examples": "Examples",
    "test_examples": "Test examples",
    "heterogeneity": "Heterogeneity",
}
_POINT = {"seconds": "Time (CPU s)", "mb": "Sent (MB)"}


class Sorted(NamedTuple):
    """Hold a cell of the results: its text, whether it is bold, and the number that it is sorted by, or ""."""

    text: str
    is_best: bool
    sort: str


class PageRow(NamedTuple):
    """Hold a method in a setting, as the table of results and its details show it."""

    number: int
    setting: str
    setting_number: int
    method: str
    scores: Sequence[tuple[Sorted, Sorted]]
    costs: Sequence[Sorted]
    chosen: str
    trials: str
    failed: Sequence[str]
    tables: Sequence[Table]


class Plot(NamedTuple):
    """Hold a scatter plot: its title, the SVG, and a caption on cells that it leaves out."""

    title: str
    svg: Markup
    caption: str


class RankFigure(NamedTuple):
    """Hold a critical-difference figure: the score, the tests in a sentence, notes on absent values, and the SVG."""

    title: str
    result: str
    note: str
    svg: Markup
    has_groups: bool


class Ranked(NamedTuple):
    """Hold the section on ranks: average ranks, a figure a score, and why other scores have none."""

    table: Table
    figures: Sequence[RankFigure]
    reasons: Sequence[str]


def write_page(folder: pathlib.Path, output: pathlib.Path, reference: str | None = None) -> pathlib.Path:
    """Write the records of a benchmark as one HTML file, which opens from disk without a server or other files.

    Args:
      folder: with records.jsonl.
      output: the HTML file; missing folders are made, and an old file is replaced.
      reference: the method that others are compared with; None for "fed_avg" if it occurs, else the first.

    Returns:
      The path of the page.

    Raises:
      InvalidArgument: the records are missing or damaged, or no record has the reference method.
    """
    page = render(arrange(read(folder), reference))
    output = pathlib.Path(output)
    output.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(output, page.encode("utf-8", errors="replace"))
    return output


def render(bench: Bench) -> str:
    """Return the page of arranged records."""
    templates = environment("tfp_bfl.bench")
    templates.filters |= {"short": shorten, "full": lambda name: shorten(name, _FULL)}
    source = lambda name: pathlib.Path(__file__).with_name(name).read_text(encoding="utf-8")
    script = source("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    keys, cells = bench.score_keys(), rows(bench)
    return templates.get_template("page.html.jinja").render(
        title="Benchmark of Bayesian federated learning",
        header=summary.header(bench),
        brief=summary.BRIEF,
        notes=summary.HOW_TO_READ,
        rank_notes=summary.HOW_TO_READ_RANKS,
        bench=bench,
        keys=keys,
        scores={key: score_of(key) for key in keys},
        first=_FIRST if _FIRST in keys else next(iter(keys), None),
        rows=cells,
        plots=plots(bench, {(row.setting, row.method): row.number for row in cells}),
        marker=scatter.marker,
        ranked=ranked(bench),
        budgets=[
            (setting, [summary.at_budget(bench, setting, x) for x in summary.budgets(bench, setting)])
            for setting in bench.settings
        ],
        settings=settings(bench),
        failures=summary.failures(bench),
        style=Markup(source("page.css")),
        script=Markup(script),
        digest=f"sha256-{digest}",
    )


def rows(bench: Bench) -> list[PageRow]:
    """Return a row for each setting and method with records, by setting."""
    found: list[PageRow] = []
    for place, setting in enumerate(bench.settings):
        methods = summary.methods_of(bench, setting)
        scores = _score_columns(bench, setting, methods)
        for i, method in enumerate(methods):
            cell = bench.cells[setting, method]
            failed = [record for record in cell if record.failed is not None]
            seeds = f"{len(cell) - len(failed)}" + (f", {len(failed)} failed" if failed else "")
            found.append(
                PageRow(
                    number=len(found),
                    setting=setting,
                    setting_number=place,
                    method=method,
                    scores=[column[i] for column in scores],
                    costs=[
                        Sorted(seeds, False, str(len(cell) - len(failed))),
                        Sorted(summary.rounds(cell), False, _sort(cell[0].num_rounds)),
                        *map(_cost, (megabytes(cell), _seconds(cell))),
                        Sorted(summary.unfinished(cell), False, summary.unfinished(cell).partition(" ")[0]),
                    ],
                    chosen=summary.chosen(cell),
                    trials=", ".join(dict.fromkeys(str(record.trials) for record in cell)),
                    failed=[f"Seed {r.seed} failed: {shorten(r.failed, _FULL)}" for r in failed],
                    tables=[
                        table
                        for table in (by_seed(cell), of_clients(cell), _by_seed_costs(cell), trajectory(cell))
                        if table.rows
                    ],
                )
            )
    return found


def _score_columns(bench: Bench, setting: str, methods: Sequence[str]) -> list[list[tuple[Sorted, Sorted]]]:
    """Return, for each score, the mean and the difference to the reference of each method."""
    groups = [bench.scores(setting, method) for method in methods]
    reference = bench.scores(setting, bench.reference)
    columns = []
    for key in bench.score_keys():
        means = summary.score_cells(groups, key)
        pairs = [None if g.name == reference.name else compare(g, reference, key) for g in groups]
        differences = summary.difference_cells(groups, reference, key)
        columns.append(
            [
                (Sorted(*mean[:2], _sort(_mean(group.values(key)))), Sorted(*difference[:2], _sort(pair and pair.mean)))
                for group, mean, difference, pair in zip(groups, means, differences, pairs)
            ]
        )
    return columns


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _sort(value: float | None) -> str:
    return "" if value is None else repr(value)


def _cost(value: float | None) -> Sorted:
    return Sorted(DASH if value is None else summary.number(value), False, _sort(value))


def megabytes(cell: Sequence[BenchRecord]) -> float | None:
    """Return upload and download, the mean over seeds; None if no record has both."""
    return _mean(
        [r.cost["upload_mb"] + r.cost["download_mb"] for r in cell if {"upload_mb", "download_mb"} <= set(r.cost)]
    )


def _seconds(cell: Sequence[BenchRecord]) -> float | None:
    return _mean([record.cost["cpu_seconds"] for record in cell if "cpu_seconds" in record.cost])


def by_seed(cell: Sequence[BenchRecord]) -> Table:
    """Return the scores of a cell by seed."""
    return _of_seeds("Scores by seed", cell, {r.seed: r.scores for r in cell}, lambda key: score_of(key).label)


def _by_seed_costs(cell: Sequence[BenchRecord]) -> Table:
    label = lambda key: summary.COSTS.get(key) or shorten(key.replace("_", " ").capitalize())
    return _of_seeds("Cost by seed", cell, {r.seed: r.cost for r in cell}, label)


def _of_seeds(title: str, cell: Sequence[BenchRecord], values: Mapping[int, Mapping[str, float]], label: Any) -> Table:
    there = dict.fromkeys(key for record in cell for key in values[record.seed])
    keys = [*(key for key in SCORES if key in there), *(key for key in there if key not in SCORES)]
    table_rows = [
        (str(seed), [Cell(summary.number(of[key]) if key in of else DASH) for key in keys])
        for seed, of in values.items()
        if of
    ]
    return Table(title, ["Seed", *map(label, keys)], table_rows)


def of_clients(cell: Sequence[BenchRecord]) -> Table:
    """Return the scores of each client by the first seed that has some."""
    first = next((record for record in cell if record.clients), None)
    rows, names = (first.clients if first else ()), ("accuracy", "rmse", "test_nll", "coverage")
    used = [name for name in names if any(name in row for row in rows)]
    title = f"Clients on their own test rows, seed {first.seed}" if first else "Clients"
    table_rows = [
        (row["client"], [Cell(summary.number(row.get("n", 0.0))), *(Cell(with_interval(row, name)) for name in used)])
        for row in rows[:MOST_CLIENTS]
    ]
    return Table(title, ["Client", "n", *(label_of(name) for name in used)], table_rows)


def trajectory(cell: Sequence[BenchRecord]) -> Table:
    """Return the points of a cell's trajectories, the mean over the seeds that have a round."""
    points: dict[float, list[Mapping[str, float]]] = {}
    for record in cell:
        for point in record.rounds:
            points.setdefault(point["round"], []).append(point)
    keys = list(dict.fromkeys(key for there in points.values() for point in there for key in point if key != "round"))
    table_rows = []
    for number, there in sorted(points.items()):
        means = [_mean([point[key] for point in there if key in point]) for key in keys]
        cells = [Cell(DASH if mean is None else summary.number(mean)) for mean in means]
        table_rows.append((f"{number:g}", [*cells, Cell(str(len(there)))]))
    head = ["Round", *(_POINT.get(key) or score_of(key).label for key in keys), "Seeds"]
    return Table("Trajectory of the current model, mean over seeds", head, table_rows)


def plots(bench: Bench, numbers: Mapping[tuple[str, str], int]) -> list[Plot]:
    """Draw quality against bytes, NLL against time, and calibration against heterogeneity, as far as records have them.

    NLL of classes and of numbers have different units, so that each task has its own figure.

    Args:
      bench: the records.
      numbers: (setting, method) -> number of its row.
    """
    classes = {s for s in bench.settings if _is_of_classes(bench, s)}
    numeric = set(bench.settings) - classes
    sent = lambda setting, cell: megabytes(cell)
    time = lambda setting, cell: _seconds(cell)
    heterogeneity = lambda setting, cell: _mean(
        [value for r in cell if (value := finite(r.about.get("heterogeneity"))) is not None]
    )
    size, duration = "Upload and download (MB)", "Training time (CPU s)"
    wanted = (
        ("accuracy", classes, sent, size, "Accuracy against bytes"),
        ("rmse", numeric, sent, size, "RMSE against bytes"),
        ("test_nll", classes, time, duration, "NLL against time" + (", classification" if numeric else "")),
        ("test_nll", numeric, time, duration, "NLL against time, regression"),
        ("ece", classes, heterogeneity, "Heterogeneity of the clients", "Calibration against heterogeneity"),
    )
    found = []
    for key, chosen, across, label, title in wanted:
        points, left_out = [], 0
        for (setting, method), number in numbers.items():
            if setting not in chosen:
                continue
            values = bench.scores(setting, method).values(key)
            x, y = across(setting, bench.cells[setting, method]), _mean(values)
            if x is None or y is None:
                left_out += 1
                continue
            words = f"{shorten(method)} in {shorten(setting)}: {score_of(key).label} {summary.mean_text(values)}"
            words += f"; {label} {summary.number(x)}"
            points.append(scatter.Point(x, y, bench.settings.index(setting), number, words))
        if points:
            caption = f"{len(points)} points." + (f" Not shown for lack of a value: {left_out}." if left_out else "")
            found.append(Plot(title, scatter.figure(points, label, score_of(key).label, title), caption))
    return found


def _is_of_classes(bench: Bench, setting: str) -> bool:
    """Return whether a setting's task is classification, as its records say or by their scores."""
    tasks = {record.about.get("task") for record in bench.records if record.setting == setting} - {None}
    return "regression" not in tasks if tasks else "rmse" not in bench.score_keys(setting)


def ranked(bench: Bench) -> Ranked:
    """Return the average ranks of each score with a direction, their figures, and reasons of scores without ranks."""
    columns: dict[str, dict[str, float]] = {}
    figures, reasons = [], []
    for key in bench.score_keys():
        label = score_of(key).label
        if not score_of(key).sign:
            continue
        try:
            found = ranks.ranking(bench, key)
        except InvalidArgument as reason:
            reasons.append(str(reason))
            continue
        columns[label] = dict(zip(found.methods, found.average))
        compared, result = summary.tested(found)
        svg = ranks.figure(found, compared, f"Average ranks by {label}")
        figures.append(RankFigure(label, result, summary.unranked(found), svg, bool(compared and compared.groups)))
    first = next(iter(columns.values()), {})
    methods = sorted(
        dict.fromkeys(m for column in columns.values() for m in column), key=lambda m: first.get(m, math.inf)
    )
    cells = lambda m: [Cell(f"{column[m]:.2f}" if m in column else DASH) for column in columns.values()]
    table = Table("Average ranks", ["Method", *columns], [(method, cells(method)) for method in methods])
    if len(bench.settings) < 2:
        reasons = [ranks.NO_RANKS]
    return Ranked(table, figures, reasons)


def settings(bench: Bench) -> Table:
    """Return what the records state about each setting; all values where they differ between methods or seeds."""
    table_rows = []
    for setting in bench.settings:
        cells = []
        for key in _ABOUT:
            values = dict.fromkeys(
                text(record.about[key])
                for record in bench.records
                if record.setting == setting and record.about.get(key) is not None
            )
            cells.append(Cell(shorten("; ".join(values) or DASH), is_words=True))
        table_rows.append((setting, cells))
    return Table("Settings", ["Setting", *_ABOUT.values()], table_rows)
