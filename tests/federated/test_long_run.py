"""A run of 300 rounds with cohorts of changing sizes holds no more memory at its end than after 50, and traces once."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.deep(after="tests/engines/test_workers.py"), pytest.mark.long]

pytest.importorskip("tensorflow_federated")

ROOT = Path(__file__).parents[2]


def test_a_long_run_does_not_grow(tmp_path):
    """In a process of its own: what other tests leave behind would come and go."""
    told = tmp_path / "memory.json"
    program = [sys.executable, str(ROOT / "benchmarks" / "long_run.py"), "--output", str(told)]
    program += ["--checkpoints", str(tmp_path / "states")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"}
    subprocess.run(program, check=True, capture_output=True, env=environment, timeout=900)
    result = json.loads(told.read_text())
    assert len(result["driver_mb"]) == 300 and len(set(result["clients"])) > 5
    assert result["models_built_later"] == 0
    assert result["driver_growth"] < 0.05
    assert result["worker_growth"] < 0.05
