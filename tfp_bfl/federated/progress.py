"""A bar of the rounds of a simulation, in a notebook or on the standard error."""

from __future__ import annotations

import contextlib
import html
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rich.console import Console

from tfp_bfl.display import progress_bar
from tfp_bfl.labels import duration, label_of

_SCORES = ("accuracy", "rmse", "test_nll", "nll")


@contextlib.contextmanager
def bar(rounds: int, done: int) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Show a bar for the time of the block; the function that it gives takes the metrics of each round.

    A notebook shows an element of HTML that is replaced after each round, for which no extension is needed.
    """
    ipython = sys.modules.get("IPython")
    if ipython is not None and hasattr(ipython.get_ipython(), "kernel"):
        from IPython.display import HTML, display

        started = time.perf_counter()
        shown = display(HTML(in_html(rounds, done, "")), display_id=True)

        def on_round(row: Mapping[str, Any]) -> None:
            number = int(row["round"])
            left = (rounds - number) * (time.perf_counter() - started) / max(1, number - done)
            words = f"{_scores(row)}, {duration(left)} left" if number < rounds else _scores(row)
            shown.update(HTML(in_html(rounds, number, words)))

        yield on_round
        return
    with progress_bar(Console(stderr=True), "rounds") as progress:
        task = progress.add_task("", total=rounds, completed=done, scores="")
        yield lambda row: progress.update(task, completed=int(row["round"]), scores=_scores(row))


def in_html(rounds: int, number: int, words: str) -> str:
    """Return the bar as HTML."""
    bar = f'<progress value="{number}" max="{rounds}" style="vertical-align: middle"></progress>'
    return f"<div>{bar} round {number}/{rounds} {html.escape(words)}</div>"


def _scores(row: Mapping[str, Any]) -> str:
    return ", ".join(f"{label_of(name)} {row[name]:.3f}" for name in _SCORES if isinstance(row.get(name), float))
