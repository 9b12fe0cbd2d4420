"""A run that is killed again and again, and resumed, ends with the same bits as one that never was."""

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path

import numpy as np
import psutil
import pytest

pytestmark = pytest.mark.deep(after="tests/federated/test_checkpoints.py")

pytest.importorskip("tensorflow_federated")

ROOT = Path(__file__).parents[2]
KILLS = 3


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder, mark = tmp_path_factory.mktemp("runs"), uuid.uuid4().hex
    program = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("killed.py")), str(folder), str(KILLS), "0"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TFP_BFL_TEST": mark},
        timeout=600,
        check=False,
    )
    assert program.returncode == 0, program.stderr
    return folder, json.loads(program.stdout.splitlines()[-1]), mark


def test_every_kill_came_in_the_middle(runs):
    """At the start, between rounds, and while a checkpoint was being written, which left half of one."""
    kills = runs[1]["kills"]
    assert len(kills) == KILLS and {kill["moment"] for kill in kills} == {"start", "round", "writing"}
    assert all(kill["half_written"] for kill in kills if kill["moment"] == "writing")
    assert max(kill["round"] for kill in kills) < 30


def test_weights_and_metrics_are_identical_bit_for_bit(runs):
    folder, told, _ = runs
    assert told["status"] == 0
    with np.load(folder / "whole" / "weights.npz") as whole, np.load(folder / "killed" / "weights.npz") as killed:
        assert whole.files == killed.files and len(whole.files) > 5
        for name in whole.files:
            assert whole[name].tobytes() == killed[name].tobytes()
    texts = [(folder / name / "rows.json").read_text() for name in ("whole", "killed")]
    assert texts[0] == texts[1]
    assert len({row["score"] for row in json.loads(texts[0])}) == len(json.loads(texts[0])) == 30


def test_nothing_is_left(runs):
    """Neither processes nor half-written files."""
    folder, _, mark = runs
    states = folder / "killed" / "states"
    assert sorted(path.stem for path in states.glob("*.sha256")) == ["round_28", "round_29", "round_30"]
    assert len(list(states.iterdir())) == 12
    assert not [p for p in psutil.process_iter() if marked(p, mark)]


def marked(process, mark):
    try:
        return process.environ().get("TFP_BFL_TEST") == mark
    except psutil.Error:
        return False
