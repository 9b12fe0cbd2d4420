"""Secure aggregation: pairwise masks and self masks, which cancel in the sum over the answering sites.

    site i sends q_i + b_i + sum_{j > i} m_ij - sum_{j < i} m_ij  modulo 2^64

q_i are the integers of `rules.quantised`, and the masks are defined in `masks`. To the server, each number of a site is
uniformly distributed. After the answers, the server announces the set A of the sites that answered. Each site of A
sends the other sites of A a proof that it has agreed to this set. With the proofs of all sites of A, a site reveals the
seed of b_i and the seeds of m_ij for j not in A. These seeds remove all masks that remain in the sum over A, which
equals the sum of the q_i bit for bit.

A site never reveals both the seed of b_i and the seed of a mask with a site of A, and only one set is summed in a
round. If the quorum is all sites, there is no b_i and nothing to reveal. Losses and counts are masked and summed in the
same way.

Source: Bonawitz et al. 2017 (doi:10.1145/3133956.3133982). Two differences: consistency is by proofs with pairwise keys
instead of signatures, and seeds are not secret-shared, so that the sites of A must stay until they have revealed their
seeds.
"""

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_bfl.data import Parties
from tfp_bfl.errors import Error, InvalidArgument
from tfp_bfl.federated.faults import FAULTS, is_sound
from tfp_bfl.federated.process import BayesianProcess
from tfp_bfl.federated.round import Contribution, types_of
from tfp_bfl.sites import masks
from tfp_bfl.sites.arrays import NO_ANSWER, Arrays, ByRound, digest_of, from_arrays, in_order, to_arrays
from tfp_bfl.sites.party import Party, PartyEngine, Transport, result_spec

ATTEMPTS = 4  # At the sum of one round: a site that leaves before it has agreed costs one.
# Bound and steps per unit of the losses of a site as integers (per example), and of its counts.
_NLL, _KL, _COUNT = (2.0**10, 2.0**20), (2.0**26, 2.0**4), (2.0**36, 2.0**16)


class Sealed(NamedTuple):
    """The masked message of a site: statistics of the rule, and losses and counts, int64.

    The `report` is in the clear (`round.Report`), with zeros for the losses, the change and the counts of the site.
    """

    statistics: Any
    training: Any
    report: Any


class SetOfParties(NamedTuple):
    """The set of sites for a sum, proposed by the server; a site answers with its proofs for the other sites [K, 32].

    After `number` rounds, int32, in this `attempt`, int32; `members` is 1 for each site that answered, uint8 [K].
    """

    number: Any
    attempt: Any
    members: Any


class AgreedSet(NamedTuple):
    """The proof of each site for each other site that it agreed to the set, uint8 [K, K, 32].

    A site answers with the seeds [K, 32] of its self mask and of its pairwise masks with absent sites.
    """

    parties: SetOfParties
    proofs: Any


