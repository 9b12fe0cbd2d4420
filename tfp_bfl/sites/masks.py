"""Masks of integers for secure aggregation: pairwise masks, self masks, and the conditions for revealing their seeds.

    m_ij = SHAKE-256(HMAC(k_ij, c)),   b_i = SHAKE-256(HMAC(s_i, c)),   c = (run, job, message, attempt)

m_ij is the pairwise mask of sites i and j, from their pairwise key k_ij; b_i is the self mask of site i, from its
secret s_i.
"""

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfp_bfl.errors import InvalidArgument
from tfp_bfl.sites.arrays import ByRound

KEY_BYTES = 32  # Length of a pairwise key, of a seed, and of a proof.


def context_of(run: str, job: bytes, digest: bytes, attempt: int | None = None) -> bytes:
    """Return the context of seeds: the run, its job, one message of it, and the attempt at its sum.

    `job` and `digest` are digests [32] of the job and of the message: sites with different jobs, which include the
    sites, have no common mask. `attempt` is None if all sites must answer.
    """
    return run.encode() + job + digest + (b"" if attempt is None else attempt.to_bytes(4, "big"))


def seed_of(key: bytes, context: bytes) -> bytes:
    """Return the seed of a mask, which reveals no other seed."""
    return hmac.digest(key, b"mask" + context, hashlib.sha256)


def proof_of(key: bytes, context: bytes, content: np.ndarray, author: int | None = None) -> bytes:
    """Compute the proof of a masked answer, or that site `author` agreed to a set of members [K], by a pairwise key."""
    what = b"answer" + context if author is None else b"set" + context + author.to_bytes(4, "big")
    return hmac.digest(key, what + content.tobytes(), hashlib.sha256)


def add_mask(leaves: Sequence[np.ndarray], seed: bytes, sign: int) -> None:
    """Add (sign 1) or subtract (-1) the mask of a seed, modulo 2^64, in place."""
    sizes = [x.size for x in leaves]
    stream = hashlib.shake_256(seed).digest(8 * sum(sizes))
    for leaf, mask in zip(leaves, np.split(np.frombuffer(stream, np.int64), np.cumsum(sizes)[:-1])):
        (np.add if sign > 0 else np.subtract)(leaf, mask.reshape(leaf.shape), out=leaf)


def add_masks(leaves: Sequence[np.ndarray], keys: Mapping[int, bytes], context: bytes, number: int) -> None:
    """Add the pairwise masks of site `number` with all others, by their keys, in place."""
    for other, key in keys.items():
        add_mask(leaves, seed_of(key, context), 1 if other > number else -1)


def table_of(contents: Mapping[int, bytes], number: int) -> np.ndarray:
    """Return proofs or seeds by the numbers of sites [K, 32], zeros for sites without."""
    rows = np.zeros([number, KEY_BYTES], np.uint8)
    for site, content in contents.items():
        rows[site] = np.frombuffer(content, np.uint8)
    return rows


class Promises:
    """Promises of a site: it answers one message in a round, and reveals seeds for one set of sites.

    The difference of two sums, over two sets or of two similar messages, would reveal the contribution of single sites:
    what breaks a promise raises `InvalidArgument`. Without a `store`, promises end with the process.
    """

    def __init__(self, store: ByRound[dict[str, Any]] | None = None):
        self._store: ByRound[dict[str, Any]] = {} if store is None else store

    def answer(self, number: int, digest: bytes, attempt: int | None, work: bytes) -> None:
        """Record the answer of a round: the digests of its message, and of the `work` before masking.

        `attempt` is that at the sum over the answering sites; None for the sum over all sites.
        """
        now = {"digest": digest.hex(), "found": work.hex(), "of_some": attempt is not None}
        is_known = number in self._store
        record = self._store[number] if is_known else {**now, "sets": {}, "told": None}
        reasons = {
            "digest": "It has answered another message of this round: two answers would reveal their difference.",
            "of_some": "It has answered this round for another sum: two sums would reveal their difference.",
            "found": "Its result for this message differs from its first one, and a mask hides only one answer.",
        }
        for name, reason in reasons.items():
            if record[name] != now[name]:
                raise InvalidArgument(reason)
        self._store[number] = record

    def agree(self, number: int, attempt: int, members: np.ndarray) -> bytes:
        """Agree to a set of members [K] in an attempt, and return the digest of the round's message."""
        record = self._of(number)
        answers = "".join(map(str, members.tolist()))
        other = record["sets"].get(str(attempt), answers) != answers
        if other or record["told"] not in (None, attempt):
            raise InvalidArgument("It has revealed another sum of this round: two sums would reveal their difference.")
        record["sets"][str(attempt)] = answers
        self._store[number] = record
        return bytes.fromhex(record["digest"])

    def agreed(self, number: int, attempt: int) -> bytes:
        """Return the digest of the message of a round in which the site has agreed to a set."""
        record = self._of(number)
        if str(attempt) not in record["sets"]:
            raise InvalidArgument("It has not agreed to this sum.")
        return bytes.fromhex(record["digest"])

    def reveal(self, number: int, attempt: int, members: np.ndarray) -> None:
        """Record that the seeds for the sum over the members [K] are revealed; the site has agreed to this set."""
        self.agreed(number, attempt)
        self.agree(number, attempt, members)
        self._store[number] = {**self._of(number), "told": attempt}

    def _of(self, number: int) -> dict[str, Any]:
        if number in self._store and (record := self._store[number])["of_some"]:
            return record
        raise InvalidArgument("The site has answered no such round for a sum over some sites.")
