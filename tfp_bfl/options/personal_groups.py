"""Groups of options of the recipes with personal models: meta-learning, MetaVD and pFedBayes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tfp_bfl.errors import InvalidArgument
from tfp_bfl.options import choices
from tfp_bfl.options.group import Count, Group, Positive, PositiveOrZero, Share, option


class Adaptation(Group):
    """Clients are scored by models that are their own."""

    kl_weight: PositiveOrZero = option(1.0, "Factor beta of the KL term; kind flipout learns with less, such as 0.05.")
    client_noise: str = option(
        "own",
        "Noise of the models that `evaluate_clients` scores: the client's own, none, or another client's.",
        argument=None,
        names=choices.EVALUATION_NOISES,
    )

    def check(self, config: Any) -> None:
        if self.client_noise != "own" and not config.evaluate_clients:
            raise InvalidArgument("client_noise is of the scores of single clients: give evaluate_clients too.")
        if self.client_noise != "another":
            return
        common = ("common_variances", "constant_variances")
        if not config.is_personal or (config.has("variances") and config.variances in common):
            raise InvalidArgument(
                "client_noise is 'another', but all clients of this run have the same noise: use p_fed_bayes, or "
                "meta_vd with variances 'hypernetwork' or 'free_variances'."
            )
        if config.unseen_clients or config.clients < 2:
            raise InvalidArgument(
                "client_noise 'another' exchanges the noise of clients that train: give at least two of them, and no "
                "unseen_clients."
            )


class MetaLearner(Group):
    """Gradients of meta-learning."""

    learner: str = option("plain", "Gradient of the clients' steps (see `tfp-bfl list`).", names=choices.LEARNERS)
    inner_rate: Positive = option(0.02, "Learning rate of adaptation.")
    clip_norm: Positive = option(5.0, "Clipping norm of a gradient over all weights.")
    difference: Positive = option(
        1e-4, "Finite difference of the weights for the second derivatives of hessian_free_maml."
    )
    kl_reduction: str = option(
        "sum", "Reduction of the KL term over the weights: sum, as in the ELBO, or mean.", names=choices.KL_REDUCTIONS
    )


class OwnVariances(Group):
    """Dropout of the clients' own, from the server."""

    variances: str = option(
        "hypernetwork", "Source of the clients' variances (see `tfp-bfl list`).", names=choices.PERSONAL_VARIANCES
    )
    embedding_size: Count | None = option(
        None,
        "Size of the hypernetwork's embedding of a client; 1 + clients / 4 by default.",
        argument="variance_options.embedding_size",
    )
    variance_range: str = option(
        "smooth",
        "Restriction of logits to their range: smooth, or clamped as published.",
        argument="variance_options.ranged",
        names=choices.VARIANCE_RANGES,
    )
    initial_rate: Share | None = option(
        None,
        "Dropout rate at the start, relative to the weights of each layer, in the place of --initial-stddev.",
        argument="variance_options.initial_rate",
    )
    logit_rate: PositiveOrZero | None = option(
        None,
        "Learning rate of the clients for the logits of the variances; by default that of the weights.",
    )
    variational_initializer: str = option(
        "he_normal",
        "Distribution of the initial means of the layers with variational dropout; uniform as in the authors' program.",
        argument=None,
        names=choices.INITIALIZERS,
    )
    uncapped: bool = option(
        False,
        "Do not bound the rates of the variances' parameters by the clients' change, as published.",
        argument=None,
    )
    absent_decay: bool = option(
        False, "Decay the embeddings of clients outside the round too.", argument="server_options.absent_decay"
    )
    pruning_threshold: Share | None = option(
        None,
        "Dropout rate above which weights are pruned from messages; no pruning by default.",
        argument="threshold",
    )

    def check(self, config: Any) -> None:
        if config.initial_stddev is not None and config.parametrization == "log_alpha":
            raise InvalidArgument(
                "initial_stddev is a standard deviation, and log_alpha has noise relative to the weights: give "
                "initial_rate, a dropout rate."
            )
        if config.initial_stddev is not None and self.initial_rate is not None:
            raise InvalidArgument("initial_stddev and initial_rate both say where the noise starts: give one of them.")
        if self.variational_initializer != "he_normal" and config.model not in choices.MODELS.forms():
            raise InvalidArgument(
                "variational_initializer is of the built-in models, and this one is user-supplied: leave it out."
            )

    def arguments(self, config: Any, given: dict[str, Any], unlabelled: Callable[[], Any]) -> dict[str, Any]:
        variances = {**given["variance_options"], "parametrization": config.parametrization}
        if config.initial_stddev is not None:
            variances["middle"] = 2 * math.log(config.initial_stddev)
        return {
            **given,
            "num_clients": config.clients,
            "variance_options": {name: x for name, x in variances.items() if x is not None},
            "server_options": {**given["server_options"], "capped": not self.uncapped},
        }
