"""`tfp-bfl run --algorithm fl_swag`, and `tfp-bfl clients`: runs whose clients leave and join without training."""

import json
import shutil

import numpy as np
import pytest
import tensorflow as tf
import yaml

import tfp_bfl as bfl
from tests.algorithms.cases import state_of
from tests.kit import call, summary_of
from tests.units import in_units
from tfp_bfl.algorithms.held import Held
from tfp_bfl.app.options.config import make_config
from tfp_bfl.plots import sections
from tfp_bfl.plots.page import Picture

pytestmark = pytest.mark.cpu_seconds(30)  # one run serves the tests of the file

RUN = "run --algorithm fl_swag --dataset breast_cancer --model mlp --partition iid --num-samples 3 --learning-rate 0.2"
SMALL = [*RUN.split(), "--clients", "3", "--local-epochs", "6", "--examples-per-client", "60", "--max-columns", "4"]
SMALL += ["--engine", "local"]  # TensorFlow Federated has its run in test_cli.py
TEST = bfl.data.load("breast_cancer", split="test")


def run(arguments, folder):
    """A run's folder; its page without the figures, which tests/bench/test_reports.py draws."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sections, "picture", lambda figure, caption="": Picture(caption, "data:,", "not drawn"))
        assert call(*arguments, "--output", folder) == 0
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return run(SMALL, tmp_path_factory.mktemp("runs") / "whole")


def rows(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{name: x for name, x in json.loads(line).items() if "seconds" not in name} for line in lines]


def arrays(path):
    with np.load(path, allow_pickle=False) as file:
        return {key: file[key].tobytes() for key in file.files}


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def state(folder):
    return Held.load(folder / "clients.npz")


def exported(folder):
    loaded = bfl.export.load(folder / "saved_model")
    return loaded.predict(in_units(TEST), num_samples=3, seed=0)["probabilities"].numpy()


def assert_export_is_what_was_evaluated(folder):
    with np.load(folder / "predictions.npz") as predictions:
        np.testing.assert_allclose(exported(folder), predictions["probabilities"], rtol=1e-4, atol=1e-6)
        right = predictions["probabilities"].argmax(1) == TEST.labels
    assert right.mean() == pytest.approx(summary_of(folder)["accuracy"])


def test_run_folder_is_complete(whole):
    names = "checkpoints clients.npz config.yaml figures metrics.jsonl predictions.npz report.html saved_model"
    assert {path.name for path in whole.iterdir()} == {*names.split(), "summary.json", "training_histograms.npz"}
    (row,) = rows(whole)
    assert (row["num_clients"], row["num_faulty"], row["num_examples"]) == (3, 0, 180)
    assert row["stddev_median"] > 0 and summary_of(whole)["accuracy"] > 0.8
    assert "fl_swag" in (whole / "report.html").read_text()
    assert_export_is_what_was_evaluated(whole)


def test_the_state_in_the_folder_predicts_as_the_run_does(whole):
    config = make_config(whole / "config.yaml", {})
    model = bfl.weights.predictive_model(bfl.models.mlp(kind=config.kind), state(whole).pool())
    samples = bfl.evaluation.predict(model, TEST.features, num_samples=3, seed=0)
    np.testing.assert_allclose(samples.mean(0), exported(whole), rtol=1e-4, atol=1e-6)
    assert np.ptp(samples, 0).max() > 1e-4


@pytest.mark.deep(after="test_revise.py")
@pytest.mark.long
def test_the_product_as_published_is_asked_for_with_three_options_and_kept_when_a_client_leaves(whole, tmp_path):
    exact = run([*SMALL, "--no-between-clients", "--no-diagonal-only", "--no-curvature"], tmp_path / "exact")
    record = yaml.safe_load((exact / "config.yaml").read_text())
    assert (record["between_clients"], record["diagonal_only"], record["curvature"]) == (False, False, False)
    # The clients send the same but for what their data leave open.
    sent = [arrays(folder / "clients.npz") for folder in (exact, whole)]
    settings = {f"settings/{name}" for name in ("between_clients", "diagonal_only")}
    differ = {name for name, x in sent[0].items() if x != sent[1][name]}
    assert differ == {n for n in sent[0] if "/diagonal/" in n} | settings
    assert np.abs(exported(exact) - exported(whole)).max() > 1e-3
    assert call("clients", "remove", exact, "1", "--output", tmp_path / "two") == 0
    model = bfl.weights.predictive_model(bfl.models.mlp(kind="deterministic"), state(tmp_path / "two").pool())
    samples = bfl.evaluation.predict(model, TEST.features, num_samples=3, seed=0)
    np.testing.assert_allclose(samples.mean(0), exported(tmp_path / "two"), rtol=1e-4, atol=1e-6)


@pytest.mark.deep(after="test_revise.py")
@pytest.mark.long
def test_last_layer_over_what_the_server_has_pretrained(tmp_path):
    """End to end, and the same from its checkpoint as after a stop before the results were written."""
    folder, again = tmp_path / "head", tmp_path / "again"
    assert call(*SMALL, "--last-layer", "--pretrain-share", "0.4", "--output", folder) == 0
    assert_export_is_what_was_evaluated(folder)
    last = state(folder)
    assert [x.shape for x in last.rows["0"].posterior.mean] == [(32, 2), (2,)] and len(last.weights.point) == 6
    start = bfl.weights.get_weights(bfl.models.mlp(kind="deterministic"))
    assert np.abs(last.weights.point[0] - start.point[0]).max() > 1e-3
    assert summary_of(folder)["pretrained_accuracy"] > 0.9 and summary_of(folder)["accuracy"] > 0.85
    shutil.copytree(folder, again)
    for name in ("summary.json", "clients.npz", "predictions.npz"):
        (again / name).unlink()
    assert call("run", "--resume", again) == 0
    for name in ("clients.npz", "predictions.npz"):
        assert arrays(again / name) == arrays(folder / name)


def test_show_tells_the_clients(whole, capsys):
    assert call("clients", "show", whole) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[:2] for line in lines] == [["client", "examples"], ["0", "60"], ["1", "60"], ["2", "60"]]
    assert all(float(line[2]) > 0 for line in lines[1:])


@pytest.fixture(scope="module")
def without_1(whole, tmp_path_factory):
    before, folder = contents(whole), tmp_path_factory.mktemp("runs") / "deep" / "without_1"
    assert call("clients", "remove", whole, "1", "--output", folder) == 0
    assert contents(whole) == before
    return folder


def test_a_client_leaves_as_if_it_had_never_been_there(whole, without_1):
    assert {path.name for path in without_1.iterdir()} == {"config.yaml", "clients.npz", "saved_model", "summary.json"}
    assert make_config(without_1 / "config.yaml", {}) == make_config(whole / "config.yaml", {})
    assert bfl.export.read_info(without_1 / "saved_model").data["clients"] == ["0", "2"]
    wanted = {name: state(whole).rows[name] for name in ("0", "2")}
    tf.nest.map_structure(np.testing.assert_array_equal, state(without_1).rows, wanted)
    told = summary_of(without_1)
    assert told["clients"] == ["0", "2"] and told["accuracy"] > 0.8
    right = exported(without_1).argmax(1) == TEST.labels
    assert right.mean() == pytest.approx(told["accuracy"])
    assert np.abs(exported(without_1) - exported(whole)).max() > 1e-3


def test_a_client_comes_back(whole, without_1, tmp_path, capsys):
    folder = tmp_path / "back"
    assert call("clients", "add", without_1, whole, "1", "--output", folder) == 0
    output = capsys.readouterr().out
    assert output.startswith("3 clients: accuracy 0.") and f"{folder} holds the new state" in output
    assert list(state(folder).rows) == ["0", "2", "1"]
    a, b = (bfl.posterior.marginals(state(f).pool().posterior) for f in (folder, whole))
    for x, y in zip(tf.nest.flatten(a), tf.nest.flatten(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-7)


@pytest.mark.deep(after="test_revise.py")
def test_clients_of_the_same_name_are_replaced_if_asked_for(whole, without_1, tmp_path):
    """Client 0 has trained further in the meantime: it has the posterior of client 1."""
    later, folder = tmp_path / "later", tmp_path / "updated"
    shutil.copytree(without_1, later)
    learnt, own = state(whole).rows["1"], state(without_1)
    own._replace(rows={**own.rows, "0": learnt}).save(later / "clients.npz")
    arguments = ["clients", "add", str(whole), str(later), "0", "--replace", "--output", str(folder)]
    assert call(*arguments) == 0
    assert list(state(folder).rows) == ["0", "1", "2"]
    tf.nest.map_structure(np.testing.assert_array_equal, state(folder).rows["0"], learnt)


@pytest.fixture
def place(whole, without_1, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(whole, "whole")
    shutil.copytree(without_1, "without_1")
    for name in ("damaged", "foreign", "no_config", "bad_config"):
        shutil.copytree(without_1, name)
    (tmp_path / "damaged" / "clients.npz").write_bytes((whole / "clients.npz").read_bytes()[:-9])
    state_of(5, 6).save("foreign/clients.npz")
    (tmp_path / "no_config" / "config.yaml").unlink()
    (tmp_path / "bad_config" / "config.yaml").write_text("ruel: conflation")
    (tmp_path / "variational").mkdir()
    (tmp_path / "variational" / "config.yaml").write_text("rule: conflation")
    (tmp_path / "file").write_text("kept")
    (tmp_path / "link").symlink_to("nowhere")
    return tmp_path


BAD = {
    "clients show": "Missing argument 'RUN'",
    "clients show nowhere": "nowhere holds no clients: it must be the folder of a complete run of the algorithm",
    "clients show file": "file holds no clients",
    "clients show variational": "variational holds no clients",
    "clients show damaged": "damaged/clients.npz is not a file of arrays, or is damaged",
    "clients remove whole --output new": "Missing argument 'CLIENT...'",
    "clients remove whole 1": "Missing option '--output'",
    "clients remove whole 7 --output new": "There is no client '7': the clients are '0', '1', '2'",
    "clients remove whole 1 1 --output new": "There is no client '1': the clients are '0', '2'",
    "clients remove whole 0 1 2 --output new": "one client at least must be left",
    "clients remove nowhere 1 --output new": "nowhere holds no clients",
    "clients remove damaged 0 --output new": "is not a file of arrays, or is damaged",
    "clients remove foreign 5 --output new": "The model has 6 point weights, but there are 4 values",
    "clients remove no_config 0 --output new": "The config no_config/config.yaml can't be read",
    "clients remove bad_config 0 --output new": "There is no option 'ruel'",
    "clients remove whole 1 --output without_1": "without_1 exists already: give --output a new folder",
    "clients remove whole 1 --output file": "file exists already",
    "clients remove whole 1 --output link": "link exists already",
    "clients remove whole 1 --output file/below": "file/below can't be made (Not a directory)",
    "clients add whole without_1 --output new": "There is a client '0' already: ask to replace it, or leave it out",
    "clients add without_1 whole 1 0 --output new": "There is a client '0' already",
    "clients add without_1 whole 9 --output new": "There is no client '9' to take: the others are '0', '1', '2'",
    "clients add without_1 --output new": "Missing argument 'OTHER'",
    "clients add without_1 nowhere --output new": "nowhere holds no clients",
    "clients add without_1 damaged --output new": "is not a file of arrays, or is damaged",
    "clients add without_1 foreign --output new": "The other clients' model has other shapes",
    "clients add without_1 whole 1 --output whole": "whole exists already",
    "clients remov whole": "No such command 'remov'",
}


@pytest.mark.parametrize("command", BAD)
def test_bad_input_is_one_sentence_and_status_2_and_nothing_is_written(command, place, capsys):
    before = contents(place)
    assert call(*command.split()) == 2
    captured = capsys.readouterr()
    assert BAD[command] in captured.err and captured.err.count("\n") == 1 and not captured.out
    assert contents(place) == before and not (place / "new").exists() and (place / "link").is_symlink()
