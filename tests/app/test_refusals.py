"""Refusals that need no TensorFlow come before it is imported."""

import json
import os
import subprocess
import sys

from tfp_bfl.sites.deployment.kits import ADMIN, SERVER
from tfp_bfl.sites.deployment.party_file import FILE

# Run in one interpreter, as a start of one takes longer than a refusal.
_PROGRAM = """
import json, sys
from tfp_bfl.app.cli import run_command_line
found = [[run_command_line(arguments), "tensorflow" in sys.modules] for arguments in json.loads(sys.argv[1])]
print(json.dumps(found))
"""
REFUSED = [
    ["run", "--output", "there"],
    ["run", "--resume", "nosuch"],
    ["run", "--resume", "complete"],
    ["run", "--seeds", "0..2", "--seed", "1"],
    ["run", "--dataset", "text.csv"],
    ["run", "--dataset", "text.csv", "--label", "nosuch"],
    ["run", "--dataset", "nosuch.csv"],
    ["run", "--dataset", "text.csv", "--drop", "age", "--partition", "iid", "--clients", "99"],
    ["sweep", "--vary", "rul=linear_pool", "--output", "new"],
    ["sweep", "--dataset", "text.csv", "--output", "new"],
    ["report", "nosuch"],
    ["runs", "nosuch"],
    ["predict", "nosuch", "scan.png"],
    ["export", "nosuch", "new"],
    ["export", "complete", "there"],
    ["export", "complete", "there/file", "--tflite"],
    ["calibrate", "nosuch", "new"],
    ["laplace", "nosuch", "--output", "new"],
    ["laplace", "complete", "--output", "there"],
    ["clients", "show", "nosuch"],
    ["clients", "remove", "nosuch", "1", "--output", "new"],
    ["deploy", "init", "there", "--host", "fl.example.org", "--site", "North"],
    ["deploy", "check", "nosuch"],
    ["deploy", "check", "server"],
    ["deploy", "check", "empty"],
    ["deploy", "check", "misspelt"],
    ["deploy", "check", "lost"],
    ["deploy", "start", "nosuch"],
    ["deploy", "start", "admin"],
    ["deploy", "run", "nosuch", "--name", "first", "--output", "new"],
    ["deploy", "run", "admin", "--name", "first", "--output", "there"],
    ["deploy", "run", "admin", "--name", "first", "--rule", "nosuch", "--output", "new"],
    ["deploy", "demo", "--output", "there"],
]
# Kits of sites that can't take part, and the line in each one's file.
SITES = {"empty": "", "misspelt": "data: text.csv\nrulse: []\n", "lost": "data: nosuch.csv\n"}


def test_bad_arguments_are_refused_before_tensorflow_is_imported(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").write_text("something")
    (tmp_path / "complete" / "saved_model").mkdir(parents=True)
    for file in ("config.yaml", "summary.json", "saved_model/saved_model.pb"):
        (tmp_path / "complete" / file).write_text("{}")
    rows = "".join(f"{i},{'low' if i else 'none'},{'sick' if i % 2 else 'well'}\n" for i in range(40))
    rows += "unknown,low,well\n"
    (tmp_path / "text.csv").write_text("age,dose,label\n" + rows)
    for kit, role in (("admin", ADMIN), ("server", SERVER), *((kit, "party") for kit in SITES)):
        (tmp_path / kit / "local").mkdir(parents=True)
        (tmp_path / kit / "tfp_bfl.json").write_text(json.dumps({"role": role, "name": kit, "host": "localhost"}))
    for kit, line in SITES.items():
        (tmp_path / kit / "local" / FILE).write_text(line)
    command = [sys.executable, "-c", _PROGRAM, json.dumps(REFUSED)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert [*zip(REFUSED, json.loads(done.stdout))] == [(arguments, [2, False]) for arguments in REFUSED]
    assert len(done.stderr.splitlines()) == len(REFUSED) and "Traceback" not in done.stderr
    assert not (tmp_path / "new").exists()


def test_strange_folders_do_not_keep_runs_from_being_listed(tmp_path):
    from tfp_bfl.bench.runs import described

    for name in ("deep", "pipe", "text", "empty"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text("rounds: 3\n")
    (tmp_path / "deep" / "summary.json").write_text("[" * 100_000)
    (tmp_path / "text" / "summary.json").write_text('{"accuracy": "high"}')
    for name in ("summary.json", "metrics.jsonl"):
        os.mkfifo(tmp_path / "pipe" / name)
    os.mkfifo(tmp_path / "empty" / "metrics.jsonl")
    assert [run.run for run in described(tmp_path)] == ["deep", "empty", "pipe", "text"]
