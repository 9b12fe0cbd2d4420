import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from tests.kit import refuses
from tfp_bfl import posterior
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.posterior import LowRank, MeanField

from . import reference


def pack(flat):
    """The last axis, of 18 weights, as a structure."""
    flat = np.asarray(flat)
    cut = lambda start, shape: flat[..., start : start + int(np.prod(shape))].reshape((*flat.shape[:-1], *shape))
    return {"kernel": cut(0, (3, 4)), "rest": (cut(12, (5,)), [cut(17, ())])}


def packed(q):
    return LowRank(*map(pack, q))


@pytest.mark.parametrize("rank", [0, 1, 3, 30])
def test_covariance(rank):
    q = reference.draw(18, rank, 0)
    np.testing.assert_allclose(posterior.covariance(q), reference.dense(q), rtol=1e-14, atol=1e-14)
    np.testing.assert_allclose(posterior.covariance(packed(q)), reference.dense(q), rtol=1e-14, atol=1e-14)


def test_covariance_of_a_mean_field_and_its_type():
    q = MeanField(np.zeros(3, np.float32), np.array([1, 2, 3], np.float32))
    assert posterior.covariance(q).dtype == tf.float32
    np.testing.assert_array_equal(posterior.covariance(q), np.diag([1, 2, 3]))


def test_covariance_of_many_weights_is_refused():
    q = MeanField(tf.zeros([5001]), tf.ones([5001]))
    refuses("at most 5000 weights, but q has 5001: use marginals", posterior.covariance, q)


@pytest.mark.parametrize(("num_weights", "rank"), [(1, 1), (2, 0), (7, 3), (5, 9), (300, 20)])
def test_log_prob_is_that_of_tfp(num_weights, rank):
    q = reference.draw(num_weights, rank, 0)
    weights = q.mean + np.random.default_rng(1).normal(size=(4, num_weights))
    factor = tf.linalg.cholesky(reference.dense(q))
    wanted = tfp.distributions.MultivariateNormalTriL(q.mean, factor).log_prob(weights)
    np.testing.assert_allclose(posterior.log_prob(q, weights), wanted, rtol=1e-11)
    one = posterior.log_prob(q, weights[2])
    assert one.shape == () and one.dtype == tf.float64
    np.testing.assert_allclose(one, wanted[2], rtol=1e-11)


@pytest.mark.parametrize("scale", [1e-6, 1e-12])
def test_log_prob_keeps_its_digits_near_singularity(scale):
    """Along the deviations the difference in Woodbury's quadratic form would leave four digits at 1e-12."""
    q = reference.draw(20, 4, 0, scale)
    weights = q.mean + np.random.default_rng(1).normal(size=4) @ q.deviations
    np.testing.assert_allclose(posterior.log_prob(q, weights), reference.exact_log_prob(q, weights), rtol=1e-10)


def test_log_prob_in_float32_is_computed_in_float64():
    q = reference.draw(50, 5, 0, dtype=np.float32)
    weights = np.float32(q.mean + 0.1)
    wanted = reference.exact_log_prob(q, weights)
    np.testing.assert_allclose(posterior.log_prob(q, weights), wanted, rtol=1e-12)


def test_log_prob_of_a_structure_and_of_a_mean_field():
    q = reference.draw(18, 3, 0)
    weights = np.random.default_rng(1).normal(size=(6, 18))
    wanted = posterior.log_prob(q, weights)
    np.testing.assert_allclose(posterior.log_prob(packed(q), pack(weights)), wanted, rtol=1e-12)
    np.testing.assert_allclose(posterior.log_prob(packed(q), pack(weights[0])), wanted[0], rtol=1e-12)
    normal = tfp.distributions.Normal(q.mean, np.sqrt(q.diagonal))
    wanted = tf.reduce_sum(normal.log_prob(weights), 1)
    np.testing.assert_allclose(posterior.log_prob(MeanField(q.mean, q.diagonal), weights), wanted, rtol=1e-12)


def test_log_prob_in_blocks(monkeypatch):
    q = reference.draw(100, 3, 0)
    weights = np.random.default_rng(1).normal(size=(2, 100))
    whole = posterior.log_prob(q, weights)
    monkeypatch.setattr("tfp_bfl.posterior.low_rank.BLOCK", 21)
    np.testing.assert_allclose(posterior.log_prob(q, weights), whole, rtol=1e-13)


def test_log_prob_in_a_graph():
    q = reference.draw(10, 3, 0)
    inside = tf.function(posterior.log_prob)(tf.nest.map_structure(tf.constant, q), tf.zeros(10, tf.float64))
    np.testing.assert_allclose(inside, posterior.log_prob(q, np.zeros(10)), rtol=1e-13)


@pytest.mark.parametrize("weights", [np.zeros(4), np.zeros((2, 4)), np.zeros(5, np.float32), (np.zeros(5),)])
def test_log_prob_of_other_weights_is_refused(weights):
    refuses("weights must have the s", posterior.log_prob, reference.draw(5, 2, 0), weights)


