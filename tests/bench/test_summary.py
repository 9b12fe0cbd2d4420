"""Reading of records and tables of a benchmark."""

import csv
import json
import math

import numpy as np
import pytest

from tests.bench import made_up
from tests.kit import refuses
from tfp_bfl.bench import page, reading, summary
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.evaluation import over_seeds, paired_difference
from tfp_bfl.plots.tables import DASH


def bench(tmp_path, records, reference=None):
    return reading.arrange(reading.read(made_up.write(tmp_path, records)), reference)


def cells(table, column):
    """Method -> cell of a column."""
    place = table.head.index(column) - 1
    return {name: row[place] for name, row in table.rows}


def test_records_are_read_as_written_without_values_that_are_not_finite(tmp_path):
    records = [*made_up.records(), made_up.failed("digits", "broken", 0, "Diverged.")]
    found = reading.read(made_up.write(tmp_path, records))
    assert len(found) == len(records) and found[-1].failed == "Diverged." and found[-1].scores == {}
    assert [dict(r.scores) for r in found[:-1]] == [r["scores"] for r in records[:-1]]
    assert found[0].rounds == records[0]["rounds"] and found[0].chosen == {"learning_rate": 0.03}
    records = made_up.records(seeds=1)
    records[0]["scores"] |= {"test_nll": math.nan, "ece": None, "brier": math.inf, "accuracy": 10**400}
    assert set(reading.read(made_up.write(tmp_path, records))[0].scores) == {"coverage", "set_size"}


GOOD = made_up.records(seeds=1)[0]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"setting": "heart", "meth', "Line 2 of .* is not JSON"),
        (b"\xff\xfe", "Line 2 of .* is not JSON"),
        (b"[" * 100_000, "Line 2 of .* is not JSON"),
        (b"[1]", "must be a JSON object"),
        ({"setting": ""}, "setting is '', but must be text"),
        ({"method": 3}, "method is 3, but must be text"),
        ({"seed": 0.5}, "seed is 0.5, but must be a whole number"),
        ({"seed": True}, "seed is True"),
        ({"trials": -1}, "trials is -1, but must be at least 0"),
        ({"scores": {}}, 'neither "scores" nor "failed"'),
        ({"scores": [1]}, "but must be a mapping of names to values"),
        ({"scores": {"test_nll": "low"}}, "scores is 'low', but must be a number"),
        ({"scores": {"test_nll": True}}, "scores is True, but must be a number"),
        ({"scores": {"accuracy": 1, "clients": [{"accuracy": 1}]}}, '"clients" have a row that is not a name'),
        ({"cost": {"seconds": -1}}, "cost is -1, but must be at least 0"),
        ({"failed": 1}, "failed is 1, but must be text"),
        ({"rounds": {}}, "rounds is {}, but must be a list"),
        ({"rounds": [{"test_nll": 1}]}, "do not increase"),
        ({"rounds": [{"round": 2}, {"round": 2}]}, "do not increase"),
        ({"rounds": [{"round": 1, "mb": 2}, {"round": 2, "mb": 1}]}, "mb decrease"),
        ({"seed": 0}, "repeats setting, method and seed of line 1"),
    ],
)
def test_a_damaged_line_is_refused_in_one_sentence(tmp_path, line, message):
    if isinstance(line, dict):
        line = json.dumps({**GOOD, "seed": 1, **line}).encode()
    (tmp_path / "records.jsonl").write_bytes(json.dumps(GOOD).encode() + b"\n" + line + b"\n")
    with pytest.raises(InvalidArgument, match=message) as error:
        reading.read(tmp_path)
    assert "Line 2 of" in str(error.value) and "\n" not in str(error.value) and len(str(error.value)) < 400


def test_the_reference_is_a_method_and_no_records_are_refused(tmp_path):
    refuses("can't be read", reading.read, tmp_path)
    records = made_up.records(seeds=1)
    assert bench(tmp_path, records).reference == "fed_avg"
    assert bench(tmp_path, [r for r in records if r["method"] != "fed_avg"]).reference == "fed_pa"
    refuses("no method 'fed_pi' in the records: did you mean 'fed_pa'", bench, tmp_path, records, "fed_pi")
    (tmp_path / "records.jsonl").write_text("\n")
    refuses("has no records", reading.read, tmp_path)


