"""Server states on disk, by TFF's own program state manager."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Coroutine
from typing import Any, Union

import numpy as np
import tensorflow as tf

from tfp_bfl.errors import InvalidArgument
from tfp_bfl.federated._installation import require_tff
from tfp_bfl.federated.process import ServerState

_OTHER_RUN = "The checkpoints in {} are of a run with another seed or model: choose another checkpoint_dir."


class Checkpoints:
    """The last `keep` server states in a directory, by round. Arrays only: nothing is unpickled."""

    def __init__(self, directory: Union[str, os.PathLike], keep: int = 3):
        self._directory = directory
        program = require_tff().program
        self._manager = program.FileProgramStateManager(directory, prefix="round_", keep_total=keep, keep_first=False)

    def save(self, state: ServerState) -> None:
        """Writes a state, atomically, as that of its round."""
        # Flat: the manager can't save named tuples.
        _run(self._manager.save(tf.nest.flatten(state), int(state.round)))

    def latest(self, first: ServerState) -> ServerState | None:
        """The state of the latest round of the run that began with `first`; None if nothing is saved.

        Raises:
          InvalidArgument: what is saved belongs to a run with another seed or model.
        """
        wanted = tf.nest.flatten(first)
        try:
            leaves, version = _run(self._manager.load_latest(wanted))
        except (TypeError, ValueError, KeyError):
            raise InvalidArgument(_OTHER_RUN.format(self._directory)) from None
        if not version:
            return None
        state = tf.nest.pack_sequence_as(first, leaves)
        same_shapes = all(np.shape(x) == np.shape(y) for x, y in zip(leaves, wanted))
        if not same_shapes or int(state.seed) != int(first.seed):
            raise InvalidArgument(_OTHER_RUN.format(self._directory))
        return state


def _run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    # Not asyncio.run: it takes the thread's event loop away, which TFF's own tools need.
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        return loop.run_until_complete(coroutine)
