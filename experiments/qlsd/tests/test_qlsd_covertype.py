"""The study of QLSD on covertype, whose table is not here: its code on an embedded one, and what is said without it."""

import json

import click
import numpy as np
import pytest

import tfp_bfl as bfl
from experiments.qlsd import covertype, run, tables

TINY = {"examples": 120, "rounds": 60, "burn_in": 20, "every": 2, "runs": 2}


@pytest.fixture
def embedded(monkeypatch):
    """Breast cancer in the place of covertype, with a column that never changes."""
    source = bfl.data.load("breast_cancer")
    columns = np.concatenate([3 * source.features + 1, np.full((source.num_examples, 1), 5.0)], 1)
    monkeypatch.setattr(covertype, "table", lambda: (columns, source.labels))
    covertype.task.cache_clear()
    yield
    covertype.task.cache_clear()


def cells(**more):
    found = [options for options in run.cells("reduced") if options["study"] == "covertype"]
    return {options["method"]: {**options, **TINY, **more} for options in found}


def test_what_is_not_there_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("SCIKIT_LEARN_DATA", str(tmp_path))
    with pytest.raises(click.UsageError, match="covertype is not there"):
        covertype.table()


def test_columns_are_standardised_and_clients_are_of_one_size(embedded):
    build, held = covertype.task(120)
    assert held.features.shape == (120, 32) and build().count_params() == len(held.mode) == 64
    assert held.features[:, :30].mean(0) == pytest.approx(0, abs=1e-5)
    assert held.features[:, :30].std(0) == pytest.approx(1, abs=1e-5)
    assert np.all(held.features[:, 30] == 0) and np.all(held.features[:, 31] == 1)
    assert held.clients.sizes.tolist() == 10 * [12]


@pytest.mark.long
@pytest.mark.deep(after="experiments/qlsd/tests/test_qlsd_covertype.py")
def test_cells_run_and_are_compared_with_mala(embedded, tmp_path):
    given = cells()
    chosen = {name: given[name] for name in ("MALA", "LSD++", "QLSD++ 4 bits", "DG-SGLD")}
    found = {}
    for name, options in chosen.items():
        run.run_cell(tmp_path / name, options)
        found[name] = json.loads((tmp_path / name / "summary.json").read_text())
        assert "failed" not in found[name] and len(found[name]["quantile_above_least"]) == 2, found[name]
        # U - min U of 64 weights is a half of a chi-squared of 64, once a chain has left its start.
        assert 10 < found[name]["mean_above_least"][0] < 60, found[name]
    assert found["MALA"]["acceptance"] > 0.3
    rows = tables.covertype_table(list(found.values()))
    assert [row[0] for row in rows[1:]] == list(chosen) and rows[3][5] == "2.2e-03"
