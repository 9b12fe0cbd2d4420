"""Results of a file stand beside results of the same file only as long as nobody edits it."""

import json

import pytest

import tfp_bfl as bfl
from tests.bench.plans import PLAN, plan_of
from tests.kit import fails, refusal, refuses
from tfp_bfl.app.cli import run_command_line
from tfp_bfl.app.one_run import datasets
from tfp_bfl.bench import cell, program, sweep

DATA = {"label": "sick", "client_column": "site"}
MESSAGE = "ran on other data than its files hold now: restore the files, give another --output, or delete "


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "patients.csv"
    rows = [f"{age},{'yes' if age > 40 else 'no'},{'abc'[age % 3]}" for age in range(20, 80)]
    path.write_text("\n".join(["age,sick,site", *rows]) + "\n")
    return path


def edit(table):
    table.write_text(table.read_text().replace("\n21,no", "\n21,yes"))


@pytest.fixture
def plan(tmp_path, table):
    return plan_of(tmp_path, settings={"a": {"dataset": str(table), **DATA, "rounds": 2}}, seeds="0..1")


@pytest.fixture
def recording(stand_in, monkeypatch):
    """The stand-in for trainings, which records the digest as a training does."""
    final = cell.run_final

    def recorded(task):
        found = final(task)
        return found._replace(about={**found.about, "data": bfl.data.digest(datasets.load(task.config))})

    monkeypatch.setattr(cell, "run_final", recorded)
    return stand_in


def test_a_benchmark_of_an_edited_file_is_refused(tmp_path, table, plan, recording):
    program.run_bench(plan, tmp_path / "out", only="seed-0")
    before = table.read_text()
    edit(table)
    recording.clear()
    refuses(f"seed-0 {MESSAGE}.*cells/a to run all", program.run_bench, plan, tmp_path / "out")
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / program.RECORDS).write_text((tmp_path / "out" / program.RECORDS).read_text())
    refuses(MESSAGE, program.run_bench, plan, copy)
    assert not recording and sorted(path.name for path in copy.iterdir()) == [program.RECORDS]
    table.write_text(before)
    program.run_bench(plan, tmp_path / "out")
    assert len(recording) == 2


def test_a_file_that_is_edited_during_a_benchmark_is_reported(tmp_path, table, plan, recording, monkeypatch):
    final = cell.run_final

    def edited(task):
        edit(table)
        return final(task)

    monkeypatch.setattr(cell, "run_final", edited)
    refuses(MESSAGE, program.run_bench, plan, tmp_path / "out")


def test_trials_without_a_finished_cell_count(tmp_path, table, recording, monkeypatch):
    trial = cell.run_trial
    digest = lambda task: {"data": bfl.data.digest(datasets.load(task.config))}
    monkeypatch.setattr(cell, "run_trial", lambda task: trial(task)._replace(about=digest(task)))
    settings = {"a": {"dataset": str(table), **DATA, "rounds": 2}}
    plan = plan_of(tmp_path, settings=settings, seeds="0", methods={"tuned": PLAN["methods"]["tuned"]})
    monkeypatch.setattr(cell, "run_final", interrupted)
    fails("No space left", program.run_bench, plan, tmp_path / "out")
    edit(table)
    recording.clear()
    refuses(f"tuning {MESSAGE}.*cells/a to run all", program.run_bench, plan, tmp_path / "out")
    assert not recording


def interrupted(task):
    raise OSError("No space left on device")


def test_records_without_a_digest_are_not_compared(tmp_path, table, plan, stand_in):
    program.run_bench(plan, tmp_path / "out", only="seed-0")
    edit(table)
    program.run_bench(plan, tmp_path / "out")


def test_trials_of_an_edited_file_are_refused(tmp_path, table, monkeypatch, stand_in, capsys):
    monkeypatch.chdir(tmp_path)
    command = ["tune", "--space", "learning-rate=0.01..0.1 log", "--trials", "2", "--rounds", "2", "--output", "t"]
    command += ["--dataset", "patients.csv", "--label", "sick", "--client-column", "site"]
    assert run_command_line(command) == 0 and run_command_line(command) == 0
    edit(table)
    stand_in.clear()
    assert "t has trials of other options or data" in refusal(capsys, *command) and not stand_in


def test_a_sweep_of_an_edited_file_is_refused(tmp_path, table, monkeypatch):
    def run(folder, options, progress):
        config = sweep.make_config(None, options)
        folder.mkdir()
        (folder / "config.yaml").write_text(config.record())
        summary = {"accuracy": 1.0, "test_nll": 0.0, "seconds": 1.0, "data": bfl.data.digest(datasets.load(config))}
        (folder / "summary.json").write_text(json.dumps(summary))

    monkeypatch.setattr(sweep, "run_or_resume", run)
    monkeypatch.setattr("tfp_bfl.bench.reports.report", lambda *_: None)
    monkeypatch.setattr("tfp_bfl.bench.run_tables.write_tables", lambda *_: None)
    runs = lambda seeds: sweep.make_cells(None, {"dataset": str(table), **DATA, "rounds": 2}, [{}], seeds)
    sweep.sweep(runs([0]), tmp_path / "s")
    sweep.sweep(runs([0, 1]), tmp_path / "s")
    edit(table)
    refuses(f"seed=0 {MESSAGE}.*seed=0 to run all of it again", sweep.sweep, runs([0, 1, 2]), tmp_path / "s")
    assert not (tmp_path / "s" / "seed=2").exists()
