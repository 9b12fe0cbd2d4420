"""Posteriors over a model's weights: structures of tensors, and what can be computed from them."""

from tfp_bfl.posterior import mixtures, swag_moments
from tfp_bfl.posterior.as_tfp import to_tfp
from tfp_bfl.posterior.between import between_clients_variance, with_random_effects
from tfp_bfl.posterior.chains import effective_sample_size, hpd_level, potential_scale_reduction
from tfp_bfl.posterior.families import floor_variance, marginals, positive_leaves, sample
from tfp_bfl.posterior.laplace import Laplace, laplace
from tfp_bfl.posterior.linear_head import Head
from tfp_bfl.posterior.low_rank import LowRank, as_low_rank, covariance, log_prob
from tfp_bfl.posterior.mean_field import (
    MeanField,
    Spread,
    gaussian_kl,
    kl_divergence,
    spread,
    stack,
)
from tfp_bfl.posterior.products import gaussian_product
from tfp_bfl.posterior.samples import Samples
from tfp_bfl.posterior.sites import Site, check_damping, damping_of, flatten, natural, unflatten

__all__ = [
    "Head",
    "Laplace",
    "LowRank",
    "MeanField",
    "Samples",
    "Site",
    "Spread",
    "as_low_rank",
    "between_clients_variance",
    "check_damping",
    "covariance",
    "damping_of",
    "effective_sample_size",
    "flatten",
    "floor_variance",
    "gaussian_kl",
    "gaussian_product",
    "hpd_level",
    "kl_divergence",
    "laplace",
    "log_prob",
    "marginals",
    "mixtures",
    "natural",
    "positive_leaves",
    "potential_scale_reduction",
    "sample",
    "spread",
    "stack",
    "swag_moments",
    "to_tfp",
    "unflatten",
    "with_random_effects",
]
