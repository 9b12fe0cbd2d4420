"""The commands of many runs that compare methods: sweep, bench, tune."""

from __future__ import annotations

import datetime
import functools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import click

from tfp_bfl.app.options.command import MOST_JOBS, Grouped, config_options, whole_number
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.files import name as path_name
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
    from tfp_bfl.bench.sweep import parse_varied

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
    from tfp_bfl.bench.cells import list_cells
    from tfp_bfl.bench.sweep import make_cells, parse_seeds, sweep

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


BENCH_EXAMPLES = """
\b
Examples:
  tfp-bfl bench methods.yaml --list
  tfp-bfl bench methods.yaml --output runs/methods --jobs 2
  tfp-bfl bench methods.yaml --output runs/methods --only heart/

\b
The same command resumes. The folder has records.jsonl, a line a
cell, results.md, results.csv and index.html, a page to sort and filter.
"""

TUNE_EXAMPLES = """
\b
Examples:
  tfp-bfl tune --space "learning-rate=0.001..0.3 log" --trials 8 \\
      --dataset heart_disease --rounds 20 --output tuned
  tfp-bfl tune --space "learning-rate=0.001..0.3 log" \\
      --space "optimizer=adam,momentum" --score accuracy --output tuned
  tfp-bfl run --config tuned/best.yaml
"""


@click.command("bench", epilog=BENCH_EXAMPLES)
@click.argument("config", metavar="CONFIG")
@click.option("--output", metavar="FOLDER", help="Folder of all cells, new or of the same benchmark, which resumes.")
@click.option("--jobs", metavar="VALUE", default="1", help="Number of cells at once, each a process.  [default: 1]")
@click.option("--only", metavar="TEXT", default="", help="Run only cells with this text in SETTING/METHOD/seed-SEED.")
@click.option("--list", "listed", is_flag=True, help="List the cells and their states, and run none.")
@click.option("--trust-code", is_flag=True, help="Execute the code that CONFIG names as FILE.py:FUNCTION.")
def bench(config: str, output: str | None, jobs: str, only: str, listed: bool, trust_code: bool) -> None:
    """Run every method of the YAML file CONFIG in every setting, tuned alike, and write one page over all."""
    from tfp_bfl.bench.plan import read_plan
    from tfp_bfl.bench.program import reports, run_bench

    number = whole_number(jobs, "jobs", MOST_JOBS)
    if output is None and not listed:
        raise InvalidArgument("A benchmark needs a folder: give --output one, and the same one again to go on.")
    plan = read_plan(config, trust=trust_code)
    folder = pathlib.Path(output or "runs/bench")
    records = run_bench(plan, folder, jobs=number, only=only, listed=listed)
    if not listed:
        from tfp_bfl.bench.page import write_page
        from tfp_bfl.bench.reading import read
        from tfp_bfl.bench.results import write_tables

        # With --only the reference may have no records yet.
        present = plan.reference if any(x.method == plan.reference for x in read(folder)) else None
        with reports(folder):
            write_tables(folder, present)
            page = write_page(folder, folder / "index.html", present)
        click.echo(f"{path_name(page)} shows the cells of {path_name(records)}; results.md and .csv hold the tables.")


class _Tune(Grouped):
    first = ("spaces", "trials", "score", "share", "output", "dataset", "model", "algorithm", "rule", "rounds")


@click.command("tune", cls=_Tune, epilog=TUNE_EXAMPLES)
@click.option(
    "--space",
    "spaces",
    metavar="NAME=VALUES",
    multiple=True,
    help="An option and the values among which trials choose: '0.001..0.3 log', '1..5', or values with commas between "
    "them; again for another option.",
)
@click.option("--trials", metavar="VALUE", default="8", help="Number of trials, the first with defaults.  [default: 8]")
@click.option("--score", metavar="NAME", default="nll", help="nll, accuracy or rmse of held-out rows.  [default: nll]")
@click.option(
    "--share",
    "share",
    metavar="VALUE",
    default="0.2",
    help="Share of each client's training examples that trials hold out.  [default: 0.2]",
)
@click.option("--config", "config_file", metavar="FILE", help="Options of all trials from a YAML file; flags win.")
@click.option("--output", metavar="FOLDER", help="Folder of the trials, new or of the same trials, which resume.")
@functools.partial(config_options, without=("output", "hold_out"))
def tune(
    spaces: Sequence[str],
    trials: str,
    score: str,
    share: str,
    config_file: str | None,
    output: str | None,
    **given: object,
) -> None:
    """Choose options by trials on held-out training examples, and write the best as a configuration.

    The test set is not used. FOLDER has trials.jsonl, a line a trial, and best.yaml, a configuration of `tfp-bfl run`.
    """
    from tfp_bfl.bench.one_method import tune_run

    if output is None:
        raise InvalidArgument("Trials need a folder: give --output one, and the same one again to go on.")
    options = {name: value for name, value in given.items() if value is not None}
    lines = tune_run(
        pathlib.Path(output),
        config_file,
        options,
        spaces,
        trials=whole_number(trials, "trials", 1000),
        score=score,
        share=share,
    )
    click.echo("\n".join(lines))
