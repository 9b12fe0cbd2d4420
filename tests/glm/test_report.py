"""The coefficients of clients in the report of a linear model."""

import numpy as np
import pytest

from tests.glm.test_hierarchical import federation, rows_of
from tfp_bfl import glm
from tfp_bfl.glm.families import FAMILIES
from tfp_bfl.glm.report import as_json, checks, estimates_by_sums, from_json
from tfp_bfl.glm.sums import client_sums


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
        with pytest.raises(ValueError, match=r"does not have the form of posterior\.json"):
            from_json({**record, **change})


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
