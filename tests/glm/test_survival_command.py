"""The command `tfp-bfl survival`, from a table to its output."""

import json

import pytest
from click.testing import CliRunner

from tests.glm.test_survival import DRUG, LEUKAEMIA
from tfp_bfl.app.cli import cli, run_command_line

OPTIONS = ["--duration", "weeks", "--event", "relapse"]


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "leukaemia.csv"
    sites = ["east", "north", "west"]
    rows = (f"{sites[k % 3]},{drug},{t:g},{e:g},{k % 2},{k}" for k, (drug, (t, e)) in enumerate(zip(DRUG, LEUKAEMIA)))
    path.write_text("\n".join(["hospital,drug,weeks,relapse,sex,patient", *rows, "west,,5,1,0,42"]) + "\n")
    return path


def output_of(*arguments):
    result = CliRunner().invoke(cli, ["survival", *map(str, arguments)])
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def test_tables_and_the_test_of_groups(table):
    given = [table, *OPTIONS, "--by", "drug"]
    lines = output_of(*given, "--client-column", "hospital", "--horizon", "20").splitlines()
    assert lines[0] == "survival: 42 rows, 30 events, 3 clients, 2 messages to each"
    assert lines[1:3] == [
        "Event: relapse = 1 (31 of 43 rows).",
        "1 row left out with an empty cell in weeks, relapse, drug, hospital.",
    ]
    assert lines[3].split() == ["group", "rows", "events", "median", "95", "%", "from", "to", "mean", "to", "20", "sd"]
    assert lines[4].split()[:6] == ["6-MP", "21", "9", "23", "13", "-"]
    assert lines[-1] == "Log-rank test: chi-squared 16.79 with 1 degree of freedom, p = 4.17e-05."
    assert output_of(*given, "--horizon", "20").splitlines()[3:] == lines[3:]
    assert "15.18" in output_of(*given, "--client-column", "hospital", "--stratified").splitlines()[-1]
    assert "1 client, 2" in output_of(table, *OPTIONS).splitlines()[0]


def test_numbers_as_json_and_a_figure(table, tmp_path):
    figure = tmp_path / "curves.svg"
    found = json.loads(
        output_of(table, *OPTIONS, "--by", "drug", "--strata", "sex", "--format", "json", "--figure", figure)
    )
    assert found["log_rank"]["degrees_of_freedom"] == 1 and found["log_rank"]["observed"] == [9, 21]
    assert found["medians"] == {"6-MP": [23, 13, None], "placebo": [8, 4, 11]}
    placebo = found["curves"]["placebo"]
    assert placebo["survival"][-1] == 0 and placebo["low"][-1] is None and placebo["num_rows"] == 21
    assert figure.read_text().count("<path") > 10


def test_without_an_event_there_are_curves_and_no_test(table):
    rows = (f"{drug},{time:g},0" for drug, (time, _) in zip(DRUG, LEUKAEMIA))
    table.write_text("\n".join(["drug,weeks,relapse", *rows, "6-MP,40,1"]) + "\n")
    lines = output_of(table, *OPTIONS, "--by", "drug").splitlines()
    assert lines[2].startswith("At no event are two groups at risk")
    assert [line.split()[0] for line in lines[4:6]] == ["6-MP", "placebo"] and "Log-rank" not in lines[-1]


@pytest.mark.parametrize(
    ("cell", "options", "words"),
    [
        ("west,6-MP,5,2,0,43", [], "must hold two values, but holds 3 ('0', '1' and '2')|give --event-value"),
        ("west,6-MP,-5,1,0,43", [], "must hold times above 0, but row 44 is -5"),
        ("west,6-MP,soon,1,0,43", [], "'soon'"),
        ("", ["--by", "hospital", "--client-column", "hospital"], "Two options name the column 'hospital'"),
        ("", ["--by", "clinic"], "There is no column 'clinic' in"),
        ("", ["--strata", "sex"], "--strata and --stratified are for the log-rank test: give --by"),
        ("", ["--by", "sex", "--stratified"], "--stratified makes each client a stratum: give --client-column."),
        ("", ["--figure", "curves.doc"], "There is no format of figures 'doc': choose one of"),
        ("", ["--figure", "curves.png,svg"], "There is no format of figures 'png,svg'"),
        ("", ["--times", "0,x"], "--times must be numbers, but hold ['0', 'x']"),
        ("", ["--times", "5,2"], "--times must be times of at least 0 in ascending order"),
        ("", ["--horizon", "-1"], "--horizon is -1"),
        ("", ["--by", "patient"], "but must have 1 to 30: name another column by --by"),
    ],
)
def test_what_is_refused_in_one_sentence(table, cell, options, words, capsys, monkeypatch):
    monkeypatch.chdir(table.parent)
    table.write_text(table.read_text() + cell + "\n")
    assert run_command_line(["survival", "leukaemia.csv", *OPTIONS, *options]) == 2
    said = capsys.readouterr().err
    assert any(part in said for part in words.split("|")) and said.count("\n") == 1


def test_groups_of_one_value_are_refused(table, capsys):
    table.write_text("weeks,relapse,drug\n1,1,a\n2,0,a\n")
    assert run_command_line(["survival", str(table), *OPTIONS, "--by", "drug"]) == 2
    assert "All rows are of the group 'a': the log-rank test compares two groups or more." in capsys.readouterr().err
