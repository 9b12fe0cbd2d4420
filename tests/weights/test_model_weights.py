import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.kit import assert_same, refuses
from tfp_bfl import models
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.layers import DenseFlipout, sampling
from tfp_bfl.posterior import LowRank, MeanField, Samples, kl_divergence
from tfp_bfl.weights import ModelWeights, assign_weights, get_weights, layout, min_stddev
from tfp_bfl.weights import prior as prior_weights

CASES = {
    "lenet flipout": lambda **o: models.lenet("flipout", (8, 8, 1), **o),
    "lenet deterministic": lambda **o: models.lenet("deterministic", (8, 8, 1), **o),
    "lenet mc_dropout": lambda **o: models.lenet("mc_dropout", (8, 8, 1), **o),
    "lenet flipout, batch, variational bias": lambda **o: models.lenet(
        "flipout", (8, 8, 1), normalization="batch", variational_bias=True, **o
    ),
    "resnet20 flipout": lambda **o: models.resnet20("flipout", (8, 8, 1), **o),
}
# Variational weights, point weights, BatchNorm layers.
SIZES = {
    "lenet flipout": (5, 5, 0),
    "lenet deterministic": (0, 10, 0),
    "lenet mc_dropout": (0, 10, 0),
    "lenet flipout, batch, variational bias": (5 + 3, 4, 2),
    "resnet20 flipout": (20, 1 + 2 * 19, 19),
}
deep = pytest.mark.deep(after="tests/weights/test_model_weights.py")
# Of the many layers of a ResNet the shortest test tells.
every_case = pytest.mark.parametrize("case", CASES)
every_small_case = pytest.mark.parametrize(
    "case", [pytest.param(case, marks=deep) if case.startswith("resnet") else case for case in CASES]
)


def random_like(weights, seed=0):
    """Other weights of the same shapes; the variances between 0.25 and 1."""
    rng = np.random.default_rng(seed)
    normal = lambda x: tf.constant(rng.normal(size=x.shape), x.dtype)
    positive = lambda x: tf.constant(rng.uniform(0.25, 1, x.shape), x.dtype)
    moments = lambda q: MeanField(tuple(map(normal, q.mean)), tuple(map(positive, q.variance)))
    return ModelWeights(moments(weights.posterior), tuple(map(normal, weights.point)), moments(weights.moments))


@every_small_case
def test_places(case):
    weights = get_weights(CASES[case]())
    variational, point, moving = SIZES[case]
    assert len(weights.posterior.mean) == len(weights.posterior.variance) == variational
    assert len(weights.point) == point
    assert len(weights.moments.mean) == len(weights.moments.variance) == moving
    for q in (weights.posterior, weights.moments):
        assert [m.shape for m in q.mean] == [v.shape for v in q.variance]


@every_case
def test_no_variable_is_left_out_or_twice(case):
    model = CASES[case]()
    found = layout(model)
    variables = [v for w in found.variational for v in (w.mean, w.log_stddev)]
    variables += [*found.point, *found.moving_mean, *found.moving_variance]
    assert sorted(map(id, variables)) == sorted(map(id, model.variables))


def test_weights_are_the_layers_values():
    model = models.lenet("flipout", (8, 8, 1), normalization="batch", initial_stddev=0.03)
    weights = get_weights(model)
    np.testing.assert_array_equal(weights.posterior.mean[0], model.layers[1].kernel_mean)
    for variance in weights.posterior.variance:
        np.testing.assert_allclose(variance, 0.03**2, rtol=1e-5)
    np.testing.assert_array_equal(weights.moments.mean[0], np.zeros(6))
    np.testing.assert_array_equal(weights.moments.variance[0], np.ones(6))


@deep
@pytest.mark.parametrize("case", [case for case in CASES if case != "resnet20 flipout"])
def test_round_trip(case):
    first, second = CASES[case](), CASES[case](seed=1)
    weights = random_like(get_weights(first))
    assign_weights(first, weights)
    back = get_weights(first)
    assert_same(back, weights, rtol=2e-6)
    assign_weights(second, back)
    images = np.random.default_rng(1).uniform(size=(3, 8, 8, 1)).astype(np.float32)
    outputs = []
    for model in (first, second):
        with sampling("flipout", [1, 2]):
            outputs.append(model(images, training=False))
    np.testing.assert_allclose(outputs[0], outputs[1], rtol=0, atol=1e-4 * np.abs(outputs[0]).max())


def test_assigned_standard_deviations_come_up_to_the_floor():
    model = models.mlp("flipout", (3,), 2, hidden=(), min_stddev=0.1, initial_stddev=0.2)
    (mean,), (variance,) = get_weights(model).posterior
    low = tf.constant([[0.0, 1e-30], [1e-4, 0.0099], [0.0101, 4.0]])
    assign_weights(model, get_weights(model)._replace(posterior=MeanField((mean,), (low,))))
    wanted = np.sqrt([[0.01, 0.01], [0.01, 0.01], [0.0101, 4.0]])
    np.testing.assert_allclose(tf.exp(model.layers[-1].kernel_log_stddev), wanted, rtol=1e-5)
    assert variance.shape == low.shape


@functools.cache
def model_of(case):
    return CASES[case]()


