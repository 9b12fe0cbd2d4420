"""The study of prediction sets on unseen clients: its cells and its table."""

import json
import shutil

from click.testing import CliRunner

from experiments.limits import run


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
    summary = {"options": options, "seconds": 1.0, **dict.fromkeys(run.COLUMNS.values(), 0.5)}
    (tmp_path / "cells" / name / "summary.json").write_text(json.dumps(summary))
    arguments = ["--output", str(tmp_path / "cells"), "--results", str(tmp_path / "results"), "--tables"]
    for _ in range(2):
        assert CliRunner().invoke(run.main, arguments).exit_code == 0
        assert (tmp_path / "results" / "sets.csv").read_text().splitlines()[1].startswith("iid,0.500,")
        shutil.rmtree(tmp_path / "cells", ignore_errors=True)
