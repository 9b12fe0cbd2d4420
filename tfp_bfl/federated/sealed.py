"""Parties whose single contributions the server can't read: masks that cancel in the sum over all of them.

    party i sends q_i + sum_{j > i} m_ij - sum_{j < i} m_ij  modulo 2^64,   m_ij = SHAKE-256(k_ij, run, message)

q_i are the whole numbers of `rules.quantised`, and k_ij is a key that parties i and j alone have. To the server each
number of a party is uniform; their sum is that of the q_i, bit for bit. No mask is used for two messages, so that no
difference of a party's answers is seen either; the same message again, after a break, gives the same bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_bfl.data import Parties
from tfp_bfl.errors import Error, InvalidArgument
from tfp_bfl.federated.arrays import from_arrays, to_arrays
from tfp_bfl.federated.faults import FAULTS, is_sound
from tfp_bfl.federated.local import Output
from tfp_bfl.federated.parties import Answer, Party, PartyEngine, Transport, result_spec
from tfp_bfl.federated.process import BayesianProcess
from tfp_bfl.federated.round import Contribution, types_of

# Of a key that two parties share.
KEY_BYTES = 32


class Sealed(NamedTuple):
    """What a party sends.

    Fields:
      statistics: of the rule, masked: int64.
      report: of itself, in the clear (`round.Report`).
    """

    statistics: Any
    report: Any


class SealedParty(Party):
    """A `Party` that masks what it sends, and checks itself what the server can't.

    Args:
      process: of the run, whose rule sums whole numbers (`compose(secure_sums=...)`).
      *own, **kept: the others of `Party`.
      keys: of each other party's number, `KEY_BYTES` that only the two have.

    Raises:
      InvalidArgument: the rule sums no whole numbers, or a key is none.
    """

    def __init__(self, process: BayesianProcess, *own: Any, keys: Mapping[int, bytes], **kept: Any):
        super().__init__(process, *own, **kept)
        self._keys = dict(keys)
        if any(len(key) != KEY_BYTES for key in self._keys.values()):
            raise InvalidArgument(f"A key that parties share has not {KEY_BYTES} bytes: agree on them anew.")
        scalar = tf.TensorSpec([], tf.int32)
        types = self._spec, result_spec(process), scalar, scalar
        self._seal = tf.function(_sealing(process), autograph=False).get_concrete_function(*types)

    def _sent(self, message: Any, result: Any) -> dict[str, np.ndarray]:
        size = tf.constant(len(self._examples.labels))
        sealed = self._seal(message, result, tf.constant(self.number), size)
        leaves = [np.array(x) for x in tf.nest.flatten(sealed.statistics)]
        context = self._run.encode() + _digest(message)
        for other, key in self._keys.items():
            stream = hashlib.shake_256(key + context).digest(8 * sum(x.size for x in leaves))
            masks = np.split(np.frombuffer(stream, np.int64), np.cumsum([x.size for x in leaves])[:-1])
            for leaf, mask in zip(leaves, masks):
                (np.add if other > self.number else np.subtract)(leaf, mask.reshape(leaf.shape), out=leaf)
        return to_arrays(sealed._replace(statistics=tf.nest.pack_sequence_as(sealed.statistics, leaves)))


class SealedEngine(PartyEngine):
    """Runs rounds over parties that mask what they send: it has their sum, and nothing of one of them but its report.

    Masks cancel over all parties alone: a round that one of them does not answer ends the run, which goes on from
    there when it is back.

    Args:
      process, result, parties, transport: as of `PartyEngine`.
      quorum: the fewest of them that must be sound, by their own word.
    """

    def __init__(self, process: BayesianProcess, result: Any, parties: Parties, transport: Transport, quorum: int):
        super().__init__(process, result, parties, transport, quorum)
        message, scalar = types_of(process.round.broadcast, types_of(process.round.initialize)).message, tf.int32
        self._sealed = types_of(_sealing(process), message, result, *[tf.TensorSpec([], scalar)] * 2)

    def next(self, state: Any, numbers: Any) -> Output:
        """As of `PartyEngine`; all parties must be asked."""
        if sorted(numbers) != list(range(self._parties.num_clients)):
            raise InvalidArgument(
                "Masks cancel in the sum over all parties alone, and this round is of some: leave cohort_size out."
            )
        output = super().next(state, numbers)
        if output.left_out:
            told = self._reasons(output.left_out)
            raise Error(
                f"Without an answer of every party the masks of round {int(state.round) + 1} do not cancel{told}. The "
                "rounds before are kept: run it again when all are there."
            )
        return output

    def _contribution(self, message: Any, answer: Answer, number: int) -> Contribution:
        if isinstance(answer, str):
            raise InvalidArgument(answer)
        statistics, report = from_arrays(answer, self._sealed)
        client, fault, held = (int(x[0]) for x in (report.client, report.fault, report.num_examples))
        if client != number or not 0 <= fault < len(FAULTS):
            raise InvalidArgument("its report is of another party, or of a fault that there is not")
        if is_sound(fault) and held != self._parties.sizes[number]:
            raise InvalidArgument(
                f"it tells of {held} examples, but said that it has {self._parties.sizes[number]} when the run began"
            )
        kept = () if message.memory == () else message.round[tf.newaxis] + 1
        return Contribution(*tf.nest.map_structure(tf.constant, (statistics, kept, report)))


def _digest(message: Any) -> bytes:
    found = hashlib.sha256()
    for name, x in sorted(to_arrays(message).items()):
        found.update(f"{name}:{x.dtype.str}:{x.shape}:".encode() + x.tobytes())
    return found.digest()


def _sealing(process: BayesianProcess) -> Any:
    """The function (message, result, number, examples) -> `Sealed` without its masks."""

    def seal(message: Any, result: Any, number: tf.Tensor, size: tf.Tensor) -> Sealed:
        one = process.round.take(message, result._replace(memory=()), number, size)
        if any(x.dtype != tf.int64 for x in tf.nest.flatten(one.statistics)):
            raise InvalidArgument(
                f"The rule {process.description['rule']!r} sums no whole numbers, which masks can hide: build the "
                "process with secure_sums."
            )
        # What a faulty client computed may be no number.
        sound = is_sound(one.report.fault)
        clean = lambda x: tf.where(sound, x, tf.zeros_like(x)) if x.dtype.is_floating else x
        return Sealed(one.statistics, tf.nest.map_structure(clean, one.report))

    return seal
