"""The posterior of a linear model from sums with noise, which makes them differentially private by row.

    u = clip((x - middle) / half, -1, 1),   S = sum_i z_i z_i',   z = (1, u, v)   [D, D] of p - 1 columns u, outcome v
    S~_jk = S_jk + s c e_jk,   e_jk = e_kj ~ N(0, 1),   c = sqrt(D (D + 1) / 2)

A row more or less changes the different entries of S by at most c, as their Euclidean norm; S~ then is (epsilon, delta)
private for the least s at which

    Phi(1 / (2 s) - epsilon s) - exp(epsilon) Phi(-1 / (2 s) - epsilon s) <= delta

Whoever takes S~ for S has intervals that are too narrow. Here the posterior is the mean over what S may be,

    p(b | S~) = E[p(b | S)],   S ~ N(S~, s^2 c^2) where S is positive definite and S_jj <= S_11

with the exact posterior of a linear model in the expectation, by a Markov chain over S and b.

Source: Balle & Wang 2018 for s; Bernstein & Sheldon 2019 for posteriors that include the noise of sums, with another
model of S; Murray, Adams & MacKay 2010 for the chain.
"""

import math

import numpy as np
from scipy import optimize, stats

from tfp_bfl.glm.federation import InProcess, Question, ask_sums
from tfp_bfl.glm.newton import inverse
from tfp_bfl.glm.posterior import OUTCOME, Model, Posterior, RowPrivacy
from tfp_bfl.glm.rows import DesignRows, Rows

# Draws of the chain, and those before them; steps between residual variance and coefficients at each sum.
_DRAWS, _BEFORE, _INNER = 4000, 500, 3
_MOST_TRIES = 200
# Of the intervals that give the standard deviations.
_LEVEL = 0.95


def noise_multiplier(epsilon: float, delta: float) -> float:
    """Return the standard deviation of Gaussian noise, over the sensitivity, that is (epsilon, delta) private.

    >>> round(noise_multiplier(1.0, 1e-5), 4)
    3.7306
    """

    def excess(log_s: float) -> float:
        s = math.exp(log_s)
        tail = epsilon + stats.norm.logcdf(-1 / (2 * s) - epsilon * s)
        return float(stats.norm.cdf(1 / (2 * s) - epsilon * s) - math.exp(tail) - delta)

    return math.exp(float(optimize.brentq(excess, math.log(1e-12), math.log(1e12), xtol=1e-12)))


def noise_of(privacy: RowPrivacy) -> float:
    """Return the standard deviation s c of the noise of each sum, of columns in [-1, 1]."""
    size = len(privacy.bounds) + 1
    return noise_multiplier(privacy.epsilon, privacy.delta) * math.sqrt(size * (size + 1) / 2)


def fit_private(table: DesignRows, model: Model, privacy: RowPrivacy, secure_sums: bool, seed: int | None) -> Posterior:
    """Return the posterior from the noisy sums of all clients: medians, and standard deviations that fit quantiles.

    The noise is added once, to the total: under secure sums each of K clients adds s c / sqrt(K).
    """
    columns = [privacy.bounds[name] for name in (*table.names[1:], OUTCOME)]
    low, high = np.array(columns, np.float64).T
    middle, half = (low + high) / 2, (high - low) / 2
    scaled = table._replace(clients=[_within(rows, middle, half) for rows in table.clients])
    question = Question("sums", np.zeros(len(table.names)))
    sums = ask_sums(InProcess(scaled, "gaussian", secure_sums), question)[0]
    rng = np.random.default_rng(seed)
    size = len(middle) + 1
    upper, noise = np.triu_indices(size), noise_of(privacy)
    exact = np.block(
        [
            [sums.information, sums.gradient[:, np.newaxis]],
            [sums.gradient[np.newaxis], np.array([[-2 * sums.log_likelihood]])],
        ]
    )
    noisy = exact[upper] + noise * rng.normal(size=len(upper[0]))
    # From (1, u, v) to (1, x, y).
    units = np.diag([1.0, *half])
    units[1:, 0] = middle
    precision = model.precision(table.names)
    draws, means = [], np.zeros((size, size))
    variance = None
    for values in _sums(noisy, noise, size, rng):
        total = units @ _symmetric(values, size) @ units.T
        coefficients, variance = _draw(total, precision, model.dispersion, variance, rng)
        draws.append([*coefficients, variance])
        means += total / _DRAWS
    found = np.array(draws)
    mean, dispersion = np.median(found[:, :-1], 0), float(np.median(found[:, -1]))
    tail = (1 - _LEVEL) / 2
    width = np.diff(np.quantile(found[:, :-1], [tail, 1 - tail], 0), axis=0)[0]
    stddev = width / (2 * stats.norm.ppf(1 - tail))
    # Of ranks: single draws far away, where S is nearly singular, do not decide.
    scores = stats.norm.ppf(stats.rankdata(found[:, :-1], axis=0) / (len(found) + 1))
    correlation = np.atleast_2d(np.corrcoef(scores.T))
    count = max(1, round(means[0, 0]))
    residual = float(means[-1, -1] - 2 * mean @ means[:-1, -1] + mean @ means[:-1, :-1] @ mean)
    return Posterior(
        table.names,
        mean,
        correlation * np.outer(stddev, stddev),
        "gaussian",
        count,
        count,
        len(table.clients),
        1,
        -0.5 * count * math.log(2 * math.pi * dispersion) - residual / (2 * dispersion),
        precision,
        dispersion,
        privacy=privacy,
    )


