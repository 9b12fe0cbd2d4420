"""Write a benchmark: as one static HTML page with figures in SVG and a script that sorts and filters, and as tables.

Arguments mean the same everywhere: `folder` has records.jsonl; `reference` is the method that others are compared with,
None for "fed_avg" if it occurs, else the first. Records that are missing or damaged, and a reference that no record
has, are `InvalidArgument`.
"""

import math
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from tfp_bfl.bench import ranks, scatter, summary
from tfp_bfl.bench.reading import SCORES, Bench, BenchRecord, arrange, finite, read, score_of, shorten
from tfp_bfl.bench.summary import cost_of, mean, text_of
from tfp_bfl.files.tables import to_csv, to_markdown
from tfp_bfl.files.writing import write_whole
from tfp_bfl.output import command_line
from tfp_bfl.plots import page as pages
from tfp_bfl.plots.learning import learning_comparison
from tfp_bfl.plots.page import About, Cell, Picture, Section, Table, table
from tfp_bfl.plots.score_tables import Repeated, compare_all, difference_cells, digits, score_cells
from tfp_bfl.plots.style import save_all
from tfp_bfl.plots.tables import DASH, MOST_CLIENTS, text, with_interval

_FIRST = "test_nll"  # Classification and regression have it.
_FULL = 500
_ABOUT = ("dataset", "model", "task", "clients", "examples", "test_examples", "heterogeneity")
_POINT = {"seconds": "Time (CPU s)", "mb": "Sent (MB)"}
_OF_RESULTS = (
    "Each row is a method in a setting. A method's name opens its chosen values, scores by seed, cost and trajectory."
)
_OF_FIGURES = (
    "Each point is a method in a setting, the mean over seeds. Hover over a point or move to it with the tab key for "
    "its name; a click or Enter opens its details. Axes with values that differ by a factor of 20 or more are "
    "logarithmic."
)
_OF_BUDGETS = (
    "Scores of the current model at its last evaluation within a budget. The budget of a setting is what the reference "
    "method used in all its rounds, the largest over its seeds. The final model of a method can differ from its "
    "current model, for example as a mean over rounds."
)
_OF_SETTINGS = (
    "Heterogeneity is the mean total variation distance between the clients' label distributions and the pooled "
    "distribution: 0 for clients with equal distributions."
)


def write_page(folder: pathlib.Path, output: pathlib.Path, reference: str | None = None) -> pathlib.Path:
    """Write the records of a benchmark as one HTML file, which opens from disk without a server or other files.

    Missing folders are made, and an old file is replaced.
    """
    bench = arrange(read(folder), reference)
    abouts = [record.about for record in bench.records]
    stated = lambda name: shorten(", ".join(dict.fromkeys(text(x[name]) for x in abouts if x.get(name))), _FULL)
    source = lambda name: pathlib.Path(__file__).with_name(name).read_text(encoding="utf-8")
    differences = f"Differences are to the reference method, {shorten(bench.reference)}."
    page = pages.page_text(
        f"Benchmark of {len(bench.methods)} methods on {stated('dataset') or 'several data sets'}",
        About(stated("dataset"), stated("task"), command=command_line()),
        [*_sections(bench)],
        statements=[f"{summary.header(bench)} {differences}"],
        style=source("results.css"),
        script=source("page.js"),
    )
    return pages.write_page(pathlib.Path(output), page)


