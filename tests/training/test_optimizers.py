"""Client work with Keras's optimizers on flat vectors: against the same optimizer by hand, and their state."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.clients.test_variational import BY_BACKPROP, assert_same, differ, examples, mlp, run, table
from tests.kit import refuses
from tests.processes import weights_after
from tfp_bfl import algorithms, clients, models
from tfp_bfl.data import Clients, Source
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.training import OPTIMIZERS as OPTIMIZERS_training
from tfp_bfl.training import default_rate
from tfp_bfl.training.inference import update_of
from tfp_bfl.training.optimizers import Adam, is_linear
from tfp_bfl.training.updates import Target
from tfp_bfl.weights import ServerMessage, get_weights

from .test_natural import NUM_MEANS, ROUND, batch_of, made

keras = tf.keras.optimizers
OPTIMIZERS = {
    "Adam": Adam,
    "Keras's Adam": keras.Adam,
    "SGD": functools.partial(keras.SGD, momentum=0.9),
    "Adagrad": keras.Adagrad,
    "Nadam": keras.Nadam,
    "global_clipnorm": functools.partial(keras.Adam, global_clipnorm=0.1),
    "clipvalue": functools.partial(keras.RMSprop, clipvalue=0.01, momentum=0.5),
}
every_optimizer = pytest.mark.parametrize("optimizer_fn", OPTIMIZERS.values(), ids=OPTIMIZERS)
OPTIONS = {"learning_rate": 0.05, "batch_size": 4, "local_epochs": 2}
HALVES = [np.arange(6), np.arange(6, 12)]


# Two steps of one gradient g from the optimizer's first state on, in closed form: the change is rate x this.
TWO_STEPS = {
    "sgd": (0.1, lambda g: 2 * g),
    # The velocities g and 1.9 g; Nesterov's steps are 0.9 of the new velocity and g besides.
    "momentum": (0.03, lambda g: (1 + 1.9) * g),
    "nesterov": (0.03, lambda g: (1.9 + 2.71) * g),
    "adagrad": (1e-2, lambda g: g / np.sqrt(0.1 + g**2) + g / np.sqrt(0.1 + 2 * g**2)),
    "rmsprop": (1e-3, lambda g: np.sign(g) * (1 / np.sqrt(0.1) + 1 / np.sqrt(0.19))),
    "adam": (1e-3, lambda g: 2 * np.sign(g)),
}


@pytest.mark.parametrize("name", OPTIMIZERS_training)
def test_an_optimizer_by_name_takes_its_steps_at_its_default_rate(name):
    weights, _ = made()
    update = update_of("backprop", optimizer_fn=name)(weights)
    update.start(ROUND)
    batch, before = batch_of(weights), np.float64(weights.values)
    silent = {"kl_in_values": tf.zeros_like(weights.values), "in_noise": tf.zeros(NUM_MEANS)}
    for _ in range(2):
        update.step(batch._replace(**silent), Target(weights.prior, tf.constant(50.0)))
    rate, change = TWO_STEPS[name]
    assert default_rate("backprop", name) == default_rate("curvature", name) == rate
    np.testing.assert_allclose(
        weights.values, before - rate * change(np.float64(batch.in_values)), rtol=1e-4, atol=1e-6
    )


def test_default_rates():
    """Natural gradients have rates of their own; a Keras optimizer that is none of the table has its own rate."""
    assert default_rate("curvature") == default_rate("backprop", "momentum") == 0.03
    assert [default_rate(name, "adam") for name in ("natural", "ivon")] == [0.005, 0.05]
    assert default_rate("curvature", keras.SGD) == 0.1
    assert default_rate("curvature", lambda: keras.Nadam(0.25)) == 0.25


def test_only_sgd_is_linear_in_the_gradients():
    assert [name for name in OPTIMIZERS_training if is_linear(name)] == ["sgd", "momentum", "nesterov"]
    assert is_linear(lambda: keras.SGD(0.3)) and not is_linear(keras.Nadam)


RECIPES = {
    "variational": functools.partial(algorithms.variational, mlp(hidden=())),
    "partitioned_vi": functools.partial(algorithms.partitioned_vi, mlp(hidden=())),
    "fed_opt": functools.partial(algorithms.fed_opt, mlp(kind="deterministic", hidden=())),
    "fed_pa": functools.partial(algorithms.fed_pa, mlp(kind="deterministic", hidden=())),
}
every_recipe = pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)


@pytest.mark.parametrize(
    ("given", "rate"),
    [
        ({}, 0.03),
        ({"optimizer": "adam"}, 1e-3),
        ({"optimizer_fn": "sgd"}, 0.1),
        ({"optimizer": "adam", "learning_rate": 0.3}, 0.3),
        ({"optimizer_fn": keras.Adam}, 1e-3),
        ({"optimizer_fn": lambda: keras.SGD(0.25)}, 0.25),
    ],
)
def test_clients_that_sample_have_a_rate_of_their_own_unless_an_optimizer_is_given(given, rate):
    assert float(RECIPES["fed_pa"](**given).description["learning_rate"]) == pytest.approx(rate, rel=1e-6)


@every_recipe
@pytest.mark.parametrize("rate", [{}, {"learning_rate": 0.1}], ids=["default rate", "rate"])
@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        ("nosuch", r"^There is no optimizer 'nosuch': choose one of 'adagrad', 'adam', .*'sgd'\.$"),
        ("adm", r"^There is no optimizer 'adm': did you mean 'adam'\?$"),
        (3, r"^optimizer_fn is 3, but must be one of sgd, momentum, .*, adam, or a function that builds a Keras opti"),
    ],
)
def test_what_is_no_optimizer(recipe, rate, optimizer, message):
    refuses(message, recipe, optimizer=optimizer, **rate)


@every_recipe
def test_an_optimizer_is_given_once(recipe):
    with pytest.raises(InvalidArgument, match=r"^optimizer and optimizer_fn are the same option: give one of them\.$"):
        recipe(optimizer="sgd", optimizer_fn=keras.SGD)


def test_an_optimizer_by_name_is_the_function_to_the_bit():
    parts = Clients(
        Source("made", "train", table(12).features.numpy(), table(12).labels.numpy(), ("no", "yes")), HALVES
    )
    weights = [
        weights_after(1, RECIPES["variational"](batch_size=3, **given, element_spec=parts.element_spec), parts)
        for given in ({"optimizer": "sgd"}, {"optimizer_fn": keras.SGD})
    ]
    assert_same(weights[1], weights[0])
    assert differ(weights[0], get_weights(mlp(hidden=())()), atol=1e-2)


def message_of(model_fn, seed=0):
    rng = np.random.default_rng(seed)
    weights = get_weights(model_fn())
    move = lambda x: x + tf.constant(0.3 * rng.normal(size=x.shape), tf.float32)
    posterior = weights.posterior._replace(mean=tf.nest.map_structure(move, weights.posterior.mean))
    weights = weights._replace(posterior=posterior, point=tf.nest.map_structure(move, weights.point))
    return ServerMessage(weights, tf.constant(0))


@pytest.mark.deep(after="tests/training/test_adam.py")
@pytest.mark.parametrize("name", ["Adam", "SGD", "Adagrad", "Nadam"])
def test_state_starts_anew_with_every_client(name):
    """After another client's data and weights, the work gives what one that was built just now gives."""
    model_fn = mlp(hidden=())
    build = clients.variational(model_fn, **{**BY_BACKPROP, **OPTIONS, "optimizer_fn": OPTIMIZERS[name]})
    data, message, seed = table(6), message_of(model_fn), tf.constant([1, 2])
    fresh, used = build()(message, data, seed), build()
    other = used(message_of(model_fn, 1), data._replace(features=100 * data.features), tf.constant([3, 4]))
    assert differ(other, fresh, atol=1e-2)
    for _ in range(2):
        assert_same(used(message, data, seed), fresh)


