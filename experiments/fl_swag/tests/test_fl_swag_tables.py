"""The FL-SWAG study's tables: its cells, its rows against their definitions, its resumption, and its figures."""

import csv
import json

import numpy as np
import pytest
import tensorflow as tf
from click.testing import CliRunner

import tfp_bfl as bfl
from experiments.fl_swag import federation, geometry, methods, run, tables
from experiments.fl_swag.config import CORRECTED, PRETRAINING, SIZES, TABLES
from experiments.records import read_records
from tfp_bfl.algorithms.swag import swag_moments
from tfp_bfl.evaluation import decompose
from tfp_bfl.posterior import LowRank

ALL = [(size, table) for size in SIZES for table in TABLES]


@pytest.mark.parametrize(("size", "table"), ALL)
def test_every_cell_has_a_name_of_its_own_and_a_network_to_start_from(size, table):
    cells = list(run.cells(table, size))
    assert len({run.cell_name(cell) for cell in cells}) == len(cells) > 0
    for cell in cells:
        assert cell["server"] is None or cell["server"] in PRETRAINING
        assert cell["start"] == "initial" or cell["server"]
        assert cell["local_epochs"] - cell["burn_in_epochs"] >= 2 and (
            cell["floors"] or {"sampler", "baseline"} & cell.keys()
        )


@pytest.mark.parametrize("size", SIZES)
def test_cells_of_one_name_are_the_same_in_all_tables(size):
    named = {}
    for table in TABLES:
        for cell in run.cells(table, size):
            assert named.setdefault(run.cell_name(cell), cell) == cell


def posterior(num_collected, max_columns=3, seed=0):
    """A SWAG posterior of a random walk, and where it ended."""
    rng, weights = np.random.default_rng(seed), (tf.constant([1.0, 2.0]), tf.constant([[3.0]]))
    state = swag_moments.start(weights, max_columns)
    for _ in range(num_collected):
        weights = tf.nest.map_structure(lambda w: w + rng.normal(size=w.shape).astype(np.float32), weights)
        state = swag_moments.collect(state, weights)
    return state, weights


@pytest.mark.parametrize("num_collected", [2, 3, 5, 7])
def test_last_weights_are_where_the_training_ended(num_collected):
    state, weights = posterior(num_collected)
    got = methods.last_weights(swag_moments.posterior_of(state), num_collected)
    for mine, own in zip(tf.nest.flatten(got), tf.nest.flatten(weights)):
        np.testing.assert_allclose(mine, own, rtol=1e-5)


def test_a_floor_afterwards_is_a_floor_before_and_without_halves_is_swag_diagonal():
    state, _ = posterior(6)
    low, wanted = swag_moments.posterior_of(state, 1e-12), swag_moments.posterior_of(state, 0.7)
    for mine, own in zip(tf.nest.flatten(methods.floored(low, 0.7)), tf.nest.flatten(wanted)):
        np.testing.assert_allclose(mine, own)
    mean_field = methods.without_halves(wanted)
    for mine, own in zip(tf.nest.flatten(mean_field), tf.nest.flatten(swag_moments.mean_field_of(state, 0.7))):
        np.testing.assert_allclose(mine, own, rtol=1e-6)


def evaluation(probabilities):
    uncertainty = decompose(probabilities)
    traces = bfl.evaluation.scalars(uncertainty)
    information = bfl.evaluation.decompose_entropy(probabilities).mutual_information
    parts = (uncertainty.mean, uncertainty.entropy, *traces, information)
    return bfl.evaluation.Evaluation({}, *(x.numpy() for x in parts))


def test_a_mixture_of_equal_shares_is_that_of_all_samples():
    samples = np.random.default_rng(0).dirichlet(np.ones(3), size=(2, 4, 5)).astype(np.float32)
    labels = np.arange(5) % 3
    mixed = methods.mixture([evaluation(p) for p in samples], np.array([0.5, 0.5]), labels)
    together = evaluation(samples.reshape(8, 5, 3))
    np.testing.assert_allclose(mixed.probabilities, together.probabilities, rtol=1e-5)
    np.testing.assert_allclose(mixed.aleatoric, together.aleatoric, rtol=1e-5)
    np.testing.assert_allclose(mixed.epistemic, together.epistemic, rtol=1e-5)
    np.testing.assert_allclose(mixed.mutual_information, together.mutual_information, rtol=1e-4)
    assert mixed.metrics["accuracy"] == pytest.approx(np.mean(together.probabilities.argmax(1) == labels))


