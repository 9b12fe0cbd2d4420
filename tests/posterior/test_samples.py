"""A posterior as draws: which of them are drawn, how often, and what mean and variance they have."""

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from tests.kit import refuses
from tfp_bfl import posterior
from tfp_bfl.posterior import LowRank, MeanField, Samples
from tfp_bfl.posterior.families import num_draws

RNG = np.random.default_rng(0)
VALUES = {"a": RNG.normal(size=[5, 2, 3]), "b": (RNG.normal(size=[5]),)}
TENSORS = tf.nest.map_structure(tf.constant, VALUES)


@pytest.mark.parametrize("values", [VALUES, TENSORS], ids=["numpy", "tensors"])
def test_marginals_are_the_mean_and_the_variance_of_the_draws(values):
    q = posterior.marginals(Samples(values))
    assert isinstance(q, MeanField)
    for part, moment in zip(q, (np.mean, np.var)):
        tf.nest.assert_same_structure(part, VALUES)
        for actual, value in zip(tf.nest.flatten(part), tf.nest.flatten(VALUES)):
            np.testing.assert_allclose(actual, moment(value, 0), rtol=1e-12)


def test_moments_by_hand():
    """Of 1, 2 and 6: mean 3, variance (4 + 1 + 9) / 3. One draw alone has none."""
    mean, variance = posterior.marginals(Samples((tf.constant([1.0, 2.0, 6.0]),)))
    np.testing.assert_allclose([mean[0], variance[0]], [3, 14 / 3], rtol=1e-6)
    mean, variance = posterior.marginals(Samples(tf.constant([[4.0, 5.0]])))
    np.testing.assert_array_equal([mean, variance], [[4, 5], [0, 0]])


def test_variance_keeps_its_digits_in_float32():
    """A mean of 0.5 and a standard deviation of 1e-4: the difference of float32 squares has none left."""
    values = np.float32(0.5 + 1e-4 * RNG.normal(size=[400, 50]))
    q = posterior.marginals(Samples(tf.constant(values)))
    np.testing.assert_allclose(q.variance, np.var(np.float64(values), 0), rtol=1e-4)


@pytest.mark.parametrize("values", [VALUES, TENSORS], ids=["numpy", "tensors"])
def test_all_leaves_of_a_sample_are_of_one_draw(values):
    drawn = posterior.sample(Samples(values), [1, 2], 40)
    tf.nest.assert_same_structure(drawn, VALUES)
    assert drawn["a"].shape == (40, 2, 3) and drawn["b"][0].shape == (40,)
    rows = [np.flatnonzero(VALUES["b"][0] == b).item() for b in drawn["b"][0].numpy()]
    np.testing.assert_array_equal(drawn["a"], VALUES["a"][rows])
    one = posterior.sample(Samples(values), [1, 2])
    (row,) = np.flatnonzero(VALUES["b"][0] == one["b"][0].numpy())
    np.testing.assert_array_equal(one["a"], VALUES["a"][row])


