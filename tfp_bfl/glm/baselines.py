"""Linear models of a table's rows as baselines of a run's test scores."""

from __future__ import annotations

import logging

import numpy as np

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl.app.one_run.client_scores import names_in
from tfp_bfl.app.one_run.pipeline import MOST_CLASSES
from tfp_bfl.app.one_run.records import truth
from tfp_bfl.errors import Error
from tfp_bfl.evaluation.baselines import of_classes, of_numbers
from tfp_bfl.glm.posterior import mean_outcome

logger = logging.getLogger(__name__)

LINEAR, HIERARCHICAL = "linear model", "linear model with client intercepts"
FEATURES = "random features with client intercepts"
# Of the linear model's coefficients, for standardised columns.
PRIOR_STDDEV = 2.5
# With more columns the linear model would take longer than a report should.
_MOST_COLUMNS, _MOST_CLIENTS = 200, 2500
# With more clients 40 features take minutes.
_NUM_FEATURES, _MOST_WITH_FEATURES = 40, 500
_MOST_STEPS = 500
# Coefficients of more than two classes; the information has the square of this number.
_MOST_OF_CLASSES = 200
# Restricted maximum likelihood takes twice the time, and with more clients hardly differs.
_FEW_CLIENTS = 100


def linear_baselines(clients: bfl.data.Clients, test: bfl.data.Source) -> list[bfl.evaluation.Baseline]:
    """Score the linear models of all clients' rows on the test data; none where examples are not rows of a table.

    `bfl.glm.fit` for two classes or a number as the label, multinomial logistic regression by scikit-learn for more
    classes. Where the rows name the clients in training, also `bfl.glm.fit_hierarchical`, in which the intercept
    differs between clients; test rows of other clients have the mean one. Up to 500 clients it is fitted on random
    features too, with the prior by the marginal likelihood.
    """
    shape = test.element_shape
    if len(shape) != 1 or not 0 < shape[0] <= _MOST_COLUMNS or test.num_classes > MOST_CLASSES:
        return []
    clients = bfl.data.Clients(clients.source, [part for part in clients.indices if len(part)])
    found = []
    for fit in (_linear, _hierarchical, _with_features):
        try:
            found.append(fit(clients, test))
        except Error as error:  # Such as rows of one class only.
            logger.debug("There is no %s: %s", fit.__name__, error)
    return [one for one in found if one is not None]


def _linear(clients: bfl.data.Clients, test: bfl.data.Source) -> bfl.evaluation.Baseline | None:
    """Score the linear model; None where there is none."""
    if test.num_classes > 2:
        return _multinomial([clients.examples(k) for k in range(clients.num_clients)], test)
    fitted = bfl.glm.fit(*_given(clients, test), prior_stddev=PRIOR_STDDEV)
    centre, stddev = fitted.linear_predictor(test.features.astype(np.float64))
    return _scored(LINEAR, centre, stddev, fitted.dispersion, test)


def _hierarchical(
    clients: bfl.data.Clients,
    test: bfl.data.Source,
    name: str = HIERARCHICAL,
    most_clients: int = _MOST_CLIENTS,
    prior: float | str = PRIOR_STDDEV,
    features: str | None = None,
) -> bfl.evaluation.Baseline | None:
    """Score the linear model with an intercept for each client; None where the rows do not name the clients."""
    names = names_in(clients)
    if not names or test.owners is None or len(names) > most_clients:
        return None
    restricted = None if len(names) <= _FEW_CLIENTS else False
    classes = [str(c) for c in range(test.num_classes)] if test.num_classes > 2 else None
    if classes and (test.features.shape[1] + 1) * (test.num_classes - 1) > _MOST_OF_CLASSES:
        return None
    fitted = bfl.glm.fit_hierarchical(
        *_given(clients, test), features=features, prior_stddev=prior, restricted=restricted, classes=classes
    )
    if classes:
        probabilities = fitted.predict(test.features.astype(np.float64))
        for k, owner in enumerate(names):
            own = np.flatnonzero(test.owners == owner)
            if len(own):
                probabilities[own] = fitted.predict(test.features[own].astype(np.float64), k)
        return of_classes(name, probabilities, test.labels)
    centre, stddev = fitted.linear_predictor(columns := test.features.astype(np.float64))
    for k, owner in enumerate(names):
        own = np.flatnonzero(test.owners == owner)
        if len(own):
            centre[own], stddev[own] = fitted.linear_predictor(columns[own], k)
    return _scored(name, centre, stddev, fitted.posterior.dispersion, test)


def _with_features(clients: bfl.data.Clients, test: bfl.data.Source) -> bfl.evaluation.Baseline | None:
    """Score the model with random features too, on the columns of the table; None for more than two classes."""
    if test.num_classes > 2:
        return None
    return _hierarchical(clients, test, FEATURES, _MOST_WITH_FEATURES, "fitted", f"random:{_NUM_FEATURES}")


def _given(clients: bfl.data.Clients, test: bfl.data.Source) -> tuple[list[tuple[np.ndarray, np.ndarray]], str]:
    """Return the rows of each client, as standardised, and the family of the outcome."""
    examples = (clients.examples(k) for k in range(clients.num_clients))
    rows = [(each.features.astype(np.float64), each.labels.astype(np.float64)) for each in examples]
    of_classes = "multinomial" if test.num_classes > 2 else "bernoulli"
    return rows, of_classes if test.target is None else "gaussian"


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
