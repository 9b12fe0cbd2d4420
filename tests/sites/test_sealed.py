"""Secure aggregation: masked sums equal clear sums bit for bit, and the message of one site is noise."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

import tfp_bfl as bfl
from tests.sites.test_parties import CLIENTS, OPTIONS, PARTIES, SEED, Here, build, largest_difference, sources
from tfp_bfl.errors import Error, InvalidArgument
from tfp_bfl.sites import Party, SealedEngine, SealedParty, simulate_parties, to_arrays
from tfp_bfl.sites.masks import add_mask, context_of, seed_of
from tfp_bfl.sites.sealed import AgreedSet, SetOfParties

pytestmark = pytest.mark.cpu_seconds(60)
LATER = pytest.mark.deep(after="tests/sites/test_sealed.py")
WEIGHT = float(CLIENTS.sizes.max())
PROCESSES = {
    "variational": lambda **o: bfl.algorithms.variational(build(), "log_linear_pool", **OPTIONS, **o),
    "partitioned_vi": lambda **o: bfl.algorithms.partitioned_vi(build(), **OPTIONS, **o),
    "fed_opt": lambda **o: bfl.algorithms.fed_opt(build("deterministic"), **OPTIONS, **o),
}


def keys_of(number, parties=3):
    pairs = {frozenset(pair): bytes([sum(pair)]) * 32 for pair in itertools.combinations(range(parties), 2)}
    return {other: pairs[frozenset((number, other))] for other in range(parties) if other != number}


def parties_of(make, sealed, run="a", **kept):
    process = make(secure_sums=WEIGHT)
    for number, source in enumerate(sources()):
        given = process, source, number, bytes([number]), run
        yield SealedParty(*given, keys=keys_of(number), **kept) if sealed else Party(*given, **kept)


def simulated(make, sealed, quorum=3, here=None, rounds=2, **options):
    here = here or Here(list(parties_of(make, sealed)), **options)
    engine = {"make_engine": SealedEngine} if sealed else {}
    process = make(secure_sums=WEIGHT)
    return here, simulate_parties(process, PARTIES, here, rounds, seed=SEED, quorum=quorum, **engine)


def messages_of(make, rounds=1):
    """The messages of the server in the rounds of a run without masks."""
    return simulated(make, sealed=False, rounds=rounds)[0].messages


@pytest.mark.parametrize(
    "name", ["variational", *(pytest.param(name, marks=LATER) for name in ("partitioned_vi", "fed_opt"))]
)
def test_masked_sums_have_the_bits_of_clear_ones_and_are_as_good(name):
    make = PROCESSES[name]
    _, sealed = simulated(make, sealed=True)
    _, clear = simulated(make, sealed=False)
    assert largest_difference(sealed.state.weights, clear.state.weights) == 0
    plain = Here([Party(make(), source, k, bytes([k]), "a") for k, source in enumerate(sources())])
    exact = simulate_parties(make(), PARTIES, plain, rounds=2, seed=SEED)
    for a, b in zip(tf.nest.flatten(sealed.state.weights), tf.nest.flatten(exact.state.weights)):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-6)
    assert [r["nll"] for r in sealed.rounds] == pytest.approx([r["nll"] for r in exact.rounds], rel=1e-4)


@pytest.mark.statistical
def test_the_message_of_one_site_is_noise_and_no_mask_is_used_twice():
    """Bits of every number are ones as often as not: within 5 standard errors of 1/2, wrong once in 2e6."""
    here, _ = simulated(PROCESSES["variational"], sealed=True)
    one, other = here.parties[1], next(parties_of(PROCESSES["variational"], sealed=False))
    message = here.messages[-1]
    numbers = lambda answer: np.concatenate(
        [np.ravel(x) for name, x in sorted(answer.items()) if name.startswith("statistics") and x.size > 1]
    )
    sent = numbers(one.answer(message))
    share = np.unpackbits(sent.view(np.uint8)).mean()
    assert sent.dtype == np.int64 and abs(share - 0.5) < 5 * 0.5 / np.sqrt(64 * len(sent))
    assert not any(name.startswith("statistics") for name in other.answer(message))
    # Asked again it says the same; of another message no number has the same mask.
    np.testing.assert_array_equal(sent, numbers(one.answer(message)))
    moved = {**message, "weights/posterior/mean/0": message["weights/posterior/mean/0"] + np.float32(1e-7)}
    anew = list(parties_of(PROCESSES["variational"], sealed=True))[1]
    again = numbers(anew.answer(moved)) - sent
    assert np.mean(np.abs(again) > 2**55) > 0.9


def test_a_site_that_does_not_answer_ends_the_run_which_resumes_when_it_is_back(tmp_path):
    make, options = PROCESSES["variational"], {"rounds": 2, "seed": SEED, "make_engine": SealedEngine, "quorum": 3}
    there = list(parties_of(make, sealed=True))
    with pytest.raises(Error, match=r"masks of round 1 do not cancel \(west: it did not answer in time\)"):
        simulate_parties(
            make(secure_sums=WEIGHT), PARTIES, Here(there, silent=[2]), checkpoint_dir=tmp_path / "a", **options
        )
    found = simulate_parties(make(secure_sums=WEIGHT), PARTIES, Here(there), checkpoint_dir=tmp_path / "a", **options)
    _, whole = simulated(make, sealed=True)
    assert largest_difference(found.state.weights, whole.state.weights) == 0


def changed(**values):
    def lie(answer):
        like = {f"report/{name}": x for name, x in values.items()}
        return {**answer, **{name: np.asarray([x], answer[name].dtype) for name, x in like.items()}}

    return lie


@pytest.mark.parametrize(
    ("lie", "message"),
    [
        (changed(client=0), "report names another site"),
        (changed(fault=99), "or an unknown fault"),
        (changed(num_examples=10_000), "it reports 10000 examples, but reported 30"),
        (lambda answer: {**answer, "report/nll": np.array([np.nan], np.float32)}, "report/nll is not finite"),
        (lambda answer: {name: x for name, x in answer.items() if "weight" not in name}, "misses"),
    ],
)
def test_lies_about_itself_are_named(lie, message):
    with pytest.raises(Error, match=rf"south: .*{message}"):
        simulated(PROCESSES["fed_opt"], sealed=True, lies={1: lie})


def spoilt(parties, number):
    """Return the sites; the result of site `number` is NaN."""
    work = parties[number]._work
    parties[number]._work = lambda *given: tf.nest.map_structure(
        lambda x: x * np.nan if x.dtype == tf.float32 else x, work(*given)
    )
    return parties


def test_a_site_with_a_faulty_result_is_not_in_the_sum():
    """With zeros in its place, the sum would be over fewer sites than the others have agreed to."""
    make = PROCESSES["fed_opt"]
    here, found = of_some(make, (), spoilt(list(parties_of(make, sealed=True)), 1))
    assert [row["num_faulty"] for row in found.rounds] == [1, 1]
    assert all(np.all(np.isfinite(x)) for x in tf.nest.flatten(found.state.weights))
    assert [numbers for exchange, numbers, _ in here.heard if exchange == "proofs"] == [(0, 2)] * 2
    with pytest.raises(Error, match="south: Its result is faulty: not finite"):
        simulated(make, sealed=True, here=Leaving(spoilt(list(parties_of(make, sealed=True)), 1), ()))


def test_who_masks_other_work_on_the_same_message_is_not_answered():
    make, kept = PROCESSES["fed_opt"], {}
    (message,) = messages_of(make)
    party = next(parties_of(make, sealed=True, promises=kept))
    first = party.answer(message)
    again = next(parties_of(make, sealed=True, promises=kept))
    assert all(np.array_equal(x, first[name]) for name, x in again.answer(message).items())
    other = next(parties_of(make, sealed=True, promises=kept))
    other._secret = b"whose noise is another"
    with pytest.raises(InvalidArgument, match="differs from its first one, and a mask hides only one answer"):
        other.answer(message)


def hostile(engine_class):
    """Return an engine with far too large sums."""

    class Hostile(engine_class):
        def _read(self, *given):
            total = super()._read(*given)
            return total._replace(
                statistics=tf.nest.map_structure(lambda x: x + 2**55 * (len(x.shape) > 0), total.statistics)
            )

    return Hostile


def test_a_sum_that_spoils_the_round_ends_the_run_with_a_sentence(tmp_path):
    make = PROCESSES["fed_opt"]
    run = {"rounds": 2, "seed": SEED, "checkpoint_dir": tmp_path / "a", "make_engine": hostile(SealedEngine)}
    process = make(secure_sums=WEIGHT, max_magnitude=10.0)
    parties = Here(list(parties_of(make, sealed=True)))
    with pytest.raises(Error, match=r"after round 1 are invalid, and with masks the responsible site"):
        simulate_parties(process, PARTIES, parties, quorum=2, **run)


def test_losses_are_sums_too():
    """Only the number, size and weight of a site's report are in the clear."""
    make = PROCESSES["variational"]
    here, sealed = of_some(make, ())
    _, clear = simulated(make, sealed=False)
    for name in ("nll", "kl", "tempered_elbo"):
        # Whole numbers of the size of a KL have steps of 1e-3 nats.
        wanted = pytest.approx([r[name] for r in clear.rounds], rel=1e-4, abs=1e-4 if name == "nll" else 2e-3)
        assert [r[name] for r in sealed.rounds] == wanted
    told = {name: x for answer in here.heard[0][2].values() for name, x in answer.items() if name.startswith("report/")}
    assert {name for name, x in told.items() if x.any()} <= {
        f"report/{x}" for x in ("client", "num_examples", "weight")
    }