def test_geometry_of_two_clients_on_two_axes():
    q = lambda mean, deviation: LowRank((tf.constant(mean),), (tf.constant([0.5, 0.5]),), (tf.constant([deviation]),))
    facts = geometry.geometry([q([3.0, 0.0], [2.0, 0.0]), q([0.0, 5.0], [0.0, 1.0])], (np.zeros(2),))
    assert facts["clients_moved"] == pytest.approx(4)
    assert facts["average_moved"] == pytest.approx(np.hypot(1.5, 2.5))
    assert facts["stddev_own_way"] == pytest.approx((np.sqrt(4.5) + np.sqrt(1.5)) / 2)
    assert facts["stddev_other_ways"] == pytest.approx(np.sqrt(0.5))
    assert facts["start_distance"] == pytest.approx((3 / np.sqrt(4.5) + 5 / np.sqrt(1.5)) / 2)
    off = np.sqrt(1.5**2 / 4.5 + 2.5**2 / 0.5), np.sqrt(2.5**2 / 1.5 + 1.5**2 / 0.5)
    assert facts["average_distance"] == pytest.approx(np.mean(off))


def small(table, **options):
    return {**next(run.cells(table, "small")), "num_samples": 3, "clients": 3, "local_epochs": 5, **options}


@pytest.mark.parametrize("table", ["logistic_regression", pytest.param("shared_features", marks=pytest.mark.long)])
@pytest.mark.deep(after="experiments/fl_swag/tests/test_fl_swag_tables.py")
def test_a_cell_writes_rows_that_differ_and_frozen_means_frozen(table, tmp_path, monkeypatch):
    monkeypatch.setitem(PRETRAINING, "lenet_small", {**PRETRAINING["lenet_small"], "epochs": 2})
    cell = small(table)
    run.run_cell(tmp_path / "cell", cell, pretrained=tmp_path / "pretrained")
    summary = {**tables.read_cell(tmp_path / "cell"), "options": cell}
    names = [row["method"] for row in summary["rows"]]
    assert {"FL-SWAG", "FL-SWAG, diagonal", "FedAvg", "wFedAvg", "BayAvg", "wBayAvg", "client 0", CORRECTED} <= set(
        names
    )
    with np.load(tmp_path / "cell" / "predictions.npz") as arrays:
        assert {name.rpartition(", ")[0] or name for name in arrays} >= {"client 0", "wBayAvg", "wFedAvg"} and len(
            {arrays[name].tobytes() for name in arrays}
        ) > 5
        assert arrays["FedAvg without the lowest client"].tobytes() != arrays["FedAvg"].tobytes()
    assert len(summary["curvature"]) == 3 and min(summary["curvature"]) > 0
    assert ("weights at the start" in names) == (table == "shared_features")
    short = tables.rows_of(summary)
    by_name = {row["method"]: row for row in short}
    assert by_name["client, lowest"]["accuracy"] <= by_name["client, mean"]["accuracy"]
    assert by_name["BayAvg"]["epistemic_share"] > 0 == by_name["FedAvg"]["epistemic_share"]
    if table == "shared_features":
        with bfl.engines.tff.local_workers() as runtime:
            data = federation.federation(cell, tmp_path / "pretrained", runtime)
            clients, _ = run.train(cell, data, runtime)
        (shape, _) = (x.shape for x in tf.nest.flatten(clients.posterior.mean))
        assert shape == (3, 84, 10)


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.deep(after="experiments/fl_swag/tests/test_fl_swag_tables.py")
def test_a_chain_over_all_data_learns(number, tmp_path):
    cell = list(run.cells("central_choice", "small"))[number]
    run.run_cell(tmp_path / "cell", {**cell, "draws": 5}, pretrained=tmp_path / "pretrained")
    (row,) = tables.read_cell(tmp_path / "cell")["rows"]
    assert row["method"] == cell["sampler"] and row["accuracy"] > 0.4 and row["epistemic"] > 0


@pytest.mark.deep(after="experiments/fl_swag/tests/test_fl_swag_tables.py")
def test_the_study_goes_on_and_refuses_another_config(tmp_path):
    arguments = ["--table", "burn_in", "--size", "small", "--output", str(tmp_path), "--results", str(tmp_path)]
    first = CliRunner().invoke(run.main, [*arguments, "--cell", "burn_in=0"])
    assert first.exit_code == 0, first.output
    listed = CliRunner().invoke(run.main, [*arguments, "--list"]).output.splitlines()
    assert sum(line.startswith("done") for line in listed) == 1 and len(listed) == 2
    assert "1 of 1 are done." in CliRunner().invoke(run.main, [*arguments, "--cell", "burn_in=0"]).output
    lines = (tmp_path / "small" / "burn_in_geometry.csv").read_text().splitlines()
    assert {row["product"] for row in csv.DictReader(lines)} == {
        "FL-SWAG",
        "FL-SWAG, diagonal",
        "FL-SWAG, diagonal, random effects",
        "FL-SWAG, diagonal without halves",
        "FL-SWAG, curvature alone",
        "FL-SWAG, corrected",
    }
    assert list((tmp_path / "small" / "figures").glob("*-floor.png"))
    (path,) = tmp_path.glob("small/cells/*/summary.json")
    summary = json.loads(path.read_text())
    path.write_text(json.dumps({**summary, "options": {**summary["options"], "batch_size": 64}}))
    refused = CliRunner().invoke(run.main, arguments)
    assert refused.exit_code == 2 and "is of other options (batch_size 64, now 32)" in refused.output
    assert "No cell's name holds" in CliRunner().invoke(run.main, [*arguments, "--cell", "nothing"]).output


