"""What is run once: a folder that is done once it holds a summary."""

from __future__ import annotations

import fcntl
import functools
import gc
import json
import pathlib
import shutil
import sys
import time
from collections.abc import Mapping
from typing import Any, Callable, Optional

import click

SUMMARY = "summary.json"


def is_done(folder: pathlib.Path) -> bool:
    """Whether the work of a folder was finished."""
    return (folder / SUMMARY).exists()


def run_once(folder: pathlib.Path, work: Callable[[], Any]) -> None:
    """Calls `work`, which fills the folder and writes its summary last, unless that is there.

    Of several processes at one folder the first works, and the others wait.
    """
    locks = folder.parent / ".locks"
    locks.mkdir(parents=True, exist_ok=True)
    with open(locks / folder.name, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_done(folder):
            shutil.rmtree(folder, ignore_errors=True)  # Half of it, from a run that was killed.
            work()


def read_cells(output: pathlib.Path) -> list[dict[str, Any]]:
    """The summaries that are there."""
    return [json.loads(path.read_text()) for path in sorted(output.glob(f"*/{SUMMARY}"))]


def run_cells(
    every: Mapping[str, dict[str, Any]],
    only: str,
    output: pathlib.Path,
    run_cell: Callable[[pathlib.Path, dict[str, Any]], None],
    told: Callable[[dict[str, Any]], str],
    *,
    listed: bool,
    tables_only: bool,
) -> None:
    """Runs the cells of a study that are not done, one after another, and tells of each in a line.

    Args:
      every: name -> options of each cell, which its summary holds.
      only: what a cell's name must hold.
      output: the folder of their folders.
      run_cell: (folder, options) -> None; writes the summary last.
      told: summary -> a line.
      listed: only list the cells.
      tables_only: run nothing.

    Raises:
      UsageError: no cell has such a name, or a folder holds a cell of other options.
    """
    chosen = {name: options for name, options in every.items() if only in name}
    if not chosen:
        raise click.UsageError(f"No cell's name holds {only!r}: --list shows the names.")
    for name, options in chosen.items():
        if is_done(output / name) and json.loads((output / name / SUMMARY).read_text())["options"] != options:
            raise click.UsageError(
                f"{output / name} is of another size or another version of the study: give another --output, or "
                "delete it."
            )
    for number, (name, options) in enumerate(chosen.items(), 1):
        folder = output / name
        done = is_done(folder)
        if listed:
            click.echo(f"{'done' if done else '    '}  {name}")
        if listed or tables_only or done:
            continue
        run_once(folder, lambda folder=folder, options=options: run_cell(folder, options))
        click.echo(f"{number}/{len(chosen)} {name}: {told(json.loads((folder / SUMMARY).read_text()))}")


def study_options(study: str, results: pathlib.Path) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The options of a study's command: only, listed, tables_only, threads, output and results.

    Args:
      study: its name, and that of its folder under runs.
      results: where its tables are.
    """
    path = click.Path(path_type=pathlib.Path)
    options = (
        click.option("--cell", "only", metavar="TEXT", default="", help="Only cells whose name holds this."),
        click.option("--list", "listed", is_flag=True, help="Only list the cells, and which are done."),
        click.option("--tables", "tables_only", is_flag=True, help="Only write tables and figures for what is done."),
        click.option("--threads", type=click.IntRange(min=1), help="Of TensorFlow; its own choice if not given."),
        click.option("--output", type=path, default=pathlib.Path("runs") / study),
        click.option("--results", type=path, default=results),
    )
    return lambda command: functools.reduce(lambda decorated, option: option(decorated), reversed(options), command)


def write_summary(folder: pathlib.Path, options: dict[str, Any], work: Callable[[], dict[str, Any]]) -> None:
    """Does a cell's work and writes its summary, last; of a method that fails, why."""
    started = time.perf_counter()
    try:
        found = work()
    except Exception as error:  # Whatever a method fails by is its result: the study goes on.
        found = {"failed": f"{type(error).__name__}: {error}"[:300]}
    if "tensorflow" in sys.modules:  # Models and graphs refer to each other in circles: memory would grow.
        sys.modules["tensorflow"].keras.backend.clear_session()
    gc.collect()
    folder.mkdir(parents=True, exist_ok=True)
    summary = {"options": options, **found, "seconds": time.perf_counter() - started}
    (folder / SUMMARY).write_text(json.dumps(summary, indent=1) + "\n")


def use_threads(number: Optional[int]) -> None:
    """Tells TensorFlow how many threads an operation has, and to run one operation at a time; None: its own choice."""
    if number:
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(number)
        tf.config.threading.set_inter_op_parallelism_threads(1)
