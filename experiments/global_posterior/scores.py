"""Scores of sampled predictions, with and without posterior standard deviations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_bfl import evaluation, layers
from tfp_bfl.posterior import MeanField
from tfp_bfl.weights import ModelWeights, assign_weights


def scores(test: np.ndarray, labels: np.ndarray, elsewhere: np.ndarray | None) -> dict[str, float | None]:
    """Score sampled predictions of test [S, N, C] and out-of-distribution examples [S, M, C], if there are any.

    Without samples that differ there is no epistemic part, and what is by it is None.
    """
    own = evaluation.summarise(tf.constant(test))
    mean, wrong = own.mean.numpy(), own.mean.numpy().argmax(1) != labels
    epistemic, aleatoric = float(np.mean(own.epistemic)), float(np.mean(own.aleatoric))
    several = bool(np.any(test != test[0]))
    detects = evaluation.out_of_distribution
    curve = evaluation.retention_curve(mean, labels, own.entropy)
    found = {
        "accuracy": evaluation.accuracy(mean, labels),
        "nll": evaluation.negative_log_likelihood(mean, labels),
        "ece": evaluation.expected_calibration_error(mean, labels),
        "brier": evaluation.brier_score(mean, labels),
        "error_auroc": detects(own.entropy[~wrong], own.entropy[wrong]).auroc if 0 < wrong.sum() < len(wrong) else None,
        "retention_area": evaluation.area_under_retention_curve(curve),
        "epistemic": epistemic if several else None,
        "epistemic_share": epistemic / (epistemic + aleatoric) if several else None,
    }
    if elsewhere is not None:
        other = evaluation.summarise(tf.constant(elsewhere))
        information = [evaluation.decompose_entropy(tf.constant(p)).mutual_information for p in (test, elsewhere)]
        found["ood_auroc_entropy"] = detects(own.entropy, other.entropy).auroc
        found["ood_auroc_epistemic"] = detects(own.epistemic, other.epistemic).auroc if several else None
        found["ood_auroc_mutual_information"] = detects(*information).auroc if several else None
    return {name: None if x is None else float(x) for name, x in found.items()}


def fitted_scores(mean: np.ndarray, labels: np.ndarray, held_out: np.ndarray, held_out_labels: np.ndarray) -> dict:
    """Return NLL and ECE of mean predictions [N, C] at the temperature that suits the held-out ones."""
    temperature = evaluation.fit_temperature(held_out, held_out_labels)
    scaled = evaluation.at_temperature(mean, temperature)
    return {
        "fitted_temperature": temperature,
        "nll_fitted": float(evaluation.negative_log_likelihood(scaled, labels)),
        "ece_fitted": float(evaluation.expected_calibration_error(scaled, labels)),
    }


def spread_scores(weights: ModelWeights, prior: MeanField) -> dict[str, float]:
    """Return quantiles of all standard deviations, the log of their ratio, how much of it is within layers, and the
    share of weights of whom the data say next to nothing: as wide as the prior, to a tenth.
    """
    logs = [0.5 * np.log(np.asarray(v).ravel()) for v in weights.posterior.variance]
    if not logs:
        return {}
    low, median, high = np.exp(np.quantile(np.concatenate(logs), (0.05, 0.5, 0.95)))
    within = [np.subtract(*np.quantile(layer, (0.95, 0.05))) for layer in logs]
    sizes = [layer.size for layer in logs]
    priors = [0.5 * np.log(np.asarray(v).ravel()) for v in prior.variance]
    at_prior = [np.mean(own > other + np.log(0.9)) for own, other in zip(logs, priors)]
    return {
        "sd_q05": float(low),
        "sd_median": float(median),
        "sd_q95": float(high),
        "log_sd_ratio": float(np.log(high / low)),
        "log_sd_ratio_within": float(np.average(within, weights=sizes)),
        "share_at_prior": float(np.average(at_prior, weights=sizes)),
    }


def permuted(weights: ModelWeights, seed: Sequence[int]) -> ModelWeights:
    """Return the weights with the standard deviations of each layer in another order."""
    rng = np.random.default_rng(seed)
    shuffle = lambda v: rng.permutation(np.asarray(v).ravel()).reshape(v.shape)
    posterior = weights.posterior._replace(variance=tuple(shuffle(v) for v in weights.posterior.variance))
    return weights._replace(posterior=posterior)


def constant_spread(weights: ModelWeights) -> ModelWeights:
    """Return the weights with the geometric mean of all standard deviations in place of each."""
    variance = [np.asarray(v) for v in weights.posterior.variance]
    mean = np.exp(np.mean(np.concatenate([np.log(v).ravel() for v in variance])))
    posterior = weights.posterior._replace(variance=tuple(np.full_like(v, mean) for v in variance))
    return weights._replace(posterior=posterior)


def without_spread(
    model: tf.keras.Model,
    weights: ModelWeights,
    features: Any,
    labels: Any,
    num_samples: int,
    seed: int,
    permutations: int,
) -> dict[str, float]:
    """Return NLL with the standard deviations permuted within layers, mean and sd over permutations, and that of the
    means.

    The draws of noise are those of the unpermuted prediction. The model is left with `weights`.
    """
    nlls = []
    for i in range(permutations):
        assign_weights(model, permuted(weights, (seed, i)))
        samples = evaluation.predict(model, features, num_samples, seed)
        nlls.append(float(evaluation.negative_log_likelihood(samples.mean(0), labels)))
    assign_weights(model, weights)
    return {
        "nll_permuted": float(np.mean(nlls)),
        "nll_permuted_sd": float(np.std(nlls)),
        "nll_of_means": float(evaluation.negative_log_likelihood(mean_prediction(model, features), labels)),
    }


def mean_prediction(model: tf.keras.Model, features: Any, batch_size: int = 500) -> np.ndarray:
    """Return the predictions [N, C] with the means of a posterior's weights."""
    parts = []
    with layers.sampling("mean"):
        for start in range(0, len(features), batch_size):
            images = tf.image.convert_image_dtype(features[start : start + batch_size], tf.float32)
            parts.append(tf.nn.softmax(model(images, training=False)).numpy())
    return np.concatenate(parts)
