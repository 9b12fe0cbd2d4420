"""SWAG's client work: against its equations in NumPy, on logistic regression, and the parts that stay frozen."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from tests.kit import assert_same, differ, refuses
from tfp_bfl import models
from tfp_bfl.algorithms.swag.work import sampled_curvature, smallest_client, swag, swag_weights
from tfp_bfl.data import ClientExamples
from tfp_bfl.layers import sampling
from tfp_bfl.posterior import LowRank, MeanField
from tfp_bfl.training.likelihoods import CATEGORICAL
from tfp_bfl.weights import FlatWeights, ModelWeights, ServerMessage, assign_weights, get_weights, layout, split_head

SEED = (1, 2)
DEEP = pytest.mark.deep(after="tests/algorithms/swag/test_swag.py")
OPTIONS = {"local_epochs": 5, "burn_in_epochs": 2, "collect_every": None, "max_columns": 6, "min_variance": 1e-9,
           "batch_size": 4, "learning_rate": 0.3, "momentum": 0.0, "weight_decay": 0.0}  # fmt: skip


def mlp(**options):
    return lambda: models.mlp(**{"kind": "deterministic", "input_shape": (3,), "hidden": (), **options})


def examples(features, labels, client=4):
    return ClientExamples(*map(tf.constant, (np.full(len(features), client, np.int32), features, np.int32(labels))))


def table(number, columns=3, classes=2):
    rng = np.random.default_rng(number)
    return examples(rng.normal(size=[number, columns]).astype(np.float32), rng.integers(classes, size=number))


def trainer(model_fn, weights=None, **options):
    """(data, seed) -> result of one client work, from the weights of `model_fn` unless others are given."""
    message = ServerMessage(get_weights(model_fn()) if weights is None else weights, tf.constant(0))
    work = swag(model_fn, **{**OPTIONS, **options})()
    return lambda data, seed=SEED: work(message, data, tf.constant(seed))


def run(model_fn, data, **options):
    return trainer(model_fn, **options)(data)


def batches(number, seed, epochs, size):
    """The examples of each step, by the stateless shuffles that the work's docstring leaves to the seed."""
    for epoch in range(epochs):
        folded = tf.random.experimental.stateless_fold_in(tf.constant(seed), epoch)
        order = tf.random.experimental.stateless_shuffle(tf.range(number), folded).numpy()
        yield from (order[i : i + size] for i in range(0, number, size))


def reference(start, features, labels, seed=SEED, **options):
    """Logistic regression by SGD, and the moments by their definition: float64, and the whole history at hand.

    Returns (mean, diagonal, deviations), each of kernel and bias as one vector, and the mean loss.
    """
    o = {**OPTIONS, **options}
    x, y = np.float64(features), np.eye(start[0].shape[1])[labels]
    inputs = np.concatenate([x, np.ones([len(x), 1])], 1)
    theta = np.concatenate([np.float64(start[0]), np.float64(start[1])[None]])
    velocity, losses, history = np.zeros_like(theta), [], [theta]
    for rows in batches(len(x), seed, o["local_epochs"], o["batch_size"]):
        logits = inputs[rows] @ theta
        p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        losses += list(-np.log(p[y[rows] == 1]))
        gradient = inputs[rows].T @ (p - y[rows]) / len(rows)
        velocity = o["momentum"] * velocity + gradient + o["weight_decay"] * theta
        theta = theta - o["learning_rate"] * velocity
        history.append(theta)
    an_epoch = (len(history) - 1) // o["local_epochs"]
    burn_in = o["local_epochs"] // 2 if o["burn_in_epochs"] is None else o["burn_in_epochs"]
    first, every = burn_in * an_epoch, o["collect_every"] or an_epoch
    iterates = np.stack([h.ravel() for h in history[first::every]])  # theta_0 and what is collected after it
    ring = {(n - 1) % o["max_columns"]: iterates[n] - iterates[: n + 1].mean(0) for n in range(1, len(iterates))}
    held = [ring[row] for row in sorted(ring)]
    variance = np.maximum((iterates**2).mean(0) - iterates.mean(0) ** 2, o["min_variance"])
    return (iterates.mean(0), variance / 2, np.stack(held) / np.sqrt(2 * (len(held) - 1))), np.mean(losses)


def flat(leaves, leading=0):
    return np.concatenate([np.reshape(x, [*np.shape(x)[:leading], -1]) for x in leaves], -1)


