"""Predictions of chains on MNIST for figures: confidences, entropies and the sizes of the clients, of one seed."""

from __future__ import annotations

import pathlib
import time
from typing import Any

import numpy as np

import tfp_bfl as bfl
from experiments.qlsd import network

Options = dict[str, Any]
CLASSES = 10
# Of confidences and entropies in the records.
DIGITS = 4


def run(options: Options, folder: pathlib.Path) -> dict[str, Any]:
    """Run a chain or training of `experiments.qlsd.network` and return what the figures show.

    Returns:
      confidences: of the predicted class of each test image, negative where it is wrong.
      entropies, entropies_elsewhere: of predictions of test images, and of images of the other dataset, in nats.
      sizes: examples of each client.
      accuracy, nll: of the mean prediction over draws.
      accuracy_of_mean_weights, nll_of_mean_weights: of the network at the mean of the draws.
    """
    del folder
    data, started = network.data_of(options), time.perf_counter()
    draws = network.WORK[options["algorithm"]](options, data)[0]
    seconds = time.perf_counter() - started
    potential = bfl.training.Potential(network.model_of(options, 0))
    test, elsewhere = (network.predict(potential, draws, x) for x in (data.test.features, data.elsewhere))
    at_mean = network.predict(potential, draws.mean(0, keepdims=True), data.test.features)
    labels = data.test.labels
    rounded = lambda values: [round(float(x), DIGITS) for x in values]
    return {
        "confidences": rounded(np.where(test.argmax(-1) == labels, 1, -1) * test.max(-1)),
        "entropies": rounded(entropy(test)),
        "entropies_elsewhere": rounded(entropy(elsewhere)),
        "sizes": [int(n) for n in network.federation(options, data.train).sizes],
        **{name: network.scores(test, labels, elsewhere)[name] for name in ("accuracy", "nll", "auroc")},
        **{f"{name}_of_mean_weights": network.scores(at_mean, labels, None)[name] for name in ("accuracy", "nll")},
        "seconds": seconds,
    }


def entropy(probabilities: np.ndarray) -> np.ndarray:
    """Return the entropies of distributions [N, C] in nats, [N]."""
    return -np.sum(probabilities * np.log(np.maximum(probabilities, 1e-30)), -1)


def distributions(confidences: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """Return distributions [N, C] and labels [N] with the recorded confidences and errors.

    The label is 0, and so is the predicted class where it is right; all other classes are equal.
    """
    top = np.abs(confidences)
    found = np.repeat(((1 - top) / (CLASSES - 1))[:, np.newaxis], CLASSES, 1)
    found[np.arange(len(top)), np.where(np.array(confidences) > 0, 0, 1)] = top
    return found, np.zeros(len(top), np.int32)
