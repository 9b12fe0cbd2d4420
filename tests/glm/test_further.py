"""Gamma, negative binomial and ordinal models against maxima of the written-out likelihood of all rows."""

import numpy as np
import pytest
from scipy import optimize, special, stats

from tests.glm.guarded import derivatives
from tests.glm.test_command import output_of, predictions, run
from tests.kit import json_of, refuses
from tfp_bfl import data, glm
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.glm.families import FAMILIES
from tfp_bfl.glm.rows import Rows
from tfp_bfl.glm.sums import client_sums, row_scores
from tfp_bfl.sites.deployment.jobs import make_glm_job

NAMES = ["age", "dose"]
NEW = ["gamma", "negative_binomial", "ordinal"]


def rows(family, count=300, seed=0, theta=1.7):
    """Features in unlike units, outcomes and offsets."""
    rng = np.random.default_rng(seed)
    x, offset = rng.normal(size=(count, 2)) * [10, 0.1] + [3, 1], 0.3 * rng.normal(size=count)
    eta = x @ [0.04, 3.0] - 2 + offset
    mean = np.exp(eta)
    if family == "ordinal":
        return x, np.digitize(2 * eta + rng.logistic(size=count), [0, 1, 4]).astype(float), offset
    drawn = rng.gamma(theta, mean / theta)
    return x, drawn if family == "gamma" else rng.poisson(drawn).astype(float), offset


def log_likelihood(family, parameters, x, y, offset):
    """Compute the log likelihood of all rows, by SciPy's distributions; of gamma outcomes with a dispersion of 1."""
    if family == "ordinal":
        cuts = np.concatenate([[-np.inf], parameters[2:], [np.inf]])
        eta, level = x @ parameters[:2] + offset, y.astype(int)
        return np.sum(np.log(special.expit(cuts[level + 1] - eta) - special.expit(cuts[level] - eta)))
    mean = np.exp(parameters[0] + x @ parameters[1:3] + offset)
    if family == "gamma":
        return np.sum(stats.expon.logpdf(y, scale=mean))
    theta = np.exp(parameters[3])
    return np.sum(stats.nbinom.logpmf(y, theta, theta / (theta + mean)))


def maximum(family, x, y, offset, penalty=0.0):
    """Maximise the log likelihood minus the penalty on coefficients, on standardised columns."""
    centre, scale = np.mean(x, 0), np.std(x, 0)
    levels = len(np.unique(y))
    start = {"gamma": [1, 0, 0], "negative_binomial": [1, 0, 0, 0], "ordinal": [0, 0, *range(levels - 1)]}[family]
    first = family != "ordinal"
    at = np.r_[first : first + 2]

    def in_units(parameters):
        found = np.array(parameters, float)
        found[at] /= scale
        if first:
            found[0] -= centre @ found[at]
        else:
            found[2:] += centre @ found[at]
        return found

    def loss(parameters):
        found = in_units(parameters)
        with np.errstate(all="ignore"):
            value = log_likelihood(family, found, x, y, offset) - 0.5 * penalty * np.sum(found[: 2 + first] ** 2)
        return -value if np.isfinite(value) else 1e10

    best = optimize.minimize(loss, start, method="Nelder-Mead", options={"maxiter": 4000, "xatol": 1e-4})
    best = optimize.minimize(loss, best.x, method="BFGS", options={"gtol": 1e-7})
    return in_units(best.x)


def dealt(parts, x, *of_rows):
    """Deal rows to clients by their numbers: (features, outcome) of each, and other arrays."""
    return [(x[part], of_rows[0][part]) for part in parts], *([a[part] for part in parts] for a in of_rows[1:])


