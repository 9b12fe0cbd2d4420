"""Tables as they are published, as columns of a linear model."""

import re

import numpy as np
import pyarrow
import pytest

from tests.kit import refuses
from tfp_bfl.glm.design import Outcome, read_design

TABLE = {
    "site": ["b", "a", "b", "a", "c", ""],
    "sex": ["Male", "Female", "Male", "Female", "Male", "Male"],
    "age": [50.0, 60.0, None, 70.0, 40.0, 30.0],
    "grade": [1, 2, 3, 2, 1, 1],
    "smokes": [True, False, None, True, False, True],
    "ill": ["Y", "N", "Y", "Y", None, "N"],
}


def read(outcome=None, client="site", **options):
    return read_design(
        pyarrow.table(options.pop("table", TABLE)), outcome or Outcome("ill", "bernoulli"), client, **options
    )


def test_text_and_truth_values_become_levels_and_incomplete_rows_are_left_out():
    design = read(categorical=["grade"])
    assert design.names == ["sex[Male]", "age", "grade[2]", "smokes[True]"]
    assert design.client_names == ["a", "b"]
    np.testing.assert_array_equal(design.clients[0][0], [[0, 60, 1, 0], [0, 70, 1, 1]])
    np.testing.assert_array_equal(design.clients[1][0], [[1, 50, 0, 1]])
    np.testing.assert_array_equal(design.clients[0][1], [0, 1])
    assert design.notes[:2] == [
        "Event: ill = Y (3 of 5 rows).",
        "2 rows left out without an outcome or a client.",
    ]
    assert "1 row left out with an empty cell" in design.notes[2]
    assert design.notes[3] == "No row is left with grade[3]: left out."


def test_empty_cells_become_an_indicator_once_for_the_same_rows():
    design = read(missing="indicate")
    assert design.names == ["sex[Male]", "age", "age[missing]", "grade", "smokes[True]"]
    assert [len(x) for x, _ in design.clients] == [2, 2]
    np.testing.assert_allclose(design.clients[1][0][1], [1, (50 + 60 + 70) / 3, 1, 3, 2 / 3])
    assert any("'smokes' is empty in the same rows as 'age'" in note for note in design.notes)


def test_words_for_empty_cells_are_empty():
    table = {**TABLE, "sex": ["Male", "Female", "NA", "Female", "Male", "NaN"], "ill": ["Y", "N", "Y", "NA", "N", "Y"]}
    design = read(Outcome("ill", "bernoulli", event_values=("Y",)), only=["sex"], table=table)
    assert design.names == ["sex[Male]"] and sum(len(y) for _, y in design.clients) == 3


@pytest.mark.parametrize("first", [0, 1])
def test_a_column_that_numbers_the_rows_is_left_out(first):
    design = read(table={"rownames": [first, *range(first + 1, first + 6)], **TABLE})
    assert "rownames" not in design.names
    assert any("'rownames' numbers the rows" in note for note in design.notes)
    assert read(table={"year": [1, 2, 3, 4, 5, 6], **TABLE}, only=["year"]).names == ["year"]
    alone = {"dose": [1, 2, 3], "ill": ["Y", "N", "Y"]}
    said = (
        "^The column 'dose' numbers the rows and is left out, and no other is beside the outcome: name it with --only"
    )
    refuses(said, read, table=alone, client=None)


def test_rows_without_an_exposure_are_left_out():
    counts = {**TABLE, "years": [1.0, None, 2.0, 1.0, 3.0, 1.0], "grade": [1, 2, 3, 2, 1, 1]}
    design = read(Outcome("grade", "poisson", exposure="years"), only=["sex"], table=counts)
    assert sum(map(len, design.offset)) == sum(len(y) for _, y in design.clients) == 4


def test_a_column_that_a_client_lacks_is_named():
    table = {**TABLE, "age": [None, 60.0, None, 70.0, 40.0, 30.0], "ill": ["Y", "N", "Y", "Y", "N", "N"]}
    notes = read(table=table).notes
    assert any("The column 'age' is empty at b" in note for note in notes)
    assert "No row is left of b." in notes


