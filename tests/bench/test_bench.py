"""Benchmarks from end to end: records, resumption, failures, and the best configuration of trials."""

import json
import pathlib
import re
import shutil

import pytest
import yaml

from tests.bench.plans import PLAN, heart, plan_of, records
from tests.kit import fails, interrupted, lines_of, refusal, refuses
from tfp_bfl.app.cli import run_command_line
from tfp_bfl.app.one_run import datasets
from tfp_bfl.app.options.config import make_config
from tfp_bfl.bench import cell, program


def test_every_cell_is_run_once(tmp_path, stand_in, capsys):
    names = [x.name for x in program.cells_of(plan_of(tmp_path))]
    assert names[:4] == ["a/tuned/seed-0", "a/plain/seed-0", "b/tuned/seed-0", "b/plain/seed-0"]
    program.run_bench(plan_of(tmp_path), tmp_path / "out")
    finals = [task for what, task in stand_in if what == "final"]
    trials = [task for what, task in stand_in if what == "trial"]
    assert len(finals) == 8 and len(trials) == 2 * 3  # Of one of two methods, in two settings, whatever the seeds.
    assert {task.config.seed for task in trials} == {1000} and {task.config.seed for task in finals} == {0, 1}
    found = {(x["setting"], x["method"], x["seed"]): x for x in records(tmp_path / "out")}
    assert len(found) == 8
    for seed in (0, 1):  # Both seeds have the values of the same trials.
        chosen = found["a", "tuned", seed]["chosen"]["learning_rate"]
        assert chosen == found["a", "tuned", 0]["chosen"]["learning_rate"]
        assert found["a", "tuned", seed]["scores"]["test_nll"] == chosen and 0.01 <= chosen <= 0.1
        assert found["a", "tuned", seed]["cost"]["trial_seconds"] == 6.0
        assert found["b", "plain", seed]["failed"] == "The training diverged."
    assert "failed: The training diverged." in capsys.readouterr().out
    stand_in.clear()
    program.run_bench(plan_of(tmp_path), tmp_path / "out")
    assert not stand_in and "8 of 8 are done" in capsys.readouterr().out


def test_an_interrupted_benchmark_goes_on(tmp_path, stand_in, monkeypatch):
    whole = program.run_bench(plan_of(tmp_path), tmp_path / "whole").read_text()
    monkeypatch.setattr(cell, "run_final", interrupted(cell.run_final, 3))
    with pytest.raises(KeyboardInterrupt):
        program.run_bench(plan_of(tmp_path), tmp_path / "cut")
    assert len(records(tmp_path / "cut")) == 2  # What was done is on record.
    program.run_bench(plan_of(tmp_path), tmp_path / "cut")
    strip = lambda text: [{**json.loads(line), "cell_seconds": 0} for line in text.splitlines()]
    assert strip((tmp_path / "cut" / program.RECORDS).read_text()) == strip(whole)


def test_what_is_deleted_or_added_is_run(tmp_path, stand_in, capsys):
    out = tmp_path / "out"
    program.run_bench(plan_of(tmp_path), out)
    assert "The tables also have" not in capsys.readouterr().out
    shutil.rmtree(out / program.CELLS / "a" / "plain" / "seed-1")
    stand_in.clear()
    program.run_bench(plan_of(tmp_path), out)
    assert [(what, task.config.seed) for what, task in stand_in] == [("final", 1)] and len(records(out)) == 8
    stand_in.clear()
    more = {**PLAN["methods"], "third": {"rule": "linear_pool"}}
    program.run_bench(plan_of(tmp_path, methods=more, seeds="0..2"), out)
    assert [what for what, _ in stand_in] == ["final"] * (2 * 3 + 2 * 2) and len(records(out)) == 2 * 3 * 3
    program.run_bench(plan_of(tmp_path, methods={"plain": {}}), out)
    assert "The tables also have cells of an earlier file, such as a/third: delete" in capsys.readouterr().out


