"""Posteriors with factors that stay at the clients: partitioned variational inference, Bayesian ADMM, and FedLap.

The first two are of models with variational weights, FedLap of those of kind deterministic without BatchNorm.
Arguments that are not listed are those of `compose` and of the client work, `factors.work.factors` and
`factors.laplace_work.laplace_factors`, or as of `partitioned_vi`.
"""

from typing import Any, Unpack

from tfp_bfl import federated, models, rules, servers
from tfp_bfl.algorithms.compose import COMPRESSION, SHARED_OPTIONS, Model, compose, passing_on, split_options
from tfp_bfl.algorithms.factors.laplace_work import laplace_factors
from tfp_bfl.algorithms.factors.step import dual, laplace_dual
from tfp_bfl.algorithms.factors.work import factors
from tfp_bfl.algorithms.options import TrainingOptions, WeighedOptions
from tfp_bfl.training.potential import prior_precision
from tfp_bfl.weights import prior

SHARED = tuple(name for name in SHARED_OPTIONS if name not in ("robust", *COMPRESSION, "privacy"))
NOT_WEIGHED = tuple(name for name in SHARED if name != "weighting")


@passing_on(factors, SHARED, ("step_size", "send_site", "empty"))
def partitioned_vi(
    model_fn: Model, *, damping: float | None = None, **options: Unpack[WeighedOptions]
) -> federated.BayesianProcess:
    """Partitioned variational inference: q = prior prod_k t_k, a factor t_k for each client, who keeps it.

    t_k <- t_k (q_k / q)^damping,   q <- q prod_k (q_k / q)^damping

    with q_k a client's posterior from the prior q / t_k. At rest q has the mean of the mean-field posterior of all data
    in one place, and its variances, however different the clients are. Clients that are not in a round keep their
    factors.

    Args:
      damping: above 0 and at most 1, None for 1 / K: with much of it clients who move the same weights overshoot
        together.

    Source: Ashman et al. 2022 (arXiv:2202.12275), algorithm 1, synchronous; Bui et al. 2018 (arXiv:1811.11206).

    Example:
      >>> model_fn = lambda: bfl.models.mlp("flipout", input_shape=(30,), num_classes=2)
      >>> process = bfl.algorithms.partitioned_vi(model_fn, local_epochs=5)
    """
    work, process = split_options(partitioned_vi, options)
    local = factors(model_fn, damping=damping, **work)
    return compose(model_fn, local, rules.distributed_weight_consolidation(), servers.replace(), **process)


@passing_on(factors, NOT_WEIGHED, ("send_site", "empty"))
def bayesian_admm(
    model_fn: Model,
    *,
    step_size: float = 1.0,
    damping: float | None = None,
    empty_sites: bool = False,
    server_step_size: float | None = None,
    **options: Unpack[TrainingOptions],
) -> federated.BayesianProcess:
    """Bayesian ADMM: partitioned inference with a step size that holds clients to q, and an averaging server.

    client:  q_k minimises E_q[-log likelihood_k] / T - <t_k, natural> + rho KL[q_k || q]
    site:    t_k <- t_k + damping rho (natural(q_k) - natural(q))
    server:  natural(q) <- (1 - a) mean_k natural(q_k) + a natural(prior prod_k t_k),   a = 1 / (1 + K rho)

    Args:
      step_size: rho. At 1 q comes to rest at the posterior; below it only nearly (`factors.work.factors`), and it may
        diverge where clients differ much.
      empty_sites: t_k = 1 at first, as published; otherwise the sites hold the first posterior. With little damping q
        is then some (1 - a) mean_k q_k for long: wide, and quick to move.
      server_step_size: a of the server; None for 1 / (1 + K rho).
      **options: as `partitioned_vi`, with keep_momentum (`factors.work.factors`) and without weighting: all clients
        count alike. The temperatures of the paper are .1 to .001.

    Source: Möllenhoff et al. 2026 (arXiv:2506.13150), IVON-ADMM. Departure: q begins at the model's first posterior,
    and theirs at the prior, with clients that begin at personal networks in the first round alone.

    Example:
      >>> model_fn = lambda: bfl.models.mlp("flipout", input_shape=(30,), num_classes=2)
      >>> process = bfl.algorithms.bayesian_admm(model_fn, local_epochs=5)
    """
    work, process = split_options(bayesian_admm, options)
    held: dict[str, Any] = {"step_size": step_size, "damping": damping}
    local = factors(model_fn, send_site=False, empty=empty_sites, **held, **work)
    step = dual(
        **held,
        server_step_size=server_step_size,
        product=prior(models.as_model_fn(model_fn)()) if empty_sites else None,
    )
    return compose(model_fn, local, rules.log_linear_pool(), step, weighting="equal", **process)


@passing_on(laplace_factors, ("element_spec", "seed", "min_examples"), ("prior_precision",))
def fed_lap(
    model_fn: Model,
    *,
    covariance: bool = False,
    prior_stddev: float = 1.0,
    step_size: float = 1.0,
    damping: float | None = None,
    **options: Unpack[TrainingOptions],
) -> federated.BayesianProcess:
    """FedLap: federated ADMM as partitioned inference by Laplace's approximation; FedLap-Cov with precisions.

    client:  w_k minimises nll_k / T - <t_k, natural> + rho (w - w_g)^T S (w - w_g) / 2
    site:    t_k <- t_k + damping rho (natural(w_k, P_k) - natural(w_g, S))
    server:  natural(w_g, S) <- (1 - a) mean_k natural(w_k, P_k) + a natural(prior prod_k t_k),   a = 1 / (1 + K rho)

    with natural(m, P) = (P, P m). At rest w_g is the mode of the posterior of all data, however different the clients
    are. FedLap has the precision S = P_k = 1 / t^2 throughout and point weights as its result. FedLap-Cov takes P_k
    from the Gauss-Newton diagonal at w_k; at rest S is the prior's precision plus the sum over all data at the mode.

    Args:
      covariance: FedLap-Cov, which predicts with samples of N(w_g, 1 / S).
      step_size: rho. FedLap: the larger, the nearer clients stay to w_g; rho / t^2 should be of the order of the
        curvature of a client's data.

    Source: Swaroop, Khan and Doshi-Velez 2025 (arXiv:2501.17325). Equations derived
      (`factors.laplace_work.laplace_factors`).

    Example:
      >>> model_fn = lambda: bfl.models.mlp("deterministic", input_shape=(30,), num_classes=2)
      >>> process = bfl.algorithms.fed_lap(model_fn, local_epochs=5)
    """
    work, process = split_options(fed_lap, options)
    held: dict[str, Any] = {"covariance": covariance, "step_size": step_size, "damping": damping}
    held["prior_precision"] = prior_precision(prior_stddev)
    local, step = laplace_factors(model_fn, **held, **work), laplace_dual(**held)
    return compose(model_fn, local, rules.total(), step, weighting="equal", **process)
