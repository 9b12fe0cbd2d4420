"""The study of the normality of clients' weights: its settings, its parts, and a run from end to end."""

import csv

import numpy as np
import pytest
import tensorflow as tf
from click.testing import CliRunner

import tfp_bfl as bfl
from experiments.kernel_posterior import (
    client_stacks,
    config,
    models,
    normality,
    normality_figures,
    normality_statistics,
    normality_tables,
)
from experiments.kernel_posterior.client_stacks import Setting

TINY = {"federation": 6, "examples": 16, "cohort_size": 2, "seeds": [0], "grid": False}
TINY |= {"base": {"alpha": 0.1, "local_epochs": 1, "clients": 6, "round": 2}}
TINY |= {"varied": {"alpha": [0.1], "local_epochs": [1], "clients": [5, 6], "round": [1, 2]}}


def network(num_classes, seed):
    """As the study's, with fewer filters and larger pools."""
    initial = lambda k: tf.keras.initializers.GlorotUniform(seed + k)
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            tf.keras.Input((28, 28, 1)),
            layers.Conv2D(2, 3, strides=2, activation="relu", kernel_initializer=initial(0)),
            layers.MaxPooling2D(4),
            layers.Flatten(),
            layers.Dense(num_classes, kernel_initializer=initial(1)),
        ]
    )


@pytest.fixture
def tiny(monkeypatch):
    """Made digits in the place of MNIST, a small network and few settings."""

    def load(name, split="train"):
        rng = np.random.default_rng([3, split == "test"])
        features, labels = rng.integers(256, size=(1000, 28, 28, 1)).astype(np.uint8), np.arange(1000) % 10
        return bfl.data.Source(name, split, features, labels.astype(np.int32), tuple("0123456789"))

    monkeypatch.setattr(bfl.data, "load", load)
    monkeypatch.setitem(models.NETWORKS, "mnist_network", network)
    monkeypatch.setitem(config.NORMALITY, "tiny", TINY)


@pytest.mark.parametrize("size", config.NORMALITY)
def test_every_stack_has_a_folder_of_its_own(size, tmp_path):
    settings = client_stacks.settings(size)
    folders = {(s.alpha, s.local_epochs, s.round): client_stacks.stack_folder(tmp_path, s, 0) for s in settings}
    assert len(set(folders.values())) == len(folders) and len(set(settings)) == len(settings)
    assert client_stacks.base(size) in settings
    for factor in Setting._fields:
        assert set(client_stacks.along(size, factor)) <= set(settings)
        assert max(config.NORMALITY[size]["varied"]["clients"]) <= config.NORMALITY[size]["federation"]


def test_a_factor_at_a_time_or_a_grid():
    assert len(client_stacks.settings("small")) == 4 + 3 + 4 + 3 - 3
    assert len(client_stacks.settings("full")) == 4 * 3 * 4 * 3


