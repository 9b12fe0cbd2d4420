"""The curves of the study: which rounds run, what a cell records, and which rows are bold."""

import json

import click
import pytest

from experiments.cells import Study
from experiments.default_posterior import curve_tables, curves
from experiments.default_posterior.config import CURVES, MORE_ROUNDS, ROUNDS
from experiments.records import read_records
from tfp_bfl.bench.cells import SUMMARY

METHOD = "fed_avg_momentum"


def record(nll, mb=1.0):
    row = {"nll": nll, "nll_fitted": nll, "ood_auroc_entropy": 0.8, "ood_auroc_epistemic": None}
    return {
        "training": {"upload_mb": mb, "download_mb": mb, "client_steps": 10.0},
        "rows": {"last": row, "held_out": row},
    }


def curve(*nlls, per_round=0.1):
    """Return the curve of two seeds with these NLLs at 30 rounds and its doublings."""
    return {r: {seed: record(x + 0.001 * seed, r * per_round) for seed in (0, 1)} for r, x in zip(ROUNDS, nlls)}


@pytest.mark.deep(after="experiments/default_posterior/tests/test_curves.py")
@pytest.mark.parametrize(
    "method", ["default", "mc_dropout_of_default", "mc_dropout_server_adam", "snapshots_5", "fed_avg_laplace"]
)
def test_a_cell_records_scores_bytes_and_client_steps(tmp_path, method):
    options = dict(curves.curve_cells())[f"curve,digits,iid,{method},rounds=30,seed=0"]
    few = {"rounds": 5, "num_samples": 2, "examples_per_client": 40, "variant": "all"}
    curves.run_curve_cell(tmp_path / "cell", {**options, **few})
    summary = json.loads((tmp_path / "cell" / SUMMARY).read_text())
    training, rows = summary["training"], summary["rows"]
    epochs = CURVES[method].get("local_epochs", 3)
    assert training["client_steps"] == 5 * epochs * 2 and 0 < training["upload_mb"] <= training["download_mb"]
    assert set(rows) == {"last", "held_out"} | ({"permuted", "constant"} if method == "default" else set())
    assert ("shipped" in training) == (method == "default")
    assert 0 <= rows["last"]["ood_auroc_epistemic"] <= 1 and rows["last"]["nll"] != rows["held_out"]["nll"]


def test_rates_are_of_trials_and_the_default_has_its_own():
    """A cell of the default has no option of a method."""
    cells = {tuple(name.split(",")[1:4]): options["settings"] for name, options in curves.curve_cells()}
    rates = [cells["digits", "label_skew:2", x]["learning_rate"] for x in ("mc_dropout", "mc_dropout_server_adam")]
    assert rates == [0.1, 0.03] and cells["fashion_mnist", "iid", "mc_dropout_3_epochs"]["learning_rate"] == 0.01
    assert cells["digits", "iid", "default"] == {} and set(cells["digits", "iid", "mc_dropout_of_default"]) == {"kind"}


def test_rounds_are_doubled_while_the_held_out_nll_falls():
    due = lambda *nlls: [r for r in ROUNDS if curves.is_due(METHOD, curve(*nlls), r)]
    assert due() == [30, 60] and due(0.5) == [30, 60]
    assert due(0.5, 0.496) == [30, 60] and due(0.5, 0.49) == [30, 60, 120]
    assert due(0.5, 0.6) == [30, 60]
    assert due(0.5, 0.49, 0.48, 0.479) == [30, 60, 120, 240] and due(0.5, 0.4, 0.3, 0.2, 0.1) == [*ROUNDS]
    assert not curves.is_finished(METHOD, curve(0.5, 0.4, 0.3, 0.2, 0.1))
    assert not curves.is_finished(METHOD, curve(0.5)) and curves.is_finished(METHOD, curve(0.5, 0.496))
    assert not curves.is_finished(METHOD, {60: {0: record(0.5)}})
    assert all(curves.is_due(method, {}, r) for method, more in MORE_ROUNDS.items() for r in more)


