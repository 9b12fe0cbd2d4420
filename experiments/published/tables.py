"""The files of the published tables, and what they ask for.

A file of `tables/` states a table's conditions, the options that its cells have for the program of a study, and the
published value of each cell. A cell is a row and a column; its options are those of the table, of its column and of
its row, the last one first. Several cells can be scores of one run, such as a method and its clients alone.
"""

from __future__ import annotations

import difflib
import functools
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import yaml

from tfp_bfl.errors import InvalidArgument

HERE = pathlib.Path(__file__).parent
FILES = HERE / "tables"
Options = dict[str, Any]
REQUIRED = ("title", "source", "conditions", "scores", "published")
PROGRAM = ("study", "seeds", "options", "rows", "columns", "methods", "scaled", "rehearsal", "least_rows")
FIELDS = (*REQUIRED, *PROGRAM, "missing")
CONDITIONS = ("data", "partition", "network", "optimizer", "rounds")


class Score(NamedTuple):
    """A published number of a cell.

    Fields:
      path: of the number in the record of a run, names with dots between; {method} is that of the row.
      unit: of the published number, such as 0.01 for per cent.
      error_of: the row from which the number's relative distance is taken; None for the number itself.
      times_below: the row of which the number is so many times below; None likewise.
      digits: of the published number behind the point.
    """

    path: str
    unit: float = 1.0
    error_of: str | None = None
    times_below: str | None = None
    digits: int = 3


class Cell(NamedTuple):
    """A cell of a table.

    Fields:
      row, column: its names.
      options: of the study's program, without a seed.
      method: what stands for {method} in paths.
      published: score -> published number; None for one that the source does not have.
    """

    row: str
    column: str
    options: Options
    method: str
    published: dict[str, float | None]

    @property
    def name(self) -> str:
        """Row and column."""
        return f"{self.row}, {self.column}" if self.column else self.row


class Table(NamedTuple):
    """A published table.

    Fields:
      name: of its file.
      title, source: in words.
      conditions: `CONDITIONS` -> what the source says, or what is ours where it is silent.
      study: the package in `experiments` with the program; "" if there is none yet.
      seeds: of the runs of each cell; () for a program that has its own.
      scores: name -> `Score`.
      cells: with a published number, in the order of the file.
      scaled: options that a rehearsal scales, besides the number of examples.
      rehearsal: options that a rehearsal has in their place.
      least_rows: of each dataset, in a rehearsal of any scale.
      missing: what the source, or this file, lacks.
    """

    name: str
    title: str
    source: str
    conditions: dict[str, str]
    study: str
    seeds: tuple[int, ...]
    scores: dict[str, Score]
    cells: tuple[Cell, ...]
    scaled: tuple[str, ...]
    rehearsal: Options
    least_rows: int
    missing: tuple[str, ...]

    def runs(self, cell: Cell) -> list[Options]:
        """Return the options of the runs of a cell."""
        return [{**cell.options, "seed": seed} for seed in self.seeds] or [cell.options]

    def chosen(self, only: str | None) -> tuple[Cell, ...]:
        """Return the cells whose names hold a text, and the rows that their scores are relative to."""
        found = [cell for cell in self.cells if only is None or only in cell.name]
        if not found:
            near = difflib.get_close_matches(only or "", [cell.name for cell in self.cells], 1, 0.0)
            raise InvalidArgument(f"No cell of {self.name} holds {only!r} in its name: one of them is {near[0]!r}.")
        beside = {x for score in self.scores.values() for x in (score.error_of, score.times_below)}
        columns = {cell.column for cell in found}
        return tuple(x for x in self.cells if x in found or (x.row in beside and x.column in columns))


def names() -> list[str]:
    """Return the names of all tables."""
    return sorted(path.stem for path in FILES.glob("*.yaml"))


@functools.cache
def read(name: str) -> Table:
    """Read a table by its name; InvalidArgument if there is none, or its file is not as it must be."""
    if name not in names():
        near = difflib.get_close_matches(name, names(), 3, 0.3) or names()
        raise InvalidArgument(f"There is no table {name!r}; near are {', '.join(near)}.")
    path = FILES / f"{name}.yaml"
    given = yaml.safe_load(path.read_text(encoding="utf-8"))
    wrong = [x for x in REQUIRED if x not in given] + [x for x in given if x not in FIELDS]
    if wrong or sorted(given["conditions"]) != sorted(CONDITIONS):
        raise InvalidArgument(f"{path.name} must have {', '.join(REQUIRED)}, with all of {', '.join(CONDITIONS)}.")
    scores = {score: Score(**facts) for score, facts in given["scores"].items()}
    return Table(
        name,
        *(given[x] for x in ("title", "source", "conditions")),
        given.get("study", ""),
        tuple(given.get("seeds", (0,))),
        scores,
        tuple(_cells(path.name, given, scores)),
        tuple(given.get("scaled", ())),
        given.get("rehearsal", {}),
        given.get("least_rows", 1),
        tuple(given.get("missing", ())),
    )


def _cells(file: str, given: Mapping[str, Any], scores: Mapping[str, Score]) -> list[Cell]:
    rows, columns = given.get("rows", {}), given.get("columns", {"": {}})
    methods, found = given.get("methods", {}), []
    for row, by_column in given["published"].items():
        for column, values in (by_column if isinstance(by_column, dict) else {"": by_column}).items():
            if (rows and row not in rows) or column not in columns or len(values) != len(scores):
                raise InvalidArgument(
                    f"{file}: {row!r}, {column!r} must be a row and a column with {len(scores)} scores."
                )
            options = {**given.get("options", {}), **columns[column], **(rows.get(row) or {})}
            published = dict(zip(scores, values))
            found.append(Cell(row, column, options, methods.get(row, row), published))
    return found
