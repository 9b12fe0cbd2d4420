"""Natural-gradient steps against their equations in numpy, and their estimates of curvature against the exact ones."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.kit import assert_same, refuses
from tfp_bfl import clients, models
from tfp_bfl.data import ClientExamples
from tfp_bfl.layers import DenseFlipout
from tfp_bfl.training.inference import INFERENCES, default_rate, update_of
from tfp_bfl.training.likelihoods import gaussian
from tfp_bfl.training.natural import DRAW_EVERY, MOMENTUM, ByCurvature
from tfp_bfl.training.trainer import Trainer
from tfp_bfl.training.updates import Batch, ByOptimizer, Target
from tfp_bfl.weights import FlatWeights, ServerMessage, get_weights
from tfp_bfl.weights.flat import Draw

SGD = tf.keras.optimizers.SGD
NUM_MEANS, NUM_POINTS, SIZE, BATCH = 6, 2, 50.0, 4.0
STDDEV = 0.1
ROUND = tf.constant(0)


def softmax_regression(**options):
    given = {"input_shape": (3,), "hidden": (), "prior_stddev": 0.5, "initial_stddev": STDDEV, **options}
    return models.mlp(**given)


def made(rate=0.2, optimizer_fn=SGD, **options):
    """Weights, and their update."""
    model = softmax_regression()
    weights = FlatWeights(model)
    weights.load(get_weights(model))
    update = ByCurvature(weights, optimizer_fn, rate, **options)
    update.start(ROUND)
    return weights, update


def batch_of(weights, number=0, scale=1.0):
    """Gradients as good as any."""
    rng = np.random.default_rng(number)
    normal = lambda size: tf.constant(rng.normal(size=size), tf.float32)
    stddev = tf.exp(weights.log_stddev)
    _, kl_in_values, kl_in_log_stddev = weights.kl_divergence(stddev, weights.prior)
    return Batch(
        normal(NUM_MEANS + NUM_POINTS),
        scale * normal(NUM_MEANS),
        functools.partial(lambda drawn: drawn, normal(NUM_MEANS)),
        kl_in_values,
        kl_in_log_stddev,
        Draw(stddev, stddev * normal(NUM_MEANS)),
        tf.constant(BATCH),
        tf.constant(number),
    )


def precision_of(weights):
    return np.exp(-2 * np.float64(weights.log_stddev))


def target_of(weights):
    return Target(weights.prior, tf.constant(SIZE))


@pytest.mark.parametrize("number", [0, 1, DRAW_EVERY - 1, DRAW_EVERY, 3 * DRAW_EVERY])
@pytest.mark.parametrize("decay", [0.0, 0.9])
def test_precision_follows_the_squares_of_gradients_for_drawn_labels(number, decay):
    """Between two estimates it stays as it is."""
    weights, update = made(decay=decay)
    batch, before = batch_of(weights, number), precision_of(weights)
    update.step(batch, target_of(weights))
    found = 1 / 0.5**2 + SIZE * BATCH * np.float64(batch.in_noise_of_drawn_labels()) ** 2
    wanted = decay * before + (1 - decay) * found if number % DRAW_EVERY == 0 else before
    np.testing.assert_allclose(precision_of(weights), wanted, rtol=1e-5)


def test_labels_are_drawn_only_where_an_estimate_is_due():
    weights, update = made()
    batch = batch_of(weights, 1)

    def never():
        raise AssertionError

    update.step(batch._replace(in_noise_of_drawn_labels=never), target_of(weights))


@pytest.mark.parametrize("number", [0, 1, 5])
@pytest.mark.parametrize("decay", [0.5, 0.999])
def test_precision_follows_prices_theorem(number, decay):
    weights, update = made(draw_labels=False, decay=decay)
    batch, before = batch_of(weights, number), precision_of(weights)
    update.step(batch._replace(in_noise_of_drawn_labels=None), target_of(weights))
    curvature = np.float64(batch.in_noise) * (np.float64(batch.draw.noise) / STDDEV) / STDDEV
    gap = 1 / 0.5**2 + SIZE * curvature - before
    wanted = before + (1 - decay) * gap + (1 - decay) ** 2 * gap**2 / (2 * before)
    np.testing.assert_allclose(precision_of(weights), wanted, rtol=1e-5)


@pytest.mark.parametrize("scale", [1.0, 1e3, 1e6])
@pytest.mark.parametrize("decay", [0.0, 0.9, 0.999])
def test_precision_stays_positive_whatever_the_curvature(scale, decay):
    """1 + x + x^2 / 2 is 1 / 2 at least: no step takes more than half of a precision."""
    weights, update = made(draw_labels=False, decay=decay)
    for number in range(5):
        before = precision_of(weights)
        batch = batch_of(weights, number, scale)
        negative = batch._replace(in_noise=-scale * tf.sign(batch.draw.noise))
        update.step(negative, target_of(weights))
        assert np.all(precision_of(weights) >= before * 0.4999) and np.all(np.isfinite(precision_of(weights)))


@pytest.mark.parametrize("draw_labels", [True, False])
def test_natural_means(draw_labels):
    """Three steps: the mean of all gradients so far, the last of them counting most, scaled by the new variances."""
    weights, update = made(0.02, natural_means=True, draw_labels=draw_labels)
    mean, momentum = np.float64(weights.values[:NUM_MEANS]), 0
    for number in range(3):
        batch = batch_of(weights, number)
        update.step(batch, target_of(weights))
        momentum = MOMENTUM * momentum + (1 - MOMENTUM) * np.float64(batch.in_values[:NUM_MEANS])
        gradient = SIZE * momentum / (1 - MOMENTUM ** (number + 1)) + mean / 0.5**2
        mean = mean - 0.02 * gradient / precision_of(weights)
        np.testing.assert_allclose(weights.values[:NUM_MEANS], mean, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("inference", ["natural", "ivon"])
@pytest.mark.parametrize("step_damping", [0.3, 2.0])
def test_step_damping_adds_its_share_of_the_examples_to_the_precision_of_a_step(inference, step_damping):
    """One step: the precision itself has no damping, so that it is that of a step without."""
    found = {}
    for damping in (None, step_damping):
        weights, _ = made()
        update = update_of(inference, learning_rate=0.02, optimizer_fn=SGD, step_damping=damping)(weights)
        update.start(ROUND)
        batch, mean = batch_of(weights), np.float64(weights.values[:NUM_MEANS])
        update.step(batch, target_of(weights))
        found[damping] = precision_of(weights)
        gradient = SIZE * np.float64(batch.in_values[:NUM_MEANS]) + mean / 0.5**2
        wanted = mean - 0.02 * gradient / (found[damping] + SIZE * (damping or 0))
        np.testing.assert_allclose(weights.values[:NUM_MEANS], wanted, rtol=2e-5, atol=1e-6)
    np.testing.assert_array_equal(found[step_damping], found[None])


def test_natural_means_go_to_a_prior_of_its_own_mean():
    weights, update = made(0.5, natural_means=True, decay=0.0)
    middle, precision = tf.linspace(-1.0, 1.0, NUM_MEANS), tf.fill([NUM_MEANS], 9.0)
    prior = weights.gaussian(middle, precision)
    for number in range(20):
        batch = batch_of(weights, number)
        silent = batch._replace(
            in_values=tf.zeros_like(batch.in_values),
            in_noise_of_drawn_labels=lambda: tf.zeros([NUM_MEANS]),
            kl_in_values=weights.kl_divergence(batch.draw.stddev, prior)[1],
        )
        update.step(silent, Target(prior, tf.constant(SIZE)))
    np.testing.assert_allclose(weights.values[:NUM_MEANS], middle, atol=1e-5)
    np.testing.assert_allclose(precision_of(weights), precision, rtol=1e-5)


@pytest.mark.parametrize("natural_means", [True, False])
def test_point_weights_are_the_optimizers(natural_means):
    """At its own rate with natural means, else at the rate of the means, which it steps too."""
    weights, update = made(0.2, functools.partial(SGD, 0.3), natural_means=natural_means)
    batch, before = batch_of(weights), np.float64(weights.values)
    in_values = np.float64(batch.in_values + batch.kl_in_values / SIZE)
    update.step(batch, target_of(weights))
    after = before - (0.3 if natural_means else 0.2) * in_values
    np.testing.assert_allclose(weights.values[NUM_MEANS:], after[NUM_MEANS:], rtol=1e-5, atol=1e-6)
    same = np.allclose(weights.values[:NUM_MEANS], after[:NUM_MEANS], rtol=1e-5, atol=1e-6)
    assert same is not natural_means


@pytest.mark.parametrize("natural_means", [True, False])
def test_learning_rate_sees_the_round(natural_means):
    moves = []
    for round_number in (1, 3):
        weights, update = made(lambda r: 0.01 * tf.cast(r, tf.float32), natural_means=natural_means)
        update.start(tf.constant(round_number))
        before = weights.values.numpy()
        update.step(batch_of(weights), target_of(weights))
        moves.append((weights.values - before)[:NUM_MEANS])
    np.testing.assert_allclose(moves[1], 3 * moves[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("natural_means", [True, False])
def test_a_round_starts_anew(natural_means):
    """Neither momentum nor the optimizer's slots are left."""
    weights, update = made(0.1, functools.partial(SGD, momentum=0.9), natural_means=natural_means)
    start = weights.store()
    found = []
    for _ in range(2):
        weights.load(start)
        update.start(ROUND)
        for number in range(2):
            update.step(batch_of(weights, number), target_of(weights))
        found.append((weights.values.numpy(), weights.log_stddev.numpy()))
    for a, b in zip(*found):
        np.testing.assert_array_equal(a, b)


