"""FedAvg by SGD with momentum beside FL-SWAG: its trials, its training, and the table in which both stand."""

import csv

import numpy as np
import pytest
from click.testing import CliRunner

import tfp_bfl as bfl
from experiments.fl_swag import controls, momentum, run
from experiments.fl_swag.config import BASELINE, CHOSEN_RATE, SIZES
from experiments.fl_swag.federation import federation

SETTINGS = ("logistic_regression", "shared_features")


def records_of(size, nll=lambda rate: rate):
    """Return made records of all trials."""
    made = lambda cell: {"rows": [{"method": BASELINE, "test_nll": nll(cell["learning_rate"])}]}
    return {run.cell_name(cell): made(cell) for cell in run.cells("momentum_choice", size)}


def baselines(size, records):
    return [cell for cell in run.cells("momentum", size, records) if "baseline" in cell]


@pytest.mark.parametrize("size", SIZES)
def test_the_baseline_has_the_best_of_as_many_trials_as_fl_swag_once_all_have_records(size):
    rates = lambda table, where: {
        c["learning_rate"] for c in run.cells(table, size) if (c["setting"], c["dataset"]) == where
    }
    datasets = [(setting, data) for setting in SETTINGS for data in SIZES[size]["datasets"][setting]]
    least = {}
    for where in datasets:
        assert len(rates("momentum_choice", where)) == len(rates("choice", where))
        least[where] = min(rates("momentum_choice", where))
    records = records_of(size)
    chosen = baselines(size, records)
    assert len(chosen) == len(datasets) * len(SIZES[size]["seeds"]["momentum"])
    for cell in chosen:
        assert cell["learning_rate"] == least[cell["setting"], cell["dataset"]] != CHOSEN_RATE
        assert not cell["holdout"] and cell["baseline"] == BASELINE
    records.popitem()  # Of the last setting and dataset.
    assert {(cell["setting"], cell["dataset"]) for cell in baselines(size, records)} == set(datasets[:-1])
    assert baselines(size, {}) == []


def test_the_layer_of_a_convex_model_trains_as_the_whole_model(tmp_path):
    """Compare client 0: by SGD with momentum on its images."""
    (cell, *_) = (c for c in run.cells("momentum_choice", "small") if c["setting"] == "logistic_regression")
    cell = {**cell, "clients": 3, "local_epochs": 2, "learning_rate": 0.05}
    data = federation(cell, tmp_path, None)
    ends = momentum.last_weights(cell, controls.held(data, cell["last_layer"]))
    options = {name: cell[name] for name in ("learning_rate", "local_epochs", "batch_size")}
    process = bfl.algorithms.fed_opt(data.model_fn, optimizer="momentum", **options)
    alone = bfl.data.Clients(data.clients.source, data.clients.indices[:1])
    whole = bfl.simulate(process, alone, rounds=1, seed=cell["seed"], start=data.start, engine="local")
    assert len(ends) == 3
    for own, wanted, start in zip(ends[0], whole.state.weights.point, data.start.point):
        np.testing.assert_allclose(own, wanted, atol=1e-5)
        assert np.abs(own - start).max() > 0.01


@pytest.mark.deep(after="experiments/fl_swag/tests/test_fl_swag_momentum.py")
def test_trials_and_then_the_baseline_beside_fl_swag(tmp_path):
    command = lambda table, *more: CliRunner().invoke(
        run.main,
        ["--table", table, "--size", "small", "--output", str(tmp_path), "--results", str(tmp_path), *more],
        catch_exceptions=False,
    )
    read = lambda name: list(csv.DictReader((tmp_path / "small" / f"{name}.csv").read_text().splitlines()))
    before = command("momentum", "--cell", "shared_features")
    assert before.exit_code == 0 and not (tmp_path / "small" / "momentum.csv").exists()
    assert command("momentum_choice", "--cell", "shared_features").exit_code == 0
    (chosen,) = read("momentum_choice_chosen")
    assert chosen["by the NLL of"] == BASELINE
    after = command("momentum", "--cell", "shared_features")
    assert after.exit_code == 0 and "1 of 2 are done." in after.output
    rows = {row["method"]: row for row in read("momentum")}
    assert {BASELINE, f"w{BASELINE}", "FedAvg", "FL-SWAG, corrected"} <= set(rows)
    assert float(rows[BASELINE]["accuracy"]) > 0.5 and float(rows[BASELINE]["epistemic share"]) == 0
    assert rows[f"{BASELINE}, one temperature"]["accuracy"] == rows[BASELINE]["accuracy"]
