"""Tables of several runs: how rows are named, ordered and labelled, columns, digits, and what is bold."""

import csv
import io
import math

import pytest

from tests.kit import refusal, refuses
from tfp_bfl.app.options.config import make_config
from tfp_bfl.app.options.resolve import GAUSSIAN, resolved
from tfp_bfl.bench.command import parse_pairs
from tfp_bfl.bench.run_tables import Style, named, table_text
from tfp_bfl.bench.runs import grouped

SEEDS = range(3)


def records(*options, scores=None, seeds=SEEDS):
    """Return what runs record, by their options; the first option is the best by two points of accuracy."""
    found = []
    for i, own in enumerate(options):
        for seed in seeds:
            config = resolved(make_config(None, {**own, "seed": seed}, runs_code=False), False, GAUSSIAN)
            accuracy = (0.9 - 0.02 * i + 0.001 * seed) if scores is None else scores[i][seed]
            summary = {"accuracy": accuracy, "test_nll": 0.5, "ece": 0.01234, "seconds": 3.0 + seed}
            found.append((config, {**summary, "method": {"weights": GAUSSIAN}}))
    return found


RULES = [{"rule": rule} for rule in ("linear_pool", "mean_precision_average", "conflation")]
ALGORITHMS = [{"algorithm": name, "kind": "deterministic"} for name in ("fed_opt", "fed_prox", "scaffold")]
ALL = [*RULES, ALGORITHMS[0]]


def names(*options):
    return [group.repeated.name for group in grouped(records(*options))]


def lines(text):
    return [line for line in text.splitlines() if line.startswith("|")]


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (RULES, ["rule=linear_pool", "rule=mean_precision_average", "rule=conflation"]),
        # The rates, schedules and more that follow from the inference are no names of rows.
        (
            [{"inference": "natural"}, {"inference": "backprop"}, {"algorithm": "variational"}],
            ["inference=natural", "inference=backprop", "inference=curvature"],
        ),
        # Nor are options that only one algorithm has, or its other defaults.
        (
            [{"algorithm": "fed_opt"}, {"algorithm": "fed_prox"}, {"algorithm": "partitioned_vi"}],
            ["algorithm=fed_opt", "algorithm=fed_prox", "algorithm=partitioned_vi"],
        ),
        (
            [{"algorithm": "fed_prox", "proximal": 0.5}, {"algorithm": "fed_opt"}],
            ["algorithm=fed_prox, proximal=0.5", "algorithm=fed_opt"],
        ),
        ([{"rounds": 5, "learning_rate": 0.01}, {"rounds": 5}], ["learning_rate=0.01", "learning_rate=0.03"]),
        ([{"rule": "/a/rule.py:wide"}, {"rule": "conflation"}], ["rule=rule.py:wide", "rule=conflation"]),
        ([{}], ["lenet on digits"]),
        # An option that is not given names a row only where nothing else does.
        (
            [{"algorithm": "/a/b.py:f"}, {"rule": "conflation"}],
            ["algorithm=b.py:f", "rule=conflation"],
        ),
        ([{"max_change_norm": 2}, {}], ["max_change_norm=2", "max_change_norm=\u2013"]),
        ([{"rule": "/a/r.py:wide"}, {"rule": "/b/r.py:wide"}], ["rule=r.py:wide (1)", "rule=r.py:wide (2)"]),
        # Three rules and three algorithms in one table: the kind of fed_* is their default.
        (
            [*RULES, *ALGORITHMS],
            [
                *(f"rule={x['rule']}" for x in RULES),
                *(f"algorithm={x['algorithm']}" for x in ALGORITHMS),
            ],
        ),
    ],
)
def test_rows_are_named_by_what_was_varied(options, wanted):
    assert names(*options) == wanted


def test_columns_digits_percent_and_labels():
    style = Style(["accuracy", "nll"], 1, True, {"rule=conflation": "Conflation", "rule=linear_pool": "Linear pool"})
    text = table_text(grouped(records(*RULES)), ".md", style)
    assert lines(text) == [
        "|  | Accuracy (%) | NLL |",
        "|---|---|---|",
        "| Conflation | 86.1 ± 0.1 | 0.5 ± 0.0 |",
        "| Linear pool | **90.1 ± 0.1** | 0.5 ± 0.0 |",
        "| rule=mean_precision_average | 88.1 ± 0.1 | 0.5 ± 0.0 |",
        "| Difference to Conflation | Accuracy (%) | NLL |",
        "|---|---|---|",
        "| Linear pool | **+4.0 [+4.0, +4.0]** | +0.0 [+0.0, +0.0] |",
        "| rule=mean_precision_average | **+2.0 [+2.0, +2.0]** | +0.0 [+0.0, +0.0] |",
    ]
    assert text.endswith(
        "\nMean ± standard deviation over 3 seeds. Bold: better than every row that is not bold; the 95 % intervals of "
        "these paired differences over the same seeds (Student's t) exclude 0.\n"
    )
    latex = table_text(grouped(records(*RULES)), ".tex", style)
    assert r" & Accuracy (\%) & NLL \\" in latex and r"Linear pool & \textbf{90.1 $\pm$ 0.1} & 0.5" in latex
    assert latex.count("tabular") == 4 and r"{\footnotesize Mean $\pm$ standard deviation over 3 seeds." in latex


