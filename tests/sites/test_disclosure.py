"""Rules of disclosure of a site, which its file alone sets, and which hold on every road of a linear model."""

import re
import time

import numpy as np
import pyarrow
import pytest

from tests.kit import fails, refuses
from tests.sites.linear_models import ILL, SITES, Channel, refusal_of, run
from tests.sites.test_linear_models import add_line
from tfp_bfl.data.agreement import TableOptions
from tfp_bfl.glm.agreement import agree, describe
from tfp_bfl.glm.design import Outcome, SiteCells
from tfp_bfl.sites.deployment import disclosure
from tfp_bfl.sites.deployment.channel import SUMS
from tfp_bfl.sites.deployment.party_file import PartyFile

FILE = PartyFile(data="rows.csv")
SEX = Outcome("y", "gaussian")


def cells_of(columns, outcome=SEX, missing="drop"):
    rows = pyarrow.table(columns)
    plan = agree({"a": describe(rows, outcome, "a")}, outcome, missing, TableOptions((), (), (), None))
    return SiteCells(rows, outcome, plan, missing, "a")


def check(columns, outcome=SEX, missing="drop", **options):
    cells = cells_of({"x": np.random.default_rng(0).normal(size=60), **columns}, outcome, missing)
    disclosure.check_cells(FILE.model_copy(update=options), cells, missing == "indicate")


Y = np.random.default_rng(1).normal(size=60)
LEVELS = np.repeat(["a", "b", "c"], 20)


def with_few(number, values=("few", "many")):
    return np.where(np.arange(60) < number, *values)


@pytest.mark.parametrize("number", [1, 4, 5])
@pytest.mark.parametrize("values", [("few", "many"), ("many", "a level"), (1.5, 2.5), (True, False)], ids=str)
def test_no_level_or_value_has_few_rows(number, values):
    """Whichever of two is the reference, and of whatever type."""
    columns = {"y": Y, "sex": with_few(number, values)}
    if number < 5:
        said = refuses(
            "^It has fewer than 5 rows with one of the values of sex, the least that smallest_cell", check, columns
        )
        assert str(number) not in said  # The count stays at the site.
    else:
        check(columns)
    check(columns, smallest_cell=1)


def test_reference_levels_empty_cells_and_outcomes_have_not_either():
    reference = LEVELS.copy()
    reference[2:20] = "b"
    refuses("values of stage", check, {"y": Y, "stage": reference})
    check({"y": Y, "stage": LEVELS})
    gaps = np.where(np.arange(60) < 3, np.nan, Y)
    refuses("an empty cell of age", check, {"y": Y, "age": gaps}, missing="indicate")
    check({"y": Y, "age": gaps})
    filled = np.where(np.arange(60) < 10, np.nan, with_few(13, (1.0, 0.0)))  # Three rows of 1 that are filled.
    refuses("values of smokes", check, {"y": Y, "smokes": filled}, missing="indicate")
    for family in ("bernoulli", "poisson", "gaussian"):
        refuses("values of the outcome", check, {"y": with_few(3, (1, 0))}, Outcome("y", family))
    survival = Outcome("days", "cox", "y")
    refuses("values of the outcome", check, {"days": np.arange(60) + 1.5, "y": with_few(3, (1, 0))}, survival)


def test_a_row_with_a_weight_is_one_row():
    columns = {"y": Y, "sex": with_few(1), "w": np.full(60, 9)}
    refuses("values of sex", check, columns, SEX._replace(weights="w"))
    cells = cells_of({"x": Y, **columns}, SEX._replace(weights="w"))
    assert len(np.unique(cells.places)) == 60 and len(cells.places) == 540


def test_coefficients_are_at_most_a_third_of_the_rows():
    disclosure.check_share(FILE, 19, 60)
    refuses("more coefficients than 0.33 of its rows", disclosure.check_share, FILE, 20, 60)
    disclosure.check_share(FILE.model_copy(update={"max_coefficient_share": 0.5}), 20, 60)


def test_jobs_of_a_day_are_counted_whatever_their_name(tmp_path, monkeypatch):
    few = FILE.model_copy(update={"max_daily_runs": 2})
    for job in ("one", "two", "one"):  # The same job again is no further one.
        disclosure.count_job(few, tmp_path, job)
    refuses("2 runs within a day, the most that max_daily_runs", disclosure.count_job, few, tmp_path, "three")
    later = time.time() + 90_000
    monkeypatch.setattr(disclosure.time, "time", lambda: later)
    disclosure.count_job(few, tmp_path, "three")


def test_a_reused_name_is_a_further_run(kits):
    add_line(kits / "s1" / "local", "max_daily_runs: 1")
    run(kits, Channel(kits), ILL)
    (kits / "runs" / "first" / "summary.json").unlink()
    done = run(kits, Channel(kits), {**ILL, "prior_stddev": 1.0})
    assert "max_daily_runs" in refusal_of(done)


def test_a_refusal_is_logged_and_nothing_was_sent(kits):
    add_line(kits / "s1" / "local", "smallest_cell: 60")
    channel = Channel(kits)
    run(kits, channel, ILL)
    line = (kits / "s1" / "local" / disclosure.REFUSALS).read_text()
    assert re.match(r"\d{4}-\d\d-\d\dT[\d:]+\+00:00 [\w ]+ It has fewer than 60 rows with .* smallest_cell", line)
    assert not [site for task, site, _ in channel.sent if task == SUMS and site == "s1"]


@pytest.mark.parametrize("secure_sums", [False, True])
@pytest.mark.parametrize("rule", ["smallest_cell: 60", "max_coefficient_share: 0.01"])
def test_a_site_says_which_rule_a_run_breaks(kits, rule, secure_sums):
    """With and without masks; the other sites go on where they can."""
    add_line(kits / "s1" / "local", rule)
    name = rule.partition(":")[0]
    if secure_sums and name == "max_coefficient_share":  # After it took part: masks cancel with all sites alone.
        fails(f"s1: .*{name} of its file", run, kits, Channel(kits), ILL, secure_sums=True)
    else:
        assert name in refusal_of(run(kits, Channel(kits), ILL, secure_sums=secure_sums))


@pytest.mark.parametrize("options", [ILL, {"outcome": "days"}, {**ILL, "random": ["(intercept)"]}], ids=str)
@pytest.mark.parametrize("secure_sums", [False, True])
def test_no_submitter_undercuts_the_sites_that_a_file_asks_for(kits, options, secure_sums):
    """Not by leaving a site out, nor by a quorum."""
    for site in SITES:
        add_line(kits / site / "local", "min_parties: 3")
    run(kits, Channel(kits), options, "all", secure_sums=secure_sums)
    without = {"without": ["s2"], "secure_sums": secure_sums, "quorum": 1}
    fails("no run of fewer than 3 sites", run, kits, Channel(kits), options, "two", **without)
