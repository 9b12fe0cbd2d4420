"""The study of personal models: its cells, their content, its resumption, and its tables."""

import json
import shutil

import numpy as np
import pytest
from click.testing import CliRunner

import tfp_bfl as bfl
from experiments.metavd import cell, federation, run, tables
from experiments.metavd.config import METHODS, PLAN, PRUNED, SHORT

TINY = {"size": "fashion_mnist", "dataset": "digits", "width": 2, "rounds": 2, "known": 6, "unseen": 2, "cohort": 3}
TINY |= {"concentration": 5.0, "seed": 0}


def test_every_cell_has_a_name_of_its_own_and_a_method():
    cells = list(run.cells())
    assert len({run.cell_name(options) for options in cells}) == len(cells)
    assert {options["method"] for options in cells} == set(METHODS)
    assert cells[0]["method"] == PLAN[0]["methods"][0] and cells[0]["seed"] == 0


def test_shards_of_known_and_unseen_clients():
    data = federation.data_of(TINY)
    assert (data.known.num_clients, data.unseen.num_clients) == (6, 2)
    for number, train in enumerate((data.known, data.unseen)):
        shares = lambda clients: clients.label_counts() / clients.sizes[:, np.newaxis]
        gap = lambda test, train=train, shares=shares: np.abs(shares(train) - shares(test)).mean()
        assert gap(data.matched[number]) < 0.6 * gap(data.independent[number])
        assert np.intersect1d(data.matched[0].indices[0], data.matched[1].indices[0]).size == 0


def test_alone_a_client_trains_as_if_it_were_the_only_one():
    """Two rounds with others are those of a federation of this client only, and the server learns nothing."""
    data = federation.data_of(TINY)
    process = federation.process_of({**TINY, "method": "alone"}, data)
    result = bfl.simulate(process, data.known, 2, cohort_size=3, seed=0, engine="local")
    first = process.local.initialize()
    np.testing.assert_array_equal(result.state.weights.point[0], first.weights.point[0])
    often = [k for k in range(6) if k in bfl.data.cohort(6, 3, 1, 0) and k in bfl.data.cohort(6, 3, 2, 0)]
    never = [k for k in range(6) if k not in bfl.data.cohort(6, 3, 1, 0) and k not in bfl.data.cohort(6, 3, 2, 0)]
    work = federation.process_of({**TINY, "method": "alone"}, data).client_work()
    for client in often[:1] + never[:1]:
        kept = process.client_work.memory(first.weights, 0.0)
        for number in range(2 if client in often else 0):
            message = bfl.weights.ServerMessage(first.weights, np.int32(number), memory=kept)
            examples = data.known.examples(client)
            kept = work(message, examples, bfl.federated.round.fold(0, number, client)).memory
        own = process.personal_weights(result.state, client)
        np.testing.assert_allclose(own.point[0], kept.weights.point[0], rtol=1e-5, atol=1e-6)
    assert often and never


@pytest.mark.deep(after="experiments/metavd/tests/test_metavd_study.py")
def test_every_method_can_be_built():
    data = federation.data_of(TINY)
    for method in METHODS:
        process = federation.process_of({**TINY, "method": method}, data)
        assert process.num_outputs == 10 and process.is_personal == (
            METHODS[method]["recipe"] in ("meta_vd", "p_fed_bayes", "alone")
        )


@pytest.mark.long
@pytest.mark.deep(after="experiments/metavd/tests/test_metavd_study.py")
def test_cells_tables_and_what_goes_on(tmp_path, monkeypatch):
    chosen = ("fed_avg", "fed_avg+noise", "reptile+metavd_pruned_0.2")
    every = [{**TINY, "concentration": 0.5, "cohort": 10, "known": 10, "method": method} for method in chosen]
    monkeypatch.setattr(run, "cells", lambda plan: iter(every))
    call = lambda *extra: CliRunner().invoke(
        run.main, ["--output", str(tmp_path / "runs"), "--results", str(tmp_path / "results"), *extra]
    )
    assert call().exit_code == 0
    paths = sorted((tmp_path / "runs").glob("*/summary.json"))
    before = [path.stat().st_mtime_ns for path in paths]
    summaries = [json.loads(path.read_text()) for path in paths]
    assert len(paths) == 3 and not any("failed" in summary for summary in summaries)
    assert "3 cells are done" in call("--tables").output
    assert [path.stat().st_mtime_ns for path in paths] == before
    rows = tables.rows_of([{**tables.kept(summary), "options": summary["options"]} for summary in summaries])
    by_name = {(row["method"], row["seed"]): row for row in rows}
    gained = (
        by_name["fed_avg+noise", 0]["known, matched, after, nll"] - by_name["fed_avg", 0]["known, matched, after, nll"]
    )
    of_parts = (tmp_path / "results" / "parts-fashion_mnist.csv").read_text()
    assert "fed_avg+noise minus fed_avg" in of_parts and gained != 0
    pruned = by_name["reptile+metavd_pruned_0.2", 0]
    assert 0 < pruned["sparsity"] < 1
    kept = by_name["fed_avg+noise", 0]["upload_bytes"]
    assert pruned["upload_bytes"] == kept - 8 * 32 * pruned["sparsity"] + 32 / 8
    seen = summaries[0]["scores"]["known, matched"]["clients"], summaries[0]["scores"]["unseen, matched"]["clients"]
    assert [client["client"] for client in (*seen[0], *seen[1])] == list(range(12))
    # What the records tell of stays in the tables when its folder is gone.
    for path in paths[1:]:
        shutil.rmtree(path.parent)
    assert "3 cells are done" in call("--tables").output
    assert (tmp_path / "results" / "parts-fashion_mnist.csv").read_text() == of_parts
    every[0]["rounds"] = 3
    refused = call("--tables")
    assert refused.exit_code == 2 and "of other options (rounds 2, now 3)" in refused.output
    every[1]["rounds"] = 3  # Its folder is there.
    assert call().exit_code == 2