def test_digits_of_percentages_of_others_and_of_csv():
    text = table_text(grouped(records(*RULES)), ".md", Style(["ece", "seconds"], percent=True))
    assert lines(text)[0] == "|  | ECE (%) | Total time (s) |" and "| 1.23 ± 0.00 | 4.0000 ± 1.0000 |" in text
    rows = list(csv.DictReader(io.StringIO(table_text(grouped(records(*RULES)), ".csv", Style(["nll"])))))
    assert [name for name in rows[0] if name.startswith(("accuracy", "ece"))] == []
    assert [float(row["test_nll_mean"]) for row in rows] == [0.5] * 3


def test_a_best_mean_that_seeds_would_undo_or_of_one_seed_is_not_bold():
    """Means .91, .90 and .80: the first two differ by 0.01 ± 0.1 over the seeds; without the first the next is."""
    scores = [[0.85, 0.97, 0.91], [0.90, 0.90, 0.90], [0.80, 0.80, 0.80]]
    style = Style(["accuracy"])
    assert "**" not in table_text(grouped(records(*RULES, scores=scores)), ".md", style).partition("\n\n")[0]
    assert "**0.9000" in table_text(grouped(records(*RULES[1:], scores=scores[1:])), ".md", style)
    text = table_text(grouped(records(*RULES, seeds=[0])), ".md", Style(["accuracy"]))
    assert "±" not in text and "**" not in text
    assert text.endswith("One seed each. Nothing is bold: comparisons need two seeds or more.\n")


def test_rows_that_seeds_do_not_tell_apart_share_bold():
    """Means .91, .90 and .80, the first two 0.01 ± 0.05 apart and both far above the third; a fourth ties with all."""
    scores = [[0.90, 0.93, 0.90], [0.90, 0.90, 0.90], [0.80, 0.80, 0.80], [0.7, 0.9, 0.99]]
    bold = lambda number: [
        "**" in line
        for line in lines(table_text(grouped(records(*ALL[:number], scores=scores)), ".md", Style(["accuracy"])))
    ][2 : 2 + number]
    assert bold(3) == [True, True, False] and bold(4) == [False] * 4 and bold(2) == [False] * 2


def test_the_interval_of_the_mean_is_students():
    """Compare with 0.9 ± t_2(0.975) 0.1 / sqrt(3) of 0.8, 0.9, 1.0; t_2(0.975) = sqrt(2) 0.95 / sqrt(1 - 0.95^2)."""
    style = Style(["accuracy"], interval=True)
    text = table_text(grouped(records(*RULES[:1], scores=[[0.8, 0.9, 1.0]])), ".md", style)
    wanted = math.sqrt(2) * 0.95 / math.sqrt(1 - 0.95**2) * 0.1 / math.sqrt(3)
    assert lines(text)[2] == f"| lenet on digits | 0.9000 ± {wanted:.4f} |"
    assert "Mean ± half the width of its 95 % interval (Student's t) over 3 seeds." in text


def test_a_table_of_latex_has_caption_and_label():
    style = Style(["accuracy"], caption="Rules & ties", label="tab:rules")
    text = table_text(grouped(records(*RULES)), ".tex", style)
    start = "\\begin{table}\n\\centering\n\\caption{Rules \\& ties. Mean $\\pm$ standard deviation over 3 seeds. Bold:"
    assert text.startswith(start) and text.endswith("\\end{tabular}\n\\end{table}\n")
    assert "\\label{tab:rules}\n\\begin{tabular}{lr}\n\\toprule" in text and text.count("\\midrule") == 2
    assert "\\caption{Mean $" in table_text(grouped(records(*RULES)), ".tex", Style(label="a"))


