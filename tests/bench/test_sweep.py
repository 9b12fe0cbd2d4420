"""Many runs: which they are, what is refused, what they come to, and how they go on."""

import csv
import re
import sys

import numpy as np
import pytest
import yaml

import tfp_bfl as bfl
from tests.kit import refusal, refuses, summary_of
from tfp_bfl.app.cli import run_command_line
from tfp_bfl.app.options.config import make_config
from tfp_bfl.bench import run_tables, runs, sweep
from tfp_bfl.errors import InvalidArgument

SMALL = (
    *("--dataset", "breast_cancer", "--model", "mlp", "--kind", "deterministic", "--clients", "2"),
    *("--partition", "iid", "--rounds", "2", "--local-epochs", "1", "--engine", "local"),
)


# The step of the first algorithm takes another structure than its rule gives.
CODE = """
import tfp_bfl as bfl

def clash(model_fn):
    work, step = bfl.clients.variational(model_fn), bfl.servers.keep_gaussian()
    return bfl.algorithms.compose(model_fn, work, "conflation", step)

def average(model_fn, **options):
    return bfl.algorithms.fed_opt(model_fn, **options)

def tempered():
    return bfl.rules.linear_pool()._replace(name="tempered")

def small(input_shape, num_classes):
    return bfl.models.mlp("flipout", input_shape, num_classes, hidden=(4,))
"""


@pytest.mark.parametrize(
    ("text", "seeds"), [("0..4", [0, 1, 2, 3, 4]), ("7", [7]), ("0,2", [0, 2]), ("0..1, 10..11", [0, 1, 10, 11])]
)
def test_seeds(text, seeds):
    assert sweep.parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "a", "4..0", "0...4", "-1", "0..1,1", "1e3", "0..99999999", "٣", "0-4"])
def test_what_are_no_seeds(text):
    refuses("seeds is", sweep.parse_seeds, text)


@pytest.mark.parametrize(
    ("items", "groups"),
    [
        ([], [{}]),
        (
            ["rule=linear_pool,b", "--local-epochs= 1 , 5", "variational-layers=dense,a;all"],
            [{"rule": ["linear_pool", "b"], "local_epochs": ["1", "5"], "variational_layers": ["dense,a", "all"]}],
        ),
        (
            ["rule=a,b or algorithm=fed_opt,fed_prox kind=deterministic"],
            [{"rule": ["a", "b"]}, {"algorithm": ["fed_opt", "fed_prox"], "kind": ["deterministic"]}],
        ),
        (
            ["rule=a or --algorithm = fed_prox proximal=0.1 , 1", "local-epochs=1,5"],
            [
                {"rule": ["a"], "local_epochs": ["1", "5"]},
                {"algorithm": ["fed_prox"], "proximal": ["0.1", "1"], "local_epochs": ["1", "5"]},
            ],
        ),
        (["model=this or that.py:f or model=mlp"], [{"model": ["this or that.py:f"]}, {"model": ["mlp"]}]),
        (["rounds=1 or rounds=2", "rule=a or rule=b"], [{"rounds": [x], "rule": [y]} for x in "12" for y in "ab"]),
    ],
)
def test_what_is_varied(items, groups):
    assert sweep.parse_varied(items) == groups


def test_three_rules_and_three_algorithms_are_six_runs():
    """Each algorithm has options of its own, which a product of all would refuse."""
    items = [
        "rule=linear_pool,conflation,log_linear_pool or algorithm=fed_opt,scaffold or algorithm=fed_prox proximal=1"
    ]
    cells = sweep.make_cells(None, {"rounds": 2}, sweep.parse_varied(items), [0, 1])
    assert len(cells) == 12 and all(config.rounds == 2 for config in cells.values())
    assert list(cells)[::2][2:4] == ["rule=log_linear_pool,seed=0", "algorithm=fed_opt,seed=0"]
    assert cells["algorithm=fed_prox,proximal=1,seed=1"].recorded()["proximal"] == 1.0


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ("rule", "must be such as rule=linear_pool,conflation"),
        ("rule=", "must be such as"),
        ("rule=a,,b", "must be such as"),
        ("seed=0,1", "give --seeds 0..4"),
        ("output=a,b", "give --output"),
        ("rul=a", "did you mean"),
        ("rounds=1,1", "names a value of rounds twice"),
        ("rule=a rule=b", "names rule twice"),
        ("rule=conflation or ruel=b", "did you mean 'rule'"),
    ],
)
def test_what_can_not_be_varied(item, words):
    refuses(re.escape(words), lambda: sweep.make_cells(None, {}, sweep.parse_varied([item]), [0]))


