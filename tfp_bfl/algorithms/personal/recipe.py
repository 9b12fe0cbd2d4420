"""Personal models: meta-learning, MetaVD and pFedBayes."""

from collections.abc import Mapping
from typing import Unpack

import numpy as np

from tfp_bfl import federated, models, posterior, rules, servers, weighting
from tfp_bfl.algorithms.compose import (
    COMPRESSION,
    SHARED_OPTIONS,
    Model,
    compose,
    known_options,
    passing_on,
    split_options,
)
from tfp_bfl.algorithms.options import WeighedOptions
from tfp_bfl.algorithms.personal.posterior_work import personal_posterior
from tfp_bfl.algorithms.personal.step import personal as personal_step
from tfp_bfl.algorithms.personal.variances import PERSONAL_VARIANCES
from tfp_bfl.algorithms.personal.work import NO_PRECISION, personal
from tfp_bfl.algorithms.personal.work import meta_learning as meta_learning_work
from tfp_bfl.errors import InvalidArgument, lookup
from tfp_bfl.federated.faults import LIMITS
from tfp_bfl.servers.optimizers import Optimizer, ServerOptimizer
from tfp_bfl.weights import get_weights


@passing_on(meta_learning_work)
def meta_learning(
    model_fn: Model,
    *,
    learner: str = "maml",
    rule: str = "naive_weighted_average",
    server_optimizer: ServerOptimizer | None = None,
    **options: Unpack[WeighedOptions],
) -> federated.BayesianProcess:
    """Build a process that trains weights to be adapted by one step on a client's data, pooled by any rule.

    "maml" is MAML, "first_order_maml" its first order, "hessian_free_maml" PerFedAvg. "plain" is FedAvg, and Reptile
    with a server optimizer such as SGD of momentum 0.9: these differ by the server's step, and by adaptation at test.

    Args:
      model_fn: builds a Keras model without BatchNorm.
      learner: one of `personal.work.LEARNERS`.
      rule, server_optimizer: for the weights; None to take the pool.

    Source: Finn et al. 2017 (arXiv:1703.03400); Nichol et al. 2018 (arXiv:1803.02999); Fallah et al. 2020
    (arXiv:2002.07948).

    Example:
      >>> model_fn = lambda: bfl.models.mlp("deterministic", input_shape=(30,), num_classes=2)
      >>> process = bfl.algorithms.meta_learning(model_fn, learner="maml")
    """
    work, process = split_options(meta_learning, options)
    local, step = meta_learning_work(model_fn, learner=learner, **work), servers.optimize(server_optimizer)
    return compose(model_fn, local, rule, step, **process)


# The clients' variances are their own.
@passing_on(meta_learning_work, tuple(name for name in SHARED_OPTIONS if name != "variance_bits"))
def meta_vd(
    model_fn: Model,
    *,
    num_clients: int,
    learner: str = "plain",
    variances: str = "hypernetwork",
    rule: str = "log_linear_pool",
    server_optimizer: Optimizer | None = None,
    threshold: float | None = None,
    variance_options: dict[str, object] | None = None,
    server_options: dict[str, object] | None = None,
    **options: Unpack[WeighedOptions],
) -> federated.BayesianProcess:
    """MetaVD: every client's own dropout, which a hypernetwork on the server gives it, around any learner.

    Args:
      model_fn: builds a Keras model of kind "variational_dropout" without BatchNorm.
      num_clients: M, who may be in training; their numbers are below it.
      learner: as of `meta_learning`.
      variances: one of `personal.variances.PERSONAL_VARIANCES`.
      rule: "log_linear_pool" weighs clients by their precisions, "naive_weighted_average" does not.
      server_optimizer: of `servers.server_optimizer`, for the weights; None to take the pool.
      threshold: of pruned exchange (`personal.work.personal`), for a rule by which a variance without bound
        counts nothing, and without options that count what all clients send of each weight: robust,
        max_change_norm, privacy, secure_sums and a weighting that compares posteriors; None for none.
      variance_options, server_options: of the source of variances, and of `personal.step.personal`.
      **options: of `compose` and of `personal.work.meta_learning`, such as logit_rate. A robust aggregator by which all
        clients count the same in each weight, "trimmed" or "median", leaves rows as they are, of which each is one
        client's.

    Source: Jeon et al. 2023 (arXiv:2510.20225).

    Example:
      >>> model_fn = lambda: bfl.models.mlp("variational_dropout", input_shape=(30,), num_classes=2)
      >>> process = bfl.algorithms.meta_vd(model_fn, num_clients=10)
    """
    work, process = split_options(meta_vd, options)
    make = lookup(PERSONAL_VARIANCES, variances, "source of variances")
    source = make(num_clients, **known_options(make, variance_options, f"variances {variances!r}", ("num_clients",)))
    if not source.learned and work.setdefault("logit_rate", None) not in (None, 0.0):
        raise InvalidArgument(
            f"logit_rate is {work['logit_rate']}, but the noise of {variances!r} does not change: leave logit_rate out."
        )
    if not source.learned:
        work["logit_rate"] = 0.0
    model = models.as_model_fn(model_fn)()
    source.check_layers(model)
    source.starts(get_weights(model).posterior.mean)  # Engines that trace can't look at the values.
    if threshold is not None:
        _check_pooling(rule, process)
    local = personal(meta_learning_work(model_fn, learner=learner, **work), source, threshold)
    own = ("variances", "optimizer", "seed")
    given = known_options(personal_step, server_options, "the server", own)
    step = personal_step(source, server_optimizer, seed=process.get("seed", 0), **given)
    return compose(model_fn, local, rule, step, **process)


