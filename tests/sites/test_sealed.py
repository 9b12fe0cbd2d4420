"""Secure aggregation: masked sums equal clear sums bit for bit, and the message of one site is noise."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

import tfp_bfl as bfl
from tests.kit import fails, refuses
from tests.sites.test_parties import CLIENTS, OPTIONS, PARTIES, SEED, Here, build, largest_difference, sources
from tfp_bfl.errors import Error
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


def keys_of(number):
    pairs = {frozenset(pair): bytes([sum(pair)]) * 32 for pair in itertools.combinations(range(3), 2)}
    return {other: pairs[frozenset((number, other))] for other in range(3) if other != number}


def parties_of(make, sealed=True, jobs=(bytes(32),) * 3, **kept):
    for number, source in enumerate(sources()):
        own = make(secure_sums=WEIGHT), source, number, bytes([number]), "a"
        kept["job"] = jobs[number]
        yield SealedParty(*own, keys=keys_of(number), **kept) if sealed else Party(*own, **kept)


def simulated(make, here=None, sealed=True, quorum=3, rounds=2, **options):
    """Run a process, over honest sites if no others are given."""
    here = here or Here(parties_of(make, sealed))
    options |= {"make_engine": SealedEngine, **options} if sealed else {}
    return here, simulate_parties(make(secure_sums=WEIGHT), PARTIES, here, rounds, quorum, seed=SEED, **options)


def of_some(make, silent=(), parties=None, lies=None):
    """As `simulated` with the sum over the sites that answer."""
    return simulated(make, Here(parties or parties_of(make), lies, silent), quorum=2)


def messages_of(make, rounds=1):
    """The messages of the server in the rounds of a run without masks."""
    return simulated(make, sealed=False, rounds=rounds)[0].messages


@pytest.mark.parametrize(
    "name", ["variational", *(pytest.param(name, marks=LATER) for name in ("partitioned_vi", "fed_opt"))]
)
def test_masked_sums_have_the_bits_of_clear_ones_and_are_as_good(name):
    make = PROCESSES[name]
    (_, sealed), (_, clear) = (simulated(make, sealed=is_sealed) for is_sealed in (True, False))
    assert largest_difference(sealed.state.weights, clear.state.weights) == 0
    plain = Here([Party(make(), source, k, bytes([k]), "a") for k, source in enumerate(sources())])
    exact = simulate_parties(make(), PARTIES, plain, rounds=2, seed=SEED)
    for a, b in zip(tf.nest.flatten(sealed.state.weights), tf.nest.flatten(exact.state.weights)):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-6)
    assert [r["nll"] for r in sealed.rounds] == pytest.approx([r["nll"] for r in exact.rounds], rel=1e-4)


@pytest.mark.statistical
def test_the_message_of_one_site_is_noise_and_no_mask_is_used_twice():
    """Bits of every number are ones as often as not: within 5 standard errors of 1/2, wrong once in 2e6."""
    here, _ = simulated(PROCESSES["variational"])
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
    anew = list(parties_of(PROCESSES["variational"]))[1]
    again = numbers(anew.answer(moved)) - sent
    assert np.mean(np.abs(again) > 2**55) > 0.9


def test_a_site_that_does_not_answer_ends_the_run_which_resumes_when_it_is_back(tmp_path):
    make = PROCESSES["variational"]
    there = list(parties_of(make))
    fails(r"round 1 do not cancel \(west: it did", simulated, make, Here(there, silent=[2]), checkpoint_dir=tmp_path)
    _, found = simulated(make, Here(there), checkpoint_dir=tmp_path)
    assert largest_difference(found.state.weights, simulated(make)[1].state.weights) == 0


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
        make = PROCESSES["fed_opt"]
        simulated(make, Here(parties_of(make), {1: lie}))


def spoilt(parties):
    """Return the sites; the result of the second one is NaN."""
    _, party, _ = found = list(parties)
    work, spoil = party._work, lambda x: x * np.nan if x.dtype == tf.float32 else x
    party._work = lambda *given: tf.nest.map_structure(spoil, work(*given))
    return found


def test_a_site_with_a_faulty_result_is_not_in_the_sum():
    """With zeros in its place, the sum would be over fewer sites than the others have agreed to."""
    make = PROCESSES["fed_opt"]
    here, found = of_some(make, (), spoilt(parties_of(make)))
    assert [row["num_faulty"] for row in found.rounds] == [1, 1]
    assert all(np.all(np.isfinite(x)) for x in tf.nest.flatten(found.state.weights))
    assert [numbers for exchange, numbers, _ in here.heard if exchange == "proofs"] == [(0, 2)] * 2
    fails("south: Its result is faulty: not finite", simulated, make, Here(spoilt(parties_of(make))))


def test_what_is_promised_outlasts_the_process():
    make, kept = PROCESSES["fed_opt"], {}
    (message,) = messages_of(make)
    first, again, other = (next(parties_of(make, promises=kept)) for _ in range(3))
    answer = first.answer(message)
    assert all(np.array_equal(x, answer[name]) for name, x in again.answer(message).items())
    refuses("answered this round for another sum", again.answer, {**message, "attempt": np.array(0, np.int32)})
    other._secret = b"whose noise is another"
    refuses("differs from its first one, and a mask hides only one answer", other.answer, message)


class Hostile(SealedEngine):
    """An engine with far too large sums."""

    def _read(self, *given):
        total = super()._read(*given)
        spoil = lambda x: x + 2**55 * (len(x.shape) > 0)
        return total._replace(statistics=tf.nest.map_structure(spoil, total.statistics))


def test_a_sum_that_spoils_the_round_ends_the_run_with_a_sentence():
    make = lambda **options: PROCESSES["fed_opt"](max_magnitude=10.0, **options)
    fails(r"after round 1 are invalid, and with masks", simulated, make, quorum=2, make_engine=Hostile)


def test_losses_are_sums_too():
    """Only the number, size and weight of a site's report are in the clear."""
    make = PROCESSES["variational"]
    here, sealed = of_some(make)
    _, clear = simulated(make, sealed=False)
    for name in ("nll", "kl", "tempered_elbo"):
        # Whole numbers of the size of a KL have steps of 1e-3 nats.
        wanted = pytest.approx([r[name] for r in clear.rounds], rel=1e-4, abs=1e-4 if name == "nll" else 2e-3)
        assert [r[name] for r in sealed.rounds] == wanted
    told = {name: x for answer in here.heard[0][2].values() for name, x in answer.items() if name.startswith("report/")}
    assert {name for name, x in told.items() if x.any()} <= {"report/client", "report/num_examples", "report/weight"}


