"""The fits of R by `reference.R`, where R and its packages MASS, survival, lme4 and nnet are installed."""

import pathlib
import shutil
import subprocess

import numpy as np
import pytest

from tfp_bfl import glm

PROGRAM = pathlib.Path(__file__).with_name("reference.R")


@pytest.fixture(scope="session")
def of_r(tmp_path_factory):
    """Return a function from a model's name to the columns of its rows and the numbers of R."""
    if not shutil.which("Rscript"):
        pytest.skip("R is not installed: apt-get install r-base-core r-cran-lme4 r-cran-survival r-cran-mass.")
    folder = tmp_path_factory.mktemp("r")
    done = subprocess.run(["Rscript", PROGRAM, folder], capture_output=True, text=True)
    if "there is no package called" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr

    def read(name):
        table = np.genfromtxt(folder / f"{name}.csv", delimiter=",", names=True, deletechars="")
        return {key.strip('"'): table[key] for key in table.dtype.names}, np.loadtxt(folder / f"{name}.txt")

    return read


def dealt(columns, outcome, clients=3):
    """Deal rows to clients in turn: (features, outcome) of each, and a function that deals other columns."""
    features = np.stack([x for name, x in columns.items() if name not in (*outcome, "client", "inst")], 1)
    values = np.stack([columns[name] for name in outcome], 1)
    owner = columns["client"] if "client" in columns else np.arange(len(values)) % clients
    deal = lambda x: [x[owner == k] for k in np.unique(owner)]
    return list(zip(deal(features), deal(values if len(outcome) > 1 else values[:, 0]))), deal


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize(
    ("name", "outcome"), [("gaussian", "medv"), ("bernoulli", "low"), ("poisson", "Days"), ("multinomial", "race")]
)
def test_linear_models(of_r, name, outcome, secure):
    columns, expected = of_r(name)
    clients, _ = dealt(columns, [outcome])
    found = glm.fit(clients, name, secure_sums=secure)
    p = len(found.mean)
    if name == "multinomial":  # Coefficients of R come class by class, and with its optimizer's error.
        np.testing.assert_allclose(found.mean, expected[:p].reshape(-1, 2).ravel(), atol=2e-5)
        assert found.log_likelihood == pytest.approx(expected[-1], rel=1e-9)
        return
    np.testing.assert_allclose(found.mean, expected[:p], rtol=1e-6)
    scale = np.outer(found.stddev, found.stddev)
    np.testing.assert_allclose(found.covariance / scale, expected[p:-1].reshape(p, p) / scale, atol=1e-6)
    assert (found.dispersion if name == "gaussian" else found.log_likelihood) == pytest.approx(expected[-1], rel=1e-6)


@pytest.mark.parametrize(("family", "outcome"), [("gamma", "medv"), ("negative_binomial", "Days"), ("ordinal", "Sat")])
def test_further_parameters(of_r, family, outcome):
    columns, expected = of_r(family)
    weights = columns.pop("Freq", None)
    clients, deal = dealt(columns, [outcome])
    found = glm.fit(clients, family, weights=None if weights is None else deal(weights))
    p = len(found.mean) - (family == "negative_binomial")
    np.testing.assert_allclose(found.mean[:p], expected[:p], rtol=1e-6)
    scale = np.outer(found.stddev, found.stddev)[:p, :p]
    np.testing.assert_allclose(found.covariance[:p, :p] / scale, expected[p:][: p * p].reshape(p, p) / scale, atol=1e-6)
    last = {"gamma": [found.dispersion], "negative_binomial": [found.mean[-1], found.stddev[-1], found.log_likelihood]}
    rest = expected[p + p * p :]
    np.testing.assert_allclose(last.get(family, [found.log_likelihood]), rest, rtol=1e-6)