def _sections(bench: Bench) -> Iterator[Section]:
    """Yield the sections of the page; details of cells have the numbers of the rows of results."""
    keys, cells = bench.score_keys(), rows(bench)
    direction = {0: "", 1: "; higher is better", -1: "; lower is better"}
    every = [(x.label, [Cell(x.hint + direction[x.sign], is_words=True)]) for x in map(score_of, keys) if x.hint]
    scores = [table("Scores", [], every)] if every else []
    yield Section("How to read this page", "\n".join(summary.HOW_TO_READ), tables=scores, is_folded=True)
    templates = pages.environment("tfp_bfl.bench")
    templates.filters |= {"short": shorten, "full": lambda name: shorten(name, _FULL)}
    first = _FIRST if _FIRST in keys else next(iter(keys), None)
    given = {"bench": bench, "keys": keys, "score_of": score_of, "first": first, "rows": cells}
    results = Markup(templates.get_template("results.html.jinja").render(given))
    yield Section("Results", _OF_RESULTS, is_wide=True, anchor="results", markup=results)
    item = Markup('<li><svg viewBox="0 0 16 16" aria-hidden="true" class="s{}">{}</svg>{}</li>').format
    key = Markup().join(item(i % 6, scatter.marker(i, 8, 8), shorten(x)) for i, x in enumerate(bench.settings))
    drawn = plots(bench, {(row["setting"], row["method"]): row["number"] for row in cells})
    how = _OF_FIGURES if drawn else "No cell has both values of a figure."
    markup = Markup('<ul class="key">{}</ul>').format(key)
    yield Section("Figures", how, drawn, is_wide=True, anchor="figures", markup=markup)
    yield from ranked(bench)
    yield Section("Equal cost", _OF_BUDGETS, is_wide=True, anchor="budgets")
    for setting in bench.settings:
        limited = [_shown(summary.at_budget(bench, setting, limit)) for limit in summary.budgets(bench, setting)]
        how = "" if limited else "No method has a trajectory."
        yield Section(f"Equal cost: {shorten(setting)}", how, tables=limited, is_folded=True)
    yield Section("Settings", _OF_SETTINGS, tables=[_shown(settings(bench))], is_wide=True, anchor="settings")
    failures = summary.failures(bench)
    found = [failures] if failures.rows else []
    yield Section("Failures", "" if found else "None.", tables=found, is_wide=True, anchor="failures")
    yield Section("Details", "The cells of the table of results.", is_wide=True, anchor="cells")
    for row in cells:
        named = f"{shorten(row['method'], _FULL)} in {shorten(row['setting'], _FULL)}."
        how = "\n".join([named, f"Chosen values: {row['chosen']}. Tuning trials: {row['trials']}.", *row["failed"]])
        heading = f"{shorten(row['setting'])}, {shorten(row['method'])}"
        yield Section(heading, how, tables=row["tables"], is_folded=True, anchor=f"cell-{row['number']}")


def _shown(content: Table) -> Table:
    """Return a table with the names of its rows on one line, cut in the middle."""
    return content._replace(rows=[(shorten(name), cells) for name, cells in content.rows])


def write_tables(folder: pathlib.Path, reference: str | None = None, forms: Iterable[str] = ()) -> list[pathlib.Path]:
    """Write results.md, results.csv with all digits and figures/ into the folder of the records; replace old ones."""
    bench = arrange(read(folder), reference)
    paths = [pathlib.Path(folder) / "results.md", pathlib.Path(folder) / "results.csv"]
    write_whole(paths[0], _markdown(bench))
    write_whole(paths[1], to_csv(_numeric(bench)))
    seeds = lambda *cell: [record.rounds for record in bench.cells[cell] if record.rounds]
    for setting in bench.settings if forms else ():
        name = re.sub(r"[^\w-]", "_", f"learning_curve_{shorten(setting)}")
        if curves := {shorten(x): own for x in summary.methods_of(bench, setting) if (own := seeds(setting, x))}:
            save_all({name: learning_comparison(curves)}, paths[0].with_name("figures"), forms)
    return paths


