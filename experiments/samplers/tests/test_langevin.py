"""Langevin dynamics: stationary laws in closed form, posteriors on a grid, and chains that follow their seed."""

import functools
import re

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from experiments.samplers import langevin_chain, psgld_step, sgld_step
from tfp_bfl import evaluation, models
from tfp_bfl.errors import Diverged, InvalidArgument
from tfp_bfl.layers import MCDropout
from tfp_bfl.posterior import Samples
from tfp_bfl.weights import get_weights, predictive_model

RNG = np.random.default_rng(0)
linear = functools.partial(models.mlp, "deterministic", (1,), 2, hidden=())
NUMBER = 30
ROWS = (2 * RNG.normal(size=[NUMBER, 1])).astype(np.float32)
LABELS = (RNG.uniform(size=NUMBER) < 1 / (1 + np.exp(0.5 - 1.5 * ROWS[:, 0]))).astype(np.int32)
COPIES = 20_000
each = tf.nest.map_structure


def zeros(model_fn):
    """Builds the model with all weights zero."""

    def build():
        model = model_fn()
        for v in model.variables:
            v.assign(tf.zeros_like(v))
        return model

    return build


def iterate(step, weights, number, seed=0):
    """The last two of a chain's states."""

    @tf.function
    def run(weights):
        before = weights
        for i in tf.range(number):
            before, weights = weights, step(weights, tf.stack([seed, i]))
        return before, weights

    return [np.float64(w) for w in run(weights)]