class Spy:
    """Moves nothing, and sums an estimate of the curvature over the steps."""

    def __init__(self, weights, noise, draws_labels):
        self.noise, self.draws_labels = noise, draws_labels
        self.total = tf.Variable(tf.zeros([weights.log_stddev.shape[0]]))

    def start(self, round, rounds):
        self.total.assign(tf.zeros_like(self.total))

    def step(self, batch, target):
        if self.draws_labels:
            estimate = batch.size * tf.square(batch.in_noise_of_drawn_labels())
        else:
            estimate = batch.in_noise * batch.draw.noise / tf.square(batch.draw.stddev)
        self.total.assign_add(estimate)


def table(number, labels, columns=3):
    rng = np.random.default_rng(number)
    features = np.float32(rng.normal(size=(number, columns)) * [0.5, 1.0, 2.0])
    return ClientExamples(*map(tf.constant, (np.zeros(number, np.int32), features, labels(rng, number))))


def mean_estimate(model_fn, examples, noise, draws_labels, num_steps, **options):
    """Of `num_steps` batches of all examples."""
    made = []

    def update_fn(weights):
        made.append(Spy(weights, noise, draws_labels))
        return made[0]

    trainer, message = Trainer(model_fn, update_fn, **options), ServerMessage(get_weights(model_fn()), ROUND)
    train = tf.function(
        lambda: trainer.train(message, examples, tf.constant([1, 2]), num_steps, len(examples.labels)), autograph=False
    )
    train()
    return made[0].total.numpy() / num_steps


