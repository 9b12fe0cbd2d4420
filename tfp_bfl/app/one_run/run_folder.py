"""The folder of a run: its lock, the records of the rounds, its final content; and the progress that a run reports."""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
import os
import pathlib
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl.app.one_run import backbone, client_scores, records
from tfp_bfl.app.one_run.after import CLIENTS
from tfp_bfl.app.one_run.job import Job
from tfp_bfl.app.one_run.pipeline import Finished
from tfp_bfl.app.options.config import RunConfig
from tfp_bfl.app.options.own_model import names_code
from tfp_bfl.app.options.resolve import GAUSSIAN, POINT, resolved, title
from tfp_bfl.display import progress_bar
from tfp_bfl.errors import Error, InvalidArgument
from tfp_bfl.files import Path, write_whole
from tfp_bfl.files.arrays import write_arrays
from tfp_bfl.files.writing import begun, space
from tfp_bfl.labels import duration, label_of
from tfp_bfl.logs import write_native_lines
from tfp_bfl.options import choices
from tfp_bfl.plots import style

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
            write_native_lines(folder / "tensorflow.log")
            yield


def free_folder(config: RunConfig, output: Path | None) -> pathlib.Path:
    output = output or config.output
    if output is None:
        now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
        is_code = names_code(config.model)  # Which kind of weights it has is not known yet.
        gaussian = not is_code and config.kind in choices.VARIATIONAL.entries
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
def recorder(folder: pathlib.Path, config: RunConfig, status: Reporter, *hooks: OnRound) -> Iterator[OnRound]:
    """Return the function that records a round: metrics.jsonl and progress."""
    begun: list[int] = []
    with open(folder / "metrics.jsonl", "a+", encoding="utf-8") as lines:

        def on_round(row: Row) -> None:
            if not (folder / "config.yaml").exists():
                raise Error(f"The run folder {folder} is no longer there, so that the run ended: begin it anew.")
            number = records.place(config, row)
            if not begun:  # Lines of an interrupted run from this round on are removed; the last may be incomplete.
                lines.seek(0)
                remaining = lines.readlines()[: number - 1]
                lines.truncate(0)
                lines.writelines(remaining)
            begun[:] = [number]
            lines.write(json.dumps(row) + "\n")
            lines.flush()
            status.round({**row, "round": number})
            for hook in hooks:
                hook(row)

        yield on_round


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
    from tfp_bfl.export.info import with_scores  # It imports TensorFlow.

    config, test, summary = job.config, job.test, finished.summary()
    # Of a run that broke off while it wrote them.
    for half in ("figures", "saved_model"):
        shutil.rmtree(folder / half, ignore_errors=True)
    rows = "".join(json.dumps(row) + "\n" for row in result.rounds)
    (folder / "metrics.jsonl").write_text(rows, encoding="utf-8")
    info, network = with_scores(info, summary), backbone.model_of(config, job.train.image_shape)
    bfl.export.save(result.model, folder / "saved_model", info, unusual, network)
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
    results = records.results(folder.name, config, summary, result.rounds, predictions, test, job.clients, folder)
    figures, weights = bfl.plots.run_figures(results), records.weights_in(summary)
    bfl.plots.write_report(folder / "report.html", [results], title=title(config, weights), figures=figures)
    style.save_all(figures, folder / "figures", ["png"])
    # Last, and at once: that it is there says that the run is complete.
    write_whole(folder / "summary.json", json.dumps(summary, indent=2) + "\n")


# After so many seconds without a line one says what is still going on.
SILENT_SECONDS = 9.0
# What is over sooner need not be told.
_LAZY_SECONDS = 6.0
# Rounds that follow each other faster share a line.
_ROUND_SECONDS = 1.0
_RECENT = 10
# Scores in the line of a round, and their digits.
_SCORES = {"accuracy": "3f", "rmse": "4g", "test_nll": "3f"}


