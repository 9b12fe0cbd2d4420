"""A user's algorithm with personal models is scored by these models, as the library's own are."""

import numpy as np
import pytest
import yaml

import tfp_bfl as bfl
from tests.bench.plans import records
from tests.kit import refuses
from tfp_bfl.app.cli import run_command_line

CODE = """
import tfp_bfl as bfl

def personal(model_fn, local_epochs, learning_rate, element_spec, weighting):
    return bfl.algorithms.p_fed_bayes(
        model_fn, local_epochs=local_epochs, learning_rate=learning_rate, element_spec=element_spec, kl_weight=10.0,
        weighting=weighting)
"""
OPTIONS = {
    **{"dataset": "heart_disease", "model": "mlp", "kind": "flipout", "rounds": 3, "local_epochs": 4},
    **{"learning_rate": 0.02, "initial_stddev": 0.05, "num_samples": 4, "engine": "local"},
}


@pytest.fixture
def code(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(CODE)
    return f"{path}:personal"


def test_a_run_scores_the_clients_of_personal_models_by_these(tmp_path, code):
    """The losses of their own models differ by up to 7 % from those of the library's recipe, which trains by another
    seed; those of the global model by up to 51 %."""
    run = bfl.run(tmp_path / "run", algorithm=code, evaluate_clients=True, **OPTIONS)
    one = bfl.run(tmp_path / "one", algorithm="p_fed_bayes", evaluate_clients=True, **OPTIONS)
    losses = lambda found: {row["client"]: row["test_nll"] for row in found.summary["clients"]}
    assert losses(run) == pytest.approx(losses(one), rel=0.15)
    assert "adapted_clients" in one.summary and "adapted_clients" not in run.summary  # A step needs a rate.
    total = sum(row["n"] * row["test_nll"] for row in run.summary["clients"])
    assert total / sum(row["n"] for row in run.summary["clients"]) != pytest.approx(run.summary["test_nll"], rel=1e-3)


def test_a_benchmark_scores_personal_models_of_a_file(tmp_path, code):
    plan = {"seeds": "0", "settings": {"h": OPTIONS}, "methods": {"mine": {"algorithm": code}}}
    (tmp_path / "bench.yaml").write_text(yaml.safe_dump(plan))
    out = tmp_path / "out"
    assert run_command_line(["bench", str(tmp_path / "bench.yaml"), "--output", str(out), "--trust-code"]) == 0
    (record,) = records(out)
    by_clients = record["scores"]["clients"]
    mean = np.average([row["test_nll"] for row in by_clients], weights=[row["n"] for row in by_clients])
    assert record["scores"]["test_nll"] == pytest.approx(mean, rel=1e-5)
    assert len(record["rounds"]) == 1 and "permuted_test_nll" not in record["scores"]


def test_personal_models_of_a_file_are_scored_for_classes_only(tmp_path, code):
    numbers = {**OPTIONS, "dataset": "diabetes", "clients": 3, "rounds": 1}
    refuses("evaluate_clients is of class", bfl.run, tmp_path / "run", algorithm=code, evaluate_clients=True, **numbers)
    assert not (tmp_path / "run").exists()
