"""The commands that compare methods: bench, tune."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Sequence

import click

from tfp_bfl.app.options.command import MOST_JOBS, Grouped, config_options, whole_number
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.files import name as path_name

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
    from tfp_bfl.app.bench.plan import read_plan
    from tfp_bfl.app.bench.program import reports, run_bench

    number = whole_number(jobs, "jobs", MOST_JOBS)
    if output is None and not listed:
        raise InvalidArgument("A benchmark needs a folder: give --output one, and the same one again to go on.")
    plan = read_plan(config, trust=trust_code)
    folder = pathlib.Path(output or "runs/bench")
    records = run_bench(plan, folder, jobs=number, only=only, listed=listed)
    if not listed:
        from tfp_bfl.app.bench.page import write_page
        from tfp_bfl.app.bench.reading import read
        from tfp_bfl.app.bench.results import write_tables

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
    from tfp_bfl.app.bench.one_method import tune_run

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
