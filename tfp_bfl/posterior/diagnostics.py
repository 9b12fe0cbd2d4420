"""Diagnostics of Markov chains: convergence, effective sample size, highest-density regions."""

import numpy as np
import tensorflow_probability as tfp

from tfp_bfl.errors import InvalidArgument, check_number
from tfp_bfl.tensors import Array


def effective_sample_size(values: Array) -> np.ndarray:
    """Compute the effective sample size of the mean, over all chains together [...].

    R M / (1 + 2 sum_k rho_k), autocorrelations summed over Geyer's initial positive pairs; between-chain variance
    counts. NaN where a value never changes.

    Args:
      values: of R draws of M chains [M, R, ...], such as predictions or the potential.

    Source: Geyer 1992; Vehtari et al. 2021 (arXiv:1903.08008), eq. 10.

    Example:
      >>> values = np.random.default_rng(0).normal(size=[2, 1000])  # [chains, draws]
      >>> bool(1700 < bfl.posterior.effective_sample_size(values) < 2300)
      True
    """
    chains = _by_draw(values)
    several = {"cross_chain_dims": 1} if chains.shape[1] > 1 else {}
    found = tfp.mcmc.effective_sample_size(chains, filter_beyond_positive_pairs=True, **several).numpy()
    return found if several else found[0]


def potential_scale_reduction(values: Array) -> np.ndarray:
    """Return R-hat of split chains [...]: 1 where they agree, and above 1.01 where they do not yet.

    Args:
      values: as of `effective_sample_size`.

    Source: Gelman et al. 2013; Vehtari et al. 2021 (arXiv:1903.08008), eq. 4.

    Example:
      >>> values = np.random.default_rng(0).normal(size=[2, 1000])  # [chains, draws]
      >>> bool(bfl.posterior.potential_scale_reduction(values) < 1.01)
      True
    """
    return tfp.mcmc.potential_scale_reduction(_by_draw(values), independent_chain_ndims=1, split_chains=True).numpy()


def hpd_level(potential: Array, alpha: float = 0.01) -> float:
    """Return eta with P(U <= eta) = 1 - alpha: {w: U(w) <= eta} is the region of highest density of mass 1 - alpha.

    For a Gaussian in D dimensions U - min U is Gamma(D / 2, 1): at alpha = 0.01 eta is 4.605 for D = 2. Relative errors
    of eta depend on U's additive constant: compare U - min U.

    Args:
      potential: U along a chain, of any shape.
      alpha: above 0 and below 1.

    Source: Vono et al. 2022 (arXiv:2106.00797), section 5.2.

    Example:
      >>> potential = np.random.default_rng(0).normal(size=10_000) ** 2 / 2  # of N(0, 1)
      >>> round(bfl.posterior.hpd_level(potential, alpha=0.05), 2)  # 1.96^2 / 2 = 1.92
      1.91
    """
    if check_number(alpha, "alpha") >= 1:
        raise InvalidArgument(f"alpha is {alpha:g}, but must be below 1: it is the mass outside the region.")
    return float(np.quantile(np.asarray(potential, np.float64), 1 - alpha))


def _by_draw(values: Array) -> np.ndarray:
    """Return [M, R, ...] as [R, M, ...]."""
    values = np.asarray(values, np.float64)
    if values.ndim < 2 or values.shape[1] < 4:
        raise InvalidArgument(
            f"values has the shape {values.shape}, but must be (chains, draws, ...), of four draws at least."
        )
    return np.swapaxes(values, 0, 1)
