"""Federated variational inference with an aggregation rule (Fischer et al. 2024, arXiv:2403.15263)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional, Union

from tfp_bfl import clients, federated, rules, servers
from tfp_bfl.algorithms.compose import Model, compose, split_options

# At 1 classifiers of more weights than examples learn little (docs/uncertainty.md); a regression, whose noise is part
# of the model, is then too sure of it.
TEMPERATURE = 0.05
INFORMATIVE: dict[str, Any] = {"inference": "curvature"}
# Where each round's prior is the last posterior, a cold client moves further than its new precision vouches for.
AS_PUBLISHED: dict[str, Any] = {"inference": "backprop", "temperature": 1.0}


def temperature_for(options: Mapping[str, Any]) -> float:
    """The temperature of client work where none is given, by its likelihood."""
    return TEMPERATURE if options.get("likelihood", "categorical") == "categorical" else 1.0


def variational(
    model_fn: Model,
    rule: Union[rules.Rule, rules.GatherRule, str],
    weighting: str = "train_size",
    *,
    robust: Optional[str] = None,
    kl: Optional[str] = None,
    **options: Any,
) -> federated.BayesianProcess:
    """Clients fit the broadcast posterior to their data by the negative ELBO; the server pools them by `rule`.

    A deterministic model makes this federated averaging, one with Monte Carlo dropout its Bayesian cousin: they have
    point weights only, which every rule averages by weight.

    Args:
      model_fn: builds a Keras model that returns logits; or such a model.
      rule: of `tfp_bfl.rules`, or its name, such as "log_linear_pool".
      weighting, robust: as `compose`.
      kl: how often all clients together count the prior, one of `tfp_bfl.clients.KLS`. None for "total", so that rules
        over rounds count it once; "product" for a rule for one shot, which does so too; and "client" with update_prior,
        which has no prior that stays.
      **options: of `compose` (element_spec, seed of the noise, max_change_norm, min_examples) and of
        `tfp_bfl.clients.variational` (local_epochs, batch_size, learning_rate, optimizer_fn, inference, noise, decay,
        stddev_rate, temperature, likelihood, update_prior, pretrained, proximal, example_privacy), of which inference
        is "curvature" and temperature 0.05 here unless they are given, 1 for another likelihood than that of classes;
        with update_prior "backprop" and 1, as published; with example_privacy "backprop".

    Raises:
      InvalidArgument: as `compose`.
    """
    found = {"inference": "backprop"} if options.get("example_privacy") else INFORMATIVE
    informative = {**found, "temperature": temperature_for(options)}
    work, process = split_options(
        variational, clients.variational, options, **(AS_PUBLISHED if options.get("update_prior") else informative)
    )
    if kl is None:
        one_shot = rules.whole_model(rule).one_shot
        kl = "product" if one_shot else "client" if work.get("update_prior") else "total"
    local = clients.variational(model_fn, weighting=weighting, kl=kl, **work)
    return compose(model_fn, local, rule, servers.replace(), weighting=weighting, robust=robust, **process)
