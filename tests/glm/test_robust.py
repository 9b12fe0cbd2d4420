"""Robust variances, of rows and of clients: in closed form, by differences and by coverage."""

import numpy as np
import pytest
from click.testing import CliRunner
from scipy import special

from tests.glm.guarded import outcomes
from tests.kit import json_of, refuses
from tfp_bfl import glm
from tfp_bfl.app.cli import cli
from tfp_bfl.glm import cox
from tfp_bfl.glm.families import CANONICAL, FAMILIES
from tfp_bfl.glm.rows import Rows
from tfp_bfl.glm.sums import row_scores


def federation(family, clients=8, seed=0, count=200):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 2))
    eta = 0.3 + x @ [0.7, -0.5]
    y = rng.integers(3, size=count).astype(float) if family == "multinomial" else outcomes(rng, family, eta, noise=2)
    return [(x[k::clients], y[k::clients]) for k in range(clients)]


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("family", [*CANONICAL])
def test_it_is_the_sandwich(family, secure):
    """A^-1 M A^-1, with M in closed form; of one row in each client both units are the same."""
    clients = federation(family)
    plain = glm.fit(clients, family, prior_stddev=3.0)
    found = {
        unit: glm.fit(clients, family, prior_stddev=3.0, robust=unit, secure_sums=secure)
        for unit in ("rows", "clients")
    }
    scores = []
    for x, y in clients:
        design = np.column_stack([np.ones(len(x)), x])
        if family == "multinomial":
            eta = design @ plain.mean.reshape(3, 2)
            residual = (
                np.eye(3)[y.astype(int)][:, 1:] - special.softmax(np.column_stack([0 * eta[:, 0], eta]), 1)[:, 1:]
            )
        else:
            residual = ((y - FAMILIES[family].mean(design @ plain.mean)) / plain.dispersion)[:, np.newaxis]
        scores.append(np.einsum("ij,ia->ija", design, residual).reshape(len(x), -1))
    meat = {"rows": sum(g.T @ g for g in scores), "clients": sum(np.outer(g.sum(0), g.sum(0)) for g in scores)}
    for unit, one in found.items():
        np.testing.assert_allclose(one.covariance, plain.covariance @ meat[unit] @ plain.covariance, rtol=1e-6)
        np.testing.assert_allclose(one.mean, plain.mean, rtol=1e-9)
    single = [(x[i : i + 1], y[i : i + 1]) for x, y in clients for i in range(len(x))]
    np.testing.assert_allclose(
        glm.fit(single, family, prior_stddev=3.0, robust="clients").covariance, found["rows"].covariance, rtol=1e-6
    )
    assert found["rows"].messages == plain.messages + 1 and found["rows"].sums is None
    assert "robust sd" in found["rows"].table()[0] and "sd" in plain.table()[0]


