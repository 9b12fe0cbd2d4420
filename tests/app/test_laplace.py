"""`tfp-bfl laplace`: a posterior for a finished run of federated averaging; its clients leave and join."""

import json

import numpy as np
import pytest

import tfp_bfl as bfl
from tests.app.test_revise import run
from tests.kit import call, refusal, summary_of
from tests.units import in_units
from tfp_bfl.algorithms.held import Held
from tfp_bfl.app.one_run import after
from tfp_bfl.app.options.config import make_config
from tfp_bfl.errors import InvalidArgument

pytestmark = pytest.mark.cpu_seconds(30)  # one run serves the tests of the file

RUN = (
    "run --algorithm fed_opt --dataset breast_cancer --model mlp --partition iid --clients 3 --rounds 2 --engine local"
)
TEST = bfl.data.load("breast_cancer", split="test")


@pytest.fixture(scope="module")
def averaged(tmp_path_factory):
    return run([*RUN.split(), "--num-samples", "4"], tmp_path_factory.mktemp("runs") / "averaged")


@pytest.fixture(scope="module")
def with_posterior(averaged):
    folder = averaged.parent / "with_posterior"
    assert call("laplace", averaged, "--temperature", 1, "--output", folder) == 0
    return folder


def probabilities(folder):
    loaded = bfl.export.load(bfl.export.find(folder))
    return loaded.predict(in_units(TEST), num_samples=4, seed=0)["probabilities"].numpy()


def test_the_folder_is_complete_and_predicts(averaged, with_posterior):
    assert {p.name for p in with_posterior.iterdir()} == {
        *("config.yaml", "clients.npz", "saved_model", "summary.json")
    }
    found = summary_of(with_posterior)
    assert found["accuracy"] > 0.8 and found["epistemic"] > 1e-4 and summary_of(averaged)["epistemic"] == 0
    assert found["clients"] == ["0", "1", "2"] and found["structure"] == "last_layer"
    right = probabilities(with_posterior).argmax(1) == TEST.labels
    assert right.mean() == pytest.approx(found["accuracy"])
    state = Held.load(with_posterior / "clients.npz")
    approximation = state.settings.approximate(state.rows, state.weights)
    assert approximation.log_marginal_likelihood == pytest.approx(found["log_marginal_likelihood"])
    assert sum(int(x.num_examples) for x in state.rows.values()) == len(bfl.data.load("breast_cancer").labels)


def test_clients_leave_and_join(with_posterior, tmp_path, capsys):
    assert call("clients", "show", with_posterior) == 0
    assert "share of the curvature" in capsys.readouterr().out
    assert call("clients", "remove", with_posterior, "1", "--output", tmp_path / "two") == 0
    two, three = summary_of(tmp_path / "two"), summary_of(with_posterior)
    assert two["clients"] == ["0", "2"] and two.keys() == three.keys() - {"warnings"}
    for name in ("structure", "temperature", "temperature_by"):
        assert two[name] == three[name]
    assert two["log_marginal_likelihood"] > three["log_marginal_likelihood"]
    assert "temperature_by" in bfl.export.read_info(tmp_path / "two" / "saved_model").configuration
    assert np.abs(probabilities(tmp_path / "two") - probabilities(with_posterior)).max() > 1e-4
    assert call("clients", "add", tmp_path / "two", with_posterior, "1", "--output", tmp_path / "three") == 0
    np.testing.assert_allclose(probabilities(tmp_path / "three"), probabilities(with_posterior), atol=1e-4)


def test_a_diagonal_has_linearised_scores(averaged, tmp_path, capsys):
    given = ["--structure", "diagonal", "--prior-by-layer", "--temperature", "0.5"]
    assert call("laplace", averaged, *given, "--output", tmp_path / "diagonal") == 0
    found = summary_of(tmp_path / "diagonal")
    assert len(found["prior_stddev"]) > 1 and found["temperature"] == 0.5 and found["linearised_test_nll"] > 0
    assert f"linearised: accuracy {found['linearised_accuracy']:.4f}" in capsys.readouterr().out


def test_a_run_of_the_algorithm_is_the_command(averaged, with_posterior, tmp_path):
    """On the command line and in Python; the options are the same."""
    options = ["--algorithm", "laplace", "--start", averaged, "--temperature", 1, "--structure", "last_layer"]
    assert call("run", *options, "--output", tmp_path / "run") == 0
    found = bfl.run(tmp_path / "python", algorithm="laplace", start=averaged, temperature=1.0)
    assert summary_of(tmp_path / "run") == found.summary == summary_of(with_posterior)


def test_bad_input_is_refused_in_a_sentence(averaged, with_posterior, tmp_path, capsys):
    new = ["--output", tmp_path / "new"]
    assert "is not the folder of a complete run" in refusal(capsys, "laplace", tmp_path, *new)
    assert "has a posterior already" in refusal(capsys, "laplace", with_posterior, *new)
    assert "exists already" in refusal(capsys, "laplace", averaged, "--output", with_posterior)
    assert "structure 'kron'" in refusal(capsys, "laplace", averaged, "--structure", "kron", *new)
    assert "temperature" in refusal(capsys, "laplace", averaged, "--temperature", "0", *new)
    assert "prior_by_layer is for" in refusal(capsys, "laplace", averaged, "--prior-by-layer", *new)
    assert "laplace finds a posterior at the weights" in refusal(capsys, "run", "--algorithm", "laplace", *new)
    start = ["run", "--start", averaged, *new]
    assert "give the algorithm laplace or last_layer" in refusal(capsys, *start)
    assert "option of laplace 'local_epochs'" in refusal(capsys, *start, "--algorithm", "laplace", "--local-epochs", 3)
    assert "option of laplace 'rounds'" in refusal(capsys, *start, "--algorithm", "laplace", "--rounds", 3)
    assert "leave --seeds out" in refusal(capsys, *start, "--algorithm", "laplace", "--seeds", "0..2")
    assert "structure is an option of laplace" in refusal(capsys, "run", "--structure", "diagonal", *new)
    with pytest.raises(InvalidArgument, match="give the algorithm laplace or last_layer"):
        bfl.run(tmp_path / "new", start=averaged)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"algorithm": "variational", "kind": "flipout"}, "is a run of kind 'flipout'"),
        ({"algorithm": "fed_ag"}, "has found a posterior already"),
        ({"algorithm": "fed_sgld"}, "ends with more than one network"),
        (
            {"algorithm": "fed_opt", "kind": "deterministic", "class_weight": "balanced"},
            "was trained with class weights, and",
        ),
    ],
)
def test_runs_that_end_otherwise_are_refused(options, words, tmp_path, capsys, monkeypatch):
    config = make_config(None, {"dataset": "breast_cancer", "model": "mlp", "clients": 3, **options})
    (tmp_path / "config.yaml").write_text(config.record(), encoding="utf-8")
    (tmp_path / "summary.json").write_text(json.dumps({}), encoding="utf-8")
    first = lambda process, *given: process.predictive_weights(process.local.initialize())
    monkeypatch.setattr(after, "final_weights", first)
    for command in ("laplace", "last-layer"):
        assert words in refusal(capsys, command, tmp_path, "--output", tmp_path / "new")
