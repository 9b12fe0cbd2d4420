"""Posteriors over a model's weights: structures of tensors, and what can be computed from them."""

from tfp_bfl.posterior.mean_field import (
    MeanField,
    Spread,
    floor_variance,
    gaussian_kl,
    kl_divergence,
    sample,
    spread,
    stack,
)

__all__ = [
    "MeanField",
    "Spread",
    "floor_variance",
    "gaussian_kl",
    "kl_divergence",
    "sample",
    "spread",
    "stack",
]