def test_sites_with_different_jobs_have_no_common_mask():
    make = PROCESSES["fed_opt"]
    jobs = [bytes(32), bytes(32), bytes([1]) * 32]
    parties = [
        SealedParty(make(secure_sums=WEIGHT), source, k, bytes([k]), "a", keys=keys_of(k), job=jobs[k])
        for k, source in enumerate(sources())
    ]
    with pytest.raises(Error, match="has not agreed to this sum"):
        of_some(make, (), parties)
    with pytest.raises(InvalidArgument, match="no sum of fewer than 4 sites"):
        next(parties_of(make, sealed=True, min_parties=4))
    last = next(parties_of(make, sealed=True, rounds=1))
    first, second = messages_of(make, rounds=2)
    last.answer(first)
    with pytest.raises(InvalidArgument, match="agreed to 1 rounds, which do not include round 2"):
        last.answer(second)


def test_what_masks_do_not_go_with():
    make = PROCESSES["fed_opt"]
    there = Here(list(parties_of(make, sealed=True)))
    with pytest.raises(InvalidArgument, match="does not sum integers"):
        simulate_parties(make(), PARTIES, there, rounds=1, make_engine=SealedEngine)
    source = next(sources())
    with pytest.raises(InvalidArgument, match="does not have 32 bytes"):
        SealedParty(make(secure_sums=WEIGHT), source, 0, b"own", "a", keys={1: b"short"})
    with pytest.raises(InvalidArgument, match="Weighting by 'distance' has no bound that is known beforehand"):
        bfl.algorithms.variational(build(), "conflation", "distance", secure_sums=WEIGHT, **OPTIONS)
    with pytest.raises(InvalidArgument, match="under masks a round has one sum"):
        bfl.algorithms.fed_opt(build("deterministic"), max_weight_ratio=10, secure_sums=WEIGHT, **OPTIONS)
    with pytest.raises(InvalidArgument, match="needs more of the clients than a sum"):
        bfl.algorithms.fed_opt(build("deterministic"), robust="median", secure_sums=WEIGHT, **OPTIONS)


