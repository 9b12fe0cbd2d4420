"""Posteriors of the clients' own around one that all share: pFedBayes."""

from __future__ import annotations

from typing import Unpack

from tfp_bfl import federated, servers
from tfp_bfl.algorithms.compose import COMPRESSION, SHARED_OPTIONS, Model, compose, passing_on, split_options
from tfp_bfl.algorithms.options import WeighedOptions
from tfp_bfl.algorithms.personal.posterior_work import personal_posterior

# `clients.compressed` is of work that keeps nothing.
SHARED = tuple(name for name in SHARED_OPTIONS if name not in (*COMPRESSION, "privacy"))


@passing_on(personal_posterior, SHARED)
def p_fed_bayes(
    model_fn: Model, *, rule: str = "naive_weighted_average", **options: Unpack[WeighedOptions]
) -> federated.BayesianProcess:
    """pFedBayes: each client keeps a posterior v_k of its own, held by a KL to what all share, which follows it.

    v_k, w_k = argmin  E_v_k[-log likelihood_k] + zeta KL[v_k || w_k],   w <- the pool of the w_k

    The server's posterior w predicts for clients who were never in training, v_k for client k.

    Args:
      model_fn: builds a Keras model with variational weights and without BatchNorm.
      rule: for the w_k; "naive_weighted_average" averages their means and variances, as published.
      **options: of `compose` and of `personal.posterior_work.personal_posterior`.

    Source: Zhang et al. 2022 (arXiv:2206.07977), algorithm 1.
    """
    work, process = split_options(p_fed_bayes, options)
    return compose(model_fn, personal_posterior(model_fn, **work), rule, servers.replace(), **process)
