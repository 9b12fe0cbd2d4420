"""The programs of the studies that run cells of published tables, and the data of a rehearsal."""

from __future__ import annotations

import contextlib
import functools
import json
import pathlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import click
import numpy as np

import tfp_bfl as bfl
from experiments.published.tables import Options, Table
from experiments.qlsd import covertype
from experiments.records import Record
from tfp_bfl.bench.cells import options_in, read_summary
from tfp_bfl.errors import InvalidArgument

# Shape, classes and examples of the training and the test split: what stands for a dataset that is not here.
SHAPES: dict[str, tuple[tuple[int, ...], int, int, int]] = {
    "cifar10": ((32, 32, 3), 10, 50_000, 10_000),
    "cifar100": ((32, 32, 3), 100, 50_000, 10_000),
    "emnist/digits": ((28, 28, 1), 10, 240_000, 40_000),
    "fashion_mnist": ((28, 28, 1), 10, 60_000, 10_000),
    "mnist": ((28, 28, 1), 10, 60_000, 10_000),
}


# Rounds after which tables have a score besides that of the last one.
AFTER = (600,)


class Program(NamedTuple):
    """The program of a study.

    Fields:
      work: (folder, options) -> None: runs a cell and writes its summary last.
      name_of: options -> the name of the cell's folder.
      record_of: folder -> record of a cell that is done.
      prepare: options -> those that the record holds.
      held: folder -> the options of a cell that is there, or None.
    """

    work: Callable[[pathlib.Path, Options], None]
    name_of: Callable[[Options], str]
    record_of: Callable[[pathlib.Path], Record] = read_summary
    prepare: Callable[[Options], Options] = dict
    held: Callable[[pathlib.Path], Options | None] = options_in


def program_of(study: str, output: pathlib.Path) -> Program:
    """Return the program of a study; cells that share a network keep it beside `output`."""
    if study == "aggregation":
        from experiments.aggregation import run, tables
        from tfp_bfl.app.options.resolve import resolved
        from tfp_bfl.bench.sweep import options_of_run

        prepare = lambda options: resolved(tables.config_of(run.used(options)), regression=False).recorded()
        return Program(run.run_cell, run.cell_name, tables.read_cell, prepare, options_of_run)
    if study == "fl_swag":
        from experiments.fl_swag import run, tables

        work = functools.partial(run.run_cell, pretrained=output.parent / "pretrained")
        return Program(work, run.cell_name, tables.read_cell)
    if study == "kernel_posterior":
        from experiments.kernel_posterior import run

        return Program(run.run_cell, run.cell_name, lambda folder: with_later_rounds(run.record_of(folder)))
    if study == "metavd":
        from experiments.metavd import run, tables

        return Program(run.run_cell, run.cell_name, lambda folder: tables.kept(read_summary(folder)))
    if study == "qlsd":
        from experiments.qlsd import run

        return Program(run.run_cell, run.cell_name)
    raise InvalidArgument(f"There is no program of a study {study!r}.")


def with_later_rounds(record: Record) -> Record:
    """Return a record with the accuracy of the last evaluated round up to each of `AFTER`."""
    evaluated = [(row["round"], row["accuracy"]) for row in record["rounds"] if "accuracy" in row]
    return {**record, "after": {str(n): [x for r, x in evaluated if r <= n][-1:] for n in AFTER}}


def at_scale(table: Table, options: Options, scale: float) -> Options:
    """Return the options of a rehearsal: those that the table scales, times `scale`, and its own in place of others.

    Raises:
      InvalidArgument: less than one is left.
    """
    if scale == 1:
        return options
    found = {**options, **{name: x for name, x in table.rehearsal.items() if name in options}}
    for name in table.scaled:
        if name in found and name not in table.rehearsal:
            found[name] = round(scale * found[name])
            if found[name] < 1:
                least = 1 / (2 * options[name])
                raise InvalidArgument(
                    f"--scale {scale:g} leaves none of the {options[name]:,} {name} of {table.name}: give more than "
                    f"{least:.1g}."
                )
    return found


@contextlib.contextmanager
def data_at_scale(scale: float, least: int = 1) -> Iterator[list[str]]:
    """Let the programs load a share of each dataset, and noise of its shape where it is not here.

    Args:
      scale: the share.
      least: rows of a dataset that are loaded in any case.

    Yields:
      The names of datasets that noise stands for, as they are asked for.
    """
    stood_for: list[str] = []
    whole = bfl.data.load

    def load(name: str, split: str = "train", *others: Any, **options: Any) -> bfl.data.Source:
        try:
            source = whole(name, split, *others, **options)
        except InvalidArgument:
            if name not in SHAPES:
                raise
            stood_for.extend([name] * (name not in stood_for))
            return noise(name, split, scale, least)
        number = left(source.num_examples, scale, f"{name}/{split}")
        return source.subset(min(max(number, least), source.num_examples), seed=0)

    def table() -> tuple[np.ndarray, np.ndarray]:
        try:
            return columns()
        except click.UsageError:
            stood_for.append("covertype")
            labels = np.arange(left(581_012, scale, "covertype"), dtype=np.int32) % 7
            return np.random.default_rng(0).normal(labels[:, np.newaxis], 4.0, (len(labels), 54)), labels

    columns = covertype.table
    with mock.patch.object(bfl.data, "load", load), mock.patch.object(covertype, "table", table):
        yield stood_for


def noise(name: str, split: str, scale: float, least: int = 1) -> bfl.data.Source:
    """Return images of a dataset's shape, each class around a mean of its own."""
    shape, classes, *sizes = SHAPES[name]
    number = max(left(sizes[split == "test"], scale, f"{name}/{split}"), least)
    means = np.random.default_rng(0).uniform(64, 192, (classes, *shape))
    labels = np.arange(number, dtype=np.int32) % classes
    images = np.random.default_rng(1 + (split == "test")).normal(means[labels], 32.0)
    given = np.clip(images, 0, 255).astype(np.uint8)
    return bfl.data.Source(name, split, given, labels, tuple(map(str, range(classes))))


def left(number: int, scale: float, what: str) -> int:
    """Return a share of a number of rows; InvalidArgument if none is left."""
    found = round(scale * number)
    if not found:
        raise InvalidArgument(f"--scale {scale:g} leaves none of the {number:,} rows of {what}: give a larger one.")
    return found


def value_at(record: Any, path: str) -> float:
    """Return the number at a path of a record: the mean of a list of numbers, the first of rows with a `method`."""
    for name in path.split("."):
        record = next(row for row in record if row["method"] == name) if isinstance(record, list) else record[name]
    return float(np.mean(record))


def recorded(study: str, folder: pathlib.Path) -> dict[str, Record]:
    """Return name -> record of the runs in all results of a study."""
    found: dict[str, Record] = {}
    for path in sorted(folder.glob(f"{study}/results/**/records.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            found.setdefault(record.pop("name"), record)
    return found
