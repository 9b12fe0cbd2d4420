"""Sums of a client in a model with random effects: the effect of the client is integrated out."""

import functools
from typing import NamedTuple, Self

import numpy as np
import scipy.linalg
from scipy import special

from tfp_bfl.glm.families import Family, Terms
from tfp_bfl.glm.quadrature import grid
from tfp_bfl.glm.rows import Rows
from tfp_bfl.glm.sums import Sums, predictors, quadratic

MODE_STEPS = 50
TOLERANCE = 1e-20
# Of the logarithm of a standard deviation, on the way: further ones leave float64.
MOST_LOG = 150.0
# Of second derivatives at the nodes of a block of rows, which are computed at once.
_MOST_NUMBERS = 2**23


class EffectsLayout(NamedTuple):
    """The parameters theta = (b, L, log s): what is where.

    Fields:
      num_coefficients: p q.
      columns: of the design, whose coefficients differ between clients [d].
      has_dispersion: whether log s, the logarithm of a Gaussian outcome's standard deviation, comes last.
      num_predictors: q of a row.
    """

    num_coefficients: int
    columns: tuple[int, ...]
    has_dispersion: bool
    num_predictors: int = 1

    @classmethod
    def of_points(cls, size: int, width: int, columns: tuple[int, ...], has_dispersion: bool) -> Self:
        """Return the layout of parameters [size] for a design of this width."""
        q = (size - len(columns) * (len(columns) + 1) // 2 - has_dispersion) // width
        return cls(width * q, columns, has_dispersion, q)

    @property
    def places(self) -> list[int]:
        """Indices of the coefficients that differ between clients [d q]."""
        return [j * self.num_predictors + a for j in self.columns for a in range(self.num_predictors)]

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Rows and columns of the entries of L, lower triangular."""
        return [(a, b) for a in range(len(self.columns)) for b in range(a + 1)]

    @property
    def size(self) -> int:
        """The number of parameters."""
        return self.num_coefficients + len(self.pairs) + self.has_dispersion

    def factor(self, parameters: np.ndarray) -> np.ndarray:
        """Return L [d, d]."""
        factor = np.zeros((len(self.columns),) * 2)
        for value, place in zip(parameters[self.num_coefficients :], self.pairs):
            factor[place] = value
        return factor

    def log_stddev(self, parameters: np.ndarray) -> float:
        """Return log s; 0 for other families."""
        return float(np.clip(parameters[-1], -MOST_LOG, MOST_LOG)) if self.has_dispersion else 0.0


class Effect(NamedTuple):
    """The posterior of one client's effect u = L v [d q] given theta; the slope is du / db, at the mode [d q, p q]."""

    mean: np.ndarray
    covariance: np.ndarray
    slope: np.ndarray


def client_sums(
    rows: Rows, parameters: np.ndarray, family: Family, layout: EffectsLayout, nodes: int
) -> tuple[Sums, Effect]:
    """Compute the sums of one client's marginal likelihood, and the posterior of its effect.

        p(y | theta) = integral of prod_i p(y_i | x_i' b + z_i' L v) N(v; 0, I) dv

    by adaptive quadrature (`quadrature.grid`) around the mode of v; with q predictors of a row, b is [p, q] and v is
    [d, q]. With f_i(v) = (x_i, z_ia v_c) the predictor is linear in
    (b, L), and by Fisher's and Louis' identities, expectations over v given y:

        gradient = E[sum_i score_i f_i],   information = E[sum_i weight_i f_i f_i'] - Cov[sum_i score_i f_i]

    `nodes` are those of the quadrature along each dimension of v.

    Source: Louis 1982; Pinheiro & Bates 1995 for adaptive quadrature.
    """
    z, factor, q = rows.design[:, layout.columns], layout.factor(parameters), layout.num_predictors
    fixed, along = predictors(rows, parameters[: layout.num_coefficients], family), z @ factor
    log_stddev = layout.log_stddev(parameters)
    terms = functools.partial(_terms, family, log_stddev)
    mode, root = _mode(functools.partial(terms, rows.outcome), fixed, along)
    points, log_weights = grid(len(mode), nodes)
    at = mode + points @ root.T
    v = at.reshape(len(at), -1, q)
    log_joint = log_weights + 0.5 * np.sum(points**2 - at**2, 1) + np.sum(np.log(np.diag(root)))
    length = max(1, _MOST_NUMBERS // (len(at) * q**2))
    blocks = [slice(i, i + length) for i in range(0, len(fixed), length)]
    at_nodes = lambda part: terms(rows.outcome[part], fixed[part] + along[part] @ v)
    kept = at_nodes(blocks[0]) if len(blocks) == 1 else None
    for part in blocks:
        log_joint = log_joint + np.sum((kept or at_nodes(part)).log_likelihood, 1)
    marginal = float(special.logsumexp(log_joint))
    shares = np.exp(log_joint - marginal)
    scores, information = np.zeros((len(at), layout.size)), np.zeros((layout.size,) * 2)
    for part in blocks:
        own = Rows(*(x[part] for x in rows))
        of_scores, of_information = _derivatives(own, v, kept or at_nodes(part), shares, layout, log_stddev)
        scores, information = scores + of_scores, information + of_information
    gradient = shares @ scores
    information -= (scores - gradient).T @ (shares[:, np.newaxis] * (scores - gradient))
    mean = shares @ at
    spread = (at - mean).T @ (shares[:, np.newaxis] * (at - mean))
    sums = Sums(float(len(fixed)), float(family.events(rows.outcome)), marginal, gradient, information)
    of_all = np.kron(factor, np.eye(q))
    weight = terms(rows.outcome, fixed + along @ mode.reshape(-1, q)).weight
    slope = -of_all @ root @ root.T @ quadratic(along, weight, rows.design)
    return sums, Effect(of_all @ mean, of_all @ spread @ of_all.T, slope)


def precisions(rows: Rows, points: np.ndarray, layout: EffectsLayout) -> np.ndarray:
    """Compute the information on the coefficients of one client with Gaussian outcomes at m points theta [m, p, p].

    X' V^-1 X = (X' X - X' Z L (s^2 I + L' Z' Z L)^-1 L' Z' X) / s^2,   V = Z L L' Z' + s^2 I
    """
    x = rows.design
    whole, across = x.T @ x, x.T @ x[:, layout.columns]
    within, parts = across[list(layout.columns)], []
    for parameters in points:
        factor, variance = layout.factor(parameters), np.exp(2 * layout.log_stddev(parameters))
        inner = variance * np.eye(len(factor)) + factor.T @ within @ factor
        along = across @ factor
        parts.append((whole - along @ np.linalg.solve(inner, along.T)) / variance)
    return np.stack(parts)


def _terms(family: Family, log_stddev: float, outcome: np.ndarray, eta: np.ndarray) -> Terms:
    terms = family.terms(eta, outcome)
    if family.name != "gaussian":
        return terms
    precision = np.exp(-2 * log_stddev)
    constant = log_stddev + 0.5 * np.log(2 * np.pi)
    return Terms(precision * terms.log_likelihood - constant, precision * terms.score, precision * terms.weight)


def _mode(terms: functools.partial[Terms], fixed: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find the mode of v [d q], and a root of the inverse of the information there [d q, d q]."""
    q = fixed.shape[1]
    v, best = np.zeros(z.shape[1] * q), -np.inf
    step = np.zeros_like(v)
    for _ in range(MODE_STEPS):
        t = terms(fixed + z @ v.reshape(-1, q))
        value = float(np.sum(t.log_likelihood) - 0.5 * v @ v)
        if value < best - 1e-12 * abs(best):
            step /= 2
            v = v - step
            continue
        best = value
        information = quadratic(z, t.weight, z) + np.eye(len(v))
        step = np.linalg.solve(information, np.ravel(z.T @ t.score) - v)
        v = v + step
        if step @ information @ step < TOLERANCE:
            break
    information = quadratic(z, terms(fixed + z @ v.reshape(-1, q)).weight, z) + np.eye(len(v))
    lower = np.linalg.cholesky(information)
    return v, scipy.linalg.solve_triangular(lower, np.eye(len(v)), lower=True).T


def _derivatives(
    rows: Rows, v: np.ndarray, terms: Terms, shares: np.ndarray, layout: EffectsLayout, log_stddev: float
) -> tuple[np.ndarray, np.ndarray]:
    """Compute derivatives of sum_i log p(y_i | v) by theta at the nodes v [Q, d, q], which have these shares [Q].

    The first ones for each node [Q, size], and minus the mean of the second ones [size, size].
    """
    design, size, pairs, z = rows.design, layout.num_coefficients, layout.pairs, rows.design[:, layout.columns]
    of_z = z.T @ terms.score
    scores = [(design.T @ terms.score).reshape(len(v), -1)]
    scores += [np.sum(of_z[:, a] * v[:, b], 1)[:, np.newaxis] for a, b in pairs]
    information = np.zeros((layout.size, layout.size))
    information[:size, :size] = quadratic(design, np.tensordot(shares, terms.weight, 1), design)
    of_v = [(terms.weight @ v[:, np.newaxis, b, :, np.newaxis])[..., 0] for b in range(len(layout.columns))]
    for i, (a, b) in enumerate(pairs):
        moment = np.tensordot(shares, of_v[b], 1)
        information[:size, size + i] = information[size + i, :size] = np.ravel(design.T @ (z[:, a : a + 1] * moment))
        for j, (c, d) in enumerate(pairs):
            both = shares @ np.sum(of_v[b] * v[:, np.newaxis, d], 2)
            information[size + i, size + j] = z[:, a] @ (z[:, c] * both)
    if layout.has_dispersion:  # sum_i r_i^2 / s^2, with the score r / s^2.
        squares = np.sum(terms.score**2, (1, 2)) * np.exp(2 * log_stddev)
        information[:-1, -1] = information[-1, :-1] = 2 * shares @ np.concatenate(scores, 1)
        information[-1, -1] = 2 * shares @ squares
        scores.append((squares - len(z))[:, np.newaxis])
    return np.concatenate(scores, 1), information
