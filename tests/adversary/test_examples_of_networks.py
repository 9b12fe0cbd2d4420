"""Threat: a server that reads single examples from a round of a network, by weights of its choice.

A neuron of the first layer with the weights v, a random direction, and a bias between the largest two values of x' v
fires for one example alone. The change of its weights over the change of its bias is then this example.
"""

import functools

import numpy as np
import pytest
import tensorflow as tf

import tfp_bfl as bfl
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.sites import Party, to_arrays
from tfp_bfl.sites.bounds import MOST_MESSAGES, SentWeights
from tfp_bfl.sites.party import at_server

TRIES, SIZE, COLUMNS, HIDDEN = 20, 100, 9, 8


def sites():
    rng, found = np.random.default_rng(0), []
    model_fn = functools.partial(bfl.models.mlp, "deterministic", (COLUMNS,), 2, hidden=(HIDDEN,), seed=0)
    for _ in range(3):
        features = rng.normal(size=(SIZE, COLUMNS)).astype(np.float32)
        labels = (rng.random(SIZE) < 1 / (1 + np.exp(-features[:, 0]))).astype(np.int32)
        found.append(bfl.data.Source("rows", "train", features, labels, ("no", "yes")))
    process = bfl.algorithms.fed_opt(
        model_fn, element_spec=found[0].element_spec, local_epochs=1, batch_size=10, optimizer="sgd", learning_rate=0.05
    )
    return process, found


PROCESS, SOURCES = sites()


@functools.cache
def traced():
    return [Party(PROCESS, source, k, bytes([k])) for k, source in enumerate(SOURCES)]


def parties(bounded):
    """Sites that have answered nothing; their traced work is shared."""
    for party in traced():
        party._steps = SentWeights(PROCESS, {}) if bounded else None
    return traced()


def message_of(weights, done):
    state = PROCESS.round.initialize()
    broadcast = PROCESS.round.broadcast(state._replace(weights=weights, round=tf.constant(done)))
    return to_arrays(broadcast.message)


def trap(weights, number):
    """Weights whose first neuron fires for one example of all sites, and this example."""
    direction = np.random.default_rng(number + 99).normal(size=COLUMNS)
    direction = (direction / np.linalg.norm(direction)).astype(np.float32)
    features = np.concatenate([source.features for source in SOURCES])
    values = features @ direction
    last, second = np.sort(values)[[-1, -2]]
    kernel, bias, *rest = (np.array(x) for x in weights.point)
    kernel[:, 0], bias[0] = direction, -(last + second) / 2
    return weights._replace(point=(kernel, bias, *rest)), features[np.argmax(values)]


def read(answers, weights, example):
    """Return whether the sum of the sites' changes of the neuron holds the example, each column within 0.1."""
    sums = [sum(answer[f"weights/point/{k}"] - np.array(weights.point[k]) for answer in answers) for k in (0, 1)]
    change = sums[0][:, 0] / sums[1][0] if sums[1][0] else np.full(COLUMNS, np.inf)
    return bool(np.max(np.abs(change - example)) < 0.1)


def attack(bounded, done):
    """The number of tries in which the server reads an example, and that of refusals."""
    reads = refusals = 0
    for number in range(TRIES):
        there = parties(bounded)
        first = PROCESS.round.initialize().weights
        if done:
            for party in there:
                party.answer(message_of(first, 0))
        weights, example = trap(first, number)
        try:
            answers = [party.answer(message_of(weights, done)) for party in there]
        except InvalidArgument as error:
            assert "first weights are not those of the job" in str(error)
            refusals += 1
            continue
        reads += read(answers, weights, example)
    return reads, refusals


@pytest.mark.parametrize(
    ("bounded", "done", "expected"), [(False, 0, (15, 0)), (True, 0, (0, TRIES)), (True, 1, (15, 0))]
)
def test_a_neuron_that_fires_for_one_example_reads_it_from_the_sum_of_300(bounded, done, expected):
    """Without bounds in most tries; with them none in the first round, and as many as before in later ones.

    Only noise bounds the last one: the distance of one neuron is below the norm of all weights.
    """
    reads, refusals = attack(bounded, done)
    assert refusals == expected[1]
    assert reads >= expected[0] if expected[0] else reads == 0


LINEAR = functools.partial(bfl.models.mlp, "deterministic", (COLUMNS,), 2, hidden=(HIDDEN,), seed=0)
GAUSSIAN = functools.partial(bfl.models.mlp, "variational_dropout", (COLUMNS,), 2, hidden=(HIDDEN,), seed=0)
OF = {"element_spec": SOURCES[0].element_spec}
# Every algorithm whose server sends something beside the weights.
BESIDE = {
    "scaffold": lambda: bfl.algorithms.scaffold(LINEAR, local_epochs=1, batch_size=10, optimizer="sgd", **OF),
    "fed_lap": lambda: bfl.algorithms.fed_lap(LINEAR, local_epochs=1, **OF),
    "meta_vd": lambda: bfl.algorithms.meta_vd(GAUSSIAN, num_clients=3, local_epochs=1, **OF),
    "qlsd": lambda: bfl.algorithms.qlsd(LINEAR, step_size=1e-3, estimator="anchored", refresh_every=2, **OF),
    "dg_sgld": lambda: bfl.algorithms.dg_sgld(LINEAR, step_size=1e-3, coupling=1e-2, local_steps=3, **OF),
}


DEEP = pytest.mark.deep(after="tests/adversary/test_examples_of_networks.py")


