"""`tfp-bfl drift`: files like the training data, shifted files, and the exit status of each; `unusual` in a run."""

import json

import numpy as np
import pytest

import tfp_bfl as bfl
from tests.app.test_laplace import call, refused
from tfp_bfl.app.one_run.drift import drift, record

pytestmark = pytest.mark.cpu_seconds(30)  # one run serves the tests of the file


def write(path, number, seed, shift=0.0):
    """Three columns of patients in three hospitals, of which the second may be shifted."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(number, 3)) * [10, 1, 0.1] + [50, shift, 3]
    sick = values[:, 0] + 5 * rng.normal(size=number) > 50
    lines = [f"h{i % 3},{a:.2f},{b:.4f},{c:.4f},{int(y)}" for i, ((a, b, c), y) in enumerate(zip(values, sick))]
    path.write_text("\n".join(["hospital,age,dose,marker,sick", *lines]) + "\n")
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    options = {"label": "sick", "client_column": "hospital", "model": "mlp", "rounds": 2, "hold_out": 0.4}
    dataset = write(folder / "train.csv", 900, 0)
    return bfl.run(folder / "run", dataset=str(dataset), engine="local", num_samples=4, **options).folder


def test_histograms_are_of_the_training_alone(run):
    with np.load(run / "training_histograms.npz") as arrays, np.load(run / "held_out.npz") as held:
        assert arrays["names"].tolist() == ["age", "dose", "marker"]
        in_training = 900 * 0.8 - len(held["labels"])
        assert np.all(np.abs(arrays["counts"].sum(1) - in_training) <= 5)


def test_data_of_the_same_kind_do_not_drift(run, tmp_path, capsys):
    """Error rate: 0.01 by the level, over seeds; this seed has none."""
    assert call("drift", run, write(tmp_path / "same.csv", 300, 7)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "300 examples, " in lines[0] and lines[0].endswith("scores against held-out examples")
    assert len(lines) == 2 + 3 + 3 and all(line.endswith("no") for line in lines[2:])


def test_a_shifted_column_is_found_with_an_exit_status_of_its_own(run, tmp_path, capsys):
    path = write(tmp_path / "shifted.csv", 300, 7, 1.0)
    assert call("drift", run, path) == 3
    assert next(line.split()[0] for line in capsys.readouterr().out.splitlines() if line.endswith("yes")) == "dose"
    assert not next(row for row in drift(run, path).rows if row.name == "age").found


def test_unusual_rows_are_scored_and_counted(run, tmp_path, capsys):
    path = write(tmp_path / "far.csv", 60, 7, 30.0)
    assert call("predict", run, path, "--format", "json") == 0
    assert all(row["unusual"] > 1 for row in json.loads(capsys.readouterr().out))
    rows = {row.name: row for row in drift(run, path).rows}
    assert rows["score: unusual examples"].found
    stated = bfl.export.read_info(bfl.export.find(run)).data["unusual"]
    assert stated["number"] > 200 and stated["rate"] <= 0.01
    assert call("calibrate", run, tmp_path / "calibrated", "--coverage", "0.8") == 0
    assert "unusual" in bfl.export.load(tmp_path / "calibrated").predict(np.zeros((1, 3), np.float32))


def test_sequences_have_no_histograms_and_end_no_run(tmp_path):
    features = np.random.default_rng(0).normal(size=(20, 5, 3)).astype(np.float32)
    source = bfl.data.Source("waves", "train", features, np.arange(20, dtype=np.int32) % 2)
    record(tmp_path, bfl.data.Clients(source, [np.arange(20)]), source)
    assert not list(tmp_path.iterdir())


def test_runs_of_numbers_compare_means_and_deviations(tmp_path):
    options = {"label": "age", "task": "regression", "model": "mlp", "rounds": 1, "clients": 2, "drop": "hospital,sick"}
    dataset = write(tmp_path / "train.csv", 200, 0)
    folder = bfl.run(tmp_path / "run", dataset=str(dataset), engine="local", num_samples=2, **options).folder
    report = drift(folder, write(tmp_path / "same.csv", 60, 5))
    assert [row.name for row in report.rows] == ["dose", "marker", "score: mean", "score: stddev"]
    assert report.reference == "test examples" and report.number == 60


def test_bad_input_is_refused_in_a_sentence(run, tmp_path, capsys):
    same = write(tmp_path / "same.csv", 30, 7)
    assert "level" in refused(capsys, "drift", run, same, "--level", "2")
    assert "training_histograms.npz" in refused(capsys, "drift", run / "saved_model", same)
    (tmp_path / "bad.csv").write_text("a,b\n1,2\n")
    assert "age" in refused(capsys, "drift", run, tmp_path / "bad.csv")
