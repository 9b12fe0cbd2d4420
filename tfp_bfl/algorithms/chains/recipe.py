"""Federated Langevin dynamics: rounds that are a Markov chain over the posterior of a model's weights.

QLSD, QLSD# and QLSD*, QLSD++ and, without compression, LSD#, LSD* and LSD++ (Vono et al. 2022);
DG-SGLD (Plassier et al. 2021); FSGLD (El Mekkaoui et al. 2021). Arguments that are not listed are as of
`qlsd`, of `compose` or of the client work.
"""

import functools
from collections.abc import Sequence
from typing import Any, Unpack

from tfp_bfl import federated, rules
from tfp_bfl.algorithms.chains.client_settings import memory_rate
from tfp_bfl.algorithms.chains.local_langevin import conducive_langevin, coupled_langevin
from tfp_bfl.algorithms.chains.step import couple, descend, follow, langevin
from tfp_bfl.algorithms.chains.step_size import check_step_size
from tfp_bfl.algorithms.chains.work import stochastic_gradient
from tfp_bfl.algorithms.compose import Model, compose, passing_on, split_options
from tfp_bfl.algorithms.options import GradientOptions
from tfp_bfl.compression import Compressor
from tfp_bfl.errors import InvalidArgument, shown
from tfp_bfl.models import as_model_fn
from tfp_bfl.training.potential import prior_precision

SHARED = ("element_spec", "seed", "min_examples")


@passing_on(stochastic_gradient, SHARED, ("memory_rate",))
def qlsd(
    model_fn: Model,
    *,
    step_size: float,
    estimator: str = "anchored",
    compressor: str | Compressor | Sequence[str | Compressor] = "quantiser:256",
    prior_stddev: float | None = 1.0,
    memory: bool = True,
    refresh_every: int = 100,
    curvature: float | str | None = None,
    thinning: federated.Thinning | None = None,
    **options: Unpack[GradientOptions],
) -> federated.BayesianProcess:
    """QLSD: w <- w - gamma G + sqrt(2 gamma) Z, G of the clients' compressed gradients; the rounds are draws.

    The prior stays on the server, exact. Clients may differ in their compressors and in the probability with which they
    take part: `compressor` and `participation` are one value for all clients, or a sequence with one for each client.
    Cohorts are drawn with equal probabilities. A program that calls `next` of the process itself begins with
    `process.with_clients`: the number of all clients scales the gradient, and is otherwise that of the largest round.

    Args:
      model_fn: builds a Keras model of point weights without BatchNorm and dropout, or `models.density`.
      step_size: gamma, of the gradient of the sum over all examples: about 1 / L, where L grows with their number. The
        stationary variance of a Gaussian posterior is 1 / (1 - gamma L / 2) times too large, and from 2 / L on it
        diverges; with compression and memories earlier (`chains.step_size.largest_step_size`).
      estimator: "plain" is QLSD and QLSD#, "fixed_point" QLSD*, "anchored" QLSD++.
      compressor: for all clients, or one for each; with "none" they are LSD#, LSD* and LSD++.
      prior_stddev: of N(0, t^2 I) over the weights; None for a flat prior.
      memory: for "anchored": clients keep what they have sent at the rate 1 / (1 + omega). It removes the compressor's
        noise where clients differ, and lowers the largest stable step.
      refresh_every: rounds from one anchor to the next, for "anchored".
      curvature: L, the largest curvature of the potential, prior included: a step at which the chain diverges is then
        refused before the first round of `simulate` (`chains.step_size.check_step_size`). "estimate" issues a warning
        instead, by the curvature at the weights of `model_fn`, whatever the run starts from. The check is of rounds
        with all clients, and cohorts lower the bound further. None for no check.
      thinning: burn-in, rounds from one kept draw to the next, and how many predict; None for all rounds.

    Source: Vono et al. 2022 (arXiv:2106.00797), algorithms 1 and 2, and supplement S1.1 for clients that differ.

    Example:
      >>> model_fn = lambda: bfl.models.mlp("deterministic", input_shape=(30,), num_classes=2)
      >>> process = bfl.algorithms.qlsd(model_fn, step_size=1e-5, compressor=bfl.compression.quantiser(16))
    """
    work, process = split_options(qlsd, options)
    work |= {"estimator": estimator, "compressor": compressor}
    anchored, mode = estimator == "anchored", work.get("fixed_point")
    rate = memory_rate(model_fn, **work) if anchored and memory else None
    local = stochastic_gradient(model_fn, memory_rate=rate, **work)
    if curvature is not None:
        how = {**work, "memory_rate": rate, "prior_stddev": prior_stddev}
        check = lambda data: check_step_size(as_model_fn(model_fn), data, step_size, curvature, **how)
        once: Any = functools.lru_cache(maxsize=1)(check)  # A run checks its clients more than once.
        local = local._replace(needs=local.needs._replace(checks=(*local.needs.checks, once)))
    if mode is not None and mode.prior_stddev != prior_stddev:
        raise InvalidArgument(
            f"fixed_point is the mode with the prior_stddev {shown(mode.prior_stddev)}, but the chain's is "
            f"{shown(prior_stddev)}: take training.find_mode(...) with that."
        )
    step = descend(
        step_size,
        prior_precision=prior_precision(prior_stddev),
        participation=work.get("participation", 1.0),
        memory_rate=rate,
        refresh_every=refresh_every if anchored else None,
        fixed_point=None if mode is None else mode.point,
    )
    return _chain(model_fn, local, langevin(step, step_size), thinning, process)


