"""Numbers as spreadsheets of several countries write them, and dates: only ISO 8601 is one, but no category either."""

import numpy as np
import pandas
import pyarrow
import pyarrow.parquet
import pytest

from tests.data.test_tables import LABELS, ROWS, X, repeated, write
from tests.kit import refuses
from tfp_bfl.data import read_own, read_rows


@pytest.mark.parametrize(
    ("cells", "wanted"),
    [
        (["0,5", "1", "-2,25e1"], [0.5, 1, -22.5]),
        (["1234,5", "1,234"], [1234.5, 1.234]),
        ([",5", "3"], [0.5, 3]),
        (["1,234", "2,000"], "'x' holds '1,234' in row 1, where the comma may be decimal or group thousands"),
        (["2", "1.234"], [2, 1.234]),
        (["1.234,5", "2"], [1234.5, 2]),
        (["1.234.567", "-2"], [1234567, -2]),
        (["1,234.5", "2,000"], [1234.5, 2000]),
        (["1 234,5", "-12\u00a0000,25"], [1234.5, -12000.25]),
        (["1'234.5", "12\u2019000"], [1234.5, 12000]),
        (["1,52,500.00", "2,000"], [152500, 2000]),
        (["0,5\u00a0", "2"], [0.5, 2]),
        (["\u22122", "1.5"], [-2, 1.5]),
        (["\u22121.234,5", "-3"], [-1234.5, -3]),
        (["1,5", "2.5"], "'x' holds '1,5' in row 1, which is no number"),
        (["0,5", "2,5"] * 3 + ["cash"], "'x' holds 'cash' in row 7, which is no number"),
        (["1.23,4", "2"], "'x' holds '1.23,4' in row 1, which is no number"),
        (["12 34", "2"], "'x' holds '12 34' in row 1, which is no number"),
    ],
)
def test_notations_of_numbers(tmp_path, cells, wanted):
    path = write(tmp_path / "d.csv", ["x", "label"], repeated(*cells), LABELS, separator=";")
    if isinstance(wanted, str):
        refuses(wanted, read_rows, path, ["x"])
    else:
        np.testing.assert_allclose(read_rows(path, ["x"])[:, 0], np.resize(wanted, ROWS))


@pytest.mark.parametrize("other", [["60,5", "7,25"], ["1.234,5", "2"], ["60,5", "NA"], ["1 234,5"]])
@pytest.mark.parametrize("cells", [["2", "1.234"], ["1.234", "950", ""], ["2.000"], ["NA", "1.234"]])
def test_points_that_may_group_thousands_beside_decimal_commas(tmp_path, cells, other):
    names, columns = ["x", "y", "label"], [repeated(*cells), repeated(*other), LABELS]
    path = write(tmp_path / "d.csv", names, *columns, separator=";")
    row = next(i for i, cell in enumerate(cells) if "." in cell)
    wanted = f"'x' holds '{cells[row]}' in row {row + 1}, where the point may be decimal or group thousands"
    frame = pyarrow.table({name: column.astype(str) for name, column in zip(names, columns)})
    for table in (path, frame, frame.to_pandas()):
        refuses(wanted, read_own, table, label="label")
    refuses(wanted, read_rows, path, ["x", "y"])
    assert "x" not in [x.name for x in read_own(path, drop=["x"]).train.columns]


def test_what_a_file_says_of_its_notation_is_not_believed(tmp_path):
    table = pyarrow.table({"x": [1.5, 2.0] * 30, "label": LABELS}).replace_schema_metadata({"tfp_bfl.notation": "{"})
    pyarrow.parquet.write_table(table, tmp_path / "d.parquet")
    for given in (table, tmp_path / "d.parquet"):
        assert [x.name for x in read_own(given).train.columns] == ["x"]


@pytest.mark.parametrize("cells", [["2.5", "1.234"], ["1.2345", "3"], ["1e-3", "2"], ["1000.5", "2"]])
def test_points_that_group_nothing_beside_decimal_commas(tmp_path, cells):
    path = write(tmp_path / "d.csv", ["x", "y", "label"], repeated(*cells), repeated("60,5"), LABELS, separator=";")
    np.testing.assert_allclose(read_rows(path, ["x"])[:2, 0], np.array(cells, float))


@pytest.mark.parametrize("how", [{"drop": "y"}, {"only": "x"}, {"categorical": "y"}, {}])
@pytest.mark.parametrize("cells", [["1.234", "2.000"], ["1,234", "2,000"]])
def test_columns_that_are_no_numbers_say_nothing_of_others(tmp_path, cells, how):
    """Without options a column with decimal points beside it says that notations differ by column."""
    points = [] if how else [repeated("0.55", "0.25")]
    columns = [repeated(*cells), repeated("1,2", "2,3"), *points, LABELS]
    path = write(tmp_path / "d.csv", ["x", "y", *["z"][: len(points)], "label"], *columns, separator=";")
    if "," in cells[0]:
        refuses("'x' holds '1,234' in row 1, where the comma may be decimal", read_own, path, **how)
    else:
        train = read_own(path, **how).train
        assert abs(train.columns[0].mean - 1.617) < 0.1