NORMALIZED = "lenet flipout, batch, variational bias"
double = lambda x: tf.cast(x, tf.float64)


@pytest.mark.parametrize("inside", [False, pytest.param(True, marks=deep)], ids=["eager", "function"])
@pytest.mark.parametrize(
    ("case", "part", "change", "message"),
    [
        ("lenet flipout", "point", lambda p: p[1:], "5 point weights, but there are 4 values"),
        ("lenet flipout", "point", lambda p: (*p, p[0]), "5 point weights, but there are 6 values"),
        ("lenet flipout", "posterior", lambda q: MeanField((), ()), "5 means of variational weights, but there are 0"),
        ("lenet flipout", "posterior", lambda q: q._replace(mean=q.mean[:4]), "5 means of var.*, but there are 4"),
        ("lenet flipout", "posterior", lambda q: q._replace(variance=q.variance[:4]), "5 variances of var.* are 4"),
        (
            "lenet flipout",
            "posterior",
            lambda q: q._replace(variance=q.variance[::-1]),
            r"log_stddev:0 is \(5, 5, 1, 6",
        ),
        ("lenet flipout", "posterior", lambda q: LowRank(*q, q.mean), "must be a MeanField, not LowRank"),
        ("lenet flipout", "point", lambda p: p[::-1], r"bias:0 is \(6,\) float32, but its value \(10,\) float32"),
        ("lenet deterministic", "point", lambda p: p[:-1], "10 point weights, but there are 9 values"),
        ("lenet deterministic", "posterior", lambda _: MeanField((1.0,), (1.0,)), "but there are 11 values"),
        ("lenet deterministic", "posterior", lambda _: Samples((tf.zeros([3, 2]),)), "but there are 11 values"),
        ("lenet deterministic", "moments", lambda _: MeanField((1.0,), ()), "0 means of BatchNorm, but there are 1"),
        (NORMALIZED, "moments", lambda m: m._replace(mean=m.mean[1:]), "2 means of BatchNorm, .* 1 val"),
        (NORMALIZED, "moments", lambda m: m._replace(variance=()), "2 variances of BatchNorm, .* are 0 values"),
        (NORMALIZED, "moments", lambda m: m._replace(variance=m.mean[::-1]), r"moving_variance:0 is \(6,\)"),
        (NORMALIZED, "moments", lambda m: tf.nest.map_structure(double, m), "float32, but its value .* float64"),
    ],
)
def test_weights_that_do_not_fit_are_refused_and_nothing_is_set(case, part, change, message, inside):
    model = model_of(case)
    weights, before = random_like(get_weights(model)), [v.numpy() for v in model.variables]
    weights = weights._replace(**{part: change(getattr(weights, part))})
    assign = lambda: assign_weights(model, weights)
    with pytest.raises(InvalidArgument, match=message):
        tf.function(assign, autograph=False)() if inside else assign()
    assert_same(model.variables, before)


def test_works_inside_a_function():
    model = models.lenet("flipout", (8, 8, 1), normalization="batch")
    weights = random_like(get_weights(model))

    @tf.function
    def there_and_back(weights):
        assign_weights(model, weights)
        return get_weights(model)

    assert_same(there_and_back(weights), weights, rtol=2e-6)


@every_small_case
def test_prior(case):
    model = CASES[case](prior_stddev=3.0)
    prior, posterior = prior_weights(model), get_weights(model).posterior
    tf.nest.assert_same_structure(prior, posterior)
    for p, q in zip(tf.nest.flatten(prior), tf.nest.flatten(posterior)):
        assert (p.shape, p.dtype) == (q.shape, q.dtype)
    assert all((m.numpy() == 0).all() for m in prior.mean)
    assert all((v.numpy() == 9).all() for v in prior.variance)


def test_kl_to_the_prior_is_the_models_loss():
    model = models.lenet("flipout", (8, 8, 1), variational_bias=True, kl_weight=0.5)
    kl = kl_divergence(get_weights(model).posterior, prior_weights(model))
    np.testing.assert_allclose(sum(model.losses), 0.5 * kl, rtol=1e-5)


def test_min_stddev():
    assert min_stddev(CASES["lenet flipout"](min_stddev=1e-3)) == 1e-3
    assert min_stddev(CASES["lenet deterministic"]()) == 0
    mixed = tf.keras.Sequential(
        [tf.keras.Input((3,)), DenseFlipout(4, min_stddev=1e-3), DenseFlipout(2, min_stddev=1e-4)]
    )
    assert min_stddev(mixed) == 1e-4


def test_nested_models_are_flattened():
    inner = models.mlp("flipout", (4,), 3, hidden=(5,))
    inputs = tf.keras.Input((4,))
    outer = tf.keras.Model(inputs, tf.keras.layers.Dense(2)(inner(inputs)))
    found = layout(outer)
    assert len(found.variational) == 2 and len(found.point) == 2 + 2


def test_strange_state_is_refused():
    state = tf.keras.layers.Normalization()
    model = tf.keras.Sequential([tf.keras.Input((4, 4, 1)), state, tf.keras.layers.Flatten(), DenseFlipout(2)])
    assert model.non_trainable_variables
    refuses("neither trained nor BatchNorm's statistics, so that no rule can pool them", layout, model)
    refuses("neither trained nor BatchNorm's", get_weights, model)
