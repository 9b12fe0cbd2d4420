"""Tables of the scores of several runs as CSV, Markdown and LaTeX: a row a group of runs, a column a score."""

from __future__ import annotations

import difflib
import pathlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tfp_bfl.app.one_run.records import read_record
from tfp_bfl.app.options.config import fields
from tfp_bfl.bench.runs import RunGroup, all_keys, grouped, numbers_in
from tfp_bfl.errors import InvalidArgument, lookup, shown
from tfp_bfl.files.tables import FORMATS, Rows, note_in, to_csv
from tfp_bfl.labels import ALIASES
from tfp_bfl.plots import repeats
from tfp_bfl.plots.page import Table
from tfp_bfl.plots.repeats import Repeated, ScoreForm
from tfp_bfl.plots.tables import text


class Style(NamedTuple):
    """Hold what a table shows: columns, None for every score; decimals, None for 4, of a percentage 2; whether shares
    are percentages; and row -> its label, in the order of the table. Other rows follow. A row is named by options that
    no other row has, such as "rule=conflation" or "algorithm=fed_opt,kind=deterministic".
    """

    columns: Sequence[str] | None = None
    digits: int | None = None
    percent: bool = False
    rows: Mapping[str, str] = {}


DEFAULT = Style()


def parse_rows(items: Sequence[str]) -> dict[str, str]:
    """Return row -> label of texts such as "rule=conflation as Conflation"; a row without a label has its own name."""
    labels: dict[str, str] = {}
    for item in items:
        row, _, label = (part.strip() for part in item.partition(" as "))
        if "=" not in row:
            raise InvalidArgument(f'--row is {shown(item)}, but must be such as "rule=conflation as Conflation".')
        if row in labels:
            raise InvalidArgument(f"--row names {shown(row)} twice: name each row once.")
        labels[row] = label or row
    return labels


def table_text(groups: Sequence[RunGroup], suffix: str, style: Style = DEFAULT) -> str:
    """Return the table of groups of runs in the format of a suffix of `files.tables.FORMATS`.

    In the default style a second table has the paired differences to the first group. In .csv all numbers stand with
    all digits, a line a group.

    Raises:
      InvalidArgument: there is no such column or row, a row is more than one, or the format has all digits.
    """
    if suffix == ".csv" and (style.digits is not None or style.percent):
        raise InvalidArgument("digits and percent are of .md and .tex, and a .csv holds all digits: leave them out.")
    rows = _in_order(groups, style.rows)
    keys = repeats.keys_of(rows) if style.columns is None else _columns(groups, style.columns)
    if suffix == ".csv":
        return to_csv(_numeric(rows, keys))
    table = repeats.scores(rows, keys, ScoreForm(style.digits, style.percent))
    numbers = sorted({len(group.scores) for group in rows})
    if style != DEFAULT and len(numbers) == 1:
        table = table._replace(rows=table.rows[1:])  # Without the number of seeds.
    parts = [FORMATS[suffix](_transposed(table))]
    if style == DEFAULT and any(repeats.compare(other, rows[0], key) for other in rows[1:] for key in keys):
        parts.append(FORMATS[suffix](_transposed(repeats.differences(rows, keys))))
    return "\n".join([*parts, note_in(suffix, _note(rows, numbers))])


def write_tables(folders: Sequence[pathlib.Path], output: pathlib.Path) -> None:
    """Write results.csv, .md and .tex of runs that are done, and runs.csv, into a folder. Old ones are replaced."""
    records = [read_record(folder) for folder in folders]
    groups = grouped(records)
    for suffix in FORMATS:
        path = (output / "results").with_suffix(suffix)
        path.write_text(table_text(groups, suffix), encoding="utf-8")
    keys = all_keys(groups)
    rows = [["run", "group", "seed", *keys]]
    for name, i in ((group.repeated.name, i) for group in groups for i in group.runs):
        found = numbers_in(records[i][1])
        values = [repr(found[key]) if key in found else "" for key in keys]
        rows.append([folders[i].name, name, str(records[i][0].seed), *values])
    (output / "runs.csv").write_text(to_csv(rows), encoding="utf-8")


def _note(rows: Sequence[Repeated], numbers: Sequence[int]) -> str:
    """Return what stands below a table: what its numbers are, and when a score is bold."""
    if numbers == [1]:
        return "One seed each." + (" Nothing is bold: comparisons need two seeds or more." if len(rows) > 1 else "")
    over = f"over {numbers[0]} seeds" if len(numbers) == 1 else "over the seeds"
    bold = (
        " Bold: better than every other row; the 95 % intervals of the paired differences over the same seeds "
        "(Student's t) exclude 0."
    )
    return f"Mean ± standard deviation {over}.{bold if len(rows) > 1 else ''}"


def _columns(groups: Sequence[RunGroup], columns: Sequence[str]) -> list[str]:
    known = all_keys(groups)
    names = [ALIASES.get(name.strip(), name.strip()) for name in columns]
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=2, cutoff=0.6)
            meant = f" (did you mean {' or '.join(map(repr, near))}?)" if near else ""
            raise InvalidArgument(f"No run has a column {shown(name)}{meant}: choose from {', '.join(known)}.")
    if len(set(names)) < len(names):
        raise InvalidArgument("columns names a column twice: name each of them once.")
    return names


def _in_order(groups: Sequence[RunGroup], rows: Mapping[str, str]) -> list[Repeated]:
    """Return the groups under their labels: those of `rows` first, in this order."""
    places = {_place(groups, row): label for row, label in rows.items()}
    if len(places) < len(rows):
        raise InvalidArgument("rows names a row twice: name each of them once.")
    first = [groups[i].repeated._replace(name=label) for i, label in places.items()]
    return [*first, *(group.repeated for i, group in enumerate(groups) if i not in places)]


def _place(groups: Sequence[RunGroup], row: str) -> int:
    """Return the number of the one group that a row names."""
    exact = [i for i, group in enumerate(groups) if group.repeated.name == row]
    if len(exact) == 1:
        return exact[0]
    wanted = dict(part.partition("=")[::2] for part in row.split(","))
    wanted = {name.strip().replace("-", "_"): value.strip() for name, value in wanted.items()}
    for name in wanted:
        lookup(fields(), name, "option")
    has = lambda options, name, value: name in options and value in (str(options[name]), text(options[name]))
    places = [i for i, g in enumerate(groups) if all(has(g.options, name, x) for name, x in wanted.items())]
    if len(places) != 1:
        names = "; ".join(groups[i].repeated.name for i in places or range(len(groups)))
        problem = f"is {len(places)} rows" if places else "is none"
        raise InvalidArgument(f"The row {shown(row)} {problem}: name one of {names}.")
    return places[0]


def _transposed(table: Table) -> Rows:
    """Return a line a group, as papers have it."""
    head = [table.title if table.title != "Results" else "", *(name for name, _ in table.rows)]
    columns = zip(*(cells for _, cells in table.rows))
    bold = lambda cell: f"**{cell.text}**" if cell.is_best else cell.text
    return [head, *([name, *map(bold, cells)] for name, cells in zip(table.head[1:], columns))]


def _numeric(groups: Sequence[Repeated], keys: Sequence[str]) -> Rows:
    parts = ("mean", "sd", "difference", "low", "high")
    rows = [["group", "seeds", *(f"{key}_{part}" for key in keys for part in parts)]]
    for group in groups:
        numbers = (repeats.digits(group, groups[0], key) for key in keys)
        rows.append([group.name, str(len(group.scores)), *(x for each in numbers for x in each)])
    return rows