def test_a_method_that_still_falls_is_never_bold():
    found = {"default": curve(0.5, 0.498), "mc_dropout": curve(0.5, 0.4, 0.3, 0.2, 0.1), METHOD: curve(0.6, 0.599)}
    lines = curve_tables.setting_table(found)
    plateau = {line[0]: line for line in lines[[line[0] for line in lines].index("at the plateau") + 1 :]}
    assert plateau["mc_dropout"][1] == "480, not finished" and "**" not in "".join(plateau["mc_dropout"])
    assert plateau["default"][4].startswith("**0.49") and plateau[METHOD][5].startswith("**-0.1")
    best = {**curve(0.6, 0.4), 60: {0: record(0.1)}}
    fewer = {**found, "fed_avg_server_adam": best}
    lines = curve_tables.compared(fewer, dict.fromkeys(fewer, 60), set(fewer))
    assert [line[0] for line in lines if line[4].startswith("**")] == ["mc_dropout"]
    falling = {**found, "default": curve(0.5, 0.4)}
    lines = curve_tables.compared(falling, curve_tables.at_plateau(falling), curve_tables.finished_of(falling))
    assert all("**" not in line[5] for line in lines) and [line[0] for line in lines if "**" in line[4]] == [METHOD]


def test_the_page_has_the_settings_in_their_order_whatever_that_of_the_records():
    names = [f"curve,{data},{METHOD},rounds={{}},seed=0" for data in ("fashion_mnist,iid", "digits,label_skew_2")]
    records = {name.format(r): record(0.5, r * 0.1) for name in names for r in (30, 60)}
    settings = [line[0] for line in curve_tables.curves_table(records)[1:]]
    assert settings == ["digits-label_skew_2", "fashion_mnist-iid"]


def test_equal_bytes_are_those_of_60_rounds_of_fed_avg():
    found = {METHOD: curve(0.6, 0.5, 0.4), "default": {**curve(0.5, 0.4, per_round=0.125), 48: {0: record(0.45, 6.0)}}}
    assert curve_tables.at_equal_bytes(found) == {METHOD: 60, "default": 48}
    assert curve_tables.at_plateau(found) == {METHOD: 120, "default": 60}
    found[METHOD][120] = {0: record(0.4, 12.0)}  # One seed of two.
    assert curve_tables.at_plateau(found) == {METHOD: 60, "default": 60}


def test_a_stopped_study_goes_on_and_stops_by_itself(tmp_path, monkeypatch):
    """Cells with a record do not run again, also where their folders are gone."""
    ran = []

    def work(folder, options):
        ran.append((options["rounds"], options["seed"]))
        if len(ran) == 8:
            raise KeyboardInterrupt
        folder.mkdir(parents=True, exist_ok=True)
        nll = {30: 0.5, 60: 0.4, 120: 0.399}[options["rounds"]]
        (folder / SUMMARY).write_text(json.dumps({**record(nll), "options": options, "seconds": 1.0}))

    monkeypatch.setattr(curves, "run_curve_cell", work)
    every = {name.replace(":", "_"): options for name, options in curves.curve_cells()}
    study = Study(f",{METHOD},", False, False, 1, None, tmp_path / "cells", tmp_path / "results")
    with pytest.raises(KeyboardInterrupt):
        curves.run_curves(study, every, str, "digits-iid")
    study = study._replace(output=tmp_path / "others")
    curves.run_curves(study, every, str, "digits-iid")
    assert [rounds for rounds, _ in ran] == [30] * 5 + [60] * 8 + [120] * 5
    study.records(every)
    number = len(ran)
    curves.run_curves(study, every, str, "digits-iid")
    with pytest.raises(click.UsageError, match="No setting's name holds 'cifar10'"):
        curves.run_curves(study, every, str, "cifar10")
    assert len(ran) == number and len(read_records(tmp_path / "results")) == 15
