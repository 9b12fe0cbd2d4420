"""The commands about many runs: sweep, runs."""

from __future__ import annotations

import datetime
import functools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import click

from tfp_bfl.app.options.command import MOST_JOBS, Grouped, config_options, whole_number
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.options import choices

SWEEP_EXAMPLES = """
\b
Examples:
  tfp-bfl sweep --vary rule=linear_pool,conflation --seeds 0..4 --output rules
  tfp-bfl sweep --output both --seeds 0..4 \\
      --vary "rule=linear_pool,conflation or algorithm=fed_opt,fed_prox \\
      or algorithm=my.py:mine batch-size=16"
  tfp-bfl sweep --vary learning-rate=1e-3,1e-2 --vary local-epochs=1,5 \\
      --rounds 20 --jobs 2 --output rates
  tfp-bfl sweep ... --list           only list the runs, and which are done
  tfp-bfl report rules --output rules.tex

\b
The same command resumes the sweep.
"""


class _Sweep(Grouped):
    first = ("varied", "seeds", "output", "jobs", "listed", "dataset", "model", "algorithm", "rule", "rounds")


@click.command("sweep", cls=_Sweep, epilog=SWEEP_EXAMPLES)
@click.option(
    "--vary",
    "varied",
    metavar="NAME=VALUES",
    multiple=True,
    help="An option and its values, with commas between them (semicolons where values hold commas); again for another: "
    "every combination. 'A or B' in one: the runs of A, and the runs of B.",
)
@click.option("--seeds", metavar="SEEDS", default="0", help="Seeds of the runs, as 0..4 or 0,1,7.  [default: 0]")
@click.option("--jobs", metavar="VALUE", default="1", help="Number of runs at once, each a process.  [default: 1]")
@click.option("--list", "listed", is_flag=True, help="List the runs and their states, and run none.")
@click.option("--config", "config_file", metavar="FILE", help="Options of all runs from a YAML file; flags win.")
@click.option(
    "--progress", metavar="FORM", help="Progress of each run: phases, lines, json or none.  [default: phases]"
)
@click.option("--output", metavar="FOLDER", help="Folder of all runs, new or of the same sweep, which resumes.")
@functools.partial(config_options, without=("seed", "output"))
def sweep_runs(
    varied: Sequence[str],
    seeds: str,
    jobs: str,
    listed: bool,
    config_file: str | None,
    progress: str | None,
    **given: object,
) -> None:
    """Run every combination of options by every seed, and write one page and tables over all runs."""
    from tfp_bfl.app.many_runs.sweep import parse_varied

    given = {name: value for name, value in given.items() if value is not None}
    if "output" not in given:
        raise InvalidArgument("A sweep needs a folder: give --output one, and the same one again to go on.")
    combinations = parse_varied(varied, given)
    number = whole_number(jobs, "jobs", MOST_JOBS)
    run_many(config_file, given, combinations, seeds, jobs=number, progress=progress, listed=listed)


def run_many(
    config_file: str | None,
    given: Mapping[str, Any],
    varied: Sequence[dict[str, list[str]]],
    seeds: str,
    *,
    jobs: int = 1,
    progress: str | None = None,
    listed: bool = False,
) -> None:
    """Run a sweep and print its table."""
    from tfp_bfl.app.many_runs.cells import list_cells
    from tfp_bfl.app.many_runs.sweep import make_cells, parse_seeds, sweep

    if progress is not None:
        choices.FORMS.check(progress)
        if progress == "bar":
            raise InvalidArgument("progress is bar, but many runs report in lines: give phases, lines or json.")
    options = {name: value for name, value in given.items() if name != "output"}
    cells = make_cells(config_file, options, varied, parse_seeds(seeds))
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    output = given.get("output") or f"runs/seeds-{now}"
    if listed:
        return list_cells(cells, pathlib.Path(output))
    folder = sweep(cells, output, jobs=jobs, progress=progress)
    click.echo((folder / "results.md").read_text(encoding="utf-8"), nl=False)
    click.echo(f"{folder / 'report.html'} shows the {len(cells)} runs; results.csv, .md and .tex hold the table.")


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
