"""Trackers get what a run records, and never decide how it ends."""

import glob
import json
import pathlib

import pytest

import tfp_bfl as bfl
from tests.kit import call
from tfp_bfl.app.one_run import trackers
from tfp_bfl.app.options.config import make_config
from tfp_bfl.errors import MissingDependency
from tfp_bfl.keras import tf

SMALL = {"dataset": "breast_cancer", "model": "mlp", "clients": 3, "local_epochs": 1, "algorithm": "fed_opt"}
METHODS = """
settings:
  cancer: {dataset: breast_cancer, clients: 3, model: mlp, rounds: 2, local_epochs: 1}
methods:
  fed_avg: {algorithm: fed_opt, kind: deterministic, learning_rate: 0.1}
reference: fed_avg
seeds: "0"
"""


@pytest.fixture
def wandb_folder(tmp_path, monkeypatch):
    """A folder for the files of Weights & Biases, which reads the environment anew."""
    wandb = pytest.importorskip("wandb")
    wandb.teardown()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    for name in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    yield tmp_path
    wandb.teardown()


@pytest.fixture
def mlflow_client(tmp_path, monkeypatch):
    """The client of MLflow's own file store in a folder: its database needs packages that the tests do not install."""
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path / 'mlflow'}")
    from mlflow import MlflowClient

    return MlflowClient()


def content_of(log):
    """Return the bytes of the records of a log as LevelDB writes it: blocks of 32 KiB divide records, and so names."""
    content, at = b"", 7
    while at + 7 <= len(log):
        left = 2**15 - at % 2**15
        size = int.from_bytes(log[at + 4 : at + 6], "little") if left >= 7 else 0
        content += log[at + 7 : at + 7 + size] if left >= 7 else b""
        at += 7 + size if left >= 7 else left
    return content


def runs_of(client):
    return client.search_runs([each.experiment_id for each in client.search_experiments()])


def events_in(folder):
    """Return (name, step) -> value of TensorBoard's event files."""
    found = {}
    for path in glob.glob(f"{folder}/**/events.*", recursive=True):
        for event in tf.compat.v1.train.summary_iterator(path):
            for value in event.summary.value:
                found[value.tag, event.step] = float(tf.make_ndarray(value.tensor))
    return found


def test_mlflow_has_options_rounds_and_scores(tmp_path, mlflow_client):
    result = bfl.run(tmp_path / "group" / "mine", rounds=3, tracker="mlflow", **SMALL)
    (run,) = runs_of(mlflow_client)
    rows = [json.loads(line) for line in (tmp_path / "group" / "mine" / "metrics.jsonl").read_text().splitlines()]
    logged = mlflow_client.get_metric_history(run.info.run_id, "test_nll")
    assert [(x.step, x.value) for x in logged] == [(row["round"], row["test_nll"]) for row in rows]
    assert run.data.metrics["final/accuracy"] == result.summary["accuracy"]
    assert (run.data.params["algorithm"], run.data.params["local_epochs"]) == ("fed_opt", "1")
    assert (run.info.run_name, run.data.tags["group"], run.info.status) == ("mine", "group", "FINISHED")


