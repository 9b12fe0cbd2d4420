"""Federated Langevin dynamics: rounds that are a Markov chain over the posterior of a model's weights.

QLSD, QLSD# and QLSD*, QLSD++ and, without compression, LSD#, LSD* and LSD++ (Vono et al. 2022).
"""

from __future__ import annotations

from typing import Any, Optional

from tfp_bfl import clients, federated, rules, servers
from tfp_bfl.algorithms.compose import Model, compose, split_options

SHARED = ("element_spec", "seed", "min_examples")


def qlsd(
    model_fn: Model,
    *,
    step_size: float,
    prior_stddev: Optional[float] = 1.0,
    memory: bool = True,
    refresh_every: int = 100,
    thinning: Optional[federated.Thinning] = None,
    **options: Any,
) -> federated.BayesianProcess:
    """QLSD: w <- w - gamma G + sqrt(2 gamma) Z, G of the clients' compressed gradients; the rounds are draws.

    estimator "plain" is QLSD and QLSD#, "fixed_point" QLSD*, "anchored", the default, QLSD++; with the compressor
    "none" they are LSD#, LSD* and LSD++. The prior stays on the server, exact.

    Args:
      model_fn: builds a Keras model of point weights without BatchNorm and dropout, or `models.density`.
      step_size: gamma, of the gradient of the sum over all examples: about 1 / L, where L grows with their number. The
        stationary variance of a Gaussian posterior is 1 / (1 - gamma L / 2) times too large, and from 2 / L on it
        diverges.
      prior_stddev: of N(0, t^2 I) over the weights; None for a flat prior.
      memory: for "anchored": clients keep what they have sent at the rate 1 / (1 + omega).
      refresh_every: rounds from one anchor to the next, for "anchored".
      thinning: burn-in, rounds from one kept draw to the next, and how many predict; None for all rounds.
      **options: of `compose` (element_spec, seed, min_examples) and of `clients.stochastic_gradient` (estimator,
        compressor, per_tensor, batch_size, participation, fixed_point, likelihood, count_bits).

    Source: Vono et al. 2022 (arXiv:2106.00797), algorithms 1 and 2.
    """
    options = {"estimator": "anchored", "compressor": "quantiser:256", **options}
    work, process = split_options(qlsd, clients.stochastic_gradient, options, SHARED)
    anchored = work["estimator"] == "anchored"
    rate = clients.memory_rate(model_fn, **work) if anchored and memory else None
    step = servers.descend(
        step_size,
        prior_stddev=prior_stddev,
        participation=work.get("participation"),
        memory_rate=rate,
        refresh_every=refresh_every if anchored else None,
        fixed_point=work["fixed_point"].point if work.get("fixed_point") else None,
    )
    local = clients.stochastic_gradient(model_fn, memory_rate=rate, **work)
    chain = federated.check_thinning(thinning or federated.Thinning())
    process = {**process, "weighting": "equal", "thinning": chain, "burn_in_rounds": chain.burn_in}
    return compose(model_fn, local, rules.total(), servers.langevin(step, step_size), **process)