def test_scores_are_mean_and_deviation_and_bold_beyond_noise(tmp_path):
    records = made_up.records()
    table = summary.scores(bench(tmp_path, records), "heart")
    for method, cell in cells(table, "Accuracy").items():
        values = [r["scores"]["accuracy"] for r in records if (r["setting"], r["method"]) == ("heart", method)]
        mean, stddev = map(float, cell.text.split(" ± "))
        assert mean == pytest.approx(np.mean(values), abs=6e-4) and stddev == pytest.approx(
            np.std(values, ddof=1), abs=6e-4
        )
        assert cell.is_best == (method == "fl_swag")
    assert not any(cell.is_best for cell in cells(table, "Coverage").values())
    assert "RMSE" not in table.head and "RMSE" in summary.scores(bench(tmp_path, records), "diabetes").head


def test_one_seed_has_no_deviation_no_difference_and_nothing_bold(tmp_path):
    found = bench(tmp_path, made_up.records(seeds=1))
    row = [*cells(summary.scores(found, "heart"), "NLL").values()]
    assert all("±" not in cell.text and not cell.is_best for cell in row)
    assert {c.text for c in cells(summary.differences(found, "heart"), "NLL").values()} == {DASH}


def test_differences_are_paired_by_seed_without_missing_scores(tmp_path):
    records = made_up.records()
    table = summary.differences(bench(tmp_path, records), "heart")
    assert [name for name, _ in table.rows] == ["fed_pa", "fl_swag", "laplace"]
    of = lambda method: [r["scores"]["test_nll"] for r in records if (r["setting"], r["method"]) == ("heart", method)]
    wanted = paired_difference(of("fl_swag"), of("fed_avg"))
    cell = cells(table, "NLL")["fl_swag"]
    assert cell.is_best and cell.text == f"{wanted.mean:+.3f} [{wanted.low:+.3f}, {wanted.high:+.3f}]"
    records = made_up.records()
    del records[0]["scores"]["ece"]  # fed_avg in heart, seed 0
    found = bench(tmp_path, records)
    assert found.scores("heart", "fed_avg").seeds("ece") == [1, 2]
    assert "[" in cells(summary.differences(found, "heart"), "ECE")["fed_pa"].text
    for record in records[1:3]:
        del record["scores"]["ece"]
    found = bench(tmp_path, records)
    assert cells(summary.scores(found, "heart"), "ECE")["fed_avg"].text == DASH
    assert cells(summary.differences(found, "heart"), "ECE")["fed_pa"].text == DASH


def test_one_score_stands_beside_itself_in_all_settings(tmp_path):
    records = [r for r in made_up.records() if (r["setting"], r["method"]) != ("digits", "fl_swag")]
    records += [made_up.failed("heart", "broken", seed, "Diverged.") for seed in range(3)]
    found = bench(tmp_path, records, reference="fed_avg")
    table = summary.across(found, "test_nll")
    assert table.head == ["Method", *found.settings] and "fed_avg" not in dict(table.rows)
    for setting in found.settings:
        own = cells(summary.differences(found, setting), summary.score_of("test_nll").label)
        for method, cell in cells(table, setting).items():
            assert cell == own.get(method, summary.Cell(DASH))
    assert cells(table, "digits")["fl_swag"].text == cells(table, "heart")["broken"].text == DASH
    assert cells(table, "heart")["fl_swag"].is_best
    text = page.write_tables(tmp_path, reference="fed_avg")[0].read_text()
    assert "## NLL: difference to fed_avg in each setting" in text


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([0.5], "0.500"),
        ([0.79, 0.81], "0.800 ± 0.014"),
        ([50.0, 50.01], "50.005 ± 0.007"),
        ([0.9, 0.9], "0.900 ± 0.000"),
        ([2400.0, 2460.0], "2430.0 ± 42.4"),
        ([0.0061, 0.0063], "0.0062 ± 0.0001"),
        ([0.0, 0.0], "0.000 ± 0.000"),
        ([], DASH),
    ],
)
def test_decimals_follow_the_deviation_and_zero_has_no_sign(values, text):
    assert summary.mean_text(values) == text
    assert summary.number(-1e-9, 0.5, sign=True) == "+0.000" and summary.number(-0.25, sign=True) == "-0.250"


