"""The study of the global posterior: its cells, its scores, its resumption, and its tables."""

import csv
import json
import shutil

import numpy as np
import pytest

import tfp_bfl as bfl
from experiments.global_posterior import cell, federation, run, scores, tables
from experiments.global_posterior.config import (
    CORE,
    CURVES,
    ENSEMBLE,
    FED_BE,
    FITTED,
    METHODS,
    PUBLISHED,
    PUBLISHED_METHODS,
    SIZES,
)
from tests.kit import fake_study

SMALL = {
    "dataset": "digits",
    "elsewhere": "digits",
    "examples_per_client": 16,
    "rounds": 1,
    "server_share": 0.1,
    "test_examples": 60,
    "elsewhere_examples": 40,
    "num_samples": 3,
    "permutations": 1,
    "partition": "dirichlet:0.5",
    "variant": "all",
    "seed": 0,
}


def test_every_cell_has_a_name_of_its_own():
    cells = list(run.cells())
    assert len({run.cell_name(options) for options in cells}) == len(cells)
    first = cells[: len(CORE)]
    assert {c["partition"] for c in first} == {"dirichlet:0.5"} and {c["seed"] for c in first} == {0}
    assert [c["method"] for c in first] == list(CORE)


@pytest.mark.deep(after="experiments/global_posterior/tests/test_global_posterior_study.py")
def test_every_method_can_be_built():
    data = federation.data_of(SMALL)
    for method in METHODS:
        process = federation.process_of({**SMALL, "method": method}, data.clients, data.held_out)
        assert bool(process.state_spec[2:]) and process.num_outputs == 10


def test_every_method_of_the_published_setting_can_be_built():
    options = {**PUBLISHED, "dataset": "digits", "elsewhere": "digits", "test_examples": 60, "seed": 0, "examples": 500}
    options["elsewhere_examples"] = 40
    clients = federation.data_of(options).clients
    assert clients.num_clients == 10 and 450 < sum(clients.sizes) <= 510 and max(clients.sizes) > 3 * min(clients.sizes)
    assert len(np.unique(np.concatenate(clients.indices))) == sum(clients.sizes)
    for method in PUBLISHED_METHODS:
        process = federation.process_of({**options, "method": method}, clients, None)
        assert bool(process.state_spec[2:]) and process.num_outputs == 10


def test_no_example_of_the_servers_is_a_clients():
    whole = {**SMALL, "examples_per_client": 10_000}
    data = federation.data_of(whole)
    held = sum(len(part) for part in data.clients.indices)
    assert held + len(data.held_out.labels) == bfl.data.load("digits", split="train").num_examples


def test_foreign_images_are_given_the_form_of_the_own():
    source = bfl.data.load("digits", split="train")
    images = np.arange(2 * 4 * 6, dtype=np.uint8).reshape(2, 4, 6, 1)
    larger = federation.in_the_middle(images, source)
    assert larger.shape[1:] == source.element_shape and larger.dtype == source.features.dtype
    np.testing.assert_array_equal(larger[:, 2:6, 1:7], images + 0 * larger[:, 2:6, 1:7])
    assert larger.sum() == images.sum()


def test_pixels_as_they_are():
    plain, raw = (federation.load(name, "test").features for name in ("digits", "digits_255"))
    assert raw.dtype == np.float32 and raw.max() > 1
    np.testing.assert_array_equal(raw, plain.reshape(len(plain), -1))
    table = federation.load("digits_255", "train")
    np.testing.assert_array_equal(federation.in_the_middle(plain, table), raw)


def test_controls_change_what_they_say():
    usual, tenth, shuffled = (
        federation.data_of({**SMALL, "examples_per_client": 100, "variant": name, "partition": "iid"})
        for name in ("all", "a_tenth", "shuffled_labels")
    )
    assert usual.clients.sizes.sum() == 10 * tenth.clients.sizes.sum()
    assert federation.local_epochs({"variant": "a_tenth"}) == 10
    labels = [part.clients.source.labels for part in (usual, shuffled)]
    assert 0 < np.mean(labels[0] == labels[1]) < 0.2 and sorted(labels[0]) == sorted(labels[1])


@pytest.mark.deep(after="experiments/global_posterior/tests/test_global_posterior_study.py")
@pytest.mark.parametrize(
    ("method", "rows"), [("fed_avg", ["fed_avg", FITTED, ENSEMBLE, FED_BE]), ("former_default", None)]
)
def test_a_cell_scores_its_rows(tmp_path, method, rows):
    cell.run_cell(tmp_path / "cell", {**SMALL, "method": method})
    summary = json.loads((tmp_path / "cell" / "summary.json").read_text())
    assert list(summary["rows"]) == (rows or [method]), summary
    (row, *_) = tables.rows_of([summary])
    assert 0 <= row["accuracy"] <= 1 and row["nll_fitted"] > 0 and row["faulty"] == 0
    weights = 2 if method == "former_default" else 1
    assert row["megabytes_a_round"] > 20 * 4 * weights * 20_000 / 1e6
    if rows:
        assert row["ood_auroc_epistemic"] is None and row["nll_fitted"] == pytest.approx(
            summary["rows"][FITTED]["nll"], abs=1e-5
        )
        assert summary["rows"][ENSEMBLE]["epistemic"] > 0 and summary["rows"][FED_BE]["epistemic"] > 0
    else:
        assert row["log_sd_ratio"] < 0.1 and abs(row["permutation_costs"]) < 0.01


