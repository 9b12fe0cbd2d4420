"""Rules of disclosure of a site, which its file alone sets, and which hold on every road of a linear model."""

import os
import time

import numpy as np
import pytest

from tests.kit import fails, refuses
from tests.sites.linear_models import ILL, SITES, Channel, refusal_of, run
from tests.sites.test_linear_models import add_line
from tfp_bfl.glm.rows import INTERCEPT, Rows
from tfp_bfl.sites.deployment import disclosure
from tfp_bfl.sites.deployment.party_file import PartyFile

FILE = PartyFile(data="rows.csv")


def rows(ones, count=60, events=30, columns=1):
    column = np.arange(count) < ones
    others = np.random.default_rng(0).normal(size=(count, columns))
    return Rows(np.column_stack([np.ones(count), column, others]), (np.arange(count) < events) * 1.0, np.zeros(count))


def check(given, family="bernoulli", **options):
    names = [INTERCEPT, "sex[m]", *(f"x{j}" for j in range(given.design.shape[1] - 2))]
    disclosure.check_model(FILE.model_copy(update=options), given, names, family)


@pytest.mark.parametrize(
    ("ones", "is_small"), [(0, False), (1, True), (4, True), (5, False), (55, False), (56, True), (60, False)]
)
def test_no_level_has_few_rows(ones, is_small):
    """A level of no row, or of all, is no cell: nothing is said of single rows."""
    if is_small:
        said = refuses(
            r"fewer than 5 rows with one of the values of sex\[m\], the least that smallest_cell", check, rows(ones)
        )
        assert str(ones) not in said.replace("5", "")  # The count stays at the site.
    else:
        check(rows(ones))
    check(rows(ones), smallest_cell=1)


@pytest.mark.parametrize("family", ["bernoulli", "cox"])
def test_neither_have_events(family):
    given = rows(30, events=3)
    given = given._replace(outcome=np.stack([1 + given.outcome, given.outcome], 1)) if family == "cox" else given
    refuses("one of the values of the event", check, given, family)
    check(given if family == "bernoulli" else rows(30, events=3), "gaussian")


def test_coefficients_are_at_most_a_third_of_the_rows():
    check(rows(30, columns=17))
    refuses("more coefficients than 0.33 of its rows", check, rows(30, columns=18))
    check(rows(30, columns=18), max_coefficient_share=0.5)


def test_runs_of_a_day_are_counted(tmp_path):
    folders = [tmp_path / str(k) for k in range(3)]
    for folder in folders:
        folder.mkdir()
    disclosure.check_day(FILE, folders)
    few = FILE.model_copy(update={"max_daily_runs": 3})
    refuses("in 3 runs within a day, the most that max_daily_runs", disclosure.check_day, few, folders)
    os.utime(folders[0], (time.time() - 90_000,) * 2)
    disclosure.check_day(few, folders)


@pytest.mark.parametrize("secure_sums", [False, True])
@pytest.mark.parametrize("rule", ["smallest_cell: 60", "max_coefficient_share: 0.01"])
def test_a_site_says_which_rule_a_run_breaks(kits, rule, secure_sums):
    """With and without masks, before any sum over its rows; the other sites go on."""
    add_line(kits / "s1" / "local", rule)
    name = rule.partition(":")[0]
    if secure_sums:  # Masks cancel with all sites alone.
        fails(f"s1: .*{name} of its file", run, kits, Channel(kits), ILL, secure_sums=True)
    else:
        assert name in refusal_of(run(kits, Channel(kits), ILL))


@pytest.mark.parametrize("options", [ILL, {"outcome": "days"}, {**ILL, "random": ["(intercept)"]}], ids=str)
@pytest.mark.parametrize("secure_sums", [False, True])
def test_no_submitter_undercuts_the_sites_that_a_file_asks_for(kits, options, secure_sums):
    """Not by leaving a site out, nor by a quorum."""
    for site in SITES:
        add_line(kits / site / "local", "min_parties: 3")
    run(kits, Channel(kits), options, "all", secure_sums=secure_sums)
    without = {"without": ["s2"], "secure_sums": secure_sums, "quorum": 1}
    fails("no run of fewer than 3 sites", run, kits, Channel(kits), options, "two", **without)
