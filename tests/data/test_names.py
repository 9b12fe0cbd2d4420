"""Names have one form at every entry: classes, categories, clients, columns, folders and options."""

import re
import unicodedata

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pandas
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from tests.data.test_tables import ROWS, repeated
from tests.data.test_tables import write as rows
from tests.fuzz.harness import inputs
from tests.kit import refuses
from tfp_bfl.app.options.config import make_config
from tfp_bfl.data import Clients, Source, read_own, read_part, read_rows
from tfp_bfl.data.names import CATEGORY_RULES, as_category, canonical, compositions
from tfp_bfl.data.rows import read_encoded
from tfp_bfl.errors import lookup
from tfp_bfl.evaluation import client_scores
from tfp_bfl.glm import agreement
from tfp_bfl.glm.command import names_of
from tfp_bfl.glm.design import Outcome, SiteCells, read_design
from tfp_bfl.options import class_weights
from tfp_bfl.sites import agree, describe
from tfp_bfl.sites.schema import parse_options

NAME = unicodedata.normalize("NFC", "K\u00f6ln (S\u00fcd)")
FORMS = {
    "decomposed": unicodedata.normalize("NFD", NAME),
    "blank at its end": f"{NAME} ",
    "no-break space before it": f"\u00a0{NAME}",
    "two blanks in it": NAME.replace(" ", "  "),
    "line end in it": NAME.replace(" ", " \u2028"),
    "zero-width space": f"{NAME}\u200b",
    "byte order mark": f"\ufeff{NAME}",
    "soft hyphen": NAME.replace("ln", "l\u00adn"),
    "left-to-right mark": f"\u200e{NAME}",
    "joiner between letter and mark": unicodedata.normalize("NFD", NAME).replace("o\u0308", "o\u034f\u0308"),
}
X = np.random.default_rng(5).normal(size=ROWS).round(3)
LABELS = repeated("a", "b", "b")


def folder(path, *parts):
    """Write eight images to each folder."""
    for number, part in enumerate(parts):
        (path / part).mkdir(parents=True, exist_ok=True)
        for i in range(8):
            pixels = np.full((8, 8), number * 30 + i, np.uint8)
            Image.fromarray(pixels).save(path / part / f"{i}.png")
    return path


def source(**given):
    return Source("d", "train", X[:, None], np.resize([0, 1, 1], ROWS), **given)


def site(path, name):
    """A column, a category and a class of two sites, one with each form."""
    columns = [X, repeated("Ulm", name, name), repeated("a", name)]
    parts = [
        read_part(rows(path / f"{i}.csv", [x, "c", "label"], columns[0], *(repeated("Ulm", x, "b") for _ in "cl")))
        for i, x in enumerate((NAME, name))
    ]
    return agree("t", {str(i): describe(part.train) for i, part in enumerate(parts)})


def table(head="c", cells=("Ulm", NAME), **more):
    return pyarrow.table({"x": X, head: repeated(*cells), "y": X, **more})


def linear(name):
    """The columns of two sites of a linear model, one with each form in a name and in a level."""
    outcome = Outcome("y", "gaussian")
    tables = {form: table(form, ("Ulm", form), z=repeated("Ulm", form)) for form in (NAME, name)}
    described = {form: agreement.describe(x, outcome, form) for form, x in tables.items()}
    plan = agreement.agree(described, outcome, "drop")
    designs = [SiteCells(x, outcome, plan, "drop", form).sums() for form, x in tables.items()]
    np.testing.assert_array_equal(*designs)
    assert [x.name for x in plan.columns] == ["x", NAME, "z"]
    return plan.columns[-1].levels


def weights(name):
    clients = Clients(source(class_names=("Ulm", NAME)), [np.arange(ROWS)])
    return [x for x, weight in class_weights.by_class(f"{name}=2", clients).items() if weight == 2]


def served(path, name):
    train = read_own(rows(path / "t.csv", ["x", "c", "label"], X, repeated("Ulm", NAME, NAME, "Bonn"), LABELS)).train
    both = [rows(path / f"{i}.csv", ["x", "c"], [1], [form]) for i, form in enumerate((NAME, name))]
    first, second = (read_encoded(x, train.encoding, train.columns) for x in both)
    assert second.notes == ()
    np.testing.assert_array_equal(first.rows, second.rows)
    return [NAME]


def option(path, **how):
    """The columns that are left, with an option that names one."""
    return headers(own(path, ["x", NAME, "label"], X, X + 1, LABELS, **how))


def own(path, head, *columns, **how):
    return read_own(rows(path / "d.csv", head, *columns), **how)


def in_frame(**columns):
    return read_own(pandas.DataFrame({**columns, "label": LABELS}))


def in_archive(path, **given):
    np.savez(path / "d.npz", **{"features": X[:, None], "labels": LABELS.astype(str), **given})
    return read_own(path / "d.npz")


