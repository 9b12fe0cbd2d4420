"""Loggers of this library and of others."""

import contextlib
import logging
from collections.abc import Iterator


@contextlib.contextmanager
def quiet(name: str) -> Iterator[None]:
    """Keep back the warnings of a logger: whoever calls this states them, or what follows from them, in another way."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