@pytest.mark.deep(after="test_langevin.py")
@pytest.mark.statistical
@pytest.mark.parametrize("stddev", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("share", [0.05, 1.0, 2.5])
def test_sgld_is_stationary_at_the_law_of_its_discretisation(stddev, share):
    """20,000 chains on N(m, s^2) with step = share s^2: the exact mean, variance and autocorrelation 1 - share / 2,
    within 4.5 standard errors: 1e-4 in all. Twice the drift, or noise of another power of the step, are far off."""
    mean, step = 2.0, share * stddev**2
    gradient = lambda w: (mean - w) / stddev**2
    start = tf.fill([COPIES], tf.constant(mean, tf.float64))
    before, after = iterate(lambda w, s: sgld_step(w, gradient(w), step, s), start, 600 if share < 1 else 100)
    variance = 1 / (1 / stddev**2 - step / (4 * stddev**4))
    assert abs(after.mean() - mean) < 4.5 * np.sqrt(variance / COPIES)
    assert abs(after.var() / variance - 1) < 4.5 * np.sqrt(2 / COPIES)
    correlation = np.corrcoef(before, after)[0, 1]
    assert abs(correlation - (1 - share / 2)) < 4.5 / np.sqrt(COPIES)


@pytest.mark.statistical
def test_sgld_on_correlated_weights():
    """N(0, Sigma) in the plane: the discretised chain's covariance C solves C = A C A + step I with
    A = I - step Sigma^-1 / 2, within 5 standard errors: 1e-5."""
    precision, step = np.array([[2.0, 0.9], [0.9, 1.0]]), 0.6
    gradient = lambda w: -tf.linalg.matvec(tf.constant(precision), w)
    _, rows = iterate(lambda w, s: sgld_step(w, gradient(w), step, s), tf.zeros([COPIES, 2], tf.float64), 100)
    drift, covariance = np.eye(2) - step * precision / 2, np.eye(2)
    for _ in range(1000):
        covariance = drift @ covariance @ drift + step * np.eye(2)
    error = np.sqrt((np.outer(np.diag(covariance), np.diag(covariance)) + covariance**2) / COPIES)
    assert (np.abs(np.cov(rows.T) - covariance) < 5 * error).all()


@pytest.mark.statistical
def test_psgld_with_a_fixed_preconditioner_is_stationary_at_the_law_of_its_discretisation():
    """Variance 1 / (1 / s^2 - step P / (4 s^4)) with P = 1 / (stabilizer + sqrt(v)), within 4.5 standard errors:
    1e-4."""
    stddev, second_moment, step = np.array([0.5, 3.0]), np.array([4.0, 0.25]), 0.4
    moments = tf.constant(np.broadcast_to(second_moment, [COPIES, 2]))

    def one(w, seed):
        w, v = psgld_step(w, moments, -w / stddev**2, 1e3 * w, step, seed, decay=1.0, stabilizer=0.1)
        tf.debugging.assert_equal(v, moments)
        return w

    _, rows = iterate(one, tf.zeros([COPIES, 2], tf.float64), 100)
    preconditioner = 1 / (0.1 + np.sqrt(second_moment))
    variance = 1 / (1 / stddev**2 - step * preconditioner / (4 * stddev**4))
    assert (np.abs(rows.var(0) / variance - 1) < 4.5 * np.sqrt(2 / COPIES)).all()


@pytest.mark.statistical
def test_the_first_step_has_its_noise():
    """Means within 4.5 standard errors and variances step and step P within 4.5 of theirs, 20,000 weights: 1e-4."""
    step, gradient, slope = 0.3, 7.0, 2.0
    w, g = tf.ones([COPIES], tf.float64), tf.fill([COPIES], tf.constant(gradient, tf.float64))
    preconditioner = 1 / (1e-5 + np.sqrt(0.01 * slope**2))
    after, _ = psgld_step(w, tf.zeros_like(w), g, slope * w, step, [1, 2])
    for rows, scale in ((sgld_step(w, g, step, [1, 2]), 1.0), (after, preconditioner)):
        variance = step * scale
        assert abs(np.mean(rows) - 1 - step / 2 * scale * gradient) < 4.5 * np.sqrt(variance / COPIES)
        assert abs(np.var(rows) / variance - 1) < 4.5 * np.sqrt(2 / COPIES)


def test_psgld_by_hand():
    """Two steps of two weights; the noise by difference from a step without gradient."""
    w, v = {"a": tf.constant([1.0, -2.0])}, {"a": tf.constant([0.0, 4.0])}
    gradient, mean_gradient = {"a": tf.constant([30.0, -10.0])}, {"a": tf.constant([3.0, -1.0])}
    options = {"step_size": 0.5, "seed": [1, 2], "decay": 0.75, "stabilizer": 0.5}
    after, moments = psgld_step(w, v, gradient, mean_gradient, **options)
    wanted = [0.25 * 9, 0.75 * 4 + 0.25]
    np.testing.assert_allclose(moments["a"], wanted, rtol=1e-6)
    preconditioner = 1 / (0.5 + np.sqrt(wanted))
    still, _ = psgld_step(w, v, {"a": tf.zeros(2)}, mean_gradient, **options)
    np.testing.assert_allclose(after["a"] - still["a"], 0.25 * preconditioner * [30, -10], rtol=1e-5)
    noise = (still["a"] - w["a"]) / np.sqrt(0.5 * preconditioner)
    np.testing.assert_allclose(sgld_step({"a": tf.zeros(2)}, {"a": tf.zeros(2)}, 1.0, [1, 2])["a"], noise, rtol=1e-5)


def test_steps_take_structures_and_go_on_from_any_state():
    start = {"a": tf.zeros([3, 2]), "b": (tf.zeros([3, 2], tf.float64),)}

    def run(state, first, last):
        for i in range(first, last):
            w, v = state
            likelihood = each(lambda x: 1 - x, w)
            state = psgld_step(w, v, each(lambda x: 10 * x, likelihood), likelihood, 0.1, [7, i])
        return state

    whole = run((start, start), 0, 6)
    again = run(run((start, start), 0, 4), 4, 6)
    each(np.testing.assert_array_equal, whole, again)
    tf.nest.assert_same_structure(whole[0], start)
    assert [x.dtype for x in tf.nest.flatten(whole[0])] == [tf.float32, tf.float64]
    flat = np.concatenate([np.ravel(x) for x in tf.nest.flatten(whole[0])])
    assert len(np.unique(flat.round(5))) == 12  # no two weights, of one leaf or of two, have the same noise
    other = sgld_step(start, start, 0.1, [7, 1])
    assert np.abs(other["a"] - sgld_step(start, start, 0.1, [7, 2])["a"]).min() > 1e-6
    inside = tf.function(lambda w: sgld_step(w, w, 0.1, [7, 1]))(start)
    each(functools.partial(np.testing.assert_allclose, rtol=1e-6), inside, other)


def by_class(draws):
    """Differences of the two classes' weights and of their biases, then the sums: [L, 4]."""
    kernel, bias = draws.values
    first, second = (np.stack([kernel[:, 0, c], bias[:, c]], 1) for c in (0, 1))
    return np.float64(np.concatenate([second - first, second + first], 1))


@functools.cache
def exact_posterior(prior_stddev=1.0):
    """Mean and standard deviation of the differences by quadrature: only they enter the likelihood."""
    axis = np.linspace(-6, 9, 500)
    slope, shift = np.meshgrid(axis, axis, indexing="ij")
    logits = slope[..., None] * ROWS[:, 0] + shift[..., None]
    log_prob = -np.logaddexp(0, np.where(LABELS, -logits, logits)).sum(-1)
    log_prob -= (slope**2 + shift**2) / (4 * prior_stddev**2)
    weight = np.exp(log_prob - log_prob.max())
    weight /= weight.sum()
    moments = np.array([[(weight * x**n).sum() for x in (slope, shift)] for n in (1, 2)])
    return moments[0], np.sqrt(moments[1] - moments[0] ** 2)


@pytest.mark.statistical
@pytest.mark.parametrize(
    "options",
    [{"step_size": 0.02, "batch_size": NUMBER}, {"step_size": 0.01, "batch_size": 8}],
    ids=["all examples", "batches"],
)
@pytest.mark.deep(after="test_langevin.py")
def test_chain_samples_the_posterior_of_a_logistic_regression(options):
    """The differences have the posterior by quadrature, the sums the prior N(0, 2): means within 5 standard errors by
    the effective sample size, 1e-5, standard deviations within 25 % (a missing factor 2 of drift, noise or N / B gives
    40 %)."""
    draws = langevin_chain(linear, ROWS, LABELS, num_steps=40_000, burn_in=1000, thin=10, **options)
    rows = by_class(draws)
    mean, stddev = exact_posterior()
    mean, stddev = np.concatenate([mean, [0, 0]]), np.concatenate([stddev, np.sqrt([2, 2])])
    effective = tfp.mcmc.effective_sample_size(tf.constant(rows)).numpy()
    assert (effective > 100).all()
    assert (np.abs(rows.mean(0) - mean) < 5 * stddev / np.sqrt(effective)).all()
    np.testing.assert_allclose(rows.std(0), stddev, rtol=0.25)


@pytest.mark.deep(after="test_langevin.py")
def test_preconditioned_chain_samples_nearly_the_posterior_of_a_logistic_regression():
    """Nearly, for want of the preconditioner's derivative: means within 0.2 standard deviations, these within 20 %."""
    options = {"step_size": 0.003, "batch_size": 8, "preconditioned": True}
    rows = by_class(langevin_chain(linear, ROWS, LABELS, num_steps=40_000, burn_in=1000, thin=10, **options))
    mean, stddev = exact_posterior()
    np.testing.assert_allclose((rows.mean(0)[:2] - mean) / stddev, 0, atol=0.2)
    np.testing.assert_allclose(rows.std(0)[:2], stddev, rtol=0.2)


@pytest.mark.parametrize(("batch_size", "preconditioned"), [(5, True), (2, False)])
def test_a_step_goes_half_the_step_size_along_the_gradient(batch_size, preconditioned):
    """From zero weights, p = 1 / 2; with the other labels and the same noise, the gradient is of the other sign. Five
    equal examples have the same N / B sum_b in a batch of any size."""
    features, step = np.full([5, 1], 3.0, np.float32), 1e-3
    chain = functools.partial(
        langevin_chain, zeros(linear), features, step_size=step, num_steps=1, preconditioned=preconditioned, seed=4
    )
    first, second = (chain(labels=np.full(5, label), batch_size=batch_size).values for label in (0, 1))
    for a, b, x in zip(first, second, (3.0, 1.0)):
        preconditioner = 1 / (1e-5 + np.sqrt(0.01 * (0.5 * x) ** 2)) if preconditioned else 1.0
        wanted = step / 2 * preconditioner * 5 * x * np.array([1, -1])
        np.testing.assert_allclose(np.ravel(a - b), wanted, rtol=1e-3)


@pytest.mark.deep(after="test_langevin.py")
def test_batches_of_equal_examples_are_as_good_as_all():
    """Also the smaller last one of a pass: N / B follows it."""
    features, labels = np.full([5, 1], 3.0, np.float32), np.ones(5, np.int64)
    chains = [
        langevin_chain(linear, features, labels, step_size=0.01, num_steps=12, batch_size=size).values
        for size in (5, 2, 3, 1, 100)
    ]
    for values in chains[1:]:
        each(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), values, chains[0])


