"""The posterior of a model without random effects, by questions to a federation of clients."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from scipy import special

from tfp_bfl.errors import InvalidArgument
from tfp_bfl.glm import federation as asking
from tfp_bfl.glm.checks import check_resolution, few_events, misfit
from tfp_bfl.glm.federation import Federation, Question, Work, ask_sums, check_columns
from tfp_bfl.glm.newton import (
    Maximum,
    WithoutError,
    check_rows,
    expand,
    gaussian_of_sums,
    inverse,
    make_robust,
    maximise,
    residual_sum,
)
from tfp_bfl.glm.posterior import Model, Posterior

# Of Pearson's estimate under a prior, each of which takes two or three messages; the last change, relative.
_DISPERSION_STEPS, _CHANGE = 20, 1e-9


def estimate(federation: Federation, model: Model, precision: np.ndarray | None = None, further: int = 0) -> Posterior:
    """Fit a model without random effects; with a precision [p], of this prior.

    The last parameters, `further` in number, are no coefficients and have a flat prior.
    """
    names, family = federation.names, model.family
    if precision is None:
        precision = np.append(model.precision(names[: len(names) - further]), np.zeros(further))
    if family == "gaussian":
        posterior = _gaussian(federation, precision, model.dispersion)
        if not model.robust:
            return posterior
        scores = asking.ask_scores(federation, posterior.mean, model.robust)
        return make_robust(posterior, model.robust, scores / posterior.dispersion**2)
    of = asking.of_cox(federation, model.stratified) if family == "cox" else asking.of_family(federation, family)
    check_columns(federation, of.first, precision)
    dispersion, degrees = 1.0, None
    if of.family.has_dispersion:
        maximum, dispersion, degrees = _with_dispersion(of, precision, names, model.dispersion)
    else:
        maximum = _maximum(of, of.first, precision, names, of.messages, further)
    sums = maximum.sums
    # What a revision needs.
    has_sums = family != "cox" and of.family.is_canonical
    posterior = Posterior(
        names,
        maximum.coefficients,
        dispersion * inverse(maximum.information),
        family,
        int(sums.num_rows),
        int(sums.num_events),
        federation.num_clients,
        maximum.messages,
        _gamma_likelihood(sums, dispersion) if of.family.has_dispersion else sums.log_likelihood,
        precision,
        dispersion,
        [
            *few_events(sums, of.family, len(precision)),
            *([] if model.robust or of.family.has_dispersion else misfit(sums, len(precision))),
            *of.warnings(maximum.coefficients),
        ],
        sums if has_sums else None,
        maximum.sums_at if has_sums else None,
        model.dispersion,
        degrees,
    )
    if model.robust:
        return make_robust(posterior, model.robust, of.scores(posterior.mean, model.robust) / dispersion**2)
    if not model.second_order:
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


def _gaussian(federation: Federation, precision: np.ndarray, dispersion: float | None) -> Posterior:
    sums = ask_sums(federation, Question("sums", np.zeros(len(precision))))[0]
    check_columns(federation, sums, precision)
    posterior = gaussian_of_sums(sums, precision, dispersion, federation.names)
    if federation.is_secure:
        check_resolution(np.array([residual_sum(sums, posterior.mean)]), ["The outcome"], federation.num_clients)
    return dataclasses.replace(posterior, num_clients=federation.num_clients)


def _maximum(
    of: Work, first: asking.Sums, precision: np.ndarray, names: Sequence[str], messages: int, further: int = 0
) -> Maximum:
    """Find the maximum, with the expected information there if it is not that of the steps."""
    found = maximise(of.ask, first, precision, names, messages, further=further)
    if of.family.is_canonical:
        return found
    at, sums = found.coefficients, of.ask(found.coefficients, "expected")
    return Maximum(at, sums.information + np.diag(precision), sums, found.messages + 1, at)


def _with_dispersion(
    of: Work, precision: np.ndarray, names: Sequence[str], given: float | None
) -> tuple[Maximum, float, float | None]:
    """Find the maximum for a gamma outcome, its dispersion d, and the degrees of freedom of an estimated one.

        d = sum_i (y_i - mu_i)^2 / mu_i^2 / (N - gamma),   gamma = p - tr(covariance diag(precision))

    Under a flat prior d does not change the maximum; otherwise both are computed in turn, log d by the secant method.
    The information of the maximum is that for a dispersion of 1, and a prior of the precision times d.

    Source: McCullagh & Nelder 1989, section 8.3.
    """
    dispersion, first, messages, last = given or 1.0, of.first, of.messages, None
    if given is None:
        check_rows(first, len(precision))
    for _ in range(_DISPERSION_STEPS):
        maximum = _maximum(of, first, dispersion * precision, names, messages)
        if given is not None:
            return maximum, given, None
        sums, covariance = maximum.sums, dispersion * inverse(maximum.information)
        degrees = sums.num_rows - len(precision) + float(np.diag(covariance) @ precision)
        estimated = float(sums.pearson[0]) / degrees
        if estimated < 1e-12:
            raise WithoutError("The columns predict the outcome without error: drop the column that holds the outcome.")
        at, change = math.log(dispersion), math.log(estimated / dispersion)
        if not np.any(precision) or abs(change) <= _CHANGE:
            return maximum, estimated, degrees
        step = change if last is None else -change * (at - last[0]) / (change - last[1])
        last, dispersion = (at, change), dispersion * math.exp(min(max(step, -2.0), 2.0))
        # One step from there.
        first = sums._replace(gradient=sums.gradient + sums.information @ maximum.sums_at)
        messages = maximum.messages
    raise InvalidArgument("The dispersion did not converge: give dispersion, or a wider prior.")


def _gamma_likelihood(sums: asking.Sums, dispersion: float) -> float:
    """Compute the log likelihood of a gamma outcome by that for a dispersion of 1 and the sum of log y."""
    shape = 1 / dispersion
    constant = sums.num_rows * (shape * math.log(shape) - float(special.gammaln(shape)))
    return constant + shape * sums.log_likelihood + (shape - 1) * float(sums.pearson[1])
