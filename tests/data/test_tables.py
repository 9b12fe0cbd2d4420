"""Tables as programs write them: names that look like numbers, encodings, separators, row indices, gaps."""

import numpy as np
import pandas
import pyarrow
import pyarrow.csv
import pyarrow.parquet
import pytest

from tests.kit import refuses
from tfp_bfl.data import read_own, read_part, read_rows
from tfp_bfl.data.names import check_spelling, natural, ordered
from tfp_bfl.glm.design import Outcome, read_design

RNG = np.random.default_rng(1)
ROWS = 60
X = RNG.normal(size=ROWS).round(3)
LABELS = np.where(np.arange(ROWS) % 2, "yes", "no")


def write(path, header, *columns, separator=",", encoding="utf-8", end="\n"):
    lines = [separator.join(header), *(separator.join(map(str, row)) for row in zip(*columns))]
    path.write_bytes((end.join(lines) + end).encode(encoding))
    return path


def repeated(*names):
    return np.resize(np.array(names, object), ROWS)


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        (("007", "7", "8"), ("007", "7", "8")),
        (("1e2", "100", "8"), ("8", "100", "1e2")),
        (("12345678901234567890", "12345678901234567891"), ("12345678901234567890", "12345678901234567891")),
        (("2020-01-01T00:00:00+02:00", "2019-12-31T22:00:00Z"), None),
        (("true", "TRUE", "1"), ("1", "TRUE", "true")),
        (("NA", "null", "nan"), ("NA", "nan", "null")),
        (("10", "9", "-1", "2.5"), ("-1", "2.5", "9", "10")),
        (("²", "①", "٣", "c10", "c9"), ("c9", "c10", "²", "٣", "①")),
        (("inst 3.0", "3.5", "3"), ("3", "3.5", "inst 3.0")),
    ],
)
def test_clients_and_classes_are_the_names_in_the_file(tmp_path, names, wanted):
    path = write(tmp_path / "d.csv", ["x", "who", "label"], X, repeated(*names), LABELS)
    data = read_own(path, client="who")
    assert sorted(data.client_names) == sorted(names) and data.clients.num_clients == len(names)
    if wanted:
        assert data.client_names == tuple(sorted(wanted, key=natural)) and set(wanted) == set(names)
    with_classes = read_own(write(tmp_path / "c.csv", ["x", "label"], X, repeated(*[n for n in names if n != "2.5"])))
    assert sorted(with_classes.train.class_names) == sorted(n for n in names if n != "2.5")


@pytest.mark.parametrize("form", ["file", "frame", "archive", "arrays"])
def test_spellings_of_one_client_are_one_client(tmp_path, form):
    names = repeated("A", "A ", " A", "3", "3.0", "b")
    path = tmp_path / {"file": "d.csv", "archive": "d.npz"}.get(form, "none")
    write(tmp_path / "d.csv", ["x", "clients", "label"], X, names, LABELS)
    np.savez(tmp_path / "d.npz", features=X[:, None], labels=LABELS, clients=np.array(names, str))
    frame = pandas.DataFrame({"x": X, "clients": names, "label": LABELS})
    given = {"frame": frame, "arrays": (X[:, None], LABELS, np.array(names, object))}.get(form, path)
    data = read_own(given, client="clients" if form in ("file", "frame") else None)
    assert data.client_names == ("3", "A", "b")
    assert "'clients' writes the client 'A' in 3 ways, such as 'A' and 'A ': they are one client." in data.notes


def test_classes_that_are_numbers_are_in_the_order_of_their_values(tmp_path):
    path = write(tmp_path / "d.csv", ["x", "label"], X, repeated("10", "9", "1", "-1", "02"))
    assert read_own(path).train.class_names == ("-1", "1", "02", "9", "10")
    assert ordered(["1E5", "100000", "2E1"]) == ("2E1", "100000", "1E5") and ordered(["b10", "b9"]) == ("b10", "b9")
    assert sorted(["9" * 5000, "1", "1e99999"], key=natural) == ["1", "9" * 5000, "1e99999"]


