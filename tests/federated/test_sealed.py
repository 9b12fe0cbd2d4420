"""Parties that mask what they send: the sum's bits are those of the clear sum, and one party's are noise."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

import tfp_bfl as bfl
from tests.federated.test_parties import CLIENTS, OPTIONS, PARTIES, SEED, Here, build, largest_difference, sources
from tfp_bfl.errors import Error, InvalidArgument
from tfp_bfl.federated import Party, SealedEngine, SealedParty, simulate_parties

pytestmark = pytest.mark.cpu_seconds(60)
LATER = pytest.mark.deep(after="tests/federated/test_sealed.py")
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
        yield SealedParty(*given, keys=keys_of(number)) if sealed else Party(*given, **kept)


def simulated(make, sealed, **options):
    here = Here(list(parties_of(make, sealed)), **options)
    engine = {"make_engine": SealedEngine} if sealed else {}
    process = make(secure_sums=WEIGHT)
    return here, simulate_parties(process, PARTIES, here, rounds=2, seed=SEED, **engine)


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
def test_what_one_party_sends_is_noise_and_no_mask_is_used_twice():
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
    moved = {**message, "weights/posterior/mean/0": message["weights/posterior/mean/0"] + 1e-7}
    again = numbers(one.answer(moved)) - sent
    assert np.mean(np.abs(again) > 2**55) > 0.9


def test_a_party_that_does_not_answer_ends_the_run_which_goes_on_when_it_is_back(tmp_path):
    make, options = PROCESSES["variational"], {"rounds": 2, "seed": SEED, "make_engine": SealedEngine}
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
        (changed(client=0), "report is of another party"),
        (changed(fault=99), "of a fault that there is not"),
        (changed(num_examples=10_000), "it tells of 10000 examples, but said that it has 30"),
        (lambda answer: {**answer, "report/nll": np.array([np.nan], np.float32)}, "report/nll is not finite"),
        (lambda answer: {name: x for name, x in answer.items() if "weight" not in name}, "misses"),
    ],
)
def test_lies_about_itself_are_named(lie, message):
    with pytest.raises(Error, match=rf"south: .*{message}"):
        simulated(PROCESSES["fed_opt"], sealed=True, lies={1: lie})


def test_a_party_without_a_sound_result_adds_nothing_and_says_so():
    make = PROCESSES["fed_opt"]
    here = Here(list(parties_of(make, sealed=True)))
    spoilt = here.parties[1]
    spoilt._work = lambda *given, work=spoilt._work: tf.nest.map_structure(
        lambda x: x * np.nan if x.dtype == tf.float32 else x, work(*given)
    )
    found = simulate_parties(make(secure_sums=WEIGHT), PARTIES, here, rounds=1, seed=SEED, make_engine=SealedEngine)
    assert found.rounds[0]["faulty_clients"] == {"1": "not finite"}
    assert all(np.all(np.isfinite(x)) for x in tf.nest.flatten(found.state.weights))


def test_what_masks_do_not_go_with():
    make = PROCESSES["fed_opt"]
    there = Here(list(parties_of(make, sealed=True)))
    with pytest.raises(InvalidArgument, match="sum over all parties alone"):
        simulate_parties(
            make(secure_sums=WEIGHT), PARTIES, there, rounds=1, seed=SEED, cohort_size=2, make_engine=SealedEngine
        )
    with pytest.raises(InvalidArgument, match="sums no whole numbers"):
        simulate_parties(make(), PARTIES, there, rounds=1, make_engine=SealedEngine)
    source = next(sources())
    with pytest.raises(InvalidArgument, match="has not 32 bytes"):
        SealedParty(make(secure_sums=WEIGHT), source, 0, b"own", "a", keys={1: b"short"})
    with pytest.raises(InvalidArgument, match="Weighting by 'distance' has no bound that is known beforehand"):
        bfl.algorithms.variational(build(), "conflation", "distance", secure_sums=WEIGHT, **OPTIONS)
    with pytest.raises(InvalidArgument, match="needs more of the clients than a sum"):
        bfl.algorithms.fed_opt(build("deterministic"), robust="median", secure_sums=WEIGHT, **OPTIONS)
