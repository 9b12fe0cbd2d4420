"""None"""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from scipy import stats

from tests.kit import refuses
from tests.posterior import reference
from tfp_bfl import posterior, rules
from tfp_bfl.algorithms.swag.product import between_clients_variance, gaussian_product, with_random_effects
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.posterior import LowRank, MeanField


def assert_is(q, mean, covariance, tolerance):
    """Each covariance within `tolerance` of the standard deviations' product, each mean of the largest mean."""
    np.testing.assert_allclose(q.mean, mean, rtol=0, atol=tolerance * np.abs(mean).max())
    stddev = np.sqrt(np.diag(covariance))
    error = np.abs(posterior.covariance(q) - covariance) / np.outer(stddev, stddev)
    assert error.max() < tolerance


def assert_same(q, p, tolerance=1e-12):
    assert_is(q, np.asarray(p.mean), posterior.covariance(p).numpy(), tolerance)


def clients(number, num_weights, rank, scale=1.0, dtype=np.float64):
    return [reference.draw(num_weights, rank, seed, scale, dtype) for seed in range(number)]


def prior_of(num_weights, variance=1e4):
    """Wider than every client of `clients`."""
    rng = np.random.default_rng(99)
    return MeanField(rng.normal(size=num_weights), variance * rng.uniform(0.5, 2, num_weights))


@pytest.mark.parametrize(
    ("number", "num_weights", "rank"),
    [(1, 5, 2), (2, 1, 1), (2, 50, 4), (3, 6, 5), (5, 100, 10), (10, 150, 20), (30, 40, 3)],
)
@pytest.mark.parametrize("with_prior", [False, True])
def test_product_is_that_of_dense_inverses(number, num_weights, rank, with_prior):
    posteriors = clients(number, num_weights, rank)
    prior = prior_of(num_weights) if with_prior else None
    pooled = gaussian_product(posteriors, prior)
    assert isinstance(pooled, LowRank) and pooled.deviations.shape == (number * rank, num_weights)
    assert_is(pooled, *reference.product(posteriors, prior), 1e-10)


@pytest.mark.parametrize("scale", [1e-6, 1e-12])
@pytest.mark.parametrize(("number", "num_weights", "rank"), [(1, 12, 3), (3, 30, 4), (4, 20, 4)])
def test_product_keeps_its_digits_near_singularity(number, num_weights, rank, scale):
    """At 1e-12 inverses in float64 are wrong in the third digit, and Woodbury's difference likewise."""
    posteriors = clients(number, num_weights, rank, scale)
    assert_is(gaussian_product(posteriors), *reference.exact_product(posteriors), 1e-12)


@pytest.mark.parametrize(("scale", "tolerance"), [(1.0, 1e-13), (1e-3, 1e-11), (1e-6, 1e-8)])
def test_product_where_the_clients_share_all_directions(scale, tolerance):
    """Twelve deviations of six weights: the accuracy falls with the diagonal, as the docstring says."""
    posteriors = clients(3, 6, 4, scale)
    assert_is(gaussian_product(posteriors), *reference.exact_product(posteriors), tolerance)


def test_product_with_a_prior_keeps_its_digits_near_singularity():
    posteriors, prior = clients(3, 20, 3, 1e-10), prior_of(20)
    assert_is(gaussian_product(posteriors, prior), *reference.exact_product(posteriors, prior), 1e-12)


@pytest.mark.parametrize("scale", [1.0, 1e-6])
def test_product_in_float32_is_computed_in_float64(scale):
    posteriors = clients(4, 40, 3, scale, np.float32)
    pooled = gaussian_product(posteriors)
    assert {x.dtype for x in pooled} == {tf.float32}
    assert_is(pooled, *reference.exact_product(posteriors), 1e-6)


