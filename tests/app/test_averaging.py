"""`tfp-bfl run --average-rounds`: scored, exported and resumed beside the last round; what is refused."""

import numpy as np
import pytest

import tfp_bfl as bfl
from tests.kit import summary_of
from tfp_bfl.app.cli import run_command_line
from tfp_bfl.app.one_run import build, client_model, datasets
from tfp_bfl.app.options.config import make_config

from .broken_run import assert_resumes_to, exported

OPTIONS = "run --engine local --dataset breast_cancer --model mlp --clients 3 --partition iid --local-epochs 1"
SAMPLES = ["--num-samples", "4"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--rounds 4 --average-rounds 5", "average_rounds is 5, but the run has 4 rounds: give at most that many"),
        ("--rounds 4 --average-rounds 0", "average_rounds is '0', but must be at least 1"),
        ("--rounds 4 --average-rounds 2 --algorithm fed_sgld", "samples of a chain"),
        ("--rounds 4 --average-rounds 2 --algorithm meta_vd", "trains a model for each client"),
        ("--rounds 4 --average-rounds 2 --algorithm fl_swag --local-epochs 9", "covariances between weights"),
    ],
)
def test_what_is_refused_before_work(tmp_path, capsys, options, message):
    folder = tmp_path / "run"
    assert run_command_line([*OPTIONS.split(), *options.split(), "--output", str(folder)]) == 2
    error = capsys.readouterr().err
    assert message in error.splitlines()[-1] and not folder.exists()


@pytest.mark.deep(after="tests/federated/test_averaging.py")
def test_the_average_is_scored_exported_and_resumed(tmp_path, monkeypatch):
    whole, folder, plain = tmp_path / "whole", tmp_path / "broken", tmp_path / "plain"
    options = [*OPTIONS.split(), *SAMPLES, "--rounds", "4", "--keep-checkpoints", "1"]
    averaged = [*options, "--average-rounds", "3"]
    assert run_command_line([*averaged, "--output", str(whole)]) == 0
    assert run_command_line([*options, "--output", str(plain)]) == 0
    read = lambda run: summary_of(run)
    summary, last = read(whole), read(plain)
    assert summary["averaged_rounds"] == 3 and "averaged_rounds" not in last
    for name in ("accuracy", "test_nll", "ece", "epistemic"):
        assert summary[f"last_round_{name}"] == last[name]
    assert summary["test_nll"] != last["test_nll"]
    assert "NLL, last round" in (whole / "report.html").read_text()

    # What follows a run starts from the weights with which its model predicts.
    config = make_config(whole / "config.yaml", {})
    process = build.process(config, datasets.load(config).train, lambda: None)
    weights, model = client_model.final_weights(process, config, whole), process.model_fn()
    bfl.models.assign_weights(model, weights)
    test = datasets.load(config).test
    by_hand = bfl.evaluation.evaluate(model, test.features, test.labels, config.num_samples, config.seed)
    assert by_hand.metrics["test_nll"] == pytest.approx(summary["test_nll"], rel=1e-4)

    assert_resumes_to(whole, folder, averaged, 3, monkeypatch)
    with np.load(whole / "predictions.npz") as found:
        np.testing.assert_allclose(exported(whole, 4), found["probabilities"], rtol=1e-4, atol=1e-6)
