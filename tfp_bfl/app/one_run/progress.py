"""The progress of a run: a bar in a terminal, lines elsewhere."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from tfp_bfl.errors import lookup
from tfp_bfl.labels import duration, label_of

# name -> what is shown
FORMS = {
    "bar": "a bar, for terminals",
    "lines": "a line for each phase and round",
    "phases": "a line for each phase",
    "json": "as lines, each a JSON object",
    "none": "nothing",
}
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
    lookup(FORMS, form, "form of progress")
    display, ended = Reporter(console, "none" if console.quiet else form, rounds), threading.Event()
    watcher = threading.Thread(target=display.watch, args=(ended,), name="tfp_bfl-progress", daemon=True)
    with contextlib.ExitStack() as stack:
        if form == "bar" and not console.quiet:
            columns = (TextColumn("{task.fields[doing]}"), MofNCompleteColumn(), BarColumn(), TimeElapsedColumn())
            bar = Progress(*columns, TimeRemainingColumn(), TextColumn("{task.fields[scores]}"), console=console)
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
