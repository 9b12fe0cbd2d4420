"""The commands about many runs: runs, report."""

from __future__ import annotations

import pathlib
from typing import Any

import click

from tfp_bfl.errors import InvalidArgument

REPORT_EXAMPLES = """
\b
Examples:
  tfp-bfl report my_run
  tfp-bfl report my_run another_run a_third --output comparison.html
  tfp-bfl report fashion_run --ood mnist --output fashion.html
  tfp-bfl report my_sweep --output scores.tex
  tfp-bfl report my_sweep --output paper.tex --columns accuracy,nll \\
      --percent --row "rule=conflation as Conflation"
"""


@click.command("runs")
@click.argument("folder", metavar="[FOLDER]", default="runs")
def list_runs(folder: str) -> None:
    """List the runs in FOLDER (runs if none is named): what each is, how far it is, and its scores."""
    from tfp_bfl.app.many_runs.listing import described

    path = pathlib.Path(folder)
    if not path.is_dir():
        raise InvalidArgument(f"There is no folder {folder}: name the one that your runs are in.")
    lines = described(path)
    click.echo("\n".join(lines) if lines else f"There is no run in {folder}.")


@click.command("report", epilog=REPORT_EXAMPLES)
@click.argument("run_folders", metavar="RUN...", nargs=-1, required=True)
@click.option(
    "--output",
    metavar="FILE",
    default="report.html",
    help="The page, a new file; .csv, .md or .tex: the table of scores alone.  [default: report.html]",
)
@click.option(
    "--ood", metavar="DATASET", help="Out-of-distribution examples: a dataset's name, or a path to images or a table."
)
@click.option("--columns", metavar="NAMES", help="Columns of a table, such as accuracy,nll; all scores if not given.")
@click.option(
    "--digits",
    type=click.IntRange(0, 17),
    metavar="NUMBER",
    help="Decimals of a table; 4 if not given, of percentages 2.",
)
@click.option("--percent", is_flag=True, help="Accuracies and other shares of a table in percent.")
@click.option(
    "--row",
    "rows",
    metavar="ROW",
    multiple=True,
    help='A row of a table and its label, "rule=conflation as Conflation"; again for the next row.',
)
@click.option("--dataset", metavar="FILE.py:FUNCTION", help="The dataset of RUN where it is code, which is run.")
def report(
    run_folders: tuple[str, ...], output: str, ood: str | None, dataset: str | None, rows: Any, **table: Any
) -> None:
    """Write one page about a complete run, or several side by side; RUN may be a folder of many.

    Runs that differ in their seeds alone are a group: its scores are mean and standard deviation, and its curves those
    of its first seed.
    """
    from tfp_bfl.app.many_runs.listing import expand
    from tfp_bfl.app.one_run.records import read_record
    from tfp_bfl.app.options.own_model import trust_dataset

    folders = expand(run_folders)
    trust_dataset(dataset, [read_record(folder)[0].dataset for folder in folders])  # Before TensorFlow is imported.
    from tfp_bfl.app.many_runs.report import write
    from tfp_bfl.app.many_runs.score_tables import Style, parse_rows

    columns = table["columns"].split(",") if table["columns"] else None
    style = Style(columns, table["digits"], table["percent"], parse_rows(rows))
    click.echo(f"{write(folders, output, ood, style)} shows {len(folders)} run{'s' if len(folders) > 1 else ''}.")