def test_log_prob_that_float64_cannot_tell_is_refused():
    deviations = np.ones((2, 3)) * 1e3  # two equal rows: M has the eigenvalues 1 and 6e18
    with pytest.raises(InvalidArgument, match="diagonal is too small beside its deviations"):
        posterior.log_prob(LowRank(np.zeros(3), np.full(3, 1e-12), deviations), np.zeros(3))


def test_marginals():
    q = reference.draw(18, 3, 0)
    result = posterior.marginals(packed(q))
    assert isinstance(result, MeanField)
    wanted = pack(np.diag(reference.dense(q)))
    tf.nest.map_structure(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-14), result.variance, wanted)
    assert posterior.marginals(result) is result


@pytest.mark.statistical
@pytest.mark.parametrize("rank", [0, 2, 8])
def test_sample_moments(rank):
    """Means within 4.5 standard errors, covariances within 5 of theirs, 40,000 draws of 6 weights: below 1e-4."""
    number, q = 40_000, reference.draw(6, rank, 0)
    nested = LowRank(*((x[..., :2], {"b": x[..., 2:]}) for x in q))
    first, rest = posterior.sample(nested, [1, 2], number)
    assert first.shape == (number, 2) and rest["b"].shape == (number, 4)
    rows, covariance = np.concatenate([first, rest["b"]], 1), reference.dense(q)
    variance = np.diag(covariance)
    assert (np.abs(rows.mean(0) - q.mean) < 4.5 * np.sqrt(variance / number)).all()
    error = np.sqrt((np.outer(variance, variance) + covariance**2) / number)
    assert (np.abs(np.cov(rows.T) - covariance) < 5 * error).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("make", [lambda q: q, lambda q: MeanField(q.mean, q.diagonal)], ids=["low rank", "mean field"])
def test_sample_follows_its_seed(make, dtype):
    q = make(reference.draw(9, 2, 0, dtype=dtype))
    first, again, other = (posterior.sample(q, seed, 4) for seed in ([3, 4], tf.constant([3, 4]), [3, 5]))
    assert first.shape == (4, 9) and first.dtype == tf.as_dtype(dtype)
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).min() > 1e-6 and np.abs(first[0] - first[1]).min() > 1e-6
    assert posterior.sample(q, [3, 4]).shape == (9,)
    inside = tf.function(lambda seed: posterior.sample(q, seed, 4))(tf.constant([3, 4]))
    np.testing.assert_allclose(inside, first, rtol=1e-5)


@pytest.mark.parametrize("number", [0, 1.5, True])
def test_number_of_samples_is_checked(number):
    refuses("num_samples", posterior.sample, reference.draw(2, 1, 0), [0, 0], number)


def test_as_low_rank():
    q = reference.draw(4, 2, 0)
    assert isinstance(posterior.as_low_rank(q), LowRank)
    field = posterior.as_low_rank(MeanField((q.mean,), (q.diagonal,)))
    assert field.deviations[0].shape == (0, 4)
    np.testing.assert_array_equal(field.diagonal[0], q.diagonal)


two, three, matrix = np.ones(2), np.ones(3), np.ones((4, 2))


@pytest.mark.parametrize(
    ("q", "message"),
    [
        ((two, two, matrix), "must be a LowRank or a MeanField, not tuple"),
        (LowRank((two,), two, matrix), "of the same structure"),
        (LowRank((two, two), (two, two), (matrix,)), "of the same structure"),
        (LowRank((), (), ()), "holds no weights"),
        (LowRank(np.ones(0), np.ones(0), np.ones((3, 0))), "holds no weights"),
        (LowRank(two, three, matrix), "of known shapes, but has"),
        (LowRank(two, two, two), "of known shapes, but has"),
        (LowRank(two, two, np.ones((4, 3))), "of known shapes, but has"),
        (LowRank((two, two), (two, two), (matrix, matrix[:3])), "one R for all leaves, but has"),
        (LowRank(two, two, np.float32(matrix)), "all float32 or all float64, but has float32, float64"),
        (LowRank(*(np.int32(x) for x in (two, two, matrix))), "all float32 or all float64, but has int32"),
        (LowRank(two * np.nan, two, matrix), "mean and deviations must be finite"),
        (LowRank(two, two, matrix * np.inf), "mean and deviations must be finite"),
        (LowRank(two, 0 * two, matrix), "diagonal .* must be finite and above zero"),
        (LowRank(two, np.nan * two, matrix), "diagonal .* must be finite and above zero"),
        (MeanField(two, -two), "diagonal .* must be finite and above zero"),
        (MeanField(two, three), "of known shapes"),
    ],
)
def test_posteriors_that_are_none_are_refused(q, message):
    calls = [posterior.as_low_rank, posterior.covariance, lambda q: posterior.log_prob(q, two)]
    if isinstance(q, LowRank):
        calls += [posterior.marginals, lambda q: posterior.sample(q, [0, 0])]
    for call in calls:
        refuses(message, call, q)