@pytest.mark.deep(after="experiments/global_posterior/tests/test_global_posterior_study.py")
def test_a_cell_that_fails_says_so(tmp_path):
    cell.run_cell(tmp_path / "cell", {**SMALL, "method": "curvature_0.05", "partition": "label_skew:99"})
    assert "classes_per_client" in json.loads((tmp_path / "cell" / "summary.json").read_text())["failed"]


@pytest.mark.deep(after="experiments/global_posterior/tests/test_global_posterior_study.py")
def test_a_curve_has_a_row_for_each_evaluation():
    short = {**CURVES["digits"], "rounds": 2, "evaluate_every": 1, "local_epochs": 1, "num_samples": 2}
    rows = cell.curve({**short, "method": "curvature_0.05", "seed": 0})["curve"]
    assert [row["round"] for row in rows] == [1, 2] and all(row["stddev_q95"] > 0 for row in rows)
    assert 0 < rows[0]["train_cpu_seconds"] < rows[1]["train_cpu_seconds"] and "ood_auroc_entropy" not in rows[0]


def test_scores_of_known_predictions():
    right, sure = np.eye(2, dtype=np.float32), np.float32([[0.9, 0.1], [0.6, 0.4]])
    one = scores.scores(sure[np.newaxis], np.array([0, 1]), np.float32([[[0.5, 0.5]]]))
    assert one["accuracy"] == 0.5 and one["error_auroc"] == one["ood_auroc_entropy"] == 1
    assert one["epistemic"] is one["ood_auroc_epistemic"] is one["ood_auroc_mutual_information"] is None
    two = scores.scores(np.stack([right, right[::-1]]), np.array([0, 0]), np.stack([right, right]))
    assert two["epistemic_share"] == 1 and two["ood_auroc_epistemic"] == 0 and two["error_auroc"] is None
    assert two["ood_auroc_mutual_information"] == 0


def test_permuting_keeps_each_layers_standard_deviations():
    model = bfl.models.lenet(input_shape=(8, 8, 1))
    before = bfl.weights.get_weights(model)
    rng = np.random.default_rng(0)
    other = tuple(rng.uniform(1, 2, v.shape).astype(np.float32) for v in before.posterior.variance)
    weights = before._replace(posterior=before.posterior._replace(variance=other))
    changed = scores.permuted(weights, (0, 1)).posterior
    for old, new in zip(other, changed.variance):
        assert old.shape == new.shape and np.any(old != new)
        assert np.array_equal(np.sort(old, None), np.sort(new, None))
    assert changed.mean is weights.posterior.mean
    found = scores.spread_scores(weights, bfl.weights.prior(model))
    assert found["share_at_prior"] == 1 and found["log_sd_ratio"] == pytest.approx(0.5 * np.log(1.95 / 1.05), abs=0.01)


def made(options):
    """What a cell leaves, invented."""
    if "evaluate_every" in options:
        rows = [{"round": r, "accuracy": 0.9, "test_nll": 1.0 + r / 500, "ece": 0.1} for r in (20, 500)]
        return {"options": options, "curve": rows, "seconds": 1.0}
    values = dict.fromkeys([*tables.SCORES, *tables.SPREAD], 0.5 + 0.001 * options["seed"])
    if options["method"].startswith("curvature"):
        values |= {"nll": 0.3 + 0.002 * options["seed"], "nll_permuted": 0.4, "nll_permuted_sd": 0.0}
    names = [options["method"], *([FITTED] if options["method"] == "fed_avg" else [])]
    training = {"train_seconds": 1.0, "train_cpu_seconds": 2.0, "bytes_a_round": 10}
    training |= {"faulty": 1, "collapsed_in_round": None}
    return {"options": options, "rows": dict.fromkeys(names, values), "training": training, "seconds": 1.0}


def finished(options):
    """Return the summary of a cell, of which one method diverges."""
    return {"failed": "Diverged: because", "seconds": 1.0} if options["method"] == "mc_dropout" else made(options)


@pytest.fixture
def study(monkeypatch, tmp_path):
    return fake_study(monkeypatch, tmp_path, run, finished)


def read(path):
    rows = list(csv.reader(path.read_text().splitlines()))
    return {row[0]: dict(zip(rows[0], row)) for row in rows[1:]}


