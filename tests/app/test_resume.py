"""`tfp-bfl run --resume`: an interrupted run ends as an uninterrupted one."""

import fcntl
import functools
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import yaml

import tfp_bfl as bfl
from tests.kit import summary_of
from tfp_bfl.app.cli import run_command_line

pytestmark = pytest.mark.deep(after="tests/federated/test_checkpoints.py")

# On the engine of this process: tests/federated/test_kills.py has the other's.
OPTIONS = {
    "engine": "local",
    "model": "mlp",
    "rounds": 6,
    "local_epochs": 1,
    "examples_per_client": 40,
    "num_samples": 3,
    "evaluation_examples": 60,
    "cohort_size": 6,
    "dropout": 0.2,
    "partition": "iid",
    "keep_checkpoints": 2,
}
ARGUMENTS = [word for name, value in OPTIONS.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def rows(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{name: x for name, x in json.loads(line).items() if "seconds" not in name} for line in lines]


def summary(folder):
    clock = ("train_seconds", "seconds", "ms_per_step", "worker_mb", "process_mb")
    return {name: x for name, x in summary_of(folder).items() if name not in clock}


def assert_same_run(folder, whole):
    assert rows(folder) == rows(whole) and summary(folder) == summary(whole)
    with np.load(folder / "predictions.npz") as a, np.load(whole / "predictions.npz") as b:
        assert all(a[name].tobytes() == b[name].tobytes() for name in b.files)
    assert {path.name for path in folder.iterdir()} == {path.name for path in whole.iterdir()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "whole"
    assert run_command_line(["run", *ARGUMENTS, "--output", str(folder)]) == 0
    return folder


@pytest.mark.long
def test_after_a_kill(whole, tmp_path):
    folder = tmp_path / "killed"
    command = [sys.executable, "-m", "tfp_bfl", "run", *ARGUMENTS, "--output", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 500
    while not (folder / "checkpoints" / "round_2.sha256").exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (folder / "summary.json").exists()
    with open(folder / "metrics.jsonl", "a") as lines:
        lines.write('{"round": 99, "nl')  # As if the kill had come in the middle of a line.
    assert run_command_line(["run", "--resume", str(folder)]) == 0
    assert_same_run(folder, whole)


@pytest.mark.parametrize("where", ["evaluate", "write_report"])
def test_after_an_error(whole, tmp_path, monkeypatch, where):
    """In the evaluation of the last round's model, or once half of the results are written."""

    def fail(*args, **options):
        raise RuntimeError("this is expected")

    folder = tmp_path / "broken"
    monkeypatch.setattr(bfl.evaluation if where == "evaluate" else bfl.plots, where, fail)
    with pytest.raises(RuntimeError, match="this is expected"):
        run_command_line(["run", *ARGUMENTS, "--output", str(folder)])
    monkeypatch.undo()
    assert run_command_line(["run", "--resume", str(folder)]) == 0
    assert_same_run(folder, whole)


def test_a_chain_goes_on_with_the_draws_that_it_kept(tmp_path, monkeypatch):
    """SGLD broken off in its fourth round: of the two draws that predict then, one is from before."""
    whole, folder = tmp_path / "whole", tmp_path / "broken"
    options = "run --algorithm fed_sgld --dataset breast_cancer --model mlp --partition iid --clients 3 --rounds 4"
    options = [
        *options.split(),
        "--engine",
        "local",
        "--burn-in-rounds",
        "1",
        "--max-samples",
        "2",
        "--step-size",
        "1e-4",
    ]

    def until_the_fourth(*args, **options):
        assert next(calls) < 4, "this is expected"
        return evaluate(*args, **options)

    assert run_command_line([*options, "--output", str(whole)]) == 0
    evaluate, calls = bfl.evaluation.evaluate, iter(range(1, 9))
    monkeypatch.setattr(bfl.evaluation, "evaluate", until_the_fourth)
    with pytest.raises(AssertionError, match="this is expected"):
        run_command_line([*options, "--output", str(folder)])
    monkeypatch.undo()
    assert len(rows(folder)) == 3
    assert run_command_line(["run", "--resume", str(folder)]) == 0
    assert_same_run(folder, whole)
    assert summary(whole)["epistemic_share"] > 0


@pytest.mark.long
def test_pre_training_is_not_repeated(tmp_path, monkeypatch):
    def fail(*args, **options):
        raise RuntimeError("this is expected")

    options = [*ARGUMENTS, "--rounds", "2", "--pretrain-share", "0.1", "--kind", "deterministic"]
    options += ["--dataset", "breast_cancer"]
    monkeypatch.setattr(bfl.federated, "pretrain", functools.partial(bfl.federated.pretrain, patience=1))
    whole, folder = tmp_path / "whole", tmp_path / "broken"
    assert run_command_line(["run", *options, "--output", str(whole)]) == 0
    evaluate, calls = bfl.evaluation.evaluate, iter([False, False])

    def fail_in_the_rounds(*args, **options):
        """The first two calls score what was pre-trained, and the first round, which then has a checkpoint."""
        return fail() if next(calls, True) else evaluate(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(bfl.evaluation, "evaluate", fail_in_the_rounds)
        with pytest.raises(RuntimeError, match="this is expected"):
            run_command_line(["run", *options, "--output", str(folder)])
    with monkeypatch.context() as patch:
        patch.setattr(bfl.federated, "pretrain", fail)
        assert run_command_line(["run", "--resume", str(folder)]) == 0
    assert_same_run(folder, whole)
    # As after a kill while the first checkpoint was being written: what was pre-trained is gone.
    (folder / "summary.json").unlink()
    for path in (folder / "checkpoints").glob("*.sha256"):
        path.unlink()
    assert run_command_line(["run", "--resume", str(folder)]) == 0
    assert_same_run(folder, whole)


def refused(arguments, capsys, message):
    assert run_command_line(["run", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_what_can_not_be_resumed(whole, tmp_path, capsys):
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*")}
    refused(["--resume", str(whole)], capsys, "is complete: there is nothing to resume")
    refused(["--resume", str(tmp_path)], capsys, "is not the folder of a run: it has no config.yaml")
    refused(["--resume", str(whole), "--rounds", "9"], capsys, "leave --rounds out, or start a new run")
    refused(["--resume", str(whole), "--config", "x.yaml"], capsys, "leave --config out")
    assert {path: path.stat().st_mtime_ns for path in whole.rglob("*")} == before


@pytest.fixture
def begun(whole, tmp_path):
    """Return the folder of a run that was interrupted after its checkpoints."""
    folder = tmp_path / "begun"
    subprocess.run(["cp", "-r", str(whole), str(folder)], check=True)
    (folder / "summary.json").unlink()
    return folder


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("rule", "conflation", "are of a run that differs in rule, "),
        ("model", "lenet", "are of a run that differs in model, "),
        ("seed", 3, "are of"),
        ("partition", "label_skew:2", "are of a run that differs in clients, "),
        ("rounds", 4, "holds a run of 6 rounds"),
        ("colour", "red", "There is no option 'colour'"),
    ],
)
def test_a_run_whose_config_was_changed_is_refused_unchanged(begun, capsys, option, value, message):
    config = yaml.safe_load((begun / "config.yaml").read_text())
    (begun / "config.yaml").write_text(yaml.safe_dump({**config, option: value}, sort_keys=False))
    before = contents(begun)
    refused(["--resume", str(begun)], capsys, message)
    assert contents(begun) == before


def test_a_run_that_is_still_going_on_is_refused(begun, capsys):
    with open(begun / "config.yaml", "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        refused(["--resume", str(begun)], capsys, "is still going on in another process")


def test_checkpoints_that_are_all_damaged_are_refused_unchanged(begun, capsys):
    for path in (begun / "checkpoints").glob("*.index"):
        path.write_bytes(b"spoiled")
    before = contents(begun)
    assert run_command_line(["run", "--resume", str(begun)]) == 2
    assert "Every checkpoint in" in capsys.readouterr().err
    assert contents(begun) == before


def test_a_changed_test_set_is_refused(tmp_path, capsys, monkeypatch):
    """The scores of one run are of one test set."""
    rng = np.random.default_rng(0)
    lines = ["x,label", *(f"{x:.4f},{'ab'[x > 0]}" for x in rng.normal(size=60))]
    (tmp_path / "train.csv").write_text("\n".join(lines))
    (tmp_path / "test.csv").write_text("\n".join(lines[:30]))
    monkeypatch.chdir(tmp_path)
    given = ["--dataset", "train.csv", "--test-data", "test.csv", "--clients", "2", "--cohort-size", "2"]
    assert run_command_line(["run", *ARGUMENTS[:-8], *given, "--partition", "iid", "--output", "run"]) == 0
    (tmp_path / "run" / "summary.json").unlink()
    (tmp_path / "test.csv").write_text("\n".join([*lines[:29], "0.5,b"]))
    before = contents(tmp_path / "run")
    capsys.readouterr()
    refused(["--resume", "run"], capsys, "are of a run that differs in test data, ")
    assert contents(tmp_path / "run") == before
