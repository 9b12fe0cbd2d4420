"""The study of QLSD: its exact results, its cells, its resumption, and its tables."""

import csv
import json
import shutil

import numpy as np
import pytest

from experiments.qlsd import config, gaussian, logistic, run, toy
from experiments.qlsd.config import NETWORKS
from tests.kit import fake_study

TINY = {"rounds": 30, "burn_in": 10, "runs": 2}


def test_every_cell_has_a_name_of_its_own():
    for size in config.SIZES:
        cells = list(run.cells(size))
        assert len({run.cell_name(options) for options in cells}) == len(cells)
    chosen = [options for options in run.cells("full", 2) if options["method"] != "HMC"]
    assert {options["runs"] for options in chosen} == {2}


def test_sizes_are_the_published_ones():
    assert (len(config.CLIENT_SIZES), sum(config.CLIENT_SIZES)) == (20, 2042)
    assert [len(table) for table in toy.tables()] == list(config.CLIENT_SIZES)


@pytest.mark.parametrize(("center", "variance", "dim"), [(0.0, 1.0, 3), (2.0, 0.5, 2), (8.0, 0.01, 50), (0.1, 2.0, 50)])
def test_the_mean_norm_of_a_gaussian_is_that_of_draws(center, variance, dim):
    draws = np.random.default_rng(0).normal(0, variance**0.5, (200_000, dim))
    draws[:, 0] += center
    norms = np.linalg.norm(draws, axis=1)
    error = norms.std() / len(norms) ** 0.5
    assert gaussian.norm_mean(center, variance, dim) == pytest.approx(norms.mean(), abs=4 * error)
    assert gaussian.norm_variance(center, variance, dim) == pytest.approx(norms.var(), rel=0.02)


def test_the_mean_norm_of_a_central_gaussian_is_that_of_a_chi():
    assert gaussian.norm_mean(0.0, 4.0, 3) == pytest.approx(2 * (8 / np.pi) ** 0.5, rel=1e-12)


def test_stationary_variances_are_those_of_the_closed_forms():
    tables = [np.tile(np.float32([m, m]), (n, 1)) for n, m in ((2, 1), (3, -1), (5, 0.2))]
    of = lambda **given: gaussian.stationary_variance(tables, 0.5, share=None, **given) / 10
    assert of(star=False) == of(star=True) == pytest.approx(0.133333, abs=1e-6)
    for omega, plain, star in ((1, 0.206107, 0.152672), (3, 0.440860, 0.215054)):
        assert of(star=False, omega=omega) == pytest.approx(plain, abs=1e-6)
        assert of(star=True, omega=omega) == pytest.approx(star, abs=1e-6)


@pytest.mark.parametrize("levels", [1, 3, 16])
def test_a_quantisers_error_is_on_average_what_is_said(levels):
    x = np.random.default_rng(0).normal(size=(20_000, 50))
    r = levels * np.abs(x) / np.linalg.norm(x, axis=1, keepdims=True)
    found = np.mean(np.sum(r % 1 * (1 - r % 1), 1)) / levels**2
    assert gaussian.quantiser_factor(50, levels) == pytest.approx(found, rel=0.02)


def test_batches_vary_as_their_closed_form_says():
    rng, table = np.random.default_rng(0), np.random.default_rng(1).normal(size=(15, 4))
    assert [gaussian.batch_number(n, 0.1) for n in (14, 15, 44, 190)] == [2, 2, 5, 19]
    sums = [15 / 2 * table[rng.permutation(15)[:2]].sum(0) for _ in range(20_000)]
    found = gaussian.batch_variance([table, table], 0.1)
    assert found == pytest.approx(2 * np.var(sums, 0).mean(), rel=0.03) and gaussian.batch_variance([table], None) == 0


@pytest.mark.parametrize(("correlation", "number"), [(0.0, 7), (0.9, 40), (0.99, 3)])
def test_the_mean_of_a_correlated_process_varies_as_its_double_sum(correlation, number):
    lags = np.abs(np.subtract.outer(np.arange(number), np.arange(number)))
    assert gaussian.mean_factor(correlation, number) == pytest.approx(np.mean(correlation**lags))


def test_the_expected_error_is_that_of_independent_draws():
    rng = np.random.default_rng(0)
    draws = rng.normal(0, 0.2, (4_000, 20, 5)) + 0.5
    center, exact = 0.5 * 5**0.5, gaussian.norm_mean(0.5 * 5**0.5, 0.02, 5)
    errors = (np.linalg.norm(draws, axis=-1).mean(1) - exact) ** 2
    found = gaussian.expected_error(center, 0.02, 5, ratio=2, correlation=0.0, number=20)
    assert found == pytest.approx(errors.mean(), rel=0.06)


