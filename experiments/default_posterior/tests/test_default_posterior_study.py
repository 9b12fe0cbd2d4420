"""The study of the default posterior: its cells, what a cell leaves, and its tables."""

import json

import numpy as np
import pytest

from experiments.default_posterior import cell, controls, page, run, tables
from experiments.default_posterior.config import COMMON, METHODS, SIZES, TEMPERATURES, VARIATIONAL
from experiments.records import read_records
from tfp_bfl import algorithms
from tfp_bfl.training import TEMPERATURES as TEMPERATURES_training
from tfp_bfl.training import default_rate, inference, inverse_decay, optimizers

SMALL = {
    **{"dataset": "digits", "model": "mlp", "rounds": 2, "average": 2, "num_samples": 3, "server_share": 0.3},
    **{"examples_per_client": 16, "partition": "label_skew:2", "seed": 0, "variant": "all"},
}


def test_every_cell_has_a_name_of_its_own_and_baselines_have_as_many_trials():
    cells = list(run.cells())
    assert len({name for name, _ in cells}) == len(cells)
    trials = [name.split(",")[1] for name, _ in cells if name.startswith("trial,") and ",schedule," not in name]
    assert len({trials.count(method) for method in trials}) == 1 and "variational_cosine" in trials
    assert {options["settings"]["temperature"] for name, options in cells if name.startswith("temperature")} == set(
        TEMPERATURES
    )
    assert COMMON["clients"] == 10 and set(SIZES) == {"fashion_mnist", "digits", "cifar10"}


def test_the_row_named_default_has_no_option_and_is_the_commands():
    """Its cells hold data and a seed alone, and its records what the command fills in today."""
    of_data = {"dataset", "elsewhere", "elsewhere_examples", "examples_per_client", "server_share", "test_examples"}
    cells = {name: options for name, options in run.cells() if ",default," in name}
    assert METHODS["default"] == {} and all(METHODS[name] for name in METHODS if name != "default")
    assert [name for name in METHODS if "default" in name] == ["default"] and len(cells) == 30
    for options in cells.values():
        assert options.pop("settings") == {} and options.keys() <= of_data | {"partition", "seed"}
    records = read_records(run.HERE / "results").items()
    records = {name: x for name, x in records if ",default," in name and not name.startswith("curve,")}
    assert records and all(x["training"]["shipped"] == cell.method_of(cell.shipped()) for x in records.values())
    assert all(list(x["rows"]) == ["last"] for x in records.values())


def test_the_variational_rows_have_the_librarys_client_step_and_rule():
    assert VARIATIONAL["inference"] == inference.DEFAULT_INFERENCE
    assert VARIATIONAL["temperature"] == TEMPERATURES_training["categorical"]
    assert VARIATIONAL["optimizer"] == optimizers.DEFAULT_OPTIMIZER
    assert inverse_decay(1.0)(10) == inverse_decay(1.0, cell.HALF_ROUNDS)(10)
    assert VARIATIONAL["schedule"] == "inverse" and VARIATIONAL["rate"] == default_rate("curvature")
    assert VARIATIONAL["rule"] == algorithms.fixed_points.default_rule(None)


@pytest.mark.deep(after="experiments/default_posterior/tests/test_default_posterior_study.py")
def test_a_cell_of_the_default_scores_the_last_round(tmp_path, monkeypatch):
    few = cell.shipped().model_copy(update={"rounds": 2, "num_samples": 3, "model": "mlp"})
    monkeypatch.setattr(cell, "shipped", lambda: few)
    options = {name: SMALL[name] for name in ("dataset", "server_share", "examples_per_client", "partition", "seed")}
    cell.run_cell(tmp_path / "cell", {**options, "settings": {}})
    summary = json.loads((tmp_path / "cell" / "summary.json").read_text())
    assert summary["training"]["shipped"]["rounds"] == 2 and summary["training"]["shipped"]["local_epochs"] == 3
    assert list(summary["rows"]) == ["last"] and 0 < summary["rows"]["last"]["accuracy"] <= 1


@pytest.mark.deep(after="experiments/default_posterior/tests/test_default_posterior_study.py")
@pytest.mark.parametrize("method", ["variational_inverse", "ensemble_5"])
def test_a_cell_scores_the_last_round_and_the_average(tmp_path, method):
    settings = {**METHODS[method], **({"members": 2} if method == "ensemble_5" else {})}
    cell.run_cell(tmp_path / "cell", {**SMALL, "settings": settings})
    rows = json.loads((tmp_path / "cell" / "summary.json").read_text())["rows"]
    controls = {"permuted", "constant"} if method == "variational_inverse" else set()
    assert set(rows) == {"last", "averaged"} | controls and rows["last"]["nll"] != rows["averaged"]["nll"]
    assert all(0 <= row["accuracy"] <= 1 and row["nll_fitted"] > 0 and row["epistemic"] > 0 for row in rows.values())


@pytest.mark.deep(after="experiments/default_posterior/tests/test_default_posterior_study.py")
def test_a_trial_sees_no_test_image(tmp_path, monkeypatch):
    """Its scores are of the server's images: with no test images there are the same ones."""
    options = {**SMALL, "settings": METHODS["fed_avg_adam"], "trial": True}
    cell.run_cell(tmp_path / "a", options)
    data = cell.data_of(options)
    monkeypatch.setattr(cell, "data_of", lambda options: data._replace(test=None, elsewhere=None))
    cell.run_cell(tmp_path / "b", options)
    first, second = (json.loads((tmp_path / name / "summary.json").read_text())["rows"] for name in "ab")
    assert first == second