class Seen(tf.keras.layers.Layer):
    """Tells which examples come by."""

    def __init__(self, tell):
        super().__init__()
        self.tell = tell

    def call(self, inputs):
        with tf.control_dependencies([tf.py_function(lambda x: self.tell(x.numpy()[:, 0]), [inputs], [])]):
            return tf.identity(inputs)


@pytest.mark.parametrize(("batch_size", "sizes"), [(3, [3, 3, 1] * 3), (7, [7] * 9), (50, [7] * 9), (1, [1] * 9)])
def test_each_pass_sees_every_example_once_in_a_new_order(batch_size, sizes):
    batches = []

    def model_fn():
        return tf.keras.Sequential([tf.keras.Input((1,)), Seen(batches.append), tf.keras.layers.Dense(2)])

    features = np.arange(7, dtype=np.uint8)[:, None] * 42
    langevin_chain(model_fn, features, np.zeros(7, int), step_size=0.1, num_steps=9, batch_size=batch_size, burn_in=4)
    assert [len(batch) for batch in batches] == sizes
    rows = np.round(np.concatenate(batches) / 42).astype(int)
    passes = [rows[i : i + 7] for i in range(0, len(rows) - 6, 7)]
    assert all(sorted(one) == list(range(7)) for one in passes)
    assert len({tuple(one) for one in passes}) == len(passes)