# Options by which a weight without precision would count, or not be a number.
_COUNT_ALL = {
    "robust": "compares what all clients send of each weight",
    "max_change_norm": "compares what all clients send of each weight",
    "privacy": "limits how much a client changes the precision of each weight",
    "secure_sums": "rounds the precision that all clients send of each weight",
}


def _check_pooling(rule: str, process: Mapping[str, object]) -> None:
    """Raise InvalidArgument where weights that a client leaves out would count, which it sends without precision."""
    for name, reason in _COUNT_ALL.items():
        if process.get(name) is not None:
            raise InvalidArgument(
                f"{name} {reason}, and with a pruning threshold each leaves some out: leave {name} or the threshold "
                "out."
            )
    if process.get("weighting") in weighting.COMPARE_POSTERIORS:
        raise InvalidArgument(
            f"weighting {process['weighting']!r} compares all weights of the clients, and with a pruning threshold "
            "each leaves some out: use 'train_size' or 'equal', or leave the threshold out."
        )
    most = process.get("max_magnitude", LIMITS.max_magnitude)
    if isinstance(most, (int, float)) and most**2 <= NO_PRECISION:
        raise InvalidArgument(
            f"max_magnitude is {most:g}, but clients send a standard deviation of {NO_PRECISION**0.5:g} for weights "
            "that they prune: give more, or leave the threshold out."
        )
    array = lambda *values: np.array(values, np.float32)
    sent = posterior.MeanField(array([1], [0]), array([1], [NO_PRECISION]))
    anchor = posterior.MeanField(array(0), array(1))
    if abs(rules.aggregate(rule, sent, anchor=anchor).mean[0] - 1) > 0.01:
        raise InvalidArgument(
            f"By the rule {getattr(rule, 'name', rule)} a weight that a client prunes would count as the server's own: "
            "use log_linear_pool, which weighs by precision, or no pruning threshold."
        )


# `clients.compressed` is of work that keeps nothing.
_NOT_SENT = tuple(name for name in SHARED_OPTIONS if name not in (*COMPRESSION, "privacy"))


@passing_on(personal_posterior, _NOT_SENT)
def p_fed_bayes(
    model_fn: Model,
    *,
    rule: str = "naive_weighted_average",
    server_optimizer: ServerOptimizer | None = None,
    **options: Unpack[WeighedOptions],
) -> federated.BayesianProcess:
    """pFedBayes: each client keeps a posterior v_k of its own, held by a KL to what all share, which follows it.

    v_k, w_k = argmin  E_v_k[-log likelihood_k] + zeta KL[v_k || w_k],   w <- the pool of the w_k

    The server's posterior w predicts for clients who were never in training, v_k for client k.

    For models with variational weights and without BatchNorm. The rule is for the w_k: "naive_weighted_average"
    averages their means and variances, as published. The server_optimizer steps the means of w; None to take the pool.

    Source: Zhang et al. 2022 (arXiv:2206.07977), algorithm 1.

    Example:
      >>> model_fn = lambda: bfl.models.mlp("flipout", input_shape=(30,), num_classes=2)
      >>> process = bfl.algorithms.p_fed_bayes(model_fn, local_epochs=5)
    """
    work, process = split_options(p_fed_bayes, options)
    return compose(model_fn, personal_posterior(model_fn, **work), rule, servers.optimize(server_optimizer), **process)