def test_product_of_different_ranks_and_mean_fields():
    low, wide, none = (reference.draw(15, rank, rank) for rank in (2, 7, 0))
    field = MeanField(none.mean, none.diagonal)
    posteriors = [field, low, none, wide, field]
    pooled = gaussian_product(posteriors)
    assert pooled.deviations.shape == (9, 15)
    assert_is(pooled, *reference.product(posteriors), 1e-12)


def test_product_of_mean_fields_is_conflation():
    fields = [MeanField(q.mean, q.diagonal) for q in clients(5, 30, 0)]
    pooled, conflated = gaussian_product(fields), rules.aggregate(rules.conflation(), posterior.stack(fields))
    assert pooled.deviations.shape == (0, 30)
    np.testing.assert_allclose(pooled.mean, conflated.mean, rtol=1e-13)
    np.testing.assert_allclose(pooled.diagonal, conflated.variance, rtol=1e-13)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("scale", [1.0, 1e-12])
def test_one_client_is_the_identity(dtype, scale):
    q = reference.draw(20, 3, 0, scale, dtype)
    pooled = gaussian_product([q])
    np.testing.assert_array_equal(pooled.mean, q.mean)
    np.testing.assert_array_equal(pooled.deviations, q.deviations)
    np.testing.assert_allclose(pooled.diagonal, q.diagonal, rtol=1e-15)
    assert_same(gaussian_product([reference.draw(20, 3, 0)], prior_of(20)), reference.draw(20, 3, 0), 1e-14)


def test_order_of_clients_does_not_matter():
    posteriors, prior = clients(5, 40, 3, 1e-6), prior_of(40)
    for given in (None, prior):
        assert_same(gaussian_product(posteriors[::-1], given), gaussian_product(posteriors, given))


@pytest.mark.parametrize("scale", [1.0, 1e-6])
def test_products_of_products(scale):
    posteriors = clients(5, 40, 3, scale)
    halves = gaussian_product([gaussian_product(posteriors[:2]), gaussian_product(posteriors[2:])])
    assert_same(halves, gaussian_product(posteriors), 1e-11)


def test_copies_of_a_client_divide_its_covariance():
    q = reference.draw(20, 3, 0)
    pooled = gaussian_product([q] * 4)
    assert_is(pooled, q.mean, reference.dense(q) / 4, 1e-12)


def test_prior_is_counted_once_in_each_of_three_ways():
    likelihoods, prior = clients(4, 25, 3), prior_of(25, variance=2.0)
    wanted = gaussian_product([*likelihoods, prior])
    whole = [gaussian_product([q, prior]) for q in likelihoods]
    assert_same(gaussian_product(whole, prior), wanted)
    tempered = prior._replace(variance=prior.variance * 4)
    assert_same(gaussian_product([gaussian_product([q, tempered]) for q in likelihoods]), wanted)


def test_prior_that_is_narrower_than_the_posteriors_is_refused():
    posteriors = clients(3, 10, 2)
    for variance in (0.1, 1.2):  # below the diagonals, and between them and the variances
        prior = MeanField(np.zeros(10), np.full(10, variance))
        precision = sum(np.linalg.inv(reference.dense(q)) for q in posteriors) - 2 * np.diag(1 / prior.variance)
        assert np.linalg.eigvalsh(precision).min() < 0
        refuses(r"precision is not positive definite: .* no wider than the prior", gaussian_product, posteriors, prior)


def test_posterior_that_is_wider_than_the_prior_in_part_has_a_product():
    wide, narrow = reference.draw(10, 2, 0, 100.0), reference.draw(10, 2, 1, 0.01)
    prior = MeanField(np.zeros(10), np.full(10, 30.0))
    narrow = narrow._replace(deviations=narrow.deviations * 0.1)
    assert_is(gaussian_product([wide, narrow], prior), *reference.product([wide, narrow], prior), 1e-10)


def test_diagonals_that_float64_cannot_tell_are_refused():
    q = LowRank(np.zeros(3), np.full(3, 1e-12), np.full((1, 3), 1e3))
    refuses("diagonals are too small beside the deviations", gaussian_product, [q, q])