@pytest.mark.parametrize(
    "preconditioned", [pytest.param(False, marks=pytest.mark.deep(after="test_langevin.py")), True]
)
def test_draws_depend_on_the_seed_and_the_step_alone(preconditioned):
    """Not on burn-in, thinning or how long the chain will be: what is longer begins with what is shorter."""
    chain = functools.partial(
        langevin_chain, linear, ROWS, LABELS, step_size=0.01, batch_size=8, preconditioned=preconditioned
    )
    whole = chain(num_steps=20).values
    assert [w.shape for w in whole] == [(20, 1, 2), (20, 2)]
    for options, picked in (
        ({"num_steps": 12}, slice(0, 12)),
        ({"num_steps": 20, "burn_in": 5, "thin": 4}, slice(8, 20, 4)),
    ):
        each(lambda a, b, at=picked: np.testing.assert_array_equal(a, b[at]), chain(**options).values, whole)
    assert np.abs(chain(num_steps=20, seed=1).values[0] - whole[0]).min() > 1e-6


def test_chain_starts_from_the_model_s_weights_and_leaves_them():
    model = linear(seed=3)
    model.layers[-1].kernel.assign([[20.0, -20.0]])
    before = [v.numpy() for v in model.variables]
    draws = langevin_chain(lambda: model, ROWS, LABELS, step_size=1e-8, num_steps=1)
    for value, variable, draw in zip(before, model.variables, draws.values):
        np.testing.assert_array_equal(value, variable)
        np.testing.assert_allclose(draw[0], value, atol=1e-3)