def _within(rows: Rows, middle: np.ndarray, half: np.ndarray) -> Rows:
    """Return rows with columns and outcome in [-1, 1]."""
    design, outcome = rows.design.copy(), np.clip((rows.outcome - middle[-1]) / half[-1], -1, 1)
    design[:, 1:] = np.clip((design[:, 1:] - middle[:-1]) / half[:-1], -1, 1)
    return rows._replace(design=design, outcome=outcome)


def _symmetric(values: np.ndarray, size: int) -> np.ndarray:
    """Return the matrix with these entries on and above its diagonal."""
    found = np.zeros((size, size))
    found[np.triu_indices(size)] = values
    return found + np.triu(found, 1).T


def _is_possible(values: np.ndarray, size: int) -> bool:
    """Return whether rows within [-1, 1] can have such sums, and determine the coefficients."""
    total = _symmetric(values, size)
    diagonal = np.diag(total)
    return bool(
        diagonal[0] > size and np.all(diagonal <= diagonal[0]) and np.linalg.eigvalsh(total)[0] > 1e-9 * diagonal[0]
    )


def _sums(noisy: np.ndarray, noise: float, size: int, rng: np.random.Generator) -> np.ndarray:
    """Draw sums from N(noisy, noise^2) where they are possible, by elliptical slices [draws, D (D + 1) / 2]."""
    now, kept = _start(noisy, size), []
    for step in range(_BEFORE + _DRAWS):
        other, angle = noise * rng.normal(size=len(now)), rng.uniform(0, 2 * math.pi)
        low, high = angle - 2 * math.pi, angle
        proposed = now
        for _ in range(_MOST_TRIES):  # Rounding may leave none but where the chain is.
            found = noisy + (now - noisy) * math.cos(angle) + other * math.sin(angle)
            if _is_possible(found, size):
                proposed = found
                break
            low, high = (angle, high) if angle < 0 else (low, angle)
            angle = rng.uniform(low, high)
        now = proposed
        if step >= _BEFORE:
            kept.append(now)
    return np.array(kept)


def _start(noisy: np.ndarray, size: int) -> np.ndarray:
    """Return possible sums near the noisy ones: moments of the noisy rows, as a correlation shrunk to the identity."""
    total = _symmetric(noisy, size)
    count = max(total[0, 0], 2.0 * size)
    squares = np.clip(np.diag(total)[1:] / count, 0.05, 0.95)
    scale = np.sqrt([1.0, *squares])
    correlation = total / (count * np.outer(scale, scale))
    np.fill_diagonal(correlation, 1.0)
    least = np.linalg.eigvalsh(correlation)[0]
    share = min(1.0, 0.95 / max(1 - least, 1e-12))  # All eigenvalues are then at least .05.
    shrunk = share * correlation + (1 - share) * np.eye(size)
    return (count * shrunk * np.outer(scale, scale))[np.triu_indices(size)]


def _draw(
    total: np.ndarray, precision: np.ndarray, dispersion: float | None, variance: float | None, rng: np.random.Generator
) -> tuple[np.ndarray, float]:
    """Draw coefficients and residual variance given the sums: exactly under a flat prior, otherwise by Gibbs' steps."""
    information, gradient, square = total[:-1, :-1], total[:-1, -1], total[-1, -1]
    residual = lambda b: max(float(square - 2 * b @ gradient + b @ information @ b), 1e-300)
    is_flat = not precision.any()
    coefficients: np.ndarray = np.linalg.solve(information, gradient)
    if dispersion is not None:
        variance = dispersion
    elif is_flat or variance is None:
        variance = residual(coefficients) / rng.chisquare(total[0, 0] - len(gradient))
    for step in range(1 if is_flat or dispersion is not None else _INNER):
        if step:
            variance = residual(coefficients) / rng.chisquare(total[0, 0])
        covariance = inverse(information / variance + np.diag(precision))
        root = np.linalg.cholesky(covariance)
        coefficients = covariance @ (gradient / variance) + root @ rng.normal(size=len(gradient))
    return coefficients, variance
