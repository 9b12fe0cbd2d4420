"""Dates in tables: ISO 8601 is a date, other forms are no categories."""

import numpy as np
import pandas
import pyarrow
import pytest

from tests.data.test_tables import LABELS, ROWS, X, repeated, write
from tfp_bfl.data import read_own
from tfp_bfl.errors import InvalidArgument


def test_dates_of_nanoseconds(tmp_path):
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
    with pytest.raises(InvalidArgument) as caught:
        read_own(path, date_unit=unit)
    for part in (f"'day' holds dates as text, such as '{text}' in row 1", "write dates as 2020-12-31", "--categorical"):
        assert part in str(caught.value)
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
    with pytest.raises(InvalidArgument, match=f"'day' holds '{bad}' in row {row + 1}, which is no date such as"):
        read_own(path, date_unit="years")


def test_a_date_that_does_not_exist(tmp_path):
    path = write(tmp_path / "d.csv", ["x", "day", "label"], X, repeated("2020-02-30", "2019-01-05"), LABELS)
    with pytest.raises(InvalidArgument, match="'day' holds dates as text, such as '2020-02-30' in row 1"):
        read_own(path, date_unit="years")


@pytest.mark.parametrize("text", [("2020-12-31", "2019-01-05"), ("2020-12-31 10:20:00", "2019-01-05T00:00")])
def test_dates_as_text_in_memory_are_those_of_a_file(tmp_path, text):
    columns = {"day": repeated(*text), "x": X, "label": LABELS}
    wanted = read_own(write(tmp_path / "d.csv", list(columns), *columns.values()), date_unit="years").train
    for table in (pandas.DataFrame(columns), pyarrow.table(columns)):
        found = read_own(table, date_unit="years").train
        np.testing.assert_allclose(found.features, wanted.features, rtol=1e-6)
        with pytest.raises(InvalidArgument, match=r"'day' holds dates, such as '2020-12-31.*' in row 1"):
            read_own(table)
