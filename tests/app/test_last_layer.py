"""`tfp-bfl last-layer`: the exact posterior of the last layer of a finished run; its clients leave and join."""

import numpy as np
import pytest

import tfp_bfl as bfl
from tests.app.test_revise import run
from tests.kit import call, refusal, summary_of
from tests.units import in_units
from tfp_bfl.algorithms.held import Held

pytestmark = pytest.mark.cpu_seconds(30)  # one run serves the tests of the file

RUN = "run --algorithm fed_opt --dataset diabetes --model mlp --partition iid --clients 3 --rounds 2 --engine local"
TEST = bfl.data.load("diabetes", split="test")


@pytest.fixture(scope="module")
def averaged(tmp_path_factory):
    return run([*RUN.split(), "--num-samples", "4"], tmp_path_factory.mktemp("runs") / "averaged")


@pytest.fixture(scope="module")
def exact(averaged):
    folder = averaged.parent / "exact"
    assert call("last-layer", averaged, "--output", folder) == 0
    return folder


def means(folder):
    return bfl.export.load(bfl.export.find(folder)).predict(in_units(TEST), num_samples=4, seed=0)["mean"].numpy()


def test_the_folder_is_complete_and_predicts(averaged, exact, capsys):
    assert {p.name for p in exact.iterdir()} == {"config.yaml", "clients.npz", "saved_model", "summary.json"}
    found = summary_of(exact)
    assert found["rmse"] < TEST.target.stddev and found["epistemic"] > 0 and summary_of(averaged)["epistemic"] == 0
    assert found["clients"] == ["0", "1", "2"] and found["rounds"] == 1 and found["distance"] == 0
    assert 10 < found["noise_stddev"] < TEST.target.stddev
    state = Held.load(exact / "clients.npz")
    approximation = state.settings.approximate(state.rows, state.weights)
    assert approximation.noise_stddev * TEST.target.scale == pytest.approx(found["noise_stddev"])
    assert "exact posterior of the last layer" in (exact / "saved_model" / "model_card.md").read_text()


def test_clients_leave_and_join(exact, tmp_path, capsys):
    assert call("clients", "remove", exact, "1", "--output", tmp_path / "two") == 0
    assert "2 clients: NLL" in capsys.readouterr().out
    assert summary_of(tmp_path / "two").keys() == summary_of(exact).keys() - {"warnings"}
    assert np.abs(means(tmp_path / "two") - means(exact)).max() > 0.01
    assert call("clients", "add", tmp_path / "two", exact, "1", "--output", tmp_path / "three") == 0
    np.testing.assert_allclose(means(tmp_path / "three"), means(exact), rtol=1e-4)


def test_noise_is_in_units_of_the_label(averaged, tmp_path, capsys):
    given = ["--noise-stddev", "50", "--prior-stddev", "0.5", "--temperature", "0.5"]
    assert call("last-layer", averaged, *given, "--output", tmp_path / "given") == 0
    assert "noise standard deviation 50; prior standard deviation 0.5;" in capsys.readouterr().out
    assert summary_of(tmp_path / "given")["temperature"] == 0.5


def test_bad_input_is_refused_in_a_sentence(averaged, exact, tmp_path, capsys):
    new = ["--output", tmp_path / "new"]
    assert "is not the folder of a complete run" in refusal(capsys, "last-layer", tmp_path, *new)
    assert "has a posterior already" in refusal(capsys, "last-layer", exact, *new)
    assert "noise_stddev" in refusal(capsys, "last-layer", averaged, "--noise-stddev", "0", *new)
    assert not (tmp_path / "new").exists()
