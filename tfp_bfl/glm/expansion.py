"""Mean and covariance of a posterior that is not quite normal, from derivatives of the information at its maximum."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tfp_bfl.glm.newton import inverse
from tfp_bfl.glm.sums import Sums

# In posterior standard deviations: large beside rounding, small beside the scale of the fourth derivative.
_DIFFERENCE = 0.1
# In posterior standard deviations and variances: the next order is about the square of this one.
_LARGEST = 0.75
_TOO_SKEWED = (
    "The posterior is too skewed for moments to second order: its maximum and curvature are given. More events or a "
    "narrower prior would help; a Markov chain is exact."
)


class MomentExpansion(NamedTuple):
    """Moments to second order.

    Fields:
      mean: [p].
      covariance: [p, p].
      messages: how many it took.
      warnings: a sentence where the second order is too large to be trusted; mean and covariance are then b* and the
        inverse of the information.
    """

    mean: np.ndarray
    covariance: np.ndarray
    messages: int
    warnings: list[str]


def expand(ask: Callable[[np.ndarray], Sums], coefficients: np.ndarray, information: np.ndarray) -> MomentExpansion:
    """Return mean and covariance to the second order of Laplace's expansion at the maximum b*, from 2 p + 1 messages.

    With T, Q the third and fourth derivatives of the log posterior at b*, S the inverse of the information there, and
    repeated indices summed:

        mean_a = b*_a + S_ab T_bcd S_cd / 2
        covariance = S + S P S,   P_ab = (Q_abcd S_cd + T_acd S_ce S_df T_bef + T_abc S_cd T_def S_ef) / 2

    T and Q_abcd S_cd are central differences of the information along the columns of a square root of S.

    Args:
      ask: coefficients -> the sums of all clients there; one message.
      coefficients: b* [p].
      information: of the rows and the prior there [p, p].

    Source: Tierney & Kadane 1986; the diagrams of one loop of any text on perturbation theory.
    """
    covariance = inverse(information)
    root = np.linalg.cholesky(covariance)
    flat = ask(coefficients).information
    third, fourth = [], np.zeros_like(covariance)
    for direction in root.T:
        above, below = (ask(coefficients + sign * _DIFFERENCE * direction).information for sign in (1, -1))
        third.append((below - above) / (2 * _DIFFERENCE))
        fourth += (2 * flat - above - below) / _DIFFERENCE**2
    # In coordinates in which the posterior has a covariance of 1, where indices are contracted directly.
    t = np.einsum("ia,cij,jb->abc", root, np.stack(third), root)
    tadpole = np.einsum("abb->a", t)
    loop = root.T @ fourth @ root + np.einsum("acd,bcd->ab", t, t) + np.einsum("abc,c->ab", t, tadpole)
    messages, sizes = 2 * len(root) + 1, np.abs(np.linalg.eigvalsh((loop + loop.T) / 2)) / 2
    if not np.linalg.norm(tadpole) / 2 < _LARGEST or not np.max(sizes) < _LARGEST:
        return MomentExpansion(coefficients, covariance, messages, [_TOO_SKEWED])
    corrected = root @ (np.eye(len(root)) + loop / 2) @ root.T
    return MomentExpansion(coefficients + root @ tadpole / 2, (corrected + corrected.T) / 2, messages, [])