def test_a_copied_file_of_records_resumes(tmp_path, stand_in, monkeypatch):
    """With the cells and the choices of the trials; a cell that it does not have is run by the same choice."""
    whole = program.run_bench(plan_of(tmp_path), tmp_path / "out").read_text().splitlines()
    (tmp_path / "copy").mkdir()
    of = lambda line: tuple(json.loads(line)[name] for name in ("setting", "method", "seed"))
    kept = [line for line in whole if of(line) != ("a", "tuned", 1)]
    assert len(kept) == len(whole) - 1
    (tmp_path / "copy" / program.RECORDS).write_text("".join(line + "\n" for line in kept))
    stand_in.clear()
    monkeypatch.chdir(tmp_path)  # A relative folder, as users give it.
    program.run_bench(plan_of(tmp_path), pathlib.Path("copy"))
    ((what, task),) = stand_in
    assert what == "final" and (task.config.rounds, task.config.seed) == (2, 1)
    chosen = {(x["setting"], x["seed"]): x["chosen"] for x in records(tmp_path / "copy") if x["method"] == "tuned"}
    assert chosen["a", 1] == chosen["a", 0] and len(records(tmp_path / "copy")) == 8


@pytest.mark.parametrize("only", ["", "a/plain"])
def test_other_options_are_refused_also_for_a_part_of_the_cells(tmp_path, stand_in, only):
    """Else one table would have methods with other shares that are held out, or other numbers of trials."""
    program.run_bench(plan_of(tmp_path), tmp_path / "out", only="a/tuned")
    before = sorted(tmp_path.rglob("*"))
    stand_in.clear()
    changes = {"trials": (4, "trials 3, now 4"), "hold_out": (0.5, "hold_out 0.2, now 0.5"), "options": ({}, "engine")}
    for name, (value, words) in changes.items():
        plan = plan_of(tmp_path, **{name: value})
        refuses(f"a/tuned/seed-0 is of other options .{words}", program.run_bench, plan, tmp_path / "out", only=only)
    assert not stand_in and sorted(tmp_path.rglob("*")) == before


def test_trials_of_other_options_are_refused(tmp_path, stand_in, monkeypatch):
    """Interrupted after the trials and before the first cell, and then another number of rounds."""
    monkeypatch.setattr(cell, "run_final", interrupted(cell.run_final, 1))
    with pytest.raises(KeyboardInterrupt):
        program.run_bench(plan_of(tmp_path), tmp_path / "out")
    stand_in.clear()
    settings = {"a": {**PLAN["settings"]["a"], "rounds": 4}}
    refuses("tuning has trials of other op", program.run_bench, plan_of(tmp_path, settings=settings), tmp_path / "out")
    assert not stand_in


@pytest.mark.parametrize("fault", [MemoryError("full"), OSError(28, "No space left"), TypeError("a program's fault")])
def test_a_fault_of_the_machine_is_no_result(tmp_path, stand_in, monkeypatch, fault):
    final = cell.run_final

    def faulty(task):
        if task.config.algorithm == "default":
            raise fault
        return final(task)

    monkeypatch.setattr(cell, "run_final", faulty)
    fails("4 of 8 failed", program.run_bench, plan_of(tmp_path), tmp_path / "out")
    assert {x["method"] for x in records(tmp_path / "out")} == {"tuned"}
    monkeypatch.setattr(cell, "run_final", final)
    program.run_bench(plan_of(tmp_path), tmp_path / "out")
    assert len(records(tmp_path / "out")) == 8


