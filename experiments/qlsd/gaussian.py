"""Exact results on Langevin chains over a Gaussian: potential sum_j ||theta - y_j||^2 / 2, so that L = N."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def norm_mean(center: float, variance: float, dim: int) -> float:
    """Return E ||x|| of N(m, v I) in `dim` dimensions with ||m|| = center: the mean of a noncentral chi.

    E ||x|| = 1 / (2 sqrt(pi)) int_0^inf (1 - E exp(-t ||x||^2)) t^(-3/2) dt
    E exp(-t ||x||^2) = (1 + 2 v t)^(-d/2) exp(-t ||m||^2 / (1 + 2 v t))

    By the trapezoidal rule in log t, which errs by less than 1e-12 of the result.
    """
    second = center**2 + dim * variance
    u = np.linspace(-80, 80, 16_001)
    t = np.exp(u) / second
    log_mgf = -0.5 * dim * np.log1p(2 * variance * t) - t * center**2 / (1 + 2 * variance * t)
    return float(np.sum(-np.expm1(log_mgf) * np.exp(-u / 2)) * (u[1] - u[0]) * math.sqrt(second / (4 * math.pi)))


def norm_variance(center: float, variance: float, dim: int) -> float:
    """Return Var ||x|| of N(m, v I) with ||m|| = center."""
    return center**2 + dim * variance - norm_mean(center, variance, dim) ** 2


def batch_number(size: int, share: float | None) -> int:
    """Return n of N_i examples, as `clients.draw_batch` takes them: the share rounded up."""
    return size if share is None else max(math.ceil(share * size - 1e-3), 1)


def batch_variance(tables: Sequence[np.ndarray], share: float | None) -> float:
    """Return S = sum_i (N_i^2 / n_i) (1 - n_i / N_i) s_i^2, the variance per coordinate of the sum of batches'
    gradients.

    s_i^2 is the sample variance of client i's table [N_i, D], the mean over coordinates.
    """
    total = 0.0
    for table in tables:
        number, drawn = len(table), batch_number(len(table), share)
        total += number**2 / drawn * (1 - drawn / number) * float(np.mean(np.var(table, 0, ddof=1)))
    return total


def quantiser_factor(dim: int, levels: int) -> float:
    """Return w = E ||C(x) - x||^2 / ||x||^2 of the quantiser with s levels, on average over Gaussian x [D], for large
    D.

    w = D / s^2 E f (1 - f),   E f (1 - f) = 1 / 6 - sum_k exp(-2 pi^2 k^2 s^2 / D) / (pi k)^2

    f is the fraction of s |x_j| / ||x||, about |N(0, s^2 / D)|: D / (6 s^2) at many levels, sqrt(2 D / pi) - 1 at one.
    """
    k = np.arange(1, 10_001)
    mean = 1 / 6 - np.sum(np.exp(-2 * (np.pi * k * levels) ** 2 / dim) / (np.pi * k) ** 2)
    return float(dim / levels**2 * mean)


def stationary_variance(
    tables: Sequence[np.ndarray], step: float, *, star: bool, share: float | None, omega: float = 0.0
) -> float:
    """Return the chain's stationary variance over the posterior's, at the step size step / L, per coordinate.

    v = (2 g + g^2 ((1 + w) S + w sum_i N_i^2 ||d_i||^2 / D)) / (1 - (1 - g L)^2 - g^2 w sum_i N_i^2)

    d_i = m_i - theta*; with theta*'s control variate ("star") S and d_i are zero. Exact for a compressor with
    E ||C(x) - x||^2 = w ||x||^2, and close to it for a quantiser's `quantiser_factor`.
    """
    sizes = np.array([len(table) for table in tables], float)
    total = sizes.sum()
    mode = np.concatenate(tables).mean(0)
    apart = sum(n**2 * np.mean((table.mean(0) - mode) ** 2) for n, table in zip(sizes, tables))
    s, apart = (0.0, 0.0) if star else (batch_variance(tables, share), float(apart))
    g = step / total
    v = (2 * g + g**2 * ((1 + omega) * s + omega * apart)) / (1 - (1 - step) ** 2 - g**2 * omega * np.sum(sizes**2))
    return float(v * total)


def mean_factor(correlation: float, number: int) -> float:
    """Return Var(mean of K) / Var(one) of a stationary process with autocorrelations r^k:

    ((1 + r) / (1 - r) - 2 r (1 - r^K) / (K (1 - r)^2)) / K
    """
    r, k = correlation, number
    return ((1 + r) / (1 - r) - 2 * r * (1 - r**k) / (k * (1 - r) ** 2)) / k


def expected_error(center: float, posterior: float, dim: int, ratio: float, correlation: float, number: int) -> float:
    """Return E (mean of ||theta_k|| - E||theta||)^2 over K states at `ratio` times the variance of N(theta*, posterior
    I).

    The square of the bias of the norm plus the variance of its mean; the norm's autocorrelations are taken for theta's.
    """
    bias = norm_mean(center, ratio * posterior, dim) - norm_mean(center, posterior, dim)
    return bias**2 + norm_variance(center, ratio * posterior, dim) * mean_factor(correlation, number)


def entropy(levels: np.ndarray, bins: int = 64) -> float:
    """Return bits per integer of q [...], by a histogram with uniform cells.

    Cells are of width max(1, floor(max |q| / bins)): of width 1 it is the empirical entropy.
    """
    width = max(1, int(np.abs(levels).max()) // bins)
    _, counts = np.unique(np.floor_divide(levels, width), return_counts=True)
    p = counts / counts.sum()
    return float(-np.sum(p * np.log2(p)) + math.log2(width))
