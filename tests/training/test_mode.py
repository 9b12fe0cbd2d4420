"""The mode of a posterior, and how far off a point is."""

import numpy as np
import pytest
import tensorflow as tf

from tests.gaussians import model_fn
from tfp_bfl import models
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.training import Potential, find_mode, potentials_of
from tfp_bfl.training.potential import _Target

ROWS = np.random.default_rng(3).normal([3, -1], size=(30, 2)).astype(np.float32)
LABELS = np.zeros(30, np.int32)

more = pytest.mark.deep(after="tests/training/test_mode.py")


@pytest.mark.parametrize("prior_stddev", [pytest.param(None, marks=more), 0.5])
def test_the_mode_of_a_gaussian(prior_stddev):
    options = {"likelihood": "density", "prior_stddev": prior_stddev}
    precision = 30 + (0 if prior_stddev is None else 4)
    wanted = ROWS.sum(0) / precision
    mode = find_mode(model_fn(2), ROWS, LABELS, **options)
    np.testing.assert_allclose(mode.point[0], wanted, atol=1e-4)
    assert mode.error < 1e-3
    # One standard deviation of the posterior off, in the first weight.
    off = wanted + np.float32([precision**-0.5, 0])
    assert _Target(model_fn(2), ROWS, LABELS, **options).mode(tf.constant(off)).error == pytest.approx(1, rel=0.3)


def test_the_mode_of_logistic_regression():
    """The gradient by NumPy is zero there."""
    rng = np.random.default_rng(1)
    features = np.float32(rng.normal(size=(80, 3)))
    labels = np.int32(features @ [1, -2, 0.5] + rng.logistic(size=80) > 0)
    model_fn = lambda: models.mlp("deterministic", (3,), 2, hidden=(), seed=1)
    mode = find_mode(model_fn, features, labels, prior_stddev=2.0)
    kernel, bias = mode.point
    logits = features @ kernel + bias
    residual = np.exp(logits) / np.exp(logits).sum(1, keepdims=True) - np.eye(2)[labels]
    np.testing.assert_allclose(features.T @ residual + kernel / 4, 0, atol=2e-3)
    np.testing.assert_allclose(residual.sum(0) + bias / 4, 0, atol=2e-3)
    assert mode.error < 0.01


def test_potentials_of_draws(monkeypatch):
    """U of each, by NumPy; parts of the examples at a time make no difference."""
    draws = np.random.default_rng(4).normal(size=(2, 3, 2)).astype(np.float32)
    potential = Potential(model_fn(2)(), "density")
    wanted = 0.5 * np.square(ROWS - draws[:, :, np.newaxis]).sum((2, 3)) + 2 * np.square(draws).sum(-1)
    for at_once in (512, 7):
        monkeypatch.setattr("tfp_bfl.training.potential.AT_ONCE", at_once)
        found = potentials_of(potential, (draws,), ROWS, LABELS, prior_stddev=0.5)
        np.testing.assert_allclose(found, wanted, rtol=1e-5)
    flat = potentials_of(potential, (draws,), ROWS, LABELS, prior_stddev=None)
    np.testing.assert_allclose(wanted - flat, 2 * np.square(draws).sum(-1), rtol=1e-3)
    with pytest.raises(InvalidArgument, match=r"leaves \[\(2, 3\)\], but the model's weights are \[\(2,\)\]"):
        potentials_of(potential, (draws[:, 0][:, :1].repeat(3, 1),), ROWS, LABELS)


def test_too_few_steps():
    with pytest.raises(InvalidArgument, match="No mode was found in 1 steps: the last point is"):
        rng = np.random.default_rng(1)
        features = np.float32(rng.normal(size=(80, 3)) * [1, 100, 0.01])
        find_mode(
            lambda: models.mlp("deterministic", (3,), 2, hidden=()), features, rng.integers(0, 2, 80), max_steps=1
        )