def test_step_size_may_change_with_the_steps():
    fixed = langevin_chain(linear, ROWS, LABELS, step_size=0.01, num_steps=6).values
    schedule = lambda step: tf.where(step < 4, 0.01, 1e-12)
    changed = langevin_chain(linear, ROWS, LABELS, step_size=schedule, num_steps=6).values
    each(lambda a, b: np.testing.assert_array_equal(a[:4], b[:4]), changed, fixed)
    each(lambda a: np.testing.assert_allclose(a[4:], [a[3], a[3]], atol=1e-4), changed)


MODELS = {
    "lenet": functools.partial(models.lenet, "deterministic", (8, 8, 1), 3),
    "lenet, dropout": functools.partial(models.lenet, "mc_dropout", (8, 8, 1), 3),
    "mlp, bfloat16": functools.partial(models.mlp, "deterministic", (8, 8, 1), 3, hidden=(4,), precision="bfloat16"),
    "lenet, batch": functools.partial(models.lenet, "deterministic", (8, 8, 1), 3, normalization="batch"),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.deep(after="test_langevin.py")
def test_draws_are_a_posterior_for_predictions(name):
    model_fn = MODELS[name]
    features, labels = RNG.integers(256, size=[20, 8, 8, 1]).astype(np.uint8), np.arange(20) % 3
    chain = functools.partial(langevin_chain, model_fn, features, labels, preconditioned=True, stabilizer=1e-2)
    draws = chain(step_size=1e-5, num_steps=6, burn_in=2, thin=2, batch_size=8)
    again = chain(step_size=1e-5, num_steps=6, burn_in=2, thin=2, batch_size=8)
    each(functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-3), draws, again)
    assert isinstance(draws, Samples)
    weights = get_weights(model_fn())
    assert [w.shape for w in draws.values] == [(2, *w.shape) for w in weights.point]
    weights = weights._replace(posterior=draws, point=())
    examples = features if name == "lenet, batch" else None
    model = predictive_model(model_fn(), weights, batch_norm_examples=examples)
    found = evaluation.evaluate(model, features, labels, num_samples=20)
    assert found.metrics["epistemic"] > 0