def test_whole_numbers_of_parquet_are_named_without_a_fraction(tmp_path):
    who = [float(k) for k in np.resize([3, 20], ROWS)]
    for first in (3.0, None):
        table = pyarrow.table({"x": X, "who": [first, *who[1:]], "label": LABELS})
        pyarrow.parquet.write_table(table, tmp_path / "d.parquet")
        assert read_own(tmp_path / "d.parquet", client="who").client_names == ("3", "20")


@pytest.mark.parametrize("empty", ["", " ", '""'])
@pytest.mark.parametrize("column", ["who", "label", "x"])
def test_rows_without_a_label_or_a_client_are_left_out(tmp_path, column, empty):
    columns = {"x": X.astype(object), "who": repeated("a", "b"), "label": LABELS.astype(object)}
    columns[column][7] = empty
    path = write(tmp_path / "d.csv", list(columns), *columns.values())
    data = read_own(path, client="who")
    assert data.train.num_examples + data.test.num_examples == ROWS - (column != "x")
    assert ("1 row without a label or a client left out." in data.notes) == (column != "x")
    options = {"client": "who"} if column == "who" else {}
    part = read_part(path, drop=list(options.values()))
    assert part.train.num_examples + part.test.num_examples == ROWS - (column == "label")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be"])
@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_encodings_separators_and_ends_of_lines(tmp_path, encoding, separator, end):
    path = tmp_path / "d.csv"
    write(path, ["größe", "who", "label"], X, repeated("Köln", "Bonn"), LABELS, separator=separator, end=end)
    mark = b"\xfe\xff" if encoding == "utf-16-be" else b""  # which the other two write themselves
    path.write_bytes(mark + path.read_bytes().decode().encode(encoding))
    data = read_own(path, client="who")
    assert [c.name for c in data.train.columns] == ["größe"] and data.client_names == ("Bonn", "Köln")


def test_text_that_is_not_utf_8_is_refused_with_its_line(tmp_path):
    path = write(tmp_path / "d.csv", ["x", "who", "label"], X, repeated("Bonn", "Köln"), LABELS, encoding="latin-1")
    refuses("is not UTF-8 text, first in line 3: save it as UTF-8", read_own, path, client="who")
    for encoding in ("utf-16-le", "utf-16-be", "utf-32", "utf-32-be"):
        path = write(tmp_path / "w.csv", ["x", "label"], X, LABELS, encoding=encoding)
        refuses("is not UTF-8 text, first in line 1: save it as UTF-8", read_own, path)
    path = write(tmp_path / "h.csv", ["größe", "label"], X, LABELS, encoding="latin-1")
    refuses("not UTF-8 text, first in line 1", read_own, path)
    for name in ("clients", "labels"):
        arrays = {"features": np.zeros((8, 2)), "labels": np.resize(["a", "b"], 8), name: np.array([b"K\xf6ln"] * 8)}
        np.savez(tmp_path / "d.npz", **arrays)
        refuses("is not UTF-8 text: save names as text", read_own, tmp_path / "d.npz")