def test_entropy_of_known_distributions():
    assert gaussian.entropy(np.arange(-32, 32)) == pytest.approx(6)
    assert gaussian.entropy(np.zeros(10, int)) == 0
    wide = np.random.default_rng(0).normal(0, 10_000, 50_000).round().astype(int)
    assert gaussian.entropy(wide) == pytest.approx(np.log2(10_000 * (2 * np.pi * np.e) ** 0.5), abs=0.01)


def test_the_hpd_quantile_of_a_gaussian_is_that_of_a_gamma():
    draws = np.random.default_rng(0).normal(size=(400_000, 2))
    above = 0.5 * np.sum(draws**2, -1)
    assert logistic.hpd_quantile(above, 0.01) == pytest.approx(4.605170, abs=0.05)
    assert logistic.hpd_quantile(above + 7, 0.01) == pytest.approx(7 + logistic.hpd_quantile(above, 0.01))


def test_errors_are_of_the_same_seed_or_of_others():
    assert logistic.errors_of([1.0, 3.0], [2.0, 4.0], same=True) == [0.5, 0.25]
    assert logistic.errors_of([1.0, 3.0], [2.0, 4.0], same=False) == [0.75, 0.5]
    assert logistic.errors_of([1.0, 3.0], [1.0, 3.0], same=True) == [0, 0]


def test_potentials_are_cross_entropy_and_prior():
    features, labels = np.eye(2), np.array([0, 1])
    weights = np.float32([np.zeros((2, 3)), [[1, 0, 0], [0, 1, 0]]])
    found = logistic.potentials(features, labels, weights, 0.5)
    assert found == pytest.approx([2 * np.log(3), 2 * np.log(1 + 2 / np.e) + 4])


def of_study(study, **more):
    return {**next(options for options in run.cells("reduced") if options["study"] == study), **more}


@pytest.mark.deep(after="experiments/qlsd/tests/test_qlsd_study.py")
@pytest.mark.parametrize("method", ["QLSD# 4 bits", "QLSD* 8 bits", "LSD*"])
def test_a_cell_of_the_toy_runs(tmp_path, method):
    estimator, compressor, share = config.TOY_METHODS[method]
    how = {"method": method, "estimator": estimator, "compressor": compressor, "batch_size": share}
    run.run_cell(tmp_path / "cell", of_study("toy", **how, **{**TINY, "rounds": 300}))
    summary = json.loads((tmp_path / "cell" / "summary.json").read_text())
    assert summary["ratio"] == pytest.approx(summary["expected_ratio"], rel=0.05), summary
    assert 0 < summary["error"] < 10 * summary["expected_error"]
    bits = [summary["bits_entropy"], summary["bits_coder"]]
    assert bits == [1600, 1600] if method == "LSD*" else bits[0] < 1.02 * bits[1] < 600


@pytest.mark.deep(after="experiments/qlsd/tests/test_qlsd_study.py")
def test_a_cell_of_the_budget_runs_as_long_as_its_bits_last(tmp_path):
    run.run_cell(tmp_path / "cell", of_study("budget", bits=20_000, runs=2, levels=16, compressor="quantiser:16"))
    summary = json.loads((tmp_path / "cell" / "summary.json").read_text())
    assert summary["rounds"] == int(20_000 / summary["bits_bound"]) == 87 and 50 < summary["ratio"] < 150


@pytest.mark.deep(after="experiments/qlsd/tests/test_qlsd_study.py")
@pytest.mark.long
@pytest.mark.parametrize(("study", "fewest", "below"), [("logistic", 20, 100), ("logistic_mnist", 50, 200)])
def test_a_cell_of_logistic_regression_runs(tmp_path, monkeypatch, study, fewest, below):
    """On digits: MNIST may not be there."""
    monkeypatch.setitem(config.LOGISTICS, study, {**config.LOGISTICS[study], "dataset": "digits"})
    run.run_cell(tmp_path / "cell", of_study(study, compressor="quantiser:16", **TINY))
    summary = json.loads((tmp_path / "cell" / "summary.json").read_text())
    assert len(summary["quantile"]) == 2 and min(summary["quantile_above_least"]) > 0, summary
    sizes = logistic.task(study).clients.sizes
    assert len(sizes) == 10 and min(sizes) >= fewest and max(sizes) < below and sum(sizes) == summary["examples"]
    assert 32 < summary["bits_entropy"] < 1.1 * summary["bits_coder"] < 32 * 640 and summary["bits_bound"] < 32 * 640


@pytest.mark.long
@pytest.mark.deep(after="experiments/qlsd/tests/test_qlsd_study.py")
@pytest.mark.parametrize("method", ["DG-SGLD", "FSGLD"])
def test_a_rivals_cell_of_logistic_regression_runs(tmp_path, method):
    run.run_cell(tmp_path / "cell", of_study("logistic", method=method, **config.LOGISTIC_RIVALS[method], **TINY))
    summary = json.loads((tmp_path / "cell" / "summary.json").read_text())
    assert len(summary["quantile"]) == 2 and min(summary["quantile_above_least"]) > 0, summary
    assert summary["bits_coder"] == summary["bits_bound"] == 32 * 640