@pytest.mark.parametrize("with_prior", [False, True])
def test_diagonal_only(with_prior):
    posteriors, prior = clients(4, 30, 3), prior_of(30) if with_prior else None
    pooled = gaussian_product(posteriors, prior, diagonal_only=True)
    assert pooled.deviations.shape == (0, 30)
    fields = [MeanField(q.mean, np.diag(reference.dense(q))) for q in posteriors]
    assert_is(pooled, *reference.product(fields, prior), 1e-12)


def test_structures_are_flat_vectors(monkeypatch):
    posteriors, prior = clients(3, 12, 2), prior_of(12)
    pack = lambda x: {"kernel": x[..., :6].reshape(*x.shape[:-1], 2, 3), "rest": (x[..., 6], [x[..., 7:]])}
    unpack = lambda s, lead: tf.concat([tf.reshape(x, [*lead, -1]) for x in tf.nest.flatten(s)], -1)
    wanted = gaussian_product(posteriors, prior)
    for block in (2**22, 20):  # the whole, and three weights at once
        monkeypatch.setattr("tfp_bfl.posterior.low_rank.BLOCK", block)
        pooled = gaussian_product([LowRank(*map(pack, q)) for q in posteriors], MeanField(*map(pack, prior)))
        tf.nest.assert_same_structure(pooled.mean, pack(prior.mean))
        assert pooled.deviations["kernel"].shape == (6, 2, 3) and pooled.mean["rest"][0].shape == ()
        flat = LowRank(unpack(pooled.mean, []), unpack(pooled.diagonal, []), unpack(pooled.deviations, [6]))
        for have, want in zip(flat, wanted):
            np.testing.assert_allclose(have, want, rtol=1e-12, atol=1e-14)


@pytest.mark.deep(after="tests/algorithms/swag/test_products.py")
def test_product_in_a_graph():
    posteriors, prior = clients(3, 20, 2), prior_of(20)
    tensors = tf.nest.map_structure(tf.constant, (posteriors, prior))
    assert_same(tf.function(gaussian_product)(*tensors), gaussian_product(posteriors, prior))


def test_product_has_a_density_and_draws():
    posteriors = clients(3, 15, 2, 1e-3)
    pooled = gaussian_product(posteriors)
    draws = posterior.sample(pooled, [1, 2], 50)
    mean, covariance = reference.exact_product(posteriors)
    normal = tfp.distributions.MultivariateNormalTriL(mean, tf.linalg.cholesky(covariance))
    np.testing.assert_allclose(posterior.log_prob(pooled, draws), normal.log_prob(draws), rtol=1e-9)
    # Products of densities: log q - sum_i log q_i is the same everywhere.
    rest = posterior.log_prob(pooled, draws) - sum(posterior.log_prob(q, draws) for q in posteriors)
    np.testing.assert_allclose(rest, rest[0], rtol=1e-9)


good = reference.draw(4, 2, 0)


@pytest.mark.parametrize(
    ("posteriors", "prior", "message"),
    [
        ([], None, "at least one posterior"),
        ([good, "N(0, 1)"], None, r"posteriors\[1\] must be a LowRank or a MeanField, not str"),
        ([good, good._replace(diagonal=np.zeros(4))], None, r"posteriors\[1\]'s diagonal"),
        ([good, reference.draw(5, 2, 0)], None, r"posteriors\[1\] must have the shapes and the type"),
        ([good, reference.draw(4, 2, 0, dtype=np.float32)], None, "has a weight float32"),
        ([good, MeanField((good.mean,), (good.diagonal,))], None, r"posteriors\[1\] must have the structure"),
        ([good], good, "prior must be a MeanField, not LowRank"),
        ([good], MeanField(good.mean, -good.diagonal), "prior's diagonal"),
        ([good], MeanField(np.zeros(5), np.ones(5)), "prior must have the shapes"),
    ],
)
def test_what_makes_no_product_is_refused(posteriors, prior, message):
    refuses(message, gaussian_product, posteriors, prior)


