"""The commands about many runs: sweep, bench, tune, runs, report."""

import datetime
import functools
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import click

from tfp_bfl.app.options.command import Grouped, config_options
from tfp_bfl.app.options.refusals import read_yaml
from tfp_bfl.errors import InvalidArgument, counted, shown
from tfp_bfl.files import FIGURES, figure_formats
from tfp_bfl.files import name as path_name
from tfp_bfl.options import choices
from tfp_bfl.output import Record, in_formats

_MOST_JOBS = 1024
_jobs = click.option(
    "--jobs",
    type=click.IntRange(1, _MOST_JOBS),
    metavar="VALUE",
    help="Number of runs at once, each a process.  [default: 1]",
)
_listed = click.option("--list", "listed", is_flag=True, help="List the runs and their states, and run none.")
_WORDS = 'Name of a row in tables and figures, such as "FedAvg=algorithm=fed_opt"; again for the next row.'
_name = click.option("--name", metavar="NAME=ROW", multiple=True, help=_WORDS)
_figures = click.option(
    "--figures",
    metavar="FORMATS",
    callback=lambda context, option, value: value and figure_formats(value),
    help="Formats of figures, some of png,pdf,svg; all but of a report, which has none if not given.",
)


def parse_pairs(items: Sequence[str], option: str, mark: str) -> dict[str, str]:
    """Return the parts of texts before and after a mark, "rule=conflation as Conflation"; without it a text is both."""
    pairs: dict[str, str] = {}
    for item in items:
        first, _, second = (part.strip() for part in item.partition(mark))
        if first in pairs:
            raise InvalidArgument(f"{option} names {shown(first)} twice: name each once.")
        pairs[first] = second or first
    return pairs


def _check_listed(listed: bool, **given: object) -> None:
    for name in (name for name, value in given.items() if listed and value is not None):
        raise InvalidArgument(f"--list runs nothing: leave --{name} out.")


def _folder_of(output: object, what: str) -> pathlib.Path:
    if output is None:
        raise InvalidArgument(f"{what} needs a folder: give --output one, and the same one again to resume.")
    return pathlib.Path(str(output))


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
    first = ("varied", "seeds", "output", "jobs", "listed", "name", "dataset", "model", "algorithm", "rule", "rounds")


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
@_jobs
@_listed
@_name
@_figures
@click.option("--config", "config_file", metavar="FILE", help="Options of all runs, and name, in YAML; flags win.")
@click.option(
    "--progress", metavar="FORM", help="Progress of each run: phases, lines, json or none.  [default: phases]"
)
@click.option("--output", metavar="FOLDER", help="Folder of all runs, new or of the same sweep, which resumes.")
@functools.partial(config_options, without=("seed", "output"))
@in_formats
def sweep_runs(varied: Sequence[str], seeds: str, listed: bool, config_file: str | None, **given: Any) -> Record:
    """Run every combination of options by every seed, and write one page and tables over all runs."""
    from tfp_bfl.bench.sweep import parse_varied

    given = {name: value for name, value in given.items() if value not in (None, ())}
    settings = {name: given.pop(name) for name in ("jobs", "progress", "name", "figures") if name in given}
    _check_listed(listed, **settings)
    _folder_of(given.get("output"), "A sweep")
    return run_many(config_file, given, parse_varied(varied), seeds, listed=listed, **settings)


