"""The main job on real images; each test is skipped where its dataset is not prepared for TFDS."""

import json

import pytest
import tensorflow_datasets as tfds

from tfp_bfl.app.cli import run_command_line

pytestmark = pytest.mark.deep(after="tests/app/test_cli.py")


def needs(name):
    prepared = tfds.builder(name).is_prepared()
    return pytest.mark.skipif(not prepared, reason=f"{name} is not prepared for TFDS on this machine")


def run(folder, *arguments):
    assert run_command_line(["run", *arguments, "--output", str(folder)]) == 0
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return rows, json.loads((folder / "summary.json").read_text())


@needs("fashion_mnist")
def test_lenet_learns_fashion_mnist(tmp_path):
    """Ten classes, so that chance is 0.1; 640 examples a client and three rounds reached 0.66 when written."""
    small = ["--rounds", "3", "--local-epochs", "1", "--examples-per-client", "640", "--num-samples", "5"]
    rows, summary = run(tmp_path / "run", "--dataset", "fashion_mnist", *small, "--evaluate-every", "3")
    assert summary["accuracy"] > 0.45
    assert rows[-1]["nll"] < rows[0]["nll"] < 2.4
    assert summary["ece"] < 0.3 and summary["epistemic"] > 0


@pytest.mark.long
@needs("cifar10")
def test_resnet20_takes_a_round_of_cifar10(tmp_path):
    arguments = "--dataset cifar10 --model resnet20 --kind flipout --rule weighted_conflation --partition dirichlet:0.5"
    small = "--clients 2 --rounds 2 --local-epochs 1 --examples-per-client 32 --num-samples 1 --evaluation-examples 64"
    rows, summary = run(tmp_path / "run", *arguments.split(), *small.split())
    assert rows[-1]["num_faulty"] == 0 and rows[-1]["nll"] < rows[0]["nll"]
    assert 0.05 < summary["accuracy"] < 0.6 and summary["worker_mb"] < 2500
