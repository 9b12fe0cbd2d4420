"""Folders of benchmarks and trials that are damaged, or copied in part: refused in a sentence, and nothing is lost."""

import concurrent.futures
import json
import pathlib
import time

import pytest

from tests.bench.plans import plan_of, records
from tests.kit import interrupted, refusal, refuses
from tfp_bfl.app.cli import run_command_line
from tfp_bfl.bench import cells, program, tuning
from tfp_bfl.errors import Error

TUNED, PLAIN = "a/tuned", "a/plain/seed-0"


def changed(line, **values):
    return json.dumps({**json.loads(line), **values})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda line: line[:50], "Line 8 of .*records.jsonl is not JSON: remove the line"),
        (lambda line: changed(line, seed="../../../../x"), "Line 8 .*: seed is .*, but must be a whole number"),
        (lambda line: changed(line, seed=True), "Line 8 .*: seed is True"),
        (lambda line: changed(line, seed=-1), "Line 8 .* is no record that a benchmark can resume from"),
        (lambda line: changed(line, setting=".."), "Line 8 .* is no record that a benchmark can resume from"),
        (lambda line: changed(line, options=None), "Line 8 .* is no record that a benchmark can resume from"),
        (lambda line: changed(line, options=5), "Line 8 .* is no record that a benchmark can resume from"),
        (lambda line: changed(line, tuning={"trials": 3}), "Line 8 .* is no record that a benchmark can resume from"),
        (lambda line: changed(line, tuning=7), "Line 8 .* is no record that a benchmark can resume from"),
        (lambda line: changed(line, scores={}, failed=None), "Line 8 .*: neither"),
    ],
)
def test_a_damaged_copy_of_records_is_refused_and_kept(tmp_path, stand_in, damage, message):
    whole = program.run_bench(plan_of(tmp_path), tmp_path / "out").read_text().splitlines()
    text = "\n".join([*whole[:-1], damage(whole[-1])]) + "\n"
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / program.RECORDS).write_text(text)
    stand_in.clear()
    refuses(message, program.run_bench, plan_of(tmp_path), tmp_path / "copy")
    assert [x.name for x in (tmp_path / "copy").iterdir()] == [program.RECORDS] and not stand_in
    assert (tmp_path / "copy" / program.RECORDS).read_text() == text


@pytest.mark.parametrize("change", [lambda lines: "\n\n".join(lines) + "\n", lambda lines: ""])
def test_blank_lines_and_no_records_are_no_damage(tmp_path, stand_in, change):
    whole = program.run_bench(plan_of(tmp_path), tmp_path / "out").read_text().splitlines()
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / program.RECORDS).write_text(change(whole))
    program.run_bench(plan_of(tmp_path), tmp_path / "copy")
    assert len(records(tmp_path / "copy")) == len(whole) == 8


def test_an_interrupted_restoration_loses_no_record(tmp_path, stand_in, monkeypatch):
    whole = program.run_bench(plan_of(tmp_path), tmp_path / "out").read_text()
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / program.RECORDS).write_text(whole)
    write = cells.write_whole
    monkeypatch.setattr(cells, "write_whole", interrupted(write, 5))
    with pytest.raises(KeyboardInterrupt):
        program.run_bench(plan_of(tmp_path), tmp_path / "copy")
    monkeypatch.setattr(cells, "write_whole", write)
    stand_in.clear()
    program.run_bench(plan_of(tmp_path), tmp_path / "copy")
    assert not stand_in and (tmp_path / "copy" / program.RECORDS).read_text() == whole
    assert sorted(x.name for x in (tmp_path / "copy").iterdir()) == [program.CELLS, program.RECORDS]


@pytest.mark.parametrize(
    ("file", "content"),
    [
        (f"{PLAIN}/summary.json", '{"options": {'),
        (f"{PLAIN}/summary.json", "[]"),
        (f"{PLAIN}/summary.json", "{}"),
        (f"{TUNED}/tuning/options.json", '{"a'),
        (f"{TUNED}/tuning/summary.json", '{"a'),
    ],
)
def test_a_damaged_file_of_a_cell_is_named(tmp_path, stand_in, capsys, file, content):
    program.run_bench(plan_of(tmp_path), tmp_path / "out")
    path = tmp_path / "out" / program.CELLS / file
    path.write_text(content)
    stand_in.clear()
    said = refusal(capsys, "bench", tmp_path / "bench.yaml", "--output", tmp_path / "out")
    assert f"{path.name} is damaged: delete the folder" in said and not stand_in


def test_two_processes_write_the_records_one_after_the_other(tmp_path, stand_in, monkeypatch):
    """Both write a draft of the same name and rename it."""
    program.run_bench(plan_of(tmp_path), tmp_path / "out")
    at_once, most, write = [], [], program.write_whole

    def slow(path, text):
        at_once.append(path)
        most.append(len(at_once))
        time.sleep(0.2)
        write(path, text)
        at_once.pop()

    monkeypatch.setattr(program, "write_whole", slow)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        list(pool.map(program.write_records, 3 * [tmp_path / "out"]))
    assert most == [1, 1, 1] and len(records(tmp_path / "out")) == 8


def test_lines_that_are_no_trials_are_run_again_and_long_reasons_keep_their_end(tmp_path):
    rows = [{"values": {}, "scores": {"test_nll": 1.0}}, 5]
    (tmp_path / tuning.TRIALS).write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert tuning.read_trials(tmp_path) == rows[:1]
    # Where advice stands.
    found = tuning.reason(Error("The training diverged: " + 100 * "client 5; " + "lower the learning rate."))
    assert found.endswith("lower the learning rate.") and found.startswith("The training diverged") and " ... " in found
    assert len(found) <= 300 and tuning.reason(Error("short")) == "short"


def test_the_locks_of_trials_are_in_their_folder(tmp_path, monkeypatch, stand_in):
    monkeypatch.chdir(tmp_path)
    space = ["--space", "learning-rate=0.01..0.1 log", "--trials", "2", "--rounds", "2"]
    assert run_command_line(["tune", *space, "--output", "t"]) == 0
    assert [x.name for x in pathlib.Path().iterdir()] == ["t"]
