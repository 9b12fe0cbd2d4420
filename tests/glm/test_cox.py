"""Cox's proportional hazards from sums over risk sets."""

import csv
import math
import pathlib
import re

import numpy as np
import pytest

from tests.glm.guarded import derivatives
from tests.kit import refuses
from tfp_bfl import glm
from tfp_bfl.glm import cox
from tfp_bfl.glm.rows import Rows

LUNG = pathlib.Path(__file__).resolve().parents[3] / "shared" / "datasets" / "natural" / "lung.csv"


def rows(seed=0, count=200, ties=True):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(count, 2))
    time = rng.exponential(np.exp(-features @ [0.5, -0.8]))
    censored = rng.exponential(2.0, count)
    observed = np.minimum(time, censored)
    observed = np.ceil(observed * 5) if ties else observed
    return features, np.stack([observed, time < censored], 1).astype(float)


def efron(features, outcome, b):
    """The log partial likelihood, one event time after another."""
    eta, (time, event) = features @ b, outcome.T
    value = 0.0
    for t in np.unique(time[event == 1]):
        tied = (time == t) & (event == 1)
        risk, own = np.sum(np.exp(eta[time >= t])), np.sum(np.exp(eta[tied]))
        value += np.sum(eta[tied]) - sum(np.log(risk - k / tied.sum() * own) for k in range(tied.sum()))
    return value


def split(features, outcome, clients=5):
    order = np.random.default_rng(1).permutation(len(features))
    return [(features[part], outcome[part]) for part in np.array_split(order, clients)]


@pytest.mark.parametrize("ties", [True, False])
def test_derivatives_are_those_of_the_partial_likelihood(ties):
    features, outcome = rows(ties=ties)
    b = np.array([0.3, -0.4])
    of = Rows(features, outcome, np.zeros(len(features)))
    sums = cox.partial_sums(cox.risk_sums(of, b, cox.event_times(of)))
    assert sums.log_likelihood == pytest.approx(efron(features, outcome, b), rel=1e-10)
    gradient, hessian = derivatives(lambda x: efron(features, outcome, x), b, 1e-4)
    np.testing.assert_allclose(sums.gradient, gradient, rtol=1e-5)
    np.testing.assert_allclose(sums.information, -hessian, rtol=1e-3)


def test_the_posterior_is_that_of_all_rows_in_one_place():
    features, outcome = rows()
    federated = glm.fit(split(features, outcome), "cox", prior_stddev=2.0)
    central = glm.fit([(features, outcome)], "cox", prior_stddev=2.0)
    np.testing.assert_allclose(federated.mean, central.mean, rtol=1e-10)
    np.testing.assert_allclose(federated.covariance, central.covariance, rtol=1e-9)
    assert np.all(np.abs(central.mean - [0.5, -0.8]) < 4 * central.stddev)
    assert central.events == outcome[:, 1].sum() and federated.messages <= 10


def test_stratified_hazards_may_differ_between_clients():
    """A client whose events all come ten times as fast does not change the coefficients."""
    clients = split(*rows(count=400), clients=2)
    faster = [clients[0], (clients[1][0], clients[1][1] * [0.1, 1])]
    plain, changed = (glm.fit(c, "cox", stratified=True) for c in (clients, faster))
    np.testing.assert_allclose(plain.mean, changed.mean, rtol=1e-9)
    both = glm.fit(clients, "cox").mean, glm.fit(faster, "cox").mean
    assert np.max(np.abs(both[0] - both[1])) > 0.01
    alone = glm.fit(clients[:1], "cox", stratified=True)
    np.testing.assert_allclose(alone.mean, glm.fit(clients[:1], "cox").mean, rtol=1e-10)


def test_hazards_that_change_with_time_are_warned_of():
    """One fit of 20 warns by chance, and the draws are seeded; hazards that cross are found."""
    assert not glm.fit(split(*rows(seed=1, count=400, ties=False)), "cox").warnings
    rng = np.random.default_rng(5)
    group = rng.integers(0, 2, 400)
    time = np.where(group == 1, rng.weibull(3.0, 400), rng.weibull(0.7, 400))
    crossing = glm.fit([(group[:, np.newaxis], np.stack([time, np.ones(400)], 1))], "cox", names=["arm"])
    assert len(crossing.warnings) == 1 and "'arm' changes with time" in crossing.warnings[0]


@pytest.mark.deep(after="tests/glm/test_cox.py")
@pytest.mark.statistical
def test_proportionality_has_the_level_that_it_claims():
    """300 draws of proportional hazards: about 5 % are below .05, within 3.5 standard deviations (error 5e-4)."""
    below = 0
    for seed in range(300):
        features, outcome = rows(seed=seed, count=100)
        result = glm.fit([(features, outcome)], "cox")
        of = Rows(features, outcome, np.zeros(100))
        below += cox.proportionality(cox.trend(cox.risk_sums(of, result.mean, cox.event_times(of))))[0] < 0.05
    assert abs(below / 300 - 0.05) < 3.5 * math.sqrt(0.05 * 0.95 / 300)