def test_a_resumed_run_continues_the_run_of_the_tracker_and_a_broken_one_failed(tmp_path, mlflow_client):
    def stop(row):
        if row["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bfl.run(tmp_path / "mine", rounds=3, tracker="mlflow", on_round=stop, **SMALL)
    (run,) = runs_of(mlflow_client)
    assert run.info.status == "FAILED"
    bfl.run(resume=tmp_path / "mine")
    (run,) = runs_of(mlflow_client)
    steps = {x.step for x in mlflow_client.get_metric_history(run.info.run_id, "nll")}
    assert (run.info.status, steps) == ("FINISHED", {1, 2, 3})


def test_a_tracker_that_fails_is_a_warning_and_the_run_the_same(tmp_path, mlflow_client, monkeypatch, caplog):
    without = bfl.run(tmp_path / "without", rounds=2, **SMALL).summary

    def fail(*args, **kwargs):
        raise ConnectionError("no route to the server")

    monkeypatch.setattr(type(mlflow_client), "log_batch", fail)
    monkeypatch.setattr(trackers, "_MOST_PARAMETERS", 10**6)
    config = make_config(None, {"tracker": "mlflow", **SMALL})
    words = "tracker mlflow does not begin a run: no route to the server"
    with pytest.raises(trackers.TrackerError, match=words), trackers.tracking(config, tmp_path / "new"):
        pass
    assert not (tmp_path / "new").exists()
    monkeypatch.undo()
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path / 'mlflow'}")
    monkeypatch.setattr(trackers._MLflow, "log", fail)
    found = bfl.run(tmp_path / "with", rounds=2, tracker="mlflow", **SMALL).summary
    assert found["test_nll"] == without["test_nll"]
    warnings = [x.getMessage() for x in caplog.records if "mlflow takes no more metrics" in x.getMessage()]
    assert warnings == ["mlflow takes no more metrics (no route to the server): the run continues without it."]


def test_wandb_offline_writes_a_run(tmp_path, wandb_folder, monkeypatch, capfd):
    monkeypatch.setenv("WANDB_MODE", "offline")
    bfl.run(tmp_path / "mine", rounds=2, tracker="wandb", **SMALL)
    (path,) = glob.glob(f"{wandb_folder}/wandb/offline-run-*/run-*.wandb")
    identity = json.loads((tmp_path / "mine" / "tracker.json").read_text())["wandb"]
    written = content_of(pathlib.Path(path).read_bytes())
    assert identity in path
    for name in (b"final/accuracy", b"test_nll", b"local_epochs", b"breast_cancer"):
        assert name in written
    assert capfd.readouterr().out == ""


def test_wandb_without_an_account_is_refused_before_the_rounds(tmp_path, wandb_folder):
    with pytest.raises(trackers.TrackerError, match=r"wandb does not begin a run: .*API key"):
        bfl.run(tmp_path / "mine", rounds=2, tracker="wandb", **SMALL)
    assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_a_tracker_that_is_not_installed_is_named_with_its_command(name, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda package: None)
    with pytest.raises(MissingDependency, match=rf"--tracker {name} needs the package {name}, .*: pip install {name}$"):
        bfl.run(tmp_path / "mine", rounds=2, tracker=name, **SMALL)
    assert not (tmp_path / "mine").exists()


@pytest.mark.deep(after="tests/app/test_trackers.py")
def test_cells_of_a_benchmark_and_trials_are_logged(tmp_path):
    (tmp_path / "methods.yaml").write_text(METHODS)
    assert call("bench", tmp_path / "methods.yaml", "--output", tmp_path / "all", "--tracker", "tensorboard") == 0
    record = json.loads((tmp_path / "all" / "records.jsonl").read_text())
    events = events_in(tmp_path / "all" / "cells" / "cancer" / "fed_avg" / "seed-0" / "tensorboard")
    assert events["final/accuracy", 2] == pytest.approx(record["scores"]["accuracy"], abs=1e-6)
    assert {step for name, step in events if name == "nll"} == {1, 2}
    pytest.importorskip("optuna")
    few = ("--rounds", "2", "--trials", "2", "--dataset", "breast_cancer", "--clients", "3", "--tracker", "tensorboard")
    space = ("--space", "learning-rate=0.01,0.1", "--algorithm", "fed_opt", "--kind", "deterministic")
    assert call("tune", *space, *few, "--output", tmp_path / "tuned") == 0
    trials = sorted(path.name for path in (tmp_path / "tuned" / "trials").iterdir())
    assert trials[0] == "defaults" and trials[1].startswith("learning_rate=")
    assert ("final/test_nll", 2) in events_in(tmp_path / "tuned" / "trials" / "defaults")
