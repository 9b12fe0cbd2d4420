"""Baselines of a run's test scores: constant predictions, and linear models of a table's rows."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl.app.one_run.client_scores import names_in
from tfp_bfl.app.one_run.records import truth
from tfp_bfl.errors import Error
from tfp_bfl.evaluation.baselines import nll_of_classes, nll_of_numbers, of_classes, of_numbers
from tfp_bfl.federated.notices import baseline_warning
from tfp_bfl.glm.posterior import mean_outcome

logger = logging.getLogger(__name__)

LINEAR, HIERARCHICAL = "linear model", "linear model with client intercepts"
# Of the linear model's coefficients, for standardised columns.
PRIOR_STDDEV = 2.5
# In the records of a summary.
MOST_CLASSES = 30
# With more columns the linear model would take longer than a report should.
_MOST_COLUMNS, _MOST_CLIENTS = 200, 2500
_MOST_STEPS = 500
# Restricted maximum likelihood takes twice the time, and with more clients hardly differs.
_FEW_CLIENTS = 100


def baselines(clients: bfl.data.Clients, test: bfl.data.Source) -> list[bfl.evaluation.Baseline]:
    """Score the baselines on the test data.

    For classes the class frequencies, for numbers mean and standard deviation of the training labels. For rows of a
    table also the linear model of all clients' rows: `bfl.glm.fit` for two classes or a number as the label,
    multinomial logistic regression by scikit-learn for more classes. Where the rows name the clients in training, also
    `bfl.glm.fit_hierarchical`, whose intercept differs between clients; test rows of other clients have the mean one.

    Args:
      clients: those in training.
      test: the test data.
    """
    if test.target is None:
        constant = bfl.evaluation.class_frequencies(clients.label_counts().sum(0), test.labels)
    else:
        labels = np.concatenate([clients.source.labels[part] for part in clients.indices]).astype(np.float64)
        mean, stddev = labels.mean(), labels.std()
        scale, shift = test.target.scale, test.target.mean
        constant = bfl.evaluation.training_mean(shift + scale * mean, scale * stddev, truth(test))
    shape = test.element_shape
    if len(shape) != 1 or not 0 < shape[0] <= _MOST_COLUMNS or test.num_classes > MOST_CLASSES:
        return [constant]
    clients = bfl.data.Clients(clients.source, [part for part in clients.indices if len(part)])
    found = [constant]
    for fit in (_linear, _hierarchical):
        try:
            one = fit(clients, test)
        except Error as error:  # Such as rows of one class only.
            logger.debug("There is no %s: %s", fit.__name__, error)
            continue
        found += [one] if one is not None else []
    return found


def _linear(clients: bfl.data.Clients, test: bfl.data.Source) -> bfl.evaluation.Baseline | None:
    """Score the linear model; None where there is none."""
    if test.num_classes > 2:
        return _multinomial([clients.examples(k) for k in range(clients.num_clients)], test)
    fitted = bfl.glm.fit(_rows(clients), _family(test), prior_stddev=PRIOR_STDDEV)
    return _scored(LINEAR, *fitted.linear_predictor(test.features.astype(np.float64)), fitted.dispersion, test)


def _hierarchical(clients: bfl.data.Clients, test: bfl.data.Source) -> bfl.evaluation.Baseline | None:
    """Score the linear model with an intercept for each client; None where the rows do not name the clients."""
    names = names_in(clients)
    if test.num_classes > 2 or names is None or test.owners is None or len(names) > _MOST_CLIENTS:
        return None
    restricted = None if len(names) <= _FEW_CLIENTS else False
    fitted = bfl.glm.fit_hierarchical(_rows(clients), _family(test), prior_stddev=PRIOR_STDDEV, restricted=restricted)
    centre, stddev = fitted.linear_predictor(features := test.features.astype(np.float64))
    for k, name in enumerate(names):
        own = np.flatnonzero(test.owners == name)
        if len(own):
            centre[own], stddev[own] = fitted.linear_predictor(features[own], k)
    return _scored(HIERARCHICAL, centre, stddev, fitted.posterior.dispersion, test)


def _rows(clients: bfl.data.Clients) -> list[tuple[np.ndarray, np.ndarray]]:
    examples = (clients.examples(k) for k in range(clients.num_clients))
    return [(each.features.astype(np.float64), each.labels.astype(np.float64)) for each in examples]


def _family(test: bfl.data.Source) -> str:
    return "bernoulli" if test.target is None else "gaussian"


def _scored(
    name: str, centre: np.ndarray, stddev: np.ndarray, dispersion: float, test: bfl.data.Source
) -> bfl.evaluation.Baseline:
    """Score predictions whose linear predictor is N(centre, stddev^2) [N]."""
    if test.target is None:
        probability = mean_outcome("bernoulli", centre, stddev)
        return of_classes(name, np.stack([1 - probability, probability], 1), test.labels)
    noise, target = np.sqrt(np.square(stddev) + dispersion), test.target
    return of_numbers(name, target.mean + target.scale * centre, target.scale * noise, truth(test))


def _multinomial(examples: list[bfl.data.ClientExamples], test: bfl.data.Source) -> bfl.evaluation.Baseline | None:
    """Score multinomial logistic regression with the same prior; None if the rows are of one class.

    A class without training rows has the least probability that a float32 can hold.
    """
    from sklearn.linear_model import LogisticRegression

    features = np.concatenate([each.features for each in examples]).astype(np.float64)
    labels = np.concatenate([each.labels for each in examples])
    if len(np.unique(labels)) < 2:
        return None
    fitted = LogisticRegression(C=PRIOR_STDDEV**2, max_iter=_MOST_STEPS).fit(features, labels)
    probabilities = np.full([test.num_examples, test.num_classes], np.finfo(np.float32).tiny)
    probabilities[:, fitted.classes_] = fitted.predict_proba(test.features.astype(np.float64))
    return of_classes(LINEAR, probabilities, test.labels)


def worse_than(final: object, found: list[bfl.evaluation.Baseline], test: bfl.data.Source) -> list[str]:
    """Return a warning in a list if a model is worse than a baseline on the test data.

    Args:
      final: the model's `Evaluation` or `RegressionEvaluation`.
      found: the baselines on the same data.
      test: the test data.
    """
    losses = _losses(final, test)
    better = bfl.evaluation.better_baseline(losses, found)
    if better is None:
        return []
    return [baseline_warning(float(losses.mean()), better.name, better.metrics["test_nll"])]


def is_better(final: object, baseline: bfl.evaluation.Baseline, test: bfl.data.Source) -> bool:
    """Return whether a model is better than a baseline on the test data, by more than chance."""
    model = bfl.evaluation.Baseline("model", {}, _losses(final, test))
    return bfl.evaluation.better_baseline(baseline.losses, [model]) is not None


def _losses(final: Any, test: bfl.data.Source) -> np.ndarray:
    """Return the negative log likelihood of each test label by a model."""
    if test.target is None:
        return nll_of_classes(final.probabilities, test.labels)
    return nll_of_numbers(final.mean, final.stddev, truth(test))


def of_classes_in(final: Any, test: bfl.data.Source) -> dict[str, Any]:
    """Return what a summary records of each class: examples, recall, precision, and the confusion matrix."""
    if test.target is not None or test.num_classes > MOST_CLASSES:
        return {}
    scores = bfl.evaluation.class_scores(final.probabilities, test.labels)
    number = lambda x: None if np.isnan(x) else float(x)
    classes = {
        name: {"examples": int(examples), "recall": number(recall), "precision": number(precision)}
        for name, examples, recall, precision in zip(
            test.class_names, scores.confusion.sum(1), scores.recall, scores.precision
        )
    }
    return {"classes": classes, "confusion_matrix": scores.confusion.tolist()}


def sensitivity_in(final: Any, test: bfl.data.Source) -> dict[str, float]:
    """Return sensitivity and specificity with their 95 % intervals; nothing unless there are two classes."""
    if test.target is not None or test.num_classes != 2:
        return {}
    scores, found = bfl.evaluation.class_scores(final.probabilities, test.labels), dict[str, float]()
    for name in ("sensitivity", "specificity"):
        recall = getattr(scores, name)
        if recall is not None:
            found |= {name: recall.value, f"{name}_low": recall.low, f"{name}_high": recall.high}
    return found
