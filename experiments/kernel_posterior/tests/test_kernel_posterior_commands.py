"""The commands of the kernel study for CIFAR-100 and EMNIST-62, from start to end on stand-ins in their format."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from tests.stand_ins import write_cifar100, write_femnist

ROOT = pathlib.Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("table", "options", "dataset", "network", "classes"),
    [
        ("pachinko", ("--cifar", "cifar100"), "cifar100", "image_network", 100),
        ("writers", ("--characters", "femnist"), "femnist", "character_network", 62),
    ],
)
@pytest.mark.deep(after="experiments/kernel_posterior/tests/test_kernel_posterior_study.py")
def test_a_command_finishes_its_rounds_on_a_stand_in_of_its_format(tmp_path, table, options, dataset, network, classes):
    """At the size "tiny", which changes numbers of clients, rounds and examples alone: readers and network are those of
    the size "full"."""
    if dataset == "cifar100":
        pytest.importorskip("tensorflow_datasets")
        write_cifar100(tmp_path, 800)
    else:
        pytest.importorskip("tensorflow_federated")
        write_femnist(tmp_path, 24, 20)
        options += ("--cache-dir", str(tmp_path))
    folders = ("--output", str(tmp_path / "runs"), "--results", str(tmp_path / "results"))
    command = (sys.executable, "-m", "experiments.kernel_posterior.run", "--table", table, "--size", "tiny")
    options += ("--threads", "1")
    environment = {**os.environ, "TFDS_DATA_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [*command, *options, "--cell", ",FedAvg,", *folders], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    assert "takes the place" not in ended.stdout
    (record,) = map(json.loads, (tmp_path / "results" / "tiny" / "records.jsonl").read_text().splitlines())
    assert (record["options"]["dataset"], record["options"]["network"]) == (dataset, network)
    assert len(record["rounds"]) >= 2 and record["seconds"] > 0
    # Images without meaning, or of two rounds: about as good as chance among the classes of the format.
    assert 0 <= record["metrics"]["accuracy"] < 0.5 and 1 < record["metrics"]["test_nll"] < 3 * classes
    assert (tmp_path / "results" / "tiny" / f"{table}.md").is_file()
