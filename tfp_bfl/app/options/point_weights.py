"""The options of the recipes of `tfp_bfl.algorithms.posterior_averaging`: point weights by many rounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from tfp_bfl.app.options import choices
from tfp_bfl.app.options.chains import check_even
from tfp_bfl.app.options.fields import (
    SGD,
    AnyKind,
    Bounded,
    BurnIn,
    Defended,
    Draws,
    Hidden,
    Optimized,
    Positive,
    PositiveOrZero,
    ServerOptimized,
    Share,
    Weighted,
    option,
)
from tfp_bfl.app.options.messages import WithErrorMemory
from tfp_bfl.errors import InvalidArgument


class _ByMomentum(Optimized, SGD):
    """Clients train by an optimizer, by default SGD of a momentum that is an option too."""

    default_schedule: ClassVar[str] = "inverse"

    defaults: ClassVar[dict[str, Any]] = {
        **{"kind": "deterministic", "rounds": 30, "momentum": 0.9},
    }

    def check(self, config: object) -> None:
        super().check(config)
        if self.optimizer not in (None, "momentum") and self.momentum != self.defaults["momentum"]:
            raise InvalidArgument(
                f"momentum is a number of the optimizer momentum, and optimizer is {self.optimizer}: give one of them."
            )

    def arguments(self, config: object, unlabelled: Callable[[], Any]) -> dict[str, Any]:
        from tfp_bfl import keras

        given = super().arguments(config, unlabelled)
        momentum = given.pop("momentum")
        if self.optimizer in (None, "momentum"):
            given["optimizer_fn"] = lambda: keras.optimizers.SGD(momentum=momentum)
        return given


class _Averaging(_ByMomentum, ServerOptimized, Bounded, Defended):
    """The recipes of `tfp_bfl.algorithms.posterior_averaging`."""


class _Normalised(_ByMomentum, Bounded, Defended):
    """Recipes with a separate server step."""


class FedOpt(_Averaging, AnyKind, Hidden, WithErrorMemory):
    recipe: ClassVar[str] = "fed_opt"
    summary: ClassVar[str] = "federated averaging (FedAvg); with a server_optimizer FedOpt"


class FedProx(_Averaging, AnyKind, Hidden, WithErrorMemory):
    recipe: ClassVar[str] = "fed_prox"
    summary: ClassVar[str] = "FedAvg with clients held near the server's weights"

    proximal: PositiveOrZero = option(0.01, "Coefficient mu of the proximal term mu / 2 ||w - w_server||^2.")


class Scaffold(_Averaging, AnyKind, Hidden, WithErrorMemory):
    recipe: ClassVar[str] = "scaffold"
    summary: ClassVar[str] = "FedAvg with clients that step along the mean gradient of all, by control variates"


class FedDyn(_Normalised, AnyKind, Hidden, WithErrorMemory):
    recipe: ClassVar[str] = "fed_dyn"
    summary: ClassVar[str] = "FedAvg with corrected losses on the clients, until their minima agree"

    alpha: Positive = option(0.01, "Coefficient of the dynamic regulariser.")


class FedNova(_Normalised, AnyKind, Hidden, WithErrorMemory):
    recipe: ClassVar[str] = "fed_nova"
    summary: ClassVar[str] = "FedAvg of displacements normalised by the clients' numbers of steps"


class FedAG(_Averaging, Weighted):
    recipe: ClassVar[str] = "fed_ag"
    summary: ClassVar[str] = "FedAvg that predicts with draws from the Gaussian of the clients' weights"


class FedBE(_Averaging):
    recipe: ClassVar[str] = "fed_be"
    regression: ClassVar[bool] = False
    summary: ClassVar[str] = (
        "an ensemble drawn from the clients' weights teaches the server's model on unlabelled examples"
    )

    unlabelled_share: Share = option(0.1, "Fraction of the data that the server holds without labels.", argument=None)

    def check(self, config: Any) -> None:
        super().check(config)
        if self.unlabelled_share + (config.pretrain_share or 0) >= 1:
            raise InvalidArgument(
                f"unlabelled_share and pretrain_share are {self.unlabelled_share} and {config.pretrain_share}, which "
                "leaves the clients nothing: together they must be below 1."
            )

    def arguments(self, config: object, unlabelled: Callable[[], Any]) -> dict[str, Any]:
        return {**super().arguments(config, unlabelled), "features": unlabelled()}


class _PosteriorAveraging(BurnIn):
    """Clients of FedPA."""

    shrinkage: PositiveOrZero = option(
        0.1, "Shrinkage rho of the samples' covariance, which is the identity for rho = 0."
    )


class _Sampling(_Averaging):
    """Iterates of the clients or rounds are samples, for which the learning rate stays."""

    default_schedule: ClassVar[str] = "constant"

    def rate(self) -> float:
        return self.learning_rate or 0.03 if self.optimizer is None else super().rate()


class FedPA(_Sampling, AnyKind, Hidden, _PosteriorAveraging, WithErrorMemory):
    recipe: ClassVar[str] = "fed_pa"
    summary: ClassVar[str] = "clients sample by averaged SGD and send the step to the mode of their posteriors' product"


class FedSGLD(_Sampling, Weighted, Draws, WithErrorMemory):
    recipe: ClassVar[str] = "fed_sgld"
    summary: ClassVar[str] = "FedAvg with noise after each round; the rounds are samples"

    def check(self, config: object) -> None:
        super().check(config)
        check_even(config)

    def arguments(self, config: object, unlabelled: Callable[[], Any]) -> dict[str, Any]:
        return {**super().arguments(config, unlabelled), "max_samples": self.max_samples}


class FedKP(_Averaging, AnyKind):
    recipe: ClassVar[str] = "fed_kp"
    summary: ClassVar[str] = "each weight's mode of a kernel density over the clients, for their mean"

    kernel_start: str = option(
        "clients",
        "Starting points of mean shift: all clients (clustered), or their mean.",
        argument="start",
        names=choices.STARTS,
    )
    kernel: str = option(
        "epanechnikov", "Kernel of the density.", argument="kernel_options.kernel", names=choices.KERNELS
    )
    bandwidth: str = option(
        "silverman",
        "Selector of the bandwidth (see `tfp-bfl list`).",
        argument="kernel_options.bandwidth",
        names=choices.BANDWIDTHS,
    )
    bandwidth_scale: Positive = option(1.0, "Factor of the bandwidth.", argument="kernel_options.scale")


class FedKPPA(_Sampling, FedKP, _PosteriorAveraging):
    recipe: ClassVar[str] = "fed_kppa"
    summary: ClassVar[str] = "the clients of fed_pa with the server of fed_kp"
