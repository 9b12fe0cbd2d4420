"""The page of the published tables, from their files and the records: `python -m experiments.published --page`."""

from __future__ import annotations

import json
import pathlib
import textwrap
from typing import NamedTuple

import numpy as np

from experiments.claims import MARK
from experiments.published.programs import program_of, recorded, value_at
from experiments.published.tables import HERE, Cell, Score, Table, names, read
from experiments.records import Record
from tfp_bfl.files.tables import FORMATS

PAGE = HERE / "README.md"


class Found(NamedTuple):
    """The records of a cell's runs at the published size, and how many runs it has."""

    records: list[Record]
    runs: int


def found_of(table: Table) -> dict[str, Found]:
    """Return cell's name -> its records: of this study, or of another one with the same options."""
    if not table.study:
        return {cell.name: Found([], len(table.runs(cell))) for cell in table.cells}
    program, sides = program_of(table.study, HERE), [recorded(x, HERE.parent) for x in ("published", table.study)]
    found = {}
    for cell in table.cells:
        records = []
        for options in table.runs(cell):
            name, wanted = program.name_of(options), json.loads(json.dumps(program.prepare(options)))
            same = (side[name] for side in sides if name in side and side[name]["options"] == wanted)
            records += [record for record in same if "failed" not in record][:1]
        found[cell.name] = Found(records, len(table.runs(cell)))
    return found


def values_of(table: Table, cell: Cell, score: Score, records: list[Record]) -> list[float]:
    """Return a score of each run in the published unit."""
    path = score.path.format(method=cell.method)
    return [(record[path] if path in record else value_at(record, path)) / score.unit for record in records]


def ours(table: Table, cell: Cell, score: Score, found: dict[str, Found]) -> str:
    """Return mean and standard deviation of a score over the runs, empty without one."""
    values = values_of(table, cell, score, found[cell.name].records)
    if beside := score.error_of or score.times_below:
        other = next(x for x in table.cells if (x.row, x.column) == (beside, cell.column))
        reference = values_of(table, other, score, found[other.name].records)
        if not values or not reference or other == cell:
            return ""
        mean, its = np.mean(values), np.mean(reference)
        return f"{abs(mean - its) / abs(its) if score.error_of else its / mean:.2g}"
    spread = f" ± {np.std(values, ddof=1):.{score.digits}f}" if len(values) > 1 else ""
    return f"{np.mean(values):.{score.digits}f}{spread}" if values else ""


def state_of(table: Table, found: dict[str, Found]) -> list[str]:
    """Return the row of a table in the list of all."""
    done = sum(bool(x.records) for x in found.values())
    numbers = sum(x is not None for cell in table.cells for x in cell.published.values())
    state = f"{done} of {len(table.cells)}" if table.study else "no program yet"
    return [f"`{table.name}`", table.title, table.conditions["data"], str(numbers), state]


def overview() -> list[list[str]]:
    """Return the list of all tables."""
    rows = [state_of(table, found_of(table)) for table in map(read, names())]
    return [["table", "what it shows", "data", "published numbers", "cells with our number"], *rows]


def listing() -> str:
    """Return the list of all tables for the console."""
    return FORMATS[".md"](overview())


def beside(table: Table, found: dict[str, Found]) -> list[list[str]]:
    """Return published and own numbers of the cells that have one of ours."""
    head = ["cell", *(f"{name}, {whose}" for name in table.scores for whose in ("published", "ours")), "runs"]
    rows = []
    for cell in table.cells:
        if not found[cell.name].records:
            continue
        numbers: list[str] = []
        for name, score in table.scores.items():
            number = cell.published[name]
            numbers += ["" if number is None else f"{number:g}", ours(table, cell, score, found)]
        rows.append([cell.name, *numbers, f"{len(found[cell.name].records)} of {found[cell.name].runs}"])
    return [head, *rows]


def folded(text: str, indent: str = "") -> str:
    """Return a paragraph in lines of the pages' width."""
    return textwrap.fill(text, 118, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def sections() -> str:
    """Return a section for each table: conditions, what is missing, and the cells that have a number of ours."""
    parts = []
    for table in map(read, names()):
        found = found_of(table)
        facts = [*table.conditions.items(), *(("missing", text) for text in table.missing)]
        lines = [f"### {table.name}", "", folded(f"{table.title}. {table.source}."), ""]
        lines += [folded(f"- **{name}**: {text}", "  ") for name, text in facts]
        if any(x.records for x in found.values()):
            lines += ["", FORMATS[".md"](beside(table, found)).rstrip()]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def filled(text: str) -> str:
    """Return the page with its marked parts as of the files and the records."""
    made = {"overview": lambda: FORMATS[".md"](overview()), "sections": sections}
    return MARK.sub(lambda m: f"<!-- table: {m[1]} -->\n{made[m[1]]()}<!-- /table -->", text)


def fill_page(page: pathlib.Path = PAGE) -> None:
    """Write the generated parts into the page."""
    page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
