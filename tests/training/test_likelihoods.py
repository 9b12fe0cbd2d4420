"""Likelihoods against the distributions of TensorFlow Probability."""

import functools

import numpy as np
import pytest
import sklearn.utils.class_weight
import tensorflow as tf
import tensorflow_probability as tfp

from tests.kit import refuses
from tfp_bfl import algorithms, models, simulate
from tfp_bfl.data import ClientExamples, read_own
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.evaluation import evaluate_regression
from tfp_bfl.training.example_privacy import ExamplePrivacy
from tfp_bfl.training.inference import update_of
from tfp_bfl.training.likelihoods import (
    CATEGORICAL,
    LIKELIHOODS,
    MAX_GRADIENT_NORM,
    Likelihood,
    balanced_weights,
    gaussian,
    parse_likelihood,
)
from tfp_bfl.training.trainer import Trainer
from tfp_bfl.weights import ServerMessage, get_weights

RNG = np.random.default_rng(0)
LOGITS = tf.constant(RNG.normal(scale=2, size=[7, 4]), tf.float32)
OUTPUTS = LOGITS[:, :1]
tfd = tfp.distributions


def test_categorical():
    labels = tf.constant(RNG.integers(4, size=7))
    wanted = -tfd.Categorical(logits=LOGITS).log_prob(labels)
    np.testing.assert_allclose(parse_likelihood("categorical").nll(labels, LOGITS), wanted, rtol=1e-5)


@pytest.mark.parametrize("stddev", [0.3, 1.0, 20.0])
@pytest.mark.parametrize("dtype", [tf.float32, tf.float64, tf.int32])
def test_gaussian(stddev, dtype):
    labels = tf.cast(RNG.normal(scale=3, size=7), dtype)
    wanted = -tfd.Normal(OUTPUTS[:, 0], stddev).log_prob(tf.cast(labels, tf.float32))
    np.testing.assert_allclose(parse_likelihood(f"gaussian:{stddev}").nll(labels, OUTPUTS), wanted, rtol=1e-5)


def draws(likelihood, outputs, number=20_000):
    """[number, B]"""
    repeated = tf.repeat(outputs, number, 0)
    return np.reshape(likelihood.draw(repeated, tf.constant([1, 2])), [len(outputs), number]).T


@pytest.mark.statistical
def test_drawn_classes_have_their_probabilities():
    """Error rate: 28 frequencies, each within 5 standard errors: 2e-5."""
    probability = tf.nn.softmax(LOGITS).numpy()
    labels = draws(CATEGORICAL, LOGITS)
    frequency = np.stack([(labels == c).mean(0) for c in range(4)], 1)
    assert np.all(np.abs(frequency - probability) < 5 * np.sqrt(probability * (1 - probability) / len(labels)) + 1e-5)


@pytest.mark.statistical
def test_drawn_floats_have_their_moments():
    """Error rate: 7 means and 7 variances, each within 5 standard errors: 8e-6."""
    labels = draws(gaussian(0.5), OUTPUTS)
    assert np.all(np.abs(labels.mean(0) - OUTPUTS[:, 0]) < 5 * 0.5 / np.sqrt(len(labels)))
    assert np.all(np.abs(labels.var(0) / 0.25 - 1) < 5 * np.sqrt(2 / len(labels)))


@pytest.mark.parametrize("text", ["categorical", "gaussian:2"])
def test_draws_depend_on_the_seed(text):
    likelihood, outputs = parse_likelihood(text), tf.repeat(OUTPUTS if ":" in text else LOGITS, 10, 0)
    first, again, other = (likelihood.draw(outputs, tf.constant(seed)).numpy() for seed in ([1, 2], [1, 2], [1, 3]))
    assert (first == again).all() and (first != other).any()
    assert first.shape == (70,)


def test_a_likelihood_of_ones_own_stays():
    own = Likelihood(lambda labels, outputs: labels, lambda outputs, seed: outputs)
    assert parse_likelihood(own) is own