@pytest.mark.parametrize(
    ("option", "family", "outcome", "column"),
    [
        ("trials", "bernoulli", "ncases", "all"),
        ("weights", "bernoulli", "died", "Freq"),
        ("offset", "poisson", "Claims", "along"),
    ],
)
def test_weights_trials_and_offsets(of_r, option, family, outcome, column):
    columns, expected = of_r(option)
    beside = columns.pop(column)
    clients, deal = dealt(columns, [outcome])
    found = glm.fit(clients, family, **{option: deal(beside)})
    p = len(found.mean)
    np.testing.assert_allclose(found.mean, expected[:p], rtol=1e-6)
    np.testing.assert_allclose(found.covariance.ravel(), expected[p:], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("stratified", [False, True])
def test_cox(of_r, stratified):
    columns, expected = of_r("stratified" if stratified else "cox")
    if stratified:
        columns["client"] = columns["inst"]
    clients, _ = dealt(columns, ["time", "status"])
    found = glm.fit(clients, "cox", stratified=stratified)
    np.testing.assert_allclose(found.mean, expected[:3], rtol=1e-6)
    np.testing.assert_allclose(found.covariance, expected[3:].reshape(3, 3), rtol=1e-6, atol=1e-9)


def test_robust_variances_of_cox(of_r):
    columns, expected = of_r("robust")
    columns["client"] = columns["inst"]
    clients, _ = dealt(columns, ["time", "status"])
    for unit, of_unit in zip(("rows", "clients"), expected.reshape(2, 3, 3)):
        np.testing.assert_allclose(glm.fit(clients, "cox", robust=unit).covariance, of_unit, rtol=1e-6, atol=1e-12)
    found = glm.fit(clients, "cox", robust="clients", stratified=True, secure_sums=True)
    np.testing.assert_allclose(found.covariance.ravel(), of_r("robust_strata")[1], rtol=1e-6, atol=1e-12)
    columns, expected = of_r("robust_entries")
    found = glm.fit(dealt(columns, ["time", "event", "entry"])[0], "cox", robust="clients")
    np.testing.assert_allclose(found.covariance.ravel(), expected, rtol=1e-6, atol=1e-12)


def test_curves_and_log_rank(of_r):
    columns, expected = of_r("curve")
    clients, deal = dealt(columns, ["time", "status"])
    outcomes = [outcome for _, outcome in clients]
    curve = glm.kaplan_meier(outcomes).curves["all"]
    at = curve.events > 0
    found = [curve.survival[at], curve.stddev[at], curve.low[at], curve.high[at]]
    np.testing.assert_allclose(np.concatenate(found), expected, rtol=1e-9)
    for name, strata in (("log_rank", None), ("stratified_log_rank", deal(columns["inst"]))):
        test, of_test = glm.log_rank(outcomes, deal(columns["sex"]), strata=strata), of_r(name)[1]
        np.testing.assert_allclose([test.statistic, *test.expected], of_test, rtol=1e-9)


def test_rows_that_enter_later(of_r):
    columns, expected = of_r("entries")
    clients, _ = dealt(columns, ["time", "event", "entry"])
    found = glm.fit(clients, "cox")
    np.testing.assert_allclose(found.mean, expected[:4], rtol=1e-6)
    np.testing.assert_allclose(found.covariance, expected[4:].reshape(4, 4), rtol=1e-6, atol=1e-9)
    curve = glm.kaplan_meier([outcome for _, outcome in clients]).curves["all"]
    at = curve.events > 0
    found = np.concatenate([curve.survival[at], curve.stddev[at], curve.at_risk[at]])
    np.testing.assert_allclose(found, of_r("entries_curve")[1], rtol=1e-9)


def test_random_effects(of_r):
    for name, random in (("intercepts", ["(intercept)"]), ("slopes", ["(intercept)", "Days"]), ("likelihood", None)):
        columns, expected = of_r(name)
        clients, _ = dealt(columns, ["Reaction"])
        options = {"random": random} if random else {"restricted": False}
        found = glm.fit_hierarchical(clients, names=["Days"], **options)
        numbers = [*found.posterior.mean, *found.between.ravel(), found.posterior.dispersion]
        np.testing.assert_allclose(numbers, expected[: len(numbers)], rtol=1e-4)
        if name == "likelihood":
            assert found.posterior.log_likelihood == pytest.approx(expected[-1], rel=1e-8)
    columns, expected = of_r("herds")
    found = glm.fit_hierarchical(dealt(columns, ["sick"])[0], "bernoulli")
    np.testing.assert_allclose([*found.posterior.mean, found.between[0, 0]], expected, rtol=1e-4)
