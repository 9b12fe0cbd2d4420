"""`tfp-bfl drift`: files like the training data, shifted files, and the exit status of each; `unusual` in a run."""

import json
import re

import numpy as np
import pytest

import tfp_bfl as bfl
from tests.kit import call, refusal, summary_of
from tfp_bfl.app.one_run.drift import Drifted, drift, record, rows_of
from tfp_bfl.errors import InvalidArgument

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
        counts = np.split(arrays["counts"], np.cumsum(arrays["bins"])[:-1])
        assert all(abs(x.sum() - in_training) <= 5 for x in counts)


def test_data_of_the_same_kind_do_not_drift(run, tmp_path, capsys):
    """Error rate: 0.01 by the level, over seeds; this seed has none."""
    assert call("drift", run, write(tmp_path / "same.csv", 300, 7)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "300 examples, " in lines[0] and "; scores against held-out examples; " in lines[0]
    assert lines[0].endswith("level 0.01 over all 6 rows (Holm)")
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


def test_a_level_that_no_number_of_examples_reaches():
    """Of a permutation test the least p-value is 1 over the permutations, however many examples there are."""
    stuck = Drifted("few", lambda _: (0.1, 0.5), lambda number: max(1e-6, 0.5**number))
    free = Drifted("many", lambda _: (0.1, 0.5), lambda number: 0.5**number)
    with pytest.raises(InvalidArgument, match=r"No number of examples could reach the level 1e-06 .* above 1e-06\.$"):
        rows_of([stuck], 5, 1e-6)
    assert rows_of([stuck, free], 100, 1e-6)[1] is None
    # 0.5^17 is below 1e-5, and 0.5^16 is not.
    assert rows_of([stuck, free], 100, 2e-5)[1] == 17
    with pytest.raises(InvalidArgument, match=r"give at least 17 \(17 for all rows\)"):
        rows_of([stuck, free], 3, 2e-5)


def test_five_rows_are_enough_for_a_clear_shift_and_one_is_not(run, tmp_path, capsys):
    assert call("drift", run, write(tmp_path / "far.csv", 5, 7, 6.0)) == 3
    lines = capsys.readouterr().out.splitlines()
    assert next(line for line in lines if line.startswith("dose")).endswith("yes")
    message = refusal(capsys, "drift", run, write(tmp_path / "one.csv", 1, 7, 30.0), "--level", "0.0001")
    assert "1 example is too few to find drift: no result could reach the level 0.0001 over 6 rows; give" in message
    number = int(message.split("give at least ")[1].split()[0])
    assert 2 <= number < 10
    assert call("drift", run, write(tmp_path / "more.csv", number, 7, 30.0), "--level", "0.0001") == 3
    assert call("drift", run, write(tmp_path / "two.csv", 2, 7)) == 0
    out = capsys.readouterr().out
    assert "  too few\n" in out and "Too few examples to decide in " in out


def test_levels_that_few_examples_can_not_reach_are_stated(run, tmp_path, capsys):
    """Not with a million permutations, which a command can wait for."""
    assert call("drift", run, write(tmp_path / "few.csv", 30, 7), "--level", "1e-8") == 0
    out = capsys.readouterr().out
    assert out.count("  too few\n") == 5 and "to decide in 5 of the rows: 100 examples would do." in out


def test_runs_with_differential_privacy_record_neither_histograms_nor_unusual(tmp_path, capsys):
    """Only what epsilon covers, and what the page on privacy lists, leaves the clients."""
    options = {"label": "sick", "model": "mlp", "rounds": 1, "hold_out": 0.3, "clients": 2, "kind": "deterministic"}
    private = {"example_clip_norm": 1.0, "example_noise": 2.0, "partition": "iid", "drop": "hospital"}
    dataset = write(tmp_path / "train.csv", 300, 0)
    folder = bfl.run(tmp_path / "run", dataset=str(dataset), engine="local", num_samples=2, **options, **private).folder
    assert not (folder / "training_histograms.npz").exists()
    assert "unusual" not in bfl.export.load(folder / "saved_model").predict(np.zeros((1, 3), np.float32))
    summary = summary_of(folder)
    assert summary["example_epsilon"] > 0 and "has no output unusual" in summary["notes"][-1]
    card = (folder / "saved_model" / "model_card.md").read_text()
    assert "checksum of the training data are outside it" in card and "contains exact means and standard dev" in card
    assert "a run with differential privacy, which records no" in refusal(capsys, "drift", folder, dataset)
    for command in ("laplace", "last-layer"):
        message = refusal(capsys, command, folder, "--output", tmp_path / command)
        assert "computed from exact sums over its examples, which epsilon does not cover" in message


def test_runs_of_numbers_score_unusual_rows(tmp_path, capsys):
    options = {"label": "age", "task": "regression", "model": "mlp", "rounds": 2, "clients": 2, "drop": "hospital,sick"}
    dataset = write(tmp_path / "train.csv", 400, 0)
    folder = bfl.run(tmp_path / "run", dataset=str(dataset), engine="local", hold_out=0.4, **options).folder
    with np.load(folder / "held_out.npz") as held:
        assert 40 < held["labels"].mean() < 60 and held["mean"].shape == held["labels"].shape
    far = write(tmp_path / "far.csv", 20, 5, 30.0)
    assert call("predict", folder, far, "--format", "json") == 0
    assert all(row["unusual"] > 1 for row in json.loads(capsys.readouterr().out))
    same = drift(folder, write(tmp_path / "same.csv", 60, 5))
    assert [row.name for row in same.rows][2:] == ["score: mean", "score: stddev", "score: unusual examples"]
    assert not same.found and same.reference == "held-out examples"
    assert drift(folder, far).rows[-1].found
    assert "is for classifiers" in refusal(capsys, "calibrate", folder, tmp_path / "calibrated")
    assert call("report", folder, "--ood", far, "--output", tmp_path / "page.html") == 0
    words = re.sub(r"<[^>]+>|\s+", " ", (tmp_path / "page.html").read_text())
    assert "AUROC of the standard deviation" in words
    assert re.match(r" +1\.000 +\[", words.split("AUROC of the score of unusual examples")[1])


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
    assert "level" in refusal(capsys, "drift", run, same, "--level", "2")
    assert "training_histograms.npz" in refusal(capsys, "drift", run / "saved_model", same)
    (tmp_path / "bad.csv").write_text("a,b\n1,2\n")
    assert "age" in refusal(capsys, "drift", run, tmp_path / "bad.csv")
