"""Tables as text."""

from tfp_bfl.files.tables import to_csv, to_latex, to_markdown

ROWS = [["", "NLL, test"], ["a_b", "**0.1 ± 0.2**"], ["50 % | x", "{y}"]]


def test_csv_quotes_commas():
    assert to_csv(ROWS).splitlines()[0] == ',"NLL, test"'


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
