"""Ledger of the privacy budget that a site has spent on its examples, run by run."""

from __future__ import annotations

import contextlib
import fcntl
import json
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

import tfp_bfl as bfl
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.files import write_whole
from tfp_bfl.privacy import Steps
from tfp_bfl.sites.arrays import digest_of


class Ledger:
    """Ledger of privacy costs: charges rounds before they are answered, in a file for each run.

    A run is charged for all its rounds when it begins, and only once, even after interruptions. Its name identifies one
    job, and each round one message: a second answer would reveal more than was charged. A lock on the folder
    serialises the processes that read and charge.

    Args:
      folder: folder of the files.
      run, job, rounds: name of the run, digest of its job, and number of its rounds.
      steps: noisy steps of one round.
      limit, delta: bound on epsilon over all runs, and its delta.
    """

    def __init__(self, folder: pathlib.Path, run: str, job: str, steps: Steps, rounds: int, limit: float, delta: float):
        self._folder, self._run, self._job = folder, run, job
        self._steps = steps._replace(number=steps.number * rounds)
        self._rounds = rounds
        with self._locked():
            self._begin(limit, delta)

    def _begin(self, limit: float, delta: float) -> None:
        others = {path.stem: self._read(path) for path in sorted(self._folder.glob("*.json"))}
        recorded = others.pop(self._run, None)
        known = recorded and (Steps(*recorded["told"]), recorded["rounds"], recorded.get("job"))
        if known and known != (self._steps, self._rounds, self._job):
            raise InvalidArgument(f"It has taken part in another run of the name {self._run}: give another name.")
        spent = [Steps(*entry["told"]) for entry in others.values()]
        before = bfl.privacy.composed_epsilon(spent, delta) or 0.0
        after = bfl.privacy.composed_epsilon([*spent, self._steps], delta)
        if after is None or after > limit:
            reached = "without a bound" if after is None else f"{after:.3g}"
            raise InvalidArgument(
                f"Its file allows epsilon {limit:g} for an example over all runs, which would be {reached} with this "
                f"one, after {before:.3g}: ask for more noise, fewer rounds, or a smaller batch."
            )
        self._write(recorded["messages"] if recorded else {})

    def charge(self, message: Mapping[str, np.ndarray]) -> None:
        """Record the message of a round of the run before its answer; the round has no other message."""
        number, digest = str(int(np.asarray(message["round"]))), digest_of(message)
        with self._locked():
            # Another process may have answered a round of this run since.
            messages: dict[str, str] = self._read(self._path)["messages"]
            if messages.setdefault(number, digest) != digest:
                raise InvalidArgument(
                    f"It has answered another message of round {int(number) + 1}: a second answer would reveal more of "
                    "its examples than was agreed to."
                )
            self._write(messages)

    @property
    def _path(self) -> pathlib.Path:
        return self._folder / f"{self._run}.json"

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self._folder.mkdir(parents=True, exist_ok=True)
        with open(self._folder / ".lock", "a", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _write(self, messages: Mapping[str, str]) -> None:
        entry = {"job": self._job, "told": list(self._steps), "rounds": self._rounds, "messages": messages}
        write_whole(self._path, json.dumps(entry))

    @staticmethod
    def _read(path: pathlib.Path) -> dict[str, Any]:
        try:
            entry = json.loads(path.read_text(encoding="utf-8"))
            noise, rate, number = entry["told"]
            is_valid = noise >= 0 and 0 < rate <= 1 and number >= 0 and all(map(str.isdigit, entry["messages"]))
            if is_valid and isinstance(entry["rounds"], int):
                return dict(entry)
        except (OSError, ValueError, KeyError, TypeError):
            pass
        raise InvalidArgument(f"{path.name} of its ledger can't be read: the epsilon that it has spent is unknown.")
