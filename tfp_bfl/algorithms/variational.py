"""Federated variational inference with an aggregation rule (Fischer et al. 2024, arXiv:2403.15263)."""

from __future__ import annotations

from typing import Any, Callable, Optional

import tensorflow as tf

from tfp_bfl import clients, federated, models, rules, servers
from tfp_bfl import weighting as weightings
from tfp_bfl.errors import InvalidArgument, lookup


def variational(
    model_fn: Callable[[], tf.keras.Model],
    rule: rules.Rule,
    weighting: str = "train_size",
    *,
    robust: Optional[str] = None,
    element_spec: Any = None,
    seed: int = 0,
    max_change_norm: float | None = None,
    **client_options: Any,
) -> federated.BayesianProcess:
    """Clients fit the broadcast posterior to their data by the negative ELBO; the server pools them by `rule`.

    A deterministic model makes this federated averaging, one with Monte Carlo dropout its Bayesian cousin: they have
    point weights only, which every rule averages by weight.

    Args:
      model_fn: builds a Keras model that returns logits.
      rule: of `tfp_bfl.rules`.
      weighting: "equal", "train_size", "distance", "max_discrepancy" or "max_discrepancy_farthest"; for the last two
        the server holds all clients' posteriors at once.
      robust: a defence against adversarial clients, "clip:MAX_NORM", "trimmed:SHARE" or "median"
        (`rules.parse_robust`); for the last two the server holds all posteriors at once, and all count the same.
      element_spec: of the clients' datasets; None as in `federated.build_process`.
      seed: of the noise; `simulate` has its own.
      max_change_norm: clients whose weights move further are faulty, as in `federated.build_process`.
      **client_options: of `tfp_bfl.clients.variational`: local_epochs, batch_size, learning_rate, optimizer_fn,
        update_prior, pretrained.

    Returns:
      A `tff.learning.templates.LearningProcess`.

    Raises:
      InvalidArgument: there is no such weighting or defence, or the weighting can't serve the model or the defence.
    """
    lookup(weightings.ALL_WEIGHTINGS, weighting, "weighting")
    if weighting in weightings.COMPARE_POSTERIORS and not models.layout(model_fn()).variational:
        raise InvalidArgument(
            f"Weighting by {weighting!r} compares posteriors and this model has none: use 'train_size'."
        )
    whole: Any = rules.whole_model(rule)
    if robust is not None:
        whole = rules.parse_robust(robust)(whole)
    if weighting in weightings.STACKED_WEIGHTINGS:
        if isinstance(whole, rules.GatherRule):
            raise InvalidArgument(
                f"The defence {robust!r} counts all clients the same, so that weighting by {weighting!r} can't serve "
                "it: use 'equal', or the defence clip."
            )
        weigh = weightings.STACKED_WEIGHTINGS[weighting]
        whole = rules.reweighted(whole, lambda stacked: weigh(stacked.posterior))
    if isinstance(whole, rules.GatherRule):
        whole = rules.gathered(whole)
    return federated.build_process(
        model_fn,
        client_work=clients.variational(model_fn, **client_options),
        weigh=weightings.WEIGHTINGS.get(weighting, weightings.equal),
        rule=whole,
        server_step=servers.replace(),
        element_spec=element_spec,
        seed=seed,
        max_change_norm=max_change_norm,
    )