@pytest.mark.statistical
@pytest.mark.parametrize("size", [2, 7, 100])
def test_every_draw_is_as_probable_and_independent_of_the_last(size):
    """Chi-square of 20,000 draws, and of their pairs modulo 7, at an error rate of 1e-4 each."""
    q = Samples((tf.range(size),))
    rows = posterior.sample(q, [3, 4], 20_000)[0].numpy()
    assert stats.chisquare(np.bincount(rows, minlength=size)).pvalue > 1e-4
    cells = min(size, 7)
    pairs = rows[: len(rows) // 2 * 2].reshape(-1, 2)
    whole = pairs[(pairs < size // cells * cells).all(1)] % cells
    assert stats.chisquare(np.bincount(whole @ [cells, 1], minlength=cells**2)).pvalue > 1e-4


@pytest.mark.statistical
def test_single_draws_are_as_probable_over_seeds():
    """Chi-square of 2,000 seeds, each of one draw of five, at an error rate of 1e-4."""
    draw = tf.function(lambda seeds: tf.map_fn(lambda s: posterior.sample(Samples(tf.range(5)), s), seeds))
    seeds = tf.stack([tf.zeros(2000, tf.int32), tf.range(2000)], 1)
    assert stats.chisquare(np.bincount(draw(seeds), minlength=5)).pvalue > 1e-4


def test_sample_follows_its_seed():
    q = Samples((tf.range(1000),))
    first, again, other = (posterior.sample(q, seed, 20)[0].numpy() for seed in ([3, 4], tf.constant([3, 4]), [3, 5]))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    inside = tf.function(lambda q, seed: posterior.sample(q, seed, 20))(q, tf.constant([3, 4]))
    np.testing.assert_array_equal(inside[0], first)


def test_number_of_draws():
    assert num_draws(Samples(VALUES)) == num_draws(Samples(TENSORS)) == 5


@pytest.mark.parametrize(
    "values",
    [(), (tf.constant(1.0),), (np.float64(1),), (tf.zeros([0, 2]),), (tf.zeros([2, 3]), tf.zeros([3, 2]))],
    ids=["no leaves", "a scalar", "a number", "no draws", "two numbers"],
)
def test_leaves_without_one_number_of_draws_are_refused(values):
    q = Samples(values)
    for use in (num_draws, posterior.marginals, lambda q: posterior.sample(q, [0, 0])):
        refuses(r"leaves \[L, ...\] with one L of at least 1", use, q)


@pytest.mark.parametrize("number", [0, 1.5, True])
def test_number_of_samples_is_checked(number):
    refuses("num_samples", posterior.sample, Samples(VALUES), [0, 0], number)


def test_what_needs_a_density_refuses_draws():
    refuses("must be a LowRank or a MeanField, not Samples", posterior.log_prob, Samples(VALUES), VALUES)
    refuses("must be a LowRank or a MeanField, not Samples", posterior.covariance, Samples(VALUES))
    assert isinstance(posterior.as_low_rank(posterior.marginals(Samples(TENSORS))), LowRank)


SHAPES = {"a": (2, 3), "b": (4,)}


def leaves(*leading):
    return {name: tf.constant(RNG.normal(size=(*leading, *shape)), tf.float32) for name, shape in SHAPES.items()}


def positive():
    return tf.nest.map_structure(lambda x: 0.1 + tf.square(x), leaves())


def test_mean_field():
    q = posterior.MeanField(leaves(), positive())
    d = posterior.to_tfp(q)
    at = leaves()
    np.testing.assert_allclose(d.log_prob([at["a"], at["b"]]), posterior.log_prob(q, at), rtol=1e-5)
    assert [x.shape for x in d.sample(5, seed=(0, 1))] == [(5, 2, 3), (5, 4)]


def test_low_rank():
    q = posterior.LowRank(leaves(), positive(), leaves(2))
    d = posterior.to_tfp(q)
    at = leaves()
    flat = tf.concat([tf.reshape(at["a"], [-1]), at["b"]], 0)
    np.testing.assert_allclose(d.log_prob(flat), posterior.log_prob(q, at), rtol=1e-4)
    np.testing.assert_allclose(d.covariance(), posterior.covariance(q), rtol=1e-4, atol=1e-5)


def test_draws():
    q = posterior.Samples(leaves(6))
    d = posterior.to_tfp(q)
    np.testing.assert_allclose(d.mean()[6:], tf.reduce_mean(q.values["b"], 0), rtol=1e-5)
    assert d.sample(3, seed=(0, 1)).shape == (3, 10)


def autoregression(chains, draws, correlation, seed=0):
    noise = np.random.default_rng(seed).normal(size=(chains, draws))
    values = noise.copy()
    for i in range(1, draws):
        values[:, i] = correlation * values[:, i - 1] + np.sqrt(1 - correlation**2) * noise[:, i]
    return values


@pytest.mark.parametrize("chains", [1, 4])
@pytest.mark.parametrize("correlation", [0.0, 0.8])
def test_effective_sample_size_of_an_autoregression(chains, correlation):
    """R M (1 - a) / (1 + a)."""
    values = autoregression(chains, 8000, correlation)
    wanted = 8000 * chains * (1 - correlation) / (1 + correlation)
    assert posterior.effective_sample_size(values) == pytest.approx(wanted, rel=0.25)
    both = posterior.effective_sample_size(np.stack([values, values + 3], -1))
    np.testing.assert_allclose(both, posterior.effective_sample_size(values), rtol=1e-6)


def test_potential_scale_reduction():
    values = autoregression(4, 1000, 0.2)
    assert posterior.potential_scale_reduction(values) == pytest.approx(1, abs=0.01)
    apart = values + 3 * np.arange(4)[:, np.newaxis]
    assert posterior.potential_scale_reduction(apart) > 2
    drifting = values[:1] + np.linspace(0, 5, 1000)
    assert posterior.potential_scale_reduction(drifting) > 1.5


@pytest.mark.parametrize(("size", "wanted"), [(2, 4.605170), (50, 38.076946)])
def test_highest_density_of_a_gaussian(size, wanted):
    """Draw 2e5 samples: the quantile has a standard error of about 0.5 %."""
    draws = np.random.default_rng(1).normal(size=(200_000, size))
    assert posterior.hpd_level(np.square(draws).sum(-1) / 2) == pytest.approx(wanted, rel=0.02)


@pytest.mark.parametrize(
    ("call", "arguments", "message"),
    [
        (posterior.effective_sample_size, (np.zeros(8),), r"values has the shape \(8,\), but must be \(chains, draws"),
        (posterior.potential_scale_reduction, (np.zeros((2, 3)),), "of four draws at least"),
        (posterior.hpd_level, ([1.0, 2.0], 1.0), "alpha is 1, but must be below 1"),
        *((posterior.to_tfp, (q,), "q must be|has no weights") for q in (None, 3, posterior.MeanField((), ()))),
    ],
)
def test_refused(call, arguments, message):
    refuses(message, call, *arguments)