@pytest.mark.parametrize("bounded", [pytest.param(False, marks=DEEP), True])
def test_a_drift_that_the_server_chooses_reads_an_example_in_the_first_round(bounded):
    """18 of 20 from the sum of 300 without bounds, 0 with them (20 refusals).

    The control variate of SCAFFOLD moves the first neuron in the first of two steps to where it fires for one example.
    A second answer, where it fires for none, is subtracted.
    """
    rate, scale = 0.05, 1.0
    options = {"local_epochs": 2, "batch_size": SIZE, "optimizer": "sgd", "learning_rate": rate, **OF}
    process = bfl.algorithms.scaffold(LINEAR, **options)
    there = [Party(process, source, k, bytes([k])) for k, source in enumerate(SOURCES)]
    served = at_server(process)
    first = to_arrays(served.round.broadcast(served.round.initialize()).message)
    features, reads, refusals = np.concatenate([source.features for source in SOURCES]), 0, 0

    def changes(direction, level):
        kernel, extra = np.zeros((COLUMNS, HIDDEN)), np.zeros_like(first["extra"])
        kernel[:, 0] = -scale * direction / rate
        extra[: kernel.size], extra[kernel.size] = kernel.ravel(), level / rate
        answers = [party.answer({**first, "extra": extra}) for party in there]
        own = [np.append(x["weights/point/0"][:, 0], x["weights/point/1"][0] + 2 * level) for x in answers]
        return np.sum(own, 0, dtype=np.float64)

    for number in range(TRIES):
        for party in there:
            party._steps = SentWeights(process, {}) if bounded else None
        direction = np.random.default_rng(number + 99).normal(size=COLUMNS)
        direction /= np.linalg.norm(direction)
        values = features @ (first["weights/point/0"][:, 0] + scale * direction)
        last, second = np.sort(values)[[-1, -2]]
        try:
            change = changes(direction, (last + second) / 2) - changes(direction, last + 1)
        except InvalidArgument as error:
            assert "The first vectors beside the weights are not those of the job (extra)" in str(error)
            refusals += 1
            continue
        reads += bool(np.max(np.abs(change[:-1] / change[-1] - features[np.argmax(values)])) < 0.1)
    assert (reads, refusals) == (0, TRIES) if bounded else reads >= 15 and refusals == 0


@DEEP
@pytest.mark.parametrize("name", BESIDE)
def test_what_comes_beside_the_weights_has_bounds(name):
    """The first one is that of the job; later ones of a size that no honest server has are refused, honest ones never.

    One site is asked from the fourth round on, for the first time.
    """
    process, there = BESIDE[name](), []
    for k, source in enumerate(SOURCES):
        there.append(Party(process, source, k, bytes([k]), steps=SentWeights(process, {}, 3)))
    sent = []

    class Transport:
        def ask(self, numbers, message):
            sent.append(message)
            for k in numbers:
                yield k, "not yet" if k == 2 and int(message["round"]) < 3 else there[k].answer(message)

    names = tuple(source.name + str(k) for k, source in enumerate(SOURCES))
    parties = bfl.data.Parties(bfl.data.Schema("rows", (COLUMNS,), False, ("no", "yes")), names, np.full(3, SIZE))
    assert len(bfl.sites.simulate_parties(process, parties, Transport(), 7, seed=0).rounds) == 7
    far = lambda message: {
        part: 1e4 * (x + 1) if part.startswith("extra") and x.dtype == np.float32 else x for part, x in message.items()
    }
    with pytest.raises(InvalidArgument, match="The first vectors beside the weights are not those of the job"):
        SentWeights(process, {}, 3).check(0, far(sent[0]))
    for party in there:
        with pytest.raises(InvalidArgument, match=r"The (vectors|weights) .* from those of the last message"):
            party.answer({**far(sent[-1]), "round": np.array(7, np.int32)})


@pytest.mark.parametrize("name", ["laplace", "last_layer"])
def test_last_layer_and_laplace_have_the_features_of_the_job(name):
    """0 of 20: the question for curvatures or features comes with weights that follow from the job."""
    process = getattr(bfl.algorithms, name)(LINEAR, **OF)
    state = process.round.initialize()
    steps = SentWeights(process, {})
    for number in range(TRIES):
        direction = np.random.default_rng(number).normal(size=(COLUMNS, HIDDEN)).astype(np.float32)
        parts = to_arrays(process.round.broadcast(state).message)
        kernel = next(part for part, x in parts.items() if x.shape == (COLUMNS, HIDDEN) and part.startswith("weights"))
        with pytest.raises(InvalidArgument, match="first weights are not those of the job"):
            steps.check(0, {**parts, kernel: direction})
    steps.check(0, parts)


def test_weights_far_from_the_last_ones_are_refused():
    party, first = parties(True)[0], PROCESS.round.initialize().weights
    party.answer(message_of(first, 0))
    far = first._replace(point=tuple(1e3 * x for x in first.point))
    with pytest.raises(InvalidArgument, match=r"The weights are .* from those of the last message, and the bound is"):
        party.answer(message_of(far, 1))
    # The round of the bound counts from the last message that was answered.
    near = first._replace(point=tuple(1.5 * x for x in first.point))
    assert party.answer(message_of(near, 1))


def test_a_site_answers_three_messages_of_a_round():
    party, first = parties(True)[0], PROCESS.round.initialize().weights
    party.answer(message_of(first, 0))
    scaled = lambda factor: message_of(first._replace(point=tuple(factor * x for x in first.point)), 1)
    for number in range(MOST_MESSAGES):
        party.answer(scaled(1 + 0.01 * number))
    party.answer(scaled(1 + 0.01 * (MOST_MESSAGES - 1)))  # The same message again has the same answer.
    with pytest.raises(InvalidArgument, match="answered 3 messages of round 2"):
        party.answer(scaled(1.5))