@pytest.mark.statistical
@pytest.mark.parametrize("noise", ["shared", "flipout"])
@pytest.mark.deep(after="tests/training/test_natural.py")
def test_drawn_labels_give_the_gauss_newton_diagonal(noise):
    """Of softmax regression: mean_n x_nd^2 p_nc (1 - p_nc), at weights that hardly vary.

    Error rate: B g^2 of R = 4000 steps has a standard error of at most sqrt(2 / R) = 2 %, being nearly the square of a
    normal variable; six weights within 12 % each: 1e-7.
    """
    model_fn = functools.partial(softmax_regression, initial_stddev=1e-5, seed=3)
    examples = table(10, lambda rng, n: np.int32(rng.integers(2, size=n)))
    found = mean_estimate(model_fn, examples, noise, True, 4000).reshape(3, 2)
    p = tf.nn.softmax(np.float64(examples.features) @ np.float64(get_weights(model_fn()).posterior.mean[0])).numpy()
    wanted = np.mean(np.float64(examples.features)[:, :, None] ** 2 * (p * (1 - p))[:, None], 0)
    np.testing.assert_allclose(found, wanted, rtol=0.12)


@pytest.mark.statistical
@pytest.mark.deep(after="tests/training/test_natural.py")
def test_prices_estimate_is_unbiased_for_a_quadratic_loss():
    """Linear regression with noise of variance 1: the second derivative is mean_n x_nd^2 wherever the weights are.

    Of one step the estimate (g + H s eps)_d eps_d / s has the variance g_d^2 / s^2 + H_dd^2 + sum_j H_dj^2. Error rate:
    three weights, each within 5 standard errors of R = 20000 steps: 2e-6.
    """
    steps, stddev = 20_000, 0.7

    def model_fn():
        inputs = tf.keras.Input((3,))
        layer = DenseFlipout(1, use_bias=False, initial_stddev=stddev, kernel_initializer="ones")
        return tf.keras.Model(inputs, layer(inputs))

    examples = table(10, lambda rng, n: np.float32(rng.normal(size=n)))
    found = mean_estimate(model_fn, examples, "shared", False, steps, likelihood=gaussian(1.0))
    x, y = np.float64(examples.features), np.float64(examples.labels)
    hessian, gradient = x.T @ x / len(x), x.T @ (x.sum(1) - y) / len(x)
    variance = gradient**2 / stddev**2 + np.diag(hessian) ** 2 + (hessian**2).sum(1)
    assert np.all(np.abs(found - np.diag(hessian)) < 5 * np.sqrt(variance / steps))


