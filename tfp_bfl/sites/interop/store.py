"""The state of a server of clients of any framework, in a folder."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tfp_bfl.contracts import ServerState
from tfp_bfl.errors import Error, InvalidArgument
from tfp_bfl.federated.round import Round, types_of
from tfp_bfl.files import Path
from tfp_bfl.files.arrays import read_arrays, write_arrays
from tfp_bfl.sites.arrays import digest_of, from_arrays, to_arrays

logger = logging.getLogger(__name__)
# The newest, and one before it in case that it is damaged.
_KEPT = 2


class Store:
    """Files `round_N.npz` in a folder, each the state after round N.

    Two servers of one folder must have the `first` state, arrays, and the `settings` in common.
    """

    def __init__(self, folder: Path, round: Round, first: ServerState, settings: Sequence[Any]):
        self._folder, self._spec = pathlib.Path(folder), types_of(round.initialize)
        words = digest_of(to_arrays(first)), *map(repr, settings)
        self._digest = np.frombuffer(hashlib.sha256("\n".join(words).encode()).digest(), np.uint8)
        self._seen = self._mark()

    def write(self, state: ServerState) -> None:
        """Write the state after a round; the file is there whole or not at all."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with self._locked():
            if self._mark() != self._seen:
                raise Error(
                    f"Another server has written a round to {self._folder} since this one read it: end one of the two, "
                    "and start the other anew to resume from that round. The state is unchanged."
                )
            arrays = {**to_arrays(state), "settings": self._digest}
            write_arrays(self._folder / f"round_{int(state.round)}.npz", arrays)
            for path in self._files()[_KEPT:]:
                path.unlink(missing_ok=True)
            self._seen = self._mark()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)

    def _mark(self) -> tuple[str, int, int] | None:
        """Return what identifies the newest file: each write makes a new one."""
        for path in self._files()[:1]:
            stat = path.stat()
            return path.name, stat.st_ino, stat.st_mtime_ns
        return None

    def newest(self) -> ServerState | None:
        """Return the newest state that can be read; None where there is no file."""
        damage = None
        for path in self._files():
            try:
                arrays = read_arrays(path, "state", path.stat().st_size)
                if np.array_equal(arrays.pop("settings"), self._digest):
                    state: ServerState = from_arrays(arrays, self._spec)
                    return state
            except (InvalidArgument, KeyError) as error:
                damage = damage or error
                logger.warning("%s is left out: %s", path, error)
                continue
            raise InvalidArgument(
                f"{self._folder} holds rounds of a server with other first arrays, rule or options: give another one."
            )
        if damage is not None:
            raise InvalidArgument(f"No file of {self._folder} can be read: {damage}") from damage
        return None

    def _files(self) -> list[pathlib.Path]:
        """Return the files, the newest first."""
        numbered = ((re.fullmatch(r"round_(\d+)\.npz", path.name), path) for path in self._folder.glob("round_*.npz"))
        found = [(int(match[1]), path) for match, path in numbered if match]
        return [path for _, path in sorted(found, reverse=True)]
