"""Heads of clients on random features: columns, and the prior with the largest marginal likelihood."""

import numpy as np
import pytest
from scipy import integrate, stats

from tests.glm.test_hierarchical import federation
from tests.kit import assert_same, refuses
from tfp_bfl import glm
from tfp_bfl.glm.families import FAMILIES
from tfp_bfl.glm.federation import InProcess, Question, ask_sums
from tfp_bfl.glm.priors import ColumnMoments, ask_columns, best_stddevs, log_evidence, precision_of
from tfp_bfl.glm.random_features import draw_features
from tfp_bfl.glm.rows import read
from tfp_bfl.glm.sums import client_sums


def bent(seed=0, clients=25, shape=np.sin, between=0.5):
    """Clients with intercepts that differ, and a mean that bends in the second column."""
    rng, pairs = np.random.default_rng(seed), []
    for _ in range(clients):
        x = rng.normal(size=(rng.integers(5, 15), 2)) * [1.0, 20.0] + [0.0, 300.0]
        mean = 0.5 * x[:, 0] + shape((x[:, 1] - 300) / 10) + between * rng.normal()
        pairs.append((x, mean + 0.3 * rng.normal(size=len(x))))
    return pairs


def stacked(pairs):
    return (np.concatenate(part) for part in zip(*pairs))


def test_the_evidence_of_gaussian_outcomes_is_that_of_the_joint_normal():
    """With b integrated out, y ~ N(0, V + X P^-1 X'), V the covariance given b."""
    (x, y), precision = stacked(federation("gaussian", clients=4)), np.array([0.3, 2.0, 0.7])
    design = np.column_stack([np.ones(len(x)), x])
    rows = read([(x, y)], FAMILIES["gaussian"]).clients[0]
    marginal = stats.multivariate_normal(np.zeros(len(y)), np.eye(len(y)) + design / precision @ design.T)
    for at in (np.zeros(3), np.array([5.0, -2.0, 1.0])):  # It is the same from anywhere.
        sums = client_sums(rows, at, FAMILIES["gaussian"])
        constant = 0.5 * len(y) * np.log(2 * np.pi)
        assert log_evidence(sums, at, precision) - constant == pytest.approx(marginal.logpdf(y), rel=1e-10)


def test_the_evidence_of_other_outcomes_is_near_the_integral():
    """Laplace's approximation at the maximum, for an intercept: its error is of the order of 1 / N."""
    y, precision = (np.arange(60) % 3 == 0).astype(float), 0.5
    fit = glm.fit([(np.zeros((60, 0)), y)], "bernoulli", prior_stddev=precision**-0.5)
    rows = read([(np.zeros((60, 0)), y)], FAMILIES["bernoulli"]).clients[0]
    found = log_evidence(client_sums(rows, fit.mean, FAMILIES["bernoulli"]), fit.mean, np.array([precision]))
    joint = lambda b: np.exp(20 * b - 60 * np.logaddexp(0, b)) * stats.norm.pdf(b, 0, precision**-0.5)
    assert found == pytest.approx(np.log(integrate.quad(joint, -8, 8, epsabs=0)[0]), abs=0.01)


def test_the_best_standard_deviations_are_those_of_a_fine_search():
    x, y = stacked(bent(clients=10))
    rows = read([(x, y)], FAMILIES["gaussian"]).clients[0]
    sums, groups = client_sums(rows, np.zeros(3), FAMILIES["gaussian"]), np.array([-1, 0, 1])
    columns = ColumnMoments(np.zeros(3), np.array([1.0, 1.0, 20.0]), 1.0)
    value = lambda s: log_evidence(sums, np.zeros(3), precision_of(np.array(s), groups, columns))
    found = best_stddevs(sums, np.zeros(3), groups, columns)
    fine = np.exp2(np.linspace(-9, 3, 60))
    assert value(found) > max(value((a, b)) for a in fine for b in fine) - 0.02


@pytest.mark.parametrize("family", ["gaussian", "bernoulli", "poisson"])
def test_moments_of_the_columns_come_from_sums(family):
    pairs = federation(family, clients=5)
    x, y = stacked(pairs)
    found = ask_columns(InProcess(read(pairs, FAMILIES[family]), family), family)
    np.testing.assert_allclose(found.means[1:], x.mean(0), rtol=1e-12)
    np.testing.assert_allclose(found.stddevs, [1.0, *x.std(0)], rtol=1e-10)
    assert found.scale == pytest.approx(y.std() if family == "gaussian" else 1.0)


