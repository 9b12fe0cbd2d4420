"""`--format json`: what commands print for programs, and their errors."""

import json
import pathlib

import pytest
import yaml

from tests.kit import call, summary_of
from tfp_bfl import output
from tfp_bfl.app import doctor
from tfp_bfl.errors import MissingDependency
from tfp_bfl.options import choices

SETTING = {"dataset": "breast_cancer", "partition": "iid"}
METHOD = {"model": "linear", "algorithm": "head", "rounds": 1}
QUICK = [text for name, value in {**SETTING, **METHOD}.items() for text in (f"--{name}", str(value))]


def record(capsys, *arguments, status=0):
    """Return the object on standard output, which holds nothing else, and the text on standard error."""
    capsys.readouterr()
    assert call(*arguments, "--format", "json") == status
    said = capsys.readouterr()
    return json.loads(said.out), said.err


def test_a_list_holds_what_its_text_does(capsys):
    found, text = record(capsys, "list")
    assert found["rules"] == [*choices.RULES.entries] and found["server_optimizers"]["adam"] > 0
    assert all(name in text for names in found.values() for name in names)
    assert call("list") == 0
    assert capsys.readouterr().out == text


def test_a_failed_check_is_in_the_record_and_in_the_status(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "_worker", lambda: "started")
    monkeypatch.setattr(doctor, "_LEAST_GIB", 10**6)
    found, _ = record(capsys, "doctor", status=1)
    failed = [check["name"] for check in found["checks"] if not check["passed"]]
    assert not found["passed"] and failed == ["memory"]


@pytest.mark.parametrize(
    ("arguments", "option", "words"),
    [
        (("run", "--rounds", "x"), "--rounds", "must be a whole number"),
        (("run", "--no-such"), "--no-such", "There is no option"),
        (("run", "--rule"), "--rule", "requires an argument"),
        (("glm", "nowhere.csv", "--outcome", "y", "--level", "2"), "--level", "above 0 and below 1"),
        (("runs", "nowhere"), None, "There is no folder nowhere"),
        (("report", "nowhere"), None, "nowhere is not the folder of a run"),
        (("sweep", "--jobs", "0"), "--jobs", "not in the range"),
    ],
)
@pytest.mark.parametrize("form", [("--format", "json"), ("--format=json",)])
def test_errors_are_json_on_request(arguments, option, words, form, capsys):
    command, *rest = arguments
    assert call(command, *form, *rest) == 2
    said = capsys.readouterr()
    error = json.loads(said.err)["error"]
    assert said.out == "" and error["code"] == "bad_input" and error["option"] == option and words in error["message"]


@pytest.mark.parametrize(("status", "code"), [(1, "failed"), (2, "bad_input"), (130, "interrupted")])
def test_codes_of_errors(status, code):
    absent = output.error_record(MissingDependency("optuna"), status, ())["error"]
    found = output.error_record("stopped.", status, ())
    assert found == {"error": {"code": code, "message": "stopped.", "option": None}}
    assert absent["code"] == "missing_package"


def test_numbers_that_are_not_finite_are_null():
    assert output.plain({"a": (float("nan"), 1.5), "b": float("inf")}) == {"a": [None, 1.5], "b": None}


@pytest.mark.deep(after="tests/app/test_output.py")
def test_runs_print_what_their_files_hold(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    found, text = record(capsys, "run", *QUICK, "--output", "one")
    assert found == {"run": "one", **summary_of(pathlib.Path("one"))} and "accuracy" in text
    found, _ = record(capsys, "sweep", *QUICK, "--vary", "head=ridge,gaussian", "--output", "two")
    heads = [(row["head"], row["test_nll"]) for row in found["runs"]]
    of_files = [summary_of(pathlib.Path(row["run"]))["test_nll"] for row in found["runs"]]
    assert heads == [*zip(("ridge", "gaussian"), of_files)]
    for command in (("run", "--seeds", "3", *QUICK, "--output", "many"), ("report", "one", "--output", "page.html")):
        (row,) = record(capsys, *command)[0]["runs"]
        assert row["test_nll"] == summary_of(pathlib.Path(row["run"]))["test_nll"]
    states = record(capsys, "sweep", *QUICK, "--vary", "head=ridge,gaussian", "--output", "two", "--list")[0]["listed"]
    assert [cell["done"] for cell in states] == [True, True]
    (listed,) = record(capsys, "runs", "one")[0]["runs"]
    assert (listed["run"], listed["state"], listed["seed"]) == ("one", "done", 0)
    assert listed["numbers"]["accuracy"] == row["accuracy"]


@pytest.mark.deep(after="tests/app/test_output.py")
def test_trials_and_benchmarks_print_what_their_files_hold(tmp_path, monkeypatch, capsys):
    pytest.importorskip("optuna")
    monkeypatch.chdir(tmp_path)
    found, _ = record(capsys, "tune", *QUICK, "--space", "num-samples=3,4", "--trials", "2", "--output", "tuned")
    lines = [json.loads(line) for line in pathlib.Path("tuned/trials.jsonl").read_text().splitlines()]
    assert found["trials"] == 2 and found["score"] == min(row["scores"]["test_nll"] for row in lines)
    epochs = ["--space", "local-epochs=1,40", "--trials", "2", "--output", "epochs"]
    found, _ = record(capsys, "tune", *QUICK[:-4], "--algorithm", "fed_opt", "--rounds", "1", *epochs)
    assert found["values"] == {"local_epochs": 40}
    plan = {"seeds": "0", "settings": {"a": SETTING}, "methods": {"one": {**METHOD, "algorithm": "fed_opt"}}}
    pathlib.Path("bench.yaml").write_text(yaml.safe_dump(plan))
    bench = ("bench", "bench.yaml", "--output", "cells")
    listed = {"folder": "cells", "listed": [{"name": "a/one/seed-0", "done": False}]}
    assert record(capsys, *bench, "--list")[0] == listed
    found, _ = record(capsys, *bench)
    assert found["cells"] == [json.loads(x) for x in pathlib.Path("cells/records.jsonl").read_text().splitlines()]
