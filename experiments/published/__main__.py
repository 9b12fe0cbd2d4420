"""Run a published table: `python -m experiments.published aggregation_2 --only "WS, train size, IID"`.

Without a table, lists all. At full size a run that is done is not run again, and its numbers stay in the records of
`results`. With --scale it is a rehearsal: a share of the rounds and of the examples, in a folder of its own.
"""

from __future__ import annotations

import json
import pathlib
from typing import Any

import click

from experiments.published import page, programs
from experiments.published.tables import HERE, Cell, Options, Table, read
from experiments.records import keep_records
from tfp_bfl import errors
from tfp_bfl.bench.cells import SUMMARY, check_cells, is_done, list_cells, read_summary, run_cells

RESULTS = HERE / "results"
NOISE = "noise_for.json"
# Cells of a rehearsal, spread over the table, unless --only names others.
MOST_REHEARSED = 3


@click.command(help=__doc__.split("\n\n")[0])
@click.argument("table", required=False)
@click.option("--scale", default=1.0, show_default=True, help="Share of rounds and examples, above 0 and at most 1.")
@click.option("--only", metavar="TEXT", help="Text in the names of the cells to run; all by default.")
@click.option("--list", "listed", is_flag=True, help="List the table's runs and their states, and run none.")
@click.option("--page", "writes_page", is_flag=True, help="Write the page from the records, and run nothing.")
@click.option("--output", type=click.Path(path_type=pathlib.Path), default=pathlib.Path("runs/published"))
def main(
    table: str | None, scale: float, only: str | None, listed: bool, writes_page: bool, output: pathlib.Path
) -> None:
    try:
        if writes_page:
            page.fill_page()
        elif table is None:
            click.echo(page.listing())
        else:
            run(read(table), scale, only, output / table / ("full" if scale == 1 else f"scale={scale:g}"), listed)
    except errors.InvalidArgument as error:
        raise click.UsageError(str(error)) from None
    except errors.Error as error:
        raise click.ClickException(str(error)) from None


def run(table: Table, scale: float, only: str | None, output: pathlib.Path, listed: bool = False) -> None:
    """Run the cells of a table that are not done, and print their scores beside the published ones."""
    if not 0 < scale <= 1:
        raise errors.InvalidArgument(f"--scale is {scale:g}, but must be above 0 and at most 1.")
    if not table.study:
        raise errors.InvalidArgument(f"{table.name} has no program yet: {table.missing[0]}")
    cells = table.chosen(only)
    if scale < 1 and only is None:
        cells = cells[:: -(-len(cells) // MOST_REHEARSED)]
    every, program = runs_of(table, cells, scale, output)
    check_cells(every, output, program.held)
    if listed:
        list_cells(every, output)
        return

    def work(folder: pathlib.Path, options: Options) -> None:
        if scale == 1:
            program.work(folder, options)
            return
        with programs.data_at_scale(scale, table.least_rows) as stood_for:
            program.work(folder, options)
        if reason := read_summary(folder).get("failed"):  # At full size it is a result.
            (folder / SUMMARY).unlink()
            raise errors.Error(reason)
        (folder / NOISE).write_text(json.dumps(stood_for))

    run_cells(every, output, work, describe, goes_on=program.held is not programs.options_in)
    done = {name: program.record_of(output / name) for name in every if is_done(output / name)}
    if scale < 1:
        echo_rehearsal(output, every)
    else:
        paths = {name: {p: programs.value_at(record, p) for p in paths_of(table)} for name, record in done.items()}
        keep_records(RESULTS, {name: {**x, "seconds": seconds_of(done[name])} for name, x in paths.items()}, every)


def runs_of(
    table: Table, cells: tuple[Cell, ...], scale: float, output: pathlib.Path
) -> tuple[dict[str, Options], programs.Program]:
    """Return name -> options of the runs of cells, one for cells that share it, and the study's program."""
    program = programs.program_of(table.study, output)
    every: dict[str, Options] = {}
    for cell in cells:
        for options in table.runs(cell)[: None if scale == 1 else 1]:
            options = programs.at_scale(table, options, scale)
            every[program.name_of(options)] = program.prepare(options)
    return every, program


def paths_of(table: Table) -> list[str]:
    """Return the paths of all scores of a table's cells."""
    return sorted({score.path.format(method=cell.method) for cell in table.cells for score in table.scores.values()})


def seconds_of(record: dict[str, Any]) -> float:
    """Return the seconds of a run."""
    return float(record.get("seconds", record.get("cell_seconds", 0.0)))


def describe(summary: dict[str, Any]) -> str:
    """Return the seconds of a run, or why it failed."""
    return f"failed, {summary['failed']}" if "failed" in summary else f"{seconds_of(summary):.0f} s"


def echo_rehearsal(output: pathlib.Path, every: dict[str, Options]) -> None:
    """Print what the numbers of a rehearsal are of."""
    noise = sorted({x for name in every for x in json.loads((output / name / NOISE).read_text())})
    click.echo(f"Noise stands for {' and '.join(noise)}, not prepared here." if noise else "All data are real.")
    click.echo("A rehearsal's scores are no results: the page does not have them.")


if __name__ == "__main__":
    main()
