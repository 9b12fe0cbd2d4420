"""A posterior from one message of each client, and the posteriors of clients alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tfp_bfl.errors import InvalidArgument, lookup
from tfp_bfl.glm.families import FAMILIES
from tfp_bfl.glm.fitting import fit
from tfp_bfl.glm.newton import inverse, solve
from tfp_bfl.glm.posterior import Posterior
from tfp_bfl.glm.rows import Given, read


class OneMessage(NamedTuple):
    """A posterior from one message, and what it costs beside the exact one.

    Fields:
      posterior: combined from the clients' own maxima and information.
      clients: each client's own posterior, with the same prior.
      exact: the posterior from as many messages as it takes; None if it was not computed.
      distance: (mean - exact mean) / exact standard deviation [p]; None without `exact`.
    """

    posterior: Posterior
    clients: list[Posterior]
    exact: Posterior | None
    distance: np.ndarray | None


def one_message(
    clients: Given,
    family: str = "bernoulli",
    *,
    prior_stddev: float | None = None,
    intercept_stddev: float | None = None,
    exposure: Sequence[np.ndarray] | None = None,
    names: Sequence[str] | None = None,
    client_names: Sequence[str] | None = None,
    compare: bool = True,
) -> OneMessage:
    """Combine the clients' own maxima b_k and information A_k, which each client computes alone and sends once.

        A = sum_k A_k - (K - 1) P,   b = A^-1 sum_k A_k b_k,   P = diag(1 / s^2), in each A_k and counted once in A

    It is exact where the log likelihoods are quadratic (Gaussian outcomes with a known dispersion), and near the exact
    posterior where each client has many rows.

    Args:
      clients, family, prior_stddev, intercept_stddev, exposure, names: as of `fit`; not "cox".
      client_names: of the clients, for errors; their numbers if None.
      compare: compute the exact posterior too, and the distance from it; it takes further messages.

    Raises:
      InvalidArgument: as of `fit`; a client that can't be fitted alone is named.

    Source: Jonker, Pazira & Coolen 2024 (BFI).
    """
    lookup(FAMILIES, family, "family of one message")
    options = {"prior_stddev": prior_stddev, "intercept_stddev": intercept_stddev}
    table = read(clients, FAMILIES[family], names, exposure)
    own = []
    for number, rows in enumerate(table.clients):
        try:
            alone, years = [(rows.design[:, 1:], rows.outcome)], None if exposure is None else [np.exp(rows.offset)]
            own.append(fit(alone, family, **options, exposure=years, names=table.names[1:]))  # type: ignore[arg-type]
        except InvalidArgument as error:
            name = client_names[number] if client_names else number
            raise InvalidArgument(f"Client {name} can't be fitted alone: {error}") from None
    precision = own[0].precision
    information = [np.linalg.inv(one.covariance) for one in own]
    combined = sum(information) - (len(own) - 1) * np.diag(precision)
    mean = solve(combined, sum(matrix @ one.mean for matrix, one in zip(information, own)))
    posterior = dataclasses.replace(
        own[0],
        mean=mean,
        covariance=inverse(combined),
        count=sum(one.count for one in own),
        events=sum(one.events for one in own),
        num_clients=len(own),
        messages=1,
        log_likelihood=float("nan"),
        warnings=(),
        dispersion=sum(one.count * one.dispersion for one in own) / sum(one.count for one in own),
        degrees_of_freedom=None,
        sums=None,
        sums_at=None,
    )
    if not compare:
        return OneMessage(posterior, own, None, None)
    exact = fit(clients, family, **options, exposure=exposure, names=names)  # type: ignore[arg-type]
    return OneMessage(posterior, own, exact, (mean - exact.mean) / exact.stddev)
