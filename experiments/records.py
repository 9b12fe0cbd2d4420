"""Records of the cells of a study, a line of JSON for each, which outlive the folders of the cells."""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tfp_bfl.bench.cells import Options
from tfp_bfl.errors import InvalidArgument

RECORDS = "records.jsonl"
# Of numbers: more than float32 holds, as some tables are of small differences of float64.
DIGITS = 12

Record = dict[str, Any]


def read_records(folder: pathlib.Path) -> dict[str, Record]:
    """Return name -> record of each cell in a folder of results."""
    path = folder / RECORDS
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {record.pop("name"): record for record in map(json.loads, lines)}


def keep_records(folder: pathlib.Path, found: Mapping[str, Record], every: Mapping[str, Options]) -> dict[str, Record]:
    """Add what cells found to the records of a study, each in the place of its earlier one.

    Args:
      folder: of the results.
      found: name -> record of each complete cell: names -> numbers, strings, and lists and mappings of them.
      every: name -> options of each cell that is asked for; records of others stay in the file.

    Returns:
      name -> record of the cells of `every` that have one, in its order: what was found, and the "options".

    Raises:
      InvalidArgument: a cell that is not done now has a record of other options.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {name: json.loads(json.dumps(options)) for name, options in every.items()}
    with _alone(folder):
        records = read_records(folder)
        if found:
            records |= {name: _short({**record, "options": wanted[name]}) for name, record in found.items()}
            draft = folder / f".{RECORDS}"
            lines = (json.dumps({"name": name, **records[name]}, separators=(",", ":")) for name in sorted(records))
            draft.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
            draft.replace(folder / RECORDS)
    kept = {name: records[name] for name in wanted if name in records}
    for name, record in kept.items():
        there, now = record["options"], _short(wanted[name])
        differing = sorted(key for key in {*there, *now} if there.get(key) != now.get(key))
        if differing:
            key = differing[0]
            raise InvalidArgument(
                f"{folder / RECORDS} holds {name} of other options ({key} {there.get(key)!r}, now {now.get(key)!r}): "
                "run that cell, give another --results, or delete that line."
            )
    return kept


def best_trial(trials: Mapping[str, Options], score: Callable[[Record], Any], records: Mapping[str, Record]) -> Any:
    """Return the options of the trial of the lowest score; None if there is none, or one without a score.

    A trial that failed, such as by divergence, has the worst score.

    Args:
      trials: name -> options of each trial.
      score: record -> its score, None if it has none; one that is not a finite number is the worst.
      records: name -> record.
    """
    found = {name: records[name] for name in trials if name in records}
    scores = {name: math.inf if "failed" in record else score(record) for name, record in found.items()}
    if not trials or len(found) < len(trials) or None in scores.values():
        return None
    return trials[min(scores, key=lambda name: scores[name] if math.isfinite(scores[name]) else math.inf)]


@contextlib.contextmanager
def _alone(folder: pathlib.Path) -> Iterator[None]:
    """Block other processes that write records in the folder."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _short(x: Any) -> Any:
    if isinstance(x, dict):
        return {key: _short(value) for key, value in x.items()}
    if isinstance(x, (list, tuple)):
        return [_short(value) for value in x]
    return float(f"{x:.{DIGITS}g}") if isinstance(x, float) else x
