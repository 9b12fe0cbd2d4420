"""Augmented work is the same work on other features, whatever the work; and only where there are batches."""

import numpy as np
import pytest
import tensorflow as tf

import tfp_bfl as bfl
from tfp_bfl.errors import InvalidArgument

SOURCE = bfl.data.load("digits")
CLIENTS = SOURCE.partition(bfl.data.iid(40), seed=0).split(3)[0]
WORKS = {
    "variational": bfl.clients.variational,
    "meta_learning": bfl.algorithms.personal.work.meta_learning,
    "posterior_averaging": lambda model_fn, **options: bfl.algorithms.averaging.work.posterior_averaging(
        model_fn, **options
    ),
}


def model_fn():
    return bfl.models.mlp("deterministic", SOURCE.element_shape, 10, hidden=(8,))


def after_a_round(work, augmentation):
    process = bfl.algorithms.compose(
        model_fn, work, "naive_weighted_average", bfl.servers.replace(), augmentation=augmentation
    )
    state = bfl.simulate(process, CLIENTS, rounds=1, engine="local").state
    return np.concatenate([x.numpy().ravel() for x in map(tf.convert_to_tensor, state.weights.point)])


def constant(value):
    return lambda features, seed: tf.fill(tf.shape(features), value)


@pytest.mark.parametrize("kind", WORKS)
def test_work_sees_what_the_augmentation_gives(kind):
    make = lambda: WORKS[kind](model_fn, local_epochs=2, batch_size=16)
    plain, same = after_a_round(make(), None), after_a_round(make(), lambda features, seed: features)
    np.testing.assert_array_equal(plain, same)
    assert np.abs(after_a_round(make(), "crop_and_flip:1") - plain).max() > 1e-4
    # Features of zeros have no gradient in the first kernel: it stays.
    start = bfl.weights.get_weights(model_fn()).point[0].numpy().ravel()
    np.testing.assert_array_equal(after_a_round(make(), constant(0.0))[: start.size], start)


def test_each_step_has_a_seed_of_its_own():
    seeds = []

    def told(features, seed):
        tf.numpy_function(lambda x: seeds.append(tuple(x)) or np.int32(0), [seed], tf.int32)
        return features

    # 45 or 44 examples of 3 clients in batches of 16, twice: 6 steps each.
    work = lambda: bfl.clients.variational(model_fn, local_epochs=2, batch_size=16)
    after_a_round(work(), told)
    first = sorted(seeds)  # Clients work side by side.
    assert len(first) == len(set(first)) == 18
    after_a_round(work(), told)
    assert sorted(seeds) == sorted(first * 2)


def test_work_without_batches_is_refused():
    work = bfl.algorithms.chains.work.stochastic_gradient(model_fn, compressor="none")
    step = bfl.algorithms.chains.step.descend(1e-3)
    process = bfl.algorithms.compose(model_fn, work, bfl.rules.total(), step, augmentation="crop_and_flip:1")
    with pytest.raises(InvalidArgument, match="An augmentation is of work that steps through batches"):
        bfl.simulate(process, CLIENTS, rounds=1, engine="local")


def test_examples_with_privacy_are_not_augmented():
    model_fn = lambda: bfl.models.lenet("deterministic", (8, 8, 1), 2)
    hidden = {"example_privacy": bfl.training.ExamplePrivacy(1.0, 1.0)}
    with pytest.raises(InvalidArgument, match="leave augmentation or example_privacy"):
        bfl.algorithms.fed_opt(model_fn, augmentation="crop_and_flip:2", **hidden)
