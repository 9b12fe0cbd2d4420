"""The folder of a run: its lock, the records of the rounds, and its final content."""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
import os
import pathlib
import re
import shutil
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl.app.one_run import client_scores, ensembles, records
from tfp_bfl.app.one_run.progress import Reporter
from tfp_bfl.app.one_run.revise import CLIENTS
from tfp_bfl.app.options.config import RunConfig
from tfp_bfl.app.options.own_model import names_code
from tfp_bfl.app.options.resolve import GAUSSIAN, POINT, resolved, title
from tfp_bfl.errors import Error, InvalidArgument
from tfp_bfl.faces import Later
from tfp_bfl.files import write_whole
from tfp_bfl.files.arrays import write_arrays
from tfp_bfl.files.writing import begun, space
from tfp_bfl.options import choices

if TYPE_CHECKING:
    import tensorflow as tf

    from tfp_bfl.app.one_run.job import Job
    from tfp_bfl.app.one_run.pipeline import Finished
else:
    tf = Later("tensorflow")

# A figure's width.
FIGURE_PIXELS = 960
Row = dict[str, Any]
OnRound = Callable[[Row], None]


@contextlib.contextmanager
def owned(
    folder: pathlib.Path, config: RunConfig, settle: Callable[[RunConfig], RunConfig] = lambda config: config
) -> Iterator[None]:
    """Make the folder if it is new, and keep other processes out of it; `settle` fills in a record's defaults."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidArgument(
            f"The run folder {folder} can't be made ({error.strerror}): give --output another one."
        ) from None
    with open(folder / "config.yaml", "a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InvalidArgument(f"The run in {folder} is still going on in another process: wait for it.") from None
        if (folder / "summary.json").exists():
            raise InvalidArgument(f"Another process has just finished the run in {folder}: give --output a new folder.")
        file.seek(0)
        there = file.read()
        if not there:
            with begun(folder, remove=True):
                file.write(config.record())
                file.flush()
        elif there != config.record() and settle(records.config_in(folder)).record() != config.record():
            raise InvalidArgument(f"Another run has just begun in {folder}: give --output a new folder.")
        with space(folder):
            yield


def free_folder(config: RunConfig, output: str | pathlib.Path | None) -> pathlib.Path:
    output = output or config.output
    if output is None:
        now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
        is_code = names_code(config.model)  # Which kind of weights it has is not known yet.
        gaussian = not is_code and config.kind in choices.VARIATIONAL.forms()
        method = resolved(config, regression=False, weights=GAUSSIAN if gaussian else POINT).method
        name = "-".join([config.data_name, config.model_name, *([] if is_code else [str(config.kind)]), method, now])
        output = pathlib.Path("runs") / re.sub("[/:]", "-", name)
    folder = pathlib.Path(output)
    if os.path.lexists(folder):
        raise InvalidArgument(
            f"The run folder {folder} exists already: give --output a new one, nothing is overwritten."
        )
    return folder


@contextlib.contextmanager
def recorder(folder: pathlib.Path, config: RunConfig, status: Reporter, hook: OnRound | None) -> Iterator[OnRound]:
    """Return the function that records a round: metrics.jsonl, progress, TensorBoard events."""
    events = folder / "tensorboard"
    with space(events, writes=True):
        writer = tf.summary.create_file_writer(str(events)) if config.tensorboard else None
    begun: list[int] = []
    with open(folder / "metrics.jsonl", "a+", encoding="utf-8") as lines:

        def on_round(row: Row) -> None:
            if not (folder / "config.yaml").exists():
                raise Error(f"The run folder {folder} is no longer there, so that the run ended: begin it anew.")
            number = ensembles.place(config, row)
            if not begun:
                _cut_before(lines, number)
            begun[:] = [number]
            lines.write(json.dumps(row) + "\n")
            lines.flush()
            status.round({**row, "round": number})
            if hook:
                hook(row)
            if writer:
                with space(events, writes=True), writer.as_default(step=number):
                    for name, value in row.items():
                        if isinstance(value, (int, float)):
                            tf.summary.scalar(name, value)

        yield on_round
    if writer:
        with space(events, writes=True):
            writer.close()


def _cut_before(lines: TextIO, number: int) -> None:
    """Remove the lines of round `number` and later ones from an interrupted run; the last line may be incomplete."""
    lines.seek(0)
    remaining = lines.readlines()[: number - 1]
    lines.truncate(0)
    lines.writelines(remaining)


def write_results(
    folder: pathlib.Path,
    job: Job,
    final: object,
    result: bfl.federated.SimulationResult,
    finished: Finished,
    info: bfl.export.Info,
    apart: dict[str, np.ndarray] | None,
    unusual: bfl.evaluation.Unusual | None,
) -> None:
    """Write all metrics, predictions.npz, the SavedModel, the figures, the report that shows them, and the summary."""
    config, test, summary = job.config, job.test, finished.summary()
    # Of a run that broke off while it wrote them.
    for half in ("figures", "saved_model"):
        shutil.rmtree(folder / half, ignore_errors=True)
    rows = "".join(json.dumps(row) + "\n" for row in result.rounds)
    (folder / "metrics.jsonl").write_text(rows, encoding="utf-8")
    bfl.export.save(result.model, folder / "saved_model", info, unusual)
    if config.algorithm == "fl_swag" and not config.ensemble:
        settings = bfl.algorithms.swag.step.Product(None, config.diagonal_only, config.between_clients)
        bfl.algorithms.held.Held.of_stack(result.state.step, result.state.weights, settings).save(folder / CLIENTS)
    if config.algorithm == "partitioned_vi" and not config.ensemble:
        bfl.algorithms.held.factors_of(result.state, job.clients.sizes).save(folder / CLIENTS)
    predictions = records.predictions_of(final, records.truth(test))
    if apart:
        write_arrays(folder / records.HELD_OUT, apart, compressed=True)
    named = client_scores.named(config, test.owners)
    write_arrays(folder / "predictions.npz", {**predictions, **named}, compressed=True)
    results = records.results(folder.name, config, summary, result.rounds, predictions, test, job.clients)
    figures, weights = bfl.plots.run_figures(results), records.weights_in(summary)
    bfl.plots.write_report(folder / "report.html", [results], title=title(config, weights), figures=figures)
    (folder / "figures").mkdir()
    for name, figure in figures.items():
        figure.savefig(folder / "figures" / f"{name}.png", dpi=FIGURE_PIXELS / figure.get_figwidth())
    # Last, and at once: that it is there says that the run is complete.
    write_whole(folder / "summary.json", json.dumps(summary, indent=2) + "\n")
