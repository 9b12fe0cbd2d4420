"""The study of QLSD: variances as N grows, and the figures of predictions."""

import numpy as np
import pytest

from experiments.qlsd import consistency, figures, network, predictions, run, tables
from experiments.qlsd.tests.test_qlsd_network import CHAIN, MORE, data  # noqa: F401
from tfp_bfl import evaluation
from tfp_bfl.training import Potential


def test_recorded_confidences_give_the_scores_of_the_predictions():
    rng = np.random.default_rng(1)
    given, labels = rng.dirichlet(np.full(10, 0.3), 200), rng.integers(0, 10, 200)
    signed = np.where(given.argmax(-1) == labels, 1, -1) * given.max(-1)
    found, zeros = predictions.distributions(list(signed))
    np.testing.assert_allclose(found.sum(-1), 1)
    for score in (evaluation.accuracy, evaluation.expected_calibration_error):
        assert float(score(found, zeros)) == pytest.approx(float(score(given, labels)), abs=1e-6)
    curves = [evaluation.confidence_curve(p, y) for p, y in ((given, labels), (found, zeros))]
    np.testing.assert_allclose(curves[0].accuracy, curves[1].accuracy)


def test_cells_are_of_one_size_and_have_names_of_their_own():
    options = [o for o in run.cells("reduced") if o["study"] in ("consistency", "predictions")]
    assert len(options) == len({run.cell_name(o) for o in options}) == 15
    assert not [o for o in run.cells("full") if o["study"] in ("consistency", "predictions")]


@pytest.mark.deep(after="experiments/qlsd/tests/test_qlsd_figures.py")
@pytest.mark.statistical
@pytest.mark.parametrize("method", ["LSD#", pytest.param("QLSD++ 4 bits", marks=pytest.mark.long)])
def test_variances_are_those_of_the_closed_form(method):
    """Take 20 coordinates and 4 runs of 1,500 rounds: standard error 1.3 %, bound 6 %. Error rate: 4e-6."""
    named = {(o["method"], o.get("examples")): o for o in run.cells("reduced") if o["study"] == "consistency"}
    found = consistency.run({**named[method, 100], "rounds": 2_000, "burn_in": 500})
    assert found["ratio"] == pytest.approx(found["expected_ratio"], rel=0.06)


@pytest.mark.deep(after="experiments/qlsd/tests/test_qlsd_figures.py")
def test_predictions_and_their_figures(data, tmp_path, monkeypatch):  # noqa: F811
    potential = Potential(network.model_of({**MORE, "model": "mlp"}, 0))
    draws = np.random.default_rng(0).normal(0, 1, (1, 4, potential.size)).astype(np.float32)
    monkeypatch.setattr(network, "WORK", dict.fromkeys(network.WORK, lambda options, data: draws))
    named = {o["method"]: o for o in run.cells("reduced") if o["study"] == "predictions"}
    records = []
    for method in ("SGLD, one client", "QLSD++, 5 of 20"):
        options = {**named[method], **MORE, **CHAIN, "runs": 1, "cohort_size": 1}
        found = predictions.run(options, tmp_path)
        assert len(found["confidences"]) == 30 and sum(found["sizes"]) == 60
        assert np.mean(np.array(found["confidences"]) > 0) == pytest.approx(found["accuracy"])
        mean = network.predict(potential, draws[0].mean(0, keepdims=True), data.test.features)
        at_mean = evaluation.accuracy(mean, data.test.labels)
        assert found["accuracy_of_mean_weights"] == pytest.approx(float(at_mean))
        records.append({"options": options, **found})
    drawn = figures.prediction_figures(records)
    assert set(drawn) == {"confidence", "client_sizes", "calibration_qlsdpp_5_of_20", "entropy_qlsdpp_5_of_20"}
    assert [row[0] for row in tables.predictions_table(records)] == ["", "SGLD, one client", "QLSD++, 5 of 20"]
