"""Run a benchmark: every cell once, side by side, with records that outlive an interruption."""

import contextlib
import functools
import json
import pathlib
import shutil
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TextIO

import click

from tfp_bfl.app.one_run.build import check_models
from tfp_bfl.app.one_run.records import in_short
from tfp_bfl.bench import cell as training
from tfp_bfl.bench import cells, reading, tuning
from tfp_bfl.bench.cells import Options
from tfp_bfl.bench.plan import Plan, is_name
from tfp_bfl.bench.reading import RECORDS as RECORDS
from tfp_bfl.bench.tuning import Chosen
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.files import name as path_name
from tfp_bfl.files.writing import locked, write_whole
from tfp_bfl.labels import duration

CELLS = "cells"
_TUNING = "tuning"
# Folder of a cell -> its record.
_Records = dict[pathlib.Path, dict[str, Any]]


class BenchCell(NamedTuple):
    """A method in a setting with a seed."""

    setting: str
    method: str
    seed: int

    @property
    def name(self) -> str:
        """Return the path of its folder."""
        return f"{self.setting}/{self.method}/seed-{self.seed}"


def cells_of(plan: Plan) -> list[BenchCell]:
    """Return the cells of a plan: the first seed of all methods first, so that processes tune different methods."""
    return [BenchCell(x, method, seed) for seed in plan.seeds for x in plan.settings for method in plan.methods]


def run_bench(
    plan: Plan,
    output: pathlib.Path,
    jobs: int = 1,
    only: str = "",
    listed: bool = False,
    tracker: str | None = None,
) -> pathlib.Path:
    """Run the remaining cells of a plan, write their records, and return the file of records.

    A cell that fails has a record with the reason. Repeated, the same command runs the cells that are not done; delete
    the folder of a cell to run it again, and that of its trials too if these failed. Methods that cannot serve a
    setting, such as personal models for numbers as labels, have no cells there. `only` is what the name of a cell,
    SETTING/METHOD/seed-SEED, must contain; `tracker` logs the rounds and the scores of each cell.
    """
    folder = output / CELLS
    chosen = {cell.name: cell for cell in cells_of(plan) if only in cell.name}
    if not chosen:
        raise InvalidArgument(f"No cell's name contains {only!r}: --list shows the names.")
    cells.check_output(output, "a benchmark", CELLS, RECORDS)
    # With `only` too: cells of another file would stand in the same tables.
    cells.check_cells({cell.name: options_of(plan, cell) for cell in cells_of(plan)}, folder)
    if listed:
        cells.list_cells(chosen, folder)
        return output / RECORDS
    if any(method.space for method in plan.methods.values()):
        tuning.check_optuna()
    for setting in dict.fromkeys(cell.setting for cell in chosen.values()):
        plan.check_task(setting)
    pairs = dict.fromkeys((cell.setting, cell.method) for cell in chosen.values())
    reasons = {pair: reason for pair in pairs if (reason := plan.why_not(*pair))}
    unserved = [f"{method} does not serve {x}: {reason}" for (x, method), reason in reasons.items()]
    served = [pair for pair in pairs if pair not in reasons]
    if not served:
        raise InvalidArgument(f"There is no cell to run: {unserved[0]}")
    every = {name: options_of(plan, cell) for name, cell in chosen.items() if cell[:2] in served}
    digests = plan.check_data(served)
    check_models(plan.named(served))
    for line in unserved:
        click.echo(line)
    for name, options in every.items():
        tuning.check_trials((folder / name).parent / _TUNING, trial_options(options))
    restored = restored_cells(output)
    cells.check_cells(every, folder, lambda path: restored.get(path, {}).get("options") or cells.options_in(path))
    check_same_data(output, restored or _records(output), digests)
    write_cells(output, restored)
    describe = _describe(sum(not cells.is_done(folder / name) for name in every))
    try:
        cells.run_cells(every, folder, functools.partial(run_cell, plan, tracker), describe, jobs=jobs)
    finally:
        write_records(output)
    there = _records(output)
    check_same_data(output, there, digests)  # A file may have been edited meanwhile.
    others = sorted({path.parent for path in there} - {(folder / cell.name).parent for cell in cells_of(plan)})
    if others:
        name = f"{others[0].parent.name}/{others[0].name}"
        click.echo(f"The tables also have cells of an earlier file, such as {name}: delete such folders.")
    return output / RECORDS


def reports(output: pathlib.Path) -> contextlib.AbstractContextManager[TextIO]:
    """Hold a lock while the block writes the files of all cells: several processes may run cells of one benchmark."""
    return locked(output / CELLS / ".lock")


def _records(output: pathlib.Path) -> _Records:
    """Return the records of all cells that are done, in the order of their names."""
    paths = sorted((output / CELLS).glob(f"*/*/seed-*/{cells.SUMMARY}"))
    return {path.parent: cells.read_summary(path.parent) for path in paths}


def check_same_data(output: pathlib.Path, records: _Records, digests: Mapping[str, str]) -> None:
    """Raise InvalidArgument if cells or trials that are done ran on other data than their settings have now.

    Those without a digest are not compared.
    """
    there = [(folder, record.get("about", {}).get("data")) for folder, record in records.items()]
    for folder in sorted((output / CELLS).glob(f"*/*/{_TUNING}")):
        there += [(folder, trial.get("about", {}).get("data")) for trial in tuning.read_trials(folder)]
    for folder, digest in there:
        setting = folder.parent.parent
        cells.check_data_of(folder, digest, digests.get(setting.name), setting)


