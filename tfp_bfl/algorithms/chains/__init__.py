"""Markov chains across clients (QLSD, DG-SGLD, FSGLD), and the driver that runs several in one graph."""

from tfp_bfl.algorithms.chains.driver import Chains, simulate_chains

__all__ = ["Chains", "simulate_chains"]
