"""Permuted standard deviations: within each weight tensor, temporarily, and visible in the scores."""

import numpy as np
import pytest

from tests.kit import refuses
from tfp_bfl import evaluation, models
from tfp_bfl.weights import layout

RNG = np.random.default_rng(0)
FEATURES = np.float32(RNG.normal(size=[40, 6]))
LABELS = np.int32(FEATURES[:, 0] > 0)


def model_of(stddevs):
    """Logistic regression that knows its first column alone: the weights of the others are 0."""
    model = models.mlp("flipout", (6,), 2, hidden=())
    (weight,) = layout(model).variational
    weight.mean.assign(np.float32([[-6, 6]] + 5 * [[0, 0]]))
    weight.log_stddev.assign(np.log(np.float32(stddevs)))
    return model


INFORMED = np.array([[0.01, 0.01]] + 4 * [[0.02, 0.01]] + [[20.0, 20.0]])


def stddevs(model):
    return np.exp(layout(model).variational[0].log_stddev.numpy())


def test_the_same_numbers_stand_elsewhere_and_then_where_they_were_after_an_error_too():
    model = model_of(INFORMED)
    with pytest.raises(ZeroDivisionError), evaluation.permuted_stddevs(model, seed=3):
        inside = stddevs(model)
        raise ZeroDivisionError
    np.testing.assert_allclose(np.sort(inside, None), np.sort(INFORMED, None), rtol=1e-5)
    assert not np.allclose(inside, INFORMED)
    np.testing.assert_allclose(stddevs(model), INFORMED, rtol=1e-6)


def test_equal_ones_score_the_same():
    model = model_of(np.full([6, 2], 0.3))
    options = {"num_samples": 8, "seed": 1}
    own = evaluation.evaluate(model, FEATURES, LABELS, **options).metrics
    assert evaluation.evaluate_permuted(model, FEATURES, LABELS, **options) == own


def test_those_that_say_which_weight_matters_lose():
    """A column of zeros may have any weight: the wide ones are its. On another column they drown the answer."""
    features = FEATURES * np.float32([1, 1, 1, 1, 1, 0])
    model, options = model_of(INFORMED), {"num_samples": 20, "seed": 1}
    own = evaluation.evaluate(model, features, LABELS, **options).metrics["test_nll"]
    permuted = [evaluation.evaluate_permuted(model, features, LABELS, seed, **options)["test_nll"] for seed in range(3)]
    assert own < 0.15 and np.mean(permuted) > 2 * own


def test_point_weights_are_refused():
    model = models.mlp("deterministic", (6,), 2, hidden=())
    refuses("has no variational weights", evaluation.evaluate_permuted, model, FEATURES, LABELS)