@pytest.mark.parametrize("entries", [False, True])
def test_scores_of_cox_add_up_to_the_gradient(entries):
    """With ties; and a row's score is the derivative of the log likelihood by its weight's share in it."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(60, 2))
    time = np.ceil(5 * rng.exponential(size=60))
    columns = [time, rng.uniform(size=60) < 0.7, *([time * rng.uniform(0, 0.9, 60)] if entries else [])]
    rows, at = Rows(x, np.stack(columns, 1).astype(float), np.zeros(60)), np.array([0.4, -0.3])
    times = cox.event_times(rows)
    of_all = cox.risk_sums(rows, at, times)
    scores = cox.row_scores(rows, at, times, of_all)
    np.testing.assert_allclose(scores.sum(0), cox.partial_sums(of_all).gradient, rtol=1e-9, atol=1e-9)
    part = lambda places: Rows(*(field[places] for field in rows))
    halves = [cox.row_scores(part(p), at, times, of_all) for p in (slice(None, None, 2), slice(1, None, 2))]
    np.testing.assert_allclose(np.concatenate(halves), np.concatenate([scores[::2], scores[1::2]]), rtol=1e-12)


def test_scores_of_families_are_derivatives():
    rng = np.random.default_rng(0)
    design, at = np.column_stack([np.ones(5), rng.normal(size=(5, 1))]), np.array([0.2, -0.4])
    for family in ("gaussian", "bernoulli", "poisson"):
        rows = Rows(design, outcomes(rng, family, design @ at, noise=1), 0.1 * np.arange(5))
        value = lambda b, rows=rows, family=family: (
            FAMILIES[family].terms((rows.design @ b + rows.offset)[:, np.newaxis], rows.outcome).log_likelihood
        )
        steps = [(value(at + 1e-6 * e) - value(at - 1e-6 * e)) / 2e-6 for e in np.eye(2)]
        np.testing.assert_allclose(row_scores(rows, at, FAMILIES[family]), np.stack(steps, 1), rtol=1e-6, atol=1e-8)


@pytest.mark.statistical
def test_only_robust_intervals_cover_where_rows_of_a_client_depend():
    """300 federations of 50 clients with an effect of their own, which the model lacks: of 95 % intervals of a column
    between clients the robust ones contain the truth in .90 to .98 (standard error .013), others in less than .7.
    """
    covered = {None: [], "clients": []}
    for seed in range(300):
        rng = np.random.default_rng(seed)
        clients = [(np.full((10, 1), x), 1 + x + u + rng.normal(size=10)) for x, u in rng.normal(size=(50, 2))]
        for unit, of_unit in covered.items():
            low, high = glm.fit(clients, robust=unit).interval()[1]
            of_unit.append(low < 1 < high)
    assert 0.90 < np.mean(covered["clients"]) < 0.98 and np.mean(covered[None]) < 0.7


def test_few_clients_come_with_a_warning():
    assert any("from 8 clients is too small" in x for x in glm.fit(federation("gaussian"), robust="clients").warnings)
    assert not glm.fit(federation("gaussian", clients=25), robust="clients").warnings


def test_one_client_has_no_variance_between_clients():
    one = federation("gaussian", clients=1)
    refuses("^There is one client, but a robust variance by clients", glm.fit, one, robust="clients")
    assert np.all(glm.fit(one, robust="rows").stddev > 0.1)


def test_counts_that_vary_more_are_no_trouble_of_robust_intervals():
    clients = [(x, 3 * y) for x, y in federation("poisson")]
    assert "quasi-Poisson" in glm.fit(clients, "poisson").warnings[0]
    assert not glm.fit(clients, "poisson", robust="rows").warnings


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"robust": "hospital"}, "'hospital'.*rows"),
        ({"robust": "rows", "second_order": True}, "^robust and second_order are two covariances"),
        (
            {"robust": "rows", "epsilon": 1.0, "bounds": dict.fromkeys(("x1", "x2", "outcome"), (0, 1))},
            "second message",
        ),
    ],
)
def test_bad_input_is_refused(options, message):
    refuses(message, glm.fit, federation("gaussian"), **options)
    refuses(
        "robust and epsilon", glm.revise, glm.fit(federation("gaussian"), robust="rows"), add=federation("gaussian")
    )


def test_the_command(tmp_path):
    clients = federation("poisson")
    table = tmp_path / "counts.csv"
    rows = np.concatenate([np.column_stack([x, y, np.full(len(y), k)]) for k, (x, y) in enumerate(clients)])
    np.savetxt(table, rows, delimiter=",", header="age,dose,visits,site", comments="", fmt="%.17g")
    run = lambda *arguments: CliRunner().invoke(cli, ["glm", str(table), "--outcome", "visits", *map(str, arguments)])
    of = "--family", "poisson", "--client-column", "site", "--robust", "clients"
    expected = glm.fit(clients, "poisson", robust="clients", names=["age", "dose"])
    assert str(expected.table()) in run(*of, "--output", tmp_path / "fit").output
    assert json_of(tmp_path / "fit" / "posterior.json")["robust"] == "clients"
    own = glm.fit(clients[:1], "poisson")
    of_one = "<span>{:.4g}</span> <span>[{:.4g}, {:.4g}]</span>".format(
        own.mean[1], *own.interval()[1]
    )  # Alone, it has no robust one.
    page = (tmp_path / "fit" / "report.html").read_text()
    assert "robust sd" in page and of_one in page
    assert "--robust is for models without --random" in str(run(*of, "--random", "age").exception)
    assert "give --client-column" in str(run("--robust", "clients").exception)
