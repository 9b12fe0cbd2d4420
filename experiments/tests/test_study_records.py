"""What studies keep of their cells: the harness's records and paired differences."""

import json
import multiprocessing
import shutil

import click
import pytest

from experiments import records, tables
from experiments.cells import Study
from tfp_bfl.errors import InvalidArgument

EVERY = {f"cell {i}": {"rate": 0.1 * i, "sizes": (i, i)} for i in range(3)}


def study(folder):
    return Study("", False, False, 1, None, folder / "cells", folder / "results")


def done(folder, *names, score=0.5):
    for name in names:
        (folder / "cells" / name).mkdir(parents=True, exist_ok=True)
        summary = {"options": EVERY[name], "scores": [{"accuracy": score, "nll": None}], "long": [1] * 9}
        (folder / "cells" / name / "summary.json").write_text(json.dumps(summary))


def test_records_outlive_the_folders_of_cells(tmp_path):
    done(tmp_path, "cell 2", "cell 0")
    first = study(tmp_path).records(EVERY)
    assert list(first) == ["cell 0", "cell 2"] and first["cell 2"]["options"] == {"rate": 0.2, "sizes": [2, 2]}
    shutil.rmtree(tmp_path / "cells")
    done(tmp_path, "cell 1")
    then = study(tmp_path).records(EVERY)
    assert list(then) == list(EVERY) and then["cell 0"] == first["cell 0"]
    assert then["cell 0"]["scores"] == [{"accuracy": 0.5, "nll": None}]
    assert study(tmp_path).records({"cell 1": EVERY["cell 1"]}) == {"cell 1": then["cell 1"]}
    assert list(records.read_records(tmp_path / "results")) == list(EVERY)


def test_a_cell_run_anew_takes_the_place_of_its_record(tmp_path):
    done(tmp_path, "cell 1")
    study(tmp_path).records(EVERY)
    done(tmp_path, "cell 1", score=0.7)
    less = lambda folder: {"score": json.loads((folder / "summary.json").read_text())["scores"][0]["accuracy"]}
    assert study(tmp_path).records(EVERY, less)["cell 1"] == {"score": 0.7, "options": {"rate": 0.1, "sizes": [1, 1]}}


def test_records_of_other_options_are_refused_until_the_cell_is_run(tmp_path):
    done(tmp_path, "cell 0", "cell 1")
    study(tmp_path).records(EVERY)
    now = {**EVERY, "cell 1": {"rate": 0.3, "sizes": (1, 1)}}
    shutil.rmtree(tmp_path / "cells")
    done(tmp_path, "cell 2")
    with pytest.raises(InvalidArgument, match=r"holds cell 1 of other options \(rate 0.1, now 0.3\): run that cell"):
        study(tmp_path).records(now)
    # Complete cells are recorded all the same, and requests without that cell are reported.
    assert list(records.read_records(tmp_path / "results")) == list(EVERY)
    assert len(study(tmp_path).records({"cell 2": EVERY["cell 2"]})) == 1
    done(tmp_path, "cell 1")
    assert study(tmp_path).records(now)["cell 1"]["options"]["rate"] == 0.3


def test_missing_cells_are_those_without_a_record(tmp_path, capsys):
    done(tmp_path, "cell 1")
    study(tmp_path).records(EVERY)
    shutil.rmtree(tmp_path / "cells")
    ran = []
    work = lambda folder, options: (ran.append(folder.name), done(tmp_path, folder.name))
    missing = study(tmp_path)._replace(missing=True)
    missing._replace(listed=True).run(EVERY, work, str)
    assert capsys.readouterr().out.split("\n") == ["      cell 0", "      cell 2", ""] and not ran
    missing.run(EVERY, work, str)
    assert ran == ["cell 0", "cell 2"]
    missing.records(EVERY)
    missing.run(EVERY, work, str)
    assert len(ran) == 2 and capsys.readouterr().out.endswith("No cell is missing.\n")
    with pytest.raises(click.UsageError, match="No cell's name holds 'cll'"):
        missing._replace(only="cll").run(EVERY, work, str)


def _keep(folder, number):
    for i in range(20):
        records.keep_records(folder, {f"{number} {i}": {"x": i}}, {f"{number} {i}": {}})


def test_processes_at_one_file_lose_nothing(tmp_path):
    processes = [multiprocessing.get_context("fork").Process(target=_keep, args=(tmp_path, i)) for i in range(3)]
    [process.start() for process in processes]
    [process.join() for process in processes]
    assert len(records.read_records(tmp_path)) == 60 and [path.name for path in tmp_path.iterdir()] == ["records.jsonl"]


def test_numbers_have_twelve_digits(tmp_path):
    found = {"x": [{"y": 0.1234567890123}, 12345678], "z": float("nan")}
    kept = records.keep_records(tmp_path, {"a": found}, {"a": {}})["a"]
    assert kept["x"] == [{"y": 0.123456789012}, 12345678] and kept["z"] != kept["z"]
    assert (tmp_path / records.RECORDS).read_text() == (
        '{"name":"a","x":[{"y":0.123456789012},12345678],"z":NaN,"options":{}}\n'
    )


def test_paired_differences_are_over_the_seeds_of_both():
    told = tables.paired({0: 0.5, 1: 0.52, 2: 0.51, 7: 9.0}, {2: 0.41, 1: 0.41, 0: 0.4})
    assert told.number == 3 and told.is_conclusive and tables.interval(told, 2, 100) == "**+10.33 [+8.90, +11.77]**"
    assert tables.interval(tables.paired({0: 0.0, 1: 1.0}, {0: 0.4, 1: 0.4}), 1) == "+0.1 [-6.3, +6.5]"
    assert tables.interval(tables.paired({0: 1e-5, 1: 1e-5}, {0: 0.0, 1: 0.0})) == "+0.0000 [+0.0000, +0.0000]"
    assert tables.paired({0: 1.0, 1: 2.0}, {1: 1.0, 3: 1.0}) is None


@pytest.mark.parametrize(
    ("scores", "best"),
    [
        ((0.5, 0.2, 0.3), "cell 1"),
        ((0.5, float("nan"), 0.7), "cell 0"),
        ((float("inf"), -0.1, 0.0), "cell 1"),
        ((0.5, 0.2, None), None),
        ((0.5, 0.2), None),
        ((), None),
    ],
)
def test_the_best_trial_has_the_lowest_finite_score_and_there_is_none_before_all_have_one(scores, best):
    known = {f"cell {i}": {"nll": score} for i, score in enumerate(scores)}
    assert records.best_trial(EVERY, lambda record: record["nll"], known) == EVERY.get(best)
    assert records.best_trial({}, lambda record: record["nll"], known) is None


def test_a_trial_that_failed_is_the_worst():
    first, *others = EVERY
    known = {first: {"failed": "Diverged"}, **{name: {"nll": 1e9} for name in others}}
    assert records.best_trial(EVERY, lambda record: record["nll"], known) == list(EVERY.values())[1]
