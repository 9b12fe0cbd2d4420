"""Samplers of a posterior where all data lie in one place, which studies compare federated methods with."""

from experiments.samplers.exact import ExactChains, exact_chains
from experiments.samplers.langevin import langevin_chain, psgld_step, sgld_step

__all__ = [
    "ExactChains",
    "exact_chains",
    "langevin_chain",
    "psgld_step",
    "sgld_step",
]
