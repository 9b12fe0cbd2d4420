"""Rows that are at risk from a later time on: cutting a row in two at any time changes no result."""

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner

from tests.glm.guarded import Guarded
from tests.kit import refuses
from tfp_bfl import glm
from tfp_bfl.app.cli import cli
from tfp_bfl.glm.agreement import agree, describe
from tfp_bfl.glm.design import Outcome, SiteCells
from tfp_bfl.glm.rows import Rows


def whole(seed=0, count=90):
    """Columns, (time, event, entry) with ties, and groups."""
    rng = np.random.default_rng(seed)
    x, group = rng.normal(size=(count, 2)), rng.integers(2, size=count)
    time = np.ceil(10 * rng.exponential(np.exp(-0.5 * x[:, 0]))) / 10
    return x, np.stack([time, rng.uniform(size=count) < 0.7, np.zeros(count)], 1), group


def cut(x, outcome, group, seed=1):
    """Replace each row by two that follow each other, at multiples of .05."""
    at = outcome[:, 0] * np.random.default_rng(seed).uniform(0.1, 0.9, len(outcome))
    at = np.maximum(np.floor(at * 20), 1) / 20
    first = np.stack([at, np.zeros(len(at)), outcome[:, 2]], 1)
    second = np.stack([outcome[:, 0], outcome[:, 1], at], 1)
    return np.concatenate([x, x]), np.concatenate([first, second]), np.concatenate([group, group])


def parts(values, clients=3):
    return [values[k::clients] for k in range(clients)]


@pytest.mark.parametrize("options", [{}, {"second_order": True}, {"prior_stddev": 0.5}], ids=str)
def test_cox(options):
    x, outcome, group = whole()
    expected = glm.fit(list(zip(parts(x), parts(outcome[:, :2]))), "cox", **options)
    for of in (whole(), cut(x, outcome, group)):
        found = glm.fit(list(zip(parts(of[0]), parts(of[1]))), "cox", **options)
        np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-9)
        np.testing.assert_allclose(found.covariance, expected.covariance, rtol=1e-7)


@pytest.mark.parametrize("secure", [False, True])
def test_cox_with_a_baseline_hazard_for_each_client(secure):
    """The two parts of a row stay at their client."""
    x, outcome, group = whole()
    options = {"stratified": True, "secure_sums": secure}
    expected = glm.fit(list(zip(parts(x), parts(outcome[:, :2]))), "cox", **options)
    pieces = [cut(*own)[:2] for own in zip(parts(x), parts(outcome), parts(group))]
    np.testing.assert_allclose(glm.fit(pieces, "cox", **options).mean, expected.mean, rtol=1e-8)


@pytest.mark.parametrize("stratified", [False, True])
def test_clients_that_check_the_questions(stratified):
    """As sites do; and a table in which no event has a second row at risk adds nothing."""
    x, outcome, _ = cut(*whole())
    clients = [Rows(*pair, np.zeros(len(pair[0]))) for pair in zip(parts(x), parts(outcome))]
    expected = glm.fit(list(zip(parts(x), parts(outcome))), "cox", stratified=stratified)
    np.testing.assert_allclose(Guarded(clients, "cox", stratified=stratified).fit().mean, expected.mean, rtol=1e-9)
    columns = {"age": [1.0, 2.5, 2.0], "stop": [2.0, 4.0, 9.0], "died": [1, 1, 0], "start": [0.0, 3.0, 8.0]}
    of = Outcome("stop", "cox", "died", entry="start")
    plan = agree({"a": describe(pa.table(columns), of, "a")}, of, "drop")
    refuses(
        "No event of a has a second row at risk",
        SiteCells(pa.table(columns), of, plan, "drop", "a").check_presence,
        True,
    )


@pytest.mark.parametrize("options", [{}, {"grid": np.arange(1, 160) / 20, "secure_sums": True}], ids=["", "masked"])
def test_curves_and_log_rank(options):
    x, outcome, group = whole()
    _, pieces, groups = cut(x, outcome, group)
    before, after = (
        (glm.kaplan_meier(parts(o), groups=parts(g), **options), glm.log_rank(parts(o), parts(g), **options))
        for o, g in ((outcome[:, :2], group), (pieces, groups))
    )
    for name in ("0", "1"):
        one, other = before[0].curves[name], after[0].curves[name]
        for field in ("times", "at_risk", "events", "survival", "stddev"):
            at = one.times > 0  # Nobody is at risk before the first entry.
            np.testing.assert_allclose(getattr(other, field)[at], getattr(one, field)[at], rtol=1e-12)
    np.testing.assert_allclose(after[1].expected, before[1].expected, rtol=1e-12)
    assert after[1].statistic == pytest.approx(before[1].statistic, rel=1e-9)


def test_who_enters_later_is_no_survivor_of_before():
    """Of two rows that enter after the only early event, that event has one row at risk."""
    outcome = np.array([[1.0, 1, 0], [3, 1, 2], [4, 0, 2], [5, 1, 0.5]])
    curve = glm.kaplan_meier([outcome], times=[1, 3, 5]).curves["all"]
    assert curve.at_risk.tolist() == [2, 3, 1] and curve.survival == pytest.approx([1 / 2, 1 / 3, 0])


@pytest.mark.parametrize("entry", [1.0, 2.0])
def test_an_entry_after_the_time_is_refused(entry):
    outcome = np.array([[1.0, 1, entry], [2, 1, 0]])
    for call in (lambda: glm.fit([(np.ones((2, 1)), outcome)], "cox"), lambda: glm.kaplan_meier([outcome])):
        refuses("^Each survival outcome must be a time, an event and an entry before the time, but row 0", call)
    refuses(r"must have \(2, 2\) or \(2, 3\)", glm.kaplan_meier, [np.ones((2, 4))])


def test_the_commands(tmp_path):
    x, outcome, group = cut(*whole())
    table = tmp_path / "rows.csv"
    cells = np.column_stack([x, outcome, group, np.arange(len(x)) % 3])
    head = "age,dose,stop,died,start,arm,hospital"
    np.savetxt(table, cells, delimiter=",", header=head, comments="", fmt="%.10g")
    run = lambda *arguments: CliRunner().invoke(cli, [*map(str, arguments)])
    of = "--client-column", "hospital", "--entry", "start"
    shown = run("glm", table, "--family", "cox", "--outcome", "stop", "--event", "died", *of, "--drop", "arm").output
    expected = glm.fit(list(zip(parts(x), parts(outcome))), "cox", names=["age", "dose"])
    assert str(expected.table()) in shown
    shown = run("survival", table, "--duration", "stop", "--event", "died", "--by", "arm", *of).output
    assert str(glm.log_rank(parts(outcome), parts(group.astype(int)))) in shown
    wrong = run("glm", table, "--outcome", "stop", "--entry", "start").exception
    assert str(wrong) == "--entry is for cox, but the family is gaussian."
    wrong = run("survival", table, "--duration", "start", "--event", "died", "--entry", "stop").exception
    assert "must hold times above 0" in str(wrong)
    wrong = run("survival", table, "--duration", "stop", "--event", "died", "--entry", "late").exception
    assert "--entry" in str(wrong)
