"""Posteriors of a linear model on given features (`--dataset embeddings.npz`), of which clients leave and join."""

import functools

import numpy as np
import pytest
import tensorflow as tf

import tfp_bfl as bfl
from tests.app.test_revise import run
from tests.kit import call, refusal, summary_of
from tfp_bfl.algorithms.heads.posterior import HeadSettings, fit
from tfp_bfl.algorithms.heads.sums import ClassSums
from tfp_bfl.algorithms.held import Held

pytestmark = pytest.mark.cpu_seconds(30)  # the runs serve several tests

RNG = np.random.default_rng(4)
LABELS = np.arange(150) % 3
FEATURES = np.float32(RNG.normal(size=(150, 5)) + 3 * np.eye(3, 5)[LABELS] + 1)
OWNERS = np.repeat(["north", "south", "west"], [60, 50, 40])
TRAIN = "run --dataset embeddings.npz --model linear --algorithm fed_opt --rounds 1 --num-samples 4 --engine local"
# Of `run --start`: algorithm, options -> an entry of the summary.
FOUND = {
    "last_layer": {"structure": "last_layer"},
    "last_layer --structure kronecker": {"structure": "kronecker"},
    "laplace": {"structure": "last_layer"},
    "laplace --structure kronecker": {"structure": "kronecker"},
    "laplace --structure diagonal": {"structure": "diagonal"},
    "head": {"head": "gaussian"},
    "head --head ridge": {"head": "ridge"},
    "head --head softmax": {"head": "softmax"},
}
FAST = ("last_layer --structure kronecker", "head --head ridge")
OTHERS = pytest.mark.deep(after="tests/app/test_embeddings.py")
each = pytest.mark.parametrize("name", [pytest.param(x, marks=() if x in FAST else OTHERS) for x in FOUND])


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    arrays = {"features": FEATURES[:120], "labels": LABELS[:120], "clients": OWNERS[:120]}
    np.savez(folder / "embeddings.npz", **arrays, test_features=FEATURES[120:], test_labels=LABELS[120:])
    options = TRAIN.replace("embeddings.npz", str(folder / "embeddings.npz")).split()
    return run(options, folder / "network")


@pytest.fixture(scope="module")
def posteriors(network):
    @functools.cache
    def found(name):
        folder = network.parent / name.replace(" ", "_")
        assert call("run", "--start", network, "--algorithm", *name.split(), "--output", folder) == 0
        return folder

    return found


def predicted(folder):
    loaded = bfl.export.load(bfl.export.find(folder))
    return loaded.predict(FEATURES[120:], num_samples=4, seed=0)["probabilities"].numpy()


@each
def test_a_posterior_of_given_features_predicts_and_its_clients_leave_and_join(posteriors, name, tmp_path, capsys):
    folder = posteriors(name)
    assert {p.name for p in folder.iterdir()} == {"config.yaml", "clients.npz", "saved_model", "summary.json"}
    found = summary_of(folder)
    assert found.items() >= FOUND[name].items() and found["clients"] == ["0", "1", "2"]
    right = predicted(folder).argmax(1) == LABELS[120:]
    assert right.mean() == pytest.approx(found["accuracy"]) and found["accuracy"] > 0.8
    assert call("clients", "show", folder) == 0
    assert "share of the " in capsys.readouterr().out
    assert call("clients", "remove", folder, "1", "--output", tmp_path / "two") == 0
    assert summary_of(tmp_path / "two")["clients"] == ["0", "2"]
    assert np.abs(predicted(tmp_path / "two") - predicted(folder)).max() > 1e-5
    assert call("clients", "add", tmp_path / "two", folder, "1", "--output", tmp_path / "three") == 0
    np.testing.assert_allclose(predicted(tmp_path / "three"), predicted(folder), rtol=1e-4, atol=1e-4)
    assert "already" in refusal(capsys, "clients", "add", tmp_path / "three", folder, "1", "--output", tmp_path / "no")
    assert "no client '7'" in refusal(capsys, "clients", "remove", folder, "7", "--output", tmp_path / "no")


def test_after_a_client_left_a_head_is_that_of_the_rows_of_the_others(posteriors, tmp_path):
    """Every tenth row of a client is held back for the softmax temperature, which stays."""
    name = "head --head ridge"
    assert call("clients", "remove", posteriors(name), "1", "--output", tmp_path / "two") == 0
    held = Held.load(tmp_path / "two" / "clients.npz")
    kept = [k for start, stop in ((0, 60), (110, 120)) for k in range(start, stop) if (k - start) % 10 != 9]
    train = np.float64(FEATURES[:120])  # Runs standardise the columns of given features.
    x, y = ((train - train.mean(0)) / train.std(0))[kept], np.eye(3)[LABELS[kept]]
    sums = ClassSums(*map(tf.constant, (y.sum(0), y.T @ x, (x.T @ x)[np.triu_indices(5)])))
    wanted = fit(sums, HeadSettings("ridge")).mean / summary_of(tmp_path / "two")["softmax_temperature"]
    q = held.pool().posterior
    np.testing.assert_allclose(np.concatenate([q.mean[0], q.mean[1][np.newaxis]]), wanted, rtol=1e-3, atol=1e-3)


@OTHERS
def test_heads_are_refused_in_a_sentence(network, posteriors, tmp_path, capsys):
    out = ["--output", tmp_path / "new"]
    both = refusal(capsys, "run", "--start", posteriors("head"), "--algorithm", "head", *out)
    assert "has a posterior already" in both
    assert "head 'lda'" in refusal(capsys, "run", "--start", network, "--algorithm", "head", "--head", "lda", *out)
    words = refusal(capsys, "run", "--start", network, "--algorithm", "last_layer", "--structure", "diagonal", *out)
    assert "structure 'diagonal'" in words
    words = refusal(capsys, "clients", "add", posteriors("head"), posteriors("head --head ridge"), *out)
    assert "of another head" in words
    assert not (tmp_path / "new").exists()
