"""Tables and figures of groups of runs, for papers: a row a group and a column a score, as CSV, Markdown or LaTeX."""

import json
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.figure import Figure

from tfp_bfl.app.one_run import records as written
from tfp_bfl.app.options.config import fields
from tfp_bfl.bench.runs import RunGroup, columns_of, grouped
from tfp_bfl.errors import InvalidArgument, lookup, shown
from tfp_bfl.files.tables import FORMATS, Rows, note_in, to_csv, to_float, to_latex, to_markdown
from tfp_bfl.labels import ALIASES
from tfp_bfl.plots import score_tables, tables
from tfp_bfl.plots.learning import learning_comparison
from tfp_bfl.plots.page import Table
from tfp_bfl.plots.score_tables import Repeated
from tfp_bfl.plots.style import save_all


class Style(NamedTuple):
    """Hold what a table shows, as of `reports.report`; a row is named by options that no other row has."""

    columns: Sequence[str] | None = None
    digits: int | None = None
    percent: bool = False
    rows: Mapping[str, str] = {}
    interval: bool = False
    caption: str | None = None
    label: str | None = None


DEFAULT = Style()
_WIDEST = 100  # Letters of a line of a table without chosen columns.


def named(groups: Sequence[RunGroup], names: object) -> list[RunGroup]:
    """Return groups with the names of a mapping name -> row; each row must be one of them, without another name."""
    is_text = lambda x: isinstance(x, str) and x.strip() and x.isprintable()
    if not isinstance(names, Mapping) or not all(map(is_text, (*names, *names.values()))):
        raise InvalidArgument(f"name is {shown(names)}, but must map names to rows, such as FedAvg: algorithm=fed_opt.")
    given = {_place(groups, row): name for name, row in names.items()}
    every = [given.get(i, group.repeated.name) for i, group in enumerate(groups)]
    if len(given) < len(names) or len({*every}) < len(every):
        raise InvalidArgument(f"name is {shown({**names})}, but must give each row one name, and no two rows the same.")
    news = (group.repeated._replace(name=name) for group, name in zip(groups, every))
    return [g._replace(repeated=x, is_named=g.is_named or i in given) for i, (g, x) in enumerate(zip(groups, news))]


def table_text(groups: Sequence[RunGroup], suffix: str, style: Style = DEFAULT) -> str:
    """Return the table of groups of runs in the format of a suffix of `files.tables.FORMATS`.

    A second table has the paired differences to the first row. Without chosen columns each has as many scores as fit
    into `_WIDEST` letters. In .csv all numbers stand with all digits, a line a group. What is no column, or not one
    row, is refused.
    """
    if suffix == ".csv" and (style.digits is not None or style.percent or style.interval):
        raise InvalidArgument(
            "digits, percent and interval are of .md and .tex, and a .csv holds all digits: leave them out."
        )
    if suffix != ".tex" and (style.caption is not None or style.label is not None):
        raise InvalidArgument("caption and label are of LaTeX: give --output a file that ends in .tex.")
    if style.label is not None and not re.fullmatch(r"[\w:.-]+", style.label, re.ASCII):
        raise InvalidArgument(f"label is {shown(style.label)}, but must be of letters, digits and :.-_ as tab:rules.")
    labels = [*style.rows.values()]
    if len({*labels}) < len(labels):
        raise InvalidArgument("rows gives two rows the same label: give each row its own.")
    rows = [group.repeated for group in named(groups, dict(zip(labels, style.rows)))]
    rows.sort(key=lambda row: labels.index(row.name) if row.name in labels else len(labels))
    keys = score_tables.keys_of(rows)
    if style.columns is not None:
        known = dict.fromkeys(key for group in groups for own in group.repeated.scores.values() for key in own)
        keys = [ALIASES.get(name.strip(), name.strip()) for name in style.columns]
        for name in keys:
            lookup(known, name, "column", "in any run")
        if len(set(keys)) < len(keys):
            raise InvalidArgument("columns names a column twice: name each of them once.")
    if suffix == ".csv":
        columns = [f"{key}_{part}" for key in keys for part in ("mean", "sd", "difference", "low", "high")]
        of = lambda group: [x for key in keys for x in score_tables.digits(group, rows[0], key)]
        lines = [[group.name, str(len(group.scores)), *of(group)] for group in rows]
        return to_csv([["group", "seeds", *columns], *lines])
    form = score_tables.ScoreForm(style.digits, style.percent, style.interval)
    numbers = sorted({len(group.scores) for group in rows})
    found = [score_tables.scores(rows, keys, form, counts=len(numbers) > 1)]
    if any(score_tables.compare(other, rows[0], key) for other in rows[1:] for key in keys):
        found.append(score_tables.differences(rows, keys, form))
    parts = [FORMATS[suffix](_lines(table, style.columns is None)) for table in found]
    note = _note(rows, numbers, style.interval)
    if style.caption is not None or style.label is not None:
        caption = re.sub(r"(\w)$", r"\1.", (style.caption or "").strip())
        return to_float(parts, f"{caption} {note}".strip(), style.label)
    return "\n".join([*parts, note_in(suffix, note)])


