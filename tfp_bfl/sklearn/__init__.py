"""Estimators of scikit-learn that are fitted from sums of clients, for pipelines, cross-validation and grid search.

model = make_pipeline(StandardScaler(), bfl.sklearn.FederatedGLM("bernoulli"))
model.fit(X, y, federatedglm__groups=hospitals).predict_proba(X)
"""

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl.errors import InvalidArgument, check_numbers, lookup, missing_package, shown

try:
    from sklearn import base, metrics, utils
    from sklearn.utils import metaestimators, multiclass, validation
except ModuleNotFoundError:
    raise missing_package("scikit-learn") from None

__all__ = ["BayesianLastLayer", "FederatedGLM"]
# Families, with the prior that is "auto".
_FAMILIES = {"gaussian": None, "poisson": 2.5, "bernoulli": 2.5, "multinomial": 2.5}
_Predicted = np.ndarray | tuple[np.ndarray, np.ndarray]


class _Estimator(base.BaseEstimator):
    family = "multinomial"

    @property
    def _has_classes(self) -> bool:
        return self.family in ("bernoulli", "multinomial")

    def _checked(self, X: ArrayLike, *y: ArrayLike, **options: bool | int) -> list[np.ndarray]:
        """Return X [n, d], and y [n] if it is given."""
        found = validation.validate_data(self, X, *y, dtype=np.float64, ensure_all_finite=False, **options)
        found = [*found] if y else [found]
        utils.assert_all_finite(found[0], input_name="X")  # In one sentence; that of `validate_data` has several.
        return found

    def _clients(self, X: ArrayLike, y: ArrayLike, groups: ArrayLike | None) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return features [n, d] and outcome [n] of each client; classes are numbers from 0."""
        x, outcome = self._checked(X, y, y_numeric=not self._has_classes, ensure_min_samples=2)
        if self._has_classes:
            multiclass.check_classification_targets(outcome)
            self.classes_, outcome = np.unique(outcome, return_inverse=True)
            if len(self.classes_) < 2:
                raise InvalidArgument(f"y holds one class, {shown(self.classes_[0])}, but must hold two or more.")
        self.groups_, owners = np.unique(_owners(groups, len(x)), return_inverse=True)
        return [(x[owners == k], outcome[owners == k]) for k in range(len(self.groups_))]

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Compute the accuracy, or R^2 of numbers; clients count as new."""
        predicted = self.predict(X)
        if self._has_classes and len(new := np.setdiff1d(y, self.classes_)):
            warnings.warn(f"No row of the fit is of the class {shown(new[0])}: its rows count as wrong.", stacklevel=2)
        metric = metrics.accuracy_score if self._has_classes else metrics.r2_score
        return float(metric(y, predicted, sample_weight=sample_weight))

    def __sklearn_tags__(self) -> utils.Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.required, tags.target_tags.positive_only = True, self.family == "poisson"
        tags.estimator_type = "classifier" if self._has_classes else "regressor"
        tags.classifier_tags = (
            utils.ClassifierTags(multi_class=self.family != "bernoulli") if self._has_classes else None
        )
        tags.regressor_tags = None if self._has_classes else utils.RegressorTags()
        return tags


def _owners(groups: ArrayLike | None, count: int) -> np.ndarray:
    """Return the client of each row [n]; one client without groups."""
    given = np.zeros(count, np.int64) if groups is None else groups
    owners: np.ndarray = utils.check_array(given, ensure_2d=False, dtype=None, input_name="groups")
    if owners.shape != (count,):
        raise InvalidArgument(f"groups have the shape {owners.shape}, but must have ({count},), a client for each row.")
    return owners