@pytest.mark.deep(after="experiments/default_posterior/tests/test_default_posterior_study.py")
def test_a_control_scores_learned_and_equal_standard_deviations(tmp_path):
    (name, options), *_ = controls.control_cells()
    few = {"rounds": 2, "average": 2, "num_samples": 2, "test_examples": 50, "elsewhere_examples": 20}
    cell.run_cell(tmp_path / "cell", {**options, **few, "model": "mlp", "examples_per_client": 32})
    record = json.loads((tmp_path / "cell" / "summary.json").read_text())
    assert all(value > 0 for row in record["rows"].values() for value in row.values())
    assert all(value <= 1 for row in record["rows"].values() for name, value in row.items() if "auroc" in name)
    assert record["rows"]["averaged"]["nll"] != record["rows"]["constant"]["nll"]
    for kind in ("error", *controls.KINDS):
        assert 0 <= record["rows"]["averaged"][f"{kind}_auroc_mutual_information"] <= 1
    _, learned, constant = tables.controls_table({name: record})
    assert learned[:2] == ["fashion_mnist,32,true", "learned"] and constant[1] == "one number"


def test_small_clothes_are_as_large_as_digits():
    images = controls.small_clothes(5)
    assert images.shape == (5, 8, 8, 1) and images.dtype == np.uint8 and images.max() > 100


def test_shuffled_labels_are_another_order_of_the_same():
    data = cell.data_of(SMALL)
    labels = controls.shuffled_labels(data, 0).clients.source.labels
    true = data.clients.source.labels
    assert sorted(labels) == sorted(true) and (labels != true).mean() > 0.8


def record(nll, fitted):
    row = {"accuracy": 0.8, "nll": nll, "ece": 0.02, "nll_fitted": fitted, "ece_fitted": 0.01, "error_auroc": 0.8}
    return {"rows": {"last": row, "averaged": row}}


def test_differences_are_to_fitted_baselines():
    averaged = {0: record(0.5, 0.49)["rows"], 1: record(0.6, 0.59)["rows"]}
    methods = {
        "default": {seed: {"last": rows["last"]} for seed, rows in averaged.items()},
        "variational_inverse": averaged,
        "fed_avg_adam": {0: record(0.9, 0.55)["rows"], 1: record(0.9, 0.65)["rows"]},
    }
    (_, *rows) = tables.differences_table(methods)
    assert [row[:3] for row in rows if row[1] == "fed_avg_adam"] == [
        [reference, "fed_avg_adam", which] for reference in tables.REFERENCES for which in ("last", "averaged")
    ]
    assert all(row[4].startswith("**-0.0500") for row in rows if row[1] == "fed_avg_adam")
    assert ["default", "variational_inverse", "last"] in [row[:3] for row in rows]


def test_tables_of_trials_and_temperatures():
    names = {
        "trial,variational_cosine,rate=0.02,iid": record(0.5, 0.4),
        "trial,fed_avg_adam,rate=0.001,iid": record(0.9, 0.4),
    }
    of = lambda t, seed: {
        f"temperature,digits,1,{t:g},seed={seed}": record(0.1 + t + 0.01 * (seed > 100) * (t > 0.5), 0.1)
    }
    names |= {name: x for t in TEMPERATURES for seed in (100, 101) for name, x in of(t, seed).items()}
    del names["temperature,digits,1,1,seed=101"]
    one = tables.temperature_table(names)
    names |= of(1.0, 101)
    trials, temperatures = tables.trials_table(names), tables.temperature_table(names)
    assert trials[1:] == [
        ["variational_cosine", "rate=0.02", "0.5000", "0.5000"],
        ["fed_avg_adam", "rate=0.001", "0.4000", "0.4000"],
    ]
    assert one[1] == ["digits", "1", "1", "**0.1050**", "0.1100", "0.1200", "0.1500", "1.1000"]
    assert temperatures[1][:5] == ["digits", "1", "2", "**0.1050**", "0.1100 (+0.0050 [+0.0050, +0.0050])"]
    assert temperatures[1][-1] == "1.1050 (+1.0000 [+0.9365, +1.0635])"


def test_the_page_has_the_tables_of_the_records():
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.filled(text, read_records(run.HERE / "results")) == text
    assert len(page.MARK.findall(text)) == text.count("<!-- table:") == text.count("<!-- /table -->") == 7


def test_the_page_names_the_seeds_of_a_mean_and_pairs_differences():
    rows = {"study,variational_inverse,iid,seed=0": record(0.5, 0.49)}
    rows |= {"study,fed_avg_adam,iid,seed=0": record(0.9, 0.75)}
    rows |= {"study,default,iid,seed=0": {"rows": {"last": {**record(0.6, 0.5)["rows"]["last"]}}}}
    groups = tables.grouped(rows)
    assert page.results(groups)[1:] == [
        ["IID", "`default`", "1", ".800", ".600", ".020", ".800", "", ""],
        ["IID", "`variational_inverse`", "1", ".800", ".500", ".020", ".800", "", ""],
        ["IID", "`fed_avg_adam`", "1", ".800", ".750", ".010", ".800", "", ""],
    ]
    assert page.differences(groups)[1:] == [
        ["IID", "`default`", "`variational_inverse`", "1", "+.000", "+.100", "+.000"],
        ["IID", "`default`", "`fed_avg_adam`", "1", "+.000", "-.150", "+.010"],
        ["IID", "`variational_inverse`", "`fed_avg_adam`", "1", "+.000", "-.250", "+.010"],
    ]
    assert page.change({0: 1.0, 1: 1.5, 2: 1.2}, {0: 0.9, 1: 1.4, 2: 1.1}) == "**+.100 [+.100, +.100]**"