def made(method, nll, floor=1e-6, **options):
    scores = {"accuracy": 1 - nll, "ece": 0.1, "brier": 0.2, "aleatoric": 0.3, "epistemic": 0.1, "seconds": 1.0}
    options = {"setting": "logistic_regression", "dataset": "mnist", "local_epochs": 20, "burn_in_epochs": 10} | options
    row = {"method": method, "floor": floor, "test_nll": nll, **scores}
    return {"options": {"learning_rate": 0.1, **options}, "rows": [row], "train_seconds": 2.0}


def test_the_choice_is_the_smallest_nll_of_each_method():
    runs = [
        {**made("FL-SWAG", 0.3), "rows": [r for x in row for r in x["rows"]], "options": made("", 0, **o)["options"]}
        for row, o in (
            ([made("FL-SWAG", 0.3), made("FL-SWAG, diagonal", 0.2), made("FedAvg", 0.1, None)], {}),
            ([made("FL-SWAG", 0.25), made("FL-SWAG, diagonal", 0.4), made("FedAvg", 0.2, None)], {"local_epochs": 60}),
        )
    ]
    chosen = tables.choice_table(runs)
    assert [row[2:4] + row[-1:] for row in chosen[1:]] == [
        ["FL-SWAG", "60", "0.2500"],
        ["FL-SWAG, diagonal", "20", "0.2000"],
        ["FedAvg", "20", "0.1000"],
    ]


def test_scores_stand_beside_the_published_ones():
    rows = tables.scores_table(
        [made("FL-SWAG, diagonal without halves", 0.1), made("FL-SWAG, diagonal without halves", 0.2, seed=1)]
    )
    row = dict(zip(rows[0], rows[1]))
    assert row["accuracy"] == "0.8500 +- 0.0707" and row["epistemic share"] == "0.2500 +- 0.0000"
    assert row["published accuracy, %"] == "90.96" and row["seeds"] == "2"
    calibration = tables.calibration_table([made("FL-SWAG, diagonal without halves", 0.1, setting="shared_features")])
    assert calibration[1][:4] == ["mnist", "FL-SWAG as published", "", "0.77"]


def test_the_default_is_paired_with_every_other_method_by_seed():
    runs = [made(method, nll + seed / 10, floor, seed=seed) for seed in (0, 1, 2)
            for method, nll, floor in ((CORRECTED, 0.1, 1e-6), ("FedAvg", 0.2, None))]  # fmt: skip
    header, row = tables.pairs_table(runs)
    told = dict(zip(header, row))
    assert told["FL-SWAG, corrected less"] == "FedAvg" and told["seeds"] == "3"
    assert told["NLL"] == "**-0.1000 [-0.1000, -0.1000]**" and told["accuracy, points"].startswith("**+10.00 ")
    assert told["ECE"] == "+0.0000 [+0.0000, +0.0000]"
    assert tables.pairs_table(runs[:2]) == [header]


def chosen_by(table):
    """The rows of a grid's choice, from the records."""
    records = read_records(run.HERE / "results" / "full")
    head, *rows = tables.choice_table([records[run.cell_name(cell)] for cell in run.cells(table, "full")])
    return [dict(zip(head, row)) for row in rows]


def test_the_config_has_what_the_grids_chose():
    trainings = SIZES["full"]["trainings"]
    for row in chosen_by("choice"):
        if row["by the NLL of"] == "FL-SWAG":
            (chosen,) = trainings["chosen"][row["setting"], row["dataset"]]
            wanted = (int(row["epochs"]), int(row["burn-in"]), float(row["rate"]), float(row["floor"]))
            names = ("local_epochs", "burn_in_epochs", "learning_rate")
            assert (*(chosen[name] for name in names), chosen["floors"][-1]) == wanted
    for row in chosen_by("central_choice"):
        chains = {chain["sampler"]: chain["step_size"] for chain in trainings["chosen_chains"][None]}
        assert chains[row["by the NLL of"]] == float(row["rate"])