def options_of_a_run(name):
    given = {
        **dict.fromkeys(("label", "client_column", "drop", "only", "categorical"), name),
        "class_weight": f"{name}=2",
    }
    return {
        getattr(make_config(None, {"dataset": "d.csv", x: y}), x).partition("=")[0].strip() for x, y in given.items()
    }


def headers(data):
    return [x.name for x in data.train.columns]


def levels(data, column=0):
    return data.train.encoding[column].levels


def when(is_found):
    """The name, if the data are as they should be."""
    return [NAME] if is_found else []


XC, ONE_AND_OTHER = ["x", "c", "label"], lambda form, *more: repeated("Ulm", NAME, form, *more)
DOSE = Outcome("y", "gaussian")
# Each reads data with NAME and another form of it, beside other names, and returns the names that are NAME's.
ENTRIES = {
    "class of a file": lambda p, n: own(p, ["x", "label"], X, ONE_AND_OTHER(n)).train.class_names,
    "category of a file": lambda p, n: levels(own(p, XC, X, ONE_AND_OTHER(n, "Bonn"), LABELS), 1),
    "declared category": lambda p, n: levels(in_frame(c=pandas.Categorical(ONE_AND_OTHER(n)), x=X)),
    "ordered category": lambda p, n: levels(in_frame(c=pandas.Categorical(ONE_AND_OTHER(n), ["Ulm", NAME, n], True))),
    "client of a file": lambda p, n: own(p, XC, X, ONE_AND_OTHER(n, "b"), LABELS, client="c").client_names,
    "client of an archive": lambda p, n: in_archive(p, clients=ONE_AND_OTHER(n, "b").astype(str)).client_names,
    "class of an archive": lambda p, n: in_archive(p, labels=ONE_AND_OTHER(n).astype(str)).train.class_names,
    "class name of an archive": lambda p, n: (
        in_archive(p, labels=np.resize([0, 1], ROWS), class_names=np.array(["Ulm", n])).train.class_names
    ),
    "client in memory": lambda p, n: read_own((X[:, None], LABELS, ONE_AND_OTHER(n, "b"))).client_names,
    "class name of a source": lambda p, n: source(class_names=("Ulm", n)).class_names,
    "owner of a source": lambda p, n: source(owners=ONE_AND_OTHER(n)).client_names,
    "class of a folder": lambda p, n: read_own(folder(p / "i", "Ulm", NAME, n)).train.class_names,
    "client of a folder": lambda p, n: (
        read_own(folder(p / "i", *(f"{x}/{label}" for x in ("Ulm", NAME, n) for label in "ab"))).client_names
    ),
    "header of a file": lambda p, n: headers(own(p, [n, "z", "label"], X, X, LABELS)),
    "header of Parquet": lambda p, n: [
        pyarrow.parquet.write_table(table(n, X, label=LABELS), p / "d.parquet"),
        *headers(read_own(p / "d.parquet")),
    ],
    "header in memory": lambda p, n: headers(in_frame(**{n: X, "z": X})),
    "--label": lambda p, n: when(own(p, ["x", NAME], X, LABELS, label=n).train.class_names == ("a", "b")),
    "header of the label": lambda p, n: when(
        own(p, ["x", n], X, repeated("1", "2"), label=NAME).train.class_names == ("1", "2")
    ),
    "--client-column": lambda p, n: when(
        own(p, ["x", NAME, "label"], X, repeated("u", "v"), LABELS, client=n).client_names == ("u", "v")
    ),
    "--drop": lambda p, n: when(len(option(p, drop=[n])) == 1),
    "--drop in memory": lambda p, n: when(len(headers(read_own(table(NAME, X, label=LABELS), drop=[n]))) == 2),
    "--only": lambda p, n: option(p, only=[n]),
    "--categorical": lambda p, n: when(
        levels(own(p, [NAME, "label"], repeated("01", "02", "3"), LABELS, categorical=[n])) == ("01", "02", "3")
    ),
    "columns of read_rows": lambda p, n: when(read_rows(rows(p / "d.csv", [NAME], [3]), [n]).tolist() == [[3.0]]),
    "served row": served,
    "column of two sites": lambda p, n: [x.name for x in site(p, n).encoding],
    "class of two sites": lambda p, n: site(p, n).class_names,
    "category of two sites": lambda p, n: site(p, n).encoding[1].levels,
    "options of a site": lambda p, n: parse_options({"drop": [n]}).drop,
    "level and column of a linear model at sites": lambda p, n: linear(n),
    "column of a linear model": lambda p, n: read_design(table(n, X), DOSE).names,
    "level of a linear model": lambda p, n: [
        x[2:-1] for x in read_design(table(cells=("Aach", NAME, n)), DOSE).names if x[:2] == "c["
    ],
    "client of a linear model": lambda p, n: read_design(table(cells=("Ulm", NAME, n, "b")), DOSE, "c").client_names,
    "outcome of a linear model": lambda p, n: when(len(read_design(table(NAME, X), Outcome(n, "gaussian")).names) == 2),
    "list of columns": lambda p, n: names_of(f"{n}, , "),
    "--class-weight": lambda p, n: weights(n),
    "client of scores": lambda p, n: [x["client"] for x in client_scores(X, X, np.resize([NAME, n, "Ulm"], ROWS))],
    "options of a run": lambda p, n: options_of_a_run(n),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("entry", ENTRIES)
def test_a_name_has_one_form_at_every_entry(tmp_path, entry, form):
    others = (None, "", "Ulm", "Bonn", "Aach", "a", "b", "x", "y", "z", "c")
    assert [x for x in ENTRIES[entry](tmp_path, FORMS[form]) if x not in others] == [NAME]


@inputs(2)
@hypothesis.given(st.text(st.characters(exclude_categories=["Cs"]), max_size=12))
@hypothesis.example("\u1ebf\u212b\u03cc\u1f79 \u0958 e\u0302\u0301 \ud55c")
def test_the_form_of_a_name_is_that_of_all_its_forms(text):
    """Once is enough, and the rules of graphs give the same for the forms of Unicode."""
    name = canonical(text)
    assert canonical(name) == name
    for form in ("NFC", "NFD"):
        other = unicodedata.normalize(form, text)
        assert canonical(other) == name
        if "\n" not in other:  # Where `$` of Python's expressions matches too.
            assert _by_rules_of_graphs(other, compositions([name])) == as_category(name)


def _by_rules_of_graphs(text, composing):
    for pattern, replacement in (*CATEGORY_RULES, *composing):
        text = re.sub(pattern, replacement, text)
    return text


@pytest.mark.parametrize(
    ("first", "second"), [("age", "age "), ("gr\u00f6\u00dfe", "gro\u0308\u00dfe"), ("age", "a\u200bge")]
)
@pytest.mark.parametrize("form", ["file", "memory"])
def test_two_headers_that_are_one_name_are_refused(tmp_path, first, second, form):
    given = rows(tmp_path / "d.csv", [first, second, "label"], X, X, LABELS)
    given = pyarrow.table([X, X, LABELS], [first, second, "label"]) if form == "memory" else given
    spelled = "'gr\\\\xf6\\\\xdfe' and 'gro\\\\u0308\\\\xdfe'" if "\u00df" in first else "'age' and "
    refuses(f"has the columns {spelled}.*which are one name", read_own, given)


def test_names_of_nothing_that_is_seen_are_refused(tmp_path):
    path = rows(tmp_path / "d.csv", ["x", "\u200b", "label"], X, X, LABELS)
    refuses("has a column without a name, number 2: name it", read_own, path)
    refuses("class_names hold an empty name, number 2: name each class", source, class_names=("a", "\u00ad "))
    refuses("array clients of dataset has 30 empty names", read_own, (X[:, None], LABELS, repeated("u", "\u200b")))
    refuses("has a name of blanks alone: rename it", read_own, folder(tmp_path / "i", "Ulm", "\u2060"))
    refuses("class_names hold 'K\u00f6ln' more than once", source, class_names=("K\u00f6ln", "Ko\u0308ln"))


def test_names_that_look_alike_are_told_apart_by_code_points():
    refuses(r"no column 'caf\\xe9': did you mean 'cafe\\u0301'\?", lookup, {"cafe\u0301": 1}, "caf\u00e9", "column")
    refuses(r"no column '\\u0430ge': did you mean 'age'\?", lookup, {"age": 1}, "\u0430ge", "column")
    refuses("no column 'cafe': did you mean 'caf\u00e9'", lookup, {"caf\u00e9": 1}, "cafe", "column")


def test_notes_name_the_forms_of_a_client(tmp_path):
    path = rows(tmp_path / "d.csv", ["x", "c", "label"], X, repeated("Ulm", "K\u00f6ln", "Ko\u0308ln", "b"), LABELS)
    assert "in 2 ways, such as 'K\\xf6ln' and 'Ko\\u0308ln': they" in "".join(read_own(path, client="c").notes)


def test_images_are_in_the_order_of_their_names_whatever_their_form(tmp_path):
    for form in ("NFC", "NFD"):
        for kind in "kl":
            (tmp_path / form / kind).mkdir(parents=True)
            for i, name in enumerate(["a", "\u00e4", "b"]):
                path = tmp_path / form / kind / f"{unicodedata.normalize(form, name)}.png"
                Image.fromarray(np.full((8, 8), i, np.uint8)).save(path)
    first, second = (read_own(tmp_path / form) for form in ("NFC", "NFD"))
    np.testing.assert_array_equal(first.train.features, second.train.features)
