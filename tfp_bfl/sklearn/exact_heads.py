"""An exact head from arrays: sums of clients, without a network (`tfp_bfl.algorithms.heads`)."""

import warnings
from typing import Any

import numpy as np
import tensorflow as tf
from scipy import special

from tfp_bfl import posterior
from tfp_bfl.algorithms.heads import classes, softmax
from tfp_bfl.algorithms.heads.posterior import Fitted, HeadSettings, fit, fit_softmax, fitted_temperature
from tfp_bfl.algorithms.heads.sums import TEMPERATURES, ClassSums

# Rows that determine the temperature alone, a fraction; samples of the weights; rows at once.
_HELD_BACK, _NUM_SAMPLES, _MOST_ROWS = 0.1, 100, 1000
# Of "softmax": the most rounds, and the Newton step, in posterior standard deviations, after which there are no more.
_ROUNDS, _SHORT_STEP = 200, 1e-4
Clients = list[tuple[np.ndarray, np.ndarray]]


def fit_head(clients: Clients, num_classes: int, settings: HeadSettings) -> tuple[Any, float]:
    """Fit Gaussian classes, or samples of the weights, bias last [S, F + 1, C], and the softmax temperature.

    Args:
      clients: features [n, F] and classes [n] of each.
    """
    held = [np.diff(np.floor(np.arange(len(y) + 1) * _HELD_BACK)) > 0 for _, y in clients]
    given = [(x[~rows], np.eye(num_classes)[y[~rows]]) for (x, y), rows in zip(clients, held)]
    sent = [(y.sum(0), y.T @ x, (x.T @ x)[np.triu_indices(x.shape[1])]) for x, y in given]
    sums = ClassSums(*(tf.constant(sum(part)) for part in zip(*sent)))
    if settings.head == "gaussian":
        law = tf.nest.map_structure(np.asarray, classes.fit_gaussian(sums))
    else:
        found = fit(sums, settings) if settings.head == "ridge" else _fit_softmax(given, sums, settings.stddev)
        kernel, bias = posterior.sample(found.posterior, tf.constant([0, 0]), _NUM_SAMPLES)
        law = np.float64(np.concatenate([kernel, bias[:, np.newaxis]], 1))
    if settings.temperature is not None:
        return law, settings.temperature
    x, labels = (np.concatenate([pair[i][rows] for pair, rows in zip(clients, held)]) for i in (0, 1))
    logits, losses = _logits(law, x), []
    for heat in TEMPERATURES:
        true = np.take_along_axis(special.log_softmax(logits / heat, -1), labels[np.newaxis, :, np.newaxis], -1)
        losses.append(-np.sum(special.logsumexp(true, 0) - np.log(len(true))))
    return law, fitted_temperature(np.array([*losses, len(x)]))


def probabilities(law: Any, temperature: float, x: np.ndarray) -> np.ndarray:
    """Compute the probabilities of classes for features [n, F]: [n, C]."""
    parts = np.array_split(x, len(x) // _MOST_ROWS + 1)
    return np.concatenate([special.softmax(_logits(law, part) / temperature, -1).mean(0) for part in parts])


def _logits(law: Any, x: np.ndarray) -> np.ndarray:
    """Compute log probabilities up to a constant [S, n, C]; S = 1 for Gaussian classes."""
    if isinstance(law, classes.GaussianClasses):
        return np.asarray(classes.log_predictive(law, x))[np.newaxis]
    return np.asarray(x @ law[:, :-1] + law[:, -1:])


def _fit_softmax(given: Clients, sums: ClassSums, stddev: float | None) -> Fitted:
    """Fit "softmax" to features and one-hot classes [n, C]; clients send a gradient in each round."""
    num_classes, size = sums.totals.shape
    search = softmax.begin(softmax.empty(size + 1, num_classes), sums, stddev)
    for _ in range(_ROUNDS):
        weights, gradients, fishers = np.asarray(search.basis.vectors @ search.mode), [], []
        for x, y in given:
            p = special.softmax(x @ weights[:-1] + weights[-1], -1)
            gradients.append(np.vstack([x.T @ (p - y), np.sum(p - y, 0)]))
            fishers.append(np.diag(p.sum(0)) - p.T @ p)
        search = softmax.advance(search, tf.constant(sum(gradients)), tf.constant(sum(fishers)), stddev)
        if float(search.distance) < _SHORT_STEP:
            break
    else:
        warnings.warn(f"The softmax head has not reached its mode in {_ROUNDS} rounds: standardise X.", stacklevel=4)
    return fit_softmax(search.basis, search.mode, search.fisher, search.precision)
