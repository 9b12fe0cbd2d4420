"""How often `tfp-bfl drift` finds drift over many references and batches: of the same data, and of shifted data."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

import tfp_bfl as bfl
from tfp_bfl.app.one_run.drift import compare_features, compare_scores, rows_of
from tfp_bfl.evaluation import unusual

pytestmark = [pytest.mark.deep(after="tests/app/test_drift.py"), pytest.mark.cpu_seconds(300)]

BATCHES, TRAINING, HELD_OUT, LEVEL = 300, 500, 200, 0.01


def columns(number, seed, shift=0.0):
    """Standardised columns: normal, which may be shifted, skewed, and two values."""
    rng = np.random.default_rng(seed)
    normal, skewed = rng.normal(size=number) + shift, rng.exponential(size=number) - 1
    return np.stack([normal, skewed, np.where(rng.random(number) < 0.2, 2.0, -0.5)], 1).astype(np.float32)


@functools.cache
def model():
    return bfl.models.mlp("flipout", (3,), 2, hidden=(8,), initial_stddev=0.3, seed=0)


@functools.cache
def score():
    """The score of unusual rows without its thresholds, which each reference has anew."""
    train = columns(TRAINING, 10**6)
    source = bfl.data.Source("made", "train", train, (train[:, 0] > 0).astype(np.int32), ["no", "yes"])
    clients = bfl.data.Clients(source, [np.arange(TRAINING)])
    found = bfl.evaluation.fit_unusual(model(), clients, train, num_classes=2)
    return found._replace(feature_limit=1.0, range_limit=1.0)


def predictions(rows):
    """Probabilities, entropies, and the two parts of the score without thresholds."""
    found = bfl.evaluation.evaluate(model(), rows, np.zeros(len(rows), np.int32), num_samples=5)
    with bfl.layers.sampling("mean"):
        below = unusual.penultimate(model())(tf.constant(rows)).numpy()
    distance, beyond = unusual._distance(score(), below).numpy(), unusual._range(score(), rows).numpy()
    return {"probabilities": found.probabilities, "entropy": found.entropy, "distance": distance, "range": beyond}


@functools.cache
def references():
    rows = columns(BATCHES * HELD_OUT, 1)
    return {name: x.reshape(BATCHES, HELD_OUT, *x.shape[1:]) for name, x in predictions(rows).items()}


@functools.cache
def p_values(number, shift=0.0):
    """The smallest adjusted p-value of each batch, each against training rows and held-out rows of its own."""
    rows = columns(BATCHES * number, 2 + number, shift)
    new = {name: x.reshape(BATCHES, number, *x.shape[1:]) for name, x in predictions(rows).items()}
    least = []
    for k in range(BATCHES):
        held = {name: x[k] for name, x in references().items()}
        parts = {"feature_limit": held["distance"], "range_limit": held["range"]}
        fitted = unusual._with_thresholds(score(), parts, 0.01)
        batch = {name: x[k] for name, x in new.items()}
        above = np.maximum(batch["distance"] / fitted.feature_limit, batch["range"] / fitted.range_limit)
        answers = {**batch, "label": batch["probabilities"].argmax(1), "unusual": above}
        training = bfl.evaluation.feature_histograms(columns(TRAINING, 5 * 10**6 + k))
        compared = [
            *compare_features(
                training, bfl.evaluation.feature_histograms(rows[k * number : (k + 1) * number], (), training)
            ),
            *compare_scores(held, answers, {"rate": fitted.rate, "number": fitted.number}),
        ]
        drifts, _ = rows_of(compared, number, LEVEL)
        least.append(min(row.p_value for row in drifts))
    return np.array(least)


@pytest.mark.parametrize("level", [LEVEL, 0.2])
@pytest.mark.parametrize("number", [5, 30, 300])
def test_false_alarms_are_within_the_level(number, level):
    """300 batches without drift, at the default level and at one that more of them reach.

    Error rate: the number of batches with drift is at most binomial; it is above the bound with probability below 1e-4.
    The seeds are fixed.
    """
    found = int(np.sum(p_values(number) < level))
    assert found <= stats.binom.ppf(1 - 1e-4, BATCHES, level), found


@pytest.mark.parametrize(("number", "shift", "least"), [(5, 3.0, 0.9), (30, 1.0, 0.8), (300, 0.5, 0.9)])
def test_clear_shifts_are_found(number, shift, least):
    """A column shifted by `shift` standard deviations; docs/serving.md states the rates.

    Error rate: the measured rates lie above these bounds by more than 4 binomial standard deviations.
    """
    assert np.mean(p_values(number, shift) < LEVEL) >= least
