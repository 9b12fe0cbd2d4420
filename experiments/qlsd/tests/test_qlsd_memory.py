"""The study of QLSD's memories: its data, posterior, cells and table."""

import json

import numpy as np
import pytest

from experiments.qlsd import config, memory, run, tables
from experiments.records import read_records


def test_clients_have_the_shapes_and_the_spread_that_are_said():
    rng = np.random.default_rng(0)
    rows = np.stack([np.abs(memory.synthetic(rng, 400, 10)) for _ in range(60)])
    assert rows.shape == (60, 400, 10)
    # Of |s x| = |x|: within a client the variances are at most j^-1.2, and less where zero cuts them.
    within = rows.var(1).mean(0)
    assert np.all(within < 1.1 * np.arange(1, 11) ** -1.2) and within[0] > 5 * within[9]


def test_the_mode_is_where_gradient_and_prior_balance():
    held, settings = memory.task(), config.MEMORY
    sizes = held.clients.sizes
    assert len(sizes) == 20 and min(sizes) >= 10 and max(sizes) < 50 and sum(sizes) == len(held.rows)
    gradient = -held.rows.T @ (1 / (1 + np.exp(held.rows @ held.mode))) + settings["prior_precision"] * held.mode
    assert np.abs(gradient).max() < 0.05 and np.linalg.norm(held.mode) > 0.05
    p = 1 / (1 + np.exp(-held.rows @ held.mode))
    hessian = (held.rows.T * (p * (1 - p))) @ held.rows
    assert np.linalg.eigvalsh(hessian)[-1] + settings["prior_precision"] <= held.curvature


def cell(method, **more):
    named = {options["method"]: options for options in run.cells("reduced") if options["study"] == "memory"}
    return {**named[method], **more}


@pytest.mark.long
@pytest.mark.deep(after="experiments/qlsd/tests/test_qlsd_memory.py")
def test_a_memory_brings_coarse_messages_near_those_without_compression(tmp_path):
    found = {}
    for method in ("LSD++", "QLSD++ 2 levels", "QLSD++ 2 levels, no memory"):
        run.run_cell(tmp_path / method, cell(method, rounds=1_000, runs=2))
        found[method] = memory.variances(json.loads((tmp_path / method / "summary.json").read_text())).mean()
    assert found["QLSD++ 2 levels"] == pytest.approx(found["LSD++"], rel=0.1)
    assert found["QLSD++ 2 levels, no memory"] > 1.4 * found["LSD++"]


def test_the_truth_is_near_laplaces(tmp_path):
    run.run_cell(tmp_path / "cell", cell("HMC", rounds=1_500, runs=2, burn_in=300))
    summary = json.loads((tmp_path / "cell" / "summary.json").read_text())
    found = memory.variances(summary).mean(0) / memory.expected_variances(0)
    assert summary["scale_reduction"] < 1.02 and np.all(np.abs(found - 1) < 0.15), found


def test_the_results_without_compression_are_those_of_the_step_alone():
    kept = read_records(run.HERE / "results").values()
    found = {s["options"]["method"]: memory.variances(s).mean(0) for s in kept if s["options"]["study"] == "memory"}
    assert found["HMC"] == pytest.approx(memory.expected_variances(0), rel=0.03)
    # Batches of one add a little of their own.
    assert found["LSD++"] == pytest.approx(memory.expected_variances(1), rel=0.03)
    assert np.all(memory.expected_variances(1) > 1.2 * memory.expected_variances(0))


def summary_of(method, variances, **more):
    own = np.asarray(variances, float)
    options = {"study": "memory", "method": method, "dim": 2, "prior_precision": 0.5, "rounds": 9, "runs": len(own)}
    return {"options": options, "variances": own.ravel().tolist(), "seconds": 1.0, **more}


def test_the_table_has_errors_and_their_controls():
    summaries = [
        summary_of("HMC", [[1, 0.75], [1, 1.25]]),
        summary_of("LSD++", [[1, 2], [1, 3]]),
        summary_of("QLSD++ 2 levels", [[1, 2], [1, 4]]),
        summary_of("QLSD++ 2 levels, no memory", [[1, 5], [1, 5]]),
    ]
    head, prior, exact, reference, with_memory, without = tables.memory_table(summaries)
    row = lambda cells: dict(zip(head[1:], cells[1:]))
    assert prior[1].startswith("1.41") and exact[1] == "0.5 +- 0"
    assert (reference[0], reference[1]) == ("LSD++", "1.5 +- 0.5")
    assert row(reference)["from LSD++, same seed"] == "0 +- 0" and row(reference)["from LSD++, other seeds"] == "1"
    assert row(with_memory)["error of the variances"] == "2 +- 1"
    assert row(with_memory)["from LSD++, same seed"] == "0.5 +- 0.5"
    assert row(with_memory)["error without memory less that with"] == "2 +- 1"
    assert without[1] == "4 +- 0" and row(without)["error without memory less that with"] == ""