def test_the_default_budget_is_all_rounds_of_the_reference(tmp_path):
    records = made_up.records()
    found = bench(tmp_path, records)
    limit = summary.budget(found, "heart", "seconds")
    assert limit.amount == 12.0 and limit.source == "all rounds of fed_avg"  # 10 s, and 1 s a seed.
    assert cells(summary.at_budget(found, "heart", limit), "Round")["fed_avg"].text == "10"
    without = [{**r, "rounds": []} if r["method"] == "fed_avg" else r for r in records]
    limit = summary.budget(bench(tmp_path, without), "heart", "mb")
    assert limit.amount == 2.0 and limit.source.startswith("fed_avg has no trajectory")
    nothing = [{**r, "rounds": []} for r in records]
    assert summary.budget(bench(tmp_path, nothing), "heart", "mb") is None


def test_scores_at_a_budget_are_those_of_the_last_point_within(tmp_path):
    records = made_up.records()
    for record in records:
        if record["method"] == "fed_pa":
            for point in record["rounds"]:
                point["mb"] *= 2
        if record["method"] == "laplace":
            for point in record["rounds"]:
                point["mb"] += 3
    records.append(made_up.failed("heart", "fl_swag", 3, "Diverged."))
    found = bench(tmp_path, records)
    table = summary.at_budget(found, "heart", summary.Budget("mb", 1.2, "all rounds of fed_avg"))
    assert {m: c.text for m, c in cells(table, "Round").items()} == {
        **{"fed_avg": "6", "fed_pa": "2", "fl_swag": "6", "laplace": DASH}
    }
    wanted = over_seeds(
        [r["rounds"][0]["test_nll"] for r in records if r["setting"] == "heart" and r["method"] == "fed_pa"]
    )
    assert cells(table, "NLL")["fed_pa"].text.startswith(f"{wanted.mean:.3f} ±")
    notes = {method: cell.text for method, cell in cells(table, "Note").items()}
    assert notes["laplace"] == "none within the budget, first at 3.400 MB" and notes["fed_avg"] == ""
    assert notes["fl_swag"] == "3 of 4 seeds; failed"


def test_trials_that_seeds_share_count_once_and_chosen_values_that_differ_stand_by_seed(tmp_path):
    records = made_up.records(seeds=3, settings=("heart",), methods=("fed_avg", "fed_pa"))
    assert summary.spent(bench(tmp_path, records)) == (16, pytest.approx(6 * 20 + 90 + 91))
    for record in records:
        record["cost"]["trial_seconds"] += record["seed"]
    assert summary.spent(bench(tmp_path, records))[0] == 48
    failed = {**made_up.failed("heart", "fed_avg", 9, "Diverged."), "trials": 8}
    assert summary.spent(bench(tmp_path, [*records, failed]))[0] == 48
    assert summary.spent(bench(tmp_path, [failed, {**failed, "seed": 8}])) == (8, 0.0)
    records = made_up.records(seeds=2, settings=("heart",), methods=("fed_avg",))
    records[1]["chosen"] = {"learning_rate": 0.1}
    cell = bench(tmp_path, records).cells["heart", "fed_avg"]
    assert summary.chosen(cell) == "seed 0: learning_rate: 0.03; seed 1: learning_rate: 0.1"


def test_tables_are_written_with_all_digits_and_reasons(tmp_path):
    records = [*made_up.records(), made_up.failed("heart", "new|<b>*x*", 0, "Out of memory.\nTwice.")]
    paths = page.write_tables(made_up.write(tmp_path, records))
    text, rows = paths[0].read_text(), list(csv.DictReader(paths[1].read_text().splitlines()))
    assert "new\\|&lt;b>\\*x\\*" in text and "Out of memory.\ufffdTwice." in text
    assert "RMSE has no ranks" in text and "Friedman chi2" in text and "| fl_swag | 1.000 |" in text
    of = lambda m: [r["scores"]["test_nll"] for r in records if (r["setting"], r["method"]) == ("heart", m)]
    asked = {"setting": "heart", "method": "fed_pa", "kind": "score", "quantity": "test_nll"}
    (row,) = (r for r in rows if asked.items() <= r.items())
    wanted, mean = paired_difference(of("fed_pa"), of("fed_avg")), over_seeds(of("fed_pa"))
    found = [float(row[x]) for x in ("mean", "sd", "difference", "low", "high")]
    assert found == [mean.mean, mean.stddev, wanted.mean, wanted.low, wanted.high]
    assert {r["kind"] for r in rows} == {"score", "cost", "at_mb", "at_seconds"}
    assert {r["budget"] for r in rows if r["kind"] == "at_mb"} == {"2.0"}
    text = page.write_tables(made_up.write(tmp_path, made_up.records(methods=("fed_avg", "fl_swag"))))[0].read_text()
    assert "Friedman's test needs three methods or more" in text and "| fed_avg | 2.000 |" in text
    assert not (tmp_path / "figures").exists()


