"""Samplers of a posterior where all data lie in one place, which federated methods are compared with."""

from tfp_bfl.baselines.exact import ExactChains, exact_chains
from tfp_bfl.baselines.langevin import langevin_chain, psgld_step, sgld_step

__all__ = [
    "ExactChains",
    "exact_chains",
    "langevin_chain",
    "psgld_step",
    "sgld_step",
]
