"""Scores of predictions: accuracy, likelihood, calibration, coverage of sets, the least client's; and their rows."""

from __future__ import annotations

import numpy as np

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl.app.one_run import client_scores
from tfp_bfl.app.one_run.client_scores import RowsByClient
from tfp_bfl.app.one_run.job import Job
from tfp_bfl.app.one_run.pipeline import Predicted
from tfp_bfl.data.partitions import generator
from tfp_bfl.errors import InvalidArgument

COVERAGE = 0.9  # Of prediction sets and intervals.
LEAST_EXAMPLES = 10  # A client with fewer test examples has no score of its own: its accuracy would be chance.


def of_classes(test: Predicted, held: Predicted) -> dict[str, float]:
    """Return the scores of a classifier on test rows; what is fitted is fitted on held-out training rows.

    `fitted_test_nll` and `fitted_ece` are at the softmax temperature with the lowest NLL of the held-out rows.
    `coverage` and `set_size` are of prediction sets by the probability of the label, of 0.9 on the held-out rows.
    `least_...` is of the client with the lowest value among clients with at least `LEAST_EXAMPLES` test rows.
    """
    probabilities, labels = test.arrays["probabilities"], test.labels
    evaluation = bfl.evaluation
    right = probabilities.argmax(-1) == labels
    scores = {
        "accuracy": float(right.mean()),
        "test_nll": float(evaluation.negative_log_likelihood(probabilities, labels)),
        "ece": float(evaluation.expected_calibration_error(probabilities, labels)),
        "brier": float(evaluation.brier_score(probabilities, labels)),
    }
    if right.any() and not right.all():
        entropy = test.arrays["entropy"]
        scores["error_auroc"] = evaluation.out_of_distribution(entropy[right], entropy[~right]).auroc
    temperature = evaluation.fit_temperature(held.arrays["probabilities"], held.labels)
    fitted = evaluation.at_temperature(probabilities, temperature)
    scores["fitted_test_nll"] = float(evaluation.negative_log_likelihood(fitted, labels))
    scores["fitted_ece"] = float(evaluation.expected_calibration_error(fitted, labels))
    scores |= _least("accuracy", right, test.owners)
    try:
        limit = evaluation.conformal_limit(held.arrays["probabilities"], held.labels, COVERAGE)
    except InvalidArgument:  # Too few held-out rows for that coverage.
        return scores
    sets = evaluation.prediction_sets(probabilities, limit)
    is_in = sets[np.arange(len(labels)), labels]
    scores |= {"coverage": float(is_in.mean()), "set_size": float(sets.sum(-1).mean())}
    return scores | _least("coverage", is_in, test.owners)


def of_numbers(test: Predicted) -> dict[str, float]:
    """Return the scores of a regression on test rows, in the units of the label."""
    error = test.arrays["mean"] - test.labels
    is_in = (test.arrays["low"] <= test.labels) & (test.labels <= test.arrays["high"])
    scores = {"rmse": float(np.sqrt(np.mean(np.square(error)))), "test_nll": test.metrics["test_nll"]}
    scores |= {"crps": test.metrics["crps"], "coverage": float(is_in.mean())}
    return scores | _least("coverage", is_in, test.owners)


def selection(held: Predicted) -> dict[str, float]:
    """Return the scores of held-out rows by which trials are compared: test_nll, and accuracy or rmse."""
    if "mean" in held.arrays:
        error = held.arrays["mean"] - held.labels
        return {"test_nll": held.metrics["test_nll"], "rmse": float(np.sqrt(np.mean(np.square(error))))}
    p = held.arrays["probabilities"]
    nll = float(bfl.evaluation.negative_log_likelihood(p, held.labels))
    return {"test_nll": nll, "accuracy": float(np.mean(p.argmax(-1) == held.labels))}


def heterogeneity(counts: np.ndarray) -> float:
    """Return the mean total variation distance between the label counts [K, C] of the clients and those of all.

        1/K sum_k 1/2 sum_c |n_kc / n_k - n_c / n|

    Example:
      >>> heterogeneity(np.array([[5, 0], [0, 5]]))
      0.5
    """
    shares = counts / counts.sum(1, keepdims=True)
    return float(np.abs(shares - counts.sum(0) / counts.sum()).sum(1).mean() / 2)


def _least(name: str, values: np.ndarray, owners: np.ndarray) -> dict[str, float]:
    """Return the least mean over clients with enough test rows; nothing with fewer than two such clients."""
    number = np.unique(owners, return_inverse=True)[1]
    count = np.bincount(number)
    means = (np.bincount(number, values) / count)[count >= LEAST_EXAMPLES]
    return {f"least_{name}": float(min(means))} if len(means) > 1 else {}


def foreign(own: Predicted, entropy: np.ndarray, epistemic: np.ndarray) -> dict[str, float]:
    """Return the AUROC of out-of-distribution examples [M] by entropy and by the epistemic part."""
    separation = bfl.evaluation.out_of_distribution
    found = {"ood_auroc_entropy": separation(own.arrays["entropy"], entropy).auroc}
    if own.arrays["epistemic"].any() or epistemic.any():
        found["ood_auroc"] = separation(own.arrays["epistemic"], epistemic).auroc
    return {name: x for name, x in found.items() if x is not None}


def set_aside(clients: bfl.data.Clients, share: float, seed: int) -> tuple[bfl.data.Clients, RowsByClient]:
    """Take a share of each client's examples, drawn by the seed: the clients with the rest, and that share.

    A client gives round(share n) of its n examples, and keeps one at least; a share of no example is refused.
    """
    rest, held = [], []
    for k, rows in enumerate(clients.indices):
        number = min(round(share * len(rows)), len(rows) - 1)
        order = generator(seed, f"bench {k}").permutation(len(rows))
        held.append(np.sort(rows[order[:number]]))
        rest.append(np.sort(rows[order[number:]]))
    if not sum(map(len, held)):
        raise InvalidArgument(f"A share of {share} of each client's examples is none: hold out a larger share.")
    return bfl.data.Clients(clients.source, rest), RowsByClient(clients.source, held)


def test_parts(job: Job) -> RowsByClient:
    """Return the test rows of each client: its own where the data name the clients, else by its share of each class."""
    if job.shards is not None:
        return client_scores.with_models(job.shards, job.config, job.everybody.num_clients, job.is_personal)
    if job.test.target is not None:
        return RowsByClient(job.test, [np.arange(job.test.num_examples)])
    return RowsByClient(job.test, job.test.partition(bfl.data.like(job.clients), seed=job.config.seed).indices)