def test_methods_that_cannot_serve_a_setting_have_no_cells(tmp_path, stand_in, capsys):
    settings = {"numbers": {"dataset": "diabetes", "model": "mlp"}}
    methods = {"plain": {}, "personal": {"algorithm": "meta_learning"}, "of_classes": {"algorithm": "fed_be"}}
    methods["pretrained"] = {"pretrain_share": 0.1}
    program.run_bench(plan_of(tmp_path, settings=settings, methods=methods), tmp_path / "out")
    said, serves = capsys.readouterr().out, "does not serve numbers:"
    assert f"personal {serves} meta_learning has personal models" in said
    assert f"of_classes {serves} fed_be is of c" in said and f"pretrained {serves} pretrain_share is of c" in said
    assert [x["method"] for x in records(tmp_path / "out")] == ["plain", "plain"]


DIABETIC = {"n": {"dataset": "diabetes", "model": "mlp"}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"score": "rmse"}, "score is rmse, but the labels of the setting 'a' are classes"),
        ({"settings": DIABETIC, "score": "accuracy"}, "setting 'n' are numbers"),
        ({"settings": {"a": {"dataset": "digits", "ood": "no_such_set"}}}, "no_such_set"),
        ({"settings": {"a": {"dataset": "none.csv"}}}, "none.csv"),
        ({"settings": {"a": {"dataset": "digits", "ood": "breast_cancer"}}}, "name a dataset of that form"),
        # The hospitals of heart disease are four.
        (heart(cohort_size=9), "The method 'tuned' in the setting 'h': cohort_size is 9, but must be at most the num"),
        (heart(clients=7), "The method 'tuned' in the setting 'h': clients is 7, but heart_disease names 4"),
        (heart(examples_per_client=1), "setting 'h': A share of 0.2 of each client's examples is none"),
        ({**heart(), "hold_out": 0.0001}, "A share of 0.0001 of each client's examples is none: hold out a larger"),
        ({**heart(), "methods": {"m": {"tuned": {"cohort_size": "2..9"}}}}, "in the setting 'h': cohort_size is 9"),
        # A network of images, which tables are not.
        (heart(model="lenet"), "The method 'tuned' in the setting 'h': lenet takes images [height, width, channels]"),
        ({**heart(model="mlp"), "methods": {"m": {"tuned": {"model": ["mlp", "conv_net"]}}}}, "conv_net takes images"),
        # No method is left.
        ({"settings": DIABETIC, "methods": {"m": {"algorithm": "fed_be"}}}, "no cell to run: m does not"),
    ],
)
def test_what_does_not_fit_the_data_is_refused_before_any_work(tmp_path, stand_in, changes, message):
    refuses(re.escape(message), lambda: program.run_bench(plan_of(tmp_path, **changes), tmp_path / "out"))
    assert not stand_in and not (tmp_path / "out").exists()


