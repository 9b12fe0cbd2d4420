"""Tables as text."""

import csv
import io

import pytest

from tfp_bfl.files.tables import to_csv, to_latex, to_markdown

ROWS = [["", "NLL, test"], ["a_b", "**0.1 ± 0.2**"], ["50 % | x", "{y}"]]


def test_csv_quotes_commas():
    assert to_csv(ROWS).splitlines()[0] == ',"NLL, test"'


@pytest.mark.parametrize("cell", ["=1+1", "+A1", "-A1+2", "@SUM(A1)", "\tx", "=cmd|' /C calc'!A0", "-cmd"])
def test_a_csv_holds_no_formula(cell):
    (found,) = csv.reader(io.StringIO(to_csv([[cell, -0.5]])))
    assert found == [f"'{cell}", "-0.5"]


@pytest.mark.parametrize("cell", ["-0.5", "+1e-3", "-0.19 [-0.23, -0.16]", "-0.1 ± .2", "a=b", "", "-", -1, None])
def test_a_csv_keeps_numbers_and_words(cell):
    (found,) = csv.reader(io.StringIO(to_csv([[cell, "x"]])))
    assert found == ["" if cell is None else str(cell), "x"]


def test_markdown_keeps_pipes_apart():
    assert to_markdown(ROWS).splitlines() == [
        "|  | NLL, test |",
        "|---|---|",
        "| a_b | **0.1 ± 0.2** |",
        r"| 50 % \| x | {y} |",
    ]


def test_latex_is_escaped_and_bold():
    lines = to_latex(ROWS).splitlines()
    assert lines[0] == r"\begin{tabular}{lr}" and lines[-1] == r"\end{tabular}"
    assert r"a\_b & \textbf{0.1 $\pm$ 0.2} \\" in lines and r"50 \% | x & \{y\} \\" in lines
