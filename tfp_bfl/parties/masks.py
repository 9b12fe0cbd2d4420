"""Masks of whole numbers: seeds that two sites or one alone have for a message, and when they are revealed.

    m_ij = SHAKE-256(HMAC(k_ij, c)),   b_i = SHAKE-256(HMAC(s_i, c)),   c = (run, job, message, attempt)

k_ij is a key that sites i and j alone have, s_i the secret of site i.
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


def context_of(run: str, job: bytes, digest: bytes, attempt: Optional[int] = None) -> bytes:
    """Return the context of seeds: the run, its job, one message of it, and the attempt at its sum.

    Args:
      run: its name.
      job: a digest [32] of who takes part and in what, so that sites with another job have no mask in common.
      digest: of the message [32].
      attempt: None if all sites must answer.
    """
    return run.encode() + job + digest + (b"" if attempt is None else attempt.to_bytes(4, "big"))


def seed_of(key: bytes, context: bytes) -> bytes:
    """Return the seed of a mask; who has it knows no other."""
    return hmac.digest(key, b"mask" + context, hashlib.sha256)


def proof_of(key: bytes, context: bytes, members: np.ndarray, author: int) -> bytes:
    """Compute the proof that a site has agreed to a set of members [K], by the key that it shares with another."""
    return hmac.digest(key, b"set" + context + author.to_bytes(4, "big") + members.tobytes(), hashlib.sha256)


def add_mask(leaves: Sequence[np.ndarray], seed: bytes, sign: int) -> None:
    """Add (sign 1) or subtracts (-1) the numbers of a seed, modulo 2^64, in place."""
    sizes = [x.size for x in leaves]
    stream = hashlib.shake_256(seed).digest(8 * sum(sizes))
    for leaf, mask in zip(leaves, np.split(np.frombuffer(stream, np.int64), np.cumsum(sizes)[:-1])):
        (np.add if sign > 0 else np.subtract)(leaf, mask.reshape(leaf.shape), out=leaf)


class Kept(Protocol):
    """A store of promises by the number of a round, such as a dictionary."""

    def get(self, number: int, /) -> Optional[dict[str, Any]]:
        """Return the promise of that round, or None."""

    def __setitem__(self, number: int, promise: dict[str, Any], /) -> None:
        """Put it there."""


class Promises:
    """The sets of sites for which one site lets a sum be known: one message a round, and one sum of it.

    A server that could have the sums over two sets, or of two messages that are nearly the same, would know what their
    difference found.

    Args:
      kept: where they are put; None for a dictionary, which ends with the process.
    """

    def __init__(self, kept: Optional[Kept] = None):
        self._kept: Kept = {} if kept is None else kept

    def answer(self, number: int, digest: bytes, attempt: Optional[int], work: bytes) -> None:
        """Note that a round is answered, for a sum over all sites or over those who answer.

        Args:
          number: of rounds done.
          digest: of its message.
          attempt: at the sum over those who answer; None for all.
          work: digest of the masked statistics.

        Raises:
          InvalidArgument: it had another message, was answered for the other kind of sum, or with other numbers.
        """
        now = {"digest": digest.hex(), "found": work.hex(), "of_some": attempt is not None}
        record = self._kept.get(number) or {**now, "sets": {}, "told": None}
        reasons = {
            "digest": "It has answered another message of this round: two answers would tell their difference.",
            "of_some": "It has answered this round for another sum: two sums would tell their difference.",
            "found": "Its work on this message came out otherwise than before, and one mask hides one answer alone.",
        }
        for name, reason in reasons.items():
            if record[name] != now[name]:
                raise InvalidArgument(reason)
        self._kept[number] = record

    def agree(self, number: int, attempt: int, members: np.ndarray) -> bytes:
        """Agree to a set of members [K] for an attempt, and return the digest of the round's message.

        Raises:
          InvalidArgument: it has agreed to another set of this attempt, or revealed its seeds for another attempt.
        """
        record = self._of(number)
        answers = "".join(map(str, members.tolist()))
        other = record["sets"].get(str(attempt), answers) != answers
        if other or record["told"] not in (None, attempt):
            raise InvalidArgument("It has let another sum of this round be known: two would tell their difference.")
        record["sets"][str(attempt)] = answers
        self._kept[number] = record
        return bytes.fromhex(record["digest"])

    def agreed(self, number: int, attempt: int) -> bytes:
        """Return the digest of the message of a round in which it has agreed to a set.

        Raises:
          InvalidArgument: it has not.
        """
        record = self._of(number)
        if str(attempt) not in record["sets"]:
            raise InvalidArgument("It has not agreed to this sum.")
        return bytes.fromhex(record["digest"])

    def tell(self, number: int, attempt: int, members: np.ndarray) -> None:
        """Record that the seeds for the sum over the members [K] are revealed.

        Raises:
          InvalidArgument: it has not agreed to them.
        """
        self.agreed(number, attempt)
        self.agree(number, attempt, members)
        self._kept[number] = {**self._of(number), "told": attempt}

    def _of(self, number: int) -> dict[str, Any]:
        record = self._kept.get(number)
        if record is None or not record["of_some"]:
            raise InvalidArgument("The site has answered no such round for a sum over some sites.")
        return record
