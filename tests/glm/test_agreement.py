"""Columns that sites agree on are those of all rows in one table."""

import numpy as np
import pyarrow
import pytest
from pyarrow import csv

from tests.kit import refuses
from tfp_bfl import glm
from tfp_bfl.data.agreement import TableOptions
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.glm.agreement import agree, check_description, describe
from tfp_bfl.glm.design import Outcome, SiteCells, read_design, settle
from tfp_bfl.glm.report import read_rows
from tfp_bfl.glm.rows import INTERCEPT


def sites_of(table, column, without=()):
    """A table for each value of the column."""
    names = [name for name in table.column_names if name not in (column, *without)]
    cells = np.array(table[column].to_pylist(), object)
    return {str(x): table.select(names).filter(pyarrow.array(cells == x)) for x in dict.fromkeys(cells)}


def fit_at_sites(tables, outcome, missing, leave=False, **options):
    """The rows of each site, columns and notes; with `leave` only the features, of the sites that have rows."""
    options = TableOptions(**options)
    descriptions = {site: describe(table, outcome, site, options) for site, table in tables.items()}
    for site, summary in descriptions.items():
        check_description(site, summary)
    plan = agree(descriptions, outcome, missing, options)
    cells = {site: SiteCells(table, outcome, plan, missing, site) for site, table in tables.items()}
    encoding, notes = settle(plan, missing, np.sum([one.sums() for one in cells.values()], 0))
    if leave:
        left = {site: one.design(encoding)[0] for site, one in cells.items()}
        return {site: features for site, features in left.items() if len(features)}, encoding.names(plan), notes
    rows = [one.rows(encoding) for one in cells.values()]
    has_intercept = outcome.family != "cox"
    clients = [(own.design[:, has_intercept:], own.outcome) for own in rows]
    return clients, encoding.names(plan), notes


def table(seed=0, count=300):
    rng = np.random.default_rng(seed)
    site = rng.integers(0, 3, count)
    age = np.where(rng.random(count) < 0.1, None, rng.normal(60, 10, count).round(1).astype(object))
    sex = np.where(rng.random(count) < 0.1, "", rng.choice(["Female", "Male"], count))
    # A level that one site has alone.
    chest = np.where((site == 1) & (rng.random(count) < 0.3), "typical", rng.choice(["none", "other"], count))
    ill = rng.choice(["N", "Y"], count)
    return pyarrow.table({
        "site": [f"s{x}" for x in site], "age": age.tolist(), "sex": sex.tolist(), "chest": chest.tolist(),
        "stage": rng.integers(1, 4, count), "days": rng.exponential(100, count).round(2), "ill": ill.tolist(),
    })  # fmt: skip


@pytest.mark.parametrize("missing", ["drop", "indicate"])
@pytest.mark.parametrize(
    "outcome", [Outcome("ill", "bernoulli"), Outcome("days", "cox", "ill"), Outcome("days", "gaussian")]
)
def test_the_columns_are_those_of_all_rows_in_one_place(outcome, missing):
    whole, options = table(), {"categorical": ["stage"]}
    design = read_design(whole, outcome, "site", missing=missing, **options)
    clients, names, _ = fit_at_sites(sites_of(whole, "site"), outcome, missing, **options)
    assert names == design.names
    by_size = lambda pair: len(pair[0])
    for (x, y), (features, values) in zip(sorted(clients, key=by_size), sorted(design.clients, key=by_size)):
        np.testing.assert_allclose(x, features, rtol=1e-12, atol=1e-12)
        np.testing.assert_array_equal(y, values)
    assert INTERCEPT not in names and glm.fit(clients, outcome.family, prior_stddev=2.0, names=names).count


def test_a_column_that_one_site_lacks_is_filled_with_the_mean_of_the_others():
    tables = sites_of(table(), "site")
    tables["s0"] = tables["s0"].drop_columns(["age"])
    outcome = Outcome("ill", "bernoulli")
    clients, names, _ = fit_at_sites(tables, outcome, "indicate")
    assert "age[missing]" in names
    column = clients[list(tables).index("s0")][0][:, names.index("age")]
    assert len(set(column.tolist())) == 1 and 50 < column[0] < 70
    with pytest.raises(ValueError, match="No row of s0 is complete: give --missing indicate, or leave columns"):
        fit_at_sites(tables, outcome, "drop")