class Leaving(Here):
    """Sites of which some are absent at an exchange of a round: (exchange, number) of each."""

    def __init__(self, parties, gone, lies=None):
        super().__init__(parties)
        self.gone, self.heard, self.of_exchange = set(gone), [], lies or {}

    def ask(self, numbers, message):
        exchange = next((name for name in ("proofs", "members") if name in message), "round")
        self.heard.append((exchange, tuple(numbers), {}))
        for number in numbers:
            if (exchange, number) in self.gone:
                continue
            try:
                answer = self.parties[number].answer(message)
            except InvalidArgument as error:
                answer = str(error)
            answer = self.of_exchange.get((exchange, number), lambda answer: answer)(answer)
            self.heard[-1][2][number] = answer
            yield number, answer


def of_some(make, gone, parties=None, lies=None, **options):
    here = Leaving(parties or list(parties_of(make, sealed=True)), gone, lies)
    return simulated(make, sealed=True, here=here, quorum=2, **options)


@pytest.mark.parametrize(
    ("name", "exchange"),
    [
        ("variational", "members"),
        *(pytest.param("variational", exchange, marks=LATER) for exchange in ("nobody", "round")),
        *(pytest.param(name, "members", marks=LATER) for name in ("partitioned_vi", "fed_opt")),
    ],
)
def test_the_sum_over_those_who_stay_has_the_bits_of_the_clear_one(name, exchange):
    make = PROCESSES[name]
    here, found = of_some(make, {(exchange, 1)})
    silent = [] if exchange == "nobody" else [1]
    _, clear = simulated(make, sealed=False, quorum=2, silent=silent)
    assert largest_difference(found.state.weights, clear.state.weights) == 0
    assert [row["num_faulty"] for row in found.rounds] == [len(silent)] * 2
    exchanges = {"nobody": 3, "round": 3, "members": 5}[exchange]
    assert [x for x, *_ in here.heard][:exchanges] == ["round", "members"] * (exchanges // 2) + ["proofs"]


def test_a_site_that_leaves_before_it_reveals_its_seeds_ends_the_run_which_resumes(tmp_path):
    make = PROCESSES["fed_opt"]
    there = list(parties_of(make, sealed=True))
    run = {"rounds": 2, "seed": SEED, "quorum": 2, "make_engine": SealedEngine, "checkpoint_dir": tmp_path / "a"}
    with pytest.raises(Error, match=r"sum of round 1 can't be read without .*south: it did not answer in time"):
        simulate_parties(make(secure_sums=WEIGHT), PARTIES, Leaving(there, {("proofs", 1)}), **run)
    # The others have revealed their seeds: without south, no other sum of this round is possible.
    with pytest.raises(Error, match=r"0 of 3 sites .*north: It has revealed another sum of this round"):
        simulate_parties(make(secure_sums=WEIGHT), PARTIES, Leaving(there, {("round", 1)}), **run)
    found = simulate_parties(make(secure_sums=WEIGHT), PARTIES, Leaving(there, ()), **run)
    _, whole = simulated(make, sealed=True)
    assert largest_difference(found.state.weights, whole.state.weights) == 0


def test_a_site_does_the_work_of_a_round_once(monkeypatch):
    make = PROCESSES["fed_opt"]
    parties, works = list(parties_of(make, sealed=True)), []
    for party in parties:
        party._work = lambda *given, work=party._work: works.append(1) or work(*given)
    here, _ = of_some(make, {("members", 2)}, parties)
    assert len(works) == 2 * 3 and len(here.heard) == 2 * 5


def numbers_less(answer, seeds):
    """Return the numbers that a site sent, less masks of (seed, sign), modulo 2^64."""
    leaves = [np.array(x) for name, x in answer.items() if name.startswith("statistics")]
    for seed, sign in seeds:
        add_mask(leaves, seed, -sign)
    return np.concatenate([np.ravel(x) for x in leaves])


def test_the_message_of_one_site_stays_noise_with_all_revealed_seeds():
    """With any combination of the revealed masks removed: large numbers, although the plain ones are small."""
    make = PROCESSES["fed_opt"]
    here, _ = of_some(make, {("members", 1)})
    rounds = [answers for exchange, _, answers in here.heard if exchange == "round"][:2]
    replies = next(answers for exchange, _, answers in here.heard if exchange == "proofs")
    told = [row.tobytes() for reply in replies.values() for row in reply["seeds"] if row.any()]
    assert len(told) == 4 and sorted(rounds[0]) == [0, 1, 2] and sorted(rounds[1]) == [0, 2]
    signs = [
        [(seed, sign) for seed, sign in zip(told, signs) if sign] for signs in itertools.product((0, 1, -1), repeat=4)
    ]
    for number, answer in [*rounds[0].items(), *rounds[1].items()]:
        assert all(np.mean(np.abs(numbers_less(answer, masks)) > 2**55) > 0.9 for masks in signs), number
    # The key of the two remaining sites would reveal them.
    context = context_of("a", bytes(32), here.parties[0]._last[0], 1)
    of_round_two = [answers for exchange, _, answers in here.heard if exchange == "round"][-1]
    told = [answers for exchange, _, answers in here.heard if exchange == "proofs"][-1][0]["seeds"]
    masks = [(told[0].tobytes(), 1), (told[1].tobytes(), 1), (seed_of(keys_of(0)[2], context), 1)]
    assert np.mean(np.abs(numbers_less(of_round_two[0], masks)) < 2**45) > 0.9


def test_a_server_that_would_have_two_sums_is_refused():
    make = PROCESSES["fed_opt"]
    parties = list(parties_of(make, sealed=True))
    (message,) = messages_of(make)
    at = lambda attempt: {**message, "attempt": np.array(attempt, np.int32)}
    for party in parties:
        party.answer(at(0))
        party.answer(at(1))
    zero = np.array(0, np.int32)
    of = lambda attempt, *members: SetOfParties(zero, np.array(attempt, np.int32), np.array(members, np.uint8))
    ask = lambda number, what: parties[number].answer(to_arrays(what))

    # The server announces all sites to two of them, and to the third only itself and the first.
    proofs = np.stack([ask(number, of(0, 1, 1, 1))["proofs"] for number in (0, 1)] + [np.zeros([3, 32], np.uint8)])
    with pytest.raises(InvalidArgument, match="another sum of this round"):
        ask(0, of(0, 1, 0, 1))
    ask(2, of(0, 1, 0, 1))
    for number in (0, 1):
        with pytest.raises(InvalidArgument, match="Site 2 has not agreed to this sum"):
            ask(number, AgreedSet(of(0, 1, 1, 1), proofs))
    with pytest.raises(InvalidArgument, match="Site 0 has not agreed"):
        ask(2, AgreedSet(of(0, 1, 0, 1), proofs))
    with pytest.raises(InvalidArgument, match="It has not agreed to this sum"):
        ask(1, AgreedSet(of(1, 1, 1, 0), proofs))

    # After the seeds for one sum, no seeds for another one.
    proofs = np.stack([ask(number, of(1, 1, 1, 1))["proofs"] for number in range(3)])
    seeds = ask(0, AgreedSet(of(1, 1, 1, 1), proofs))["seeds"]
    assert seeds[0].any() and not seeds[1:].any()
    np.testing.assert_array_equal(ask(0, AgreedSet(of(1, 1, 1, 1), proofs))["seeds"], seeds)
    with pytest.raises(InvalidArgument, match="another sum of this round"):
        ask(0, of(2, 1, 1, 0))
    with pytest.raises(InvalidArgument, match="answered this round for another sum"):
        parties[0].answer(message)
    # Nor of a message that is nearly the same.
    moved = {name: np.nextafter(x, 2) if name.startswith("weights/") else x for name, x in at(2).items()}
    with pytest.raises(InvalidArgument, match="answered another message of this round"):
        parties[0].answer(moved)

    for members in ((0, 1, 1), (1, 0, 0), (2, 1, 1)):
        with pytest.raises(InvalidArgument, match="must include this site and at least 2 sites"):
            ask(0, of(1, *members))
    with pytest.raises(InvalidArgument, match="answered no such round"):
        ask(0, of(0, 1, 1, 1)._replace(number=np.array(1, np.int32)))
    for bad in (of(9, 1, 1, 1), of(-1, 1, 1, 1)):
        with pytest.raises(InvalidArgument, match="must be one of 0 to 3"):
            ask(0, bad)
    with pytest.raises(InvalidArgument, match="must be one of 0 to 3"):
        parties[0].answer(at(9))


def test_what_is_promised_outlasts_the_process():
    make, kept = PROCESSES["fed_opt"], {}
    party = next(parties_of(make, sealed=True, promises=kept))
    (message,) = messages_of(make)
    party.answer(message)
    again = next(parties_of(make, sealed=True, promises=kept))
    again.answer(message)
    with pytest.raises(InvalidArgument, match="answered this round for another sum"):
        again.answer({**message, "attempt": np.array(0, np.int32)})


@pytest.mark.parametrize(
    ("lie", "message"),
    [
        (("members", lambda answer: {"proofs": np.zeros([3, 32], np.uint8)}), "has not agreed to this sum"),
        (("proofs", lambda answer: {"seeds": np.zeros([3, 31], np.uint8)}), r"must have \[3, 32\]"),
        (("proofs", lambda answer: {}), "misses 'seeds'"),
    ],
)
def test_a_site_with_invalid_proofs_or_seeds_is_named(lie, message):
    exchange, act = lie
    with pytest.raises(Error, match=f"(north|south|west): .*{message}"):
        of_some(PROCESSES["fed_opt"], (), lies={(exchange, 1): act})
