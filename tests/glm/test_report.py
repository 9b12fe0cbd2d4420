"""The report of a linear model: coefficients of clients, checks, and counts that vary more than Poisson ones."""

import numpy as np
import pytest

from tests.glm.test_hierarchical import federation, rows_of
from tests.kit import refuses
from tfp_bfl import glm
from tfp_bfl.glm.families import FAMILIES
from tfp_bfl.glm.report import as_json, checks, estimates_by_sums, from_json
from tfp_bfl.glm.rows import Rows
from tfp_bfl.glm.sums import Sums, client_sums, pack


@pytest.mark.parametrize(("family", "tolerance"), [("gaussian", 1e-9), ("bernoulli", 0.5), ("poisson", 0.5)])
def test_one_newton_step_is_near_the_fit_of_the_client_alone(family, tolerance):
    """In standard deviations, for more than 100 rows; exact for Gaussian outcomes with the dispersion of all."""
    clients = [pair for pair in federation(family, clients=8, most=600, between=0.1) if len(pair[1]) > 100]
    posterior = glm.fit(clients, family, prior_stddev=2.0)
    parts = {str(k): client_sums(rows_of(*pair), posterior.sums_at, FAMILIES[family]) for k, pair in enumerate(clients)}
    found = estimates_by_sums(posterior, parts, 0.95)
    given = {"dispersion": posterior.dispersion} if family == "gaussian" else {}
    for pair, one in zip(clients, found.clients):
        alone = glm.fit([pair], family, prior_stddev=2.0, **given)
        np.testing.assert_allclose((one.mean - alone.mean) / alone.stddev, 0, atol=tolerance)
    assert found.pooled.is_pooled and found.names == list(posterior.names)


def test_a_client_that_does_not_determine_the_coefficients_has_none():
    clients = federation("gaussian", clients=4, most=30)
    posterior = glm.fit(clients)
    rows = [rows_of(*pair) for pair in [*clients[:-1], (clients[0][0][:1], clients[0][1][:1])]]
    parts = {str(k): client_sums(one, posterior.sums_at, FAMILIES["gaussian"]) for k, one in enumerate(rows)}
    *others, last = estimates_by_sums(posterior, parts, 0.95).clients
    assert np.all(np.isnan(last.mean)) and all(np.all(np.isfinite(one.mean)) for one in others)
    assert estimates_by_sums(posterior, {}, 0.95) is None


def test_a_record_is_read_again_and_others_are_refused():
    posterior = glm.fit(federation("bernoulli", clients=4), "bernoulli", prior_stddev=2.0)
    record = {**as_json(posterior), "clients": list("abcd")}
    again = from_json(record)
    np.testing.assert_array_equal(again.covariance, posterior.covariance)
    np.testing.assert_array_equal(again.sums.information, posterior.sums.information)
    for change in ({"mean": [1.0]}, {"names": 3}, {"covariance": "none"}, {"dispersion": None}):
        refuses(r"does not have the form of posterior\.json", from_json, {**record, **change})


@pytest.mark.parametrize(
    ("family", "prior", "words"),
    [
        ("gaussian", None, ["rows for each coefficient", "the rows determine all coefficients"]),
        ("bernoulli", None, ["events for each coefficient", "none: the likelihood has a maximum"]),
        ("bernoulli", 2.0, ["the prior determines all coefficients", "the prior bounds coefficients that separate"]),
    ],
)
def test_checks_are_those_of_the_family(family, prior, words):
    found = checks(glm.fit(federation(family, clients=4), family, prior_stddev=prior))
    assert all(any(word in " ".join(row) for row in found) for word in words)


def counts(rng, mean, shape=None, number=200):
    """Four clients with counts: Poisson, or negative binomial with variance mu + mu^2 / shape."""
    x = rng.normal(size=(number, 1))
    mu = mean * np.exp(0.3 * x[:, 0])
    y = rng.poisson(mu) if shape is None else rng.negative_binomial(shape, shape / (shape + mu))
    return [(x[k::4], y[k::4].astype(float)) for k in range(4)]


def doubts(posterior):
    return [x for x in posterior.warnings if "Pearson" in x]


@pytest.mark.parametrize("secure_sums", [False, True])
def test_overdispersed_counts_are_named_with_statistic_and_remedy(secure_sums):
    clients = counts(np.random.default_rng(0), np.e, 0.5)
    posterior = glm.fit(clients, "poisson", secure_sums=secure_sums)
    x, y = (np.concatenate(part) for part in zip(*clients))
    mu = np.exp(posterior.design(x) @ posterior.mean)
    statistic = np.sum((y - mu) ** 2 / mu) / 198
    (warning,) = doubts(posterior)
    assert f"{statistic:.3g} per degree of freedom" in warning and "198 degrees" in warning
    assert f"factor of {np.sqrt(statistic):.2g}" in warning and '--random "(intercept)"' in warning
    assert posterior.sums.pearson == pytest.approx([198 * statistic, np.sum(1 / mu)], rel=1e-6)


@pytest.mark.parametrize("mean", [0.05, 0.5, 3.0, 50.0])
def test_models_that_fit_are_not_doubted(mean):
    """300 federations with Poisson counts of small and large means.

    Error rate: of 2,000 federations with each mean 0, 0, 2 and 6 were doubted. More than 5 of 300 have a probability
    below 1e-3 at 0.3 %.
    """
    rng = np.random.default_rng(int(100 * mean))
    found = sum(bool(doubts(glm.fit(counts(rng, mean), "poisson", prior_stddev=2.5))) for _ in range(300))
    assert found <= 5


def test_checks_and_record_state_the_statistic():
    rng = np.random.default_rng(1)
    for shape, found in ((None, "1 not rejected"), (0.5, "above 1: see the warnings")):
        posterior = glm.fit(counts(rng, 3.0, shape), "poisson")
        ratio = posterior.sums.pearson[0] / 198
        assert dict(checks(posterior))["Pearson's statistic"] == f"{ratio:.3g} per degree of freedom, {found}"
        assert as_json(posterior)["pearson_statistic"] == posterior.sums.pearson[0]


def test_clients_that_join_bring_their_misfit_and_take_it_away():
    rng = np.random.default_rng(3)
    well, other = counts(rng, 3.0), counts(rng, 3.0, 0.3)
    posterior = glm.fit(well, "poisson")
    joined = glm.revise(posterior, add=other).posterior
    assert not doubts(posterior) and doubts(joined)
    assert not doubts(glm.revise(joined, remove=other).posterior)


def test_sums_of_rows_with_tiny_means_are_finite_and_other_families_have_none():
    rows = Rows(np.ones((2, 1)), np.array([0.0, 3.0]), np.zeros(2))
    for at in (-800.0, -30.0, 800.0):
        sums = client_sums(rows, np.array([at]), FAMILIES["poisson"])
        assert np.all(np.isfinite(sums.pearson)) and np.all(sums.pearson >= 0)
        assert np.array_equal(Sums.unpack(pack(*sums), 1).pearson, sums.pearson)
    binary = Rows(np.ones((2, 1)), np.array([0.0, 1.0]), np.zeros(2))
    assert not client_sums(binary, np.zeros(1), FAMILIES["bernoulli"]).pearson.any()