def test_a_part_of_the_cells(tmp_path, stand_in, capsys):
    program.run_bench(plan_of(tmp_path), tmp_path / "out", only="a/plain/seed-1")
    assert [(task.config.rounds, task.config.seed) for _, task in stand_in] == [(2, 1)]
    refuses("No cell's name contains 'c/'", program.run_bench, plan_of(tmp_path), tmp_path / "out", only="c/")
    program.run_bench(plan_of(tmp_path), tmp_path / "out", listed=True)
    listed = capsys.readouterr().out
    assert "done  a/plain/seed-1\n" in listed and "      a/plain/seed-0\n" in listed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.yaml", "--output", "o"], "missing.yaml"),
        (["bench.yaml"], "give --output one"),
        (["bench.yaml", "--output", "o", "--jobs", "0"], "'--jobs': 0 is not in the range"),
        (["bench.yaml", "--list", "--jobs", "2"], "--list runs nothing: leave --jobs out"),
        (["bench.yaml", "--output", "bench.yaml"], "is no folder of a benchmark"),
        (["bench.yaml", "--output", "other"], "is no folder of a benchmark"),
    ],
)
def test_refusals_of_the_command(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    plan_of(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("mine")
    assert message in refusal(capsys, "bench", *arguments)
    assert not (tmp_path / "o").exists() and (tmp_path / "other" / "mine.txt").read_text() == "mine"


def test_tune_writes_the_best_configuration(tmp_path, monkeypatch, stand_in, capsys):
    monkeypatch.chdir(tmp_path)
    command = ["tune", "--space", "learning-rate=0.01..0.1 log", "--trials", "6", "--rounds", "2", "--output", "t"]
    assert run_command_line(command) == 0
    best = yaml.safe_load((tmp_path / "t" / "best.yaml").read_text())
    rows = lines_of(tmp_path / "t" / "trials.jsonl")
    least = min(rows, key=lambda row: row["scores"]["test_nll"])
    assert best["learning_rate"] == least["values"]["learning_rate"] and best["rounds"] == 2
    assert f"has nll {least['scores']['test_nll']:.4f} on held-out" in capsys.readouterr().out
    stand_in.clear()
    assert run_command_line(command) == 0 and not stand_in


def test_the_best_configuration_has_the_clients_of_its_data(tmp_path, monkeypatch, stand_in):
    monkeypatch.chdir(tmp_path)
    space = ["--space", "learning-rate=0.01..0.1 log", "--trials", "2", "--rounds", "2"]
    assert run_command_line(["tune", *space, "--dataset", "heart_disease", "--output", "t"]) == 0
    best = make_config("t/best.yaml", {})
    assert datasets.with_clients(best, datasets.load(best)).clients == 4


def test_tune_names_code_in_the_command_that_it_recommends(tmp_path, monkeypatch, stand_in, capsys):
    """`tfp-bfl run --config` runs only code that the command names."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("import tfp_bfl as bfl\n\n\ndef pool():\n    return bfl.rules.linear_pool()\n")
    space = ["--space", "learning-rate=0.01..0.1 log", "--trials", "2", "--rounds", "2"]
    assert run_command_line(["tune", *space, "--rule", "mine.py:pool", "--engine", "local", "--output", "t"]) == 0
    assert capsys.readouterr().out.endswith("tfp-bfl run --config t/best.yaml --rule mine.py:pool\n")


HEART, DIABETES = ("--dataset", "heart_disease"), ("--dataset", "diabetes", "--model", "mlp")
RATE = ("--space", "learning-rate=0.01..0.1 log", "--rounds", "2")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "There is nothing to tune: give --space"),
        (["--space", "learning-rate"], "--space is 'learning-rate', but must be such as"),
        (["--space", "learning-rte=1..2"], "There is no option 'learning_rte'"),
        (["--space", "seed=1..2"], "--space is of seed, which is not tuned"),
        (["--space", "dataset=digits,heart_disease"], "--space is of dataset, which is not tuned"),
        (["--space", "rounds=1..2", "--space", "rounds=1..2"], "--space names rounds twice"),
        (["--space", "rounds=1..2", "--rounds", "2"], "rounds is given and tuned"),
        (["--space", "momentum=0.1..1.5", "--algorithm", "fed_opt"], "momentum is 1.5"),
        (["--share", "1"], "'--share': 1.0 is not in the range"),
        (["--score", "loss"], "'--score': 'loss' is not one of"),
        (["--trials", "none"], "'--trials': 'none' is not a valid integer"),
        # What does not fit the data.
        ([*RATE, *HEART, "--score", "rmse"], "score is rmse, but the labels are classes: use nll"),
        ([*RATE, *DIABETES, "--score", "accuracy"], "score is accuracy, but the labels are n"),
        ([*RATE, *DIABETES, "--algorithm", "fed_be"], "fed_be is of classification"),
        ([*RATE, *HEART, "--share", "0.0001"], "A share of 0.0001 of each client's examples is none"),
        ([*RATE, *HEART, "--clients", "7"], "clients is 7, but heart_disease names 4"),
        ([*RATE, *HEART, "--space", "cohort-size=2..9"], "cohort_size is 9, but must be at most"),
        ([*RATE, *HEART, "--model", "lenet"], "lenet takes images [height, width, channels]"),
    ],
)
def test_tune_refuses_before_any_work(tmp_path, monkeypatch, stand_in, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert message in refusal(capsys, "tune", "--output", "t", *arguments)
    assert not stand_in and not (tmp_path / "t").exists()


REAL = {
    "seeds": "0",
    "trials": 2,
    "options": {"engine": "local", "num_samples": 5},
    "settings": {
        "heart": {"dataset": "heart_disease", "rounds": 2, "local_epochs": 1},
        "diabetes": {"dataset": "diabetes", "model": "mlp", "clients": 3, "rounds": 2, "local_epochs": 1},
    },
    "methods": {
        "fed_avg": {"algorithm": "fed_opt", "kind": "deterministic", "tuned": {"learning_rate": "0.01..0.1 log"}},
        "variational": {"algorithm": "variational"},
        "head": {"algorithm": "last_layer", "start": {"algorithm": "fed_opt", "kind": "mc_dropout"}},
        "laplace": {"algorithm": "laplace", "start": {"algorithm": "fed_opt", "kind": "deterministic"}},
        "reptile": {"algorithm": "meta_learning", "learner": "plain"},
    },
}


@pytest.mark.deep(after="tests/bench/test_bench.py")
def test_a_reduced_benchmark(tmp_path):
    """Two real settings by five methods: every record has the scores of its task, and none has the label's."""
    path = tmp_path / "bench.yaml"
    path.write_text(yaml.safe_dump(REAL, sort_keys=False))
    assert run_command_line(["bench", str(path), "--output", str(tmp_path / "out")]) == 0
    found = {(x["setting"], x["method"]): x for x in records(tmp_path / "out")}
    sound = {key: x for key, x in found.items() if "failed" not in x}
    assert len(sound) == len(found) == 9 and ("diabetes", "reptile") not in found  # Personal models are of classes.
    for (setting, method), record in sound.items():
        scores, cost = record["scores"], record["cost"]
        shared = {"test_nll", "coverage"} | (
            {"accuracy", "fitted_test_nll"} if setting == "heart" else {"rmse", "crps"}
        )
        assert shared <= set(scores), (setting, method)
        assert 0.5 < scores.get("accuracy", 0.6) < 1 and scores["test_nll"] < (0.75 if setting == "heart" else 7)
        assert cost["upload_mb"] > 0 and cost["cpu_seconds"] > 0
        assert len(record["rounds"]) == (2 if method in ("fed_avg", "variational") else 1)
        assert record["rounds"][-1]["test_nll"] == scores["test_nll"]
        assert record["rounds"][-1]["mb"] == pytest.approx(cost["upload_mb"] + cost["download_mb"])
    heart = {method: sound["heart", method]["cost"] for method in ("fed_avg", "variational", "head", "laplace")}
    # A variational weight is two numbers; the sums of a last layer are further messages.
    ratio = heart["variational"]["upload_mb"] / heart["fed_avg"]["upload_mb"]
    assert 1.9 < ratio < 2.1
    # Four clients send matrix and gradient of 66 weights, and three numbers: in float64 ten times, in float32 once.
    more = lambda method: (heart[method]["upload_mb"] - heart["fed_avg"]["upload_mb"]) * 2**20
    assert more("head") == pytest.approx(10 * 4 * ((66**2 + 66) * 8 + 16))
    for method in ("head", "laplace"):  # The default temperature: 0.01 for classes, 1 for regression.
        assert sound["heart", method]["about"]["posterior_temperature"] == 0.01
        assert sound["diabetes", method]["about"]["posterior_temperature"] == 1
    assert more("laplace") == pytest.approx(4 * ((66**2 + 66) * 4 + 12))
    assert "permuted_test_nll" in sound["heart", "variational"]["scores"]
    assert (tmp_path / "out" / "results.md").is_file() and (tmp_path / "out" / "index.html").is_file()
