"""The runs in a folder and their progress."""

from __future__ import annotations

import fcntl
import pathlib
from collections.abc import Iterator, Sequence

from tfp_bfl.app.one_run.records import MOST_ROUNDS_BYTES, MOST_SUMMARY_BYTES, is_done, read_json, score
from tfp_bfl.app.options.config import RunConfig, make_config
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.files import read_regular
from tfp_bfl.labels import duration

# Names the run folders of a sweep.
ORDER = "runs.txt"
_HEAD = ("run", "state", "method", "data", "model", "seed", "score", "NLL", "time")


def find_runs(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    """Return the run folders in a folder, to a depth of three, by name; those of a sweep in its order."""
    if (folder / "config.yaml").is_file():
        yield folder
        return
    if (folder / ORDER).is_file():  # Of a sweep: as it was asked for.
        names = read_regular(folder / ORDER, "list of runs", 1 << 22).decode("utf-8", "replace").splitlines()
        yield from (folder / name for name in names if (folder / name / "config.yaml").is_file())
        return
    for depth in ("*", "*/*", "*/*/*"):
        for path in sorted(folder.glob(f"{depth}/config.yaml")):
            yield path.parent


def expand(folders: Sequence[str | pathlib.Path]) -> list[pathlib.Path]:
    """Return run folders as they are, and the complete runs in each folder of many runs."""
    runs: list[pathlib.Path] = []
    for folder in map(pathlib.Path, folders):
        inside = [] if (folder / "config.yaml").exists() else [run for run in find_runs(folder) if is_done(run)]
        runs += inside or [folder]
    return runs


def described(folder: pathlib.Path) -> list[str]:
    """Return a head and a line for each run; none where there is no run."""
    rows = [_row(folder, run) for run in find_runs(folder)]
    if not rows:
        return []
    table = [_HEAD, *rows]
    widths = [max(len(row[i]) for row in table) for i in range(len(_HEAD))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in table]


def _row(folder: pathlib.Path, run: pathlib.Path) -> tuple[str, ...]:
    name = str(run.relative_to(folder)) if run != folder else run.name
    try:
        config = make_config(run / "config.yaml", {}, runs_code=False)
    except InvalidArgument:
        return (name, "not readable", *[""] * (len(_HEAD) - 2))
    what = (config.method, config.data_name, config.model_name)
    return (name, _state(run, config), *what, str(config.seed), *_scores(run))


def _state(run: pathlib.Path, config: RunConfig) -> str:
    if is_done(run):
        return "done"
    try:
        rounds = len(read_regular(run / "metrics.jsonl", "file of metrics", MOST_ROUNDS_BYTES).splitlines())
    except InvalidArgument:
        rounds = 0
    return f"{'at' if _is_held(run) else 'interrupted after'} round {rounds}/{config.rounds * (config.ensemble or 1)}"


def _is_held(run: pathlib.Path) -> bool:
    """Return whether a process works on the run and holds the lock of its configuration."""
    with open(run / "config.yaml", "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def _scores(run: pathlib.Path) -> tuple[str, ...]:
    try:
        (summary,) = read_json(run / "summary.json", "summary", MOST_SUMMARY_BYTES)
        return score(summary), f"{summary['test_nll']:.4f}", duration(summary["seconds"])
    except (InvalidArgument, ValueError, TypeError, KeyError):
        return "", "", ""
