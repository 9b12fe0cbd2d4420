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
from tfp_bfl.sites.steps import MOST_MESSAGES, Steps

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
        party._steps = Steps(PROCESS.round.initialize().weights, {}) if bounded else None
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


@pytest.mark.parametrize("name", ["laplace", "last_layer"])
def test_last_layer_and_laplace_have_the_features_of_the_job(name):
    """0 of 20: the question for curvatures or features comes with weights that follow from the job."""
    process = getattr(bfl.algorithms, name)(LINEAR, element_spec=SOURCES[0].element_spec)
    state = process.round.initialize()
    steps = Steps(state.weights, {})
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
