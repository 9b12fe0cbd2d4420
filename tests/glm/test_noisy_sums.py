"""Linear models from noisy sums: the noise is as large as privacy requires, and the intervals include it."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

import tfp_bfl as bfl
from tests.kit import refuses
from tfp_bfl import glm
from tfp_bfl.app.cli import cli
from tfp_bfl.glm import noisy_sums as private
from tfp_bfl.glm.posterior import Model, RowPrivacy
from tfp_bfl.glm.rows import Rows
from tfp_bfl.glm.sums import pack

BOUNDS = {"treated": (0, 1), "age": (0, 10), "outcome": (-10, 30)}
NAMES = ["treated", "age"]
TRUE = np.array([3.0, 2.0, 1.0])


def rows(count=1000, seed=0, clients=4):
    rng = np.random.default_rng(seed)
    x = np.column_stack([rng.uniform(size=count) < 0.4, rng.uniform(0, 10, count)])
    y = TRUE[0] + x @ TRUE[1:] + 4 * rng.normal(size=count)
    return [(x[k::clients], y[k::clients]) for k in range(clients)]


def private_fit(clients, epsilon=1.0, seed=0, **options):
    return glm.fit(clients, names=NAMES, epsilon=epsilon, bounds=BOUNDS, seed=seed, **options)


@pytest.fixture
def short_chain(monkeypatch):
    monkeypatch.setattr(private, "_DRAWS", 600)
    monkeypatch.setattr(private, "_BEFORE", 100)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-6), (1.0, 1e-5), (3.0, 1e-5), (10.0, 1e-3)])
def test_the_noise_has_the_epsilon_of_another_accountant(epsilon, delta):
    """Its privacy loss distribution is discrete, and above the exact one by less than a thousandth."""
    pytest.importorskip("dp_accounting")
    found = bfl.privacy.epsilon(private.noise_multiplier(epsilon, delta), 1, 1, 1, delta)
    assert epsilon * (1 - 1e-6) < found < 1.002 * epsilon + 1e-3


@pytest.mark.parametrize("size", [1, 2, 5])
def test_no_row_changes_the_sums_by_more_than_the_noise_is_for(size):
    rng = np.random.default_rng(size)
    middle, half = rng.normal(size=size), rng.uniform(0.1, 5, size)
    largest = np.sqrt((size + 1) * (size + 2) / 2)
    x = np.concatenate([100 * rng.normal(size=(200, size)), middle + half * rng.uniform(-1, 1, (200, size))])
    given = Rows(np.column_stack([np.ones(400), x[:, :-1]]), x[:, -1], np.zeros(400))
    z = private._within(given, middle, half)
    z = np.column_stack([z.design, z.outcome])
    changes = np.linalg.norm(np.einsum("ij,ik->ijk", z, z)[:, *np.triu_indices(size + 1)], axis=1)
    assert np.max(changes) == pytest.approx(largest) and np.min(changes) < largest
    privacy = RowPrivacy(1.0, 1e-5, dict.fromkeys(map(str, range(size)), (0, 1)))
    assert private.noise_of(privacy) == pytest.approx(3.730632 * largest)


def test_each_sum_has_the_noise(monkeypatch):
    """Draw it with 300 seeds: its standard deviation is right to five standard errors, which are 4 %."""
    found = []
    monkeypatch.setattr(private, "_DRAWS", 10)

    def caught(noisy, noise, size, rng):
        found.append((noisy, noise))
        return np.tile(private._start(noisy, size), (10, 1))

    monkeypatch.setattr(private, "_sums", caught)
    clients = rows()
    for seed in range(300):
        private_fit(clients, seed=seed)
    z = np.concatenate([np.column_stack([np.ones(len(x)), x, y]) for x, y in clients])
    middle, half = np.array([0, 0.5, 5, 10]), np.array([1, 0.5, 5, 20])
    z = np.clip((z - middle) / half, -1, 1)
    noises = (np.stack([noisy for noisy, _ in found]) - (z.T @ z)[np.triu_indices(4)]) / found[0][1]
    assert np.abs(noises.std(0) - 1).max() < 5 * 0.041 and np.abs(noises.mean(0)).max() < 5 * 0.058


@pytest.mark.statistical
@pytest.mark.parametrize("options", [{}, {"prior_stddev": 0.2}, {"dispersion": 16.0}], ids=str)
def test_without_noise_it_is_the_posterior(options):
    """By 4,000 draws: means to a tenth of a standard deviation, which are right to a tenth, at six standard errors."""
    clients = rows()
    found, exact = private_fit(clients, 1e9, **options), glm.fit(clients, names=NAMES, **options)
    assert np.abs(found.mean - exact.mean).max() < 0.12 * exact.stddev.min() + 0.12 * exact.stddev.max()
    np.testing.assert_allclose(found.mean, exact.mean, atol=0.12 * exact.stddev.max())
    np.testing.assert_allclose(found.stddev, exact.stddev, rtol=0.1)
    correlation = lambda p: p.covariance / np.outer(p.stddev, p.stddev)
    np.testing.assert_allclose(correlation(found), correlation(exact), atol=0.1)
    assert found.count == exact.count and found.dispersion == pytest.approx(exact.dispersion, rel=0.02)


def test_how_rows_lie_and_masks_change_nothing(short_chain):
    clients = rows()
    one = private_fit([tuple(np.concatenate(part) for part in zip(*clients))])
    for found in (private_fit(clients), private_fit(clients, secure_sums=True)):
        np.testing.assert_allclose(pack(found.mean, found.covariance), pack(one.mean, one.covariance), rtol=1e-5)
    assert found.num_clients == 4 and found.messages == 1 and found.sums is None


def test_without_a_seed_each_fit_has_other_noise(short_chain):
    clients = rows(200)
    assert not np.allclose(private_fit(clients, seed=None).mean, private_fit(clients, seed=None).mean)


def test_rows_beyond_the_bounds_are_cut(short_chain):
    clients = rows()
    far = [(x.copy(), y.copy()) for x, y in clients]
    far[0][1][0] = 1e9
    cut = [(x.copy(), y.copy()) for x, y in clients]
    cut[0][1][0] = 30
    np.testing.assert_array_equal(private_fit(far).mean, private_fit(cut).mean)


@pytest.mark.deep(after="tests/glm/test_noisy_sums.py")
@pytest.mark.statistical
def test_intervals_cover_and_those_without_the_noise_do_not(short_chain):
    """120 tables of 1,000 rows at epsilon 1: at least 91 % of 360 intervals of 95 % (three standard errors are 3.5 %);
    of those that take the noisy sums for the sums at most 80 %, here 60 %.
    """
    covered, naive = [], []
    for seed in range(120):
        clients = rows(seed=[1, seed])
        found = private_fit(clients, seed=seed)
        exact = glm.fit(clients, names=NAMES)
        low, high = found.interval().T
        covered += [*((low <= TRUE) & (high >= TRUE))]
        naive += [*(np.abs(found.mean - TRUE) < 1.96 * exact.stddev)]
    assert 0.91 < np.mean(covered) < 0.99 and np.mean(naive) < 0.8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bounds": None}, "^bounds lacks treated, age, outcome: give the least and the largest value of treated"),
        ({"bounds": {**BOUNDS, "x": (0, 1)}}, "^bounds names 'x': give"),
        (
            {"bounds": {**BOUNDS, "age": (10, 0)}},
            "^The bounds of age are 10 and 0, but must be two numbers in ascending",
        ),
        ({"bounds": {**BOUNDS, "age": (0, np.inf)}}, "^The bounds of age are 0 and inf"),
        ({"epsilon": 0.0}, "^epsilon is 0.0, but must be"),
        ({"delta": 1.0}, "^delta is 1.0, but must be at least"),
        ({"epsilon": None}, "^bounds is for differential privacy: give epsilon too"),
        ({"epsilon": None, "bounds": None, "delta": 1e-5}, "^delta is for differential privacy"),
        ({"family": "poisson"}, "^epsilon is for the family 'gaussian', but the family is 'poisson'"),
    ],
)
def test_bad_input_is_refused(options, message):
    clients = [(x, np.abs(np.round(y))) for x, y in rows(40)]
    refuses(message, glm.fit, clients, names=NAMES, **{"epsilon": 1.0, "bounds": BOUNDS, **options})


def test_the_prior_counts(short_chain):
    found = private_fit(rows(), prior_stddev=0.01)
    assert np.all(np.abs(found.mean) < 0.1) and np.all(found.stddev < 0.011)
    assert Model("gaussian").precision(found.names).tolist() == [0, 0, 0]


def test_the_command(short_chain, tmp_path):
    invoke = lambda *arguments: CliRunner().invoke(cli, [*map(str, arguments)])
    table = tmp_path / "trial.csv"
    lines = ["hospital,arm,age,pressure"]
    for k, (x, y) in enumerate(rows(400)):
        lines += [f"h{k},{'drug' if t else 'none'},{age:.2f},{p:.2f}" for (t, age), p in zip(x, y)]
    table.write_text("\n".join([*lines, "h0,drug,,5"]) + "\n")
    given = ["glm", table, "--outcome", "pressure", "--client-column", "hospital", "--epsilon", 1]
    shown = invoke(*given, "--bounds", "age=0:10,pressure=-10:30", "--output", tmp_path / "out").output
    assert "Differential privacy of each row: epsilon 1, delta 1e-05. Each sum" in shown
    assert "row left out" not in shown  # A number of rows without noise.
    record = json.loads((tmp_path / "out" / "posterior.json").read_text())
    assert record["privacy"]["epsilon"] == 1 and "sums" not in record and record["rows"] != 400
    assert "Coefficients of the clients" not in (tmp_path / "out" / "report.html").read_text()
    for more, message in (
        (["--bounds", "age"], "--bounds has 'age', but must have NAME=LEAST:LARGEST"),
        (["--missing", "indicate"], "--missing indicate takes means from the rows"),
        (["--family", "poisson"], "--epsilon is for the family gaussian without --random"),
    ):
        assert message in str(invoke(*given, *more).exception)
    assert "give --epsilon too" in str(invoke(*given[:-2], "--delta", "1e-5").exception)
