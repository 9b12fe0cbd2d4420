"""Variances between few clients: restricted maximum likelihood, and Student's t."""

import numpy as np
import pytest
from scipy import stats

from tests.glm.test_hierarchical import federation, gaussian_marginal
from tfp_bfl import glm
from tfp_bfl.glm.effects import Layout

SIZE = 8


def balanced(clients, seed=0):
    """A mean of 0, differences between clients with a standard deviation of 1, and residuals with 1."""
    rng = np.random.default_rng(seed)
    return [(np.zeros((SIZE, 0)), rng.normal() + rng.normal(size=SIZE)) for _ in range(clients)]


def with_columns(rng, clients):
    """The same with a column that differs within clients, one that differs between them only, and coefficients of 0."""
    pairs = []
    for _ in range(clients):
        x = np.column_stack([rng.normal(size=SIZE), np.full(SIZE, rng.normal())])
        pairs.append((x, rng.normal() + rng.normal(size=SIZE)))
    return pairs


@pytest.mark.parametrize("clients", [3, 6])
def test_a_balanced_design_has_the_variances_of_the_analysis_of_variance(clients):
    pairs = balanced(clients)
    y = np.stack([outcome for _, outcome in pairs])
    between = SIZE * np.var(y.mean(1), ddof=1)
    within = np.mean(np.var(y, axis=1, ddof=1))
    result, likelihood = glm.fit_hierarchical(pairs), glm.fit_hierarchical(pairs, restricted=False)
    assert result.between[0, 0] == pytest.approx((between - within) / SIZE, rel=1e-5)
    assert likelihood.between[0, 0] == pytest.approx((between * (1 - 1 / clients) - within) / SIZE, rel=1e-5)
    assert result.posterior.dispersion == pytest.approx(within, rel=1e-5)
    # The interval of the mean is that of Student's t with K - 1 degrees of freedom.
    half = stats.t(clients - 1).ppf(0.975) * np.sqrt(between / (SIZE * clients))
    mean = y.mean()
    np.testing.assert_allclose(result.posterior.interval()[0], [mean - half, mean + half], rtol=1e-4)


@pytest.mark.parametrize("random", [["(intercept)"], ["(intercept)", "x1"]])
def test_the_maximum_is_that_of_the_restricted_likelihood(random):
    pairs, columns = federation("gaussian", clients=8), (0, 1)[: len(random)]
    result, layout = glm.fit_hierarchical(pairs, random=random), Layout(3, (0, 1)[: len(random)], True)

    def value(parameters):
        information, factor = np.zeros((3, 3)), layout.factor(parameters)
        for x, _ in pairs:
            design = np.column_stack([np.ones(len(x)), x])
            root = design[:, columns] @ factor
            variance = root @ root.T + np.exp(2 * parameters[-1]) * np.eye(len(x))
            information += design.T @ np.linalg.solve(variance, design)
        return gaussian_marginal(pairs, parameters, columns) - 0.5 * np.linalg.slogdet(information)[1]

    assert result.posterior.log_likelihood == pytest.approx(gaussian_marginal(pairs, result.parameters, columns))
    best, step = value(result.parameters), 1e-3 * np.eye(layout.size)
    # The coefficients maximise the likelihood for these variances, on which the determinant alone depends.
    assert all(value(result.parameters + sign * s) < best for s in step for sign in (1, -1))


@pytest.mark.deep(after="tests/glm/test_few_clients.py")
@pytest.mark.statistical
@pytest.mark.parametrize("clients", [5, 10])
def test_intervals_of_few_clients_have_their_coverage(clients, repetitions=600):
    """Coverage of 95 % intervals within 3.5 standard deviations of 600 repetitions (error rate 5e-4 each)."""
    rng, covered, variances = np.random.default_rng(clients), [], []
    for _ in range(repetitions):
        result = glm.fit_hierarchical(with_columns(rng, clients))
        low, high = result.posterior.interval().T
        covered.append((low < 0) & (high > 0))
        variances.append(result.between[0, 0])
    error = 3.5 * np.sqrt(0.95 * 0.05 / repetitions)
    assert np.all(np.mean(covered, 0) > 0.95 - error)
    assert abs(np.mean(variances) - 1) < 3.5 * np.std(variances) / np.sqrt(repetitions) + 0.02


@pytest.mark.parametrize("family", ["bernoulli", "poisson"])
def test_restricted_is_for_gaussian_outcomes(family):
    with pytest.raises(ValueError, match="restricted is for the family 'gaussian'"):
        glm.fit_hierarchical(federation(family, clients=3), family, restricted=True)


def test_second_order_is_of_the_likelihood_that_is_not_restricted():
    pairs = federation("gaussian", clients=12)
    first, second = (glm.fit_hierarchical(pairs, restricted=x, second_order=True) for x in (None, False))
    np.testing.assert_array_equal(first.posterior.mean, second.posterior.mean)
    assert first.posterior.degrees_of_freedom is None
    with pytest.raises(ValueError, match="second_order integrates the coefficients out already"):
        glm.fit_hierarchical(pairs, restricted=True, second_order=True)
