"""Posteriors over a model's weights: structures of tensors, and what can be computed from them."""

from tfp_bfl.posterior import mixtures
from tfp_bfl.posterior.as_tfp import to_tfp
from tfp_bfl.posterior.diagnostics import effective_sample_size, hpd_level, potential_scale_reduction
from tfp_bfl.posterior.families import Samples, floor_variance, marginals, positive_leaves, sample
from tfp_bfl.posterior.low_rank import LowRank, as_low_rank, covariance, log_prob
from tfp_bfl.posterior.mean_field import (
    MeanField,
    Spread,
    gaussian_kl,
    kl_divergence,
    spread,
    stack,
)
from tfp_bfl.posterior.vectors import flatten, unflatten

__all__ = [
    "LowRank",
    "MeanField",
    "Samples",
    "Spread",
    "as_low_rank",
    "covariance",
    "effective_sample_size",
    "flatten",
    "floor_variance",
    "gaussian_kl",
    "hpd_level",
    "kl_divergence",
    "log_prob",
    "marginals",
    "mixtures",
    "positive_leaves",
    "potential_scale_reduction",
    "sample",
    "spread",
    "stack",
    "to_tfp",
    "unflatten",
]