def test_a_site_sums_for_one_job_with_as_many_sites_and_rounds_as_it_agreed_to():
    make = PROCESSES["fed_opt"]
    fails("not agreed to this sum", of_some, make, (), parties_of(make, jobs=[bytes(32), bytes(32), bytes([1]) * 32]))
    refuses("no sum of fewer than 4 sites", next, parties_of(make, min_parties=4))
    last = next(parties_of(make, rounds=1))
    first, second = messages_of(make, rounds=2)
    last.answer(first)
    refuses("agreed to 1 rounds, which do not include round 2", last.answer, second)


def test_what_masks_do_not_go_with():
    make = PROCESSES["fed_opt"]
    refuses("does not sum integers", simulate_parties, make(), PARTIES, Here(()), rounds=1, make_engine=SealedEngine)
    refuses("32 bytes", SealedParty, make(secure_sums=WEIGHT), next(sources()), 0, b"own", "a", keys={1: b"short"})
    by_distance = lambda **options: bfl.algorithms.variational(build(), "conflation", "distance", **OPTIONS, **options)
    for method, options, message in (
        (by_distance, {}, "Weighting by 'distance' has no bound that is known beforehand"),
        (make, {"max_weight_ratio": 10}, "under masks a round has one sum"),
        (make, {"robust": "median"}, "needs more of the clients than a sum"),
    ):
        refuses(message, method, secure_sums=WEIGHT, **options)


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
    _, clear = simulated(make, Here(parties_of(make, sealed=False), silent=silent), sealed=False, quorum=2)
    assert largest_difference(found.state.weights, clear.state.weights) == 0
    assert [row["num_faulty"] for row in found.rounds] == [len(silent)] * 2
    exchanges = {"nobody": 3, "round": 3, "members": 5}[exchange]
    assert [x for x, *_ in here.heard][:exchanges] == ["round", "members"] * (exchanges // 2) + ["proofs"]


def test_a_site_that_leaves_before_it_reveals_its_seeds_ends_the_run_which_resumes(tmp_path):
    make = PROCESSES["fed_opt"]
    there = list(parties_of(make))
    run = lambda *silent: simulated(make, Here(there, silent=silent), quorum=2, checkpoint_dir=tmp_path)[1]
    fails(r"sum of round 1 can't be read without .*south: it did not answer in time", run, ("proofs", 1))
    # The others have revealed their seeds: without south, no other sum of this round is possible.
    fails(r"0 of 3 sites .*north: It has revealed another sum of this round", run, ("round", 1))
    assert largest_difference(run().state.weights, simulated(make)[1].state.weights) == 0


def test_a_site_does_the_work_of_a_round_once():
    make = PROCESSES["fed_opt"]
    parties, works = list(parties_of(make)), []
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
    rounds, proofs = ([x for kind, _, x in here.heard if kind == name] for name in ("round", "proofs"))
    replies, of_round_two, told_last, rounds = proofs[0], rounds[-1], proofs[-1][0]["seeds"], rounds[:2]
    told = [row.tobytes() for reply in replies.values() for row in reply["seeds"] if row.any()]
    assert len(told) == 4 and sorted(rounds[0]) == [0, 1, 2] and sorted(rounds[1]) == [0, 2]
    signs = [
        [(seed, sign) for seed, sign in zip(told, signs) if sign] for signs in itertools.product((0, 1, -1), repeat=4)
    ]
    for number, answer in [*rounds[0].items(), *rounds[1].items()]:
        assert all(np.mean(np.abs(numbers_less(answer, masks)) > 2**55) > 0.9 for masks in signs), number
    # The key of the two remaining sites would reveal them.
    context = context_of("a", bytes(32), here.parties[0]._last[0], 1)
    masks = [(seed, 1) for seed in (told_last[0].tobytes(), told_last[1].tobytes(), seed_of(keys_of(0)[2], context))]
    assert np.mean(np.abs(numbers_less(of_round_two[0], masks)) < 2**45) > 0.9


def test_a_server_that_would_have_two_sums_is_refused():
    make = PROCESSES["fed_opt"]
    parties = list(parties_of(make))
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
    refuses("another sum of this round", ask, 0, of(0, 1, 0, 1))
    ask(2, of(0, 1, 0, 1))
    for number in (0, 1):
        refuses("Site 2 has not agreed to this sum", ask, number, AgreedSet(of(0, 1, 1, 1), proofs))
    refuses("Site 0 has not agreed", ask, 2, AgreedSet(of(0, 1, 0, 1), proofs))
    refuses("It has not agreed to this sum", ask, 1, AgreedSet(of(1, 1, 1, 0), proofs))

    # After the seeds for one sum, no seeds for another one.
    proofs = np.stack([ask(number, of(1, 1, 1, 1))["proofs"] for number in range(3)])
    seeds = ask(0, AgreedSet(of(1, 1, 1, 1), proofs))["seeds"]
    assert seeds[0].any() and not seeds[1:].any()
    np.testing.assert_array_equal(ask(0, AgreedSet(of(1, 1, 1, 1), proofs))["seeds"], seeds)
    refuses("another sum of this round", ask, 0, of(2, 1, 1, 0))
    refuses("answered this round for another sum", parties[0].answer, message)
    # Nor of a message that is nearly the same.
    moved = {name: np.nextafter(x, 2) if name.startswith("weights/") else x for name, x in at(2).items()}
    refuses("answered another message of this round", parties[0].answer, moved)

    for bad, wanted in (
        *((of(1, *members), "must include this site and at least 2") for members in ((0, 1, 1), (1, 0, 0), (2, 1, 1))),
        (of(0, 1, 1, 1)._replace(number=np.array(1, np.int32)), "answered no such round"),
        *((of(attempt, 1, 1, 1), "must be one of 0 to 3") for attempt in (9, -1)),
    ):
        refuses(wanted, ask, 0, bad)
    refuses("must be one of 0 to 3", parties[0].answer, at(9))


@pytest.mark.parametrize(
    ("exchange", "lie", "message"),
    [
        ("members", {"proofs": np.zeros([3, 32], np.uint8)}, "has not agreed to this sum"),
        ("proofs", {"seeds": np.zeros([3, 31], np.uint8)}, r"must have \[3, 32\]"),
        ("proofs", {}, "misses 'seeds'"),
    ],
)
def test_a_site_with_invalid_proofs_or_seeds_is_named(exchange, lie, message):
    fails(f"(north|south|west): .*{message}", of_some, PROCESSES["fed_opt"], lies={(exchange, 1): lambda answer: lie})
