"""`tfp-bfl run --resume`: an interrupted run ends as an uninterrupted one."""

import fcntl
import functools
import subprocess

import numpy as np
import pytest
import yaml

import tfp_bfl as bfl
from tests.app.broken_run import assert_same_run
from tests.kit import call, refusal

pytestmark = pytest.mark.deep(after="tests/federated/test_checkpoints.py")

# On the engine of this process: tests/federated/test_kills.py has the other's.
FLAGS = "--engine local --model mlp --rounds 6 --local-epochs 1 --examples-per-client 40 --num-samples 3"
FLAGS = f"{FLAGS} --evaluation-examples 60"
ARGUMENTS = f"{FLAGS} --cohort-size 6 --dropout 0.2 --partition iid --keep-checkpoints 2".split()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "whole"
    assert call("run", *ARGUMENTS, "--output", folder) == 0
    return folder


@pytest.mark.parametrize("where", ["evaluate", "write_report"])
def test_after_an_error(whole, tmp_path, monkeypatch, where):
    """In the evaluation of the last round's model, or once half of the results are written."""

    def fail(*args, **options):
        raise RuntimeError("this is expected")

    folder = tmp_path / "broken"
    monkeypatch.setattr(bfl.evaluation if where == "evaluate" else bfl.plots, where, fail)
    with pytest.raises(RuntimeError, match="this is expected"):
        call("run", *ARGUMENTS, "--output", folder)
    monkeypatch.undo()
    with open(folder / "metrics.jsonl", "a") as lines:
        lines.write('{"round": 99, "nl')  # As after a kill in the middle of a line.
    assert call("run", "--resume", folder) == 0
    assert_same_run(folder, whole)


@pytest.mark.long
def test_pre_training_is_not_repeated(tmp_path, monkeypatch):
    def fail(*args, **options):
        raise RuntimeError("this is expected")

    options = [*ARGUMENTS, "--rounds", "2", "--pretrain-share", "0.1", "--kind", "deterministic"]
    options += ["--dataset", "breast_cancer"]
    monkeypatch.setattr(bfl.federated, "pretrain", functools.partial(bfl.federated.pretrain, patience=1))
    whole, folder = tmp_path / "whole", tmp_path / "broken"
    assert call("run", *options, "--output", whole) == 0
    evaluate, calls = bfl.evaluation.evaluate, iter([False, False])

    def fail_in_the_rounds(*args, **options):
        """The first two calls score what was pre-trained, and the first round, which then has a checkpoint."""
        return fail() if next(calls, True) else evaluate(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(bfl.evaluation, "evaluate", fail_in_the_rounds)
        with pytest.raises(RuntimeError, match="this is expected"):
            call("run", *options, "--output", folder)
    with monkeypatch.context() as patch:
        patch.setattr(bfl.federated, "pretrain", fail)
        assert call("run", "--resume", folder) == 0
    assert_same_run(folder, whole)
    # As after a kill while the first checkpoint was being written: what was pre-trained is gone.
    (folder / "summary.json").unlink()
    for path in (folder / "checkpoints").glob("*.sha256"):
        path.unlink()
    assert call("run", "--resume", folder) == 0
    assert_same_run(folder, whole)


def refused(arguments, capsys, message):
    assert message in refusal(capsys, "run", *arguments)


def test_what_can_not_be_resumed(whole, tmp_path, capsys):
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*")}
    refused(["--resume", str(whole)], capsys, "is complete: there is nothing to resume")
    refused(["--resume", str(tmp_path)], capsys, "is not the folder of a run: it has no config.yaml")
    refused(["--resume", str(whole), "--rounds", "9"], capsys, "leave --rounds out, or start a new run")
    refused(["--resume", str(whole), "--config", "x.yaml"], capsys, "leave --config out")
    assert {path: path.stat().st_mtime_ns for path in whole.rglob("*")} == before


@pytest.fixture
def begun(whole, tmp_path):
    folder = tmp_path / "begun"
    subprocess.run(["cp", "-r", str(whole), str(folder)], check=True)
    (folder / "summary.json").unlink()
    return folder


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("temperature", 0.5, "are of a run that differs in temperature, "),
        ("model", "lenet", "are of a run that differs in model, "),
        ("seed", 3, "are of"),
        ("partition", "label_skew:2", "are of a run that differs in clients, "),
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


def test_a_changed_test_set_is_refused(tmp_path, capsys, monkeypatch):
    """The scores of one run are of one test set."""
    rng = np.random.default_rng(0)
    lines = ["x,label", *(f"{x:.4f},{'ab'[x > 0]}" for x in rng.normal(size=60))]
    (tmp_path / "train.csv").write_text("\n".join(lines))
    (tmp_path / "test.csv").write_text("\n".join(lines[:30]))
    monkeypatch.chdir(tmp_path)
    given = ["--dataset", "train.csv", "--test-data", "test.csv", "--clients", "2", "--cohort-size", "2"]
    assert call("run", *FLAGS.split(), *given, "--partition", "iid", "--output", "run") == 0
    (tmp_path / "run" / "summary.json").unlink()
    (tmp_path / "test.csv").write_text("\n".join([*lines[:29], "0.5,b"]))
    before = contents(tmp_path / "run")
    capsys.readouterr()
    refused(["--resume", "run"], capsys, "are of a run that differs in test data, ")
    assert contents(tmp_path / "run") == before