def run_many(
    config_file: str | None,
    given: Mapping[str, Any],
    varied: Sequence[dict[str, list[str]]],
    seeds: str,
    *,
    listed: bool = False,
    name: Sequence[str] = (),
    **settings: Any,
) -> Record:
    """Run a sweep and print its table; return what makes its record; further settings are as of `sweep`."""
    from tfp_bfl.bench.cells import list_cells, states
    from tfp_bfl.bench.runs import rows_of
    from tfp_bfl.bench.sweep import NAMES, make_cells, parse_seeds, sweep

    names = parse_pairs(name, "--name", "=") or (read_yaml(config_file).get(NAMES) if config_file else None)
    if (progress := settings.get("progress")) is not None:
        choices.FORMS.check(progress)
        if progress == "bar":
            raise InvalidArgument("progress is bar, but many runs report in lines: give phases, lines or json.")
    options = {name: value for name, value in given.items() if name != "output"}
    cells = make_cells(config_file, options, varied, parse_seeds(seeds))
    output = given.get("output") or f"runs/seeds-{datetime.datetime.now():%Y%m%d-%H%M%S}"
    if listed:
        list_cells(cells, pathlib.Path(output))
        return lambda: {"folder": str(output), "listed": states(cells, pathlib.Path(output))}
    folder = sweep(cells, output, names=names, **settings)
    click.echo((folder / "results.md").read_text(encoding="utf-8"), nl=False)
    click.echo(f"{folder / 'report.html'} shows the {len(cells)} runs; results.csv has every score.")
    return lambda: {"folder": str(folder), "runs": rows_of([folder / name for name in cells])}


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
@_jobs
@click.option("--only", metavar="TEXT", default="", help="Run only cells with this text in SETTING/METHOD/seed-SEED.")
@_listed
@_figures
@click.option("--tracker", metavar="NAME", help="Tracker that logs rounds and scores, as of run.")
@click.option("--trust-code", is_flag=True, help="Execute the code that CONFIG names as FILE.py:FUNCTION.")
@in_formats
def bench(config: str, output: str | None, only: str, listed: bool, trust_code: bool, **given: Any) -> Record:
    """Run every method of the YAML file CONFIG in every setting, tuned alike, and write one page over all."""
    from tfp_bfl.app.one_run.trackers import check as check_tracker
    from tfp_bfl.bench.cells import states
    from tfp_bfl.bench.plan import read_plan
    from tfp_bfl.bench.program import CELLS, cells_of, reports, run_bench

    _check_listed(listed, **given)
    folder = _folder_of(output or ("runs/bench" if listed else None), "A benchmark")
    check_tracker(tracker := given["tracker"])
    plan = read_plan(config, trust=trust_code)
    records = run_bench(plan, folder, jobs=given["jobs"] or 1, only=only, listed=listed, tracker=tracker)
    if listed:
        names = [cell.name for cell in cells_of(plan) if only in cell.name]
        return lambda: {"folder": str(folder), "listed": states(names, folder / CELLS)}
    from tfp_bfl.bench.page import write_page, write_tables
    from tfp_bfl.bench.reading import read

    # With --only the reference may have no records yet.
    present = plan.reference if any(x.method == plan.reference for x in read(folder)) else None
    with reports(folder):
        write_tables(folder, present, given["figures"] or FIGURES)
        page = write_page(folder, folder / "index.html", present)
    click.echo(f"{path_name(page)} shows the cells of {path_name(records)}; results.md and .csv hold the tables.")
    lines = lambda: records.read_text(encoding="utf-8").splitlines()
    return lambda: {"folder": str(folder), "cells": [json.loads(line) for line in lines()]}


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
@click.option(
    "--trials",
    type=click.IntRange(1, 1000),
    metavar="VALUE",
    default=8,
    help="Number of trials, the first with defaults.  [default: 8]",
)
@click.option(
    "--score",
    type=click.Choice(["nll", "accuracy", "rmse"]),
    default="nll",
    help="Score of held-out rows.  [default: nll]",
)
@click.option(
    "--share",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    metavar="VALUE",
    default=0.2,
    help="Share of each client's training examples that trials hold out.  [default: 0.2]",
)
@click.option("--config", "config_file", metavar="FILE", help="Options of all trials from a YAML file; flags win.")
@click.option("--output", metavar="FOLDER", help="Folder of the trials, new or of the same trials, which resume.")
@functools.partial(config_options, without=("output", "hold_out"))
@in_formats
def tune(spaces: Sequence[str], share: float, config_file: str | None, output: str | None, **given: Any) -> Record:
    """Choose options by trials on held-out training examples, and write the best as a configuration.

    The test set is not used. FOLDER has trials.jsonl, a line a trial, and best.yaml, a configuration of `tfp-bfl run`.
    """
    from tfp_bfl.bench.tuning import tune_run

    folder = _folder_of(output, "A search")
    settings: dict[str, Any] = {"trials": given.pop("trials"), "score": given.pop("score"), "hold_out": share}
    options = {name: value for name, value in given.items() if value is not None}
    lines, found = tune_run(folder, config_file, options, spaces, **settings)
    click.echo("\n".join(lines))
    return lambda: {"folder": str(folder), **found._asdict()}


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
@in_formats
def list_runs(folder: str) -> Record:
    """List the runs in FOLDER (runs if none is named): what each is, how far it is, and its scores."""
    from tfp_bfl.bench.runs import described, in_lines

    path = pathlib.Path(folder)
    if not path.is_dir():
        raise InvalidArgument(f"There is no folder {folder}: name the one that your runs are in.")
    found = described(path)
    click.echo(in_lines(found) if found else f"There is no run in {folder}.")
    return lambda: {"folder": folder, "runs": found}


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
@click.option("--interval", is_flag=True, help="95 % intervals of a table's means in place of standard deviations.")
@click.option("--caption", metavar="TEXT", help="Caption of a table of LaTeX, before the note on its numbers.")
@click.option("--label", metavar="LABEL", help="Label of a table of LaTeX, such as tab:rules.")
@click.option(
    "--row",
    "rows",
    metavar="ROW",
    multiple=True,
    help='A row of a table and its label, "rule=conflation as Conflation"; again for the next row.',
)
@_name
@_figures
@click.option("--dataset", metavar="FILE.py:FUNCTION", help="The dataset of RUN where it is code, which is run.")
@in_formats
def report(run_folders: tuple[str, ...], output: str, dataset: str | None, **given: Any) -> Record:
    """Write one page about a complete run, or several side by side; RUN may be a folder of many.

    Runs that differ in their seeds alone are a group: its scores are mean and standard deviation, and its learning
    curve that of the mean with its interval.
    """
    from tfp_bfl.app.one_run.records import read_record
    from tfp_bfl.app.options.own_model import trust_dataset
    from tfp_bfl.bench.runs import expand, rows_of

    folders = expand(run_folders)
    trust_dataset(dataset, [read_record(folder)[0].dataset for folder in folders])  # Before TensorFlow is imported.
    from tfp_bfl.bench import reports

    rows, names = parse_pairs(given["rows"], "--row", " as "), parse_pairs(given.pop("name"), "--name", "=")
    given |= {"columns": given["columns"] and given["columns"].split(","), "rows": rows}
    page = reports.report(folders, output, names=names, **given)
    click.echo(f"{page} shows {counted(len(folders), 'run')}.")
    return lambda: {"report": str(page), "runs": rows_of(folders)}
