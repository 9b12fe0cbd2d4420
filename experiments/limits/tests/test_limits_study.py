"""The study of prediction sets on unseen clients: its cells and its table."""

import json
import shutil

import numpy as np
from click.testing import CliRunner

from experiments.limits import run

KEYS = {*run.COLUMNS.values(), *(p + key for p in run.THRESHOLDS.values() for key in run.OF_THRESHOLDS.values())}


def test_every_cell_has_a_name_of_its_own():
    names = [run.cell_name(options) for options in run.cells()]
    assert len(set(names)) == len(names) == len(run.PARTITIONS) * len(run.SEEDS)
    assert not any(":" in name for name in names)


def test_the_table_leaves_out_what_failed():
    score = lambda partition, value: {"options": {"partition": partition}, **dict.fromkeys(run.COLUMNS.values(), value)}
    summaries = [
        score("iid", 0.9),
        score("iid", 0.8),
        {**score("iid", 0.0), "failed": "because"},
        score("dirichlet:0.1", 0.5),
    ]
    head, iid, skewed = run.table(summaries)
    assert head[0] == "partition" and iid[1] == "0.850 +- 0.071" and iid[-1] == "2"
    assert skewed[:2] == ["dirichlet:0.1", "0.500"]


def test_the_table_is_of_records_where_the_folders_are_gone(tmp_path):
    (name, options), *_ = ((run.cell_name(cell), cell) for cell in run.cells())
    (tmp_path / "cells" / name).mkdir(parents=True)
    summary = {"options": options, "seconds": 1.0, **dict.fromkeys(KEYS, 0.5)}
    (tmp_path / "cells" / name / "summary.json").write_text(json.dumps(summary))
    arguments = ["--output", str(tmp_path / "cells"), "--results", str(tmp_path / "results"), "--tables"]
    for _ in range(2):
        assert CliRunner().invoke(run.main, arguments).exit_code == 0
        assert (tmp_path / "results" / "sets.csv").read_text().splitlines()[1].startswith("iid,0.500,")
        shutil.rmtree(tmp_path / "cells", ignore_errors=True)


def scores(seed=0):
    """Probabilities and labels of clients that differ in how sure the model is of them."""
    rng = np.random.default_rng(seed)

    def pair(count):
        sure = rng.beta(rng.gamma(2.0, 3.0) + 1, 1.5, count)
        probabilities = np.stack([sure, 1 - sure], 1).astype(np.float32)
        return probabilities, (rng.random(count) > sure).astype(int)

    return pair


def test_thresholds_are_counted_on_examples_that_chose_none():
    pair = scores()
    options = {**run.COMMON, "seed": 0, "few": 30, "many": 200, "counted": 100}
    held_out = [pair(40) for _ in range(20)] + [None]
    known = [pair(120) if k % 2 else pair(10) for k in range(20)] + [None]
    unseen = [pair(400), pair(150), pair(90)]
    found = run.counts(held_out, known, unseen, options)
    assert (found["counted_unseen"], found["known"]) == (2, 10)
    for prefix in run.THRESHOLDS.values():
        assert 0.5 < found[f"{prefix}least_coverage"] <= found[f"{prefix}unseen_coverage"] <= 1
        assert 1 <= found[f"{prefix}size"] <= 2
    changed = [(p, y if k else np.concatenate([y[:200], 1 - y[200:]])) for k, (p, y) in enumerate(unseen)]
    other = run.counts(held_out, known, changed, options)
    assert other["many_size"] == found["many_size"] and other["least_coverage"] != found["least_coverage"]


def test_a_table_of_thresholds():
    rows = run.adapted_table([{"options": {"partition": "iid"}, **dict.fromkeys(KEYS, 0.9)}])
    assert len(rows) == 1 + len(run.THRESHOLDS) and rows[1] == ["iid", "of the federation", *["0.900"] * 3, "1"]
