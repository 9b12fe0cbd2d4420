"""Local training: against closed forms, an implementation with TFP, and optimisers that keep count."""

import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from tests.kit import assert_same, differ
from tfp_bfl import clients, models
from tfp_bfl.data import ClientExamples
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.layers import DenseFlipout
from tfp_bfl.posterior import kl_divergence
from tfp_bfl.weights import ServerMessage, get_weights
from tfp_bfl.weights import prior as prior_weights

SGD = tf.keras.optimizers.SGD
RNG = np.random.default_rng(0)
# The ELBO itself (temperature 1), its gradients by backpropagation through the samples.
BY_BACKPROP = {"inference": "backprop", "temperature": 1.0, "optimizer_fn": "adam", "local_epochs": 1}


class Seen(SGD):
    """Adds 2^step to every weight whose gradient isn't zero: a weight's bits tell the steps that it took part in."""

    def update_step(self, gradient, variable):
        seen = tf.cast(tf.not_equal(gradient, 0), variable.dtype)
        variable.assign_add(seen * 2.0 ** tf.cast(self.iterations, variable.dtype))


def mlp(**options):
    return lambda: models.mlp(**{"input_shape": (3,), "num_classes": 2, "hidden": (4,), **options})


def examples(features, labels=None):
    features = np.asarray(features)
    labels = np.arange(len(features)) % 2 if labels is None else labels
    return ClientExamples(*map(tf.constant, (np.zeros(len(features), np.int32), features, np.int32(labels))))


def table(number, columns=3):
    rng = np.random.default_rng(number)
    return examples(rng.normal(size=[number, columns]).astype(np.float32), rng.integers(2, size=number))


def run(model_fn, data, *, weights=None, round_number=0, seed=(1, 2), **options):
    """Run client work `BY_BACKPROP` from the weights of `model_fn`, unless other options or weights are given."""
    message = ServerMessage(get_weights(model_fn()) if weights is None else weights, tf.constant(round_number))
    return work_of(model_fn, tuple({**BY_BACKPROP, **options}.items()))(message, data, tf.constant(seed))


@functools.cache
def work_of(model_fn, options):
    return clients.variational(model_fn, **dict(options))()


def logits_of_dense(weights, features):
    kernel, bias = (np.asarray(w, np.float64) for w in weights)
    return np.float64(features) @ kernel + bias


def nll(logits, labels):
    return np.log(np.exp(logits).sum(1)) - logits[np.arange(len(labels)), labels]


@pytest.mark.parametrize(
    ("number", "batch_size", "epochs", "sizes"),
    [(7, 3, 2, [3, 3, 1] * 2), (4, 2, 3, [2, 2] * 3), (3, 8, 2, [3] * 2), (5, 1, 1, [1] * 5)],
)
def test_each_epoch_sees_every_example_once_in_batches_of_which_the_last_may_be_smaller(
    number, batch_size, epochs, sizes
):
    """Example n has the unit vector n for features, so that row n of the kernel has a gradient only if it is seen."""
    model_fn = mlp(kind="deterministic", input_shape=(number,), hidden=())
    data = examples(np.eye(number, dtype=np.float32))
    zeros = tf.nest.map_structure(tf.zeros_like, get_weights(model_fn()))
    result = run(model_fn, data, weights=zeros, batch_size=batch_size, local_epochs=epochs, optimizer_fn=Seen)
    steps = np.int64(result.weights.point[0][:, 0])
    batches = [np.flatnonzero(steps >> step & 1).tolist() for step in range(len(sizes))]
    assert [len(batch) for batch in batches] == sizes
    assert max(steps) < 2 ** len(sizes)
    per_epoch = len(sizes) // epochs
    for epoch in range(epochs):
        seen = np.concatenate(batches[epoch * per_epoch : (epoch + 1) * per_epoch])
        assert sorted(seen) == list(range(number))
    if per_epoch > 1 and epochs > 1:
        assert batches[:per_epoch] != batches[per_epoch : 2 * per_epoch]
    assert result.num_examples == number


def test_order_of_the_examples_depends_on_the_seed():
    model_fn = mlp(kind="deterministic", input_shape=(8,), hidden=())
    data = examples(np.eye(8, dtype=np.float32))
    zeros = tf.nest.map_structure(tf.zeros_like, get_weights(model_fn()))
    order = lambda seed: run(model_fn, data, weights=zeros, seed=seed, batch_size=1, optimizer_fn=Seen).weights.point[0]
    assert_same(order((1, 2)), order((1, 2)))
    assert differ(order((1, 2)), order((1, 3)))


