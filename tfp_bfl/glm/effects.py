"""Sums of a client in a model with random effects: the effect of the client is integrated out."""

import functools
import itertools
from typing import NamedTuple

import numpy as np
import scipy.linalg
from scipy import special

from tfp_bfl.glm.families import Family, Terms
from tfp_bfl.glm.rows import Rows
from tfp_bfl.glm.sums import Sums

MODE_STEPS = 50
TOLERANCE = 1e-20
# Of the logarithm of a standard deviation, on the way: further ones leave float64.
MOST_LOG = 150.0


class EffectsLayout(NamedTuple):
    """The parameters theta = (b, L, log s): what is where.

    Fields:
      num_coefficients: p.
      columns: of the design, whose coefficients differ between clients [d].
      has_dispersion: whether log s, the logarithm of a Gaussian outcome's standard deviation, comes last.
    """

    num_coefficients: int
    columns: tuple[int, ...]
    has_dispersion: bool

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
    """The posterior of one client's effect u = L v given theta; the slope is du / db, at the mode [d, p]."""

    mean: np.ndarray
    covariance: np.ndarray
    slope: np.ndarray


def client_sums(
    rows: Rows, parameters: np.ndarray, family: Family, layout: EffectsLayout, nodes: int
) -> tuple[Sums, Effect]:
    """Compute the sums of one client's marginal likelihood, and the posterior of its effect.

        p(y | theta) = integral of prod_i p(y_i | x_i' b + z_i' L v) N(v; 0, I) dv

    by adaptive Gauss-Hermite quadrature around the mode of v. With f_i(v) = (x_i, z_ia v_c) the predictor is linear in
    (b, L), and by Fisher's and Louis' identities, expectations over v given y:

        gradient = E[sum_i score_i f_i],   information = E[sum_i weight_i f_i f_i'] - Cov[sum_i score_i f_i]

    `nodes` are those of the quadrature along each dimension of v.

    Source: Louis 1982; Pinheiro & Bates 1995 for adaptive quadrature.
    """
    z, factor = rows.design[:, layout.columns], layout.factor(parameters)
    fixed = rows.design @ parameters[: layout.num_coefficients] + rows.offset
    log_stddev = layout.log_stddev(parameters)
    terms = functools.partial(_terms, family, rows.outcome, log_stddev)
    mode, root = _mode(terms, fixed, z @ factor)
    points, log_weights = grid(len(layout.columns), nodes)
    at = mode + points @ root.T
    of_each = terms(fixed + at @ (z @ factor).T)
    log_joint = np.sum(of_each.log_likelihood, 1) - 0.5 * np.sum(at**2, 1)
    log_joint += log_weights + 0.5 * np.sum(points**2, 1) + np.sum(np.log(np.diag(root)))
    marginal = float(special.logsumexp(log_joint))
    shares = np.exp(log_joint - marginal)
    scores, information = _derivatives(rows, z, at, of_each, shares, layout, log_stddev)
    gradient = shares @ scores
    information -= (scores - gradient).T @ (shares[:, np.newaxis] * (scores - gradient))
    mean = shares @ at
    spread = (at - mean).T @ (shares[:, np.newaxis] * (at - mean))
    sums = Sums(float(len(fixed)), float(family.events(rows.outcome)), marginal, gradient, information)
    weighted = (z @ factor).T * terms(fixed + z @ factor @ mode).weight
    slope = -factor @ root @ root.T @ weighted @ rows.design
    return sums, Effect(factor @ mean, factor @ spread @ factor.T, slope)


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


def _terms(family: Family, outcome: np.ndarray, log_stddev: float, eta: np.ndarray) -> Terms:
    terms = family.terms(eta, outcome)
    if family.name != "gaussian":
        return terms
    precision = np.exp(-2 * log_stddev)
    constant = log_stddev + 0.5 * np.log(2 * np.pi)
    return Terms(precision * terms.log_likelihood - constant, precision * terms.score, precision * terms.weight)


def _mode(terms: functools.partial[Terms], fixed: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find the mode of v [d], and a root of the inverse of the information there [d, d]."""
    v, best = np.zeros(z.shape[1]), -np.inf
    step = np.zeros_like(v)
    for _ in range(MODE_STEPS):
        t = terms(fixed + z @ v)
        value = float(np.sum(t.log_likelihood) - 0.5 * v @ v)
        if value < best - 1e-12 * abs(best):
            step /= 2
            v = v - step
            continue
        best = value
        information = (z.T * t.weight) @ z + np.eye(len(v))
        step = np.linalg.solve(information, z.T @ t.score - v)
        v = v + step
        if step @ information @ step < TOLERANCE:
            break
    information = (z.T * terms(fixed + z @ v).weight) @ z + np.eye(len(v))
    lower = np.linalg.cholesky(information)
    return v, scipy.linalg.solve_triangular(lower, np.eye(len(v)), lower=True).T


@functools.cache
def grid(dimensions: int, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes [Q, d] of N(0, I), and logarithms of their weights [Q]."""
    points, weights = special.roots_hermitenorm(nodes)
    logs = np.log(weights / np.sum(weights))
    places = list(itertools.product(range(nodes), repeat=dimensions))
    return points[np.array(places)], np.array([np.sum(logs[list(place)]) for place in places])


def _derivatives(
    rows: Rows, z: np.ndarray, v: np.ndarray, terms: Terms, shares: np.ndarray, layout: EffectsLayout, log_stddev: float
) -> tuple[np.ndarray, np.ndarray]:
    """Compute derivatives of sum_i log p(y_i | v) by theta at the nodes v [Q, d], which have these shares [Q].

    The first ones for each node [Q, size], and minus the mean of the second ones [size, size].
    """
    design, p, pairs, of_z = rows.design, layout.num_coefficients, layout.pairs, terms.score @ z
    scores = [terms.score @ design, *((of_z[:, a] * v[:, b])[:, np.newaxis] for a, b in pairs)]
    information = np.zeros((layout.size, layout.size))
    information[:p, :p] = (design.T * (shares @ terms.weight)) @ design
    for i, (a, b) in enumerate(pairs):
        moment = (shares * v[:, b]) @ terms.weight
        information[:p, p + i] = information[p + i, :p] = design.T @ (z[:, a] * moment)
        for j, (c, d) in enumerate(pairs):
            information[p + i, p + j] = z[:, a] @ (z[:, c] * ((shares * v[:, b] * v[:, d]) @ terms.weight))
    if layout.has_dispersion:  # sum_i r_i^2 / s^2, with the score r / s^2.
        squares = np.sum(terms.score**2, 1) * np.exp(2 * log_stddev)
        information[:-1, -1] = information[-1, :-1] = 2 * shares @ np.concatenate(scores, 1)
        information[-1, -1] = 2 * shares @ squares
        scores.append((squares - len(z))[:, np.newaxis])
    return np.concatenate(scores, 1), information
