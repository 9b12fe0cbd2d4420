"""Columns in units of their own size, for the server's steps with random effects; clients compute in given units.

With units t of the columns, powers of two, theta = (b, L, log s) becomes theta d, d = (t, t of each row of L, 1).
Sums are exact in both: gradient / d, information / (d d').
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tfp_bfl.glm.effects import EffectsLayout
from tfp_bfl.glm.federation import Federation, Question
from tfp_bfl.glm.posterior import Posterior
from tfp_bfl.glm.sums import pack


class Scaled(NamedTuple):
    """Clients whose columns are divided by their units (`federation.Federation`).

    Fields:
      federation: the clients.
      units: of the columns [p].
      layout: of the parameters.
    """

    federation: Federation
    units: np.ndarray
    layout: EffectsLayout

    @property
    def names(self) -> Sequence[str]:
        """The names of the coefficients [p]."""
        return self.federation.names

    @property
    def num_clients(self) -> int:
        """The number of clients."""
        return self.federation.num_clients

    @property
    def is_secure(self) -> bool:
        """Return whether answers are added in fixed point."""
        return self.federation.is_secure

    @property
    def factors(self) -> np.ndarray:
        """The factors d of the parameters [size]."""
        of_effects = [self.units[self.layout.columns[a]] for a, _ in self.layout.pairs]
        return np.array([*self.units, *of_effects, *[1.0] * self.layout.has_dispersion])

    def total(self, question: Question) -> np.ndarray:
        """Implement `Federation.total` for questions on random effects."""
        points, d = np.atleast_2d(question.points), self.factors
        numbers = self.federation.total(question._replace(points=points / d))
        of_sums = pack(np.ones(3), 1 / d, 1 / np.outer(d, d), np.ones(2))
        if question.kind == "restricted":
            of_precisions = np.ravel(1 / np.outer(self.units, self.units))
            scales = np.concatenate([of_sums, np.tile(of_precisions, len(points))])
        else:
            scales = np.tile(of_sums, len(points))
        return numbers * scales

    def event_times(self) -> np.ndarray:
        """Implement `Federation.event_times`."""
        return self.federation.event_times()


def units_of(pooled: Posterior) -> np.ndarray:
    """Return the root mean square of each column in a fit without random effects, as a power of two [p]."""
    squares = np.ones(len(pooled.names)) if pooled.sums is None else np.diag(pooled.sums.information)
    usable = np.where((squares > 0) & np.isfinite(squares), squares, 1.0)
    return np.exp2(np.rint(0.5 * np.log2(usable / max(pooled.count, 1))))