def test_random_features_find_a_bend_and_their_prior_vanishes_without_one():
    options = {"features": "random:12", "prior_stddev": "fitted"}
    curved, linear = glm.fit_hierarchical(bent(), **options), glm.fit_hierarchical(bent(), prior_stddev="fitted")
    assert curved.log_evidence > linear.log_evidence + 20
    assert curved.posterior.dispersion < 0.5 * linear.posterior.dispersion
    assert curved.between_stddev[0] == pytest.approx(0.5, rel=0.5)
    straight = glm.fit_hierarchical(bent(shape=lambda x: 0.2 * x), **options)
    assert straight.prior_stddevs[1] < 0.1 * straight.prior_stddevs[0]


def test_a_fit_is_that_of_given_columns_with_the_prior_that_was_found():
    """ColumnMoments divided by the standard deviations of their prior have a prior of 1."""
    pairs = bent()
    found = glm.fit_hierarchical(pairs, features="random:5:3", prior_stddev="fitted")
    x, factors = pairs[3][0], 1 / np.sqrt(found.posterior.precision[1:])
    scaled = [(found.features(x) * factors, y) for x, y in pairs]
    wanted = glm.fit_hierarchical(scaled, prior_stddev=1.0, intercept_stddev=np.inf)
    for client in (3, None):
        assert_same(
            found.linear_predictor(x, client), wanted.linear_predictor(found.features(x) * factors, client), rtol=1e-6
        )
    question = Question("effects", found.parameters, (0,), 3)
    table = read([(found.features(x), y) for x, y in pairs], FAMILIES["gaussian"])
    sums = ask_sums(InProcess(table, "gaussian"), question)[0]
    evidence = log_evidence(sums, found.parameters[:8], found.posterior.precision)
    assert found.log_evidence == pytest.approx(evidence, rel=1e-12)


def test_features_have_a_seed_and_units_do_not_matter():
    centre, scale = np.array([1.0, 2.0]), np.array([1.0, 4.0])
    one, same, other = (draw_features(text, centre, scale) for text in ("random:4", "random:4:0", "random:4:1"))
    x = np.array([[0.3, 5.0]])
    np.testing.assert_array_equal(one(x), same(x))
    assert np.max(np.abs(one(x) - other(x))[:, 2:]) > 0.01
    np.testing.assert_array_equal(one(x)[:, :2], x)
    units, options = np.array([1e3, 1e-3]), {"features": "random:4", "prior_stddev": "fitted"}
    found = glm.fit_hierarchical(bent(), **options)
    scaled = glm.fit_hierarchical([(x * units, y) for x, y in bent()], **options)
    x = bent()[0][0]
    np.testing.assert_allclose(scaled.predict(x * units, 0), found.predict(x, 0), rtol=1e-5)


def test_masked_sums_give_the_same_fit():
    options = {"features": "random:6", "prior_stddev": "fitted"}
    plain = glm.fit_hierarchical(bent(clients=8), **options)
    masked = glm.fit_hierarchical(bent(clients=8), secure_sums=True, **options)
    assert masked.prior_stddevs == pytest.approx(plain.prior_stddevs, rel=1e-9)
    np.testing.assert_allclose(masked.posterior.mean, plain.posterior.mean, atol=1e-6)


def test_a_prior_that_is_given_is_not_fitted():
    """A function that adds no column is the model of the given columns, to the bit."""
    pairs = federation("gaussian")
    found = glm.fit_hierarchical(pairs, prior_stddev=2.0, features=lambda x: x)
    wanted = glm.fit_hierarchical(pairs, prior_stddev=2.0)
    np.testing.assert_array_equal(found.parameters, wanted.parameters)
    np.testing.assert_array_equal(found.covariance, wanted.covariance)
    assert found.log_evidence is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"features": "random:40"}, "Features need a prior: give prior_stddev='fitted'"),
        ({"features": "random:0", "prior_stddev": 1.0}, "must be random:NUMBER"),
        ({"features": "random:4,000", "prior_stddev": 1.0}, "must be random:NUMBER"),
        ({"prior_stddev": "fitted", "intercept_stddev": 1.0}, "leave intercept_stddev out"),
        ({"prior_stddev": "wide"}, "prior_stddev is 'wide', but must be a number or 'fitted'"),
        ({"features": lambda x: x[:, :1], "prior_stddev": 1.0}, "Features must be the 2 columns and 1 to 2,048 more"),
        ({"features": lambda x: x * np.nan, "prior_stddev": 1.0}, "Features must be finite numbers"),
    ],
)
def test_bad_input_is_one_sentence(options, message):
    refuses(message, glm.fit_hierarchical, federation("gaussian", clients=3), **options)
    if options.get("features") == "random:0":
        empty = [(x[:, :0], y) for x, y in federation("gaussian", clients=3)]
        refuses("There are no columns", glm.fit_hierarchical, empty, prior_stddev="fitted")
        wanted = glm.fit_hierarchical(federation("gaussian"), prior_stddev=1.0, features="random:2")
        refuses("must have \\[n, 2\\]", wanted.predict, np.zeros((1, 3)))