@pytest.mark.parametrize("other", ["60,5", "1 234,5"])
def test_a_column_of_decimal_commas_decides_for_the_others(tmp_path, other):
    columns = repeated("1,234", "2,000"), repeated(other), LABELS
    path = write(tmp_path / "d.csv", ["x", "y", "label"], *columns, separator=";")
    np.testing.assert_allclose(read_rows(path, ["x", "y"])[:2, 0], [1.234, 2])


def test_numbers_to_regress_on_with_decimal_commas_and_words(tmp_path):
    path = write(tmp_path / "d.csv", ["x", "y"], repeated("1,5", "2"), repeated("12,5", "NA", "13,1"), separator=";")
    data = read_own(path, label="y", task="regression")
    assert len(data.train.labels) + len(data.test.labels) == 40 and "20 rows without a label" in data.notes[0]


def test_dates_of_nanoseconds():
    days = np.arange(ROWS) * 86_400_000_000_000 + 1
    table = pyarrow.table({"day": pyarrow.array(days, pyarrow.timestamp("ns")), "label": LABELS})
    train = read_own(table, date_unit="days").train
    assert train.encoding[0].unit == "days"


NO_DATES = "1.2.3|2020|May|10-20|1/2|a 1.12.2020|10:30|127.0.0.1|5 mg 20|2020-21|dec|MARCH1|Marker 12|5 marks"
NOT_ISO = (
    "31.12.2020|12/31/20|1/2/2021 10:30|2020/12/31|31-Dec-2020|Dec. 31 2020|3 März 2021|2020-12|1/2020|Dec 2020|Jan-20|"
    "12-Feb|31DEC2020|DEC2020|DEC20|31DEC2020:10:20:00"
)


@pytest.mark.parametrize("unit", [None, "years"])
@pytest.mark.parametrize("text", NOT_ISO.split("|"))
def test_dates_that_are_not_iso_are_no_categories(tmp_path, text, unit):
    path = write(tmp_path / "d.csv", ["x", "day", "label"], X, repeated(text, "1.12.2019", "", text), LABELS)
    message = rf"'day' holds dates as text, such as '{text}' in row 1.*write dates as 2020-12-31.*--categorical"
    refuses(message, read_own, path, date_unit=unit)
    assert read_own(path, categorical=["day"], date_unit=unit).train.encoding[1].kind == "category"


@pytest.mark.parametrize("text", NO_DATES.split("|"))
def test_categories_that_are_no_dates(tmp_path, text):
    train = read_own(write(tmp_path / "d.csv", ["x", "t", "label"], X, repeated(text, text, "b"), LABELS)).train
    assert train.encoding[1].kind == "category"


@pytest.mark.parametrize(("bad", "row"), [("unknown", 5), ("31.12.2020", 3)])
def test_a_cell_that_is_no_date_is_named(tmp_path, bad, row):
    days = repeated("2020-12-31", "2019-01-05")
    days[row] = bad
    path = write(tmp_path / "d.csv", ["x", "day", "label"], X, days, LABELS)
    refuses(f"'day' holds '{bad}' in row {row + 1}, which is no date such as", read_own, path, date_unit="years")
    path = write(tmp_path / "d.csv", ["x", "day", "label"], X, repeated("2020-02-30", "2019-01-05"), LABELS)
    refuses("'day' holds dates as text, such as '2020-02-30' in row 1", read_own, path, date_unit="years")


def test_a_date_that_does_not_exist(tmp_path):
    path = write(tmp_path / "d.csv", ["x", "day", "label"], X, repeated("2020-02-30", "2019-01-05"), LABELS)
    refuses("'day' holds dates as text, such as '2020-02-30' in row 1", read_own, path, date_unit="years")


@pytest.mark.parametrize("text", [("2020-12-31", "2019-01-05"), ("2020-12-31 10:20:00", "2019-01-05T00:00")])
def test_dates_as_text_in_memory_are_those_of_a_file(tmp_path, text):
    columns = {"day": repeated(*text), "x": X, "label": LABELS}
    wanted = read_own(write(tmp_path / "d.csv", list(columns), *columns.values()), date_unit="years").train
    for table in (pandas.DataFrame(columns), pyarrow.table(columns)):
        found = read_own(table, date_unit="years").train
        np.testing.assert_allclose(found.features, wanted.features, rtol=1e-6)
        refuses(r"'day' holds dates, such as '2020-12-31.*' in row 1", read_own, table)