def rows(bench: Bench) -> list[dict[str, Any]]:
    """Return, for each setting and method with records, what the table of results and its details show."""
    found: list[dict[str, Any]] = []
    for place, setting in enumerate(bench.settings):
        methods = summary.methods_of(bench, setting)
        groups = [bench.scores(setting, method) for method in methods]
        scores = []
        for key in bench.score_keys():
            pairs = compare_all(groups, bench.scores(setting, bench.reference), key)
            intervals = difference_cells(groups, bench.scores(setting, bench.reference), key, summary.FORM)
            means = _sorted(score_cells(groups, key, summary.FORM), (mean(group.values(key)) for group in groups))
            scores.append([*zip(means, _sorted(intervals, (x and x.mean for x in pairs)))])
        for i, method in enumerate(methods):
            cell = bench.cells[setting, method]
            failed = [record for record in cell if record.failed is not None]
            sound, unfinished = len(cell) - len(failed), summary.unfinished(cell)
            label = lambda key: summary.COSTS.get(key) or score_of(key).label
            by_seed = _of_seeds("Scores by seed", {r.seed: r.scores for r in cell}, lambda key: score_of(key).label)
            spent = _of_seeds("Cost by seed", {r.seed: r.cost for r in cell}, label)
            tables = (by_seed, of_clients(cell), spent, trajectory(cell))
            costs = (cost_of(cell, "upload_mb", "download_mb"), cost_of(cell, "cpu_seconds"))
            found.append(
                {
                    "number": len(found),
                    "setting": setting,
                    "setting_number": place,
                    "method": method,
                    "scores": [column[i] for column in scores],
                    "costs": [
                        Cell(f"{sound}" + (f", {len(failed)} failed" if failed else ""), sort=str(sound)),
                        *_sorted([Cell(summary.rounds(cell))], [cell[0].num_rounds]),
                        *_sorted([Cell(text_of(cost)) for cost in costs], costs),
                        Cell(unfinished, sort=unfinished.partition(" ")[0]),
                    ],
                    "chosen": summary.chosen(cell),
                    "trials": ", ".join(dict.fromkeys(str(record.trials) for record in cell)),
                    "failed": [f"Seed {r.seed} failed: {shorten(r.failed, _FULL)}" for r in failed],
                    "tables": [x for x in tables if x.rows],
                }
            )
    return found


def _sorted(cells: Iterable[Cell], values: Iterable[float | None]) -> list[Cell]:
    return [cell._replace(sort="" if x is None else repr(x)) for cell, x in zip(cells, values)]


def _of_seeds(title: str, values: Mapping[int, Mapping[str, float]], label: Callable[[str], str]) -> Table:
    there = dict.fromkeys(key for of in values.values() for key in of)
    keys = [*(key for key in SCORES if key in there), *(key for key in there if key not in SCORES)]
    table_rows = [(str(seed), [text_of(of.get(key)) for key in keys]) for seed, of in values.items() if of]
    return table(title, ["Seed", *map(label, keys)], table_rows)


def of_clients(cell: Sequence[BenchRecord]) -> Table:
    """Return the scores of each client by the first seed that has some."""
    first = next((record for record in cell if record.clients), None)
    if first is None:
        return Table("Clients", [], [])
    names = ("accuracy", "rmse", "sensitivity", "specificity", "test_nll", "coverage")
    used = [name for name in names if any(name in row for row in first.clients)]
    cells = lambda row: [f"{float(row.get('n', 0.0)):,.0f}", *(with_interval(row, name) for name in used)]
    table_rows = [(str(row["client"]), cells(row)) for row in first.clients[:MOST_CLIENTS]]
    heads = ["Client", "n", *(score_of(name).label for name in used)]
    return table(f"Clients on their own test rows, seed {first.seed}", heads, table_rows)


def trajectory(cell: Sequence[BenchRecord]) -> Table:
    """Return the points of a cell's trajectories, the mean over the seeds that have a round."""
    points: dict[float, list[Mapping[str, float]]] = {}
    for point in (point for record in cell for point in record.rounds):
        points.setdefault(point["round"], []).append(point)
    keys = list(dict.fromkeys(key for there in points.values() for point in there for key in point if key != "round"))
    means = lambda there: [mean([point[key] for point in there if key in point]) for key in keys]
    table_rows = [
        (f"{number:g}", [*map(text_of, means(there)), str(len(there))]) for number, there in sorted(points.items())
    ]
    head = ["Round", *(_POINT.get(key) or score_of(key).label for key in keys), "Seeds"]
    return table("Trajectory of the current model, mean over seeds", head, table_rows)