@pytest.mark.parametrize("suffix", [".md", ".tex"])
@pytest.mark.parametrize("options", [RULES, [*RULES, *ALGORITHMS]])
def test_a_row_has_at_most_100_letters(suffix, options):
    """As many scores as fit, with names of up to 27 letters two."""
    text = table_text(grouped(records(*options, scores=[[0.9, 0.8, 0.7]] * 6)), suffix)
    width = [len(line) for line in text.splitlines() if line[:1] == "|" or line.endswith("\\\\")]
    assert max(width) <= 100 and "Accuracy | NLL" in text.replace("&", "|")
    every = table_text(grouped(records(*options)), suffix, Style(["accuracy", "nll", "ece", "seconds"]))
    assert "Total time" in every


def test_names_of_rows_stand_in_tables_and_are_refused_where_no_row_is():
    groups = grouped(records(*RULES, *ALGORITHMS, scores=[[0.9, 0.8, 0.7]] * 6))
    names = parse_pairs(["FedAvg=algorithm=fed_opt", "Pool = rule=linear_pool"], "--name", "=")
    assert names == {"FedAvg": "algorithm=fed_opt", "Pool": "rule=linear_pool"}
    text = table_text(named(groups, names), ".md", Style(rows={"FedAvg": "FedAvg"}))
    assert [line.split(" | ")[0] for line in lines(text)][2:4] == ["| FedAvg", "| Pool"]
    assert "| Difference to FedAvg |" in text
    for wrong, words in (
        ({"A": "rule=clipped"}, "The row 'rule=clipped' does not exist: name one of"),
        ({"A": "rule=conflation", "B": "rule = conflation"}, "must give each row one name"),
        ({"algorithm=fed_opt": "rule=conflation"}, "and no two rows the same"),
        ({"A": "ruel=conflation"}, "did you mean 'rule'"),
        ({"A": 3}, "but must map names to rows"),
        ({"A\n": "rule=conflation"}, "but must map names to rows"),
        ("A=rule=conflation", "but must map names to rows"),
    ):
        refuses(words, named, groups, wrong)
    refuses("There is no option 'FedAvg'", named, groups, parse_pairs(["FedAvg"], "--name", "="))


@pytest.mark.parametrize(
    ("style", "suffix", "words"),
    [
        (Style(caption="A"), ".md", "caption and label are of LaTeX"),
        (Style(label="two words"), ".tex", "label is 'two words', but must be of letters"),
        (Style(interval=True), ".csv", "a .csv holds all digits"),
        (Style(["acuracy"]), ".md", "no column 'acuracy' in any run: did you mean 'accuracy'"),
        (Style(["zzz"]), ".md", "no column 'zzz' in any run: choose one of 'accuracy', 'ece', 'seconds', 'test_nll'"),
        (Style(["nll", "test_nll"]), ".md", "names a column twice"),
        (Style(digits=2), ".csv", "a .csv holds all digits"),
        (
            Style(rows={"rule=clipped": "A"}),
            ".md",
            "The row 'rule=clipped' does not exist: name one of rule=linear_pool;",
        ),
        (Style(rows={"rounds=60": "A"}), ".md", "The row 'rounds=60' is 3 rows: name one of rule=linear_pool; rule"),
        (Style(rows={"rule=conflation": "A", "rule=linear_pool": "A"}), ".md", "rows gives two rows the same label"),
        (Style(rows={"ruel=conflation": "A"}), ".md", "There is no option 'ruel': did you mean 'rule'"),
        (Style(rows={"rule=conflation": "A", "rule = conflation": "B"}), ".md", "must give each row one name"),
    ],
)
def test_what_is_no_table(style, suffix, words):
    refuses(words, table_text, grouped(records(*RULES)), suffix, style)


def test_rows_as_text():
    items = ["rule=conflation as Conflation", "algorithm=fed_opt, kind=deterministic", "rule=a as FedAvg as it was"]
    assert parse_pairs(items, "--row", " as ") == {
        "rule=conflation": "Conflation",
        "algorithm=fed_opt, kind=deterministic": "algorithm=fed_opt, kind=deterministic",
        "rule=a": "FedAvg as it was",
    }
    refuses("--row names 'rule=a' twice", parse_pairs, ["rule=a", "rule=a as A"], "--row", " as ")


@pytest.mark.parametrize("option", ["--columns accuracy", "--digits 2", "--percent", "--row rule=a", "--label a"])
def test_a_page_takes_no_options_of_tables(tmp_path, capsys, monkeypatch, option):
    (config, summary), *_ = records({})
    monkeypatch.setattr("tfp_bfl.app.one_run.records.read_record", lambda folder: (config, summary))
    assert "are of tables, and" in refusal(
        capsys, "report", tmp_path, "--output", tmp_path / "page.html", *option.split()
    )
