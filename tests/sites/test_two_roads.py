"""A table in one place and its parts at sites give a network the same columns, or are refused on both roads."""

import numpy as np
import pytest

from tests.glm.test_two_roads import SITES, compare, patient, random_table, write
from tfp_bfl.data import read_own, read_part
from tfp_bfl.data.names import natural
from tfp_bfl.sites import agree, describe
from tfp_bfl.sites.schema import TableOptions


def labelled(seed):
    """A random table with labels, its rows by site or in any order, and its options."""
    table, options = random_table(seed)
    table["label"] = [("no", "yes")[i % 2] for i in range(len(table.pop("y")))]
    return table, {"date_unit": options["date_unit"]}


def columns_of(schema):
    """The names of the columns, their means and scales."""
    return [column.name for column in schema.columns], {"moments": np.array([x[1:] for x in schema.columns])}


def in_one_place(folder, table, options):
    """All rows are for training: which ones a test set would take is another question."""
    path = write(folder / "all.csv", table, range(len(table["label"])))
    data = read_own(path, client="site", test=path, **options)
    return columns_of(data.train)


def at_sites(folder, table, options):
    own = {name: cells for name, cells in table.items() if name != "site"}
    described = {}
    for name in sorted({*table["site"]}, key=natural):
        path = write(folder / f"{name}.csv", own, [i for i, x in enumerate(table["site"]) if x == name])
        data = read_part(path, test=path, **options)
        described[name] = describe(data.train, TableOptions(**options))
    return columns_of(agree("sites", described, TableOptions(**options)))


LATER = pytest.mark.deep(after="tests/sites/test_two_roads.py")


@pytest.mark.parametrize(("tables", "least"), [(40, 15), pytest.param(2000, 1000, marks=LATER)])
def test_both_roads_have_the_same_columns(tmp_path, tables, least):
    assert compare(tmp_path, range(tables), (in_one_place, at_sites), labelled, rtol=1e-9) > least


@pytest.mark.parametrize("order", ["by site", "any"])
@pytest.mark.parametrize("first", [0, 1, 1960])
def test_a_number_of_all_rows_is_left_out_on_both_roads(tmp_path, order, first):
    rng = np.random.default_rng(0)
    site = rng.choice(SITES, 60).tolist()
    table = {"site": sorted(site) if order == "by site" else site, "row": [*range(first, first + 60)]}
    table |= {"age": rng.normal(60, 9, 60).tolist(), "label": ["no", "yes"] * 30}
    for road in (in_one_place, at_sites):
        assert road(tmp_path, table, {})[0] == (["row", "age"] if first == 1960 else ["age"])
    without = [row if i != 7 else "" for i, row in enumerate(table["row"])]
    for road in (in_one_place, at_sites):
        assert "row" in road(tmp_path, {**table, "row": without}, {})[0]


def test_a_patients_number_of_each_hospital_is_left_out_on_both_roads(tmp_path):
    rng = np.random.default_rng(0)
    site = rng.choice(SITES, 60).tolist()
    table = {"site": site, "patient": patient(rng, site), "age": rng.normal(60, 9, 60).tolist()}
    table["label"] = ["no", "yes"] * 30
    for road in (in_one_place, at_sites):
        assert road(tmp_path, table, {})[0] == ["age"]
    notes = read_own(tmp_path / "all.csv", client="site").notes
    assert "The column 'patient' numbers the rows and is left out: name it with --only to use it." in notes