def plots(bench: Bench, numbers: Mapping[tuple[str, str], int]) -> list[Picture]:
    """Draw quality against bytes, NLL against time, and calibration against heterogeneity, as far as records have them.

    NLL of classes and of numbers have different units, so that each task has its own figure. `numbers` has the row of
    each setting and method. Below each figure stands how many cells it leaves out.
    """
    stated = {s: {r.about.get("task") for r in bench.records if r.setting == s} - {None} for s in bench.settings}
    # As the records say, or by their scores.
    numeric = {s for s, x in stated.items() if "regression" in x or (not x and "rmse" in bench.score_keys(s))}
    classes = set(bench.settings) - numeric
    sent = lambda cell: cost_of(cell, "upload_mb", "download_mb")
    time = lambda cell: cost_of(cell, "cpu_seconds")
    heterogeneity = lambda cell: mean([x for r in cell if (x := finite(r.about.get("heterogeneity"))) is not None])
    size, duration = "Upload and download (MB)", "Training time (CPU s)"
    found = []
    for key, chosen, across, label, title in (
        ("accuracy", classes, sent, size, "Accuracy against bytes"),
        ("rmse", numeric, sent, size, "RMSE against bytes"),
        ("test_nll", classes, time, duration, "NLL against time" + (", classification" if numeric else "")),
        ("test_nll", numeric, time, duration, "NLL against time, regression"),
        ("ece", classes, heterogeneity, "Heterogeneity of the clients", "Calibration against heterogeneity"),
    ):
        points, left_out = [], 0
        for (setting, method), number in numbers.items():
            if setting not in chosen:
                continue
            values = bench.scores(setting, method).values(key)
            x, y = across(bench.cells[setting, method]), mean(values)
            if x is None or y is None:
                left_out += 1
                continue
            words = f"{shorten(method)} in {shorten(setting)}: {score_of(key).label} {summary.mean_text(values)}"
            words += f"; {label} {summary.number(x)}"
            points.append(scatter.Point(x, y, bench.settings.index(setting), number, words))
        if points:
            caption = f"{len(points)} points." + (f" Not shown for lack of a value: {left_out}." if left_out else "")
            svg = scatter.figure(points, label, score_of(key).label, title)
            found.append(Picture(title, "", caption, svg=svg))
    return found


def ranked(bench: Bench) -> Iterator[Section]:
    """Yield the average ranks of each score with a direction, their figures, and reasons of scores without ranks."""
    columns: dict[str, dict[str, float]] = {}
    figures, reasons = [], []
    for label, found in summary.rankings(bench).items():
        if isinstance(found, str):
            reasons.append(found)
            continue
        columns[label] = dict(zip(found.methods, found.average))
        compared, result = summary.tested(found)
        bars = "Bars at the right join methods with average ranks that differ by less than CD."
        note = f"Dots: average ranks. {bars if compared and compared.groups else ''}".strip()
        drawn = Picture("", "", note, svg=ranks.figure(found, compared, f"Average ranks by {label}"))
        figures.append(Section(f"Ranks by {label}", f"{result}\n{summary.unranked(found)}", [drawn], is_folded=True))
    first = next(iter(columns.values()), {})
    methods = dict.fromkeys(m for column in columns.values() for m in column)
    cells = lambda m: [f"{column[m]:.2f}" if m in column else DASH for column in columns.values()]
    table_rows = [(shorten(m), cells(m)) for m in sorted(methods, key=lambda m: first.get(m, math.inf))]
    content = [table("Average ranks", ["Method", *columns], table_rows)] if table_rows else []
    how = "\n".join((*summary.HOW_TO_READ_RANKS, *reasons))
    yield Section("Ranks", how, tables=content, is_wide=True, anchor="ranks")
    yield from figures