@pytest.mark.parametrize(("first", "is_used"), [(0, False), (1, False), (1980, True)])
def test_row_numbers_of_a_table_that_is_divided_are_left_out(first, is_used):
    whole = table().append_column("row", pyarrow.array(range(first, first + 300)))
    tables = {f"s{k}": whole.slice(100 * k, 100) for k in range(3)}
    tables = {site: one.drop_columns(["site"]) for site, one in tables.items()}
    _, names, notes = fit_at_sites(tables, Outcome("ill", "bernoulli"), "drop")
    assert ("row" in names) == is_used
    assert names == read_design(whole.drop_columns(["site"]), Outcome("ill", "bernoulli")).names
    assert ("The column 'row' numbers the rows and is left out." in notes) != is_used


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"age": ["old"] * 3}, r"holds numbers at s\d and text at odd"),
        (
            {"chest": [f"c{x}" for x in range(29)]},
            "holds 32 texts at all sites: leave it out with --drop, or give --ca",
        ),
        ({"ill": ["N", "Y", "maybe"]}, "must hold two values, but holds 3"),
    ],
)
def test_sites_that_do_not_fit_each_other_are_one_sentence(change, message):
    tables = sites_of(table(), "site")
    length = len(next(iter(change.values())))
    odd = tables["s0"].slice(0, length)
    for name, cells in change.items():
        odd = odd.set_column(odd.column_names.index(name), name, pyarrow.array(cells))
    refuses(message, fit_at_sites, {**tables, "odd": odd}, Outcome("ill", "bernoulli"), "drop")


def test_truth_values_and_their_words_are_one_level():
    outcome, y = Outcome("y", "gaussian"), np.arange(40.0)
    north = pyarrow.table({"y": y, "smokes": [True, False] * 20, "x": y % 3})
    south = pyarrow.table({"y": y, "smokes": ["TRUE", "FALSE", "unknown", "true"] * 10, "x": y % 3})
    _, names, _ = fit_at_sites({"north": north, "south": south}, outcome, "drop")
    assert names == ["smokes[True]", "smokes[unknown]", "x"]


def test_rows_are_encoded_in_the_columns_of_the_fit_or_refused(tmp_path):
    path = tmp_path / "t.csv"
    csv.write_csv(table().drop_columns(["ill", "days"]), path)
    design = read_design(path, Outcome("stage", "normal"), "site", categorical=["sex", "chest"])
    owners, features = read_rows(path, design, "site")
    assert features.shape == (300, len(design.names)) and set(owners) == {"s0", "s1", "s2"}
    own = features[owners == "s1"]
    np.testing.assert_array_equal(own[~np.isnan(own).any(1)], design.clients[1][0])


def test_a_site_that_adds_zeros_is_found():
    """By a stratified Cox model also one without events; by another model its rows are in the risk sets of others."""
    outcome, options = Outcome("days", "cox", "ill"), TableOptions(categorical=("stage",))
    tables = sites_of(table(), "site")
    quiet = pyarrow.array(["N"] * tables["s1"].num_rows)
    tables["s1"] = tables["s1"].set_column(tables["s1"].column_names.index("ill"), "ill", quiet)
    plan = agree({site: describe(own, outcome, site, options) for site, own in tables.items()}, outcome, "indicate")
    cells = {site: SiteCells(own, outcome, plan, "indicate", site) for site, own in tables.items()}
    cells["s0"].check_presence(of_events=True)
    cells["s1"].check_presence()
    last = np.array(tables["s1"]["days"].to_pylist()).argmax()
    events = pyarrow.array(["Y" if i == last else "N" for i in range(tables["s1"].num_rows)])
    late = tables["s1"].set_column(tables["s1"].column_names.index("ill"), "ill", events)
    for own in (cells["s1"], SiteCells(late, outcome, plan, "indicate", "s1")):
        refuses("No event of s1 has a second row at risk, so that it adds nothing", own.check_presence, of_events=True)
    with pytest.raises(InvalidArgument, match="No row of s2 is complete"):
        SiteCells(tables["s2"].slice(0, 0), outcome, plan, "indicate", "s2").check_presence()