def test_all_in_the_table_are_likelihoods():
    arguments = {"gaussian": "gaussian:1", "class_weighted": "class_weighted:1,2"}
    made = [parse_likelihood(arguments.get(name, name)) for name in LIKELIHOODS]
    assert all(isinstance(x, Likelihood) for x in made)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gausian:1", "no likelihood 'gausian': did you mean 'gaussian'"),
        ("gaussian", "'gaussian' lacks its stddev: write gaussian:STDDEV"),
        ("gaussian:", "'gaussian:' lacks its stddev"),
        ("gaussian:wide", "has the stddev 'wide', but must be gaussian:STDDEV with a number"),
        ("gaussian:0", "stddev is 0.0, but must be a finite number above 0"),
        ("gaussian:-1", "stddev is -1.0, but must be"),
        ("gaussian:nan", "stddev is nan, but must be"),
        ("gaussian:inf", "stddev is inf, but must be"),
        ("categorical:3", "'categorical:3' has an argument, but categorical takes none"),
        (None, "no likelihood 'None'"),
        ("class_weighted:1,x", "class weights are '1,x', but must be numbers separated by commas"),
        ("class_weighted:1,0", "a class weight is 0.0, but must be"),
        ("class_weighted:1", "a class weight for 1 class, but there must be at least two"),
    ],
)
def test_text_that_names_none(text, message):
    refuses(message, parse_likelihood, text)


def test_heteroscedastic_is_normal_and_bounded():
    labels = tf.constant([0.3, -1.0, 2.0, 5.0])
    outputs = tf.constant([[0.1, -0.5], [0.0, 0.7], [1.0, 0.0], [4.0, 100.0]])
    found = parse_likelihood("heteroscedastic").nll(labels, outputs)
    wanted = -tfd.Normal(outputs[:, 0], tf.exp(0.5 * tf.minimum(outputs[:, 1], 14.0))).log_prob(labels)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_classes_of_numbers_say_what_would_be_right():
    with pytest.raises(InvalidArgument, match="give likelihood 'heteroscedastic'"):
        parse_likelihood("categorical").nll(tf.constant([0.5]), tf.constant([[0.1, 0.2]]))


def one_step(optimizer, likelihood, seed=0, kind=None, inference="backprop", **options):
    """The length of the change of the means by one step at rate 1, for labels far from what the model predicts, and
    those of log s and of the point weights."""
    rng = np.random.default_rng(seed)
    examples = ClientExamples(
        tf.zeros([8], tf.int32), tf.constant(rng.normal(size=[8, 3]), tf.float32), 50.0 * tf.ones(8)
    )
    dense = lambda: tf.keras.layers.Dense(2, kernel_initializer="zeros", input_shape=[3])
    model_fn = functools.partial(models.mlp, kind, [3], 2, seed=1) if kind else lambda: tf.keras.Sequential([dense()])
    update_fn = update_of(inference, optimizer_fn=optimizer, learning_rate=1.0)
    trainer = Trainer(model_fn, update_fn, likelihood=parse_likelihood(likelihood), **options)
    message = ServerMessage(get_weights(model_fn()), tf.constant(0))
    trainer.weights.load(message.weights)
    before = [tf.identity(variable) for variable in (trainer.weights.values, trainer.weights.log_stddev)]
    tf.function(lambda: trainer.train(message, examples, tf.constant([1, 2]), 1, 8), autograph=False)()
    after = trainer.weights.values, trainer.weights.log_stddev
    number = tf.size(trainer.weights.log_stddev)
    return [float(tf.norm(b - a)) for a, b in (*zip(before, after), (before[0][number:], after[0][number:]))]


def test_a_step_of_sgd_is_bounded_where_the_variance_is_learned():
    """The gradient in the bias is 50, and (50^2 - 1) / 2 in that of the log variance."""
    for optimizer in ("sgd", "momentum"):
        assert one_step(optimizer, "heteroscedastic")[0] == pytest.approx(MAX_GRADIENT_NORM, rel=1e-5)
        assert one_step(optimizer, "gaussian:1")[0] > 49
    # Adam's steps have the same size for each weight: eight of rate 1.
    assert one_step("adam", "heteroscedastic")[0] == pytest.approx(np.sqrt(8), rel=1e-3)