def curves(groups: Sequence[RunGroup], folders: Sequence[pathlib.Path]) -> dict[str, Figure]:
    """Draw the learning curves of groups of runs, a line each, by the name of the figure; {} without rounds."""
    read = lambda run: written.read_json(run / "metrics.jsonl", "file of metrics", written.MOST_ROUNDS_BYTES)
    found = {group.repeated.name: [written.over_members(read(folders[i])) for i in group.runs] for group in groups}
    found = {name: seeds for name, seeds in found.items() if all(seeds)}
    return {"learning_curve": learning_comparison(found)} if found else {}


def write_tables(folders: Sequence[pathlib.Path], output: pathlib.Path, forms: Sequence[str] = ()) -> None:
    """Write results.csv, .md and .tex of runs that are done, runs.csv and figures into a folder; replace old ones."""
    records = [written.read_record(folder) for folder in folders]
    groups = grouped(records, folders)
    if forms:
        save_all(curves(groups, folders), output / "figures", forms)
    for suffix in FORMATS:
        path = (output / "results").with_suffix(suffix)
        path.write_text(table_text(groups, suffix), encoding="utf-8")
    columns = columns_of([folder.name for folder in folders], records, groups)
    as_text = lambda x: "" if x is None else x if isinstance(x, str) else json.dumps(x)
    rows = [[*columns], *([*map(as_text, row)] for row in zip(*columns.values()))]
    (output / "runs.csv").write_text(to_csv(rows), encoding="utf-8")


def _note(rows: Sequence[Repeated], numbers: Sequence[int], interval: bool) -> str:
    """Return what stands below a table: what its numbers are, and when a score is bold."""
    if numbers == [1]:
        return "One seed each." + (" Nothing is bold: comparisons need two seeds or more." if len(rows) > 1 else "")
    over = f"over {numbers[0]} seeds" if len(numbers) == 1 else "over the seeds"
    bold = (
        " Bold: better than every row that is not bold; the 95 % intervals of these paired differences over the same "
        "seeds (Student's t) exclude 0."
    )
    what = "half the width of its 95 % interval (Student's t)" if interval else "standard deviation"
    return f"Mean ± {what} {over}.{bold if len(rows) > 1 else ''}"


def _place(groups: Sequence[RunGroup], row: str) -> int:
    """Return the number of the one group that a row names."""
    exact = [i for i, group in enumerate(groups) if group.repeated.name == row]
    if len(exact) == 1:
        return exact[0]
    wanted = dict(part.partition("=")[::2] for part in row.split(","))
    wanted = {name.strip().replace("-", "_"): value.strip() for name, value in wanted.items()}
    for name in wanted:
        lookup(fields(), name, "option")
    has = lambda options, name, value: name in options and value in (str(options[name]), tables.text(options[name]))
    places = [i for i, g in enumerate(groups) if all(has(g.options, name, x) for name, x in wanted.items())]
    if len(places) != 1:
        names = "; ".join(groups[i].repeated.name for i in places or range(len(groups)))
        problem = f"is {len(places)} rows" if places else "does not exist"
        raise InvalidArgument(f"The row {shown(row)} {problem}: name one of {names}.")
    return places[0]


def _lines(table: Table, fits: bool) -> Rows:
    """Return a line a group, as papers have it; if it `fits`, with as many scores as `_WIDEST` letters hold."""
    head = [table.title if table.title != "Results" else "", *table.head[1:]]
    bold = lambda cell: f"**{cell.text}**" if cell.is_best else cell.text
    rows = [head, *([name, *map(bold, cells)] for name, cells in table.rows)]
    too_wide = lambda: any(len(x) > _WIDEST for form in (to_latex, to_markdown) for x in form(rows).splitlines())
    while fits and len(rows[0]) > 2 + ("Seeds" in head) and too_wide():
        rows = [row[:-1] for row in rows]
    return rows
