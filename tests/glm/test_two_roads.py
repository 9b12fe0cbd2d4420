"""A table in one place and its parts at sites give a linear model the same columns, or are refused on both roads."""

import csv

import numpy as np
import pytest

from tests.glm.test_agreement import fit_at_sites
from tfp_bfl.data.tables import read_table
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.glm.design import Outcome, read_design

SITES = ("Aalen", "Bonn", "Ulm")


def patient(rng, site):
    """A number that begins anew at each site."""
    seen = dict.fromkeys(SITES, int(rng.integers(2)))
    numbers = []
    for name in site:
        numbers.append(seen[name])
        seen[name] += 1
    return numbers


def words(rng, site):
    """Categories, of which sites may have different ones."""
    common, rare = ["low", "high", "none"][: rng.integers(1, 4)], str(rng.choice(["odd", "7", "low"]))
    return [rare if name == SITES[0] and rng.random() < 0.3 else str(rng.choice(common)) for name in site]


def numbers_or_words(rng, site):
    """Numbers, and words among them at one site, in some cells or in most."""
    share = rng.choice([0.0, 0.05, 0.5, 1.0])
    return [
        str(rng.choice(["K", "L"])) if n == SITES[1] and rng.random() < share else int(rng.integers(9)) for n in site
    ]


COLUMNS = {
    "number": lambda rng, site: rng.normal(size=len(site)).round(3).tolist(),
    "whole": lambda rng, site: rng.integers(0, 5, len(site)).tolist(),
    "rows": lambda rng, site: (np.arange(len(site)) + rng.integers(3)).tolist(),
    "patient": patient,
    "rising": lambda rng, site: np.cumsum(rng.integers(1, 4, len(site))).tolist(),
    "truth": lambda rng, site: rng.choice(["True", "False"], len(site)).tolist(),
    "words": words,
    "mixed": numbers_or_words,
    "date": lambda rng, site: [f"20{x:02}-03-{x % 27 + 1:02}" for x in rng.integers(0, 30, len(site))],
    "constant": lambda rng, site: [1] * len(site),
}


def random_table(seed):
    """Columns of random kinds with empty cells, some of one site alone; rows by site, or in any order."""
    rng = np.random.default_rng([seed, 5])
    site = rng.choice(SITES[: rng.integers(2, 4)], int(rng.integers(12, 50))).tolist()
    site = sorted(site) if rng.random() < 0.5 else site
    table = {"site": site, "y": rng.normal(size=len(site)).round(2).tolist()}
    for number in range(rng.integers(1, 5)):
        kind = str(rng.choice([*COLUMNS]))
        cells, gaps = COLUMNS[kind](rng, site), rng.choice([0.0, 0.0, 0.1])
        empty = str(rng.choice(SITES)) if rng.random() < 0.1 else None
        cells = ["" if name == empty or rng.random() < gaps else x for name, x in zip(site, cells)]
        table[f"{kind}{number}"] = cells
    if rng.random() < 0.2:
        table["y"] = ["" if rng.random() < 0.2 else x for x in table["y"]]
    return table, {"missing": str(rng.choice(["drop", "indicate"])), "date_unit": "days"}


def write(path, table, rows):
    with open(path, "w", newline="") as file:
        out = csv.writer(file)
        out.writerow(table)
        out.writerows(zip(*([cells[i] for i in rows] for cells in table.values())))
    return path


def in_one_place(folder, table, options):
    path = write(folder / "all.csv", table, range(len(table["y"])))
    design = read_design(path, Outcome("y", "gaussian"), "site", **options)
    return design.names, dict(zip(design.client_names, (x for x, _ in design.clients)))


def at_sites(folder, table, options):
    """The names and the rows of the sites, of which one without a complete row leaves, as it does in a federation."""
    own = {name: cells for name, cells in table.items() if name != "site"}
    there = {
        name: read_table(write(folder / f"{name}.csv", own, [i for i, x in enumerate(table["site"]) if x == name]))
        for name in sorted({*table["site"]})
    }
    found = fit_at_sites(there, Outcome("y", "gaussian"), leave=True, **options)
    return found[1], found[0]


def outcome_of(road, *args):
    try:
        return road(*args)
    except InvalidArgument as error:
        return str(error)


def compare(folder, seeds, roads=(in_one_place, at_sites), draw=random_table, rtol=1e-12):
    """Return how many tables both roads read; all others are refused on both."""
    read = 0
    for seed in seeds:
        table, options = draw(seed)
        one, other = (outcome_of(road, folder, table, options) for road in roads)
        assert isinstance(one, str) == isinstance(other, str), (seed, one, other)
        if isinstance(one, str):
            continue
        read += 1
        assert one[0] == other[0], (seed, one[0], other[0])
        assert [*one[1]] == [*other[1]], seed
        for name, features in one[1].items():
            np.testing.assert_allclose(features, other[1][name], rtol=rtol, atol=1e-12, err_msg=str(seed))
    return read


@pytest.mark.parametrize(
    "tables", [60, pytest.param(2000, marks=pytest.mark.deep(after="tests/glm/test_two_roads.py"))]
)
def test_both_roads_have_the_same_columns(tmp_path, tables):
    assert compare(tmp_path, range(tables)) > tables / 2


@pytest.mark.parametrize("order", ["by site", "any"])
def test_row_numbers_of_all_rows_are_left_out_and_those_of_each_client_are_noted(tmp_path, order):
    rng = np.random.default_rng(0)
    site = rng.choice(SITES, 60).tolist()
    site = sorted(site) if order == "by site" else site
    table = {"site": site, "y": rng.normal(size=60).tolist(), "row": [*range(1, 61)], "patient": patient(rng, site)}
    table["x"] = rng.normal(size=60).tolist()
    for road in (in_one_place, at_sites):
        assert road(tmp_path, table, {"missing": "drop"})[0] == ["patient", "x"]
    notes = read_design(tmp_path / "all.csv", Outcome("y", "gaussian"), "site").notes
    assert any("'patient' counts the rows of each client anew and is used: --drop it" in note for note in notes)
    assert "The column 'row' numbers the rows and is left out." in notes