class SealedParty(Party):
    """A `Party` that masks its messages, and makes the checks that the server can't make on masked messages.

    The process has a rule that sums integers (`compose(secure_sums=...)`); `arguments` and `options` are of `Party`.

    Args:
      keys: number of each other site -> pairwise key of `KEY_BYTES` bytes, which only the two sites know.
      min_parties: smallest number of sites in a sum.
      promises: store of the site's promises (`Promises`); None for a dictionary.
    """

    def __init__(
        self,
        process: BayesianProcess,
        *arguments: Any,
        keys: Mapping[int, bytes],
        min_parties: int = 2,
        promises: ByRound[dict[str, Any]] | None = None,
        **options: Any,
    ):
        super().__init__(process, *arguments, **options)
        self._keys, self._min_parties, self._promises = dict(keys), min_parties, masks.Promises(promises)
        if any(len(key) != masks.KEY_BYTES for key in self._keys.values()):
            raise InvalidArgument(f"A key of two sites does not have {masks.KEY_BYTES} bytes: exchange the keys again.")
        if len(self._keys) + 1 < min_parties:
            raise InvalidArgument(f"The site reveals no sum of fewer than {min_parties} sites.")
        scalar = tf.TensorSpec([], tf.int32)
        types = self._spec, result_spec(process), scalar, scalar
        self._seal = tf.function(_sealing(process), autograph=False).get_concrete_function(*types)
        number, byte = len(self._keys) + 1, tf.uint8
        self._set = SetOfParties(scalar, scalar, tf.TensorSpec([number], byte))
        self._agreed = AgreedSet(self._set, tf.TensorSpec([number, number, masks.KEY_BYTES], byte))
        # The digest and result of the last message, for further attempts at its sum.
        self._last: tuple[bytes, Any] = (b"", None)

    def answer(self, message: Arrays) -> dict[str, np.ndarray]:
        """Return masked sums; proofs, for a `SetOfParties`; or seeds, for an `AgreedSet`."""
        if "proofs" in message:
            return self._reveal(from_arrays(message, self._agreed))
        if "members" in message:
            return self._agree(from_arrays(message, self._set))
        of_some = {"attempt": self._set.attempt} if "attempt" in message else {}
        parts = from_arrays(message, {**self._spec._asdict(), **of_some})
        attempt = self._attempt(parts.pop("attempt")) if of_some else None
        received = self._spec._replace(**parts)
        asked, done, digest = to_arrays(received), int(received.round), _digest(received)
        self._check_round(done)
        if self._last[0] != digest:
            size = tf.constant(self._size)
            sealed = self._seal(received, self._result(asked, received), tf.constant(self.number), size)
            self._last = digest, sealed
        sealed = self._last[1]
        fault = int(sealed.report.fault[0])
        if not is_sound(fault):
            # With zeros instead, the sum would be over fewer sites than announced.
            raise InvalidArgument(f"Its result is faulty: {FAULTS[fault]}.")
        self._promises.answer(done, digest, attempt, _digest((sealed.statistics, sealed.training)))
        masked = sealed.statistics, sealed.training
        leaves = [np.array(x) for x in tf.nest.flatten(masked)]
        context = masks.context_of(self._run, self._job, digest, attempt)
        masks.add_masks(leaves, self._keys, context, self.number)
        if attempt is not None:
            masks.add_mask(leaves, masks.seed_of(self._own, context), 1)
        statistics, training = tf.nest.pack_sequence_as(masked, leaves)
        return to_arrays(Sealed(statistics, training, sealed.report))

    def _attempt(self, number: Any) -> int:
        if not 0 <= number < ATTEMPTS:
            raise InvalidArgument(f"The attempt is {number}, but must be one of 0 to {ATTEMPTS - 1}.")
        return int(number)

    @property
    def _own(self) -> bytes:
        return hmac.digest(self._secret, b"masks of one's own", hashlib.sha256)

    def _agree(self, asked: SetOfParties) -> dict[str, np.ndarray]:
        done, attempt, members = int(asked.number), self._attempt(asked.attempt), asked.members
        there = int(np.count_nonzero(members))
        if members.max() > 1 or members[self.number] != 1 or there < self._min_parties:
            raise InvalidArgument(
                f"The sum is over {there} sites, but must include this site and at least {self._min_parties} sites."
            )
        digest = self._promises.agree(done, attempt, members)
        context = masks.context_of(self._run, self._job, digest, attempt)
        proofs = {other: masks.proof_of(key, context, members, self.number) for other, key in self._keys.items()}
        return {"proofs": masks.table_of(proofs, len(members))}

    def _reveal(self, agreed: AgreedSet) -> dict[str, np.ndarray]:
        (number, attempt_text, members), proofs = agreed
        done, attempt = int(number), self._attempt(attempt_text)
        context = masks.context_of(self._run, self._job, self._promises.agreed(done, attempt), attempt)
        for other, key in self._keys.items():
            wanted = masks.proof_of(key, context, members, other)
            if members[other] and not hmac.compare_digest(wanted, proofs[other, self.number].tobytes()):
                raise InvalidArgument(f"Site {other} has not agreed to this sum.")
        self._promises.reveal(done, attempt, members)
        seeds = {other: masks.seed_of(key, context) for other, key in self._keys.items() if not members[other]}
        return {"seeds": masks.table_of({**seeds, self.number: masks.seed_of(self._own, context)}, len(members))}