def test_a_study_killed_half_way_goes_on_where_it_was(study):
    study.fails_at = 5
    assert study.invoke().exit_code != 0 and len(study.runs) == 5
    study.fails_at = None
    result = study.invoke()
    assert result.exit_code == 0, result.output
    number = len(list(run.cells()))
    assert len(study.runs) == len(set(study.runs)) == number and "failed, Diverged" in result.output
    results = study.folder / "results"
    names = {path.name for path in results.iterdir()}
    assert {"raw.csv", "raw_curves.csv", "curves.png", "controls.md", "failures.md", "scores-iid.md"} <= names
    assert read(results / "scores-iid.csv")["fed_avg"]["nll"] == "0.5010 +- 0.0010"
    different = read(results / "differences-dirichlet_0_5.csv")
    assert different["curvature_0.05"]["nll"] == "**-0.1990 [-0.2015, -0.1965]**" and FITTED not in different
    assert different["fed_avg"]["nll"] == "+0.0000 [+0.0000, +0.0000]" and "mc_dropout" not in different
    assert read(results / "permutation-iid.csv")["curvature_0.05"]["permutation_costs"].startswith("0.0980")
    assert "Diverged: because" in (results / "failures.md").read_text()


def test_tables_alone_run_nothing(study):
    assert study.invoke("--cell", "seed=1").exit_code == 0
    number = len(study.runs)
    assert study.invoke("--tables").exit_code == 0 and len(study.runs) == number
    listed = study.invoke("--list", "--cell", "all,fed_avg,iid").output.splitlines()
    assert [line[:4] for line in listed] == ["    ", "done", "    "]


def test_a_folder_of_another_config_and_a_wrong_name_are_refused(study, monkeypatch):
    assert study.invoke("--cell", "all,fed_avg,iid,seed=0").exit_code == 0
    monkeypatch.setitem(SIZES["fashion_mnist"], "rounds", 3)
    result = study.invoke("--tables")
    assert result.exit_code == 2 and "is of other options" in result.output
    assert study.invoke("--cell", "nothing").exit_code == 2


def test_tables_are_of_records_where_the_folders_are_gone(study):
    assert study.invoke("--cell", "dirichlet_0_5,seed=").exit_code == 2
    assert study.invoke("--cell", "fed_avg,iid").exit_code == 0
    before = (study.folder / "results" / "scores-iid.csv").read_text()
    shutil.rmtree(study.folder / "cells")
    assert study.invoke("--tables").exit_code == 0
    assert (study.folder / "results" / "scores-iid.csv").read_text() == before
    kept = (study.folder / "results" / "records.jsonl").read_text()
    assert kept.count("\n") == 3 and "train_nll" not in kept and '"faulty":1' in kept


def test_bold_is_only_what_other_seeds_would_leave_better_or_worse():
    rows = [
        {"row": name, "method": "fed_avg", "seed": seed, "nll": value}
        for name, values in {
            FITTED: (0.5, 0.5, 0.51),
            "better": (0.4, 0.401, 0.41),
            "in every seed": (0.3, 0.49, 0.5),
            "worse": (0.6, 0.6, 0.612),
        }.items()
        for seed, value in enumerate(values)
    ]
    found = {line[0]: line[2] for line in tables.differences(rows)}
    assert found["better"].startswith("**-0.0997 [") and found["worse"].startswith("**+0.1007 [")
    assert found["in every seed"] == "-0.0733 [-0.3458, +0.1992]"
    assert tables.differences([row for row in rows if row["seed"] == 0])[1][2] == "-0.1000"


def test_a_score_of_newer_records_alone_has_a_column_where_there_is_one():
    rows = [{"row": FITTED, "method": "fed_avg", "seed": 0, "nll": 0.5, "ood_auroc_entropy": 0.7}]
    new = {"row": "new", "method": "fed_avg", "seed": 0, "nll": 0.4, tables.NEW: 0.9}
    for make in (tables.differences, lambda rows: tables.table(rows, tuple(tables.SCORES))):
        assert tables.NEW not in make(rows)[0]
        header, *lines = make([*rows, new])
        assert {line[0]: line[header.index(tables.NEW)] for line in lines}["new"] in ("+0.2000", "0.9000")


def test_pairs_are_of_the_places_where_both_rows_are():
    row = lambda name, seed, x: {"row": name, "seed": seed, "accuracy": x, "nll": x, "ece": x}
    groups = {
        "a": [row("mc_dropout", s, 0.5 + 0.01 * s) for s in range(3)] + [row("fed_avg", s, 0.4) for s in range(3)]
    }
    groups["b"] = [row("mc_dropout", 0, 0.5)]
    table = tables.pairs_table(groups)
    assert len(table) == 2 and table[1][:3] == ["mc_dropout", "fed_avg", "a"] and table[1][-1] == "3"
    assert table[1][3] == "**+0.1100 [+0.0852, +0.1348]**"
