"""The command of a study: its cells, which of them, and where. `tfp_bfl.bench.cells` runs them."""

from __future__ import annotations

import functools
import json
import pathlib
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import click

from experiments.records import Record, keep_records, read_records
from tfp_bfl.bench.cells import (
    SUMMARY,
    Options,
    Work,
    check_cells,
    forget_models,
    is_done,
    list_cells,
    options_in,
    read_summary,
    run_cells,
    use_threads,
)
from tfp_bfl.errors import InvalidArgument

Cell = dict[str, Any]


def run_study(
    every: Mapping[str, Options],
    only: str,
    output: pathlib.Path,
    work: Work,
    describe: Callable[[dict[str, Any]], str],
    *,
    listed: bool,
    tables_only: bool = False,
    jobs: int = 1,
    threads: int | None = None,
    held: Callable[[pathlib.Path], Options | None] = options_in,
    goes_on: bool = False,
) -> None:
    """List the cells of a study, or run those that are not done.

    Args:
      every: name -> options of each cell.
      only: what a cell's name must hold.
      output: the folder of their folders.
      work: (folder, options) -> None; writes the summary last.
      describe: summary -> a line for the console.
      listed: only list the cells.
      tables_only: run nothing.
      others: of `tfp_bfl.bench.cells.run_cells` and `check_cells`.

    Raises:
      UsageError: no cell has such a name.
      InvalidArgument: a folder holds a cell of other options.
    """
    chosen = {name: options for name, options in every.items() if only in name}
    if not chosen:
        raise click.UsageError(f"No cell's name holds {only!r}: --list shows the names.")
    check_cells(chosen, output, held)
    if listed:
        list_cells(chosen, output)
    elif not tables_only:
        run_cells(chosen, output, work, describe, jobs=jobs, threads=threads, goes_on=goes_on)


class Study(NamedTuple):
    """The arguments of a study's command.

    Fields:
      only: what a cell's name must hold.
      listed: only list the cells.
      tables_only: run nothing.
      jobs, threads: as of `tfp_bfl.bench.cells.run_cells`.
      output: the folder of the cells' folders.
      results: the folder of its tables.
      missing: leave out cells that have a record there.
    """

    only: str
    listed: bool
    tables_only: bool
    jobs: int
    threads: int | None
    output: pathlib.Path
    results: pathlib.Path
    missing: bool = False

    def run(
        self, every: Mapping[str, Options], work: Work, describe: Callable[[dict[str, Any]], str], **options: Any
    ) -> None:
        """Call `run_study` with these cells; options: `held` and `goes_on`."""
        if self.missing:
            recorded = read_records(self.results)
            asked, every = every, {name: cell for name, cell in every.items() if name not in recorded}
            if not any(self.only in name for name in every) and any(self.only in name for name in asked):
                click.echo("No cell is missing.")
                return
        given = {"listed": self.listed, "tables_only": self.tables_only, "jobs": self.jobs, "threads": self.threads}
        run_study(every, self.only, self.output, work, describe, **given, **options)

    def records(
        self, every: Mapping[str, Options], kept: Callable[[pathlib.Path], Record] = read_summary
    ) -> dict[str, Record]:
        """Return the records of these cells, from the results and, of those that are done, anew from their folders.

        Args:
          every: name -> options of each cell.
          kept: folder -> record of a complete cell, shorter than a long summary.
        """
        folders = {name: self.output / name for name in every}
        found = {name: kept(folder) for name, folder in folders.items() if is_done(folder)}
        return keep_records(self.results, found, every)

    def of_size(self, size: str) -> Study:
        """Return the study in folders of a size's own."""
        return self._replace(output=self.output / size / "cells", results=self.results / size)

    def cells_of(self, tables: Mapping[str, Iterable[Cell]], name: Callable[[Cell], str]) -> dict[str, dict[str, Cell]]:
        """Return the cells of each table by name; only names that contain `only`."""
        named = {table: {name(cell): cell for cell in cells} for table, cells in tables.items()}
        return {table: {n: cell for n, cell in cells.items() if self.only in n} for table, cells in named.items()}


def study_options(
    study: str, results: pathlib.Path | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return the options of a study's command, which gets them as its first argument, a `Study`.

    Args:
      study: its name, and that of its folder under runs.
      results: where its tables are; None for where its cells are.
    """
    path = click.Path(path_type=pathlib.Path)
    count = click.IntRange(min=1)
    options = (
        click.option("--cell", "only", metavar="TEXT", default="", help="Text in the names of the cells to run."),
        click.option("--list", "listed", is_flag=True, help="List the cells and their states, and run none."),
        click.option("--missing", is_flag=True, help="Run only cells without a record in the results."),
        click.option(
            "--tables", "tables_only", is_flag=True, help="Write tables and figures of complete cells, and run none."
        ),
        click.option("--jobs", type=count, default=1, help="Number of cells that run at once, each in a process."),
        click.option("--threads", type=count, help="Number of threads of TensorFlow; default: its choice."),
        click.option("--output", type=path, default=pathlib.Path("runs") / study),
        click.option("--results", type=path, default=results),
    )

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def wrapped(**given: Any) -> None:
            given["results"] = given["results"] or given["output"]
            use_threads(given["threads"])  # Before anything starts TensorFlow.
            try:
                command(Study(**{name: given.pop(name) for name in Study._fields}), **given)
            except InvalidArgument as error:
                raise click.UsageError(str(error)) from None

        return functools.reduce(lambda decorated, option: option(decorated), reversed(options), wrapped)

    return decorate


def write_summary(folder: pathlib.Path, options: dict[str, Any], work: Callable[[], dict[str, Any]]) -> None:
    """Run the work of a cell and write its summary last; for a method that fails, write the reason."""
    started = time.perf_counter()
    try:
        found = work()
    except Exception as error:  # A failure of a method is its result: the study continues.
        found = {"failed": f"{type(error).__name__}: {error}"[:300]}
    forget_models()
    folder.mkdir(parents=True, exist_ok=True)
    summary = {"options": options, **found, "seconds": time.perf_counter() - started}
    (folder / SUMMARY).write_text(json.dumps(summary, indent=1) + "\n")