@pytest.mark.parametrize(
    ("number", "options", "num_columns"),
    [
        pytest.param(10, {}, 3, marks=DEEP),
        (10, {"momentum": 0.8, "weight_decay": 0.1}, 3),
        (10, {"burn_in_epochs": 0, "learning_rate": 1.0}, 5),
        pytest.param(10, {"collect_every": 2, "max_columns": 4}, 4, marks=DEEP),
        (12, {"collect_every": 1, "max_columns": 9, "weight_decay": 0.5}, 9),
        (3, {"collect_every": 1, "momentum": 0.5, "batch_size": 8}, 3),
        pytest.param(7, {"burn_in_epochs": None, "local_epochs": 7, "max_columns": 3}, 3, marks=DEEP),
        (10, {"min_variance": 0.01, "classes": 4}, 3),
    ],
)
def test_it_is_the_posterior_of_the_equations(number, options, num_columns):
    """Columns as many as are collected, fewer, and more than the rows."""
    options = {**options}
    classes = options.pop("classes", 2)
    model_fn, data = mlp(num_classes=classes), table(number, classes=classes)
    start = get_weights(model_fn())
    result = run(model_fn, data, **options)
    (mean, diagonal, deviations), loss = reference(start.point, data.features, data.labels, **options)
    assert deviations.shape[0] == num_columns
    client, number_trained, q, moments = result.weights
    assert isinstance(q, LowRank) and [x.shape for x in q.mean] == [x.shape for x in start.point]
    np.testing.assert_allclose(flat(q.mean), mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(flat(q.diagonal), diagonal, rtol=1e-3, atol=1e-8)
    rows = flat(q.deviations, 1)
    assert rows.shape[0] == {**OPTIONS, **options}["max_columns"]
    np.testing.assert_allclose(rows[:num_columns], deviations, rtol=1e-3, atol=2e-6)
    np.testing.assert_array_equal(rows[num_columns:], 0)
    assert differ(q.mean, start.point, 1e-2) and (mean.max() - mean.min()) > 0.1
    assert (client, number_trained, result.num_examples) == (4, number, number) and moments == MeanField((), ())
    np.testing.assert_allclose(result.metrics, (loss, 0, -loss, 0), rtol=1e-5)


def test_the_floor_is_of_the_variance_before_it_is_halved():
    q = run(mlp(), table(10), min_variance=100.0).weights.posterior
    assert_same(q.diagonal, tuple(np.full(m.shape, 50.0) for m in q.mean))


def normalized():
    """A network with BatchNorm before its head, and weights whose moving statistics are not those of a new one."""

    def model_fn():
        inputs = tf.keras.Input((3,))
        x = tf.keras.layers.Dense(5, "tanh", kernel_initializer=tf.keras.initializers.GlorotNormal(seed=1))(inputs)
        x = tf.keras.layers.BatchNormalization(momentum=0.5)(x)
        head = tf.keras.layers.Dense(2, kernel_initializer=tf.keras.initializers.GlorotNormal(seed=2))
        return tf.keras.Model(inputs, head(x), name="normalized")

    weights = get_weights(model_fn())
    moved = tf.nest.map_structure(lambda x: x + np.float32(0.4), weights.moments)
    return model_fn, weights._replace(moments=moved)


def features_of(model_fn, weights, data):
    model = model_fn()
    assign_weights(model, weights)
    with sampling("mean"):
        features = split_head(model).features(tf.image.convert_image_dtype(data.features, tf.float32))
    return data._replace(features=features)


def assert_head_alone(model_fn, weights, data, **options):
    """The last layer's posterior is that of logistic regression on the features."""
    on_features = features_of(model_fn, weights, data)
    num_features, classes = weights.point[-2].shape
    head_fn = mlp(input_shape=(num_features,), num_classes=classes)
    head = ModelWeights(MeanField((), ()), weights.point[-2:], MeanField((), ()))
    wanted = run(head_fn, on_features, weights=head, **options)
    result = run(model_fn, data, weights=weights, last_layer=True, **options)
    assert_same(result, wanted, rtol=1e-5, atol=1e-6)
    assert differ(result.weights.posterior.mean, head.point, 1e-3)
    return result


@pytest.mark.deep(after="tests/algorithms/swag/test_swag.py")
def test_the_last_layer_alone_is_logistic_regression_on_frozen_features():
    """300 examples take two passes through the network; BatchNorm by the batch would give other features."""
    model_fn, weights = normalized()
    result = assert_head_alone(model_fn, weights, table(300), batch_size=32, learning_rate=0.1)
    assert result.weights.moments == MeanField((), ())


def test_the_last_layer_on_images():
    """Bytes are scaled once, and dropout below the head is off: features are computed once."""
    model_fn = mlp(kind="mc_dropout", input_shape=(8, 8, 1), hidden=(5,), num_classes=3, dropout_rate=0.5)
    pixels = np.random.default_rng(5).integers(256, size=[9, 8, 8, 1]).astype(np.uint8)
    assert_head_alone(model_fn, get_weights(model_fn()), examples(pixels, np.arange(9) % 3), learning_rate=0.05)


def test_batch_normalization_of_the_whole_model_is_computed_at_the_posteriors_mean():
    """On the first 1,000 examples, before any moving average."""
    model_fn, weights = normalized()
    data = table(1100)
    result = run(model_fn, data, weights=weights, batch_size=512, max_columns=2)
    kernel, bias = (np.float64(x) for x in result.weights.posterior.mean[:2])
    hidden = np.tanh(np.float64(data.features[:1000]) @ kernel + bias)
    assert differ(result.weights.posterior.mean[0], weights.point[0], 1e-3)
    moments = result.weights.moments
    np.testing.assert_allclose(moments.mean[0], hidden.mean(0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(moments.variance[0], hidden.var(0), rtol=1e-4)


@pytest.mark.deep(after="tests/algorithms/swag/test_swag.py")
def test_dropout_is_on_in_training_of_the_whole_model():
    """Without hidden units left, logits are the bias: the loss is then log 2 exactly, whatever the features."""
    train = lambda rate: (
        run(mlp(kind="mc_dropout", hidden=(4,), dropout_rate=rate), table(8), learning_rate=1e-9).metrics.nll
    )
    np.testing.assert_allclose(train(0.999999), np.log(2), rtol=1e-5)
    plain = run(mlp(hidden=(4,)), table(8), learning_rate=1e-9).metrics.nll
    np.testing.assert_allclose(train(0.0), plain, rtol=1e-5)
    assert abs(plain - np.log(2)) > 1e-2


@pytest.mark.parametrize("kind", [pytest.param("deterministic", marks=DEEP), "mc_dropout"])
def test_seed_decides_orders_and_noise(kind):
    """One batch holds all examples, so that the order moves the sums' rounding only."""
    model_fn, data = mlp(kind=kind, hidden=(4,), dropout_rate=0.5), table(6)
    options = {"local_epochs": 3, "burn_in_epochs": 1}
    whole, parts = (trainer(model_fn, batch_size=size, **options) for size in (6, 2))
    first = whole(data, (1, 2))
    assert_same(whole(data, (1, 2)), first)
    assert differ(whole(data, (1, 3)).weights.posterior, first.weights.posterior) is (kind == "mc_dropout")
    assert differ(parts(data, (1, 3)).weights.posterior, parts(data, (1, 2)).weights.posterior)


def test_a_call_has_no_memory_of_the_one_before():
    """Neither of momentum, nor of moments, nor of BatchNorm's statistics."""
    model_fn, weights = normalized()
    train = trainer(model_fn, weights, momentum=0.9)
    first, between = train(table(10)), train(table(23))
    assert_same(train(table(10)), first)
    assert differ(between.weights.posterior.mean, first.weights.posterior.mean)


def collected(number, epochs, burn_in, every, size):
    """How many iterates a client collects, step by step."""
    an_epoch = len(range(0, number, size))
    first, count = burn_in * an_epoch, 0
    for step in range(1, epochs * an_epoch + 1):
        count += step > first and (step - first) % (every or an_epoch) == 0
    return count


def test_smallest_client_is_the_first_that_collects_two():
    for epochs, every, size in itertools.product((1, 2, 3, 5), (None, 1, 2, 3, 7), (1, 3, 8)):
        for burn_in in {0, epochs // 2, epochs - 1}:
            if every is None and epochs - burn_in < 2:
                continue
            wanted = next(n for n in range(1, 200) if collected(n, epochs, burn_in, every, size) >= 2)
            options = {"local_epochs": epochs, "collect_every": every, "batch_size": size}
            assert smallest_client(burn_in_epochs=burn_in, **options) == wanted
            if burn_in == epochs // 2:
                assert smallest_client(**options) == smallest_client(burn_in_epochs=None, **options) == wanted


def test_a_client_that_is_too_small_sends_what_its_round_leaves_out():
    """An assertion in its graph would end the round of all."""
    options = {"local_epochs": 2, "burn_in_epochs": 1, "collect_every": 2, "batch_size": 3}
    least = smallest_client(**options)
    assert least == 10
    train = trainer(mlp(), **options)
    sound, small, empty = (train(table(n)) for n in (least, least - 1, 0))
    means = lambda result: np.concatenate([np.ravel(x) for x in result.weights.posterior.mean])
    assert (sound.num_examples, small.num_examples, empty.num_examples) == (least, least - 1, 0)
    assert np.all(np.isfinite(means(sound)))
    assert np.all(np.isnan(means(small))) and np.all(np.isnan(means(empty)))
    assert empty.weights.client == -1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"local_epochs": 0}, "local_epochs is 0, but must be an integer of at least 1"),
        ({"local_epochs": 2.5, "burn_in_epochs": None}, "local_epochs is 2.5"),
        ({"burn_in_epochs": -1}, "burn_in_epochs is -1, but must be an integer of at least 0"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"collect_every": 0}, "collect_every is 0"),
        ({"max_columns": 1}, "max_columns is 1, but must be an integer of at least 2"),
        ({"min_variance": 0.0}, "min_variance is 0.0, but must be a finite number above 0"),
        ({"local_epochs": 5, "burn_in_epochs": 4}, "two columns, but of 5 local epochs 4 are burn-in"),
        ({"local_epochs": 2, "burn_in_epochs": None}, "of 2 local epochs 1 are burn-in"),
        ({"burn_in_epochs": 5, "collect_every": 1}, "of 5 local epochs 5 are burn-in"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0, but must be a finite number above 0"),
        ({"momentum": 1.0}, "momentum is 1.0, but must be at least 0 and below 1"),
        ({"weight_decay": -0.1}, "weight_decay is -0.1, but must be a finite number of at least 0"),
    ],
)
def test_bad_options(options, message):
    refuses(message, swag, mlp(), **{**OPTIONS, **options})