@passing_on(coupled_langevin, SHARED)
def dg_sgld(
    model_fn: Model,
    *,
    step_size: float,
    coupling: float,
    prior_stddev: float | None = 1.0,
    thinning: federated.Thinning | None = None,
    **options: Unpack[GradientOptions],
) -> federated.BayesianProcess:
    """DG-SGLD: each client runs a separate chain, coupled to the server's weights, which are drawn given all of them.

    Args:
      step_size: gamma, of the clients' steps.
      coupling: rho, the variance of the clients' weights about the server's: each client's factor is smoothed by it.

    Source: Plassier et al. 2021 (arXiv:2106.06300).

    Example:
      >>> model_fn = lambda: bfl.models.mlp("deterministic", input_shape=(30,), num_classes=2)
      >>> process = bfl.algorithms.dg_sgld(model_fn, step_size=1e-5, coupling=10.0)
    """
    work, process = split_options(dg_sgld, options)
    local = coupled_langevin(model_fn, step_size=step_size, coupling=coupling, **work)
    return _chain(model_fn, local, couple(coupling, prior_precision(prior_stddev)), thinning, process)


@passing_on(conducive_langevin, SHARED, ("prior_precision",))
def fsgld(
    model_fn: Model,
    surrogates: Any,
    *,
    step_size: float,
    prior_stddev: float | None = 1.0,
    thinning: federated.Thinning | None = None,
    **options: Unpack[GradientOptions],
) -> federated.BayesianProcess:
    """FSGLD: one client a round takes several steps of the chain, with Gaussians in place of the absent clients.

    Give `simulate` and `simulate_chains` a cohort_size of 1: they refuse others, of which no chain would come.

    Args:
      surrogates: of the clients, in the order of their numbers: `chains.local_langevin.fit_surrogates`.

    Source: El Mekkaoui et al. 2021 (arXiv:2004.11231).

    Example:
      >>> model_fn = lambda: bfl.models.mlp("deterministic", input_shape=(30,), num_classes=2, hidden=())
      >>> clients = bfl.data.load("breast_cancer").partition(bfl.data.iid(num_clients=2), seed=0)
      >>> surrogates = bfl.algorithms.chains.local_langevin.fit_surrogates(model_fn, clients)
      >>> process = bfl.algorithms.fsgld(model_fn, surrogates, step_size=1e-5)
    """
    work, process = split_options(fsgld, options)
    of_prior = prior_precision(prior_stddev)
    local = conducive_langevin(model_fn, surrogates, step_size=step_size, prior_precision=of_prior, **work)
    return _chain(model_fn, local, follow(len(surrogates)), thinning, process)


def _chain(
    model_fn: Model, work: Any, step: Any, thinning: federated.Thinning | None, process: dict[str, Any]
) -> federated.BayesianProcess:
    chain = federated.check_thinning(thinning or federated.Thinning())
    return compose(model_fn, work, rules.total(), step, **{**process, "weighting": "equal", "thinning": chain})