def test_events_are_chosen_by_value():
    by_grade = read(Outcome("grade", "bernoulli", event_values=("2", "3")), only=["sex"])
    np.testing.assert_array_equal(np.concatenate([y for _, y in by_grade.clients]), [1, 1, 0, 1, 0])
    survival = read(Outcome("age", "cox", event="ill"), only=["sex"])
    np.testing.assert_array_equal(survival.clients[0][1], [[60, 0], [70, 1]])


def test_columns_of_dictionaries_and_frames_are_read():
    encoded = pyarrow.table({**TABLE, "sex": pyarrow.array(TABLE["sex"]).dictionary_encode()})
    assert read_design(encoded, Outcome("ill", "bernoulli"), "site").names == read().names


def of(outcome=None, times=1, **columns):
    return {"outcome": outcome, "table": {name: cells * times for name, cells in TABLE.items()} | columns}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"outcome": Outcome("sick", "bernoulli")}, "There is no column 'sick'"),
        ({"client": "hospital"}, "There is no column 'hospital'"),
        ({"client": "ill"}, "must name different columns"),
        ({"drop": ["weight"]}, "for --drop"),
        ({"only": ["weight"]}, "for --only"),
        ({"categorical": ["weight"]}, "for --categorical"),
        ({"missing": "impute"}, "There is no way with empty cells 'impute'"),
        ({"outcome": Outcome("grade", "bernoulli")}, "must hold two values, but holds 3 ('1', '2', '3')"),
        ({"outcome": Outcome("grade", "bernoulli", event_values=("7",))}, "There is no value '7'"),
        ({"outcome": Outcome("sex", "bernoulli"), "only": ["age"]}, "holds 'Female' and 'Male': give --event-value"),
        ({"outcome": Outcome("ill", "gaussian")}, "'ill' holds 'Y' in row 1, which is no number: name a column"),
        ({"outcome": Outcome("age", "cox")}, "--event names the column"),
        ({"outcome": Outcome("age", "gaussian", event="ill")}, "--event names the column"),
        ({"outcome": Outcome("age", "poisson", event_values=("1",))}, "--event-value is for bernoulli and cox"),
        ({"only": ["ill"]}, "there is nothing to estimate"),
        (of(age=[None] * 6), "In the table the column 'age' has no value: leave"),
        (of(sex=["Male"] * 6), "'sex' is 'Male' in all rows"),
        (of(sex=np.array(["2020-01-01"] * 6, "datetime64[D]")), "holds dates, such as '2020"),
        (of(times=40, sex=[f"n{i}" for i in range(240)]), "texts, such as"),
        (of(age=[None, None, 1.0, None, 1.0, 1.0]), "'age' is empty at a: leave it out with --drop"),
        ({"client": None} | of(age=[None, None, 1.0, None, None, None]), "is complete: give --missing indicate"),
        (of(age=[1.0, 2.0, 3.0, np.inf, 5.0, 6.0]), "holds inf in row 4"),
        (of(times=40, sex=[f"{i}" for i in range(239)] + ["high"]), "holds 'high' in row 240"),
        (of(ill=[None] * 6), "The column 'ill' of the table is empty: name another outcome"),
        (
            of(Outcome("age", "poisson"), age=[1, 2, -3, 4, 5, 6]),
            "hold counts (0, 1, 2, ...) for the family poisson, but",
        ),
        (of(Outcome("age", "poisson"), age=[1.0, 2.5, 3, 4, 5, 6]), "but row 2 is 2.5"),
        (
            of(Outcome("age", "cox", "ill"), age=[0.0, 2.5, 3, 4, 5, 6]),
            "times above 0, but row 1 is 0",
        ),
    ],
)
def test_bad_input_is_one_sentence(options, message):
    refuses(re.escape(message), read, **options)