def test_every_combination_by_every_seed():
    varied = {"partition": ["iid", "dirichlet:0.5"], "rounds": ["2", "3"]}
    cells = sweep.make_cells(None, {"clients": 3}, [varied], [0, 1])
    assert len(cells) == 8 and all(config.clients == 3 for config in cells.values())
    assert cells["partition=dirichlet_0.5,rounds=3,seed=1"].recorded()["partition"] == "dirichlet:0.5"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--vary", "rule=linear_pool,nonsense"), "nonsense"),
        (("--vary", "rounds=2", "--rounds", "3"), "rounds is given and varied"),
        (("--seed", "1"), "There is no option '--seed': did you mean '--seeds'?"),
        (("--jobs", "0"), "'--jobs': 0 is not in the range"),
        (("--jobs", "two"), "'--jobs': 'two' is not a valid integer"),
        (("--progress", "bar"), "many runs report in lines"),
        (("--list", "--progress", "json"), "--list runs nothing: leave --progress out"),
        (("--list", "--jobs", "2"), "--list runs nothing: leave --jobs out"),
        (("--seeds", "5..1"), "must go up"),
        (("--vary", "rule=linear_pool or rule=linear_pool"), "would be the folder of two runs"),
        (("--vary", "rule=linear_pool or algorithm=fed_opt proximal=1"), "proximal is an option of"),
        (("--vary", "cohort-size=2,9", "--dataset", "heart_disease"), "cohort_size is 9, but must be at"),
        (("--vary", "model=mlp,lenet", "--dataset", "heart_disease"), "model=lenet,seed=0: lenet takes im"),
        (("--figures", "pdf,jpg"), "There is no format of figures 'jpg'"),
        (("--list", "--name", "A=seed=0"), "--list runs nothing: leave --name out"),
        (("--name", "A"), "There is no option 'A'"),
        (("--name", "A=rounds=60", "--name", "A=seed=0"), "--name names 'A' twice"),
        (("--vary", "rule=linear_pool,conflation", "--name", "A=rule=median"), "The row 'rule=median' does not exist"),
        (("--vary", "rule=linear_pool,conflation", "--name", "A=rounds=60"), "The row 'rounds=60' is 2 rows"),
        (("--name", "A=rounds=60", "--name", "B=seed=0"), "The row 'seed=0' does not exist"),
        (("--name", "A=rounds=60", "--name", "B=clients=10"), "must give each row one name"),
        (("--vary", "rule=linear_pool,nowhere.py:f"), "There is no file nowhere.py: give --rule FILE.py:FUNCTION"),
        (("--vary", "algorithm=fed_opt,{}:clash"), "rules.client_gaussian()"),
        (("--vary", "algorithm=fed_opt,{}:gone"), "There is no function 'gone' in"),
    ],
)
def test_bad_sweeps_are_refused_before_anything_is_written(tmp_path, capsys, options, words):
    code = tmp_path / "mine.py"
    code.write_text(CODE)
    options = [option.format(code) for option in options]
    assert words in refusal(capsys, "sweep", *options, "--output", str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()


def test_what_lists_runs_runs_nothing_and_a_sweep_needs_a_folder(tmp_path, capsys):
    output = str(tmp_path / "new")
    assert run_command_line(["sweep", "--vary", "rounds=2,3", "--list", "--output", output]) == 0
    assert capsys.readouterr().out.split() == ["rounds=2,seed=0", "rounds=3,seed=0"]
    assert not list(tmp_path.iterdir())
    assert "give --output one" in refusal(capsys, "sweep", "--seeds", "0..1")
    assert run_command_line(["runs", str(tmp_path)]) == 0
    assert "There is no run in" in capsys.readouterr().out
    assert "There is no folder" in refusal(capsys, "runs", str(tmp_path / "nowhere"))


@pytest.mark.parametrize("name", ["config.yaml", "report.html"])
def test_a_folder_of_a_run_or_of_something_else_is_left_as_it_is(tmp_path, capsys, name):
    (tmp_path / name).write_text("rounds: 2\n")
    assert "is no folder of a sweep" in refusal(capsys, "sweep", *SMALL, "--output", str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == [name] and (tmp_path / name).read_text() == "rounds: 2\n"


@pytest.mark.parametrize("dataset", ["fasion_mnist", "nowhere.csv"])
def test_missing_data_are_reported_before_any_run(tmp_path, capsys, dataset):
    assert run_command_line(["run", "--dataset", dataset, "--seeds", "0..2", "--output", str(tmp_path / "new")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1 and not list(tmp_path.iterdir())


def test_a_run_without_a_score_has_an_empty_cell(tmp_path, monkeypatch):
    summaries = {"a": {"accuracy": 0.5}, "b": {"accuracy": 0.6, "ece": 0.1}}
    configs = {name: make_config(None, {"seed": seed}) for seed, name in enumerate(summaries)}
    monkeypatch.setattr(runs.written, "read_record", lambda folder: (configs[folder.name], summaries[folder.name]))
    run_tables.write_tables([tmp_path / name for name in summaries], tmp_path)
    rows = list(csv.DictReader((tmp_path / "runs.csv").open()))
    assert [row["ece"] for row in rows] == ["", "0.1"] and [row["batch_size"] for row in rows] == ["32"] * 2


@pytest.mark.parametrize("has_pandas", [True, False])
def test_runs_load_as_one_table(tmp_path, monkeypatch, has_pandas):
    """Options and numbers are columns; a number with the name of an option stands beside it."""
    summaries = {"b": {"accuracy": 0.5, "rounds": 7, "text": "x"}, "a": {"accuracy": 0.6, "ece": 0.1, "rounds": 8}}
    configs = {name: make_config(None, {"seed": seed}) for seed, name in enumerate(summaries)}
    for name in (*summaries, "unfinished"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").touch()
    monkeypatch.setattr(runs.written, "is_done", lambda folder: folder.name in summaries)
    monkeypatch.setattr(runs.written, "read_record", lambda folder: (configs[folder.name], summaries[folder.name]))
    if not has_pandas:
        monkeypatch.setitem(sys.modules, "pandas", None)
    found = bfl.load_runs(tmp_path)
    assert type(found).__name__ == ("DataFrame" if has_pandas else "dict")
    column = lambda name: list(found[name])
    assert column("run") == ["a", "b"] and column("seed") == [1, 0] and column("algorithm") == ["default"] * 2
    assert column("accuracy") == [0.6, 0.5] and column("summary_rounds") == [8, 7] and column("rounds") == [60, 60]
    assert column("ece")[0] == 0.1 and np.isnan(column("ece")[1]) and "text" not in found
    with pytest.raises(InvalidArgument, match="There is no complete run in"):
        bfl.load_runs(tmp_path / "unfinished")
    with pytest.raises(InvalidArgument, match="folder must be the path of a folder that holds runs, and is None"):
        bfl.load_runs(None)


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweeps") / "rates"
    file = tmp_path_factory.mktemp("options") / "names.yaml"
    file.write_text("name: {Fast $: learning_rate=0.01}\n")
    options = ("--vary", "learning-rate=1e-5,1e-2", "--seeds", "0..1", "--config", str(file), "--output", str(folder))
    assert run_command_line(["sweep", *SMALL, *options]) == 0
    return folder, options


@pytest.mark.deep(after="tests/bench/test_sweep.py")
def test_tables_and_page(swept, capsys, tmp_path):
    """What it computes: a rate of 1e-2 learns, one of 1e-5 does not; the CSV holds the runs' own numbers."""
    folder, _ = swept
    rows = list(csv.DictReader((folder / "runs.csv").open()))
    assert [row["seed"] for row in rows] == ["0", "1", "0", "1"]
    for row in rows:
        summary = summary_of(folder / row["run"])
        assert float(row["accuracy"]) == summary["accuracy"] and float(row["test_nll"]) == summary["test_nll"]
    slow, fast = csv.DictReader((folder / "results.csv").open())
    assert slow["group"] == "learning_rate=1e-05" and slow["seeds"] == "2" and slow["accuracy_difference"] == ""
    mean = lambda name: sum(float(row[name]) for row in rows[2:]) / 2
    assert float(fast["test_nll_mean"]) == pytest.approx(mean("test_nll"))
    wanted = float(fast["test_nll_mean"]) - float(slow["test_nll_mean"])
    assert float(fast["test_nll_difference"]) == pytest.approx(wanted)
    assert fast["group"] == "Fast $" and {*bfl.load_runs(folder)["group"]} == {"learning_rate=1e-05", "Fast $"}
    assert r"\begin{tabular}{lrrr" in (folder / "results.tex").read_text()
    assert {x.name for x in (folder / "figures").iterdir()} == {f"learning_curve.{x}" for x in ("pdf", "png", "svg")}
    assert ">Fast $</text>" in (folder / "figures" / "learning_curve.svg").read_text()
    text = (folder / "report.html").read_text()
    assert "Results over seeds" in text and "Differences to learning_" in text
    assert run_command_line(["report", str(folder), "--output", str(tmp_path / "again.md")]) == 0
    assert (tmp_path / "again.md").read_text() == (folder / "results.md").read_text()
    assert run_command_line(["runs", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    assert len(lines) == 5 and lines[1].startswith("learning_rate=1e-5,seed=0  done")


@pytest.mark.deep(after="tests/bench/test_sweep.py")
def test_files_and_names_stand_in_one_table(tmp_path, capsys):
    code = tmp_path / "mine.py"
    code.write_text(CODE)
    varied = f"rule={code}:tempered,conflation kind=flipout or algorithm={code}:average,fed_opt or model={code}:small"
    command = ["sweep", *SMALL[:4], *SMALL[6:], "--vary", varied, "--output", str(tmp_path / "out")]
    assert run_command_line(command) == 0
    names = [row["group"] for row in csv.DictReader((tmp_path / "out" / "results.csv").open())]
    assert names == [
        "model=mlp, kind=flipout, rule=mine.py:tempered",
        "model=mlp, kind=flipout, rule=conflation",
        "algorithm=mine.py:average, model=mlp, kind=flipout",
        "algorithm=fed_opt, model=mlp, kind=deterministic",
        "algorithm=default, model=mine.py:small, kind=flipout",
    ]
    capsys.readouterr()
    assert run_command_line(command) == 0
    assert "5 of 5 are done" in capsys.readouterr().out


@pytest.mark.deep(after="tests/bench/test_sweep.py")
def test_the_same_command_goes_on_and_another_is_refused(swept, capsys):
    folder, options = swept
    (broken,) = folder.glob("learning_rate=1e-2,seed=1")
    summary = summary_of(broken)
    (broken / "summary.json").unlink()
    assert run_command_line(["runs", str(folder)]) == 0
    assert "interrupted after round 2/2" in capsys.readouterr().out
    times = {path: path.stat().st_mtime_ns for path in folder.glob("*/summary.json")}
    assert run_command_line(["sweep", *SMALL, *options]) == 0
    assert "3 of 4 are done." in capsys.readouterr().out
    assert all(path.stat().st_mtime_ns == time for path, time in times.items())
    again = summary_of(broken)
    assert [again[name] == summary[name] for name in ("accuracy", "test_nll")] == [True, True]
    assert "(batch_size 32, now 16)" in refusal(capsys, "sweep", *SMALL, *options, "--batch-size", "16")


@pytest.mark.deep(after="tests/bench/test_sweep.py")
def test_seeds_of_a_run(tmp_path, capsys):
    folder = tmp_path / "seeds"
    assert run_command_line(["run", *SMALL, "--seeds", "3,5", "--output", str(folder)]) == 0
    assert [yaml.safe_load(path.read_text())["seed"] for path in sorted(folder.glob("*/config.yaml"))] == [3, 5]
    assert "Mean ± standard deviation over 2 seeds" in capsys.readouterr().out
