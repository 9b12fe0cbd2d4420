"""Contrasts of coefficients and the joint Wald test, against R 4.2 and closed forms."""

import numpy as np
import pytest
from scipy import stats

from tests.kit import refuses
from tfp_bfl import glm

number = np.arange(30)
features = np.stack([number % 5, (number * number) % 7], 1).astype(float)
linear = 1 + 0.5 * features[:, 0] - 0.3 * features[:, 1] + np.sin(number)
binary = ((number * 7) % 10 < 3 + features[:, 0]).astype(float)


def fitted(outcome, family):
    clients = [(features[number % 3 == k], outcome[number % 3 == k]) for k in range(3)]
    return glm.fit(clients, family, names=["a", "b"])


def test_linear_regression_as_r_has_it():
    # lm(y ~ x1 + x2): c' coef(fit), sqrt(c' vcov(fit) c), qt(.975, 27); anova(lm(y ~ 1), fit).
    posterior = fitted(linear, "gaussian")
    expected = [4.3036770959394728, 0.89039802419040648, 2.4767312580918457, 6.1306229337870999]
    for weights in ({"a": 10, "b": 1}, np.array([0, 10, 1])):
        np.testing.assert_allclose([*posterior.contrast(weights).values()], expected, rtol=1e-9)
    test = posterior.wald_test(["a", "b"])
    assert (test["df"], test["df_residual"]) == (2, 27)
    np.testing.assert_allclose([test["statistic"], test["p"]], [26.1862782732541, 4.76278344899629e-07], rtol=1e-9)


def test_logistic_regression_as_r_has_it():
    # glm(z ~ x1 + x2, binomial, epsilon = 1e-14), qnorm(.975); b' vcov^-1 b and pchisq.
    posterior = fitted(binary, "bernoulli")
    found = posterior.contrast({"a": 2, "b": -1})
    expected = [-0.72236717891600288, 0.66419267372922675, -2.02416089822065, 0.57942654038864405]
    np.testing.assert_allclose([found[x] for x in ("mean", "sd", "low", "high")], expected, rtol=1e-6)
    ratios = [found[x] for x in ("odds ratio", "odds ratio, low", "odds ratio, high")]
    np.testing.assert_allclose(ratios, np.exp(np.take(expected, [0, 2, 3])), rtol=1e-6)
    assert posterior.contrast({"(intercept)": 1, "a": 1})["odds ratio"] is None
    test = posterior.wald_test(["b", "a"])
    assert (test["df"], test["df_residual"]) == (2, np.inf)
    np.testing.assert_allclose([test["statistic"], test["p"]], [4.2276556388536051, 0.12077477645955459], rtol=1e-6)


def test_one_coefficient_is_its_row_of_the_table_also_with_random_effects():
    clients = [(features[number % 5 == k][:, 1:], linear[number % 5 == k] + k) for k in range(5)]
    for posterior in (fitted(linear, "gaussian"), glm.fit_hierarchical(clients, names=["b"]).posterior):
        row = posterior.table(0.9)[-1]
        np.testing.assert_allclose([*posterior.contrast({"b": 1}, 0.9).values()], [*row.values()][1:5], rtol=1e-9)
        test = posterior.wald_test(["b"])
        t = row["mean"] / row["sd"]
        assert test["p"] == pytest.approx(2 * stats.t(row["df"]).sf(abs(t)), rel=1e-9)
    refuses("joint test", posterior.wald_test, ["(intercept)", "b"])


def test_wrong_arguments_have_a_sentence():
    posterior = fitted(linear, "gaussian")
    refuses("no coefficient", posterior.contrast, {"dose": 1})
    refuses("finite numbers", posterior.contrast, {"a": "much"})
    refuses("finite", posterior.contrast, {"a": np.nan})
    refuses("3 finite numbers", posterior.contrast, np.ones(2))
    refuses("not all 0", posterior.contrast, {})
    refuses("level", posterior.contrast, {"a": 1}, 95)
    refuses("no coefficient", posterior.wald_test, ["dose"])
    for names in ("a", [], ["a", "a"]):
        refuses("list of different", posterior.wald_test, names)
