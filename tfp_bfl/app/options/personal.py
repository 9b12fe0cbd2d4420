"""The options of the recipes with personal models: meta-learning, MetaVD and pFedBayes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

from tfp_bfl.app.options import choices
from tfp_bfl.app.options.fields import (
    AnyKind,
    Bounded,
    Count,
    Defended,
    Hidden,
    ManyRounds,
    Pooled,
    Positive,
    PositiveOrZero,
    ServerOptimized,
    Share,
    Weighted,
    option,
)
from tfp_bfl.app.options.messages import WithErrorMemory
from tfp_bfl.errors import InvalidArgument


class _Personal(ManyRounds):
    adapts: ClassVar[bool] = True

    kl_weight: PositiveOrZero = option(1.0, "Factor beta of the KL term; kind flipout learns with less, such as 0.05.")
    client_noise: str = option(
        "own",
        "Noise of the models that `evaluate_clients` scores: the client's own, none, or another client's.",
        argument=None,
        names=choices.EVALUATION_NOISES,
    )

    def check(self, config: Any) -> None:
        super().check(config)
        if self.client_noise != "own" and not config.evaluate_clients:
            raise InvalidArgument("client_noise is of the scores of single clients: give evaluate_clients too.")
        if self.client_noise != "another":
            return
        common = ("common_variances", "constant_variances")
        if not self.personal or getattr(self, "variances", None) in common:
            raise InvalidArgument(
                "client_noise is 'another', but all clients of this run have the same noise: use p_fed_bayes, or "
                "meta_vd with variances 'hypernetwork' or 'free_variances'."
            )
        if config.unseen_clients or config.clients < 2:
            raise InvalidArgument(
                "client_noise 'another' exchanges the noise of clients that train: give at least two of them, and no "
                "unseen_clients."
            )


class _MetaLearnt(_Personal, ServerOptimized):
    learner: str = option("plain", "Gradient of the clients' steps (see `tfp-bfl list`).", names=choices.LEARNERS)
    inner_rate: Positive = option(0.02, "Learning rate of adaptation.")
    clip_norm: Positive = option(5.0, "Clipping norm of a gradient over all weights.")
    difference: Positive = option(
        1e-4, "Finite difference of the weights for the second derivatives of hessian_free_maml."
    )
    kl_reduction: str = option(
        "sum", "Reduction of the KL term over the weights: sum, as in the ELBO, or mean.", names=choices.KL_REDUCTIONS
    )

    def rate(self) -> float:
        from tfp_bfl.clients.meta_learning import RATES

        return self.learning_rate or RATES[self.learner]

    def steps(self, num_examples: int) -> int:
        from tfp_bfl.clients.meta_learning import BATCHES

        return -(-num_examples // (BATCHES[self.learner] * self.batch_size)) * self.local_epochs


class MetaLearning(_MetaLearnt, Bounded, Pooled, Defended, AnyKind, Weighted, WithErrorMemory):
    recipe: ClassVar[str] = "meta_learning"
    summary: ClassVar[str] = "weights from which a step on a client's data leads far: MAML, PerFedAvg, Reptile"
    defaults: ClassVar[dict[str, Any]] = {
        **{"kind": "deterministic", "learner": "maml", "rule": "naive_weighted_average"},
    }


class PFedBayes(_Personal, Bounded, Pooled, Defended, Weighted):
    recipe: ClassVar[str] = "p_fed_bayes"
    summary: ClassVar[str] = "each client has a personal posterior, held to a common one"
    defaults: ClassVar[dict[str, Any]] = {
        **{"rule": "naive_weighted_average", "learning_rate": 1e-3, "kl_weight": 10.0, "initial_stddev": 0.05},
    }
    point_weights: ClassVar[bool] = False
    personal: ClassVar[bool] = True
    regression: ClassVar[bool] = False

    def check(self, config: Any) -> None:
        super().check(config)
        if config.kind not in (None, *choices.VARIATIONAL.forms()):
            raise InvalidArgument(
                f"p_fed_bayes keeps a posterior over weights for each client, and kind {config.kind!r} has none: use "
                "kind 'flipout'."
            )


class MetaVD(_MetaLearnt, Bounded, Pooled, Defended, Hidden, WithErrorMemory):
    recipe: ClassVar[str] = "meta_vd"
    summary: ClassVar[str] = "each client has personal dropout from a hypernetwork on the server"
    defaults: ClassVar[dict[str, Any]] = {"kind": "variational_dropout", "rule": "log_linear_pool"}
    of_recipe: ClassVar[tuple[str, ...]] = ("initial_stddev", "parametrization")
    point_weights: ClassVar[bool] = False
    personal: ClassVar[bool] = True
    regression: ClassVar[bool] = False

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
        super().check(config)
        if config.kind not in (None, "variational_dropout"):
            raise InvalidArgument(
                f"meta_vd gives each client dropout of its own, and kind {config.kind!r} learns none: use kind "
                "'variational_dropout'."
            )
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
        if self.weighting not in ("equal", "train_size"):
            raise InvalidArgument(
                f"Weighting by {self.weighting} compares posteriors, and those of meta_vd have variances of the "
                "clients' own: use 'equal' or 'train_size'."
            )

    def arguments(self, config: Any, unlabelled: Callable[[], Any]) -> dict[str, Any]:
        given = super().arguments(config, unlabelled)
        variances = {**given["variance_options"], "parametrization": config.parametrization}
        if config.initial_stddev is not None:
            variances["middle"] = 2 * math.log(config.initial_stddev)
        return {
            **given,
            "num_clients": config.clients,
            "variance_options": {name: x for name, x in variances.items() if x is not None},
            "server_options": {**given["server_options"], "capped": not self.uncapped},
        }
