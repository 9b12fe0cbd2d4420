"""`tfp-bfl run --average-rounds` and `--ensemble`: scored, exported, resumed to the bit; what is refused."""

import numpy as np
import pytest

import tfp_bfl as bfl
from tests.app.broken_run import assert_resumes_to, exported
from tests.kit import call, lines_of, summary_of
from tfp_bfl.app.one_run import after, build, datasets, records
from tfp_bfl.app.options.config import make_config

OPTIONS = "run --engine local --dataset breast_cancer --model mlp --clients 3 --partition iid --local-epochs 1"
MEMBERS = f"{OPTIONS} --kind deterministic --algorithm fed_opt --rounds 2"
SAMPLES = ["--num-samples", "4"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--average-rounds 5", "average_rounds is 5, but the run has 4 rounds: give at most that many"),
        ("--average-rounds 2 --algorithm fed_sgld", "samples of a chain"),
        ("--average-rounds 2 --algorithm meta_vd", "trains a model for each client"),
        ("--average-rounds 2 --algorithm fl_swag --local-epochs 9", "covariances between weights"),
        ("--server-optimizer adam --algorithm partitioned_vi", "partitioned_vi takes no server_optimizer, as the"),
        ("--server-optimizer adam --rule conflation", "the rule 'conflation' pools the result: leave it out"),
        ("--ensemble 5 --num-samples 4", "num_samples is 4, but the ensemble has 5 members: give at least as many"),
        ("--ensemble 2 --pretrain-share 0.1", "pretrain_share belongs to runs of one model"),
        ("--ensemble 2 --cohort-size 2 --privacy-clip-norm 1", "privacy_clip_norm belongs to runs of one model"),
        ("--ensemble 2 --algorithm meta_vd --kind variational_dropout", "trains a model for each client"),
    ],
)
def test_what_is_refused_before_work(tmp_path, capsys, options, message):
    folder = tmp_path / "run"
    own = [*OPTIONS.split(), "--rounds", "4", *options.split()]
    assert call(*own, "--output", folder) == 2
    error = capsys.readouterr().err
    assert message in error.splitlines()[-1] and not folder.exists()


def test_rows_of_rounds():
    config = make_config(None, {"ensemble": 3, "rounds": 4, "num_samples": 20})
    assert records.num_samples(config) == 21 and records.num_samples(make_config(None, {})) == 20
    assert [records.place(config, {"member": m, "round": r}) for m, r in ((0, 1), (1, 1), (2, 4))] == [1, 5, 12]
    assert records.place(config, {"round": 3}) == 3
    rows = [
        {"member": m, "round": r, "nll": 10.0 * m + r, "faulty_clients": {str(m): "x"}} for m in (0, 1) for r in (1, 2)
    ]
    assert records.over_members(rows) == [
        {"round": 1, "nll": 6.0, "faulty_clients": {"0": "x", "1": "x"}},
        {"round": 2, "nll": 7.0, "faulty_clients": {"0": "x", "1": "x"}},
    ]
    alone = [{"round": 1, "nll": 1.0}]
    assert records.over_members(alone) == alone


@pytest.mark.deep(after="tests/federated/test_averaging.py")
def test_the_average_is_scored_exported_and_resumed(tmp_path, monkeypatch):
    whole, folder, plain = tmp_path / "whole", tmp_path / "broken", tmp_path / "plain"
    options = [*OPTIONS.split(), *SAMPLES, "--rounds", "4", "--keep-checkpoints", "1"]
    averaged = [*options, "--average-rounds", "3"]
    assert call(*averaged, "--output", whole) == 0
    assert call(*options, "--output", plain) == 0
    summary, last = summary_of(whole), summary_of(plain)
    assert summary["averaged_rounds"] == 3 and "averaged_rounds" not in last
    for name in ("accuracy", "test_nll", "ece", "epistemic"):
        assert summary[f"last_round_{name}"] == last[name]
    assert summary["test_nll"] != last["test_nll"]
    assert "NLL, last round" in (whole / "report.html").read_text()

    # What follows a run starts from the weights with which its model predicts.
    config = make_config(whole / "config.yaml", {})
    process = build.process(config, datasets.load(config).train, lambda: None)
    weights, model = after.final_weights(process, config, whole), process.model_fn()
    bfl.weights.assign_weights(model, weights)
    test = datasets.load(config).test
    by_hand = bfl.evaluation.evaluate(model, test.features, test.labels, config.num_samples, config.seed)
    assert by_hand.metrics["test_nll"] == pytest.approx(summary["test_nll"], rel=1e-4)

    assert_resumes_to(whole, folder, averaged, 3, monkeypatch)
    with np.load(whole / "predictions.npz") as found:
        np.testing.assert_allclose(exported(whole, 4), found["probabilities"], rtol=1e-4, atol=1e-6)


@pytest.mark.deep(after="tests/federated/test_ensemble.py")
def test_a_run_of_members_and_its_resumption(tmp_path, monkeypatch):
    whole, folder = tmp_path / "whole", tmp_path / "broken"
    options = [*MEMBERS.split(), "--ensemble", "3", "--num-samples", "4", "--keep-checkpoints", "1"]
    assert call(*options, "--output", whole) == 0
    summary = summary_of(whole)
    lines = lines_of(whole / "metrics.jsonl")
    assert [(row["member"], row["round"]) for row in lines] == [(m, r) for m in range(3) for r in (1, 2)]
    assert summary["members"] == 3 and summary["test_nll"] <= summary["member_test_nll"]
    assert summary["weights_mb"] > 0 and summary["epistemic"] > 0
    report = (whole / "report.html").read_text()
    assert "Number of members" in report and "NLL, mean over members" in report
    assert call("report", whole, "--output", tmp_path / "again.html") == 0

    assert_resumes_to(whole, folder, options, 3, monkeypatch)
    with np.load(whole / "predictions.npz") as found:
        np.testing.assert_allclose(exported(whole, 6), found["probabilities"], rtol=1e-4, atol=1e-6)
    assert call("export", whole, tmp_path / "model.tflite", "--tflite") == 0
