"""Server states on disk, by TFF's own program state manager."""

from __future__ import annotations

import asyncio
import os
from typing import Any, Union

import tensorflow as tf

from tfp_bfl.federated._installation import require_tff
from tfp_bfl.federated.process import ServerState


class Checkpoints:
    """The last `keep` server states in a directory, by round. Arrays only: nothing is unpickled."""

    def __init__(self, directory: Union[str, os.PathLike], keep: int = 3):
        program = require_tff().program
        self._manager = program.FileProgramStateManager(directory, prefix="round_", keep_total=keep, keep_first=False)

    def save(self, state: ServerState) -> None:
        """Writes a state, atomically, as that of its round."""
        # Flat: the manager can't save named tuples.
        asyncio.run(self._manager.save(tf.nest.flatten(state), int(state.round)))

    def latest(self, like: ServerState) -> Any:
        """The state of the latest round, shaped like `like`; None if there is none."""
        leaves, version = asyncio.run(self._manager.load_latest(tf.nest.flatten(like)))
        return tf.nest.pack_sequence_as(like, leaves) if version else None
