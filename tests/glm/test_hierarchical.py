"""Random effects of clients, integrated out at each of them."""

import numpy as np
import pytest
from scipy import integrate, optimize, stats

from tests.glm.guarded import derivatives, outcomes
from tests.kit import refuses
from tfp_bfl import glm
from tfp_bfl.glm.effects import EffectsLayout, client_sums
from tfp_bfl.glm.families import FAMILIES
from tfp_bfl.glm.rows import Rows


def federation(family, seed=0, clients=40, most=20, between=0.8):
    """Clients of 2 to `most` rows whose intercepts differ."""
    rng = np.random.default_rng(seed)
    pairs = []
    for _ in range(clients):
        x = rng.normal(size=(rng.integers(2, most), 2))
        eta = 0.3 + x @ [0.7, -0.5] + between * rng.normal()
        pairs.append((x, outcomes(rng, family, eta, noise=0.6)))
    return pairs


def gaussian_marginal(pairs, parameters, columns):
    """sum_k log N(y_k; X b, Z L L' Z' + s^2 I), directly."""
    layout = EffectsLayout(3, columns, True)
    factor, value = layout.factor(parameters), 0.0
    for x, y in pairs:
        design = np.column_stack([np.ones(len(x)), x])
        zl = design[:, columns] @ factor
        covariance = zl @ zl.T + np.exp(2 * parameters[-1]) * np.eye(len(x))
        value += stats.multivariate_normal.logpdf(y, design @ parameters[:3], covariance)
    return value


def rows_of(x, y):
    return Rows(np.column_stack([np.ones(len(x)), x]), y, np.zeros(len(x)))