@pytest.mark.deep(after="tests/training/test_adam.py")
@every_optimizer
def test_steps_are_the_optimizers_from_its_first_state_on(optimizer_fn):
    """Features of zero leave the kernel to the KL, whose gradient is known: m / (t^2 N) and ((s / t)^2 - 1) / N.

    The second call, so that the state must have started at the optimizer's own (Adagrad's at 0.1, Nadam's at 1).
    """
    model_fn = mlp(hidden=(), prior_stddev=0.5, initial_stddev=0.1)
    data, message = examples(np.zeros([6, 3], np.float32)), message_of(model_fn)
    weights = message.weights._replace(point=(tf.zeros(2),))
    options = {**BY_BACKPROP, "optimizer_fn": optimizer_fn, "learning_rate": 0.05, "local_epochs": 5}
    work = clients.variational(model_fn, **options)()
    for _ in range(2):
        result = work(ServerMessage(weights, tf.constant(0)), data, tf.constant([1, 2])).weights

    mean = tf.Variable(tf.concat([tf.reshape(weights.posterior.mean[0], [-1]), tf.zeros(2)], 0))
    log_stddev = tf.Variable(tf.math.log(tf.fill([6], 0.1)))
    optimizer = optimizer_fn()
    optimizer.build([mean, log_stddev])
    optimizer.learning_rate.assign(0.05)

    @tf.function
    def step():
        gradients = mean / 0.25 / 6, (tf.exp(2 * log_stddev) / 0.25 - 1) / 6
        optimizer.apply_gradients(zip(gradients, (mean, log_stddev)))

    for _ in range(5):
        step()
    np.testing.assert_allclose(tf.reshape(result.posterior.mean[0], [-1]), mean[:6], rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(tf.reshape(result.posterior.variance[0], [-1]), tf.exp(2 * log_stddev), rtol=2e-5)
    np.testing.assert_allclose(result.point[0], np.zeros(2), atol=1e-6)
    assert differ(result.posterior, weights.posterior, atol=1e-3)


def test_adagrads_first_accumulator():
    """One step by hand: g / sqrt(0.1 + g^2), where a state of 0 would give the gradient's sign."""
    model_fn = mlp(hidden=(), prior_stddev=0.5, initial_stddev=0.5)
    weights = message_of(model_fn).weights
    data = examples(np.zeros([2, 3], np.float32))
    result = run(model_fn, data, weights=weights, optimizer_fn=keras.Adagrad, learning_rate=0.05)
    mean = np.float64(weights.posterior.mean[0])
    gradient = mean / 0.25 / 2
    wanted = mean - 0.05 * gradient / np.sqrt(0.1 + gradient**2)
    np.testing.assert_allclose(result.weights.posterior.mean[0], wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.deep(after="tests/training/test_adam.py")
@pytest.mark.parametrize("kind", models.KINDS)
def test_our_adam_and_kerass_train_alike(kind):
    model_fn = mlp(kind=kind, initial_stddev=0.1)
    ours, theirs = (run(model_fn, table(10), **o, **OPTIONS) for o in ({}, {"optimizer_fn": keras.Adam}))
    assert_same(ours, theirs, rtol=1e-4, atol=1e-5)
    assert differ(ours.weights, get_weights(model_fn()), atol=0.1)


@pytest.mark.parametrize(
    "optimizer_fn", [keras.Adafactor, lambda: keras.Adam(clipnorm=1.0), lambda: Adam(clipnorm=1.0)]
)
def test_optimizers_that_treat_each_weight_apart_are_refused(optimizer_fn):
    message = r"treats each weight tensor apart \(Adafactor, or clipnorm\).* use global_clipnorm, clipvalue"
    refuses(message, clients.variational(mlp(), optimizer_fn=optimizer_fn))


@pytest.mark.parametrize("columns", [1, 3])
@pytest.mark.parametrize("variational_bias", [False, True])
def test_one_step_with_noise(columns, variational_bias):
    """One example with one feature of 2 that isn't zero, two classes, a learning rate of 1, noise of s = 0.5.

    The bias's step is g = p - onehot, so p tells the logits' difference, and with it the noise's: d. The derivatives in
    the log s of unit j sum to noise_j g_j, those of both units to g_1 d, besides the KL's. The kernel's derivative is
    2 g, and the KL's is the kernel itself.
    """
    model_fn = mlp(
        hidden=(), input_shape=(columns,), prior_stddev=1.0, initial_stddev=0.5, variational_bias=variational_bias
    )
    features = np.zeros([1, columns], np.float32)
    features[0, -1] = 2.0
    weights = get_weights(model_fn())
    kernel, *bias = (np.float64(m) for m in weights.posterior.mean)
    work = clients.variational(model_fn, **{**BY_BACKPROP, "optimizer_fn": keras.SGD, "learning_rate": 1.0})()
    for seed in range(5):
        message = ServerMessage(weights, tf.constant(0))
        result = work(message, examples(features, [1]), tf.constant([seed, 0])).weights
        (new_bias,) = result.posterior.mean[1:] if bias else result.point
        g = -np.float64(new_bias)
        np.testing.assert_allclose(g.sum(), 0, atol=1e-6)
        p = np.add(g, [0, 1])
        difference = np.log(p[1] / p[0]) - 2 * (kernel[-1, 1] - kernel[-1, 0])
        assert abs(difference) > 1e-3
        np.testing.assert_allclose(result.posterior.mean[0][-1], -2 * g, rtol=1e-4, atol=1e-5)
        # The steps in log s without the KL's gradient, s^2 - 1, times N = 1.
        steps = [np.log(0.5) - 0.5 * np.log(np.float64(v)) - (0.25 - 1) for v in result.posterior.variance]
        np.testing.assert_allclose(steps[0][:-1], 0, atol=1e-5)
        np.testing.assert_allclose(sum(s.sum() for s in steps), g[1] * difference, rtol=1e-3, atol=1e-5)
