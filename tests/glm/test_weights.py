"""Rows that stand for several: weights and trials are the rows written out; an offset moves the linear predictor."""

import numpy as np
import pytest
from click.testing import CliRunner

from tests.glm.guarded import outcomes
from tests.kit import refuses
from tfp_bfl import glm
from tfp_bfl.app.cli import cli


def federation(family, seed=0):
    rng = np.random.default_rng(seed)
    clients, weights = [], []
    for count in (30, 50):
        x = rng.normal(size=(count, 2))
        if family == "cox":
            y = np.stack([np.ceil(5 * rng.exponential(size=count)), rng.uniform(size=count) < 0.7], 1)
        else:
            y = outcomes(rng, family, 0.3 + x @ [0.7, -0.5], noise=1.0)
        clients.append((x, y))
        weights.append(rng.integers(0, 4, count).astype(float))
    return clients, weights


def same(found, expected):
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-9)
    np.testing.assert_allclose(found.covariance, expected.covariance, rtol=1e-8)
    assert (found.count, found.events) == (expected.count, expected.events)


@pytest.mark.parametrize("family", ["gaussian", "bernoulli", "poisson", "cox"])
def test_a_weight_is_so_many_equal_rows(family):
    clients, weights = federation(family)
    repeated = [(np.repeat(x, w.astype(int), 0), np.repeat(y, w.astype(int), 0)) for (x, y), w in zip(clients, weights)]
    same(glm.fit(clients, family, weights=weights), glm.fit(repeated, family))


def test_trials_are_rows_with_and_without_an_event():
    clients, weights = federation("poisson")
    trials = [y + w + 1 for (_, y), w in zip(clients, weights)]
    rows = [
        (np.repeat(x, t.astype(int), 0), np.concatenate([np.arange(n) < k for n, k in zip(t, y)]).astype(float))
        for (x, y), t in zip(clients, trials)
    ]
    same(glm.fit(clients, "bernoulli", trials=trials), glm.fit(rows, "bernoulli"))
    same(
        glm.fit(clients, "bernoulli", trials=trials, weights=weights),
        glm.fit(
            [
                (
                    np.repeat(x, np.repeat(w, t.astype(int)).astype(int), 0),
                    np.repeat(y, np.repeat(w, t.astype(int)).astype(int)),
                )
                for (x, y), w, t in zip(rows, weights, trials)
            ],
            "bernoulli",
        ),
    )


@pytest.mark.parametrize("family", ["gaussian", "bernoulli", "poisson", "cox"])
def test_an_offset_is_a_column_with_a_coefficient_of_one(family):
    """Half of the second column as an offset: its coefficient is less by as much."""
    clients, _ = federation(family)
    offset = [0.5 * x[:, 1] for x, _ in clients]
    found, expected = glm.fit(clients, family, offset=offset), glm.fit(clients, family)
    np.testing.assert_allclose(found.mean[-1], expected.mean[-1] - 0.5, rtol=1e-7)
    np.testing.assert_allclose(found.mean[:-1], expected.mean[:-1], rtol=1e-6)
    np.testing.assert_allclose(found.covariance, expected.covariance, rtol=1e-6)


@pytest.mark.parametrize("family", ["gaussian", "bernoulli"])
def test_random_effects_take_them_too(family):
    rng = np.random.default_rng(1)
    clients = [
        (x := rng.normal(size=(9, 1)), outcomes(rng, family, u + x[:, 0], noise=1.0)) for u in rng.normal(size=30)
    ]
    moved = glm.fit_hierarchical(clients, family, offset=[0.5 * x[:, 0] for x, _ in clients])
    plain = glm.fit_hierarchical(clients, family)
    np.testing.assert_allclose(moved.posterior.mean, plain.posterior.mean - [0, 0.5], rtol=1e-5, atol=1e-6)
    twice = glm.fit_hierarchical(clients, family, weights=[np.full(9, 2.0)] * 30)
    assert twice.posterior.count == 540


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"weights": [np.full(30, -1.0), np.ones(50)]},
            "^Each weight must be a whole number of at least 0 .*one of client 0 is -1",
        ),
        ({"weights": [np.full(30, 0.5), np.ones(50)]}, "weights of a survey are not supported"),
        ({"weights": [np.ones(30)]}, "^weights is of 1 clients, but there are 2"),
        ({"weights": [np.ones(30), np.full(50, np.nan)]}, "^The weights of client 1 must be finite"),
        ({"weights": [np.full(30, 1e9), np.ones(50)]}, "stand for 30,000,000,000, but at most"),
        ({"trials": [np.zeros(30), np.ones(50)]}, "^Each number of trials must be a whole number of at least 1"),
        ({"family": "poisson", "trials": [np.ones(30), np.ones(50)]}, "^trials is for the family 'bernoulli'"),
        ({"family": "multinomial", "offset": [np.ones(30), np.ones(50)]}, "^offset is for families of one linear"),
        ({"offset": [np.ones(30), np.ones(49)]}, "^The offset of client 1 must be 50 numbers"),
    ],
)
def test_bad_input_is_refused(options, message):
    refuses(message, glm.fit, federation("bernoulli")[0], **{"family": "bernoulli", **options})


def test_more_events_than_trials_are_refused():
    clients, _ = federation("poisson")
    refuses(
        "number of events, but one of client 0 is", glm.fit, clients, "bernoulli", trials=[np.ones(30), np.ones(50)]
    )


def test_the_command(tmp_path):
    """The passengers of the Titanic, of which a row of the table stands for up to 670."""
    table = tmp_path / "titanic.csv"
    rows = ["Sex,Class,Survived,Freq"]
    counts = {"Male": [62, 118, 25, 154, 88, 422, 192, 670], "Female": [141, 4, 93, 13, 90, 106, 20, 3]}
    for sex, numbers in counts.items():
        classes = zip(("1st", "2nd", "3rd", "Crew"), zip(numbers[::2], numbers[1::2]))
        rows += [f"{sex},{of},{word},{n}" for of, pair in classes for word, n in zip(("Yes", "No"), pair)]
    table.write_text("\n".join(rows) + "\n")
    run = lambda *arguments: CliRunner().invoke(cli, ["glm", str(table), *arguments])
    of = "--outcome", "Survived", "--family", "bernoulli"
    shown = run(*of, "--weights", "Freq").output
    assert "bernoulli: 2,201 rows, 711 events" in shown
    sex = shown[shown.index("Sex[Male]") :].split()
    assert float(sex[1]) == pytest.approx(
        -2.421, abs=1e-3
    )  # glm(Survived ~ Sex + Class, binomial, weights = Freq) of R.
    assert "If 'Freq' is how often a row occurs, give --weights Freq" in run(*of).output
    table.write_text("dose,dead,all\n1.5,2,10\n2,5,10\n3,9,10\n")
    shown = run("--outcome", "dead", "--family", "bernoulli", "--trials", "all").output
    assert "bernoulli: 30 rows, 16 events" in shown
    for more, message in (
        (["--family", "poisson", "--trials", "all"], "--trials is for bernoulli, but the family is poisson."),
        (["--family", "bernoulli", "--trials", "all", "--event-value", "1"], "leave --event-value out"),
        (["--family", "bernoulli", "--trials", "dead"], "must name different columns"),
        (
            ["--family", "bernoulli", "--trials", "dose"],
            "Each number of trials must be a whole number of at least 1, but",
        ),
    ):
        assert message in str(run("--outcome", "dead", *more).exception)