def made(options):
    """What a cell leaves, invented."""
    if options["study"] == "memory":
        return {"variances": [1.0, 2.0] * (options["dim"] * options["runs"] // 2), "seconds": 1.0}
    if options["study"] in NETWORKS:
        names = ("accuracy", "ece", "brier", "nll", "auroc", "agreement", "total_variation", "travelled", "spread")
        return {**{key: [0.5] for key in names}, "draws": 9, "seconds": 1.0}
    if options["study"] == "consistency":
        names = ("variance", "variance_se", "ratio", "expected_ratio", "bias", "seconds")
        return dict.fromkeys(names, 1.0)
    if options["study"] == "predictions":
        names = ("accuracy", "nll", "auroc", "accuracy_of_mean_weights", "nll_of_mean_weights")
        of_images = {"confidences": [0.6, -0.4], "entropies": [0.5, 1.0], "entropies_elsewhere": [1.0, 2.0]}
        return {**dict.fromkeys(names, 0.5), **of_images, "sizes": [1, 2], "seconds": 1.0}
    if options["study"] in (*config.LOGISTICS, "covertype"):
        values = {name: [100.0, 101.0] for name in ("quantile", "quantile_above_least", "mean_above_least")}
        numbers = {"least": 1.0, "bits_bound": 10.0, "bits_entropy": 4.0, "bits_coder": 5.0}
        return {**values, **numbers, "seconds": 7.0, "seconds_per_1e5_steps": 3.0}
    names = ("error", "error_se", "bias", "bias_se", "ratio", "ratio_se", "expected_ratio", "expected_error")
    names += ("exact_draws", "exact_chain", "twice_the_variance", "bits_bound", "bits_entropy", "bits_coder")
    return {**dict.fromkeys([*names, "seconds", "seconds_per_1e5_steps"], options["step"]), "rounds": 100}


def finished(options):
    """Return the summary of a cell, of which one method diverges on the toy."""
    failed = options["study"] == "toy" and options["method"] == "LSD#"
    return {"failed": "Diverged: because", "seconds": 1.0} if failed else made(options)


@pytest.fixture
def study(monkeypatch, tmp_path):
    return fake_study(monkeypatch, tmp_path, run, finished)


def read(path):
    rows = list(csv.reader(path.read_text().splitlines()))
    return [dict(zip(rows[0], row)) for row in rows[1:]]


def test_a_study_killed_half_way_goes_on_where_it_was(study):
    study.fails_at = 5
    assert study.invoke().exit_code != 0 and len(study.runs) == 5
    study.fails_at = None
    result = study.invoke()
    assert result.exit_code == 0, result.output
    number = len(list(run.cells("reduced")))
    assert len(study.runs) == len(set(study.runs)) == number and "failed, Diverged" in result.output
    results = study.folder / "results"
    tables = {f"{name}.md" for name in ("toy", "toy_bits", "budget", "memory", "failures", *config.LOGISTICS)}
    assert tables | {"records.jsonl", "toy.png", "budget.png", "memory.png"} <= {
        path.name for path in results.iterdir()
    }
    toy_rows = read(results / "toy.csv")
    assert len(toy_rows) == 30 and (toy_rows[0]["method"], toy_rows[0]["step x L"]) == ("QLSD# 4 bits", "1")
    (reference, *others) = read(results / "logistic.csv")
    assert reference["HPD error of U, same seed"].startswith("0.0e+00") and others[0]["published error"] == "6.1e-03"
    assert reference["of U, other seeds"].startswith("1.0e-02")
    assert [others[0][name] for name in ("bits by entropy", "bits by coder", "seconds")] == ["4", "5", "7"]
    assert "Diverged: because" in (results / "failures.md").read_text()


def test_tables_alone_run_nothing(study):
    assert study.invoke("--cell", "logistic,LSD++").exit_code == 0
    assert study.invoke("--tables").exit_code == 0 and study.runs == ["logistic,LSD++"]
    listed = study.invoke("--list", "--cell", "logistic,").output.splitlines()
    assert [line[:4] for line in listed] == ["done", *5 * ["    "]]


def test_a_folder_of_another_size_and_a_wrong_name_are_refused(study):
    assert study.invoke("--cell", "logistic,LSD++").exit_code == 0
    for more in (("--seeds", "7"), ("--size", "full")):
        result = study.invoke("--tables", *more)
        assert result.exit_code == 2 and "is of other options" in result.output
    assert study.invoke("--cell", "nothing").exit_code == 2
    shutil.rmtree(study.folder / "cells")  # What the results hold is refused likewise.
    result = study.invoke("--tables", "--seeds", "7")
    assert result.exit_code == 2 and "another --results" in result.output