def options_of(plan: Plan, cell: BenchCell) -> dict[str, Any]:
    """Return all that decides the record of a cell."""
    method = plan.methods[cell.method]
    return {
        **{name: str(x) for name, x in plan.values(cell.setting, cell.method).items()},
        "ood": plan.oods.get(cell.setting),
        "seed": cell.seed,
        "hold_out": plan.hold_out,
        "tuned": {name: str(space) for name, space in method.space.items()},
        "then": method.then,
        "then_options": plan.then_options(cell.setting, cell.method),
        **({"trials": plan.trials, "trial_seed": plan.trial_seed, "score": plan.score} if method.space else {}),
        "evaluations": plan.evaluations,
    }


def trial_options(options: Options) -> dict[str, Any]:
    """Return what decides the trials of a cell with these options."""
    return {name: x for name, x in options.items() if name not in ("seed", "evaluations", "ood")}


def run_cell(plan: Plan, tracker: str | None, folder: pathlib.Path, options: Options) -> None:
    """Tune the method if that was not done, train and measure it, and write the record.

    A failure of the method is a record too. A fault of the machine or of the program is raised.
    """
    setting, method, seed = folder.parent.parent.name, folder.parent.name, int(folder.name.rpartition("-")[2])
    record: dict[str, Any] = {"setting": setting, "method": method, "seed": seed}
    started = time.perf_counter()
    try:
        chosen = tuning.choose(plan, setting, method, folder.parent / _TUNING, trial_options(options))
        record |= {"chosen": chosen.values, "trials": chosen.trials, "tuning": chosen._asdict()}
        task = training.task_of(plan, setting, method, seed, chosen.values, folder)
        found = training.run_final(task._replace(config=task.config.model_copy(update={"tracker": tracker})))
        cost = {**found.cost, "trial_seconds": chosen.seconds}
        record |= found._replace(options=options, cost=cost)._asdict()
    except Exception as error:
        if not tuning.is_result(error):
            raise
        rounds = plan.config(setting, method, seed).rounds
        record |= {"options": options, "about": {"rounds": rounds}, "failed": tuning.reason(error)}
    finally:
        cells.forget_models()
    folder.mkdir(parents=True, exist_ok=True)
    cells.write_json(folder / cells.SUMMARY, {**record, "cell_seconds": time.perf_counter() - started})


def write_records(output: pathlib.Path) -> pathlib.Path:
    """Write the records of all cells that are done, one JSON object a line, in the order of their names."""
    lines = (json.dumps(record) + "\n" for record in _records(output).values())
    with reports(output):
        write_whole(output / RECORDS, "".join(lines))
    return output / RECORDS


def restored_cells(output: pathlib.Path) -> _Records:
    """Return the cells of a file of records that was copied into a new folder; {} without one.

    A damaged file, or a record without what its cell needs, is InvalidArgument.
    """
    path = output / RECORDS
    if (output / CELLS).exists() or not path.is_file() or not path.stat().st_size:
        return {}
    reading.read(output)  # Names the line that is damaged.
    found = {}
    for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
        if not line.strip():
            continue
        record = json.loads(line)
        # Its names become those of folders.
        is_cell = is_name(record["setting"]) and is_name(record["method"]) and record["seed"] >= 0
        tuned = record.get("tuning", {})
        fields = isinstance(tuned, dict) and isinstance(tuned.get("values", {}), dict) and set(tuned)
        if not (is_cell and isinstance(record.get("options"), dict) and fields in (set(), set(Chosen._fields))):
            raise InvalidArgument(
                f"Line {number} of {path_name(path)} is no record that a benchmark can resume from: give --output a "
                "new folder."
            )
        found[output / CELLS / BenchCell(record["setting"], record["method"], record["seed"]).name] = record
    return found


def write_cells(output: pathlib.Path, records: _Records) -> None:
    """Write the folder of cells, with restored cells and the results of their trials.

    All or none: the next command would take the records of some for those of all.
    """
    whole, draft = output / CELLS, output / f"{CELLS}.draft"
    if not records:
        whole.mkdir(parents=True, exist_ok=True)
        return
    shutil.rmtree(draft, ignore_errors=True)
    for path, record in records.items():
        folder = draft / path.relative_to(whole)
        folder.mkdir(parents=True)
        tuned, trials = record.get("tuning"), folder.parent / _TUNING
        if tuned and tuned["trials"] and not cells.is_done(trials):
            trials.mkdir(exist_ok=True)
            cells.write_json(trials / tuning.OPTIONS, trial_options(record["options"]))
            found = {"best" if name == "values" else name: x for name, x in tuned.items()}
            cells.write_json(trials / cells.SUMMARY, found)
        cells.write_json(folder / cells.SUMMARY, record)
    draft.rename(whole)


def _describe(left: int) -> Callable[[Mapping[str, Any]], str]:
    """Return a function that describes a cell in a line, with the time that the others will take."""
    started, ended = time.perf_counter(), 0

    def describe(summary: Mapping[str, Any]) -> str:
        nonlocal ended
        ended += 1
        # That of an average cell so far for each that remains.
        seconds = (time.perf_counter() - started) / ended * (left - ended)
        later = f"; about {duration(seconds)} left" if left > ended else ""
        if "failed" in summary:
            return f"failed: {summary['failed']}{later}"
        return f"{in_short({**summary['scores'], 'seconds': summary['cell_seconds']})}{later}"

    return describe