def settings(bench: Bench) -> Table:
    """Return what the records state about each setting; all values where they differ between methods or seeds."""
    table_rows = []
    for setting in bench.settings:
        there = [record.about for record in bench.records if record.setting == setting]
        values = (dict.fromkeys(text(about[key]) for about in there if about.get(key) is not None) for key in _ABOUT)
        table_rows.append((setting, [Cell(shorten("; ".join(x) or DASH), is_words=True) for x in values]))
    return Table("Settings", ["Setting", *(key.replace("_", " ").capitalize() for key in _ABOUT)], table_rows)


def _markdown(bench: Bench) -> str:
    notes = "\n".join(f"- {note}" for note in (*summary.HOW_TO_READ, *summary.HOW_TO_READ_RANKS))
    reference = _plain(shorten(bench.reference))
    parts = [f"# Benchmark\n\n{summary.header(bench)} Reference: {reference}.\n\n{notes}\n", "## Ranks\n"]
    for label, found in summary.rankings(bench).items():
        parts += [f"### {_plain(label)}\n"] if label else []
        if isinstance(found, str):
            parts.append(f"{found}\n")
            continue
        rows = [(method, [f"{value:.3f}"]) for method, value in zip(found.methods, found.average)]
        said = " ".join([summary.tested(found)[1], summary.unranked(found)]).strip()
        parts.append(f"{_rows(table('', ['Method', 'Average rank'], rows))}\n{_plain(said)}\n")
    compared = [key for key in bench.score_keys() if score_of(key).sign][:1] if len(bench.settings) > 1 else []
    tables = [summary.across(bench, key) for key in compared]
    parts += [f"## {_plain(x.title)}\n\n{_rows(x)}" for x in tables if x.rows]
    for setting in bench.settings:
        parts.append(f"## {_plain(shorten(setting))}\n")
        tables = [made(bench, setting) for made in (summary.scores, summary.differences, summary.costs)]
        for each in (*tables, *(summary.at_budget(bench, setting, x) for x in summary.budgets(bench, setting))):
            if each.rows and len(each.head) > 1:
                parts.append(f"### {_plain(each.title)}\n\n{_rows(each)}")
    failed = summary.failures(bench)
    parts.append(f"## Failed cells\n\n{_rows(failed) if failed.rows else 'None.'}")
    return "\n".join(parts)


def _rows(content: Table) -> str:
    bold = lambda cell: f"**{_plain(cell.text)}**" if cell.is_best else _plain(cell.text)
    return to_markdown([content.head, *([_plain(shorten(name)), *map(bold, cells)] for name, cells in content.rows)])


def _plain(words: str) -> str:
    """Return text that Markdown shows as it is."""
    escaped = "".join(f"\\{letter}" if letter in "\\`*[]" else letter for letter in words)
    return escaped.replace("&", "&amp;").replace("<", "&lt;")


def _numeric(bench: Bench) -> list[list[str]]:
    """Return a line for each setting, method and quantity, with all digits."""
    found = [["setting", "method", "kind", "budget", "quantity", "seeds", "mean", "sd", "difference", "low", "high"]]
    for setting in bench.settings:
        methods = summary.methods_of(bench, setting)
        kinds: list[tuple[str, str, list[Repeated]]] = [
            ("score", "", [bench.scores(setting, m) for m in methods]),
            ("cost", "", [Repeated(m, {r.seed: r.cost for r in bench.cells[setting, m]}) for m in methods]),
        ]
        for limit in summary.budgets(bench, setting):
            points = [Repeated(m, summary.within(bench.cells[setting, m], limit)) for m in methods]
            kinds.append((f"at_{limit.unit}", repr(limit.amount), points))
        for kind, limited, groups in kinds:
            reference = next((group for group in groups if group.name == bench.reference), None)
            for group in groups:
                for key in dict.fromkeys(key for values in group.scores.values() for key in values):
                    line = [setting, group.name, kind, limited, key, str(len(group.seeds(key)))]
                    found.append([*line, *digits(group, reference, key)])
    return found