@pytest.mark.long
@pytest.mark.deep(after="experiments/metavd/tests/test_metavd_study.py")
def test_cells_at_a_rate_have_means_over_rounds_and_every_noise(tmp_path):
    """Tables are written for the cells that there are, after each one more."""
    records = []
    for method in ("reptile", "reptile+metavd_rate", "reptile+constant_rate"):
        options = {**TINY, "size": "fashion_mnist_rates", "method": method, "last_rounds": 2, "rounds": 3}
        options |= {"concentration": 0.5, "cohort": 10, "known": 10}
        cell.run_cell(tmp_path / method, options)
        summary = json.loads((tmp_path / method / "summary.json").read_text())
        assert "failed" not in summary
        records.append({**tables.kept(summary), "options": options})
        tables.write_all(records, [summary], tmp_path / "results")
    first, rated, constant = records
    assert "dropout_rate_median" not in first and "known, matched, none, after, nll" not in first
    assert 0.1 < rated["dropout_rate_median"] < 0.9 and constant["logit_stddev"] < 1e-4 < rated["logit_stddev"]
    assert constant["upload_bytes"] == first["upload_bytes"] < rated["upload_bytes"]
    own, none, another = (rated[f"known, matched{noise}, before, nll"] for noise in ("", ", none", ", another"))
    assert len({own, none, another}) == 3 and "unseen, matched, another, before, nll" not in rated
    text = (tmp_path / "results" / "effects-fashion_mnist_rates.md").read_text()
    for words in ("minus reptile ", "minus reptile+constant_rate", "minus no noise", "minus another's"):
        assert f"reptile+metavd_rate {words}" in text
    assert "reptile+metavd_rate" in (tmp_path / "results" / "rates-fashion_mnist_rates.csv").read_text()


def test_means_over_rounds_by_hand():
    of = lambda x: {when: {"nll": x, "reliability": [x]} for when in cell.WHEN} | {"clients": [x]}
    found = cell.mean_scores([of(1.0), of(4.0)])
    assert found == {when: {"nll": 2.5, "reliability": [4.0]} for when in cell.WHEN} | {"clients": [4.0]}


def test_failures_are_reported_and_the_study_continues(tmp_path):
    cell.run_cell(tmp_path / "cell", {**TINY, "method": "reptile", "dataset": "breast_cancer"})
    summary = json.loads((tmp_path / "cell" / "summary.json").read_text())
    assert "must have" in summary["failed"] or "images" in summary["failed"]
    assert run.describe(summary).startswith("failed, ")
    tables.write_all([{**tables.kept(summary), "options": summary["options"]}], [summary], tmp_path / "results")
    assert "reptile" in (tmp_path / "results" / "failures.md").read_text()


def test_means_of_logits_by_hand():
    logits = np.random.default_rng(0).normal(size=(3, 5, 4))
    softmax = lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True)
    np.testing.assert_allclose(cell.mean_of_logits(softmax(logits)), softmax(logits.mean(0)), rtol=1e-6)
    sure = np.array([[[1.0, 0.0]], [[0.4, 0.6]]])
    assert np.isfinite(cell.mean_of_logits(sure)).all()


def test_calibration_is_over_the_examples_of_all_clients():
    evaluated, model = cell.Evaluated(0), bfl.models.mlp("deterministic", (3,), 4, hidden=(5,))
    rng = np.random.default_rng(1)
    shards = [(rng.normal(size=(n, 3)).astype(np.float32), rng.integers(4, size=n)) for n in (7, 5)]
    for features, labels in shards:
        evaluated(model, features, labels)
        evaluated(bfl.models.mlp("deterministic", (3,), 4, hidden=(5,), seed=1), features, labels)
    features, labels = (np.concatenate(x) for x in zip(*shards))
    wanted = bfl.evaluation.expected_calibration_error(bfl.evaluation.predict(model, features, 1)[0], labels, 10)
    np.testing.assert_allclose(evaluated.together(0)["all_ece"], wanted, rtol=1e-6)
    assert evaluated.together(1)["all_ece"] != evaluated.together(0)["all_ece"]
    assert set(SHORT) <= set(METHODS) and set(PRUNED) <= set(METHODS)


def test_differences_are_paired_by_seed_and_have_intervals():
    key = ", ".join(tables.ACCURACIES["known, after"])
    columns = {", ".join(which): 0.5 for which in (*tables.ACCURACIES.values(), *tables.PARTS.values())}
    row = lambda method, seed, after: {**columns, "method": method, "seed": seed, key: after}
    rows = [row("fed_avg", seed, 0.5 + seed / 10) for seed in range(3)]
    rows += [row("fed_avg+metavd", seed, 0.5 + seed / 10 + gain) for seed, gain in enumerate((0.01, 0.01, 0.02))]
    rows.append(row("fed_avg+noise", 1, 0.7))
    head, several, single = tables.parts(rows)
    # Mean of .01, .01, .02 and t_2(.975) = 4.3027 of their standard deviation .0057735 over sqrt(3).
    assert several[head.index("known, after")] == "+0.0133 [-0.0010, +0.0277]" and several[-1] == "3"
    assert single[head.index("known, after")] == "+0.1000" and single[-1] == "1"
    assert tables.adaptation(rows)[1][1] == "+0.1000 [-0.1484, +0.3484]"