class Reporter:
    """Reporter of the progress of one run. Made by `reporter`."""

    def __init__(self, console: Console, form: str, rounds: int) -> None:
        self._console, self._form, self._rounds = console, form, rounds
        self._lock = threading.Lock()
        self._doing, self._since, self._told = "", time.monotonic(), time.monotonic()
        self._is_told, self._number = True, 0
        self._ends: list[float] = []
        self._bar: Progress | None = None
        self._announcement = ""

    def announce(self, words: str) -> None:
        """State what begins before whatever is said next: nothing where the run is refused until then."""
        with self._lock:
            self._announcement = words

    def phase(self, doing: str, lazily: bool = False) -> None:
        """State what begins; lazily only once it has gone on for a while."""
        with self._lock:
            self._doing, self._since, self._is_told = doing, time.monotonic(), not lazily
            if not lazily:
                self._say(doing, phase=doing)
            self._show(doing)

    def note(self, text: str) -> None:
        """Say something that begins no phase."""
        with self._lock:
            self._say(text, note=text)

    def round(self, row: Mapping[str, Any]) -> None:
        """State how a round went."""
        with self._lock:
            now, number = time.monotonic(), int(row["round"])
            self._ends = [*self._ends[-_RECENT:], now]
            self._number = number
            self._doing = f"round {number + 1}/{self._rounds}" if number < self._rounds else "saving the model"
            self._since, self._is_told = now, True
            scores = "  ".join(f"{_in_line(name)} {row[name]:.{x}}" for name, x in _SCORES.items() if name in row)
            self._show("round", scores)
            if self._form == "phases" or (now - self._told < _ROUND_SECONDS and number < self._rounds):
                return
            times = [duration(row["seconds"]), *self._left()]
            loss = "" if row.get("nll") is None else f"training NLL {row['nll']:.3f}"
            parts = [f"round {number}/{self._rounds}", scores, loss, *times]
            metrics = {name: x for name, x in row.items() if isinstance(x, (int, float))}
            self._say("  ".join(filter(None, parts)), round=number, rounds=self._rounds, metrics=metrics)

    def _left(self) -> list[str]:
        """Return the time that the rounds to come take, if they take as long as the last ones."""
        if len(self._ends) < 2 or self._number >= self._rounds:
            return []
        each = (self._ends[-1] - self._ends[0]) / (len(self._ends) - 1)
        return [f"{duration((self._rounds - self._number) * each)} left"]

    def _say(self, text: str, **event: object) -> None:
        announcement, self._announcement = self._announcement, ""
        if announcement:
            self._say(announcement, phase=announcement)
        self._told = time.monotonic()
        if self._form == "json":
            self._console.print(json.dumps(event), markup=False, highlight=False, soft_wrap=True)
        elif self._form in ("lines", "phases"):
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _show(self, doing: str, scores: str | None = None) -> None:
        """Show the text on the bar."""
        if self._bar is not None:
            (task,) = self._bar.task_ids
            fields: dict[str, Any] = {"doing": doing, **({} if scores is None else {"scores": scores})}
            self._bar.update(task, completed=self._number, **fields)

    def watch(self, ended: threading.Event) -> None:
        """State what is still going on, until the event."""
        while not ended.wait(0.2):
            with self._lock:
                now = time.monotonic()
                if not self._is_told and now - self._since > _LAZY_SECONDS:
                    self._is_told = True
                    self._say(self._doing, phase=self._doing)
                elif self._doing and now - self._told > SILENT_SECONDS:
                    seconds = now - self._since
                    self._say(f"{self._doing}: {duration(seconds)} so far", phase=self._doing, seconds=round(seconds))


@contextlib.contextmanager
def reporter(console: Console, form: str | None, rounds: int) -> Iterator[Reporter]:
    """Return a `Reporter` for the time of a run."""
    form = form or ("bar" if console.is_terminal else "lines")
    choices.FORMS.check(form)
    display, ended = Reporter(console, "none" if console.quiet else form, rounds), threading.Event()
    watcher = threading.Thread(target=display.watch, args=(ended,), name="tfp_bfl-progress", daemon=True)
    with contextlib.ExitStack() as stack:
        if form == "bar" and not console.quiet:
            bar = progress_bar(console, "{task.fields[doing]}")
            bar.add_task("rounds", total=rounds, doing="", scores="")
            display._bar = stack.enter_context(bar)
        watcher.start()
        stack.callback(watcher.join)
        stack.callback(ended.set)
        yield display


def _in_line(key: str) -> str:
    """Return a label inside a line: names such as NLL stay, words are in lower case."""
    label = label_of(key)
    return label if label.isupper() else label.lower()
