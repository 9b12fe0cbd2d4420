"""The privacy budget that a site has spent on its examples, run by run, and what remains."""

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
from tfp_bfl.parties.arrays import digest_of
from tfp_bfl.privacy import Steps


class Ledger:
    """Charges a run's rounds before they are answered, and keeps that in a file for each run.

    A run is charged for all its rounds when it begins, and once, whoever is killed meanwhile. Its name stands for one
    job, and a round for one message: another answer would reveal more than was charged. A lock on the folder lets
    one process at a time read and charge.

    Args:
      folder: of the files.
      run: its name.
      job: a digest of all that the site is sent of the run.
      steps: noisy steps of one round.
      rounds: of the run.
      limit: of epsilon, over all runs.
      delta: of that.

    Raises:
      InvalidArgument: with this run the limit would be passed, the run was another before, or a file can't be read.
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
        if recorded is not None and (Steps(*recorded["told"]), recorded["rounds"], recorded.get("job")) != (
            self._steps,
            self._rounds,
            self._job,
        ):
            raise InvalidArgument(
                f"It has taken part in another run of the name {self._run}: give this one another name."
            )
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
        """Note that a round is answered.

        Raises:
          InvalidArgument: the run has no such round, or the round had another message.
        """
        number = str(int(np.asarray(message.get("round", -1))))
        if not 0 <= int(number) < self._rounds:
            raise InvalidArgument(
                f"It has agreed to {self._rounds} rounds, and round {int(number) + 1} is none of them."
            )
        digest = digest_of(message)
        with self._locked():
            # Another process may have answered a round of this run meanwhile.
            messages: dict[str, str] = self._read(self._path)["messages"]
            if messages.setdefault(number, digest) != digest:
                raise InvalidArgument(
                    f"It has answered another message of round {int(number) + 1}: a second answer would tell more of "
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
            noise, share, number = entry["told"]
            fine = noise >= 0 and 0 < share <= 1 and number >= 0 and all(map(str.isdigit, entry["messages"]))
            if fine and isinstance(entry["rounds"], int):
                return dict(entry)
        except (OSError, ValueError, KeyError, TypeError):
            pass
        raise InvalidArgument(f"{path.name} of its ledger can't be read, so that what it has sent is not known.")