def work_result(examples, **options):
    model_fn = functools.partial(softmax_regression, seed=1)
    work = work_of(tuple(options.items()))
    return work(ServerMessage(get_weights(model_fn()), ROUND), examples, tf.constant([1, 2]))


@functools.cache
def work_of(options):
    return clients.variational(functools.partial(softmax_regression, seed=1), **{"local_epochs": 1, **dict(options)})()


@pytest.mark.parametrize(("noise", "shared"), [(None, True), ("shared", True), ("flipout", False)])
@pytest.mark.deep(after="tests/training/test_natural.py")
def test_one_draw_for_a_batch_or_one_for_each_example(noise, shared):
    """Of an example that is there eight times, the mean loss is that of one only where all have the same weights."""
    one = ClientExamples(tf.zeros([1], tf.int32), tf.ones([1, 3]), tf.zeros([1], tf.int32))
    many = tf.nest.map_structure(lambda x: tf.repeat(x, 8, 0), one)
    options = {"inference": "curvature", "learning_rate": 0.0, "noise": noise}
    losses = [float(work_result(examples, **options).metrics.nll) for examples in (one, many)]
    assert np.isclose(*losses, rtol=1e-6) is np.bool_(shared)


@pytest.mark.parametrize("inference", INFERENCES)
def test_client_work_starts_anew_each_time(inference):
    examples = table(10, lambda rng, n: np.int32(rng.integers(2, size=n)))
    first, second = (work_result(examples, inference=inference, local_epochs=3, batch_size=4) for _ in range(2))
    assert_same(first, second)


def test_what_an_inference_is():
    weights, _ = made()
    assert [default_rate(name) for name in INFERENCES] == [0.03, 0.005, 0.05, 0.03]
    updates = {name: update_of(name)(weights) for name in INFERENCES}
    assert {name for name, x in updates.items() if isinstance(x, ByCurvature)} == {"curvature", "natural", "ivon"}
    assert {name: x.noise for name, x in updates.items()} == {
        "curvature": "shared", "natural": "shared", "ivon": "shared", "backprop": "flipout"
    }  # fmt: skip
    assert [name for name, x in updates.items() if x.draws_labels] == ["curvature", "natural"]
    of_points = FlatWeights(softmax_regression(kind="deterministic"))
    assert all(isinstance(update_of(name)(of_points), ByOptimizer) for name in INFERENCES)


@pytest.mark.parametrize("stddev_rate", [1.0, 10.0])
def test_log_standard_deviations_by_a_rate_of_their_own(stddev_rate):
    """By backprop: d loss / d log s = in_noise s eps + ((s / t)^2 - 1) / n."""
    weights, _ = made()
    update = update_of("backprop", learning_rate=0.2, optimizer_fn=SGD, stddev_rate=stddev_rate)(weights)
    update.start(ROUND)
    batch, values, log_stddev = batch_of(weights), np.float64(weights.values), np.float64(weights.log_stddev)
    update.step(batch, target_of(weights))
    gradient = np.float64(batch.in_noise * batch.draw.noise) + ((STDDEV / 0.5) ** 2 - 1) / SIZE
    np.testing.assert_allclose(weights.log_stddev, log_stddev - 0.2 * stddev_rate * gradient, rtol=1e-5)
    wanted = values - 0.2 * np.float64(batch.in_values + batch.kl_in_values / SIZE)
    np.testing.assert_allclose(weights.values, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"inference": "ivvon"}, "no inference 'ivvon': did you mean 'ivon'"),
        ({"inference": "natural", "noise": "share"}, "no noise 'share': did you mean 'shared'"),
        ({"inference": "natural", "decay": 1.0}, "decay is 1.0, but must be at least 0 and below 1"),
        ({"inference": "natural", "decay": -0.1}, "decay is -0.1, but must be"),
        ({"inference": "backprop", "decay": 0.5}, "inference 'backprop' has none"),
        ({"inference": "curvature", "stddev_rate": 2.0}, "stddev_rate is of inference 'backprop'"),
        ({"inference": "backprop", "stddev_rate": 0.0}, "stddev_rate is 0.0, but must be"),
        ({"inference": "curvature", "step_damping": 0.1}, r"step_damping is 0\.1, an option of natural gradients, and"),
        ({"inference": "backprop", "step_damping": 0.0}, "leave it out, or use inference 'natural' or 'ivon'"),
        ({"inference": "natural", "step_damping": -0.1}, r"step_damping is -0\.1, but must be"),
    ],
)
def test_options_out_of_range(given, message):
    refuses(message, update_of, **given)
