"""Sums of coefficients: their weights, those of linear predictors, and the joint test that several are 0."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from scipy import stats

from tfp_bfl.errors import InvalidArgument, lookup


def weights_of(names: Sequence[str], weights: Mapping[str, float] | np.ndarray) -> np.ndarray:
    """Return the weights of all coefficients [p], from coefficient -> weight, 0 for all others, or from [p]."""
    if isinstance(weights, Mapping):
        for name in weights:
            lookup(dict.fromkeys(names), name, "coefficient")
        weights = np.array([weights.get(name, 0.0) for name in names], object)
    try:
        row = np.asarray(weights, np.float64)
    except (TypeError, ValueError):
        row = np.zeros(0)
    if row.shape != (len(names),) or not np.all(np.isfinite(row)) or not np.any(row):
        raise InvalidArgument(f"weights must be {len(names)} finite numbers that are not all 0: {', '.join(names)}.")
    return row


def spread(rows: np.ndarray, predictors: int) -> np.ndarray:
    """Return a matrix for each row x [n, p]: from coefficients [p q] to linear predictors, x' (x) I [n, q, p q]."""
    lifted = np.einsum("ij,ab->iajb", rows, np.eye(predictors))
    return lifted.reshape(len(rows), predictors, -1)


def wald(mean: np.ndarray, covariance: np.ndarray, degrees: float | None) -> dict[str, float]:
    """Test whether m coefficients with mean [m] and covariance [m, m] are all 0 (`Posterior.wald_test`)."""
    count, chi = len(mean), float(mean @ np.linalg.solve(covariance, mean))
    law = stats.chi2(count) if degrees is None else stats.f(count, degrees)
    statistic = chi if degrees is None else chi / count
    residual = math.inf if degrees is None else degrees
    return {"statistic": statistic, "df": count, "df_residual": residual, "p": float(law.sf(statistic))}