def test_learning_curves_of_each_setting(tmp_path):
    records = made_up.records(settings=("heart", "digits"), methods=("fed_avg", "fl_swag"))
    for record in records:
        record["setting"] = record["setting"].replace("digits", "../a b")
    page.write_tables(made_up.write(tmp_path, records), forms=("png", "pdf", "svg"))
    names = {f"learning_curve_{name}.{form}" for name in ("heart", "___a_b") for form in ("png", "pdf", "svg")}
    assert {path.name for path in (tmp_path / "figures").iterdir()} == names
    text = (tmp_path / "figures" / "learning_curve_heart.svg").read_text()
    assert all(f">{x}</text>" in text for x in ("fed_avg", "fl_swag", "95 % interval of the mean", "round"))


@pytest.mark.parametrize(("name", "shown"), [("a\nb", "a\ufffdb"), ("x" * 40, "x" * 40), ("a" * 50 + "b" * 50, None)])
def test_names_are_one_line_of_limited_length(name, shown):
    found = reading.shorten(name)
    assert len(found) <= 40 and found.isprintable()
    assert found == shown if shown else found.startswith("aaa") and found.endswith("b" * 14)


def test_the_main_table_states_rounds_bytes_time_and_runs_that_are_not_finished(tmp_path):
    records = made_up.records()
    for record in records:
        record["about"]["rounds"] = 1 if record["method"] == "fl_swag" else 1000
        if record["method"] == "laplace":
            record["rounds"] = []
        elif record["method"] != "fed_pa" or record["seed"]:
            record["rounds"][-1]["test_nll"] -= 0.1
    old = {**records[0], "seed": 9, "about": {"rounds": 30}}
    table = summary.scores(bench(tmp_path, [*records, old]), records[0]["setting"])
    text = lambda name: {method: cell.text for method, cell in cells(table, name).items()}
    assert text("Rounds") == {"fed_avg": "30, 1,000", "fed_pa": "1,000", "fl_swag": "1", "laplace": "1,000"}
    assert text("Not finished") == {"fed_avg": "4 of 4", "fed_pa": "2 of 3", "fl_swag": "3 of 3", "laplace": DASH}
    assert set(text("Upload (MB)").values()) == {"1.200"} and "13.00" in text("Training time (CPU s)").values()
    row = summary.scores(bench(tmp_path, made_up.records()), "heart")
    assert {cell.text for cell in cells(row, "Rounds").values()} == {DASH}


def test_a_method_of_which_most_runs_are_not_finished_is_never_bold(tmp_path):
    """`fl_swag` is the best by far, so that without this rule it is bold in every table."""
    records = made_up.records()

    def bold(falling):
        """Return whether it is bold in a table, if the NLL of so many of its three runs still falls at the end."""
        for record in records:
            if record["method"] == "fl_swag":
                record["rounds"][-1]["test_nll"] = 0.0 if record["seed"] < falling else 9.0
        there = bench(tmp_path, records)
        row = next(row for row in page.rows(there) if (row["setting"], row["method"]) == ("heart", "fl_swag"))
        return {
            cells(summary.scores(there, "heart"), "NLL")["fl_swag"].is_best,
            cells(summary.differences(there, "heart"), "NLL")["fl_swag"].is_best,
            cells(summary.across(there, "test_nll"), "heart")["fl_swag"].is_best,
            any(cell.is_best for pair in row["scores"] for cell in pair),
        }

    assert bold(falling=1) == {True} and bold(falling=2) == {False}
