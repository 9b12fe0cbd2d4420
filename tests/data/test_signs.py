"""Cells beside numbers that are no plain numbers: signs, error codes, marks of missing values, limits of detection."""

import re

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.parquet
import pytest
import tensorflow as tf

from tests.fuzz.harness import inputs
from tests.kit import refuses
from tfp_bfl.data import read_own, read_part, read_rows
from tfp_bfl.data.rows import read_encoded
from tfp_bfl.export import rows
from tfp_bfl.glm import agreement
from tfp_bfl.glm.design import Outcome, read_design
from tfp_bfl.sites import agree, describe, fitted

ROWS = 120
Z = np.random.default_rng(6).normal(size=ROWS).round(3)
LABELS = np.resize(["a", "b", "b"], ROWS)
OUTCOME = Outcome("z", "gaussian")


def table(cells, **more):
    return pyarrow.table({"x": np.resize(np.array(cells, object), ROWS), "z": Z, "label": LABELS, **more})


def in_file(path, given):
    pyarrow.csv.write_csv(given, path)
    return path


def in_parquet(path, given):
    pyarrow.parquet.write_table(given, path)
    return path


def at_two_sites(path, given):
    parts = [read_part(in_file(path / f"{i}.csv", given)).train for i in "AB"]
    return fitted(parts[0], agree("t", {str(i): describe(part) for i, part in enumerate(parts)}))


# The roads on which a table is read; each returns the names of the columns, and values that tell numbers apart.
ROADS = {
    "file": lambda p, t: read_own(in_file(p / "d.csv", t)).train,
    "Parquet": lambda p, t: read_own(in_parquet(p / "d.parquet", t)).train,
    "memory": lambda p, t: read_own(t).train,
    "pandas": lambda p, t: read_own(t.to_pandas()).train,
    "sites": at_two_sites,
    "linear model": lambda p, t: read_design(t.drop_columns(["label"]), OUTCOME),
    "linear model at sites": lambda p, t: agreement.agree(
        {x: agreement.describe(t.drop_columns(["label"]), OUTCOME, x) for x in "AB"}, OUTCOME, "indicate"
    ),
}
MARKS = ["#DIV/0!", "#VALUE!", "#REF!", "#NUM!", "#NAME?", "#NULL!", ".", ".A", ".z", "..", "?", "-", "--", "Err:502"]
MARKS += ["#N/D", "#NV", "#\xa1DIV/0!", "#####"]


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("among", [3, 50])
@pytest.mark.parametrize("cell", [*MARKS, "<5", "> 100", "\u22645", ">=0.5%"])
def test_cells_that_no_column_of_numbers_holds_are_refused_whatever_their_share(tmp_path, road, among, cell):
    cells = [f"{i % 5}" for i in range(ROWS)]
    cells[4::among] = [cell] * len(cells[4::among])
    remedy = "write a number for a limit" if cell[0] in "<>\u2264" else "empty the cells that stand for a missing value"
    sentence = refuses("--categorical", ROADS[road], tmp_path, table(cells))
    assert f"'x' holds {cell!r} in row 5, " in sentence and remedy in sentence


SIGNED = {
    "percent": (lambda x: f"{x}%", "%"),
    "percent and a blank": (lambda x: f"{x} %", "%"),
    "dollars": (lambda x: f"${x}".replace("$-", "-$"), "$"),
    "dollars before the minus": (lambda x: f"$ {x}", "$"),
    "euros": (lambda x: f"{x}\u00a0\u20ac", "\u20ac"),
    "rupees": (lambda x: f"\u20b9{x}", "\u20b9"),
}


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("kind", SIGNED)
@pytest.mark.parametrize("number", [20, 100])
def test_one_sign_beside_all_numbers_is_left_out(tmp_path, road, kind, number):
    written, _ = SIGNED[kind]
    plain = [f"{i % number - 3}.25" for i in range(ROWS)]
    signed = table([written(x) for x in plain])
    for folder in "ab":
        (tmp_path / folder).mkdir()
    first, second = (ROADS[road](tmp_path / k, t) for k, t in (("a", table(plain)), ("b", signed)))
    if road == "linear model":
        np.testing.assert_array_equal(first.clients[0][0], second.clients[0][0])
    if road in ("linear model", "linear model at sites"):
        assert first.names == second.names == ["x"]
    else:
        np.testing.assert_array_equal(first.features, second.features)


