from __future__ import annotations

import zlib

import numpy as np

from tfp_bfl.errors import InvalidArgument


def generator(seed: int, *path: str | int) -> np.random.Generator:
    """Return the random generator of one purpose: its stream depends on `(seed, path)` and on nothing else."""
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise InvalidArgument(f"seed is {seed!r}, but must be an integer of at least 0.")
    key = tuple(zlib.crc32(step.encode()) if isinstance(step, str) else int(step) for step in path)
    return np.random.default_rng(np.random.SeedSequence(int(seed), spawn_key=key))
