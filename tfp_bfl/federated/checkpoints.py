"""Runs on disk: the server's state and the metrics so far, as TensorFlow checkpoints with SHA-256 sums.

    round_12.data-00000-of-00001, round_12.index    TensorFlow's: tensors, and a JSON record as one of them
    round_12.sha256                                 as of `sha256sum`; written last: without it there is no checkpoint

Tensors and JSON only: nothing is unpickled, and no file is read as a program.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import pathlib
import re
from collections.abc import Mapping
from typing import Any, NamedTuple, Optional, Union

import numpy as np
import pydantic
import tensorflow as tf

from tfp_bfl.errors import InvalidArgument, check_count
from tfp_bfl.federated.process import ServerState

logger = logging.getLogger(__name__)

_PARTS = (".data-00000-of-00001", ".index")
_SUMS = ".sha256"
_RECORD = "record"
_OURS = re.compile(r"round_(\d{1,9})(\.data-00000-of-00001|\.index|\.sha256)(\.draft|\.tempstate\d+)?")
# A manifest has two lines; what is longer is none.
_LONGEST_SUMS = 1000


class Record(pydantic.BaseModel):
    """What a run must remember besides the server's state: plain values.

    Fields:
      rows: the metrics of each round so far.
      first_stddev: the posterior's median standard deviation before the first round; NaN without a posterior.
      collapsed: the round in which the posterior lost its spread, or None.
    """

    model_config = pydantic.ConfigDict(extra="forbid")

    rows: list[dict[str, Any]] = []
    first_stddev: float = float("nan")
    collapsed: Optional[int] = None


class Found(NamedTuple):
    """The state and the record of a checkpoint."""

    state: ServerState
    record: Record


class _Damaged(Exception):
    """A checkpoint that is not as it was written."""


class Checkpoints:
    """The last `keep` checkpoints of one run in a directory.

    Args:
      directory: made with the first checkpoint.
      description: what the run is of, name -> words, such as {"rule": "conflation"}.
      keep: how many stay.
    """

    def __init__(self, directory: Union[str, os.PathLike], description: Mapping[str, str], keep: int = 3):
        self.directory = pathlib.Path(directory)
        self._description = dict(description)
        self._keep = check_count(keep, "keep_checkpoints")

    def save(self, state: ServerState, record: Record) -> None:
        """Writes the checkpoint of the state's round, atomically, and deletes those before the last `keep`."""
        self.directory.mkdir(parents=True, exist_ok=True)
        prefix = self._prefix(int(state.round))
        text = json.dumps({"description": self._description, "record": record.model_dump()})
        tensors = [*tf.nest.flatten(state), tf.constant(text)]
        names = [*_names(state), _RECORD]
        # The operation instead of tf.train.Checkpoint, which would keep the state in variables as well.
        tf.raw_ops.SaveV2(prefix=str(prefix), tensor_names=names, shape_and_slices=[""] * len(names), tensors=tensors)
        parts = [_with(prefix, part) for part in _PARTS]
        for part in parts:
            _to_disk(part)
        draft = _with(prefix, _SUMS + ".draft")
        draft.write_text("".join(f"{_sha256(part)}  {part.name}\n" for part in parts))
        _to_disk(draft)
        draft.replace(_with(prefix, _SUMS))
        _to_disk(self.directory)
        self._tidy()

    def rounds(self) -> list[int]:
        """The rounds of which there is a checkpoint, in order."""
        names = [path.name for path in self.directory.iterdir()] if self.directory.is_dir() else []
        found = [match for name in names if (match := _OURS.fullmatch(name))]
        return sorted(int(match[1]) for match in found if match[2] == _SUMS and not match[3])

    def latest(self, first: ServerState) -> Optional[Found]:
        """The newest checkpoint that is whole, of the run that began with `first`; None if there is no checkpoint.

        Damaged ones are named in a warning, and the one before is taken.

        Raises:
          InvalidArgument: the checkpoints are of another run, or all of them are damaged.
        """
        numbers = self.rounds()
        for number in reversed(numbers):
            try:
                description, record, tensors = self._read(number)
            except _Damaged as damage:
                logger.warning("The checkpoint %s is damaged (%s): going back.", self._prefix(number), damage)
                continue
            self._check_description(description)
            return Found(self._state(tensors, first), record)
        if numbers:
            raise InvalidArgument(
                f"Every checkpoint in {self.directory} is damaged: choose another folder, or delete them to start anew."
            )
        return None

    def _tidy(self) -> None:
        """Deletes what is before the last `keep`, and what a writer that was killed has left."""
        rounds = self.rounds()
        for number in rounds[: -self._keep]:
            _with(self._prefix(number), _SUMS).unlink()  # First: half a checkpoint is none.
        kept = {_with(self._prefix(n), end).name for n in rounds[-self._keep :] for end in (_SUMS, *_PARTS)}
        for path in self.directory.iterdir():
            if _OURS.fullmatch(path.name) and path.name not in kept:
                path.unlink(missing_ok=True)

    def _prefix(self, number: int) -> pathlib.Path:
        return self.directory / f"round_{number}"

    def _read(self, number: int) -> tuple[dict[str, str], Record, dict[str, Any]]:
        prefix = self._prefix(number)
        try:
            sums = _with(prefix, _SUMS)
            told = sums.read_text(encoding="ascii").split() if sums.stat().st_size <= _LONGEST_SUMS else []
            real = [word for part in _PARTS for word in (_sha256(_with(prefix, part)), _with(prefix, part).name)]
            if told != real:
                raise _Damaged("its SHA-256 sums do not fit")
            reader = tf.train.load_checkpoint(str(prefix))
            tensors = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
            values = json.loads(tensors.pop(_RECORD).decode())
            description, record = values["description"], Record(**values["record"])
            if not all(isinstance(words, str) for words in description.values()):
                raise _Damaged("its description holds more than words")
        except OSError as error:
            raise _Damaged(error.strerror or "it can't be read") from None
        except (tf.errors.OpError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
            raise _Damaged(f"{type(error).__name__} in reading it") from None
        return description, record, tensors

    def _check_description(self, description: dict[str, str]) -> None:
        for name, words in self._description.items():
            if description.get(name) != words:
                raise InvalidArgument(
                    f"The checkpoints in {self.directory} are of another {name}, {description.get(name)}, and this "
                    f"run's is {words}: choose another folder, or run what they are of."
                )

    def _state(self, tensors: dict[str, Any], first: ServerState) -> ServerState:
        wanted = dict(zip(_names(first), map(np.asarray, tf.nest.flatten(first))))
        type_of = lambda arrays: {name: (np.shape(x), np.asarray(x).dtype) for name, x in arrays.items()}
        if type_of(tensors) != type_of(wanted):
            raise InvalidArgument(
                f"The checkpoints in {self.directory} hold other tensors than this run's state: choose another folder."
            )
        state = tf.nest.pack_sequence_as(first, [tensors[name] for name in wanted])
        if int(state.seed) != int(first.seed):
            raise InvalidArgument(
                f"The checkpoints in {self.directory} are of seed {int(state.seed)}, and this run's is "
                f"{int(first.seed)}: choose another folder, or that seed."
            )
        return state


def _names(state: ServerState) -> list[str]:
    return [f"state/{i}" for i in range(len(tf.nest.flatten(state)))]


def _with(prefix: pathlib.Path, end: str) -> pathlib.Path:
    return prefix.with_name(prefix.name + end)


def _sha256(path: pathlib.Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _to_disk(path: pathlib.Path) -> None:
    """Waits until a file, or a folder's list of files, is on the disk, so that a loss of power takes nothing."""
    handle = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # Not every file system can.
            os.fsync(handle)
    finally:
        os.close(handle)
