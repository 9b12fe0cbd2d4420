"""A row, claim or label named "default" is what a user gets who gives no option, and has the numbers of its records."""

import re

import numpy as np
import pytest

from experiments.bench import page as bench
from experiments.default_posterior import page as study
from experiments.default_posterior import run, tables
from experiments.default_posterior.config import METHODS
from experiments.records import read_records
from tests import test_truth, test_truth_mlp
from tests.own_files import ROOT

PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "experiments").glob("**/README.md")),
]
PAGES = [path for path in PAGES if "results" not in path.parts]
# A cell that begins with the name of a method "default": alone, or with words that say what else it has.
NAMED = re.compile(r"(?i)^(?:the )?(?:averaged )?`?default`?(?:_\w+`?|,.*| \(.*| with .*|'s .*)?$")
# Where "default" is in a column of engines or sides of a benchmark: options of these that are not given.
OTHER_METHODS = {"docs/speed.md"}
# Page -> how many rows named `default` it has, each with numbers of the records below.
ROWS = {"README.md": 1, "docs/validation.md": 3, "docs/choosing_evidence.md": 1}
# Written from its records.
GENERATED = "experiments/default_posterior/README.md"


def rows_of(path):
    """The rows of all tables of a page; heads, which name columns such as "default", are left out."""
    lines = path.read_text(encoding="utf-8").splitlines()
    for line, after in zip(lines, [*lines[1:], ""]):
        if (
            line.startswith("|")
            and not set(line) <= set("|-: ")
            and not (after.startswith("|-") and set(after) <= set("|-: "))
        ):
            yield [cell.strip() for cell in line.strip("|").split(" | ")]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_rows_named_default_have_no_options_in_their_name(path):
    name = str(path.relative_to(ROOT))
    if name in OTHER_METHODS:
        return
    named = [cell for row in rows_of(path) for cell in row[:2] if NAMED.match(cell)]
    assert [cell for cell in named if cell != "`default`"] == []
    assert name == GENERATED or len(named) == ROWS.get(name, 0)


def groups():
    return tables.grouped({n: r for n, r in read_records(run.HERE / "results").items() if "rows" in r})


def test_the_default_of_the_documentation_is_that_of_the_records():
    found = groups()
    nll = lambda where: study.mean_of(found[where]["default"], "last", "nll")
    (row,) = [
        row for row in rows_of(ROOT / "docs" / "validation.md") if row[0] == "`default`" and row[1].startswith(".")
    ]
    assert row[1:] == [nll(where) for where in ("iid", "dirichlet_0.5", "dirichlet_0.1", "label_skew_2")]
    columns = ("accuracy", "nll", "ece", "ood_auroc_epistemic")
    means = [study.mean_of(found["dirichlet_0.5"]["default"], "last", column) for column in columns]
    for page in ("README.md", "docs/choosing_evidence.md"):
        (row,) = [row for row in rows_of(ROOT / page) if row[0] == "`default`"]
        assert [cell.split()[0] for cell in row[1:5]] == means


def test_records_named_default_have_no_option():
    assert [name for name in METHODS if not METHODS[name]] == ["default"]
    assert not test_truth.TABLE["default"].build.keywords.keys() - test_truth.OF_DATA.keys()
    assert not test_truth_mlp.TABLE["default"].build.keywords
    for name in bench.SETTINGS:
        assert not [method for method in bench.bench_of(name).methods if "default" in method]
    assert all(np.isfinite(x["last"]["nll"]) for x in groups()["iid"]["default"].values())