RNG = np.random.default_rng(0)


def client(mean, variance):
    return posterior.MeanField((tf.constant(mean, tf.float64),), (tf.constant(variance, tf.float64),))


def test_two_clients_by_hand():
    """Means 0 and 2 in one weight, 1 and 1 in the other: apart 2 and 0, of which .5 is their own."""
    (tau,) = between_clients_variance([client([0.0, 1.0], [0.2, 0.5]), client([2.0, 1.0], [0.8, 0.5])])
    np.testing.assert_allclose(tau, [2.0 - 0.5, 0.0])


def test_clients_that_agree_or_stand_alone_have_none():
    agreeing = [client([1.0, 2.0], [0.1, 0.1])] * 3
    for sent in (agreeing, agreeing[:1]):
        np.testing.assert_array_equal(between_clients_variance(sent), [[0.0, 0.0]])


@pytest.mark.statistical
def test_a_known_variance_is_found_in_the_mean():
    """Ten clients, 2,000 weights a tensor. tau^2 of .5: (t + v) chi^2_9 / 9 - v, hardly ever below 0. tau^2 of 0: the
    mean of the positive part of v (chi^2_9 / 9 - 1), .18 v."""
    own, sent = 0.04, []
    for _ in range(10):
        means = [np.sqrt(t + own) * RNG.normal(size=2000) for t in (0.5, 0.0)]
        sent.append(
            posterior.MeanField(tuple(map(tf.constant, means)), (tf.fill([2000], tf.constant(own, tf.float64)),) * 2)
        )
    wide, none = between_clients_variance(sent)
    assert float(tf.reduce_mean(wide)) == pytest.approx(0.5, abs=4 * 0.0057)
    positive = own * np.maximum(stats.chi2(9).ppf((np.arange(10_000) + 0.5) / 10_000) / 9 - 1, 0).mean()
    assert float(tf.reduce_mean(none)) == pytest.approx(positive, abs=4 * own * 0.3 / np.sqrt(2000))


def test_what_some_weights_leave_open_does_not_hide_that_clients_differ_in_others():
    """Variances of 100 in one weight beside a distance of 4 in the other, whose variances are .01."""
    (tau,) = between_clients_variance([client([0.0, 1.0], [100.0, 0.01]), client([1.0, 5.0], [100.0, 0.01])])
    np.testing.assert_allclose(tau, [0.0, 8.0 - 0.01])


def test_correlations_stay_and_variances_widen():
    q = posterior.LowRank((tf.zeros([3], tf.float64),), (tf.ones([3], tf.float64),), (tf.ones([2, 3], tf.float64),))
    other = q._replace(mean=(tf.fill([3], tf.constant(4.0, tf.float64)),))
    first, _ = with_random_effects([q, other])
    difference = posterior.covariance(first) - posterior.covariance(q)
    np.testing.assert_allclose(difference, (16 / 2 - 3) * np.eye(3), atol=1e-12)


def test_a_product_of_clients_that_lie_apart_is_as_wide_as_they_are():
    """K clients with variances far below their distance: tau^2 / K, as of means drawn about one."""
    sent = [client(10 * RNG.normal(size=500), np.full(500, 1e-6)) for _ in range(8)]
    narrow, wide = (gaussian_product(sent, None, True, between).diagonal[0] for between in (False, True))
    (tau,) = between_clients_variance(sent)
    np.testing.assert_allclose(narrow, 1e-6 / 8)
    np.testing.assert_allclose(wide, (tau + 1e-6) / 8, rtol=1e-6)
    assert float(tf.reduce_mean(tau)) == pytest.approx(100, rel=0.2)


def test_bad_posteriors_are_refused():
    refuses("one at least", between_clients_variance, [])
    with pytest.raises(InvalidArgument):
        between_clients_variance([client([0.0], [1.0]), client([0.0, 1.0], [1.0, 1.0])])
