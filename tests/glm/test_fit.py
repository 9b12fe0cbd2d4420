"""Generalised linear models from sums against other implementations on all rows in one place."""

import re

import numpy as np
import pytest
from scipy import optimize
from sklearn.linear_model import LogisticRegression, PoissonRegressor

from tests.glm.guarded import derivatives, outcomes
from tests.kit import refuses
from tfp_bfl import data, glm
from tfp_bfl.glm import report
from tfp_bfl.glm.newton import maximise
from tfp_bfl.glm.sums import Sums

NAMES = ["age", "dose", "share"]
SPREAD = np.array([10.0, 1.0, 0.1])


def rows(family, seed=0, count=400):
    """Features in unlike units, and outcomes by the family."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(count, 3)) * SPREAD + [50, 0, 0.3]
    eta = features @ [0.03, 0.5, 2.0] - 2.0
    return features, outcomes(rng, family, eta, noise=0.7)


def split(features, outcome, clients=7, seed=1):
    """Clients of unequal sizes, one of them with one row."""
    order = np.random.default_rng(seed).permutation(len(features))
    cuts = [1, 5, *np.linspace(20, len(features), clients - 1).astype(int)[:-1]]
    return [(features[part], outcome[part]) for part in np.split(order, cuts)]


@pytest.mark.parametrize("prior", [None, 2.0])
@pytest.mark.parametrize("family", ["gaussian", "bernoulli", "poisson"])
def test_the_posterior_is_that_of_all_rows_in_one_place(family, prior):
    features, outcome = rows(family)
    federated = glm.fit(split(features, outcome), family, prior_stddev=prior)
    central = glm.fit([(features, outcome)], family, prior_stddev=prior)
    assert np.max(np.abs(federated.mean - central.mean) / central.stddev) < 1e-8
    np.testing.assert_allclose(federated.covariance, central.covariance, rtol=1e-6)
    assert federated.messages == (1 if family == "gaussian" else federated.messages) <= 10
    assert (federated.count, federated.num_clients, len(federated.mean)) == (400, 8, 4)


def of_source(labels, **options):
    """A source of four rows for each label, as two clients."""
    labels = np.repeat(labels, 4)
    features = np.random.default_rng(0).normal(size=(len(labels), 1))
    source = data.Source("table", "train", features, labels, **options)
    return source, source.partition(data.iid(2), seed=0)


FITS = {
    "fit": glm.fit,
    "random effects": glm.fit_hierarchical,
    "one message": lambda *given, **options: glm.one_message(*given, **options).posterior,
    "joining clients": lambda given, family, **_: (
        glm.revise(
            glm.fit([(np.eye(9)[:, :1], np.arange(9.0))], family, names=["x1"], prior_stddev=3.0), add=given
        ).posterior
    ),
}


@pytest.mark.parametrize("how", FITS)
@pytest.mark.parametrize("family", ["gaussian", "poisson"])
def test_classes_that_are_numbers_are_these_numbers(family, how):
    source, clients = of_source([0, 1, 2, 5, 9])
    assert max(source.labels) == 4
    numbers = np.array([0, 1, 2, 5, 9.0])[source.labels]
    rows = [(source.features[part], numbers[part]) for part in clients.indices]
    one, other = (FITS[how](given, family, prior_stddev=3.0) for given in (clients, rows))
    np.testing.assert_array_equal(*(report.posterior_of(x).mean for x in (one, other)))


def test_classes_for_bernoulli_are_two():
    _, clients = of_source([7, 8])
    _, same = of_source([0, 1])
    np.testing.assert_array_equal(glm.fit(clients, "bernoulli").mean, glm.fit(same, "bernoulli").mean)
    _, swapped = of_source([0, 1], class_names=("1", "0"))
    np.testing.assert_allclose(glm.fit(swapped, "bernoulli").mean, -glm.fit(same, "bernoulli").mean, rtol=1e-6)


@pytest.mark.parametrize(
    ("labels", "names", "family", "message"),
    [
        (["a", "b", "c"], (), "gaussian", "classes, such as 'a', but the family gaussian requires numbers"),
        (["a", "b"], (), "poisson", "classes, such as 'a', but the family poisson requires numbers"),
        (["a", "b"], (), "cox", "classes, such as 'a', but the family cox requires numbers"),
        ([0, 1], ("no", "yes", "unknown"), "bernoulli", "are 3 classes, but the family bernoulli requires two"),
    ],
)
def test_class_numbers_are_no_outcome(labels, names, family, message):
    clients = of_source(labels, class_names=names)[1]
    refuses(message, glm.fit, clients, family)


@pytest.mark.parametrize("family", ["bernoulli", "poisson"])
def test_the_maximum_is_that_of_scikit_learn(family):
    """scikit-learn does not penalise the intercept."""
    features, outcome = rows(family)
    scaled = (features - features.mean(0)) / SPREAD
    ours = glm.fit(split(scaled, outcome), family, prior_stddev=0.5, intercept_stddev=np.inf)
    if family == "bernoulli":
        theirs = LogisticRegression(C=0.25, tol=1e-12, solver="newton-cholesky").fit(scaled, outcome)
    else:
        theirs = PoissonRegressor(alpha=4 / len(outcome), tol=1e-12, solver="newton-cholesky").fit(scaled, outcome)
    want = np.append(theirs.intercept_, theirs.coef_)
    assert np.max(np.abs(ours.mean - want) / ours.stddev) < 1e-6


@pytest.mark.parametrize("family", ["bernoulli", "poisson"])
def test_mean_and_covariance_are_mode_and_curvature_of_the_log_posterior(family):
    features, outcome = rows(family, seed=2, count=150)
    scaled = (features - features.mean(0)) / SPREAD
    design = np.column_stack([np.ones(len(scaled)), scaled])

    def log_posterior(b):
        eta = design @ b
        mean = np.logaddexp(0, eta) if family == "bernoulli" else np.exp(eta)
        return float(np.sum(outcome * eta - mean) - np.sum(b**2) / (2 * 1.5**2))

    ours = glm.fit(split(scaled, outcome), family, prior_stddev=1.5)
    best = optimize.minimize(lambda b: -log_posterior(b), np.zeros(4), method="BFGS", options={"gtol": 1e-8}).x
    np.testing.assert_allclose(ours.mean, best, atol=1e-5)
    curvature = derivatives(log_posterior, best, 1e-3)[1]
    np.testing.assert_allclose(np.linalg.inv(-curvature), ours.covariance, rtol=1e-4, atol=1e-9)


def test_gaussian_outcomes_have_the_posterior_of_least_squares():
    features, outcome = rows("gaussian")
    design = np.column_stack([np.ones(len(features)), features])
    mean, residual, *_ = np.linalg.lstsq(design, outcome, rcond=None)
    ours = glm.fit(split(features, outcome))
    np.testing.assert_allclose(ours.mean, mean, rtol=1e-9)
    assert ours.dispersion == pytest.approx(residual[0] / (400 - 4), rel=1e-10)
    np.testing.assert_allclose(ours.covariance, ours.dispersion * np.linalg.inv(design.T @ design), rtol=1e-7)
    given = glm.fit(split(features, outcome), dispersion=2.0, prior_stddev=1.0)
    covariance = np.linalg.inv(design.T @ design / 2 + np.eye(4))
    np.testing.assert_allclose(given.covariance, covariance, rtol=1e-7)
    np.testing.assert_allclose(given.mean, covariance @ design.T @ outcome / 2, rtol=1e-7)


def test_the_dispersion_maximises_the_marginal_likelihood():
    """Evaluate N(0, d I + design diag(s^2) design') at neighbours."""
    features, outcome = rows("gaussian", count=60)
    ours = glm.fit(split(features, outcome), prior_stddev=0.5)
    design = np.column_stack([np.ones(60), features])

    def marginal(d):
        covariance = d * np.eye(60) + 0.25 * design @ design.T
        return -0.5 * (np.linalg.slogdet(covariance)[1] + outcome @ np.linalg.solve(covariance, outcome))

    values = [marginal(ours.dispersion * factor) for factor in (0.99, 1.0, 1.01)]
    assert values[1] > max(values[0], values[2])


def test_an_exposure_scales_the_rate():
    features, _ = rows("poisson")
    rng = np.random.default_rng(3)
    years = rng.uniform(0.5, 5, 400)
    counts = rng.poisson(years * np.exp(features @ [0.03, 0.5, 2.0] - 2.0)).astype(float)
    halves = [(features[part], counts[part]) for part in (slice(200), slice(200, None))]
    result = glm.fit(halves, "poisson", exposure=[years[:200], years[200:]], names=NAMES)
    assert np.all(np.abs(result.mean - [-2, 0.03, 0.5, 2.0]) < 4 * result.stddev)
    ten = glm.fit(halves, "poisson", exposure=[10 * years[:200], 10 * years[200:]])
    np.testing.assert_allclose(ten.mean - result.mean, [-np.log(10), 0, 0, 0], atol=1e-9)


def test_second_order_moments_are_those_of_the_skewed_posterior():
    """Integrate over a grid for 40 rows; maximum and curvature are far off."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(40, 1))
    y = (rng.random(40) < 1 / (1 + np.exp(-2 * x[:, 0] - 1))).astype(float)
    a, b = np.meshgrid(np.linspace(-4, 8, 601), np.linspace(-3, 14, 701), indexing="ij")
    log_p = -(a**2 + b**2) / 50
    for xi, yi in zip(x[:, 0], y):
        log_p += yi * (a + b * xi) - np.logaddexp(0, a + b * xi)
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    mean = np.array([np.sum(p * a), np.sum(p * b)])
    stddev = np.sqrt([np.sum(p * (a - mean[0]) ** 2), np.sum(p * (b - mean[1]) ** 2)])
    clients = [(x[:20], y[:20]), (x[20:], y[20:])]
    first, second = (glm.fit(clients, "bernoulli", prior_stddev=5.0, second_order=s) for s in (False, True))
    assert np.max(np.abs(second.mean - mean) / stddev) < 0.03 < 0.3 < np.max(np.abs(first.mean - mean) / stddev)
    np.testing.assert_allclose(second.stddev, stddev, rtol=0.03)
    assert np.max(np.abs(first.stddev / stddev - 1)) > 0.06


def test_where_the_second_order_is_too_large_the_first_stays():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(12, 3))
    first, second = (
        glm.fit([(x, (x[:, 0] > 0).astype(float))], "bernoulli", prior_stddev=10.0, second_order=s)
        for s in (False, True)
    )
    np.testing.assert_array_equal(first.mean, second.mean)
    assert any("too skewed for moments to second order" in warning for warning in second.warnings)


def test_intervals_of_an_estimated_dispersion_are_students():
    """400 draws of 6 rows: the intercept is covered in 95 %, within 3.5 standard deviations (error 5e-4)."""
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(400):
        x = rng.normal(size=(6, 1))
        low, high = glm.fit([(x, 1.0 + rng.normal(size=6))]).interval()[0]
        covered += low < 1.0 < high
    assert abs(covered / 400 - 0.95) < 3.5 * np.sqrt(0.95 * 0.05 / 400)


def test_one_message_counts_the_prior_once():
    features, outcome = rows("bernoulli")
    scaled = (features - features.mean(0)) / SPREAD
    halves = [(scaled[:200], outcome[:200]), (scaled[200:], outcome[200:])]
    combined = glm.one_message(halves, prior_stddev=0.3)
    assert np.max(np.abs(combined.distance)) < 0.2
    np.testing.assert_allclose(combined.posterior.stddev, combined.exact.stddev, rtol=0.05)
    own = combined.clients
    precision = np.linalg.inv(own[0].covariance) + np.linalg.inv(own[1].covariance) - np.eye(4) / 0.09
    np.testing.assert_allclose(combined.posterior.covariance, np.linalg.inv(precision), rtol=1e-9)
    twice = sum(np.linalg.inv(one.covariance) for one in own)
    assert np.max(np.abs(np.linalg.inv(twice) / combined.posterior.covariance - 1)) > 0.03


def test_a_client_that_can_not_be_fitted_alone_is_named():
    features, outcome = rows("bernoulli")
    clients = [(features[:300], outcome[:300]), (features[300:] * [0, 1, 1], outcome[300:])]
    with pytest.raises(ValueError, match="Client south can't be fitted alone: Column 'x1' does not vary"):
        glm.one_message(clients, client_names=["north", "south"])


def test_the_table_has_ratios_and_is_text():
    features, outcome = rows("bernoulli")
    result = glm.fit(split(features, outcome), "bernoulli", names=NAMES)
    table = result.table(level=0.9)
    assert [row["coefficient"] for row in table] == ["(intercept)", *NAMES]
    assert table[2]["odds ratio"] == pytest.approx(np.exp(result.mean[2]))
    assert table[2]["90 % from"] == pytest.approx(result.mean[2] - 1.6448536 * result.stddev[2])
    assert table[0]["odds ratio"] == ""
    text = str(table).splitlines()
    assert len(text) == 5 and text[0].startswith("coefficient") and text[2].startswith("age")


def test_predictions_average_over_the_posterior():
    features, outcome = rows("bernoulli", count=60)
    result = glm.fit([(features, outcome)], "bernoulli", names=NAMES)
    draws = np.random.default_rng(0).multivariate_normal(result.mean, result.covariance, 40_000)
    eta = np.column_stack([np.ones(60), features]) @ draws.T
    np.testing.assert_allclose(result.predict(features), np.mean(1 / (1 + np.exp(-eta)), 1), atol=0.01)


GOOD = rows("bernoulli")
TWICE = np.column_stack([GOOD[0], GOOD[0][:, 0] * 2 - 1])


@pytest.mark.parametrize(
    ("clients", "options", "message"),
    [
        ([], {}, "clients is empty"),
        ([GOOD], {"family": "binomial"}, "There is no family 'binomial'"),
        ([GOOD[0]], {"family": "bernoulli"}, "Client 0 must be a pair"),
        ([(GOOD[0], GOOD[1]), (GOOD[0][:, :2], GOOD[1])], {}, "one p for all clients"),
        ([(GOOD[0], GOOD[1][:-1])], {}, "The outcome of client 0 has shape"),
        ([(GOOD[0], GOOD[1] + 1)], {"family": "bernoulli"}, "must be 0 or 1, but row "),
        ([(GOOD[0][:2], GOOD[1][:2])], {"family": "bernoulli"}, "There are 2 rows for 4 coefficients: drop columns"),
        ([(GOOD[0], -GOOD[1] - 1)], {"family": "poisson"}, "must be a count"),
        ([(np.where(GOOD[0] > 60, np.nan, GOOD[0]), GOOD[1])], {}, "finite and below 1e+50 in size, but row"),
        ([(np.zeros((0, 3)), np.zeros(0)), GOOD], {}, "Client 0 has no rows"),
        ([(TWICE, GOOD[1])], {"family": "bernoulli"}, "are collinear"),
        ([(GOOD[0] * [0, 1, 1], GOOD[1])], {"family": "bernoulli"}, "Column 'x1' does not vary"),
        ([(GOOD[0], GOOD[0][:, 0] > 50)], {"family": "bernoulli"}, "column 'x1' predicts the outcome of some rows"),
        ([(GOOD[0], GOOD[0][:, 0])], {}, "predict the outcome without error"),
        ([(GOOD[0][:4], GOOD[1][:4])], {}, "4 rows for 4 coefficients"),
        ([GOOD], {"family": "bernoulli", "dispersion": 1.0}, "dispersion is for the families gaussian, gamma"),
        ([GOOD], {"prior_stddev": -1.0}, "prior_stddev"),
        ([GOOD], {"stratified": True}, "stratified is for the family 'cox'"),
        ([GOOD], {"names": ["a", "b"]}, "names has 2 names"),
        ([GOOD], {"names": ["a", "b", "a"]}, "occurs more than once"),
        ([GOOD], {"family": "poisson", "exposure": [np.zeros(400)]}, "must be 400 numbers above 0"),
        ([GOOD], {"exposure": [np.ones(400)]}, "exposure is for the families poisson, negative_binomial"),
        ([(GOOD[0] * 1e200, GOOD[1])], {"family": "bernoulli"}, "below 1e+50 in size"),
        ([(GOOD[0], GOOD[1] * 0)], {"family": "bernoulli"}, "The outcome is the same in all rows"),
        ([(GOOD[0], GOOD[1] * 0)], {"family": "poisson"}, "The outcome is the same in all rows"),
        ([GOOD], {"family": "poisson", "exposure": []}, "exposure is of 0 clients"),
    ],
)
def test_bad_input_is_one_sentence(clients, options, message):
    refuses(re.escape(message), glm.fit, clients, **options)


def test_a_prior_determines_what_the_rows_do_not():
    separated = glm.fit([(GOOD[0], GOOD[0][:, 0] > 50)], "bernoulli", prior_stddev=2.5)
    collinear = glm.fit([(TWICE, GOOD[1])], "bernoulli", prior_stddev=2.5)
    assert np.all(np.isfinite(separated.mean)) and np.all(np.isfinite(collinear.stddev))


def test_steps_that_do_not_converge_under_a_prior_are_no_separation(monkeypatch):
    """Name the steps and no column, as the maximum exists with a prior."""
    monkeypatch.setattr("tfp_bfl.glm.newton.MOST_MESSAGES", 1)
    with pytest.raises(ValueError, match=r"^Newton's steps did not converge in 2 messages: rescale the columns\.$"):
        glm.fit([GOOD], "bernoulli", prior_stddev=2.5)


def test_few_events_are_warned_of():
    features, outcome = rows("bernoulli", count=60)
    few = glm.fit([(features, outcome)], "bernoulli")
    events = min(outcome.sum(), 60 - outcome.sum())
    assert [w for w in few.warnings if f"{events:g} events for 4 coefficients" in w]
    many = glm.fit([GOOD], "bernoulli")
    assert not many.warnings


def ask(coefficients, value=0.0, gradient=0.0, information=0.0):
    """-sqrt(1 + d^2), d = b - 1: Newton's steps from |d| > 1 go too far. Beyond |b| = 10 with numbers added."""
    d, far = coefficients - 1.0, np.abs(coefficients) > 10
    root = np.sqrt(1 + d**2)
    added = [np.where(far, x, 0.0) for x in (value, gradient, information)]
    return Sums(9.0, 9.0, float(-root[0] + added[0][0]), -d / root + added[1], np.diag(1 / root**3 + added[2]))


FAR = [
    {},
    {"value": np.inf},
    {"value": np.nan},
    {"value": 99.0, "gradient": np.nan},
    {"value": 9.0, "information": np.inf},
]


@pytest.mark.parametrize("beyond", FAR)
def test_steps_end_at_the_maximum_past_points_that_overflow(beyond):
    start = np.array([4.0])  # From here the first step leads to -26.
    found = maximise(lambda b: ask(b, **beyond), ask(start), np.zeros(1), ["b"], start=start)
    assert found.coefficients[0] == pytest.approx(1.0, abs=1e-6) and found.messages < 25
