"""The posterior of a generalised linear model from sums of clients: equal to that of all rows in one place."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from tfp_bfl.errors import InvalidArgument, check_number, lookup
from tfp_bfl.glm import work
from tfp_bfl.glm.checks import check_determined, check_resolution, few_events, misfit
from tfp_bfl.glm.expansion import expand
from tfp_bfl.glm.families import FAMILIES
from tfp_bfl.glm.federation import Federation, InProcess, Question, ask_sums, check_columns
from tfp_bfl.glm.newton import inverse, maximise, solve
from tfp_bfl.glm.posterior import Posterior
from tfp_bfl.glm.rows import INTERCEPT, Given, read
from tfp_bfl.glm.sums import Sums

_DISPERSION_STEPS = 200
_CHANGE = 1e-13


def fit(
    clients: Given,
    family: str = "gaussian",
    *,
    prior_stddev: float | None = None,
    intercept_stddev: float | None = None,
    dispersion: float | None = None,
    exposure: Sequence[np.ndarray] | None = None,
    names: Sequence[str] | None = None,
    stratified: bool = False,
    second_order: bool = False,
    secure_sums: bool = False,
) -> Posterior:
    """Fit a generalised linear model by Newton's method on sums of clients.

        log p(b | all rows) = sum_k sum_(i at k) log p(y_i | x_i' b) - sum_j b_j^2 / (2 s_j^2) + constant
        posterior: N(b*, (information + diag(1 / s^2))^-1) at its maximum b*

    Each message brings every client the coefficients, and the server the sums of log likelihood, gradient [p] and
    information [p, p], for p coefficients. These are sums over rows, so that the result equals that of all rows in one
    place up to rounding, however the rows lie. The Gaussian family needs one message, the others five to ten. Links are
    the canonical ones: identity, logit and log; for "cox" the partial likelihood with Efron's ties (`tfp_bfl.glm.cox`),
    which has no intercept.

    Args:
      clients: `data.Clients`, in the units of its table, or a list of (features [n, d], outcome [n]) of each client.
        The outcome of `data.Clients` without a target is the number that names the class.
        There are p = d + 1 coefficients with the intercept; p = d for "cox". For "cox" the outcome is (time, event)
        [n, 2], with an event of 1, or 0 for a censored row.
      family: "gaussian", "bernoulli", "poisson" or "cox".
      prior_stddev: s of the Gaussian prior on each coefficient, with the intercept; None for a flat prior.
      intercept_stddev: s of the intercept; None for `prior_stddev`, infinity for a flat prior.
      dispersion: the variance of a Gaussian outcome; None to estimate it by the maximum of the marginal likelihood,
        RSS / (N - p) under a flat prior.
      exposure: "poisson" only: of each client's rows [n]; its logarithm is added to the linear predictor.
      names: of the d features.
      stratified: "cox" only: each client has a baseline hazard of its own; then no event times leave a client.
      second_order: replace maximum and curvature by mean and covariance to second order (`expansion.expand`), which
        takes 2 p + 1 more messages: for few events, where the posterior is moderately skewed. Where it is more skewed
        than that, maximum and curvature stay, with a warning. Gaussian outcomes need none.
      secure_sums: add the clients' sums in fixed point, as secure aggregation between sites does (`fixed_point`). "cox"
        then needs stratified.

    Returns:
      The posterior, with mean [p] and covariance [p, p], the intercept first.

    Raises:
      InvalidArgument: bad input; coefficients that the rows do not determine (collinear columns); or a likelihood
        without a maximum (separation). The message names the column.

    Example:
      >>> import numpy as np
      >>> import tfp_bfl as bfl
      >>> x = np.array([[0.0], [1.0], [2.0], [3.0]])
      >>> clients = [(x, np.array([1.0, 3.0, 5.0, 7.2])), (x, np.array([1.2, 2.8, 5.1, 6.9]))]
      >>> print(bfl.glm.fit(clients, names=["dose"]).table())
      coefficient   mean       sd  95 % from     to  df
      (intercept)  1.025  0.08874     0.8079  1.242   6
      dose             2  0.04743      1.884  2.116   6

    Source: McCullagh & Nelder 1989, chapter 2; MacKay 1992 for the dispersion.
    """
    check_options(family, prior_stddev, intercept_stddev, dispersion, stratified)
    if exposure is not None and family != "poisson":
        raise InvalidArgument(f"exposure is for the family 'poisson', but the family is {family!r}.")
    table = read(clients, FAMILIES.get(family), names, exposure, intercept=family != "cox")
    return fit_federation(
        InProcess(table, family, secure_sums),
        family,
        prior_stddev=prior_stddev,
        intercept_stddev=intercept_stddev,
        dispersion=dispersion,
        stratified=stratified,
        second_order=second_order,
    )


def fit_federation(
    federation: Federation,
    family: str,
    *,
    prior_stddev: float | None = None,
    intercept_stddev: float | None = None,
    dispersion: float | None = None,
    stratified: bool = False,
    second_order: bool = False,
) -> Posterior:
    """Fit a model to clients that answer questions, in this process or at sites.

    Args:
      federation: the clients.
      family, prior_stddev, intercept_stddev, dispersion, stratified, second_order: as of `fit`.

    Raises:
      InvalidArgument: as of `fit`.
    """
    check_options(family, prior_stddev, intercept_stddev, dispersion, stratified)
    names = federation.names
    precision = prior_precision(names, prior_stddev, intercept_stddev)
    if family == "gaussian":
        return _gaussian(federation, precision, dispersion)
    of = work.of_cox(federation, stratified) if family == "cox" else work.of_family(federation, family)
    check_columns(federation, of.first, precision)
    maximum = maximise(of.ask, of.first, precision, names, of.messages)
    sums, covariance = maximum.sums, inverse(maximum.information)
    posterior = Posterior(
        names,
        maximum.coefficients,
        covariance,
        family,
        int(sums.num_rows),
        int(sums.num_events),
        federation.num_clients,
        maximum.messages,
        sums.log_likelihood,
        precision,
        warnings=[
            *few_events(sums, of.family, len(precision)),
            *misfit(sums, len(precision)),
            *of.warnings(maximum.coefficients),
        ],
        sums=None if family == "cox" else sums,
        sums_at=None if family == "cox" else maximum.sums_at,
    )
    if not second_order:
        return posterior
    moments = expand(of.ask, maximum.coefficients, maximum.information)
    return dataclasses.replace(
        posterior,
        mean=moments.mean,
        covariance=moments.covariance,
        messages=maximum.messages + moments.messages,
        warnings=[*posterior.warnings, *moments.warnings],
        # A revision would go back to maximum and curvature.
        sums=None,
        sums_at=None,
    )


def prior_precision(names: Sequence[str], prior_stddev: float | None, intercept_stddev: float | None) -> np.ndarray:
    """Return 1 / s^2 of each coefficient [p]; 0 for a flat prior."""
    of = lambda stddev: 0.0 if stddev is None else 1 / stddev**2
    first = prior_stddev if intercept_stddev is None else intercept_stddev
    return np.array([of(first) if name == INTERCEPT else of(prior_stddev) for name in names])


def check_options(
    family: str,
    prior_stddev: float | None = None,
    intercept_stddev: float | None = None,
    dispersion: float | None = None,
    stratified: bool = False,
) -> None:
    """Check the options of `fit`.

    Raises:
      InvalidArgument: an option is not valid, or of another family.
    """
    lookup({**FAMILIES, "cox": None}, family, "family")
    for name, stddev in (("prior_stddev", prior_stddev), ("intercept_stddev", intercept_stddev)):
        if stddev is not None and stddev != math.inf:
            check_number(stddev, name)
    if dispersion is not None:
        check_number(dispersion, "dispersion")
        if family != "gaussian":
            raise InvalidArgument(f"dispersion is for the family 'gaussian', but the family is {family!r}.")
    if stratified and family != "cox":
        raise InvalidArgument(f"stratified is for the family 'cox', but the family is {family!r}.")


def _gaussian(federation: Federation, precision: np.ndarray, dispersion: float | None) -> Posterior:
    sums = ask_sums(federation, Question("sums", np.zeros(len(precision))))[0]
    check_columns(federation, sums, precision)
    posterior = gaussian_of_sums(sums, precision, dispersion, federation.names)
    if federation.is_secure:
        check_resolution(np.array([_residual_sum(sums, posterior.mean)]), ["The outcome"], federation.num_clients)
    return dataclasses.replace(posterior, num_clients=federation.num_clients)


def gaussian_of_sums(sums: Sums, precision: np.ndarray, dispersion: float | None, names: Sequence[str]) -> Posterior:
    """Return the posterior of Gaussian outcomes from sums at coefficients of 0: X'X, X'y and -y'y / 2.

    Without a dispersion d the fixed point of d = RSS / (N - gamma), gamma = p - tr(covariance diag(precision)), which
    maximises the marginal likelihood (MacKay 1992, equation 4.10).

    Raises:
      InvalidArgument: collinear columns, or no more rows than coefficients where the dispersion is estimated.
    """
    check_determined(sums.information + np.diag(precision), names, sums.num_rows)
    variance, degrees = dispersion, None
    if dispersion is None:
        if sums.num_rows <= len(precision):
            raise InvalidArgument(
                f"There are {sums.num_rows:g} rows for {len(precision)} coefficients: give dispersion, the variance of "
                "the outcome, or more rows."
            )
        variance, degrees = _estimated_dispersion(sums, precision)
    assert variance is not None
    information = sums.information / variance + np.diag(precision)
    mean = solve(information, sums.gradient / variance)
    rss = _residual_sum(sums, mean)
    log_likelihood = -0.5 * rss / variance - 0.5 * sums.num_rows * math.log(2 * math.pi * variance)
    family = FAMILIES["gaussian"]
    return Posterior(
        names,
        mean,
        inverse(information),
        "gaussian",
        int(sums.num_rows),
        int(sums.num_events),
        1,
        1,
        log_likelihood,
        precision,
        variance,
        few_events(sums, family, len(precision)),
        sums,
        np.zeros(len(precision)),
        dispersion,
        degrees,
    )


def _residual_sum(sums: Sums, mean: np.ndarray) -> float:
    return max(float(-2 * sums.log_likelihood - 2 * mean @ sums.gradient + mean @ sums.information @ mean), 0.0)


def _estimated_dispersion(sums: Sums, precision: np.ndarray) -> tuple[float, float]:
    """Return the dispersion, and the degrees of freedom N - gamma."""
    variance, degrees = -2 * sums.log_likelihood / sums.num_rows or 1.0, sums.num_rows
    for _ in range(_DISPERSION_STEPS):
        information = sums.information / variance + np.diag(precision)
        rss = _residual_sum(sums, solve(information, sums.gradient / variance))
        determined = len(precision) - float(np.diag(inverse(information)) @ precision)
        degrees = sums.num_rows - determined
        before, variance = variance, rss / degrees
        if variance <= 1e-12 * -2 * sums.log_likelihood / sums.num_rows:
            raise InvalidArgument(
                "The columns predict the outcome without error, or its mean is too large beside its spread for sums: "
                "drop the column that holds the outcome, or subtract a constant from the outcome."
            )
        if abs(variance - before) <= _CHANGE * before:
            break
    return variance, degrees
