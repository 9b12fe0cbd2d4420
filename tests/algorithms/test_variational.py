"""The variational recipe: its weightings, its errors, and how its noise depends on client and round."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tfp_bfl import algorithms, models, rules
from tfp_bfl.data import Clients, Source

RNG = np.random.default_rng(0)
SIZES = (5, 12, 8)


def source(features):
    labels = RNG.integers(2, size=len(features)).astype(np.int32)
    return Source("made", "train", features, labels, ("no", "yes"))


def of_sizes(sizes, whole):
    ends = np.cumsum(sizes)
    return Clients(whole, [np.arange(end - size, end) for size, end in zip(sizes, ends)])


CLIENTS = of_sizes(SIZES, source(RNG.normal(size=[sum(SIZES), 4]).astype(np.float32)))
SAME = Clients(CLIENTS.source, [np.arange(10)] * 3)


@functools.cache
def build(kind="flipout", weighting="train_size", **options):
    model_fn = lambda: models.mlp(kind, input_shape=(4,), hidden=(3,), initial_stddev=0.3, dropout_rate=0.5)
    options = {"local_epochs": 1, "learning_rate": 0.05, "optimizer_fn": tf.keras.optimizers.SGD, **options}
    return algorithms.variational(model_fn, rules.naive_weighted_average(), weighting, **options)


def run_round(process, data, cohort=(0, 1, 2), round_number=0):
    state = process.initialize()._replace(round=np.int32(round_number))
    return process.next(state, [data.dataset(k) for k in cohort])


def largest_difference(a, b):
    return max(np.abs(x - y).max() for x, y in zip(tf.nest.flatten(a), tf.nest.flatten(b), strict=True))


def test_train_size_is_the_default_weighting():
    model_fn = lambda: models.mlp("deterministic", input_shape=(4,), hidden=())
    process = algorithms.variational(model_fn, rules.naive_weighted_average(), local_epochs=1)
    assert run_round(process, CLIENTS).metrics["clients"]["weight"].tolist() == list(SIZES)


@pytest.mark.parametrize("kind", ["flipout", "mc_dropout"])
def test_noise_differs_between_clients_and_rounds(kind):
    """Three clients hold the same examples, and one batch takes them all."""
    first = run_round(build(kind), SAME).metrics["clients"]["nll"]
    later = run_round(build(kind), SAME, round_number=1).metrics["clients"]["nll"]
    assert len(np.unique(np.round([*first, *later], 5))) == 6


@pytest.mark.deep(after="tests/algorithms/test_variational.py")
def test_noise_of_a_client_does_not_depend_on_the_cohort():
    together = run_round(build(), SAME).metrics["clients"]["nll"]
    pair = run_round(build(), SAME, (2, 1)).metrics["clients"]
    assert pair["client"].tolist() == [1, 2]
    np.testing.assert_allclose(pair["nll"], together[1:], rtol=1e-6)


def test_without_noise_equal_clients_report_the_same_in_every_round():
    first = run_round(build("deterministic"), SAME).metrics["clients"]["nll"]
    later = run_round(build("deterministic"), SAME, round_number=1).metrics["clients"]["nll"]
    np.testing.assert_allclose([*first, *later], np.full(6, first[0]), rtol=1e-5)


def test_seed_of_the_process():
    weights = [run_round(build(seed=seed), SAME).state.weights for seed in (1, 2)]
    assert largest_difference(*weights) > 1e-3
    again = run_round(build(seed=1), SAME).state.weights
    assert largest_difference(again, weights[0]) == 0


def test_batch_normalization_is_pooled_as_moments():
    """Dense weights of one and learning rate zero: clients' moments are those of their own data, 0.1 new."""

    def model_fn():
        inputs = tf.keras.Input((4,))
        x = tf.keras.layers.BatchNormalization(momentum=0.9)(inputs)
        return tf.keras.Model(inputs, tf.keras.layers.Dense(2)(x))

    process = algorithms.variational(model_fn, rules.naive_weighted_average(), local_epochs=1, learning_rate=0.0)
    moments = run_round(process, CLIENTS).state.weights.moments
    data = [np.float64(CLIENTS.examples(k).features) for k in range(3)]
    means, variances = (np.stack([f(x, 0) for x in data]) for f in (np.mean, np.var))
    means, variances = 0.1 * means, 0.9 + 0.1 * variances
    share = np.float64(SIZES)[:, None] / sum(SIZES)
    mean = (share * means).sum(0)
    np.testing.assert_allclose(moments.mean[0], mean, atol=1e-6)
    np.testing.assert_allclose(moments.variance[0], (share * (variances + means**2)).sum(0) - mean**2, rtol=1e-5)


@pytest.mark.deep(after="tests/clients/test_variational.py")
def test_images_are_bytes_unless_said_otherwise():
    model_fn = lambda: models.mlp("deterministic", input_shape=(2, 2, 1), hidden=())
    images = of_sizes((3, 4), source(RNG.integers(256, size=[7, 2, 2, 1]).astype(np.uint8)))
    scaled = of_sizes((3, 4), source(np.float32(images.source.features) / 255))
    scaled = Clients(
        Source("made", "train", scaled.source.features, images.source.labels, ("no", "yes")), scaled.indices
    )
    rule = rules.naive_weighted_average()
    options = {"local_epochs": 1, "learning_rate": 0.1}
    of_bytes = algorithms.variational(model_fn, rule, **options)
    of_floats = algorithms.variational(model_fn, rule, **options, element_spec=scaled.element_spec)
    assert of_bytes.element_spec == images.element_spec
    weights = [run_round(p, d, (0, 1)).state.weights for p, d in ((of_bytes, images), (of_floats, scaled))]
    assert largest_difference(*weights) < 1e-6
