"""A cell of the study of client heads, with few features, and its table."""

import pathlib

import numpy as np
import pytest

from experiments.client_heads.config import CONTROL, MODELS, cells
from experiments.client_heads.data import split_of
from experiments.client_heads.run import predict, score, table
from tfp_bfl import glm


def test_a_cell_scores_every_model_on_rows_held_out():
    options = cells()["heart,split=2"] | {"features": 3}
    found = score(pathlib.Path(), options)
    assert {f"{key}_nll" for key in MODELS.values()} <= set(found)
    assert all(0.2 < found[f"{key}_nll"] < 0.6 for key in MODELS.values())
    split = split_of(pathlib.Path(), options)
    assert found["rows"] + found["test_rows"] == 920 and found["test_rows"] == split.test.num_examples
    names, rows = split.clients()
    assert sum(len(y) for _, y in rows) == found["rows"] and len(names) == 4
    control = glm.fit_hierarchical(rows, "bernoulli", prior_stddev=2.5)
    assert found["linear_nll"] == pytest.approx(predict(control, split, names), rel=1e-9)


def test_differences_are_paired_by_split():
    records = [
        {
            "options": {"federation": "radon", "split": split},
            **{f"{key}_nll": 1.0 + split + 0.1 * (key == "features") for key in MODELS.values()},
        }
        for split in range(5)
    ]
    rows = {row[0]: row[3] for row in table(records)[1:]}
    assert rows[CONTROL] == f"{np.mean([1, 2, 3, 4, 5]):.4f}"
    assert rows["features, client intercepts"] == "**+0.1000 [+0.1000, +0.1000]**"
    assert rows["linear, pooled"] == "+0.0000 [+0.0000, +0.0000]"
