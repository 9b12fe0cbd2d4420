"""Meta-learning across clients: FedAvg, Reptile, MAML, PerFedAvg, and each with personal variational dropout."""

from __future__ import annotations

from typing import Optional

from tfp_bfl import clients, federated, models, servers
from tfp_bfl.algorithms.compose import Model, compose, known_options, split_options
from tfp_bfl.errors import InvalidArgument, lookup
from tfp_bfl.servers.optimizers import Optimizer, ServerOptimizer

SHARED = ("augmentation", "element_spec", "seed", "min_examples")


def meta_learning(
    model_fn: Model,
    *,
    learner: str = "maml",
    rule: str = "naive_weighted_average",
    server_optimizer: Optional[ServerOptimizer] = None,
    **options: object,
) -> federated.BayesianProcess:
    """Build a process that trains weights to be adapted by one step on a client's data, pooled by any rule.

    "maml" is MAML, "first_order_maml" its first order, "hessian_free_maml" PerFedAvg. "plain" is FedAvg, and Reptile
    with a server optimizer such as SGD of momentum 0.9: these differ by the server's step, and by adaptation at test.

    Args:
      model_fn: builds a Keras model without BatchNorm.
      learner: one of `clients.LEARNERS`.
      rule: for the weights.
      server_optimizer: of `servers.server_optimizer`; None to take the pool.
      **options: of `compose` and of `clients.meta_learning` (local_epochs, batch_size, learning_rate, logit_rate,
        inner_rate, clip_norm, difference, kl_reduction, kl_weight, likelihood).

    Source: Finn et al. 2017 (arXiv:1703.03400); Nichol et al. 2018 (arXiv:1803.02999); Fallah et al. 2020
    (arXiv:2002.07948).
    """
    work, process = split_options(meta_learning, clients.meta_learning, options)
    step = servers.optimize(server_optimizer) if server_optimizer else servers.replace()
    return compose(model_fn, clients.meta_learning(model_fn, learner=learner, **work), rule, step, **process)


def meta_vd(
    model_fn: Model,
    *,
    num_clients: int,
    learner: str = "plain",
    variances: str = "hypernetwork",
    rule: str = "log_linear_pool",
    server_optimizer: Optional[Optimizer] = None,
    threshold: Optional[float] = None,
    variance_options: Optional[dict[str, object]] = None,
    server_options: Optional[dict[str, object]] = None,
    **options: object,
) -> federated.BayesianProcess:
    """MetaVD: every client's own dropout, which a hypernetwork on the server gives it, around any learner.

    Args:
      model_fn: builds a Keras model of kind "variational_dropout" without BatchNorm.
      num_clients: M, who may be in training; their numbers are below it.
      learner: as of `meta_learning`.
      variances: one of `models.PERSONAL_VARIANCES`.
      rule: "log_linear_pool" weighs clients by their precisions, "naive_weighted_average" does not.
      server_optimizer: of `servers.server_optimizer`, for the weights; None to take the pool.
      threshold: of pruned exchange (`clients.personal`); None for none.
      variance_options, server_options: of the source of variances, and of `servers.personal`.
      **options: of `compose` and of `clients.meta_learning`, such as logit_rate. A robust aggregator by which all
        clients count the same in each weight, "trimmed" or "median", leaves rows as they are, of which each is one
        client's.

    Source: Jeon et al. 2023 (arXiv:2510.20225).
    """
    work, process = split_options(meta_vd, clients.meta_learning, options)
    make = lookup(models.PERSONAL_VARIANCES, variances, "source of variances")
    source = make(num_clients, **known_options(make, variance_options, f"variances {variances!r}", ("num_clients",)))
    if not source.learned and work.setdefault("logit_rate", None) not in (None, 0.0):
        raise InvalidArgument(
            f"logit_rate is {work['logit_rate']}, but the noise of {variances!r} does not change: leave logit_rate out."
        )
    if not source.learned:
        work["logit_rate"] = 0.0
    model = models.as_model_fn(model_fn)()
    source.check_layers(model)
    source.starts(models.get_weights(model).posterior.mean)  # Engines that trace can't look at the values.
    local = clients.personal(clients.meta_learning(model_fn, learner=learner, **work), source, threshold)
    own = ("variances", "optimizer", "threshold", "seed")
    given = known_options(servers.personal, server_options, "the server", own)
    step = servers.personal(source, server_optimizer, threshold=threshold, seed=process.get("seed", 0), **given)
    return compose(model_fn, local, rule, step, **process)
