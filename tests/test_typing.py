"""A user's own program sees this library's types (`py.typed`), and a wrong one is an error."""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
PROGRAM = """
import tfp_bfl as bfl

rule = bfl.rules.conflation()
reveal_type(rule)
train = bfl.data.load("digits")
reveal_type(train.partition(bfl.data.iid(num_clients=3), seed=0))
reveal_type(bfl.simulate)
bfl.data.load(3)
bfl.rules.conflaton()
"""


@pytest.mark.deep(after="tests/test_architecture.py")
def test_a_users_program_is_checked(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    # By PYTHONPATH mypy finds the library as an installed package, whose types count only with py.typed.
    finished = subprocess.run(
        [sys.executable, "-m", "mypy", "--ignore-missing-imports", "--follow-imports=silent", "program.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    said = {int(line.split(":")[1]): line for line in finished.stdout.splitlines() if line.startswith("program.py")}
    assert set(said) == {5, 7, 8, 9, 10}, finished.stdout + finished.stderr
    assert "tfp_bfl.contracts.Rule" in said[5] and "tfp_bfl.data.clients.Clients" in said[7]
    assert "rounds: int" in said[8] and "SimulationResult" in said[8]
    assert 'incompatible type "int"; expected "str"' in said[9]
    assert 'no attribute "conflaton"' in said[10]
