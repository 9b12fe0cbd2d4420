"""`tfp-bfl doctor`: what it finds, and its exit status."""

from importlib import metadata

import pytest
from rich.console import Console

from tfp_bfl.app import doctor
from tfp_bfl.app.cli import run_command_line


def test_all_is_well_here(capsys):
    assert run_command_line(["doctor"]) == 0
    assert capsys.readouterr().out.count("ok") >= 5


@pytest.mark.parametrize("version", ["1.2.0", None])
def test_a_wrong_version_is_named_and_fails(version, monkeypatch, capsys):
    found = metadata.version

    def other(name):
        if name != "numpy":
            return found(name)
        if version is None:
            raise metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(doctor.metadata, "version", other)
    monkeypatch.setattr(doctor, "_worker", lambda: "started")
    assert run_command_line(["doctor"]) == 1
    (failed,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("FAIL")]
    assert failed.startswith(f"FAIL packages: numpy is {version or 'missing'}, not ") and "install" in failed


def test_too_little_memory_fails(monkeypatch):
    monkeypatch.setattr(doctor, "_worker", lambda: "started")
    assert doctor.examine(Console(quiet=True))
    monkeypatch.setattr(doctor, "_LEAST_GIB", 10**6)
    assert not doctor.examine(Console(quiet=True))
