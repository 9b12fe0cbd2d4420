"""The study of prediction sets on unseen clients: its cells and its table."""

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