def convolution():
    inputs = tf.keras.Input((2, 2, 1))
    return tf.keras.Model(inputs, tf.keras.layers.Flatten()(tf.keras.layers.Conv2D(2, 2)(inputs)), name="convolution")


@pytest.mark.parametrize(
    ("model_fn", "last_layer", "message"),
    [
        (mlp(kind="flipout"), False, "the layers of 'linear_flipout' have one of their own: build the model with k"),
        (mlp(kind="flipout", hidden=(3,)), True, "kind 'deterministic' or 'mc_dropout'"),
        (convolution, True, "must be a keras.layers.Dense .*'convolution' ends with Conv2D"),
    ],
)
def test_models_without_such_a_posterior(model_fn, last_layer, message):
    refuses(message, swag(model_fn, last_layer=last_layer))
    refuses(message, swag_weights, model_fn(), last_layer)


def test_swag_weights_are_the_last_of_the_point_weights():
    model = normalized()[0]()
    point = layout(model).point
    assert [id(v) for v in swag_weights(model)] == [id(v) for v in point]
    assert [id(v) for v in swag_weights(model, last_layer=True)] == [id(v) for v in point[-2:]]


def test_curvature_widens_the_diagonal_by_what_the_data_leave_open():
    """Widen by 1 / (H + 1 / t^2), t^2 the mean square of a tensor's weights; mean and deviations stay."""
    data = table(12)
    narrow, wide = (run(mlp(), data, curvature=known).weights.posterior for known in (False, True))
    assert_same(wide._replace(diagonal=narrow.diagonal), narrow)
    model = mlp()()
    weights = FlatWeights(model)
    weights.load(get_weights(model)._replace(point=narrow.mean))
    known = sampled_curvature(model, weights, CATEGORICAL, data, tf.constant(SEED), OPTIONS["batch_size"])
    for h, mean, before, after in zip(weights.unflatten(known), narrow.mean, narrow.diagonal, wide.diagonal):
        square = np.mean(np.square(mean))
        assert np.all(h >= 0) and np.max(h) > 0.1
        np.testing.assert_allclose(after - before, 1 / (h + 1 / square), rtol=1e-4)