@pytest.mark.parametrize("name", ["who", "label"])
@pytest.mark.parametrize("in_memory", [False, True])
def test_a_nul_in_a_name_is_refused(tmp_path, name, in_memory):
    # NumPy drops it from the end of a string: the rows of "y\0" would be those of "y", and of two clients.
    columns = {"x": X, "who": list("xy" * (len(X) // 2)), "label": list(LABELS)}
    columns[name] = [*columns[name][:-1], "y\0"]
    path = pyarrow.table(columns) if in_memory else write(tmp_path / "d.csv", [*columns], *columns.values())
    refuses(r"The name 'y\\x00' contains the character NUL: remove it", read_own, path, client="who")


def test_clients_of_an_archive_that_are_bytes_are_text(tmp_path):
    arrays = {"features": RNG.normal(size=(20, 2)), "labels": np.arange(20) % 2}
    np.savez(tmp_path / "d.npz", **arrays, clients=np.resize(np.array([b"A", "Ö".encode()]), 20))
    assert read_own(tmp_path / "d.npz").client_names == ("A", "Ö")
    np.savez(tmp_path / "d.npz", **arrays, clients=np.resize([1.0, 20.0], 20))
    assert read_own(tmp_path / "d.npz").client_names == ("1", "20")
    np.savez(tmp_path / "d.npz", **arrays, clients=np.resize(["a", ""], 20))
    refuses(r"array clients of .* has 10 empty names, the first in example 1", read_own, tmp_path / "d.npz")
    np.savez(tmp_path / "d.npz", features=arrays["features"], labels=np.array(["a", "b"] * 10, object))
    refuses(r"array 'labels'.* holds Python objects: save .* as text or numbers", read_own, tmp_path / "d.npz")


@pytest.mark.parametrize("word", ["n/a", "#N/A", "-NaN", "1.#QNAN", "NULL", "<NA>"])
def test_words_for_empty_cells_are_those_of_numbers_and_of_text(tmp_path, word):
    columns = [repeated(1, 2, 3, 4, 5, word), repeated("a", "b", word), LABELS]
    for end in ([], [repeated("x", "y", f" {word} ")]):
        header = ["n", "t", "label"] if not end else ["n", "t", "label", "u"]
        train = read_own(write(tmp_path / "d.csv", header, *columns, *end)).train
        assert [x.kind for x in train.encoding[:2]] == ["number", "category"]
        assert train.encoding[1].levels == ("a", "b") and all(x.has_missing for x in train.encoding)


def test_a_separator_that_is_given(tmp_path):
    path = write(tmp_path / "d.csv", ["x", "label"], X, LABELS, separator=" ")
    assert read_own(path, separator="space").train.class_names == ("no", "yes")
    path = write(tmp_path / "d.csv", ["x,1", "b,2", "label"], X, X, LABELS, separator=";")
    assert [c.name for c in read_own(path, separator=";").train.columns] == ["x,1", "b,2"]
    np.testing.assert_allclose(read_rows(path, ["b,2"], ";")[:, 0], X, rtol=1e-6)
    refuses("separator is 'tabs', but must be one character, or one of comma", read_own, path, separator="tabs")
    np.savez(tmp_path / "d.npz", features=np.zeros((8, 2)), labels=np.arange(8) % 2)
    refuses(r"separator belongs to tables, and .*d.npz is none", read_own, tmp_path / "d.npz", separator=";")
    refuses("drop belongs to tables", read_own, tmp_path / "d.npz", drop=["a"])


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize(("first", "separator"), [("sep=;\n", ";"), ("SEP=|\r\n", "|"), ('"sep=,"\n', ",")])
def test_a_first_line_that_names_the_separator(tmp_path, first, separator, encoding):
    path = write(tmp_path / "d.csv", ["x", "label"], X, LABELS, separator=separator)
    text = first + path.read_text()
    path.write_text(text, encoding=encoding)
    assert [c.name for c in read_own(path).train.columns] == ["x"]
    path.write_text(text + f"1{separator}yes{separator}3\n", encoding=encoding)
    refuses(f"Row {ROWS + 1} of .* has 3 cells, but the header has 2", read_own, path)


@pytest.mark.parametrize(
    ("column", "labels", "wanted"),
    [
        (("M", "f", "F"), ("no", "yes"), ["In 'x' 'F' and 'f' differ in case only: they are two values."]),
        (("M", "F"), ("no", "yes", "No"), ["In 'label' 'No' and 'no' differ in case only: they are two values."]),
        (("1", "2"), ("a", "A"), []),
        (("M", "F"), ("no", "yes"), []),
    ],
)
def test_spellings_that_differ_in_case_are_noted(tmp_path, column, labels, wanted):
    path = write(tmp_path / "d.csv", ["x", "label"], repeated(*column), repeated(*labels))
    assert [note for note in read_own(path).notes if "case" in note] == wanted
    found = read_design(path, Outcome("label", "bernoulli", event_values=labels[:1])).notes
    assert [note for note in found if "case" in note] == [note for note in wanted if "'x'" in note]


def test_blank_rows_at_the_end_are_no_rows(tmp_path):
    path = write(tmp_path / "d.csv", ["id", "x", "label"], range(1, ROWS + 1), X, LABELS)
    path.write_text(path.read_text() + ",,\n,NA,\n")
    data = read_own(path)
    assert [c.name for c in data.train.columns] == ["x"]
    assert data.notes == ("The column 'id' numbers the rows and is left out: name it with --only to use it.",)
    frame = pandas.read_csv(path)
    own = read_own(frame, drop="id")
    assert len(frame) == ROWS + 2 and len(own.train.labels) + len(own.test.labels) == ROWS and own.notes == ()
    refuses("'x' has no value", read_own, write(tmp_path / "e.csv", ["x", "label"], [""] * ROWS, [""] * ROWS))


def test_line_breaks_in_cells_of_a_long_file_and_text_far_down(tmp_path):
    path, count = tmp_path / "d.csv", 30_000
    rows = (f'{i * 7 % 13},"line,\nline {"z" * (i % 50)}",{"ab"[i % 2]}\n' for i in range(count))
    path.write_text("x,t,label\n" + "".join(rows))
    data = read_own(path, drop="t")
    assert len(data.train.labels) + len(data.test.labels) == count
    path.write_text("x,label\n" + "0,a\n0,b\n" * 150_000 + "none,a\n")
    refuses("'x' holds 'none' in row 300001", read_own, path)


@pytest.mark.parametrize("option", ["drop", "only", "categorical"])
def test_text_is_one_name_of_a_column(tmp_path, option):
    columns = repeated(1, 2, 3), repeated(4, 5), LABELS
    path = write(tmp_path / "d.csv", ["ab", "a", "label"], *columns)
    names = {"drop": ["a"], "only": ["ab"], "categorical": ["ab[1]", "ab[2]", "ab[3]", "a"]}[option]
    assert [c.name for c in read_own(path, **{option: "ab"}).train.columns] == names
    twice = read_own(path, **{option: ["ab", "ab"]}).train.columns
    assert [c.name for c in twice] == names
    found = read_design(path, Outcome("label", "bernoulli"), **{option: "ab"}).names
    assert found == {**dict.fromkeys(["drop", "only"], names), "categorical": ["ab[2]", "ab[3]", "a"]}[option]


def test_a_column_of_numbers_with_a_mistake_is_no_column_of_clients(tmp_path):
    ages = np.resize(np.arange(20, 55).astype(object), 2 * ROWS)
    ages[5] = "?"
    path = write(tmp_path / "d.csv", ["age", "label"], ages, np.resize(LABELS, 2 * ROWS))
    assert "--client-column" not in refuses(r"'age' holds '\?' in row 6", read_own, path)


def test_row_indices_are_no_features(tmp_path):
    values = [np.arange(ROWS), *RNG.normal(size=(4, ROWS)).round(3), LABELS]
    wanted = ["a", "b", "c", "d"]
    names = ("", "Unnamed: 0")
    paths = [write(tmp_path / f"{i}.csv", [name, *wanted, "label"], *values) for i, name in enumerate(names)]
    table = pyarrow.table(dict(zip([*wanted, "label", "__index_level_0__"], [*values[1:], values[0]])))
    pyarrow.parquet.write_table(table, tmp_path / "p.parquet")
    named = table.rename_columns([*wanted, "label", "row"])
    named = named.replace_schema_metadata({"pandas": '{"index_columns": ["row"]}'})
    pyarrow.parquet.write_table(named, tmp_path / "n.parquet")
    trailing = tmp_path / "t.csv"
    trailing.write_text("".join(f"{line},\n" for line in paths[0].read_text().splitlines()))
    for path in [*paths, trailing, tmp_path / "p.parquet", tmp_path / "n.parquet"]:
        assert [c.name for c in read_own(path).train.columns] == wanted, path
    # An index that is asked for is a column.
    assert read_own(tmp_path / "n.parquet", client="row", test=paths[0]).clients.num_clients == ROWS
    path = write(tmp_path / "u.csv", ["a", "b", "", "label"], X, X, X, LABELS)
    refuses("has a column without a name, number 3: name it", read_own, path)


def test_all_troubles_of_a_table_in_one_sentence(tmp_path):
    columns = {"bill": X.astype(object), "sex": repeated("m", "f"), "date": repeated("2024-04-11"), "label": LABELS}
    columns |= {"name": [f"n{k}" for k in range(ROWS)], "nothing": [""] * ROWS}
    columns["bill"][3] = "cash"
    path = write(tmp_path / "d.csv", list(columns), *columns.values())
    message = refuses(".", read_own, path)
    for part in (
        "'bill' holds 'cash' in row 4, which is no number",
        "'name' holds 60 texts, such as 'n0' in row 1",
        "'nothing' has no value",
        "'date' holds dates, such as '2024-04-11' in row 1",
        ": leave columns out with --drop, correct the cell, give --categorical for categories, give --date-unit",
        "give --date-unit years (or months, weeks, days) to count them",
    ):
        assert part in message
    assert message.count(". ") == 0 and len(message) < 600
    many = write(tmp_path / "m.csv", [*(f"column number {i}" for i in range(40)), "label"], *[[""] * ROWS] * 40, LABELS)
    refuses(r"; likewise 'column number \d+', .* and \d+ more: ", read_own, many)
    columns["bill"] = X
    path = write(tmp_path / "d.csv", list(columns), *columns.values())
    dropped = read_own(path, client="sex", drop=["date", "name", "nothing"])
    assert [c.name for c in dropped.train.columns] == ["bill"]
    refuses(r"no column 'dat' in .* for --drop: did you mean 'date'", read_own, path, drop=["dat"])


@pytest.mark.parametrize("cell", ["?", ".", "text"])
@pytest.mark.parametrize("row", [0, 41, 59])
def test_the_first_cell_that_is_no_number_is_named_with_its_row(tmp_path, cell, row):
    x = X.astype(object)
    x[row] = cell
    path = write(tmp_path / "d.csv", ["x", "label"], x, LABELS)
    refuses(f"the column 'x' holds '[{cell}]+' in row {row + 1}, which is no number", read_own, path)


@pytest.mark.parametrize(
    ("labels", "task", "message"),
    [
        (repeated("yes"), "classification", "labels of the column 'label' of .*d.csv are all 'yes': a model requires"),
        (repeated("0.1"), "regression", "labels of the column 'label' of .* are 0.1 in all training rows"),
        (X, "classification", "are numbers with fractions, such as .*--task regression"),
        (
            repeated("0", "1", "0.0", "1.0"),
            "classification",
            "'0' and '0.0', which differ in the way to write a number",
        ),
        (np.arange(ROWS), "classification", "have 60 distinct values in 60 examples: .*--task regression"),
        ([f"text {i}" for i in range(ROWS)], "classification", "60 distinct values .* choose a column that names"),
    ],
)
def test_labels_of_which_nothing_is_learnt(tmp_path, labels, task, message):
    path = write(tmp_path / "d.csv", ["x", "label"], X, labels)
    refuses(message, read_own, path, task=task)
    if "all" in message:  # One site may have one class.
        train = read_part(path, task=task).train
        assert train.class_names == ("yes",) if task == "classification" else train.target == ("label", 0.1, 0.0)


def test_spellings_of_a_class_at_different_clients(tmp_path):
    who, label = repeated("north", "south"), repeated("Dog", "dog", "cat", "cat")
    path = write(tmp_path / "d.csv", ["x", "who", "label"], X, who, label)
    refuses("class 'Dog' of 'north' and the class 'dog' of 'south' differ in case", read_own, path, client="who")
    check_spelling({"north": ["Dog", "dog"], "south": ["dog"]})
    check_spelling({"north": ["A"], "south": ["a"]})
