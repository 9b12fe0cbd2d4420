"""Posteriors over a model's weights: structures of tensors, and what can be computed from them."""

from tfp_bfl.posterior.low_rank import LowRank, as_low_rank, covariance, log_prob, marginals, sample
from tfp_bfl.posterior.mean_field import (
    MeanField,
    Spread,
    floor_variance,
    gaussian_kl,
    kl_divergence,
    spread,
    stack,
)
from tfp_bfl.posterior.products import gaussian_product

__all__ = [
    "LowRank",
    "MeanField",
    "Spread",
    "as_low_rank",
    "covariance",
    "floor_variance",
    "gaussian_kl",
    "gaussian_product",
    "kl_divergence",
    "log_prob",
    "marginals",
    "sample",
    "spread",
    "stack",
]
