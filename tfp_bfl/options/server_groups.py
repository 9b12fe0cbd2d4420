"""Groups of options of what clients send, who counts how much, what the server makes of it, and of priors."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl.errors import InvalidArgument, check_delta, check_noise, shown
from tfp_bfl.files.code import names_code
from tfp_bfl.options import choices
from tfp_bfl.options.group import Count, Group, Positive, PositiveOrZero, Share, ShareOrZero, option

_RATES = ", ".join(f"{rate:g} for {name}" for name, rate in choices.SERVER_OPTIMIZERS.numbers().items())

# (rate, rounds of the run) -> the server's learning rate.
SERVER_SCHEDULES: dict[str, Callable[[float, int], Any]] = {
    "constant": lambda rate, rounds: rate,
    "cosine": lambda rate, rounds: bfl.training.cosine_decay(rate, rounds, last=0.0),
    "linear": lambda rate, rounds: bfl.training.linear_decay(rate, rounds),
}


class GlobalOptimizer(Group):
    """The server's optimizer."""

    server_optimizer: str | None = option(
        None,
        "Optimizer of the server, with the clients' mean change as its gradient; by default the mean itself.",
        names=choices.SERVER_OPTIMIZERS,
    )
    server_learning_rate: Positive | None = option(
        None,
        f"Learning rate of the server's optimizer; {_RATES} by default.",
        argument=None,
    )
    server_momentum: ShareOrZero = option(0.0, "SGD momentum of the server (0 to 1).", argument=None)
    server_schedule: str = option(
        "constant",
        "Schedule of the server's learning rate over the rounds: constant, or cosine or linear to zero.",
        argument=None,
        names=choices.SERVER_SCHEDULES,
    )

    def check(self, config: Any) -> None:
        names = "server_learning_rate", "server_momentum", "server_schedule"
        self.require("server_optimizer", "the server's optimizer", *names)
        if self.server_momentum and self.server_optimizer != "sgd":
            raise InvalidArgument(
                f"server_momentum is of the server optimizer sgd, and this is {self.server_optimizer}: leave it out."
            )

    def arguments(self, config: Any, given: dict[str, Any], unlabelled: Callable[[], Any]) -> dict[str, Any]:
        optimizer = None
        if self.server_optimizer is not None:
            others = {"momentum": self.server_momentum} if self.server_momentum else {}
            rate = self.server_learning_rate or choices.SERVER_OPTIMIZERS.numbers()[self.server_optimizer]
            falling = SERVER_SCHEDULES[self.server_schedule](rate, config.rounds)
            optimizer = bfl.servers.server_optimizer(self.server_optimizer, falling, **others)
        return {**given, "server_optimizer": optimizer}


class Bound(Group):
    """Clients whose weights moved far are left out."""

    max_change_norm: Positive | None = option(
        None, "Maximum distance of a client's weights from the server's; clients beyond it are left out of the round."
    )


class Aggregation(Group):
    """The server's aggregation rule can be chosen."""

    rule: str | None = option(
        None,
        "Aggregation rule, or FILE.py:FUNCTION, which is executed; by default the rule under which the "
        "clients' steps converge to the posterior.",
        names=choices.RULES,
    )

    def check(self, config: Any) -> None:
        takes_arguments = any(":" in form for form in choices.RULES.entries)
        if self.rule is not None and takes_arguments and not names_code(self.rule):
            bfl.rules.parse_rule(self.rule)


class Defence(Group):
    """Robust aggregation."""

    robust: str | None = option(
        None,
        "Robust aggregation against adversarial clients: clip:MAX_NORM, trimmed:SHARE, median or "
        "centered_clip; none by default.",
        names=choices.ROBUST,
    )

    def check(self, config: Any) -> None:
        if self.robust is not None:
            bfl.rules.parse_robust(self.robust)


class Weighting(Group):
    """Weights of the clients."""

    weighting: str = option(
        "train_size", "Weight of each client in the aggregation (see `tfp-bfl list`).", names=choices.WEIGHTINGS
    )


class PrivateClients(Group):
    """Client-level differential privacy."""

    privacy_clip_norm: Positive | None = option(
        None,
        "Client-level differential privacy: clipping norm of a client's sum of means, in standard deviations.",
        argument=None,
    )
    privacy_variance_clip_norm: Positive | None = option(
        None, "Clipping norm of the variances; by default a twentieth of privacy_clip_norm.", argument=None
    )
    privacy_noise: PositiveOrZero = option(
        1.0, "Noise multiplier: standard deviation of the noise divided by privacy_clip_norm.", argument=None
    )
    privacy_delta: Share = option(1e-5, "Delta of the reported epsilon.", argument=None)

    def check(self, config: Any) -> None:
        of_clients = ("privacy_variance_clip_norm", "privacy_noise")
        of_both = () if config.example_clip_norm is not None else ("privacy_delta",)
        self.require("privacy_clip_norm", "differential privacy", *of_clients, *of_both)
        check_noise(self.privacy_noise, "privacy_noise")
        check_delta(self.privacy_delta, "privacy_delta")

    def arguments(self, config: Any, given: dict[str, Any], unlabelled: Callable[[], Any]) -> dict[str, Any]:
        if self.privacy_clip_norm is None:
            return given
        if config.cohort_size is None:
            raise InvalidArgument(
                "privacy_clip_norm hides clients of whom few take part at a time, and here all do: give cohort_size."
            )
        numbers = self.privacy_noise, config.cohort_size, self.privacy_delta, self.privacy_variance_clip_norm
        return {**given, "privacy": bfl.privacy.Privacy(self.privacy_clip_norm, *numbers)}