class FederatedGLM(_Estimator):
    """A generalised linear model from sums of clients, for scikit-learn (`bfl.glm.fit`, `bfl.glm.fit_hierarchical`).

        E[y_i] = g^-1(x_i' b + z_i' u_k),   b_j ~ N(0, s^2),   u_k ~ N(0, L L'),   a flat prior of the intercept

    `fit` has columns X [n, d], the outcome y and the client of each row [n]; without groups there is one client. The
    fit equals that of all rows in one place up to rounding: the u_k alone depend on the groups. Fitted: `posterior_`, a
    `bfl.glm.Posterior`, with `random` a `bfl.glm.Hierarchical`; `groups_` [K]; `classes_` [C] of a classifier.

    Args:
      family: "gaussian" or "poisson" for a regressor, "bernoulli" or "multinomial" for a classifier.
      prior_stddev: s, in units of the linear predictor for one unit of the column; None for a flat prior; "auto" for a
        flat one of "gaussian" and otherwise 2.5, for standardised columns.
      random: at most three names of coefficients that differ between groups, such as ("(intercept)", "age"); columns
        have the names of a data frame, or x0, x1, ...

    Example:
      >>> from sklearn.datasets import load_diabetes
      >>> x, y = load_diabetes(return_X_y=True)
      >>> model = bfl.sklearn.FederatedGLM().fit(x, y, groups=np.arange(442) % 5)
      >>> mean, stddev = model.predict(x[:2], return_std=True)
      >>> mean.round(1), stddev.round(1), round(model.score(x, y), 3)
      (array([206.1,  68.1]), array([54.6, 54.8]), 0.518)
    """

    posterior_: "bfl.glm.Posterior | bfl.glm.Hierarchical"

    def __init__(
        self, family: str = "gaussian", *, prior_stddev: float | str | None = "auto", random: Sequence[str] = ()
    ):
        self.family = family
        self.prior_stddev = prior_stddev
        self.random = random

    def fit(self, X: ArrayLike, y: ArrayLike, groups: ArrayLike | None = None) -> Self:
        """Fit the model."""
        automatic = lookup(_FAMILIES, self.family, "family")
        clients = self._clients(X, y, groups)
        if self.family == "bernoulli" and len(self.classes_) > 2:
            raise InvalidArgument("Only binary classification is supported by 'bernoulli': use 'multinomial'.")
        options: dict[str, Any] = {
            "prior_stddev": automatic if self.prior_stddev == "auto" else self.prior_stddev,
            "intercept_stddev": math.inf,
            "names": [*getattr(self, "feature_names_in_", (f"x{j}" for j in range(self.n_features_in_)))],
            "classes": [*map(str, self.classes_)] if self.family == "multinomial" else None,
        }
        if len(self.random):
            self.posterior_ = bfl.glm.fit_hierarchical(clients, self.family, random=self.random, **options)
            return self
        try:
            self.posterior_ = bfl.glm.fit(clients, self.family, **options)
        except bfl.glm.newton.WithoutError as error:
            warnings.warn(str(error), stacklevel=2)
            least = 1e-12 * max(1.0, *(float(np.mean(np.square(y))) for _, y in clients))
            self.posterior_ = bfl.glm.fit(clients, self.family, dispersion=least, **options)
        return self

    def _by_group(self, X: ArrayLike, groups: ArrayLike | None, compute: Callable[..., np.ndarray]) -> np.ndarray:
        """Compute an array for rows [n, ...] from those of each client; clients without a name, or unknown, are new."""
        validation.check_is_fitted(self)
        (x,), known = self._checked(X, reset=False), {name: k for k, name in enumerate(self.groups_.tolist())}
        names = [None] * len(x) if groups is None else _owners(groups, len(x)).tolist()
        if not len(self.random):
            return compute(x)
        owners = np.array([known.get(name, -1) for name in names])
        order = [np.flatnonzero(owners == k) for k in np.unique(owners)]
        found = [compute(x[rows], None if owners[rows[0]] < 0 else int(owners[rows[0]])) for rows in order]
        return np.concatenate(found)[np.argsort(np.concatenate(order))]

    def predict(self, X: ArrayLike, *, groups: ArrayLike | None = None, return_std: bool = False) -> _Predicted:
        """Return the most probable class, or the mean and with `return_std` the standard deviation of the number [n].

        With `random`, rows of clients in `groups` have the client's coefficients; all others are of a new client.
        """
        if self._has_classes and return_std:
            raise InvalidArgument(f"return_std is for numbers, and {self.family!r} has predict_proba: leave it out.")
        if self._has_classes:
            best = np.argmax(self.predict_proba(X, groups=groups), 1)
            return self.classes_[best]
        mean = self._by_group(X, groups, lambda *of: self.posterior_.predict(*of))
        if not return_std:
            return mean
        variance = self._by_group(X, groups, lambda *of: np.square(self.posterior_.linear_predictor(*of)[1]))
        if self.family == "poisson":  # The mean of a count is lognormal.
            return mean, np.sqrt(mean + np.square(mean) * np.expm1(variance))
        fixed = self.posterior_.posterior if isinstance(self.posterior_, bfl.glm.Hierarchical) else self.posterior_
        return mean, np.sqrt(variance + fixed.dispersion)

    @metaestimators.available_if(lambda self: self._has_classes)
    def predict_proba(self, X: ArrayLike, *, groups: ArrayLike | None = None) -> np.ndarray:
        """Compute the probabilities of classes, averaged over the posterior [n, C]; `groups` as of `predict`."""
        found = self._by_group(X, groups, lambda *of: self.posterior_.predict(*of))
        return found if found.ndim == 2 else np.stack([1 - found, found], 1)