def test_point_weights_under_natural_gradients_have_the_bound_too():
    unit = lambda: tf.keras.optimizers.SGD(1.0)
    bounded, free = (
        one_step(unit, name, kind="flipout", inference="natural")[2] for name in ("heteroscedastic", "gaussian:1")
    )
    assert bounded == pytest.approx(MAX_GRADIENT_NORM, rel=1e-4) and free > 10


def test_means_and_log_standard_deviations_have_a_bound_each():
    bounded, free = (one_step("sgd", name, kind="flipout") for name in ("heteroscedastic", "gaussian:1"))
    assert bounded[0] == pytest.approx(MAX_GRADIENT_NORM, rel=1e-4) and 0 < bounded[1] <= MAX_GRADIENT_NORM * 1.0001
    assert free[0] > 10


def test_the_gradient_of_examples_in_private_has_its_own_bound_only():
    """Its noise is longer than the bound: it would be cut."""
    privacy = ExamplePrivacy(clip_norm=1.0, noise_multiplier=100.0)
    assert one_step("sgd", "heteroscedastic", example_privacy=privacy)[0] > 5


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.deep(after="tests/training/test_likelihoods.py")
def test_regression_learns_from_any_initial_weights(seed):
    """Without a bound on the gradients the RMSE is 82 and 46; a constant has 58, the true mean 28.5."""
    rng = np.random.default_rng(0)
    a, b, c = rng.normal(size=600), rng.normal(3, 2, 600), rng.integers(0, 2, 600)
    y = 500 + 30 * a - 20 * b + np.where(c == 1, 40, 5) * rng.normal(size=600)
    data = read_own((np.stack([a, b, c], -1), y, rng.integers(0, 3, 600).astype(str)), task="regression")
    process = algorithms.variational(
        lambda: models.mlp("flipout", [3], 2),
        likelihood="heteroscedastic",
        local_epochs=10,
        element_spec=data.clients.element_spec,
    )
    model = simulate(process, data.clients, rounds=20, engine="local", seed=seed).model
    scores = evaluate_regression(model, data.test.features, data.test.labels, scale=data.test.target.stddev)
    assert scores.metrics["rmse"] < 40


def test_class_weights_multiply_the_nll():
    labels, outputs = tf.constant([0, 1, 1]), tf.constant([[0.3, -1.0], [0.2, 0.1], [2.0, -2.0]])
    weighted, plain = parse_likelihood("class_weighted:0.5,3"), parse_likelihood("categorical")
    np.testing.assert_allclose(weighted.nll(labels, outputs), [0.5, 3, 3] * plain.nll(labels, outputs).numpy())
    refuses("There are 2 class weights, but the model has 3 classes", weighted.nll, labels, tf.zeros([3, 3]))


def test_the_curvature_of_drawn_labels_is_that_of_the_weighted_loss():
    """The mean of 4,000 squared gradients is within 5 standard errors of the Hessian (error rate 6e-7 each)."""
    likelihood, number = parse_likelihood("class_weighted:0.5,4,1"), 4000
    logits = tf.constant([[0.3, -1.0, 0.5]])
    for label in (0, 1):
        labels = tf.fill([number], label)
        with tf.GradientTape() as outer:
            outer.watch(logits)
            with tf.GradientTape() as inner:
                inner.watch(logits)
                loss = tf.reduce_sum(likelihood.nll(labels[:1], logits))
            gradient = inner.gradient(loss, logits)
        hessian = tf.linalg.diag_part(outer.jacobian(gradient, logits)[0, :, 0])
        outputs = tf.repeat(logits, number, 0)
        with tf.GradientTape() as tape:
            tape.watch(outputs)
            loss = tf.reduce_sum(likelihood.nll_of_drawn(labels, outputs, (1, label)))
        squares = tape.gradient(loss, outputs).numpy() ** 2
        assert np.all(np.abs(squares.mean(0) - hessian) < 5 * squares.std(0) / number**0.5)


def test_balanced_weights_are_scikit_learns():
    labels = np.repeat([0, 2], [10, 30])
    wanted = sklearn.utils.class_weight.compute_class_weight("balanced", classes=np.array([0, 2]), y=labels)
    np.testing.assert_allclose(balanced_weights([10, 0, 30]), [wanted[0], 1, wanted[1]])
    refuses("No class has examples", balanced_weights, [0, 0])