def _as_text(value: object) -> Any:
    """Return a sequence of names as text with commas, and anything else as it is."""
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else value


class Compression(Group):
    """Compression of the clients' messages."""

    compressor: Annotated[str | None, BeforeValidator(_as_text)] = option(
        None,
        "Compression of the clients' messages: quantiser:LEVELS, sparsifier:SHARE, largest:SHARE, or "
        "none, which only counts bits; of qlsd also one for each client, separated by commas.",
        names=choices.COMPRESSORS,
    )
    per_tensor: bool = option(False, "Compress each tensor of the model separately.")

    def check(self, config: Any) -> None:
        self.require("compressor", "the compressor", "per_tensor")
        several = config.has("participation")
        if self.compressor is not None and "," in self.compressor and not several:
            raise InvalidArgument(
                f"compressor is {shown(self.compressor)}, but only qlsd takes one for each client: give one for all."
            )
        for name in self.compressor.split(",") if self.compressor else ():
            compressor = bfl.compression.parse_compressor(name.strip())
            if several and not compressor.unbiased:
                raise InvalidArgument(
                    f"compressor is {compressor.name!r}, which is biased, and so would the chain be: give one such as "
                    "quantiser:16."
                )
            if not several and not compressor.unbiased and not config.error_memory:
                raise InvalidArgument(
                    f"compressor is {compressor.name!r}, which leaves the same values out for good: give error_memory, "
                    "or one that is unbiased, such as sparsifier:0.1."
                )


class ErrorMemory(Group):
    """Error feedback of a compressor."""

    error_memory: bool = option(
        False, "Add the compression error of earlier messages to the next message (error feedback)."
    )

    def check(self, config: Any) -> None:
        if self.error_memory and config.compressor is None:
            raise InvalidArgument("error_memory is of the compressor, and there is none: give compressor.")


class CoarseVariances(Group):
    """Bits of the clients' variances."""

    variance_bits: int | None = option(
        None,
        "Bits of each variance in the clients' messages: 32, or 8 for logarithms, which are rounded without bias; by "
        "default 8 (algorithm default) or 32.",
    )

    def check(self, config: Any) -> None:
        if self.variance_bits in (None, 32):
            return
        bfl.compression.variances.are_coarse(self.variance_bits)
        if config.kind not in (None, *choices.VARIATIONAL.entries):
            raise InvalidArgument(
                f"variance_bits is of Gaussian weights, and kind {config.kind!r} has none: use kind 'flipout', or "
                "leave it out."
            )


class Distillation(Group):
    """The server learns from unlabelled examples."""

    unlabelled_share: Share = option(0.1, "Fraction of the data that the server holds without labels.", argument=None)

    def check(self, config: Any) -> None:
        if self.unlabelled_share + (config.pretrain_share or 0) >= 1:
            raise InvalidArgument(
                f"unlabelled_share and pretrain_share are {self.unlabelled_share} and {config.pretrain_share}, which "
                "leaves the clients nothing: together they must be below 1."
            )

    def arguments(self, config: Any, given: dict[str, Any], unlabelled: Callable[[], Any]) -> dict[str, Any]:
        return {**given, "features": unlabelled()}


class Density(Group):
    """A kernel density over the clients."""

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


class WeightPrior(Group):
    """The prior of models with variational layers."""

    prior_stddev: Positive | Literal["fan_in"] = option(
        "fan_in",
        "Prior standard deviation of each weight of kind flipout; fan_in for sqrt(2 / inputs of a unit).",
        argument=None,
    )


class HeadFit(Group):
    """An exact head on the features of a frozen network."""

    head: str = option(
        "gaussian",
        "Head: gaussian for Gaussian classes, ridge for regression on one-hot labels; softmax takes a step a round.",
        names=choices.HEADS,
    )
    held_back: ShareOrZero = option(
        0.1, "Fraction of each client's examples to which the softmax temperature of the head is fitted."
    )
    softmax_temperature: Positive | None = option(
        None, "Softmax temperature of the head; by default that of the held-back examples."
    )
    sum_bits: Count = option(64, "Bits of an entry of the Gram matrix in a client's message: 8, 10, 12, 16 or 64.")


class AtWeights(Group):
    """A posterior at the weights of a complete run."""

    prior_stddev: Positive | None = option(
        None, "Standard deviation of the prior; by default fitted by the marginal likelihood."
    )
    temperature: Positive | None = option(
        None, "Posterior temperature; by default by the run's held-out rows, without them 0.01, for regression 1."
    )
    structure: str = option(
        "last_layer",
        "Precision: last_layer for the full matrix of the last layer, kronecker for two small ones that stand for it, "
        "or of laplace diagonal for all weights.",
        names=choices.STRUCTURES,
    )


class Precision(Group):
    """Laplace's approximation."""

    prior_by_layer: bool = option(False, "Fit a prior standard deviation for each layer, of laplace with diagonal.")


class LinearLayer(Group):
    """The exact posterior of the last layer."""

    noise_stddev: Positive | None = option(
        None,
        "Standard deviation of the labels' noise in regression, of last_layer; by default fitted by the marginal "
        "likelihood.",
    )
    rounds: Count | None = option(
        None,
        "Number of messages from each client; by default 1 for regression, 10 for classes, 21 with kronecker.",
        argument=None,
    )