class SealedEngine(PartyEngine):
    """Engine for secure aggregation: the server reads the sum of the messages, and of a single site only its report.

    If the quorum is all sites, a round has one message, which all sites must answer. With a smaller quorum, a round has
    three messages, and the sum is over the sites that answered the first. A site that does not answer the second is
    left out of the next attempt. If a site does not answer the third, the run ends; it resumes when the site is back.

    The arguments are those of `PartyEngine`; the quorum is of sites with results that they report as valid.
    """

    def __init__(self, process: BayesianProcess, result: object, parties: Parties, transport: Transport, quorum: int):
        super().__init__(process, result, parties, transport, quorum)
        message, scalar = types_of(process.round.broadcast, types_of(process.round.initialize)).message, tf.int32
        self._sealed = types_of(_sealing(process), message, result, *[tf.TensorSpec([], scalar)] * 2)
        self._table = tf.TensorSpec([parties.num_clients, masks.KEY_BYTES], tf.uint8)
        self._last_read = -1
        # Masked losses and counts of the sites that have answered.
        self._training: dict[int, np.ndarray] = {}

    def _gather(self, message: Any, numbers: Sequence[int]) -> tuple[Contribution | None, dict[int, str]]:
        if self._last_read == int(message.round):
            raise Error(
                f"The weights after round {self._last_read + 1} are invalid, and with masks the responsible site is "
                "unknown. Earlier rounds are stored: use a smaller step size, or find the site in a run without masks."
            )
        if self._quorum < self._parties.num_clients:
            return self._sum_of_some(message, numbers)
        if len(numbers) < self._parties.num_clients:
            raise InvalidArgument("Masks cancel only in the sum over all sites, but this round has a cohort of them.")
        total, left_out = self._summed(message, numbers)
        if total is None or left_out:
            raise Error(
                f"Without an answer of every site the masks of round {int(message.round) + 1} do not cancel"
                f"{self._reasons(left_out)}. Earlier rounds are stored: resume when all sites answer."
            )
        return self._read(total, numbers, int(message.round)), left_out

    def _sum_of_some(self, message: Any, numbers: Sequence[int]) -> tuple[Contribution, dict[int, str]]:
        done, left_out, refused = np.asarray(message.round), dict[int, str](), dict[int, str]()
        for number in map(np.asarray, np.arange(ATTEMPTS, dtype=np.int32)):
            asked = [one for one in numbers if one not in left_out]
            total, missing = self._summed(message, asked, attempt=number)
            left_out |= missing
            there = [one for one in asked if one not in missing]
            if total is None or len(there) < max(self._quorum, 2):
                raise self._too_few(len(there), len(numbers), int(done), left_out)
            members = np.isin(np.arange(self._parties.num_clients), there).astype(np.uint8)
            wanted = SetOfParties(done, number, members)
            proofs, reasons = self._ask(wanted, there, "proofs")
            if not reasons:
                seeds, reasons = self._ask(AgreedSet(wanted, proofs), there, "seeds")
                if reasons:
                    more, reasons = self._ask(AgreedSet(wanted, proofs), list(reasons), "seeds")
                    seeds = seeds + more
                if reasons:
                    raise Error(
                        f"The sum of round {int(done) + 1} can't be read without the seeds of all its sites"
                        f"{self._reasons(reasons)}. Earlier rounds are stored: resume when these sites answer."
                    )
                return self._read(total, there, int(done), seeds), left_out
            # A refusing site may have revealed the sum of a later attempt, before a restart of the server.
            again = {one: why for one, why in reasons.items() if why == NO_ANSWER or one in refused}
            left_out, refused = {**left_out, **again}, {**refused, **reasons}
        raise Error(
            f"In {ATTEMPTS} attempts the sites of round {int(done) + 1} did not agree on the set of the sum"
            f"{self._reasons(refused)}. Earlier rounds are stored."
        )

    def _ask(self, what: object, numbers: Sequence[int], name: str) -> tuple[np.ndarray, dict[int, str]]:
        """Return the answers by site number [K, K, 32], zeros for no answer; and the reasons of sites without one."""
        read = lambda number, answer: from_arrays(answer, {name: self._table})[name]
        answers, reasons = self._transport.ask(numbers, to_arrays(what)), dict[int, str]()
        table = np.zeros([self._parties.num_clients, *self._table.shape], np.uint8)
        for number, rows in in_order(answers, numbers, read, reasons):
            table[number] = rows
        return table, reasons

    def _read(
        self, total: Contribution, there: Sequence[int], done: int, seeds: np.ndarray | None = None
    ) -> Contribution:
        """Return the sum over the sites of the agreed set, without the masks that remain in it."""
        training = np.sum([self._training[number] for number in there], 0, np.int64)
        leaves = [np.array(x) for x in (*tf.nest.flatten(total.statistics), training)]
        if seeds is not None:
            for i in there:
                masks.add_mask(leaves, seeds[i, i].tobytes(), -1)
                for j in set(range(self._parties.num_clients)).difference(there):
                    masks.add_mask(leaves, seeds[i, j].tobytes(), -1 if j > i else 1)
        *clear, training = leaves
        statistics = tf.nest.pack_sequence_as(total.statistics, list(map(tf.constant, clear)))
        self._last_read = done
        return total._replace(statistics=statistics, report=_with_training(total.report, training))

    def _contribution(self, message: Any, number: int, answer: Arrays) -> Contribution:
        statistics, self._training[number], report = from_arrays(answer, self._sealed)
        client, fault, held = (int(x[0]) for x in (report.client, report.fault, report.num_examples))
        if client != number or not 0 <= fault < len(FAULTS):
            raise InvalidArgument("its report names another site, or an unknown fault")
        if not is_sound(fault):
            raise InvalidArgument(f"it reports a faulty result: {FAULTS[fault]}")
        if held != self._parties.sizes[number]:
            raise InvalidArgument(
                f"it reports {held} examples, but reported {self._parties.sizes[number]} when the run began"
            )
        version = () if message.memory == () else message.round[tf.newaxis] + 1
        return Contribution(*tf.nest.map_structure(tf.constant, (statistics, version, report)))


