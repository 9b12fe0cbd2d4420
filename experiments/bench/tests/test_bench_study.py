"""The page of the benchmark: its tables follow from the records, and nothing is bold that luck can explain."""

import numpy as np
import pytest

from experiments.bench import page
from tfp_bfl.bench import reading
from tfp_bfl.evaluation.repeats import paired_difference

COSTS = ["rounds", "MB up", "MB down", "CPU s", "not finished"]


def cell(setting, method, values, trajectory=()):
    """The records of a method with these NLLs, by seed; points of a trajectory are (round, NLL)."""
    points = [{"round": number, "test_nll": nll} for number, nll in trajectory]
    given = {"setting": setting, "method": method, "trials": 1, "rounds": points}
    make = lambda seed, nll: reading.BenchRecord(**given, seed=seed, scores={"test_nll": nll})
    return [make(seed, nll) for seed, nll in enumerate(values)]


def test_the_page_has_the_tables_of_the_records():
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.filled(text) == text, "nox -s tables, or experiments.bench.page.fill_page()"
    assert [match[0] for match in page.MARK.findall(text)] == ["natural", "images", "longer"]


@pytest.mark.parametrize("name", page.SETTINGS)
def test_the_main_table_states_what_each_method_spends(name):
    head, *rows = page.main_table(name)
    assert head[1 + len(page.SETTINGS[name]) :][: len(COSTS)] == COSTS
    assert all(len(row) == len(head) and all(row) for row in rows)
    rounds = {row[0].split("`")[1]: row[head.index("rounds")] for row in rows}
    assert rounds.get("qlsd", "1,000") == "1,000" and rounds["fed_avg"] != "1,000"


def test_unfinished_runs_are_those_in_which_the_nll_still_falls():
    runs = [x.is_finished for x in page.bench_of("images").records if x.is_finished is not None]
    assert (len(runs), runs.count(False)) == (192, 145)
    (falls,) = cell("a", "b", [1.0], [(1, 0.6), (2, 0.5)])
    (rises,) = cell("a", "b", [1.0], [(1, 0.5), (2, 0.6)])
    (alone,) = cell("a", "b", [1.0], [(2, 0.6)])
    assert [record.is_finished for record in (falls, rises, alone)] == [False, True, None]
    _, *rows = page.main_table("images")
    marked = {row[0]: row[-2] for row in rows if "†" in row[0]}
    assert marked and all(int(x.split(" of ")[0]) * 2 > int(x.split(" of ")[1]) for x in marked.values())
    assert "**" in str(rows) and "**" not in str([row for row in rows if "†" in row[0]])


def test_the_luck_of_the_trials_is_the_largest_difference_of_the_control():
    records = [*cell("a", "fed_avg", [0.5, 0.6]), *cell("a", "laplace", [0.4, 0.44])]
    records += [*cell("b", "fed_avg", [0.5, 0.6]), *cell("b", "laplace", [0.51, 0.61])]
    assert page.luck_of(reading.arrange(records)) == pytest.approx(0.13)
    assert f"{page.luck_of(page.bench_of('images')):.3f}" == "0.137"


def test_a_difference_is_bold_if_its_interval_is_beyond_the_luck():
    rng = np.random.default_rng(0)
    for shift in (0.05, 0.1, 0.2, 0.4):
        reference, noise = np.full(3, 0.5), 0.01 * rng.standard_normal(3)
        records = [*cell("a", "fed_avg", reference), *cell("a", "m", reference - shift + noise)]
        found = paired_difference(reference - shift + noise, reference)
        text = page.difference(reading.arrange(records), "a", "m", 0.1)
        assert text.startswith("**") == (max(found.low, -found.high) > 0.1), shift
    assert page.difference(reading.arrange(records), "a", "fed_avg", 0.1) == "0.000"
    assert page.difference(reading.arrange(records), "a", "other", 0.1) == "-"
