"""The kernel-posterior study: its cells, its writers, and two cells from end to end."""

import csv

import numpy as np
import pytest
from click.testing import CliRunner

import tfp_bfl as bfl
from experiments.kernel_posterior import config, run, writers


@pytest.fixture
def digits(monkeypatch):
    """Made digits in the place of MNIST."""

    def load(name, split="train"):
        rng = np.random.default_rng([3, split == "test"])
        features, labels = rng.integers(256, size=(4000, 28, 28, 1)).astype(np.uint8), np.arange(4000) % 10
        return bfl.data.Source(name, split, features, labels.astype(np.int32), tuple("0123456789"))

    monkeypatch.setattr(bfl.data, "load", load)


def test_every_cell_has_a_name_of_its_own():
    for table in config.TABLES:
        for size in config.SIZES:
            cells = list(run.cells(table, size))
            assert len({run.cell_name(cell) for cell in cells}) == len(cells)


def test_writers_are_made_when_asked_for(digits, monkeypatch):
    made = []
    restyle = writers.restyle
    monkeypatch.setattr(writers, "restyle", lambda *x: made.append(1) or restyle(*x))
    clients = writers.writers(30, 0)
    assert clients.num_clients == 30 and not made
    assert clients.sizes.min() >= writers.LEAST and clients.sizes.max() <= writers.MOST
    examples = clients.examples(3)
    assert len(made) == clients.sizes[3] == len(examples.labels)
    assert examples.features.shape[1:] == (28, 28, 1) and examples.features.dtype == np.uint8


def test_a_plain_hand_changes_nothing_and_a_thick_one_adds_ink():
    image = np.zeros((28, 28), np.uint8)
    image[8:20, 12:15] = 200
    np.testing.assert_array_equal(writers.restyle(image, 0, 0, 1), image)
    assert writers.restyle(image, 0, 0.5, 1).sum() > image.sum() > writers.restyle(image, 0, -0.5, 1).sum()
    assert writers.restyle(image, 0, 0, 0.75).sum() < image.sum()


def test_two_cells_from_end_to_end(digits, tmp_path, monkeypatch):
    monkeypatch.setitem(config.SIZES["tiny"]["mnist"], "rounds", 2)
    cells = [{"algorithm": name, "server": config.SGD} for name in ("FedBE", "FedKP, clustered")]
    monkeypatch.setitem(config.TABLES["alphas"], "cells", cells)
    options = ["--table", "alphas", "--size", "tiny", "--cell", "lda_0.1,", "--output", str(tmp_path)]
    result = CliRunner().invoke(run.main, options, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    rows = list(csv.reader((tmp_path / "tiny" / "alphas.csv").read_text().splitlines()))
    assert [row[1] for row in rows[1:]] == [f"{cell['algorithm']}, server {config.SGD}" for cell in cells]
    assert (tmp_path / "tiny" / "alphas_accuracy.md").exists()
    assert {p.name for p in (tmp_path / "tiny" / "figures").iterdir()} == {"alphas_curves.png", "alphas_bars.png"}
    again = CliRunner().invoke(run.main, options, catch_exceptions=False)
    assert again.output.count("done before") == 2