def test_columns_far_from_0_have_the_same_coefficients():
    features, outcome = rows(count=300)
    near, far = (glm.fit([(features + shift, outcome)], "cox") for shift in (0.0, 2000.0))
    np.testing.assert_allclose(near.mean, far.mean, rtol=1e-8)
    np.testing.assert_allclose(near.covariance, far.covariance, rtol=1e-8)


def test_a_prior_determines_what_the_rows_do_not():
    features, outcome = rows()
    twice = np.column_stack([features, features[:, 0], np.full(200, 5.1)])
    result = glm.fit([(twice, outcome)], "cox", prior_stddev=2.5)
    np.testing.assert_allclose(result.mean[0], result.mean[2])
    assert np.all(np.isfinite(result.stddev)) and result.stddev[3] == pytest.approx(2.5)
    refuses("Column 'x4' does not vary", glm.fit, [(twice, outcome)], "cox")


def test_a_strong_prior_is_no_sign_of_hazards_that_change():
    """20 fits whose prior holds the coefficients near 0: at most 4 warn (error 3e-3 at a level of 5 %)."""
    warned = 0
    for seed in range(20):
        features, outcome = rows(seed=seed, count=150, ties=False)
        warned += bool(glm.fit([(features, outcome)], "cox", prior_stddev=0.05).warnings)
    assert warned <= 4


@pytest.mark.skipif(not LUNG.exists(), reason="the federation of cancer centres is not here")
def test_lung_cancer_has_the_coefficients_of_r():
    """coxph(Surv(time, status) ~ age + sex + ph.ecog, lung) of R's survival."""
    with open(LUNG, encoding="utf-8") as file:
        table = [row for row in csv.DictReader(file) if row["ph.ecog"]]
    features = np.array([[float(row[name]) for name in ("age", "sex", "ph.ecog")] for row in table])
    outcome = np.array([[float(row["time"]), float(row["status"]) - 1] for row in table])
    sites = np.array([row["inst"] for row in table])
    clients = [(features[sites == site], outcome[sites == site]) for site in sorted(set(sites))]
    result = glm.fit(clients, "cox", names=["age", "sex", "ph.ecog"])
    np.testing.assert_allclose(result.mean, [0.011067, -0.552612, 0.463728], atol=1e-6)
    np.testing.assert_allclose(result.stddev, [0.009267, 0.167739, 0.113577], atol=1e-6)


@pytest.mark.parametrize("options", [{}, {"stratified": True}, {"stratified": True, "secure_sums": True}], ids=str)
@pytest.mark.parametrize(
    ("change", "has_warning"),
    [
        (lambda y: y * [0, 1] + [1, 0], True),
        (lambda y: np.ones_like(y), True),
        (lambda y: y, False),
        (lambda y: y * (np.arange(len(y)) < np.argmax(y[:, 1]) + 1)[:, np.newaxis] + [1, 0], False),
    ],
    ids=["one time", "one time, without censoring", "several times", "one event for each hazard"],
)
def test_events_that_all_have_one_time_are_warned_of(options, change, has_warning):
    x, y = rows()
    parts = 3 if "stratified" in options else 1
    clients = [(x[k::parts], change(y[k::parts])) for k in range(parts)]
    found = glm.fit(clients, "cox", prior_stddev=1.0, **options)
    assert any("have the same time" in warning for warning in found.warnings) == has_warning


@pytest.mark.parametrize("secure", [False, True])
def test_clients_without_an_event_are_counted(secure):
    x, y = rows()
    y[1::4, 1] = 0
    clients = [(x[k::4], y[k::4]) for k in range(4)]
    found = glm.fit(clients, "cox", stratified=True, secure_sums=secure)
    assert "Clients without an event, which add nothing to the hazard ratios: 1." in found.warnings
    others = glm.fit(clients[:1] + clients[2:], "cox", stratified=True)
    np.testing.assert_allclose(found.mean, others.mean, rtol=1e-8)
    assert not any("without an event" in x for x in [*others.warnings, *glm.fit(clients, "cox").warnings])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y: (x, y * [1, 0]), "No row has an event"),
        (lambda x, y: (x, y + np.array([0, 1])), "a time above 0 and an event of 0 or 1, but row"),
        (lambda x, y: (x, y * [-1, 1]), "a time above 0"),
        (lambda x, y: (x, y[:, 0]), "has shape (200,), but must have (200, 2)"),
        (lambda x, y: (x[:, [0, 0]], y), "'x1' and 'x2' are collinear"),
    ],
)
def test_bad_input_is_one_sentence(change, message):
    refuses(re.escape(message), glm.fit, [change(*rows())], "cox")
