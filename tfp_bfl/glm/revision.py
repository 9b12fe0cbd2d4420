"""Clients that join or leave a finished fit, by adding and subtracting their sums."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tfp_bfl.errors import InvalidArgument
from tfp_bfl.glm.checks import few_events, misfit
from tfp_bfl.glm.families import CANONICAL, FAMILIES
from tfp_bfl.glm.multinomial import in_classes, with_classes
from tfp_bfl.glm.newton import gaussian_of_sums, inverse, solve
from tfp_bfl.glm.posterior import Model, Posterior
from tfp_bfl.glm.rows import INTERCEPT, Beside, Given, read
from tfp_bfl.glm.sums import Sums, client_sums

# Further than this the quadratic approximation at the old coefficients is poor.
_FAR = 2.0


class Revised(NamedTuple):
    """A posterior after clients joined or left.

    Fields:
      posterior: of the clients that are there now.
      moved: the length of the step from the coefficients of the last fit, in posterior standard deviations. The revised
        maximum is off by about its square over the square root of the number of events; 0 for Gaussian outcomes, which
        are exact.
    """

    posterior: Posterior
    moved: float


def revise(
    posterior: Posterior,
    add: Given = (),
    remove: Given = (),
    *,
    add_exposure: Sequence[np.ndarray] | None = None,
    remove_exposure: Sequence[np.ndarray] | None = None,
) -> Revised:
    """Add clients to a fit and remove others; only these clients compute.

        sums = sums(all) + sums(add) - sums(remove),   each at the coefficients of the last message

    Gaussian outcomes have the posterior of a new fit. For the others one Newton step follows from sums that are exact
    at the old coefficients: its error falls with the square of `moved`, and a new `fit` removes it.

    Args:
      posterior: of `fit`, without second_order.
      add, remove: clients as of `fit`; those that are removed must be as they were.
      add_exposure, remove_exposure: as `exposure` of `fit`.

    Example:
      >>> import numpy as np
      >>> import tfp_bfl as bfl
      >>> rng = np.random.default_rng(0)
      >>> clients = [(x := rng.normal(size=(20, 2)), x[:, 0] + rng.normal(size=20)) for _ in range(5)]
      >>> left = bfl.glm.revise(bfl.glm.fit(clients), remove=clients[3:4])
      >>> np.allclose(left.posterior.mean, bfl.glm.fit(clients[:3] + clients[4:]).mean)
      True
    """
    parts: list[tuple[Sums, int, int]] = []
    columns, at = posterior.columns, posterior.sums_at
    has_intercept = INTERCEPT in columns
    for given, exposure, sign in ((add, add_exposure, 1), (remove, remove_exposure, -1)):
        if at is None or (isinstance(given, Sequence) and not len(given)):
            continue
        family = FAMILIES[posterior.family]
        table = read(given, family, columns[has_intercept:], Beside(exposure), has_intercept)
        with_classes(table, given, posterior.classes or None, Model(posterior.family, 1.0))
        own = [client_sums(rows, at, family) for rows in table.clients]
        parts.append((functools.reduce(Sums.add, own), sign, len(own)))
    return revise_by_sums(posterior, parts)


def revise_by_sums(posterior: Posterior, parts: Sequence[tuple[Sums, int, int]]) -> Revised:
    """Add sums of clients to a fit, and subtract others.

    `parts` are sums at `posterior.sums_at`, 1 to add or -1 to subtract them, and the number of their clients.
    """
    if posterior.sums is None or posterior.sums_at is None:
        raise InvalidArgument(
            "This posterior has no sums by which clients join and leave: it must come from fit without second_order, "
            f"robust and epsilon, of a family among {', '.join(CANONICAL)}. Fit anew."
        )
    sums, clients, is_share = posterior.sums, posterior.num_clients, posterior.family in ("bernoulli", "multinomial")
    for own, sign, number in parts:
        sums, clients = sums.add(own, sign), clients + sign * number
    if sums.num_rows < 1 or clients < 1 or not 0 <= sums.num_events <= (sums.num_rows if is_share else np.inf):
        raise InvalidArgument(
            f"{posterior.num_clients} clients with {posterior.count} rows and {posterior.events} events are there, and "
            "no more can be removed."
        )
    undetermined = "The clients that are left do not determine the coefficients: fit them with a prior."
    if posterior.family == "gaussian":
        # The dispersion is estimated again; one that was given to `fit` is given to it once more.
        try:
            revised = gaussian_of_sums(sums, posterior.precision, posterior.given_dispersion, posterior.names)
        except (np.linalg.LinAlgError, ValueError) as error:
            raise error if isinstance(error, InvalidArgument) else InvalidArgument(undetermined) from None
        return Revised(dataclasses.replace(revised, num_clients=clients, messages=posterior.messages + 1), 0.0)
    information = sums.information + np.diag(posterior.precision)
    try:
        step = solve(information, sums.gradient - posterior.precision * posterior.sums_at)
    except (np.linalg.LinAlgError, ValueError):
        raise InvalidArgument(undetermined) from None
    moved = float(np.sqrt(step @ information @ step))
    mean, family = posterior.sums_at + step, FAMILIES[posterior.family]
    warnings = [*few_events(sums, family, len(mean)), *misfit(sums, len(mean))]
    if moved > _FAR:
        warnings.append(
            f"The revised maximum is {moved:.2g} posterior standard deviations from the coefficients of the sums: fit "
            "anew."
        )
    revised = dataclasses.replace(
        posterior,
        names=[name for name in posterior.columns for _ in range(posterior.num_predictors)],
        mean=mean,
        covariance=inverse(information),
        count=int(sums.num_rows),
        events=int(sums.num_events),
        num_clients=clients,
        messages=posterior.messages + 1,
        log_likelihood=sums.log_likelihood,
        sums=sums,
        warnings=warnings,
    )
    return Revised(in_classes(revised, posterior.classes) if posterior.classes else revised, moved)