@inputs(1)
@hypothesis.given(
    st.lists(st.floats(-1e6, 1e6, allow_subnormal=False).map(lambda x: f"{x:.6g}"), min_size=30, max_size=60),
    st.sampled_from(list(SIGNED)),
)
def test_a_sign_at_each_cell_changes_no_feature(cells, kind):
    labels = np.resize(["a", "b"], len(cells))
    given = [cells, [SIGNED[kind][0](x) for x in cells]]
    both = [read_own(pyarrow.table({"x": x, "label": labels, "k": cells})).train for x in given]
    np.testing.assert_array_equal(both[0].features, both[1].features)
    assert [x.name for x in both[0].columns] == [x.name for x in both[1].columns]


def test_notes_name_the_sign_and_the_unit():
    wanted = "'x' has '%' beside all numbers, such as '12%': they are read as numbers in per cent."
    assert wanted in read_own(table(["12%", "7.5 %"])).notes
    assert any("'x' has '$' beside" in x for x in read_design(table(["$1", "$2"]), OUTCOME).notes)


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("cells", [["12%", "12"], ["$12", "12 \u20ac"], ["5", "3", "7 %"], ["12%", "3\u2030"]])
def test_numbers_with_different_signs_are_refused(tmp_path, road, cells):
    refuses(r"'x' holds .* not the same sign beside them: .*with one sign", ROADS[road], tmp_path, table(cells))


def test_decimal_commas_beside_signs(tmp_path):
    """A column of 12,5 % has decimal commas; that of 1,200 $ may have thousands."""
    assert read_own(table(["12,5 %", "7 %"])).train.columns[0].mean == pytest.approx(9.75, abs=0.2)
    assert read_own(table(["1,200.50 $", "7 $"])).train.columns[0].mean == pytest.approx(603.75, abs=40)
    refuses(r"'x' holds '1,200 \$' in row 1, where the comma may be decimal", read_own, table(["1,200 $", "2,300 $"]))


@pytest.mark.parametrize("road", ["file", "memory", "linear model", "linear model at sites"])
@pytest.mark.parametrize(
    ("cells", "named"),
    [
        (["1", "2", "low", "high"], "'1', '2' look like numbers"),
        (["<5", "7", "low", "high"], "'7', '<5' look like numbers"),
        (["<18", "18-64", "65+"], "'<18' look like numbers"),
        (["12 mg", "7 mg"], "'12 mg', '7 mg' look like numbers"),
        (["EUR 12", "EUR 7"], "'EUR 12', 'EUR 7' look like numbers"),
        (["US$12", "US$7"], "'US[$]12', 'US[$]7' look like numbers"),
        (["yes", "no", "#REF!"], "has the category '#REF!'"),
        (["yes", "no", "?"], "has the category '[?]'"),
        (["+", "-"], "has the category '-'"),
    ],
)
def test_a_category_with_cells_that_look_like_numbers_is_named(tmp_path, road, cells, named):
    given = table(cells)
    own = {"file": lambda: read_own(in_file(tmp_path / "d.csv", given)), "memory": lambda: read_own(given)}
    (note,) = (x for x in own.get(road, lambda: ROADS[road](tmp_path, given))().notes if "'x'" in x)
    assert re.search(named, note)
    for words in (["yes", "no"], ["A1", "B2"], ["+ +", "+"]):
        assert not [x for x in read_own(table(words)).notes if "'x'" in x]


@pytest.mark.parametrize("cell", ["#DIV/0!", "?"])
def test_clients_and_declared_categories_that_may_be_missing_values_are_noted_and_events_refused(cell):
    given = table(["1"] * 3 + ["2"], y=np.resize(["1", "1", cell], ROWS))
    assert f"'y' names a client {cell!r}" in "".join(read_own(given, client="y").notes)
    assert f"'y' has the category {cell!r}" in "".join(read_own(given, categorical=["y"]).notes)
    message = f"holds {re.escape(repr(cell))}, which is no outcome: empty the cells"
    refuses(message, read_design, given, Outcome("y", "bernoulli"))