class BayesianLastLayer(_Estimator):
    """A classifier from sums of clients over given features, for scikit-learn: an exact head (`bfl.algorithms.head`).

        p(c | x) = E[softmax((W' x + b) / T)_c]   for "ridge" and "softmax", over 100 samples of the posterior of W, b
        p(c | x) ~ (pi_c t(x | c))^(1 / T)        for "gaussian", the predictive of Gaussian classes

    `fit` has features X [n, d], the class y and the client of each row [n]; without groups there is one client. Every
    tenth row of a client determines T alone. Fitted: `temperature_`, `groups_` [K], `classes_` [C].

    Args:
      head: "gaussian", "ridge" or "softmax".
      prior_stddev: of the weights of "ridge" and, on standardised features, of "softmax"; None for the maximum of the
        marginal likelihood.
      softmax_temperature: T; None for that of the rows that are held back, with a prior at 1.

    Example:
      >>> from sklearn.datasets import load_iris
      >>> x, y = load_iris(return_X_y=True)
      >>> bfl.sklearn.BayesianLastLayer().fit(x, y, groups=y).predict_proba(x[[0, 70]]).round(2)
      array([[1.  , 0.  , 0.  ],
             [0.  , 0.14, 0.86]])
    """

    def __init__(
        self, head: str = "gaussian", *, prior_stddev: float | None = None, softmax_temperature: float | None = None
    ):
        self.head = head
        self.prior_stddev = prior_stddev
        self.softmax_temperature = softmax_temperature

    def fit(self, X: ArrayLike, y: ArrayLike, groups: ArrayLike | None = None) -> Self:
        """Fit the head."""
        from tfp_bfl.sklearn.exact_heads import HeadSettings, fit_head  # It imports TensorFlow.

        lookup(dict.fromkeys(("gaussian", "ridge", "softmax")), self.head, "head")
        given = {name: getattr(self, name) for name in ("prior_stddev", "softmax_temperature")}
        check_numbers(**{name: x for name, x in given.items() if x is not None})
        settings, clients = HeadSettings(self.head, *given.values()), self._clients(X, y, groups)
        self.law_, self.temperature_ = fit_head(clients, len(self.classes_), settings)
        return self

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """Compute the probabilities of classes, averaged over the posterior [n, C]."""
        from tfp_bfl.sklearn.exact_heads import probabilities

        validation.check_is_fitted(self)
        return probabilities(self.law_, self.temperature_, *self._checked(X, reset=False))

    def predict(self, X: ArrayLike) -> np.ndarray:
        """Return the most probable class of each row [n]."""
        best = np.argmax(self.predict_proba(X), 1)
        return self.classes_[best]
