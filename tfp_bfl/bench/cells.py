"""Cells: what is run once each, one after another or side by side. A folder is done once it holds a summary.

Arguments mean the same everywhere: `every` is name -> options of each cell, `output` the folder of the cells' folders.
What is not as it must be is `InvalidArgument`.
"""

import concurrent.futures
import functools
import gc
import json
import logging
import multiprocessing
import os
import pathlib
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import click

from tfp_bfl.app.one_run.records import SUMMARY as SUMMARY
from tfp_bfl.app.one_run.records import is_done as is_done
from tfp_bfl.errors import Error, InvalidArgument
from tfp_bfl.files import name as path_name
from tfp_bfl.files.code import failure, place_of
from tfp_bfl.files.writing import locked, write_whole
from tfp_bfl.logs import catch_native_lines
from tfp_bfl.machine import end_with, num_cores

ORDER = "runs.txt"  # Names the run folders of a sweep.

Options = Mapping[str, Any]
# (folder, options) -> what is not looked at; writes the summary last.
Work = Callable[[pathlib.Path, Any], Any]


def check_output(output: pathlib.Path, what: str, *marks: str) -> None:
    """Check that a folder is new, empty, or holds one of the files or folders that mark it, such as of "a sweep"."""
    is_new = not output.exists() or (output.is_dir() and not any(output.iterdir()))
    if not is_new and not any((output / x).exists() for x in marks):
        raise InvalidArgument(
            f"{path_name(output)} is no folder of {what}: give --output a new one, nothing is overwritten."
        )


def read_summary(folder: pathlib.Path) -> dict[str, Any]:
    """Return the summary of a folder that is done."""
    return read_written(folder / SUMMARY)


def read_written(path: pathlib.Path) -> dict[str, Any]:
    """Return the mapping in a JSON file of a cell."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):  # Bytes that are no text are a ValueError too.
        found = None
    if not isinstance(found, dict):
        raise _damaged(path)
    return found


def write_json(path: pathlib.Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file of a cell as a whole or not at all."""
    write_whole(path, json.dumps(content, indent=1) + "\n")


def _damaged(path: pathlib.Path) -> InvalidArgument:
    return InvalidArgument(
        f"The file {path_name(path)} is damaged: delete the folder {path_name(path.parent)}, and the same command "
        "fills it again."
    )


def run_once(folder: pathlib.Path, work: Callable[[], Any], goes_on: bool = False) -> None:
    """Call `work`, which fills the folder and writes its summary last, unless the summary is there.

    Of several processes at one folder the first works, and the others wait. With `goes_on` the work takes up what an
    earlier, broken attempt left; else that is deleted first.
    """
    with locked(folder.parent / ".locks" / folder.name):
        if not is_done(folder):
            if not goes_on:
                shutil.rmtree(folder, ignore_errors=True)
            work()


def options_in(folder: pathlib.Path) -> Options | None:
    """Return the options that a cell's summary holds; None of one that is not done."""
    if not is_done(folder):
        return None
    options = read_summary(folder).get("options")
    if not isinstance(options, dict):
        raise _damaged(folder / SUMMARY)
    return options


def check_cells(
    every: Mapping[str, Options], output: pathlib.Path, held: Callable[[pathlib.Path], Options | None] = options_in
) -> None:
    """Check that existing folders hold cells of the same options; `held` gives those of a folder, or None."""
    for name, options in every.items():
        there = held(output / name)
        if there is None:
            continue
        wanted = json.loads(json.dumps(options))  # As a summary gives them back.
        for key in sorted(key for key in {*there, *wanted} if there.get(key) != wanted.get(key)):
            raise InvalidArgument(
                f"{output / name} is of other options ({key} {there.get(key)!r}, now {wanted.get(key)!r}): give "
                "another --output, or delete that folder."
            )