def _digest(message: object) -> bytes:
    return bytes.fromhex(digest_of(to_arrays(message)))


def _sealing(process: BayesianProcess) -> Any:
    """Return the function (message, result, number, examples) -> `Sealed` before masking."""

    def seal(message: Any, result: Any, number: tf.Tensor, size: tf.Tensor) -> Sealed:
        one = process.round.take(message, result._replace(memory=()), number, size)
        if any(x.dtype != tf.int64 for x in tf.nest.flatten(one.statistics)):
            raise InvalidArgument(
                f"The rule {process.description['rule']!r} does not sum integers, which masks require: build the "
                "process with secure_sums."
            )
        report = one.report
        examples, counts = tf.cast(report.num_examples, tf.float64), tf.nest.flatten(report.counts)
        sums = report.kl, report.tempered_elbo
        parts = [_whole(report.nll, _NLL, examples), *(_whole(x, _KL, examples) for x in sums)]
        training = tf.concat([*parts, *(_whole(x, _COUNT) for x in counts)], 0)
        # The result of a faulty site may be NaN; it is not sent.
        training = tf.where(is_sound(report.fault), training, tf.zeros_like(training))
        hidden = tf.nest.map_structure(tf.zeros_like, report._replace(client=(), fault=(), num_examples=(), weight=()))
        shown = {name: getattr(report, name) for name in ("client", "fault", "num_examples", "weight")}
        return Sealed(one.statistics, training, hidden._replace(**shown))

    return seal


def _whole(x: tf.Tensor, of: tuple[float, float], times: object = 1.0) -> tf.Tensor:
    (bound, steps), x = of, tf.cast(x, tf.float64)
    return tf.cast(tf.round(tf.clip_by_value(x, -bound, bound) * times * steps), tf.int64)


def _with_training(report: Any, training: np.ndarray) -> Any:
    """Return the report with the mean losses for every site, and the sums of the counts at the first site."""
    examples = max(1.0, float(np.sum(report.num_examples)))
    means = (training[:3] / np.array([_NLL[1], _KL[1], _KL[1]]) / examples).astype(np.float32)
    names = dict(zip(("nll", "kl", "tempered_elbo"), (tf.fill(report.nll.shape, mean) for mean in means)))
    first = np.arange(len(report.client)) == 0
    sums = [first * x for x in training[3:] / _COUNT[1]]
    flat = [tf.cast(x, leaf.dtype) for x, leaf in zip(sums, tf.nest.flatten(report.counts))]
    return report._replace(counts=tf.nest.pack_sequence_as(report.counts, flat), **names)
