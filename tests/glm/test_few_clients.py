"""Variances between few clients: restricted maximum likelihood, and Student's t."""

import csv

import numpy as np
import pytest
from scipy import stats

from tests.glm.test_command import output_of
from tests.glm.test_hierarchical import federation, gaussian_marginal
from tfp_bfl import glm
from tfp_bfl.glm.effects import EffectsLayout

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


@pytest.mark.parametrize("shift", [0.0, 10.0])
def test_degrees_of_freedom_are_those_of_the_row(shift):
    """At the mean of a column that lies in each client alike they are K - 1, where the intercept's may be more."""
    clients, x = 5, np.linspace(-1, 1, SIZE)[:, np.newaxis] + shift
    pairs = [(x, outcome) for _, outcome in balanced(clients)]
    result = glm.fit_hierarchical(pairs)
    np.testing.assert_allclose(result.posterior.degrees_at([[shift]]), clients - 1, rtol=1e-3)
    known = [result.degrees_at([[shift]], client)[0] for client in range(clients)]
    np.testing.assert_allclose(known, clients - 1, rtol=1e-3)
    at_zero = result.posterior.degrees_at(np.zeros((1, 1)))
    np.testing.assert_allclose(at_zero, result.posterior.degrees_of_freedom[:1], rtol=1e-12)
    assert (at_zero[0] > 2 * clients) == (shift > 0)


def test_degrees_of_freedom_of_a_new_client_count_the_variance_between_clients():
    """Those of Satterthwaite for a combination of the two mean squares of a balanced design."""
    clients = 6
    pairs = balanced(clients)
    y = np.stack([outcome for _, outcome in pairs])
    between, within = SIZE * np.var(y.mean(1), ddof=1), np.mean(np.var(y, axis=1, ddof=1))
    parts = np.array([(1 + 1 / clients) / SIZE * between, -within / SIZE])
    want = np.sum(parts) ** 2 / np.sum(parts**2 / [clients - 1, clients * (SIZE - 1)])
    found = glm.fit_hierarchical(pairs).degrees_at(np.zeros((1, 0)))
    np.testing.assert_allclose(found, want, rtol=1e-3)


@pytest.mark.parametrize("random", [[], ["--random", "(intercept)"]])
def test_files_of_coefficients_and_predictions_agree(tmp_path, random):
    """The row of zeros has the interval of the intercept, and both files its degrees of freedom."""
    pairs = enumerate(with_columns(np.random.default_rng(3), 5))
    lines = [f"{k},{y[i]},{x[i, 0]}" for k, (x, y) in pairs for i in range(SIZE)]
    (tmp_path / "rows.csv").write_text("\n".join(["client,y,x", *lines]))
    (tmp_path / "new.csv").write_text("client,x\nnone,0\n")
    given = ["--outcome", "y", "--client-column", "client", "--predict", tmp_path / "new.csv", *random]
    output_of(tmp_path / "rows.csv", *given, "--output", tmp_path / "fit")
    files = (tmp_path / "fit" / f"{name}.csv" for name in ("coefficients", "predictions"))
    intercept, row = (next(csv.DictReader(path.open())) for path in files)
    degrees = float(row["df"])
    half = stats.t(degrees).ppf(0.975) * float(row["sd"])
    assert float(row["to"]) - float(row["mean"]) == pytest.approx(half)
    if random:  # A new client adds the differences between clients.
        assert half > float(intercept["to"]) - float(intercept["mean"]) and degrees < 5
    else:
        assert [float(row[name]) for name in ("95 % from", "to", "df")] == pytest.approx(
            [float(intercept[name]) for name in ("95 % from", "to", "df")]
        )


def test_a_variance_of_0_says_that_intervals_may_be_too_narrow():
    rng = np.random.default_rng(0)
    result = glm.fit_hierarchical([(np.zeros((SIZE, 0)), (y := rng.normal(size=SIZE)) - y.mean()) for _ in range(8)])
    assert any("intervals may be too narrow" in warning for warning in result.posterior.warnings)


@pytest.mark.parametrize("random", [["(intercept)"], ["(intercept)", "x1"]])
def test_the_maximum_is_that_of_the_restricted_likelihood(random):
    pairs, columns = federation("gaussian", clients=8), (0, 1)[: len(random)]
    result, layout = glm.fit_hierarchical(pairs, random=random), EffectsLayout(3, (0, 1)[: len(random)], True)

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