def test_a_chain_learns():
    features = RNG.uniform(size=[60, 8, 8, 1]).astype(np.float32)
    labels = np.int32(features[:, :4].mean((1, 2, 3)) > features[:, 4:].mean((1, 2, 3)))
    model_fn = functools.partial(models.mlp, "deterministic", (8, 8, 1), 2, hidden=(10,))
    draws = langevin_chain(model_fn, features, labels, step_size=1e-3, num_steps=3000, burn_in=2000, thin=100)
    model = predictive_model(model_fn(), get_weights(model_fn())._replace(posterior=draws, point=()))
    assert evaluation.evaluate(model, features, labels, num_samples=20).metrics["accuracy"] > 0.9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_steps": 0}, "num_steps is 0"),
        ({"burn_in": -1}, "burn_in is -1"),
        ({"burn_in": 10}, r"burn_in \+ thin is 11, but must be at most num_steps, 10"),
        ({"burn_in": 11}, r"burn_in \+ thin is 12, but must be at most num_steps, 10"),
        ({"burn_in": 5, "thin": 6}, r"burn_in \+ thin is 11, but must be at most num_steps, 10"),
        ({"thin": 0}, "thin is 0"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"seed": 1.5}, "seed is 1.5"),
        ({"step_size": 0}, "step_size is 0, but must be a finite number above 0"),
        ({"step_size": -0.1}, "step_size is -0.1"),
        ({"step_size": float("nan")}, "step_size is nan"),
        ({"step_size": float("inf")}, "step_size is inf"),
        ({"step_size": "0.1"}, "step_size is '0.1'"),
        ({"prior_stddev": 0.0}, "prior_stddev is 0.0"),
        ({"decay": 1.5}, "decay is 1.5, but must be a number from 0 to 1"),
        ({"stabilizer": 0}, "stabilizer is 0"),
        ({"labels": LABELS[:-1]}, r"of one N of at least 1, but has features \(30, 1\) and int32 labels \(29,\)"),
        ({"labels": LABELS.astype(np.float32)}, "float32 labels"),
        ({"labels": LABELS[:, None]}, r"int32 labels \(30, 1\)"),
        ({"features": ROWS[:0], "labels": LABELS[:0]}, "of one N of at least 1"),
    ],
)
def test_bad_arguments_are_refused(options, message):
    arguments = {"features": ROWS, "labels": LABELS, "step_size": 0.01, "num_steps": 10, **options}
    with pytest.raises(InvalidArgument, match=message):
        langevin_chain(linear, **arguments)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (lambda: models.mlp("flipout", (1,), 2, hidden=()), "the model has variational layers: use one of kind"),
        (lambda: tf.keras.layers.Dropout(0.5), "use tfp_bfl.layers.MCDropout"),
        (lambda: tf.keras.layers.Dense(2, kernel_regularizer="l2"), "losses of its own"),
    ],
    ids=["flipout", "dropout", "regularizer"],
)
def test_models_of_which_a_chain_would_miss_a_part_are_refused(layer, message):
    model_fn = lambda: tf.keras.Sequential([tf.keras.Input((1,)), layer(), tf.keras.layers.Dense(2)])
    with pytest.raises(InvalidArgument, match=message):
        langevin_chain(model_fn, ROWS, LABELS, step_size=0.01, num_steps=1)
    allowed = lambda: tf.keras.Sequential([tf.keras.Input((1,)), MCDropout(0.5), tf.keras.layers.Dense(2)])
    langevin_chain(allowed, ROWS, LABELS, step_size=0.01, num_steps=1)


def test_a_chain_that_diverges_says_so():
    """w <- (1 - step / (2 t^2)) w and more, by 4,999 a step: from 1e38 on it is no number."""
    run = functools.partial(langevin_chain, linear, ROWS, LABELS, step_size=100.0, prior_stddev=0.1)
    with pytest.raises(Diverged, match=r"after step \d+, of the step size 100: take a smaller step_size") as caught:
        run(num_steps=200)
    done = int(re.search(r"after step (\d+) is kept", str(caught.value))[1])
    assert 5 < done < 20
    each(lambda a, b: np.testing.assert_array_equal(a, b[-1]), caught.value.state, run(num_steps=done).values)
    with pytest.raises(Diverged, match=f"after step {done + 1}, of"):
        run(num_steps=200, burn_in=150)


@pytest.mark.parametrize(("share", "diverges"), [(0.9, False), (1.1, True)])
def test_where_psgld_diverges_without_a_gradient_of_the_likelihood(share, diverges):
    """The prior alone, with P = 1 / stabilizer: from step_size = 4 stabilizer t^2 on."""
    stabilizer, prior_stddev = 1e-3, 0.5
    step = share * 4 * stabilizer * prior_stddev**2
    features = np.zeros([10, 1], np.float32)  # the kernel has no gradient
    options = {"stabilizer": stabilizer, "prior_stddev": prior_stddev, "preconditioned": True}
    draws = langevin_chain(linear, features, np.arange(10) % 2, step_size=step, num_steps=100, **options)
    assert (np.abs(draws.values[0]).max() > 1e3) == diverges