def parts_of(count, seed=0):
    """Clients of one row, of four rows, and two large ones."""
    return np.split(np.random.default_rng(seed).permutation(count), [1, 5, count // 3])


@pytest.mark.parametrize("prior", [None, 0.7])
@pytest.mark.parametrize("family", NEW)
def test_it_is_the_maximum_of_the_likelihood_for_any_distribution_of_rows(family, prior):
    x, y, offset = rows(family)
    fits = []
    for parts in ([np.arange(len(y))], parts_of(len(y)), np.split(np.argsort(y), 6)):
        clients, of_offset = dealt(parts, x, y, offset)
        for secure in (False, True):
            fits.append(glm.fit(clients, family, offset=of_offset, prior_stddev=prior, names=NAMES, secure_sums=secure))
    one = fits[0]
    for other in fits[1:]:
        assert np.max(np.abs(other.mean - one.mean) / one.stddev) < 1e-7
        np.testing.assert_allclose(other.covariance, one.covariance, rtol=1e-6, atol=1e-12)
        assert other.log_likelihood == pytest.approx(one.log_likelihood, rel=1e-9)
    penalty = 0.0 if prior is None else one.dispersion / prior**2
    expected = maximum(family, x, y, offset, penalty)
    assert np.max(np.abs(one.mean - expected) / one.stddev) < 1e-4
    assert one.messages <= (12 if family != "gamma" or prior is None else 25)


def test_standard_errors_are_those_of_the_expected_information():
    x, y, offset = rows("gamma")
    found = glm.fit([(x, y)], "gamma", offset=[offset], names=NAMES)
    design = np.column_stack([np.ones(len(x)), x])
    mean = np.exp(design @ found.mean + offset)
    assert found.dispersion == pytest.approx(np.sum((y / mean - 1) ** 2) / (len(y) - 3), rel=1e-9)
    np.testing.assert_allclose(found.covariance, found.dispersion * np.linalg.inv(design.T @ design), rtol=1e-8)
    shape = 1 / found.dispersion
    assert found.log_likelihood == pytest.approx(np.sum(stats.gamma.logpdf(y, shape, scale=mean / shape)), rel=1e-9)
    assert found.degrees_of_freedom == len(y) - 3 and found.ratio == "ratio of means"
    given = glm.fit([(x, y)], "gamma", offset=[offset], dispersion=0.5)
    np.testing.assert_allclose(given.covariance, 0.5 * np.linalg.inv(design.T @ design), rtol=1e-8)
    assert given.degrees_of_freedom is None
    x, y, offset = rows("negative_binomial")
    found = glm.fit([(x, y)], "negative_binomial", offset=[offset])
    mean, theta = np.exp(design @ found.mean[:3] + offset), np.exp(found.mean[3])
    information = (design.T * (mean / (1 + mean / theta))) @ design
    np.testing.assert_allclose(found.covariance[:3, :3], np.linalg.inv(information), rtol=1e-6)
    of_theta = lambda log: log_likelihood("negative_binomial", np.append(found.mean[:3], log), x, y, offset)
    slope, curvature = derivatives(of_theta, found.mean[3:], 1e-3)
    assert abs(slope[0]) < 1e-4 and found.covariance[3, 3] == pytest.approx(-1 / curvature[0, 0], rel=1e-5)
    assert np.all(found.covariance[3, :3] == 0)


def test_standard_errors_of_an_ordinal_model_are_those_of_the_curvature():
    x, y, offset = rows("ordinal")
    found = glm.fit([(x, y)], "ordinal", offset=[offset], names=NAMES, classes=["no", "few", "some", "all"])
    value = lambda z: log_likelihood("ordinal", found.mean + z * found.stddev, x, y, offset)
    _, curvature = derivatives(value, np.zeros(5), 1e-3)
    scale = np.outer(found.stddev, found.stddev)
    np.testing.assert_allclose(found.covariance / scale, np.linalg.inv(-curvature), atol=1e-5)
    assert found.names == ["age", "dose", "no|few", "few|some", "some|all"]
    assert [row["odds ratio"] == "" for row in found.table()] == [False, False, True, True, True]
    assert found.contrast({"few|some": 1, "no|few": -1})["odds ratio"] is None


@pytest.mark.parametrize("family", NEW)
def test_sums_are_derivatives_of_the_log_likelihood(family):
    x, y, offset = rows(family, 40)
    design = x if family == "ordinal" else np.column_stack([np.ones(40), x])
    at = {"gamma": [0.1, 0.03, 1.0], "negative_binomial": [0.1, 0.03, 1.0, 0.6], "ordinal": [0.1, 2, 0, 1, 2]}
    at = np.array(at[family], float)
    given, of = Rows(design, y, offset), FAMILIES[family]
    units = np.array([0.1 if abs(c) > 1 else 1 for c in np.append(np.max(np.abs(design), 0), np.ones(9))])[: len(at)]
    value = lambda z: log_likelihood(family, at + units * z, x, y, offset)
    gradient, hessian = derivatives(value, np.zeros(len(at)), 1e-3)
    sums = client_sums(given, at, of)
    assert sums.log_likelihood == pytest.approx(value(np.zeros(len(at))), rel=1e-9)
    np.testing.assert_allclose(units * sums.gradient, gradient, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(-np.outer(units, units) * sums.information, hessian, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(np.sum(row_scores(given, at, of), 0), sums.gradient, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("family", NEW)
def test_robust_variances_are_sandwiches(family):
    x, y, _ = rows(family)
    clients, single = dealt(parts_of(len(y)), x, y)[0], [(x[i : i + 1], y[i : i + 1]) for i in range(len(y))]
    plain, found = glm.fit(clients, family), glm.fit(clients, family, robust="rows")
    np.testing.assert_allclose(found.covariance, glm.fit(single, family, robust="clients").covariance, rtol=1e-6)
    design = x if family == "ordinal" else np.column_stack([np.ones(len(x)), x])
    scores = row_scores(Rows(design, y, np.zeros(len(y))), plain.mean, FAMILIES[family]) / plain.dispersion
    np.testing.assert_allclose(found.covariance, plain.covariance @ scores.T @ scores @ plain.covariance, rtol=1e-5)


def test_predictions_are_means_under_the_posterior():
    for family in NEW:
        x, y, _ = rows(family)
        found = glm.fit([(x, y)], family)
        centre, stddev = found.linear_predictor(x[:4])
        if family != "ordinal":
            np.testing.assert_allclose(found.predict(x[:4]), np.exp(centre + stddev**2 / 2), rtol=1e-6)
            continue
        samples = np.random.default_rng(0).multivariate_normal(found.mean, found.covariance, 40_000)
        below = special.expit(samples[:, np.newaxis, 2:] - (samples[:, :2] @ x[:4].T)[..., np.newaxis])
        expected = np.diff(np.mean(below, 0), axis=1, prepend=0, append=1)
        np.testing.assert_allclose(found.predict(x[:4]), expected, atol=1e-3)
        np.testing.assert_allclose(centre, x[:4] @ found.mean[:2])


def test_levels_of_a_proportional_odds_model_may_be_turned_around():
    x, y, _ = rows("ordinal")
    one, other = glm.fit([(x, y)], "ordinal"), glm.fit([(x, 3 - y)], "ordinal")
    np.testing.assert_allclose(one.mean, -np.append(other.mean[:2], other.mean[:1:-1]), rtol=1e-6)
    np.testing.assert_allclose(one.predict(x), other.predict(x)[:, ::-1], rtol=1e-6)


def test_an_exposure_is_the_offset_of_its_logarithm_and_a_weight_so_many_rows():
    x, y, offset = rows("negative_binomial")
    one = glm.fit([(x, y)], "negative_binomial", exposure=[np.exp(offset)])
    np.testing.assert_allclose(one.mean, glm.fit([(x, y)], "negative_binomial", offset=[offset]).mean, rtol=1e-9)
    for family in NEW:
        x, y, _ = rows(family)
        number = np.random.default_rng(1).integers(0, 4, len(y))
        repeated = glm.fit([(np.repeat(x, number, 0), np.repeat(y, number))], family)
        found = glm.fit([(x, y)], family, weights=[number.astype(float)])
        np.testing.assert_allclose(found.mean, repeated.mean, rtol=1e-6)
        np.testing.assert_allclose(found.covariance, repeated.covariance, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("theta", [0.05, 40.0])
@pytest.mark.parametrize("family", ["gamma", "negative_binomial"])
def test_far_from_where_the_steps_begin(family, theta):
    x, y, _ = rows(family, count=800, seed=3, theta=theta)
    found, nothing = glm.fit(dealt(parts_of(800), x, y)[0], family), np.zeros(800)
    assert np.max(np.abs(found.mean - maximum(family, x, y, nothing)) / found.stddev) < 1e-3


@pytest.mark.parametrize(
    ("family", "outcome", "options", "message"),
    [
        ("gamma", [1.0, 0.0, 2.0, 3.0], {}, "Each gamma outcome must be a number above 0, but row 1"),
        ("gamma", [1.0, 2.0, 4.0, 8.0], {}, "The columns predict the outcome without error"),
        ("gamma", [1.0, 3.0], {}, "There are 2 rows for 2 coefficients"),
        ("negative_binomial", [1.0, 0.5, 2.0, 3.0], {}, "must be a count: 0, 1, 2, ..., but row 1 of client 0 has 0.5"),
        ("negative_binomial", [2.0, 3.0, 3.0, 2.0], {}, "vary no more than a Poisson distribution .* family poisson"),
        (
            "negative_binomial",
            [2.0, 3.0, 3.0, 2.0],
            {"dispersion": 1.0},
            "dispersion is for the families gaussian, gamma",
        ),
        ("ordinal", [0.0, 1.0, 1.0, 0.0], {}, "An ordinal outcome has three or more levels, .* use 'bernoulli'"),
        ("ordinal", [0.0, 1.0, 3.0, 1.0], {}, "No row is of the level '2'"),
        ("ordinal", [0.0, 1.0, 2.0, 1.0], {"intercept_stddev": 1.0}, "has cutpoints in place of an intercept"),
        ("ordinal", [0.0, 1.0, 2.0, 1.0], {"names": ["1|2"]}, "The name '1|2' is that of a parameter of the family"),
        ("ordinal", [0.0, 1.0, 2.0, 2.0], {}, "column 'x1' predicts the outcome of some rows without error"),
        ("gamma", [1.0, 2.0, 3.0, 9.0], {"second_order": True}, "second_order is for the families gaussian, bernoulli"),
        ("gamma", [1.0, 2.0, 3.0, 9.0], {"exposure": [np.ones(4)]}, "exposure is for the families poisson, negative"),
    ],
)
def test_bad_input_is_one_sentence(family, outcome, options, message):
    refuses(message, glm.fit, [(np.arange(float(len(outcome)))[:, np.newaxis], np.array(outcome))], family, **options)


@pytest.mark.parametrize("family", NEW)
def test_what_needs_canonical_links_is_refused(family):
    x, y, _ = rows(family, 60)
    refuses("There is no family of a hierarchical model", glm.fit_hierarchical, [(x, y)], family)
    refuses("There is no family of one message", glm.one_message, [(x, y)], family)
    refuses("of a family among gaussian", glm.revise, glm.fit([(x, y)], family), add=[(x, y)])
    refuses(f"Between sites there is no {family} model", make_glm_job, {"family": family, "outcome": "y"}, False)


def test_levels_of_data_are_those_of_its_classes():
    x, y, _ = rows("ordinal")
    source = data.Source("table", "train", x, y.astype(int), class_names=["0", "1", "2", "3"])
    found = glm.fit(source.partition(data.iid(3), seed=0), "ordinal", names=NAMES)
    np.testing.assert_allclose(found.mean, glm.fit([(x, y)], "ordinal").mean, rtol=1e-6)
    assert found.classes == ("0", "1", "2", "3")


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Patients of four hospitals: a cost, a count and a grade."""
    path, rng = tmp_path_factory.mktemp("further") / "patients.csv", np.random.default_rng(2)
    lines = ["hospital,age,cost,visits,grade,sex"]
    for row in range(200):
        age, noise = rng.normal(60, 10), rng.gamma(2.0, 0.5)
        mean = np.exp(0.03 * (age - 60) + 1)
        grade = np.digitize(0.05 * (age - 60) + rng.logistic(), [-1, 1]) + 1
        lines.append(f"h{row % 4},{age:.1f},{mean * noise:.3f},{rng.poisson(mean * noise)},{grade},{'FM'[row % 2]}")
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(
    ("family", "outcome", "words"),
    [
        ("gamma", "cost", ["gamma: 200 rows, 4 clients", "Dispersion (variance over squared mean): 0."]),
        ("negative_binomial", "visits", [" events, 4 clients", "log(theta)", "Theta: "]),
        ("ordinal", "grade", ["200 rows, 3 classes", "Levels of grade in ascending order: 1 (", "2|3"]),
    ],
)
def test_a_table_has_a_report_and_predictions(table, tmp_path, family, outcome, words):
    given = ["--family", family, "--outcome", outcome, "--client-column", "hospital", "--only", "age"]
    output = output_of(table, *given, "--predict", table, "--output", tmp_path / "out")
    assert all(word in output for word in words)
    names, _ = json_of(tmp_path / "out" / "posterior.json")["names"], (tmp_path / "out" / "report.html").read_text()
    found = predictions(tmp_path / "out")
    values = np.loadtxt(table, str, delimiter=",", skiprows=1)
    x, y = values[:, [1]].astype(float), values[:, {"cost": 2, "visits": 3, "grade": 4}[outcome]].astype(float)
    fitted = glm.fit([(x, y - (family == "ordinal"))], family)
    assert len(names) == len(fitted.mean)
    columns = ["mean"] if family != "ordinal" else [f"probability of {k}" for k in (1, 2, 3)]
    shown = np.array([[float(row[column]) for column in columns] for row in found])
    np.testing.assert_allclose(shown, fitted.predict(x).reshape(200, -1), rtol=1e-5)
    if family != "ordinal":
        assert all(float(row["95 % from"]) < float(row["mean"]) < float(row["to"]) for row in found)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--family", "gamma", "--outcome", "visits"], "must hold numbers above 0 for the family gamma"),
        (
            ["--family", "negative_binomial", "--outcome", "cost"],
            "must hold counts .* for the family negative_binomial",
        ),
        (["--family", "ordinal", "--outcome", "sex"], "classes must be 3 to 100: use the family bernoulli"),
        (["--family", "gamma", "--outcome", "cost", "--random", "(intercept)"], "--random is for gaussian, bernoulli"),
        (["--family", "ordinal", "--outcome", "grade", "--one-message"], "--one-message is for gaussian, bernoulli"),
        (["--family", "ordinal", "--outcome", "grade", "--exposure", "cost"], "for poisson and negative_binomial"),
    ],
)
def test_an_option_that_does_not_fit_is_refused(table, options, message):
    with pytest.raises(InvalidArgument, match=message):
        raise run(table, *options, "--client-column", "hospital").exception
