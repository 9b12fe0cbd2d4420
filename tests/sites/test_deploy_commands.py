"""Commands of `tfp-bfl deploy` that end before a federation starts."""

import os

import pytest

from tfp_bfl.app.cli import run_command_line
from tfp_bfl.sites.deployment import kits


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["init", "kits", "--host", "a b", "--site", "north"], "no host"),
        (["init", "kits", "--host", "h", "--site", "North!"], "no name of a site"),
        (["init", "kits", "--host", "h", "--site", "a", "--site", "a"], "each site once"),
        (["init", "kits", "--host", "h"], "at least one site"),
        (["start", "kits"], "no folder that tfp-bfl deploy init wrote"),
        (["check", "kits"], "no folder that tfp-bfl deploy init wrote"),
        (["run", "kits", "--name", "a", "--output", "o"], "no folder that tfp-bfl deploy init wrote"),
    ],
)
def test_bad_commands_are_one_sentence_and_write_nothing(tmp_path, monkeypatch, capsys, command, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(kits, "check_installed", lambda: None)
    monkeypatch.setattr("tfp_bfl.sites.deployment.submit.check_installed", lambda: None)
    assert run_command_line(["deploy", *command]) == 2
    assert message in capsys.readouterr().err and not os.listdir(tmp_path)


def test_without_flare_it_says_how_to_install_it(tmp_path, capsys):
    pytest.importorskip("tensorflow_federated")  # beside which FLARE can't be
    assert run_command_line(["deploy", "demo", "--output", str(tmp_path / "demo")]) == 1
    assert "make deployment" in capsys.readouterr().err