@pytest.mark.parametrize("kind", models.KINDS)
def test_seed_decides_the_noise(kind):
    """One batch holds all examples, so that the order, the other use of the seed, moves the sums' rounding only."""
    model_fn, data = mlp(kind=kind, initial_stddev=0.3, dropout_rate=0.5), table(10)
    train = lambda seed: run(model_fn, data, seed=seed, optimizer_fn=SGD, learning_rate=0.1, local_epochs=2)
    first, again, other = train((1, 2)), train((1, 2)), train((2, 2))
    assert_same(again, first)
    assert differ(other.weights, first.weights) is (kind != "deterministic")


@pytest.mark.parametrize("kind", models.KINDS)
def test_learning_rate_zero_returns_the_messages_weights(kind):
    model_fn = mlp(kind=kind)
    weights = get_weights(mlp(kind=kind, seed=5, initial_stddev=0.07)())
    assert differ(weights, get_weights(model_fn()))
    result = run(model_fn, table(11), weights=weights, learning_rate=0.0, batch_size=4, local_epochs=2)
    assert_same(result.weights.posterior.mean, weights.posterior.mean)
    assert_same(result.weights.point, weights.point)
    assert_same(result.weights.posterior.variance, weights.posterior.variance, rtol=1e-5)
    tf.nest.assert_same_structure(result.weights, weights)


def test_nll_is_the_mean_over_all_examples_of_all_epochs():
    """10 examples in batches of 4: the mean of the batches' means would weigh the last two double."""
    model_fn, data = mlp(kind="deterministic", hidden=()), table(10)
    losses = nll(logits_of_dense(get_weights(model_fn()).point, data.features), data.labels.numpy())
    metrics = run(model_fn, data, learning_rate=0.0, batch_size=4, local_epochs=3).metrics
    np.testing.assert_allclose(metrics.nll, losses.mean(), rtol=1e-5)
    assert metrics.kl == 0
    np.testing.assert_allclose(metrics.tempered_elbo, -losses.mean(), rtol=1e-5)


def test_elbo_is_of_nll_and_the_kl_of_the_last_step_to_the_prior_over_the_clients_examples():
    model_fn = mlp(prior_stddev=0.5, initial_stddev=0.1)
    for rate in (0.0, 0.05):
        result = run(model_fn, table(10), learning_rate=rate, batch_size=4, local_epochs=2)
        metrics = result.metrics
        expected = kl_divergence(result.weights.posterior, prior_weights(model_fn()))
        np.testing.assert_allclose(metrics.kl, expected, rtol=1e-5)
        np.testing.assert_allclose(metrics.tempered_elbo, -(metrics.nll + metrics.kl / 10), rtol=1e-6)