@pytest.mark.parametrize("columns", [(0,), (0, 1)])
def test_gaussian_sums_are_those_of_the_marginal_normal(columns):
    pairs, layout = federation("gaussian", clients=6), EffectsLayout(3, columns, True)
    theta = np.concatenate([[0.2, 0.5, -0.4], [0.7, 0.2, 0.5][: len(layout.pairs)], [-0.3]])
    value = lambda t: gaussian_marginal(pairs, t, columns)
    parts = [client_sums(rows_of(*pair), theta, FAMILIES["gaussian"], layout, 3)[0] for pair in pairs]
    assert sum(part.log_likelihood for part in parts) == pytest.approx(value(theta), rel=1e-10)
    gradient, hessian = derivatives(value, theta, 1e-4)
    np.testing.assert_allclose(sum(part.gradient for part in parts), gradient, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(sum(part.information for part in parts), -hessian, rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize("family", ["bernoulli", "poisson"])
def test_other_sums_are_those_of_the_integral(family):
    x, y = federation(family, clients=1, seed=4)[0]
    layout, theta = EffectsLayout(3, (0,), False), np.array([0.2, 0.5, -0.4, 0.9])
    design = np.column_stack([np.ones(len(x)), x])

    def value(t):
        def joint(v):
            eta = design @ t[:3] + t[3] * v
            return np.exp(np.sum(FAMILIES[family].terms(eta[:, None], y).log_likelihood)) * stats.norm.pdf(v)

        return np.log(integrate.quad(joint, -9, 9, epsabs=0, epsrel=1e-12, limit=200)[0])

    part, effect = client_sums(rows_of(x, y), theta, FAMILIES[family], layout, 25)
    assert part.log_likelihood == pytest.approx(value(theta), abs=1e-6)
    np.testing.assert_allclose(part.gradient, derivatives(value, theta, 1e-3)[0], atol=1e-4)
    assert effect.covariance.shape == (1, 1) and 0 < effect.covariance[0, 0] < 0.81


@pytest.mark.deep(after="tests/glm/test_hierarchical.py")
@pytest.mark.parametrize("random", [["(intercept)"], ["(intercept)", "x1"]])
def test_the_maximum_is_that_of_the_marginal_likelihood(random):
    pairs, columns = federation("gaussian"), (0, 1)[: len(random)]
    result = glm.fit_hierarchical(pairs, random=random, restricted=False)
    best = optimize.minimize(
        lambda t: -gaussian_marginal(pairs, t, columns), result.parameters + 0.05, method="BFGS", options={"gtol": 1e-6}
    )
    assert result.posterior.log_likelihood >= -best.fun - 1e-8
    np.testing.assert_allclose(result.posterior.mean, best.x[:3], atol=1e-4)


@pytest.mark.parametrize("family", ["gaussian", "bernoulli", "poisson"])
def test_it_finds_what_made_the_data(family):
    """Each within 4 standard deviations: an error rate of 2e-4, seeded."""
    result = glm.fit_hierarchical(federation(family, clients=150), family)
    posterior = result.posterior
    assert np.all(np.abs(posterior.mean - [0.3, 0.7, -0.5]) < 4 * posterior.stddev)
    assert abs(abs(result.parameters[3]) - 0.8) < 4 * np.sqrt(result.covariance[3, 3])
    if family == "gaussian":
        assert np.sqrt(posterior.dispersion) == pytest.approx(0.6, rel=0.1)


def test_no_difference_between_clients_is_a_variance_of_0():
    pairs = federation("gaussian", clients=60, between=0.0, seed=2)
    result, pooled = glm.fit_hierarchical(pairs), glm.fit(pairs)
    assert result.between_stddev[0] < 0.15
    assert any("between clients is 0" in warning for warning in result.posterior.warnings)
    assert not glm.fit_hierarchical(federation("gaussian", clients=60)).posterior.warnings
    np.testing.assert_allclose(result.posterior.mean, pooled.mean, atol=0.02)


def test_small_clients_are_drawn_to_the_typical_one():
    pairs = federation("gaussian", clients=30)
    result = glm.fit_hierarchical(pairs)
    residual = np.array([np.mean(y - np.column_stack([np.ones(len(x)), x]) @ result.posterior.mean) for x, y in pairs])
    sizes = np.array([len(y) for _, y in pairs])
    shrunk = np.array([effect.mean[0] for effect in result.effects]) / residual
    exact = result.between[0, 0] / (result.between[0, 0] + result.posterior.dispersion / sizes)
    np.testing.assert_allclose(shrunk, exact, rtol=1e-6)


def test_predictions_for_a_client_have_the_variance_of_the_joint_normal():
    """Given the variances, (b, u) of Gaussian outcomes are jointly normal."""
    pairs = federation("gaussian", clients=6, most=14, seed=5)
    result = glm.fit_hierarchical(pairs, random=["(intercept)", "x1"])
    dispersion, between = result.posterior.dispersion, result.between
    blocks, sizes = [np.column_stack([np.ones(len(x)), x]) for x, _ in pairs], 3 + 2 * 6
    # u = root v with standard normal v: the covariance between clients may be singular.
    values, vectors = np.linalg.eigh(between)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    information = np.zeros((sizes, sizes))
    for k, design in enumerate(blocks):
        whole = np.zeros((len(design), sizes))
        whole[:, :3], whole[:, 3 + 2 * k : 5 + 2 * k] = design, design[:, :2] @ root
        information += whole.T @ whole / dispersion
        information[3 + 2 * k : 5 + 2 * k, 3 + 2 * k : 5 + 2 * k] += np.eye(2)
    covariance = np.linalg.inv(information)
    x = np.array([[0.5, -1.0]])
    row = np.zeros(sizes)
    row[:3], row[3 + 2 * 2 : 5 + 2 * 2] = [1, 0.5, -1.0], root.T @ [1, 0.5]
    exact = np.sqrt(row @ covariance @ row)
    # The uncertainty of the variances is in the posterior of b too.
    assert result.linear_predictor(x, 2)[1][0] == pytest.approx(exact, rel=0.03)
    own, shared, u = result.effects[2], result.posterior, np.array([1.0, 0.5])
    apart = np.sqrt(shared.linear_predictor(x)[1][0] ** 2 + u @ own.covariance @ u)
    assert apart > 1.1 * exact


def test_one_row_of_each_client_is_one_sentence():
    pairs = [(x[:1], y[:1]) for x, y in federation("gaussian", clients=30)]
    refuses("do not determine how coefficients differ between clients", glm.fit_hierarchical, pairs)


def test_predictions_for_a_client_of_the_fit_and_for_a_new_one():
    pairs = federation("bernoulli", clients=60)
    result = glm.fit_hierarchical(pairs, "bernoulli")
    x = np.zeros((1, 2))
    extreme = int(np.argmax([effect.mean[0] for effect in result.effects]))
    known, new = result.linear_predictor(x, extreme), result.linear_predictor(x)
    assert known[0][0] > new[0][0] + 0.3 and known[1][0] < new[1][0]
    assert result.predict(x, extreme)[0] > result.predict(x)[0]
    refuses("There is no client 60", result.predict, x, 60)


@pytest.mark.parametrize(
    ("clients", "options", "message"),
    [
        (1, {}, "needs at least two|need at least two"),
        (3, {"random": "x1"}, "random must be a list"),
        (3, {"random": []}, "random must be a list"),
        (3, {"random": ["x9"]}, "There is no coefficient 'x9'"),
        (3, {"family": "cox"}, "There is no family of a hierarchical model 'cox'"),
        (3, {"between_stddev": 0.0}, "between_stddev"),
    ],
)
def test_bad_input_is_one_sentence(clients, options, message):
    refuses(message, glm.fit_hierarchical, federation("gaussian", clients=clients, most=30), **options)


def test_few_clients_are_warned_of():
    result = glm.fit_hierarchical(federation("gaussian", clients=4, most=30, seed=1))
    assert any("4 clients determine the variance" in warning for warning in result.posterior.warnings)


@pytest.mark.parametrize("scale", [1e-9, 1e9])
@pytest.mark.parametrize("family", ["gaussian", "bernoulli"])
def test_the_units_of_columns_are_arbitrary(family, scale):
    """A fit in other units is that of scaled columns, transformed back."""
    pairs, options = federation(family), {"random": ["(intercept)", "a"], "names": ["a", "b"]}
    units = np.array([scale, 1 / scale])
    found = glm.fit_hierarchical([(x * units, y) for x, y in pairs], family, **options)
    wanted, factors = glm.fit_hierarchical(pairs, family, **options), np.array([1.0, *units])
    distance = (found.posterior.mean * factors - wanted.posterior.mean) / wanted.posterior.stddev
    np.testing.assert_allclose(distance, 0, atol=1e-6)
    np.testing.assert_allclose(found.posterior.stddev * factors, wanted.posterior.stddev, rtol=1e-5)
    np.testing.assert_allclose(found.between_stddev * factors[:2], wanted.between_stddev, rtol=1e-6)
    rows = pairs[0][0]
    for client in (0, None):
        for ours, theirs in zip(found.linear_predictor(rows * units, client), wanted.linear_predictor(rows, client)):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
        if family == "gaussian":
            np.testing.assert_allclose(
                found.degrees_at(rows * units, client), wanted.degrees_at(rows, client), rtol=1e-3
            )
