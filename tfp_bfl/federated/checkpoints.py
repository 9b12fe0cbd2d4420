"""Runs on disk: the server's state and the metrics so far, as TensorFlow checkpoints with SHA-256 sums.

    round_12.data-00000-of-00001, round_12.index    the state's tensors, as TensorFlow writes them
    round_12.json                                   what the run is of, and its metrics so far
    round_12.sha256                                 as of `sha256sum`; written last: without it there is no checkpoint

Tensors and JSON only: nothing is unpickled, and no file is read as a program.
"""

import contextlib
import hashlib
import json
import logging
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pydantic
import tensorflow as tf

from tfp_bfl import files
from tfp_bfl.contracts import ServerState
from tfp_bfl.errors import InvalidArgument, check_count, shown
from tfp_bfl.files.tensor_bundle import check_index
from tfp_bfl.files.writing import space

logger = logging.getLogger(__name__)

_VALUES, _INDEX, _RECORD, _SUMS = ".data-00000-of-00001", ".index", ".json", ".sha256"
_PARTS = (_VALUES, _INDEX, _RECORD)
_OURS = re.compile(r"round_(\d{1,9})(\.data-00000-of-00001|\.index|\.json|\.sha256)(\.draft|\.tempstate\d+)?")
# In bytes: three lines; an entry for each tensor; a few kilobytes a round.
_LONGEST = {_SUMS: 1000, _INDEX: 2**24, _RECORD: 2**30}


class Record(pydantic.BaseModel):
    """The plain values that a run stores besides the server's state.

    Fields:
      rows: the metrics of each round so far.
      first_stddev, collapsed: the posterior's median standard deviation before the first round, NaN without one, and
        the round in which it lost its spread.
      draws: of a chain: round -> SHA-256 of its file (`draws.Draws`).
      concurrent_calls: how many clients were computed at once, which is how sums are ordered; 0 if unknown.
      average_from: the first round in the sums of `averaging.RoundAverage`, or None.
      start: SHA-256 of the weights that the run was given to start from; "" for its own, None if unknown.
      sums: these sums, float64 arrays; they are saved beside the state.
    """

    model_config = pydantic.ConfigDict(extra="forbid")

    rows: list[dict[str, Any]] = []
    first_stddev: float = float("nan")
    collapsed: int | None = None
    draws: dict[str, str] = {}
    concurrent_calls: int = 0
    average_from: int | None = None
    start: str | None = None
    sums: list[Any] = pydantic.Field(default=[], exclude=True)


def digest_of(weights: object) -> str:
    """Return the SHA-256 sum of the bytes of a structure of arrays."""
    total = hashlib.sha256()
    for x in tf.nest.flatten(weights):
        total.update(np.ascontiguousarray(x).tobytes())
    return total.hexdigest()


class Found(NamedTuple):
    """The state and the record of a checkpoint."""

    state: ServerState
    record: Record


class _Damaged(Exception):
    """A checkpoint that is not as it was written."""