@pytest.mark.parametrize("cell", ["NA", "?", "#N/A!", "."])
def test_labels_that_may_be_missing_values_are_noted(cell):
    data = read_own(table(["1"] * 3 + ["2"], y=np.resize(["u", "v", cell], ROWS)), label="y", drop=["label"])
    assert data.train.class_names == tuple(sorted(["u", "v", cell]))
    assert any(f"40 rows have {cell!r} in 'y', a class like any other" in note for note in data.notes)


def test_sites_with_different_signs_are_refused(tmp_path):
    parts = {}
    for site, cells in (("A", ["12%", "7%"]), ("B", ["0.12", "0.07"])):
        parts[site] = describe(read_part(in_file(tmp_path / f"{site}.csv", table(cells))).train)
    refuses("'x' have the sign '%' beside them at A and '' at B: write them alike", agree, "t", parts)
    described = {
        x: agreement.describe(table(cells).drop_columns(["label"]), OUTCOME, x)
        for x, cells in (("A", ["12%", "7%"]), ("B", ["0.12", "0.07"]))
    }
    for site, summary in described.items():
        agreement.check_description(site, summary)
    refuses("'x' holds numbers at B and numbers in % at A", agreement.agree, described, OUTCOME, "drop")
    broken = {"columns": [["x", "number in drachma", []]], "events": []}
    refuses("does not have the required form", agreement.check_description, "A", broken)


def test_served_rows_have_the_sign_of_the_training(tmp_path):
    plain, signed = (read_own(table(cells)).train for cells in (["1", "2", "4"], ["1%", "2 %", "4%"]))
    rows_of = lambda *cells: in_file(tmp_path / "rows.csv", pyarrow.table({"x": cells, "z": [0.0] * len(cells)}))
    first = read_encoded(rows_of("2", "3"), plain.encoding, plain.columns)
    second = read_encoded(rows_of("2%", "3 %"), signed.encoding, signed.columns)
    np.testing.assert_array_equal(first.rows, second.rows)
    assert second.notes == ("'x' has '%' beside all numbers, such as '2%': they are read as numbers in per cent.",)
    for train, cell, found in ((plain, "2%", "the sign '%'"), (signed, "2", "no sign"), (signed, "2$", "the sign '$'")):
        wanted = re.escape(f"'x' holds '{cell}' in row 1, with {found} beside it")
        refuses(wanted, read_encoded, rows_of(cell), train.encoding, train.columns)
    wanted = r"'x' holds '[?]' in row 2, which is no number"
    refuses(wanted, read_encoded, rows_of("1%", "?"), signed.encoding, signed.columns)
    refuses("'x' holds '5%' in row 1, with the sign '%'", read_rows, rows_of("5%"), ["x"])
    refuses("'x' holds '12' in row 1, with no sign beside it", read_own, table(["1%", "2%"]), test=table(["12", "13"]))


def test_labels_of_numbers_with_a_sign_are_refused_where_other_data_have_labels_too(tmp_path):
    x = np.arange(ROWS) / 7
    tables = [pyarrow.table({"y": [f"{i % 9}{sign}" for i in range(ROWS)], "x": x}) for sign in ("%", "")]
    signed, plain = (in_file(tmp_path / f"{i}.csv", t) for i, t in enumerate(tables))
    data = read_own(signed, label="y", task="regression")
    assert data.train.target == read_own(plain, label="y", task="regression").train.target
    assert any("'y' has '%' beside all numbers" in note for note in data.notes)
    wrong = "'y' holds '0%' in row 1, with the sign '%' beside it, but must have no sign beside it"
    for first, second in ((signed, plain), (plain, signed)):
        refuses(wrong, read_own, first, label="y", task="regression", test=second)
    refuses(wrong, read_part, signed, label="y", task="regression")
    refuses(wrong, agreement.describe, tables[0], Outcome("y", "gaussian"), "A")
    refuses(wrong, read_design, signed, Outcome("y", "gaussian"))


def test_the_graph_of_an_export_has_the_numbers_of_signed_cells(tmp_path):
    train = read_own(table(["1%", "2 %", "4%", ""])).train
    path = in_file(tmp_path / "r.csv", pyarrow.table({"x": ["2%", ""], "z": [1.0, 2.0]}))
    wanted = read_encoded(path, train.encoding, train.columns)
    given = {"x": tf.constant([2.0, np.nan]), "z": tf.constant([1.0, 2.0])}
    np.testing.assert_allclose(rows.encoder(train.encoding, train.columns)(given), wanted.rows, rtol=1e-6)
