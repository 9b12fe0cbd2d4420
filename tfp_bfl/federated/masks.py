"""Masks of whole numbers: seeds that two parties or one alone have for a message, and of which sums they are told.

    m_ij = SHAKE-256(HMAC(k_ij, c)),   b_i = SHAKE-256(HMAC(s_i, c)),   c = (run, message, attempt)

k_ij is a key that parties i and j alone have, s_i the secret of party i.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from typing import Any, Optional, Protocol

import numpy as np

from tfp_bfl.errors import InvalidArgument

# Of a key that two parties share, of a seed, and of a proof.
KEY_BYTES = 32


def context_of(run: str, digest: bytes, attempt: Optional[int] = None) -> bytes:
    """What seeds are of: a run, one message of it, and which attempt at its sum; None if all parties must answer."""
    return run.encode() + digest + (b"" if attempt is None else attempt.to_bytes(4, "big"))


def seed_of(key: bytes, context: bytes) -> bytes:
    """The seed of a mask; who has it knows no other."""
    return hmac.digest(key, b"mask" + context, hashlib.sha256)


def proof_of(key: bytes, context: bytes, members: np.ndarray, author: int) -> bytes:
    """By which one party shows another, with whom it shares the key, that it has agreed to a set of members [K]."""
    return hmac.digest(key, b"set" + context + author.to_bytes(4, "big") + members.tobytes(), hashlib.sha256)


def add_mask(leaves: Sequence[np.ndarray], seed: bytes, sign: int) -> None:
    """Adds (sign 1) or subtracts (-1) the numbers of a seed, modulo 2^64, in place."""
    sizes = [x.size for x in leaves]
    stream = hashlib.shake_256(seed).digest(8 * sum(sizes))
    for leaf, mask in zip(leaves, np.split(np.frombuffer(stream, np.int64), np.cumsum(sizes)[:-1])):
        (np.add if sign > 0 else np.subtract)(leaf, mask.reshape(leaf.shape), out=leaf)


class Kept(Protocol):
    """Where promises are put, by the digest of a message: such as a dictionary."""

    def get(self, digest: str, /) -> Optional[dict[str, Any]]:
        """What there is of that message, or None."""

    def __setitem__(self, digest: str, promise: dict[str, Any], /) -> None:
        """Puts it there."""


class Promises:
    """Of which set of parties one party lets the sum be known: of one set a message, for ever.

    A server that could have the sum of one message over two sets would know what their difference found.

    Args:
      kept: where they are put; None for a dictionary, which ends with the process.
    """

    def __init__(self, kept: Optional[Kept] = None):
        self._kept: Kept = {} if kept is None else kept

    def answer(self, digest: bytes, attempt: Optional[int]) -> None:
        """Notes that a message is answered, for a sum over all parties or over those who answer.

        Raises:
          InvalidArgument: it was answered for the other kind of sum.
        """
        of_some = attempt is not None
        record = self._kept.get(digest.hex()) or {"of_some": of_some, "sets": {}, "told": None}
        if record["of_some"] != of_some:
            raise InvalidArgument("It has answered this message for another sum: two sums would tell their difference.")
        self._kept[digest.hex()] = record

    def agree(self, digest: bytes, attempt: int, members: np.ndarray) -> None:
        """Agrees to a set of members [K] for an attempt.

        Raises:
          InvalidArgument: it has agreed to another set of this attempt, or told of another attempt.
        """
        record = self._of(digest)
        found = "".join(map(str, members.tolist()))
        other = record["sets"].get(str(attempt), found) != found
        if other or record["told"] not in (None, attempt):
            raise InvalidArgument("It has let another sum of this message be known: two would tell their difference.")
        record["sets"][str(attempt)] = found
        self._kept[digest.hex()] = record

    def tell(self, digest: bytes, attempt: int, members: np.ndarray) -> None:
        """Notes that what is needed for the sum over the members [K] is told.

        Raises:
          InvalidArgument: it has not agreed to them.
        """
        record = self._of(digest)
        if record["sets"].get(str(attempt)) is None:
            raise InvalidArgument("It has not agreed to this sum.")
        self.agree(digest, attempt, members)
        self._kept[digest.hex()] = {**record, "told": attempt}

    def _of(self, digest: bytes) -> dict[str, Any]:
        record = self._kept.get(digest.hex())
        if record is None or not record["of_some"]:
            raise InvalidArgument("It has answered no such message for a sum over some parties.")
        return record