class Checkpoints:
    """The last `keep` checkpoints of one run in a directory, which is made with the first.

    `description` says what the run is of, name -> words, such as {"rule": "conflation"}.
    """

    def __init__(self, directory: str | os.PathLike, description: Mapping[str, str], keep: int = 3):
        self.directory = pathlib.Path(directory)
        self._description = dict(description)
        self._keep = check_count(keep, "keep_checkpoints")

    def save(self, state: ServerState, record: Record) -> None:
        """Write the checkpoint of the state's round, atomically, and delete those before the last `keep`.

        If it can't be written, such as to a full disk, the checkpoints before stay, and nothing else.
        """
        with space(self.directory, writes=True):
            try:
                self._save(state, record)
            except Exception:
                with contextlib.suppress(OSError):
                    self._remove_halves(self.rounds())
                raise

    def _save(self, state: ServerState, record: Record) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        is_private = bool(np.any(state.noise))
        if is_private:  # Whoever reads this secret can subtract the noise that hides examples.
            self.directory.chmod(0o700)
        prefix = self._prefix(int(state.round))
        leaves = [*tf.nest.flatten(state), *record.sums]
        names = [*_names(state), *_sum_names(record.sums)]
        # The operation instead of tf.train.Checkpoint, which would keep the state in variables as well.
        tf.raw_ops.SaveV2(prefix=str(prefix), tensor_names=names, shape_and_slices=[""] * len(leaves), tensors=leaves)
        shapes = [list(x.shape) for x in record.sums]
        content = {"description": self._description, "record": record.model_dump(), "sums": shapes}
        _with(prefix, _RECORD).write_text(json.dumps(content), encoding="utf-8")
        parts = [_with(prefix, part) for part in _PARTS]
        for part in parts:
            if is_private:
                part.chmod(0o600)
            _to_disk(part)
        draft = _with(prefix, _SUMS + ".draft")
        draft.write_text("".join(f"{files.digest(part)}  {part.name}\n" for part in parts))
        _to_disk(draft)
        draft.replace(_with(prefix, _SUMS))
        _to_disk(self.directory)
        self._tidy()

    def rounds(self) -> list[int]:
        """Return the rounds of which there is a checkpoint, in order."""
        names = [path.name for path in self.directory.iterdir()] if self.directory.is_dir() else []
        found = [match for name in names if (match := _OURS.fullmatch(name))]
        return sorted(int(match[1]) for match in found if match[2] == _SUMS and not match[3])

    def latest(self, first: ServerState, specs: Sequence[tf.TensorSpec] | None = None) -> Found | None:
        """Return the newest whole checkpoint of the run that began with `first`; None if there is no checkpoint.

        Damaged ones are named in a warning, and the one before is taken. `specs` are those of the state's tensors, leaf
        by leaf (`BayesianProcess.state_spec`), if they may grow; None for those of `first`.
        """
        numbers = self.rounds()
        for number in reversed(numbers):
            try:
                return self._read(number, first, specs)
            except _Damaged as damage:
                logger.warning("The checkpoint %s is damaged (%s): going back.", self._prefix(number), damage)
        if numbers:
            raise InvalidArgument(
                f"Every checkpoint in {self.directory} is damaged: choose another folder, or delete them to start anew."
            )
        return None

    def _tidy(self) -> None:
        """Delete what is before the last `keep`, and what a writer that was killed has left."""
        rounds = self.rounds()
        for number in rounds[: -self._keep]:
            _with(self._prefix(number), _SUMS).unlink()  # First: half a checkpoint is none.
        self._remove_halves(rounds[-self._keep :])

    def _remove_halves(self, rounds: Sequence[int]) -> None:
        """Delete all files of checkpoints but those of some rounds."""
        names = {_with(self._prefix(n), end).name for n in rounds for end in (_SUMS, *_PARTS)}
        for path in self.directory.iterdir():
            if _OURS.fullmatch(path.name) and path.name not in names:
                path.unlink(missing_ok=True)

    def _prefix(self, number: int) -> pathlib.Path:
        return self.directory / f"round_{number}"

    def _read(self, number: int, first: ServerState, specs: Sequence[tf.TensorSpec] | None) -> Found:
        prefix = self._prefix(number)
        try:
            digests = files.read_regular(_with(prefix, _SUMS), "file of sums", _LONGEST[_SUMS]).decode("ascii").split()
            sums = {_with(prefix, part).name: files.digest(_with(prefix, part)) for part in _PARTS}
            if digests != [word for name, digest in sums.items() for word in (digest, name)]:
                raise _Damaged("its SHA-256 sums do not fit")
            content = json.loads(files.read_regular(_with(prefix, _RECORD), "record", _LONGEST[_RECORD]))
            description, record = dict(content["description"]), Record(**content["record"])
            shapes = [tuple(int(size) for size in shape) for shape in content.get("sums", [])]
        except InvalidArgument as error:
            raise _Damaged(str(error).rstrip(".")) from None
        except (ValueError, KeyError, TypeError, RecursionError):
            raise _Damaged("its record is not as it is written") from None
        self._check_description(description)
        specs = specs or [tf.TensorSpec.from_tensor(tf.constant(x)) for x in tf.nest.flatten(first)]
        state, record.sums = self._tensors(number, first, specs, shapes)
        return Found(state, record)

    def _tensors(
        self, number: int, first: ServerState, specs: Sequence[tf.TensorSpec], shapes: Sequence[tuple[int, ...]]
    ) -> tuple[ServerState, list[np.ndarray]]:
        prefix = self._prefix(number)
        wanted = {name: (spec.dtype, tuple(spec.shape)) for name, spec in zip(_names(first), specs)}
        of_sums = dict(zip(_sum_names(shapes), ((tf.float64, shape) for shape in shapes)))
        try:
            index = files.read_regular(_with(prefix, _INDEX), "index", _LONGEST[_INDEX])
            spans = check_index(index, {**wanted, **of_sums})
            if _with(prefix, _VALUES).stat().st_size != max(span.offset + span.size for span in spans.values()):
                raise InvalidArgument("its values are more or fewer than its index says")
            reader = tf.train.load_checkpoint(str(prefix))
            values = [reader.get_tensor(name) for name in wanted]
            state = tf.nest.pack_sequence_as(first, values)
            sums = [reader.get_tensor(name) for name in of_sums]
        except InvalidArgument as error:
            raise _Damaged(str(error).rstrip(".")) from None
        except (tf.errors.OpError, ValueError, RuntimeError) as error:
            raise _Damaged(f"{type(error).__name__} in reading its values") from None
        if int(state.round) != number:
            raise _Damaged(f"it is of round {int(state.round)}")
        if not all(np.all(np.isfinite(x)) for x in [*tf.nest.flatten(state.weights), *sums]):
            raise _Damaged("its weights are not finite")
        if int(state.seed) != int(first.seed):
            raise InvalidArgument(
                f"The checkpoints in {self.directory} are of seed {int(state.seed)}, and this run's is "
                f"{int(first.seed)}: choose another folder, or that seed."
            )
        return state, sums

    def _check_description(self, description: dict[str, str]) -> None:
        for name, words in self._description.items():
            other = description.get(name)
            if other != words:
                raise InvalidArgument(
                    f"The checkpoints in {self.directory} are of a run that differs in {name}, {shown(other)}; this "
                    f"run has {words}: choose another folder, or resume that run."
                )


def _names(state: ServerState) -> list[str]:
    return [f"state/{i}" for i in range(len(tf.nest.flatten(state)))]


def _sum_names(sums: Sequence[Any]) -> list[str]:
    return [f"sums/{i}" for i in range(len(sums))]


def _with(prefix: pathlib.Path, end: str) -> pathlib.Path:
    return prefix.with_name(prefix.name + end)


def _to_disk(path: pathlib.Path) -> None:
    """Wait until a file, or a folder's list of files, is on the disk, so that a loss of power takes nothing."""
    handle = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # Not every file system can.
            os.fsync(handle)
    finally:
        os.close(handle)