def check_data_of(folder: pathlib.Path, there: object, now: str | None, whole: pathlib.Path) -> None:
    """Check that a cell ran on the data that its files hold now, by digests, if both are known; `whole` has all cells
    of these data.
    """
    if there is not None and now is not None and there != now:
        raise InvalidArgument(
            f"{path_name(folder)} ran on other data than its files hold now: restore the files, give another --output, "
            f"or delete {path_name(whole)} to run all of it again."
        )


def list_cells(names: Iterable[str], output: pathlib.Path) -> None:
    """Print a line for each cell, and whether it is done."""
    for cell in states(names, output):
        click.echo(f"{'done' if cell['done'] else '    '}  {cell['name']}")


def states(names: Iterable[str], output: pathlib.Path) -> list[dict[str, Any]]:
    """Return the name of each cell and whether it is done."""
    return [{"name": name, "done": is_done(output / name)} for name in names]


def run_cells(
    every: Mapping[str, Options],
    output: pathlib.Path,
    work: Work,
    describe: Callable[[dict[str, Any]], str],
    *,
    jobs: int = 1,
    threads: int | None = None,
    goes_on: bool = False,
) -> None:
    """Run the cells that are not done, and print a line for each. A cell that fails does not stop the others.

    `work` is that of a cell, a function of a module where there are several `jobs`, which are processes side by side,
    each with `threads` of TensorFlow or an equal share of the cores; `describe` makes a line of a summary; `goes_on` is
    as of `run_once`. An Error at the end names the first that failed.
    """
    todo = {name: options for name, options in every.items() if not is_done(output / name)}
    before = len(every) - len(todo)
    if before:
        click.echo(f"{before} of {len(every)} are done.")
    failed: dict[str, str] = {}
    once = functools.partial(_once, output, work, goes_on)
    ended = _beside(once, todo, jobs, threads) if jobs > 1 else _here(once, todo)
    for number, (name, error) in enumerate(ended, before + 1):
        if error is not None:
            failed[name] = failure(error) if place_of(error) else str(error)
        words = describe(read_summary(output / name)) if error is None else f"failed: {failed[name]}"
        click.echo(f"{number}/{len(every)} {name}: {words}")
    for name, reason in failed.items():
        raise Error(
            f"{len(failed)} of {len(every)} failed, the first of them {name} ({reason}): the same command tries them "
            "again."
        )


def _once(output: pathlib.Path, work: Work, goes_on: bool, name: str, options: Options) -> None:
    run_once(output / name, lambda: work(output / name, options), goes_on)


_Ended = Iterator[tuple[str, BaseException | None]]


def _here(once: Callable[..., None], todo: Mapping[str, Options]) -> _Ended:
    for name, options in todo.items():
        try:
            once(name, options)
            yield name, None
        except Exception as error:
            yield name, error


def _beside(once: Callable[..., None], todo: Mapping[str, Options], jobs: int, threads: int | None) -> _Ended:
    threads_each = threads or max(1, num_cores() // jobs)
    # Not forked: TensorFlow's threads would be missing.
    context = multiprocessing.get_context("spawn")
    pool = concurrent.futures.ProcessPoolExecutor(jobs, context, _begin, (os.getpid(), threads_each))
    try:
        futures = {pool.submit(once, name, options): name for name, options in todo.items()}
        for future in concurrent.futures.as_completed(futures):
            yield futures[future], future.exception()
    except BaseException:
        for process in multiprocessing.active_children():
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(parent: int, threads: int) -> None:
    """Prepare a worker process, which ends when its parent does."""
    end_with(parent)
    # Of Ctrl-C in a terminal the parent hears as well.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    catch_native_lines()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    use_threads(threads)


def forget_models() -> None:
    """Collect garbage: models and graphs refer to each other in circles, and memory would grow over many cells."""
    if "tensorflow" in sys.modules:
        sys.modules["tensorflow"].keras.backend.clear_session()
    gc.collect()


def use_threads(number: int | None) -> None:
    """Set the threads of a TensorFlow operation, with one operation at a time; None leaves TensorFlow's own choice."""
    if number:
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(number)
        tf.config.threading.set_inter_op_parallelism_threads(1)
