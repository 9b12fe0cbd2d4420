from __future__ import annotations

import zlib
from typing import Union

import numpy as np

from tfp_bfl.errors import InvalidArgument


def generator(seed: int, *path: Union[str, int]) -> np.random.Generator:
    """Returns the random generator of one purpose: its stream depends on `(seed, path)` and on nothing else.

    Raises:
      InvalidArgument: `seed` is not an integer of at least 0.
    """
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise InvalidArgument(f"seed is {seed!r}, but must be an integer of at least 0.")
    key = tuple(zlib.crc32(step.encode()) if isinstance(step, str) else int(step) for step in path)
    return np.random.default_rng(np.random.SeedSequence(int(seed), spawn_key=key))


def check_count(value: int, what: str, least: int = 1) -> int:
    """Returns `value` as an int; raises InvalidArgument unless it is an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise InvalidArgument(f"{what} is {value!r}, but must be an integer of at least {least}.")
    return int(value)
