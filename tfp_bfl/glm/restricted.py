"""Random effects at the server, from sums over clients: units of the columns, and restricted likelihood.

In units t of the columns, powers of two, theta = (b, L, log s) becomes theta d, d = (t, t of each row of L, 1). Clients
compute in given units; sums are exact in both: gradient / d, information / (d d').

Restricted maximum likelihood (REML) is of Gaussian models with the coefficients integrated out,

    log p(y | psi) = max_b log p(y | b, psi) - log det H(psi) / 2 + constant
    H = sum_k X_k' V_k^-1 X_k + diag(1 / s^2)

where psi are the variances between clients and of the residuals. Without the determinant, they are too small where few
clients determine b.

Source: Patterson & Thompson 1971.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tfp_bfl.glm.effects import EffectsLayout
from tfp_bfl.glm.federation import Federation, Question
from tfp_bfl.glm.newton import inverse
from tfp_bfl.glm.posterior import Posterior, Satterthwaite
from tfp_bfl.glm.sums import Sums, pack

# Of differences, as a share of the scale of each variance parameter.
DIFFERENCE = 1e-3
# Of the information scaled to a unit diagonal: rounding of differences in a flat direction.
_FLAT = 1e-6


class Scaled:
    """Clients whose columns are divided by their units [p] (`federation.Federation`), for questions on random effects.

    `factors` are the factors d of the parameters [size].
    """

    def __init__(self, federation: Federation, units: np.ndarray, layout: EffectsLayout):
        self._federation, self._units = federation, units
        self.names, self.num_clients, self.is_secure = federation.names, federation.num_clients, federation.is_secure
        self.event_times = federation.event_times
        of_effects = [units[layout.columns[a] * layout.num_predictors] for a, _ in layout.pairs]
        self.factors = np.array([*units, *of_effects, *[1.0] * layout.has_dispersion])

    def total(self, question: Question) -> np.ndarray:
        """Implement `Federation.total`."""
        points, d = np.atleast_2d(question.points), self.factors
        numbers = self._federation.total(question._replace(points=points / d))
        of_sums = pack(np.ones(3), 1 / d, 1 / np.outer(d, d), np.ones(2))
        if question.kind == "restricted":
            of_precisions = np.ravel(1 / np.outer(self._units, self._units))
            return numbers * np.concatenate([of_sums, np.tile(of_precisions, len(points))])
        return numbers * np.tile(of_sums, len(points))


def units_of(pooled: Posterior) -> np.ndarray:
    """Compute the root mean square of each column in a fit without random effects, as a power of two [p]."""
    squares = np.ones(len(pooled.names)) if pooled.sums is None else np.diag(pooled.sums.information)
    of_columns = squares.reshape(len({*pooled.names}), -1)
    squares = np.repeat(np.mean(of_columns, 1), of_columns.shape[1])
    usable = np.where((squares > 0) & np.isfinite(squares), squares, 1.0)
    return np.exp2(np.rint(0.5 * np.log2(usable / max(pooled.count, 1))))


class Restricted(NamedTuple):
    """Messages for the restricted likelihood: each asks for the information on b at several variances near each other.

    Fields:
      federation: the clients.
      question: of the random effects.
      precision: of the prior on the coefficients [p].
      steps: of the differences, for each variance parameter [v].
    """

    federation: Federation
    question: Question
    precision: np.ndarray
    steps: np.ndarray

    def sums(self, parameters: np.ndarray) -> Sums:
        """Return the sums at parameters (b, psi), with the restricted likelihood, from one message."""
        size, steps, count = len(self.precision), self.steps, len(self.steps)
        shifts = self._shifts()
        pairs = [(i, j) for i in range(count) for j in range(i)]
        mixed = [sign * (shifts[i] + shifts[j]) for i, j in pairs for sign in (1, -1)]
        sums, precisions = self._ask(parameters, [*shifts, *-shifts, *mixed])
        signs, logs = np.linalg.slogdet(precisions)
        # Rounding can leave a matrix indefinite at extreme variances, where the maximum is not: NaN refuses the step.
        half = np.where((signs > 0) & np.isfinite(logs), 0.5 * logs, np.nan)
        middle, above, below = half[0], half[1 : 1 + count], half[1 + count : 1 + 2 * count]
        twice = above + below - 2 * middle
        curvature = np.diag(twice / steps**2)
        for (i, j), both in zip(pairs, half[1 + 2 * count :].reshape(-1, 2)):
            value = np.sum(both) - 2 * middle - twice[i] - twice[j]
            curvature[i, j] = curvature[j, i] = value / (2 * steps[i] * steps[j])
        gradient, information = sums.gradient.copy(), sums.information.copy()
        gradient[size:] -= (above - below) / (2 * steps)
        information[size:, size:] += curvature
        return sums._replace(log_likelihood=sums.log_likelihood - middle, gradient=gradient, information=information)

    def satterthwaite(self, parameters: np.ndarray, covariance: np.ndarray) -> Satterthwaite:
        """Return the covariance of the coefficients given psi, and how it changes with psi, from one message.

        Directions are the columns of Cholesky's factor of the block of psi in the covariance of the parameters.
        """
        size, shifts = len(self.precision), self._shifts()
        middle, *around = (inverse(x) for x in self._ask(parameters, [*shifts, *-shifts])[1])
        above, below = np.split(np.array(around), 2)
        slopes = (above - below) / (2 * self.steps[:, np.newaxis, np.newaxis])
        root = np.linalg.cholesky(covariance[size:, size:])
        return Satterthwaite(middle, np.einsum("vd,vij->dij", root, slopes))

    def _shifts(self) -> np.ndarray:
        return np.pad(np.diag(self.steps), ((0, 0), (len(self.precision), 0)))

    def _ask(self, parameters: np.ndarray, shifts: Sequence[np.ndarray]) -> tuple[Sums, np.ndarray]:
        """Return the sums at parameters, and the information on b there and at the shifted ones [1 + m, p, p]."""
        points, size = parameters + np.stack([np.zeros(len(parameters)), *shifts]), len(self.precision)
        numbers = self.federation.total(self.question._replace(kind="restricted", points=points))
        first = Sums.length(len(parameters))
        matrices = numbers[first:].reshape(len(points), size, size)
        return Sums.unpack(numbers[:first], len(parameters)), matrices + np.diag(self.precision)


def is_flat(information: np.ndarray) -> bool:
    """Return whether some direction is undetermined, up to the error of differences."""
    scale = 1 / np.sqrt(np.diag(information))
    return bool(np.linalg.eigvalsh(information * np.outer(scale, scale))[0] < _FLAT)