def test_one_step_is_that_of_an_implementation_with_tfp():
    """A learning rate of 1 makes the step the gradient; standard deviations of 1e-9 switch the noise off."""
    model_fn = mlp(hidden=(), prior_stddev=0.7, initial_stddev=1e-9, min_stddev=1e-9)
    data, start = table(5), get_weights(model_fn())
    double = lambda x: tf.Variable(np.float64(x))
    mean, log_stddev, bias = double(start.posterior.mean[0]), double(tf.zeros([3, 2]) + np.log(1e-9)), double([0.0, 0])
    with tf.GradientTape() as tape:
        likelihood = tfp.distributions.Categorical(logits=tf.cast(data.features, tf.float64) @ mean + bias)
        prior = tfp.distributions.Normal(np.float64(0), np.float64(0.7))
        kl = tfp.distributions.Normal(mean, tf.exp(log_stddev)).kl_divergence(prior)
        loss = -tf.reduce_mean(likelihood.log_prob(data.labels)) + tf.reduce_sum(kl) / 5
    wanted = [v - g for v, g in zip((mean, log_stddev, bias), tape.gradient(loss, [mean, log_stddev, bias]))]

    result = run(model_fn, data, optimizer_fn=SGD, learning_rate=1.0)
    np.testing.assert_allclose(result.weights.posterior.mean[0], wanted[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(np.log(result.weights.posterior.variance[0]) / 2, wanted[1], atol=2e-5)
    np.testing.assert_allclose(result.weights.point[0], wanted[2], rtol=1e-5, atol=1e-6)
    unmoved = run(model_fn, data, optimizer_fn=SGD, learning_rate=0.0)
    np.testing.assert_allclose(-unmoved.metrics.tempered_elbo, loss, rtol=1e-5)


def test_kl_pulls_towards_the_prior_with_one_over_the_number_of_examples():
    """Features of zero leave the kernel to the KL alone: each step's gradient is m / (t^2 N) and ((s / t)^2 - 1) / N.

    N = 6 in batches of 2: with 1 / B instead, the pull would be three times as strong.
    """
    model_fn = mlp(hidden=(), prior_stddev=0.5, initial_stddev=0.1)
    start = get_weights(model_fn()).posterior
    data = examples(np.zeros([6, 3], np.float32))
    result = run(model_fn, data, optimizer_fn=SGD, learning_rate=0.3, batch_size=2, local_epochs=2)
    mean, log_stddev = np.float64(start.mean[0]), np.log(0.1)
    for _ in range(6):
        mean = mean - 0.3 * mean / 0.25 / 6
        log_stddev -= 0.3 * ((np.exp(log_stddev) / 0.5) ** 2 - 1) / 6
    np.testing.assert_allclose(result.weights.posterior.mean[0], mean, rtol=1e-5)
    np.testing.assert_allclose(result.weights.posterior.variance[0], np.exp(2 * log_stddev), rtol=1e-5)


@pytest.mark.parametrize("initial", [0.02, 2.0])
def test_posterior_becomes_the_prior_where_the_data_say_nothing(initial):
    model_fn = mlp(hidden=(), prior_stddev=0.5, initial_stddev=initial)
    data = examples(np.zeros([2, 3], np.float32))
    q = run(model_fn, data, optimizer_fn=SGD, learning_rate=0.2, local_epochs=200).weights.posterior
    np.testing.assert_allclose(q.variance[0], np.full([3, 2], 0.25), rtol=1e-3)
    np.testing.assert_allclose(q.mean[0], np.zeros([3, 2]), atol=1e-4)


def test_standard_deviations_stop_at_the_floor():
    model_fn = mlp(hidden=(), prior_stddev=1e-3, initial_stddev=0.05, min_stddev=0.01)
    data = examples(np.zeros([2, 3], np.float32))
    train = lambda epochs: run(model_fn, data, optimizer_fn=SGD, learning_rate=0.01, local_epochs=epochs)
    stddev = np.sqrt(train(3).weights.posterior.variance[0])
    np.testing.assert_allclose(stddev, np.full([3, 2], 0.01), rtol=1e-5)


def test_standard_deviations_below_the_floor_come_up_to_it():
    model_fn = mlp(hidden=(), min_stddev=0.01, initial_stddev=0.01)
    low = get_weights(mlp(hidden=(), min_stddev=1e-5, initial_stddev=1e-4)())
    q = run(model_fn, table(3), weights=low, learning_rate=0.0).weights.posterior
    np.testing.assert_allclose(q.variance[0], np.full([3, 2], 1e-4), rtol=1e-5)


@pytest.mark.parametrize("round_number", [0, 3])
def test_learning_rate_may_be_a_function_of_the_round(round_number):
    model_fn, data = mlp(kind="deterministic"), table(6)
    scheduled = run(
        model_fn,
        data,
        round_number=round_number,
        learning_rate=lambda r: 0.1 * tf.cast(r, tf.float32),
        optimizer_fn=SGD,
    )
    fixed = run(model_fn, data, learning_rate=0.1 * round_number, optimizer_fn=SGD)
    assert_same(scheduled.weights, fixed.weights, rtol=1e-6, atol=1e-7)
    assert differ(scheduled.weights, get_weights(model_fn())) is (round_number > 0)


def test_dropout_is_on_in_training():
    """Without hidden units left, logits are the bias: the loss is then log 2 exactly, whatever the features."""
    model_fn = mlp(kind="mc_dropout", dropout_rate=0.999999)
    metrics = run(model_fn, table(8), learning_rate=0.0).metrics
    np.testing.assert_allclose(metrics.nll, np.log(2), rtol=1e-6)
    metrics = run(mlp(kind="mc_dropout", dropout_rate=0.0), table(8), learning_rate=0.0).metrics
    plain = run(mlp(kind="deterministic"), table(8), learning_rate=0.0).metrics
    np.testing.assert_allclose(metrics.nll, plain.nll, rtol=1e-6)
    assert abs(plain.nll - np.log(2)) > 1e-3


@pytest.mark.parametrize("kind", ["deterministic", "flipout"])
def test_bytes_are_scaled_to_one(kind):
    model_fn = mlp(kind=kind, input_shape=(2, 2, 1))
    pixels = RNG.integers(256, size=[6, 2, 2, 1]).astype(np.uint8)
    options = {"learning_rate": 0.1, "optimizer_fn": SGD, "batch_size": 4}
    results = [run(model_fn, examples(x), **options) for x in (pixels, np.float32(pixels) / 255)]
    assert_same(*results, rtol=1e-5, atol=1e-6)
    assert differ(results[0].weights, get_weights(model_fn()), atol=1e-3)


@pytest.mark.parametrize("layer", [tf.keras.layers.Dense, DenseFlipout])
def test_batch_normalization_follows_the_data_even_at_learning_rate_zero(layer):
    def model_fn():
        options = {"kernel_initializer": tf.keras.initializers.HeNormal(seed=1)}
        inputs = tf.keras.Input((3,))
        x = layer(4, **options)(inputs)
        x = tf.keras.layers.BatchNormalization(momentum=0.9)(x)
        return tf.keras.Model(inputs, tf.keras.layers.Dense(2)(x))

    data, model = table(9), model_fn()
    start = get_weights(model)
    moments = run(model_fn, data, weights=start, learning_rate=0.0).weights.moments
    kernel = start.posterior.mean[0] if layer is DenseFlipout else start.point[0]
    outputs = np.float64(data.features) @ np.float64(kernel)
    # Flipout's outputs have noise of sd 0.003 |x|.
    atol = 1e-6 if layer is tf.keras.layers.Dense else 5e-3
    np.testing.assert_allclose(moments.mean[0], 0.1 * outputs.mean(0), atol=atol)
    np.testing.assert_allclose(moments.variance[0], 0.9 + 0.1 * outputs.var(0), rtol=0, atol=atol)
    assert differ(moments, start.moments, atol=1e-2)


def test_optimizer_starts_anew_each_time():
    work = clients.variational(mlp(kind="deterministic"), local_epochs=1, learning_rate=0.1, optimizer_fn="adam")()
    message, data = ServerMessage(get_weights(mlp(kind="deterministic")()), tf.constant(0)), table(6)
    first, second = (work(message, data, tf.constant([1, 2])) for _ in range(2))
    assert_same(first, second)


def test_constraints_of_point_weights_hold():
    """A rate of 5 would take some of the kernel's ones far below zero."""

    def model_fn():
        inputs = tf.keras.Input((3,))
        constrained = tf.keras.layers.Dense(2, kernel_constraint="non_neg", kernel_initializer="ones")
        return tf.keras.Model(inputs, constrained(inputs))

    kernel, bias = run(model_fn, table(20), optimizer_fn=SGD, learning_rate=5.0, local_epochs=5).weights.point
    assert np.min(kernel) == 0 and np.max(kernel) > 0
    assert np.min(bias) < 0


def test_legacy_optimizers_are_named():
    with pytest.raises(InvalidArgument, match=r"legacy\.adam\.Adam.*not of its legacy module"):
        clients.variational(mlp(), optimizer_fn=tf.keras.optimizers.legacy.Adam)()


@pytest.mark.parametrize("round_number", [0, 1, 7])
def test_an_updated_prior_is_the_servers_posterior_from_the_second_round_on(round_number):
    """Features of zero leave the kernel to the KL alone, which is zero at the prior and pulls nowhere."""
    model_fn = mlp(hidden=(), prior_stddev=0.5, initial_stddev=0.1)
    data = examples(np.zeros([6, 3], np.float32))
    options = {"optimizer_fn": SGD, "round_number": round_number}
    own = run(model_fn, data, learning_rate=0.3, **options)
    updated = run(model_fn, data, learning_rate=0.3, update_prior=True, **options)
    if round_number == 0:
        assert_same(updated, own)
    else:
        np.testing.assert_allclose(updated.metrics.kl, 0, atol=1e-5)
        assert_same(updated.weights.posterior, get_weights(model_fn()).posterior, rtol=1e-5)
        assert differ(own.weights.posterior.mean, updated.weights.posterior.mean)


def test_a_pretrained_posterior_is_the_prior_from_the_first_round_on():
    model_fn = mlp(hidden=(), prior_stddev=0.5, initial_stddev=0.1)
    data = examples(np.zeros([6, 3], np.float32))
    options = {"optimizer_fn": SGD, "learning_rate": 0.3, "pretrained": True}
    assert run(model_fn, data, **options).metrics.kl > 0.1
    np.testing.assert_allclose(run(model_fn, data, update_prior=True, **options).metrics.kl, 0, atol=1e-5)


def test_kl_is_to_the_updated_prior():
    model_fn, data = mlp(prior_stddev=0.5, initial_stddev=0.2), table(4)
    start = get_weights(model_fn()).posterior
    result = run(model_fn, data, local_epochs=2, learning_rate=0.05, update_prior=True, round_number=1)
    metrics = result.metrics
    assert metrics.kl > 0.1
    np.testing.assert_allclose(metrics.kl, kl_divergence(result.weights.posterior, start), rtol=1e-4)
    np.testing.assert_allclose(metrics.tempered_elbo, -(metrics.nll + metrics.kl / 4), rtol=1e-6)