@pytest.mark.deep(after="experiments/kernel_posterior/tests/test_normality_study.py")
def test_clients_train_alone_from_the_same_weights(tiny):
    """A client's row is what local training of that client alone gives, of one batch: a step of SGD."""
    cell = {**client_stacks.cell_of(client_stacks.base("tiny"), "tiny", 0), "learning_rate": 0.1}
    model = client_stacks.model_of(cell)
    start = client_stacks.flat(model.trainable_variables)
    stack = client_stacks.train_clients(cell, start, 1, 2)
    clients, _ = client_stacks.clients_and_test(cell)
    assert stack.shape == (6, len(start))
    for k in (0, 5):
        examples = clients.examples(k)
        with tf.GradientTape() as tape:
            logits = model(examples.features / np.float32(255), training=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(examples.labels, logits))
        wanted = start - 0.1 * client_stacks.flat(tape.gradient(loss, model.trainable_variables))
        np.testing.assert_allclose(stack[k], wanted, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(client_stacks.flat(client_stacks.unflat(start, model).point), start)


def test_groups_are_disjoint(monkeypatch, tmp_path):
    setting = Setting(0.1, 5, 3, 1)
    folder = client_stacks.stack_folder(tmp_path, setting, 0)
    folder.mkdir(parents=True)
    np.save(folder / client_stacks.STACK, np.arange(14).reshape(7, 2))
    found = list(client_stacks.groups(setting, tmp_path, [0]))
    assert [stack[:, 0].tolist() for stack in found] == [[0, 2, 4], [6, 8, 10]]


def test_gaussian_clients_have_the_covariance_of_the_stack():
    """Of 4,000 draws of 6 clients: the covariances' standard errors are below 0.02 of the largest; 5 of them."""
    rng = np.random.default_rng(0)
    stack = (rng.normal(size=[6, 3]) + 5).astype(np.float32)
    rows = np.concatenate([normality_tables.gaussian_with_covariance(stack, rng) for _ in range(4000)])
    wanted = np.cov(stack.T)
    np.testing.assert_allclose(np.cov(rows.T), wanted, atol=0.1 * np.abs(wanted).max())
    np.testing.assert_allclose(rows.mean(0), 0, atol=0.05)


def test_which_weights_are_shown():
    model = network(10, 0)
    size = sum(int(np.prod(shape)) for _, shape in client_stacks.leaves(model))
    rng = np.random.default_rng(0)
    stack = rng.normal(size=[20, size])
    stack[:, 19] = 10 * rng.integers(2, size=20)  # the second bias of the convolution
    stack[:, 30] = 100 * (np.arange(20) == 0)  # half of the clients agree: no bandwidth
    stack[:, 31] = 0.1 * rng.integers(2, size=20)  # less spread than most
    result = normality_statistics.normality(stack)
    chosen = normality_figures.chosen(result, stack.std(0), normality_tables.silverman_bandwidths(stack), model)
    assert [name for name, _ in chosen] == ["least normal", "median", "most normal", "drawn", "drawn"]
    places = [normality_figures.place(d, model) for _, d in chosen]
    assert places[0] == "conv2d 1 bias [1]"
    assert places[3].startswith("conv2d 1 kernel [") and places[4].startswith("dense 1 kernel [")
    assert normality_figures.place(size - 1, model) == "dense 1 bias [9]"


@pytest.mark.deep(after="experiments/kernel_posterior/tests/test_normality_study.py")
def test_a_run_from_end_to_end(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(normality_tables, "REPLICATES", 2)
    options = ["--size", "tiny", "--output", str(tmp_path)]
    result = CliRunner().invoke(normality.main, options, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    rows = list(csv.reader((tmp_path / "tiny" / "normality.csv").read_text().splitlines()))
    assert [row[:4] for row in rows[1:]] == [
        ["0.1", "1", "6", "2"],
        ["0.1", "1", "5", "2"],
        ["0.1", "1", "6", "1"],
        *(["independent Gaussian", "", number, ""] for number in ("6", "5")),
    ]
    assert all(len(row) == len(rows[0]) for row in rows)
    assert float(rows[4][6]) == pytest.approx(5, abs=1)
    leaves = list(csv.reader((tmp_path / "tiny" / "normality_leaves.csv").read_text().splitlines()))
    assert len(leaves) == 1 + 3 * 4
    figures = {f"{name}.png" for name in ("normality_alpha", "normality_local_epochs", "normality_round", "bandwidths")}
    assert {p.name for p in (tmp_path / "tiny" / "figures").iterdir()} == {*figures, "density_alpha=0.1.png"}

    stacks = sorted((tmp_path / "tiny" / "stacks").glob("*/stack.npy"))
    times = [path.stat().st_mtime_ns for path in stacks]
    client_stacks.collect("tiny", tmp_path / "tiny", [0])
    assert len(stacks) == 2 and [path.stat().st_mtime_ns for path in stacks] == times
