"""Common parts of both peers: the command line, the data, the clock and the line of JSON that they print."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import json
import os
import statistics
import sys
import time
import zipfile
from collections.abc import Callable
from typing import NoReturn

import numpy as np
import psutil

# Read by TensorFlow when it is imported, which the scripts do after this module.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

LEARNING_RATE = 1e-3
# What every peer computes, by the names that the sides of this library have for it.
COMPUTED = {
    "inference": "backprop",
    "noise": "flipout",
    "optimizer": "adam",
    "learning_rate": LEARNING_RATE,
    "schedule": "constant",
    "kl": "client",
    "temperature": 1.0,
    "rule": "naive_weighted_average",
    "precision": "float32",
}
SHAPES = {"lenet": (28, 28, 1), "resnet20": (32, 32, 3)}
KINDS = ("flipout", "deterministic")
NUM_CLASSES = 10


@dataclasses.dataclass(frozen=True)
class Clients:
    """All examples, client after client: features uint8 [N, H, W, C], labels int32 [N]; of each client sizes [K]."""

    features: np.ndarray
    labels: np.ndarray
    sizes: np.ndarray

    def __len__(self) -> int:
        return len(self.sizes)

    def examples(self, client: int) -> tuple[np.ndarray, np.ndarray]:
        """Return one client's features in [0, 1], float32, and labels."""
        end = int(self.sizes[: client + 1].sum())
        own = slice(end - int(self.sizes[client]), end)
        return self.features[own].astype(np.float32) / np.float32(255), self.labels[own]

    def num_steps(self, batch_size: int, cohort: int | None = None) -> float:
        """Return the number of steps of all clients in one epoch; of a cohort on average, if clients differ."""
        return float(np.ceil(self.sizes / batch_size).sum()) * (cohort or len(self)) / len(self)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{message[0].upper()}{message[1:].rstrip('.')}.\n")


def parser(description: str) -> argparse.ArgumentParser:
    """Return the options of every peer; a bad one ends the process with one sentence and status 2."""
    result = _Parser(description=description, allow_abbrev=False)
    result.add_argument(
        "--data", required=True, metavar="FILE.npz", help="features uint8 [N, H, W, C], labels [N], sizes [K]"
    )
    result.add_argument("--model", choices=list(SHAPES), default="lenet")
    result.add_argument("--kind", choices=list(KINDS), default="flipout")
    result.add_argument("--batch-size", type=at_least(1), default=32, metavar="B")
    result.add_argument(
        "--rounds", type=at_least(2), default=4, metavar="R", help="the first is left out of the median"
    )
    return result


def at_least(least: int) -> Callable[[str], int]:
    """Return the type of an option that takes an integer."""

    def integer(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not an integer of at least {least}")
        return int(text)

    return integer


def load(options: argparse.Namespace) -> Clients:
    """Return the clients in the file of --data; for an invalid file, end with one sentence and status 2."""
    try:
        return read(options.data, options.model)
    except ValueError as error:
        refuse(str(error))


def refuse(sentence: str) -> NoReturn:
    """End the process as a bad argument does."""
    print(sentence, file=sys.stderr)
    raise SystemExit(2)


def read(path: str, model: str) -> Clients:
    """Return the clients in a file.

    Raises:
      ValueError: the file is absent, or does not hold clients that the model can learn from.
    """
    try:
        with np.load(path) as arrays:
            features, labels, sizes = arrays["features"], arrays["labels"], arrays["sizes"]
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile):
        raise ValueError(f"{path} can't be read as an .npz file with features, labels and sizes.") from None
    if features.dtype != np.uint8 or features.ndim != 4 or features.shape[1:] != SHAPES[model]:
        shape = ", ".join(map(str, SHAPES[model]))
        raise ValueError(f"{model} takes features uint8 [N, {shape}], not {features.dtype} {list(features.shape)}.")
    if labels.dtype != np.int32 or labels.shape != features.shape[:1] or not labels.size:
        raise ValueError(f"The labels are {labels.dtype} {list(labels.shape)}, but must be int32, one for each image.")
    if labels.min() < 0 or labels.max() >= NUM_CLASSES:
        raise ValueError(f"The labels are in [{labels.min()}, {labels.max()}], but must be in [0, {NUM_CLASSES - 1}].")
    if sizes.ndim != 1 or not sizes.size or sizes.min() < 1 or sizes.sum() != len(labels):
        raise ValueError(f"The sizes must be at least 1 each and add up to {len(labels)}, the examples.")
    return Clients(features, labels, sizes)


class Clock:
    """Wall and CPU times of rounds: `start` before the first one, `lap` at the end of each."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.cpu_seconds: list[float] = []
        self._last = (0.0, 0.0)

    def start(self) -> None:
        self._last = time.perf_counter(), cpu_seconds()

    def lap(self) -> None:
        now = time.perf_counter(), cpu_seconds()
        self.seconds.append(now[0] - self._last[0])
        self.cpu_seconds.append(now[1] - self._last[1])
        self._last = now


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and its living descendants since their start, summed."""
    this = psutil.Process()
    return sum(_cpu_seconds(process) for process in (this, *this.children(recursive=True)))


def _cpu_seconds(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return times.user + times.system


def peak_mb() -> float:
    """Return the peak resident memory of this process and of its living descendants, summed, in 10^6 bytes.

    Memory that they share counts once for each, and their peaks may lie at different times: an upper bound.
    """
    this = psutil.Process()
    return sum(_peak_bytes(process.pid) for process in (this, *this.children(recursive=True))) / 1e6


def _peak_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/status") as lines:
            return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)
    except OSError:  # gone, or no Linux
        return 0


def keep_stdout_clean() -> int:
    """Send what this process and its children print to standard error; return the stream for the result."""
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)
    return stdout


def report(
    stdout: int,
    options: argparse.Namespace,
    clients: Clients,
    *,
    peer: str,
    distribution: str,
    clock: Clock,
    peak: float,
    final_nll: float | None,
    cohort: int | None = None,
) -> None:
    """Print the one line of JSON."""
    steps, seconds = clients.num_steps(options.batch_size, cohort), clock.seconds
    result = {
        "peer": peer,
        "version": importlib.metadata.version(distribution),
        "model": options.model,
        "kind": options.kind,
        **COMPUTED,
        "engine": peer,
        "clients": len(clients),
        "examples": round(float(clients.sizes.mean())),
        "cohort": cohort,
        "unequal": len(set(clients.sizes.tolist())) > 1,
        "batch_size": options.batch_size,
        "rounds": options.rounds,
        "steps": steps,
        "ms_per_step": round(1000 * statistics.median(seconds[1:]) / steps, 3),
        "cpu_ms_per_step": round(1000 * statistics.median(clock.cpu_seconds[1:]) / steps, 3),
        "seconds_per_round": round(statistics.median(seconds[1:]), 4),
        "seconds": [round(s, 4) for s in seconds],
        "peak_mb": round(peak),
        "final_nll": None if final_nll is None else round(final_nll, 4),
    }
    with os.fdopen(stdout, "w") as stream:
        print(json.dumps(result), file=stream)
