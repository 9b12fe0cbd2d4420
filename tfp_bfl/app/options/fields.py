"""Options and groups of options that several algorithms share. TensorFlow is imported where arguments are made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

import pydantic
from pydantic import Field

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl.app.options import choices, class_weights
from tfp_bfl.app.options.own_model import names_code
from tfp_bfl.app.options.refusals import NoTruthAsNumber
from tfp_bfl.defaults import LOCAL_EPOCHS
from tfp_bfl.errors import InvalidArgument, check_delta, check_noise

INT32_MAX = 2**31 - 1
# Of labels that are numbers.
LIKELIHOOD = "heteroscedastic"
Count = Annotated[int, Field(ge=1, le=INT32_MAX)]
CountOrZero = Annotated[int, Field(ge=0, le=INT32_MAX)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
PositiveOrZero = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, lt=1)]
ShareOrZero = Annotated[float, Field(ge=0, lt=1)]


def option(
    default: Any,
    description: str,
    *,
    argument: str | None = "",
    names: choices.Table | None = None,
    **limits: Any,
) -> Any:
    """Return a field of a configuration.

    Args:
      default: of the option.
      description: for the help.
      argument: of the recipe; "group.argument" for one in a dictionary of options. "" for one that has the option's
        name, None for an option that goes to no argument, or is part of one that `Options.arguments` makes.
      names: that it can take.
      **limits: of `pydantic.Field`.
    """
    extra: Any = {"argument": argument, "names": names}
    return Field(default, description=description, json_schema_extra=extra, **limits)


class Options(NoTruthAsNumber):
    """Options of every algorithm.

    Attributes:
      recipe: of `tfp_bfl.algorithms`, and the algorithm's name.
      summary: of its clients and its server, in one line.
      defaults: of a configuration with this algorithm, where they differ from the fields' own.
      point_weights: models with variational layers are refused.
      personal: whether each client has a personal model.
      adapts: whether clients are scored by models of their own, before and after a step of adaptation.
      regression: labels may be numbers.
      of_recipe: options of models that the recipe uses itself.
    """

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, defer_build=True)
    recipe: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    defaults: ClassVar[dict[str, Any]] = {}
    point_weights: ClassVar[bool] = True
    personal: ClassVar[bool] = False
    adapts: ClassVar[bool] = False
    regression: ClassVar[bool] = True
    of_recipe: ClassVar[tuple[str, ...]] = ()

    batch_size: Count = option(32, "Batch size of training.")

    def check(self, config: Any) -> None:
        """Raise InvalidArgument where the options do not fit each other or the `RunConfig` that they are of."""
        if self.point_weights and config.kind in choices.VARIATIONAL.forms():
            raise InvalidArgument(f"{self.recipe} finds a posterior over point weights: use kind 'deterministic'.")

    def require(self, giver: str, what: str, *names: str) -> None:
        """Raise InvalidArgument if one of the named options is set without `giver`, the option that adds `what`."""
        for name in names:
            if getattr(self, giver) is None and getattr(self, name) != type(self).model_fields[name].default:
                raise InvalidArgument(f"{name} is of {what}, and there is none: give {giver}.")

    def steps(self, num_examples: int) -> int:
        """Return the local steps in a round of a client with that many examples."""
        raise NotImplementedError

    def arguments(self, config: object, unlabelled: Callable[[], Any]) -> dict[str, Any]:
        """Return the arguments of the recipe besides the model; `unlabelled` gives the server's examples
        without labels.
        """
        given: dict[str, Any] = {}
        for name, argument in argument_names(type(self)).items():
            group, _, last = argument.rpartition(".")
            (given.setdefault(group, {}) if group else given)[last] = getattr(self, name)
        return given

    def fitted(self, model_fn: object, clients: Callable[[], Any], likelihood: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of the recipe that are fitted to the clients' data.

        Args:
          model_fn: builds the model.
          clients: gives the clients of the training, or None where their data are not at hand.
          likelihood: the recipe's argument of that name, or nothing.
        """
        return {}


class Training(Options):
    """Clients train the model."""

    local_epochs: Count = option(LOCAL_EPOCHS, "Number of epochs of a client in each round.")
    learning_rate: Positive | None = option(None, "Learning rate of the clients; by default that of the inference.")
    class_weight: str | None = option(
        None,
        "Class weights of the training loss: balanced (inverse to the class counts of all clients), or "
        "CLASS=WEIGHT,...; equal weights by default.",
        argument=None,
    )

    _class_weight = pydantic.field_validator("class_weight", mode="before")(class_weights.as_text)

    def fitted(self, model_fn: object, clients: Callable[[], Any], likelihood: dict[str, Any]) -> dict[str, Any]:
        return class_weights.likelihood(self.class_weight, clients, likelihood) if self.class_weight else {}

    def rate(self) -> float:
        """Return the learning rate."""
        return self.learning_rate or float(self.defaults["learning_rate"])

    def steps(self, num_examples: int) -> int:
        return -(-num_examples // self.batch_size) * self.local_epochs


class SGD(Training):
    momentum: ShareOrZero = option(0.0, "SGD momentum of the clients (0 to 1).")


class ManyRounds(Training):
    default_schedule: ClassVar[str] = "constant"

    schedule: str | None = option(
        None,
        "Schedule of the learning rate over the rounds: cosine (to a tenth), inverse, exponential or constant.",
        argument=None,
        names=choices.SCHEDULES,
    )
    learning_rate_decay: PositiveOrZero = option(
        0.0, "Decay rate of the exponential schedule, per round; above 0 it selects that schedule.", argument=None
    )
    silent_rounds: CountOrZero = option(0, "Number of rounds before the exponential schedule begins.", argument=None)
    augmentation: str | None = option(
        None,
        "Augmentation of images at each step; none by default.",
        names=choices.AUGMENTATIONS,
    )

    def check(self, config: object) -> None:
        super().check(config)
        if self.augmentation is not None:
            bfl.data.parse_augmentation(self.augmentation)
        if self.learning_rate_decay and self.schedule not in (None, "exponential"):
            raise InvalidArgument(
                f"learning_rate_decay is a number of the exponential schedule, and the schedule is {self.schedule}: "
                "give one of them."
            )

    def schedule_name(self) -> str:
        """Return the name of the schedule, the default filled in."""
        return self.schedule or ("exponential" if self.learning_rate_decay else self.default_schedule)

    def arguments(self, config: Any, unlabelled: Callable[[], Any]) -> dict[str, Any]:
        schedules = {
            "cosine": lambda: bfl.clients.cosine_decay(self.rate(), config.rounds),
            "inverse": lambda: bfl.clients.inverse_decay(self.rate()),
            "exponential": lambda: bfl.clients.exponential_decay(
                self.rate(), self.learning_rate_decay, self.silent_rounds
            ),
            "constant": self.rate,
        }
        return {**super().arguments(config, unlabelled), "learning_rate": schedules[self.schedule_name()]()}


class Optimized(ManyRounds):
    """Clients step their means and point weights by a Keras optimizer."""

    optimizer: str | None = option(
        None,
        "Optimizer of the clients; by default momentum, SGD with momentum 0.9.",
        argument="optimizer_fn",
        names=choices.OPTIMIZERS,
    )

    def rate(self) -> float:
        return self.learning_rate or choices.OPTIMIZERS.numbers()[self.optimizer or "momentum"]

    def arguments(self, config: object, unlabelled: Callable[[], Any]) -> dict[str, Any]:
        given = super().arguments(config, unlabelled)
        return given if self.optimizer else {name: x for name, x in given.items() if name != "optimizer_fn"}


class Prior(Options):
    prior_stddev: Positive | Literal["fan_in"] = option(
        "fan_in",
        "Prior standard deviation of each weight of kind flipout; fan_in for sqrt(2 / inputs of a unit).",
        argument=None,
    )


class AnyKind(Prior):
    """Options of algorithms for models with or without variational layers."""

    point_weights: ClassVar[bool] = False


class BurnIn(Options):
    burn_in_rounds: CountOrZero | None = option(
        None, "Number of burn-in rounds before samples are collected; half of the rounds by default."
    )

    def check(self, config: Any) -> None:
        super().check(config)
        if self.burn_in_rounds is not None and self.burn_in_rounds >= config.rounds:
            raise InvalidArgument(
                f"burn_in_rounds is {self.burn_in_rounds}, but must be below the number of rounds, {config.rounds}: "
                "those after it are the samples."
            )

    def arguments(self, config: Any, unlabelled: Callable[[], Any]) -> dict[str, Any]:
        burn_in = config.rounds // 2 if self.burn_in_rounds is None else self.burn_in_rounds
        return {**super().arguments(config, unlabelled), "burn_in_rounds": burn_in}


class Draws(BurnIn):
    """Rounds are draws of the posterior."""

    step_size: Positive = option(1e-6, "Step size eta; the noise of each step has variance 2 eta.")
    max_samples: Count = option(20, "Maximum number of samples, from the last rounds, in predictions.", argument=None)


def _server_rates() -> str:
    return ", ".join(f"{rate:g} for {name}" for name, rate in choices.SERVER_OPTIMIZERS.numbers().items())


class ServerOptimized(Options):
    server_optimizer: str | None = option(
        None,
        "Optimizer of the server, with the clients' mean change as its gradient; by default the mean itself.",
        names=choices.SERVER_OPTIMIZERS,
    )
    server_learning_rate: Positive | None = option(
        None,
        f"Learning rate of the server's optimizer; {_server_rates()} by default.",
        argument=None,
    )
    server_momentum: ShareOrZero = option(0.0, "SGD momentum of the server (0 to 1).", argument=None)

    def check(self, config: object) -> None:
        super().check(config)
        self.require("server_optimizer", "the server's optimizer", "server_learning_rate", "server_momentum")
        if self.server_momentum and self.server_optimizer != "sgd":
            raise InvalidArgument(
                f"server_momentum is of the server optimizer sgd, and this is {self.server_optimizer}: leave it out."
            )

    def arguments(self, config: object, unlabelled: Callable[[], Any]) -> dict[str, Any]:
        optimizer = None
        if self.server_optimizer is not None:
            others = {"momentum": self.server_momentum} if self.server_momentum else {}
            optimizer = bfl.servers.server_optimizer(self.server_optimizer, self.server_learning_rate, **others)
        return {**super().arguments(config, unlabelled), "server_optimizer": optimizer}


class Bounded(Options):
    max_change_norm: Positive | None = option(
        None, "Maximum distance of a client's weights from the server's; clients beyond it are left out of the round."
    )


class Pooled(Options):
    """The server's aggregation rule can be chosen."""

    rule: str | None = option(
        None,
        "Aggregation rule, or FILE.py:FUNCTION, which is executed; by default the rule under which the "
        "clients' steps converge to the posterior.",
        names=choices.RULES,
    )

    def check(self, config: object) -> None:
        super().check(config)
        takes_arguments = any(":" in form for form in choices.RULES.forms())
        if self.rule is not None and takes_arguments and not names_code(self.rule):
            bfl.rules.parse_rule(self.rule)


class Defended(Options):
    robust: str | None = option(
        None,
        "Robust aggregation against adversarial clients: clip:MAX_NORM, trimmed:SHARE, median or "
        "centered_clip; none by default.",
        names=choices.ROBUST,
    )

    def check(self, config: object) -> None:
        super().check(config)
        if self.robust is not None:
            bfl.rules.parse_robust(self.robust)


class Weighted(Options):
    weighting: str = option(
        "train_size", "Weight of each client in the aggregation (see `tfp-bfl list`).", names=choices.WEIGHTINGS
    )

    def check(self, config: Any) -> None:
        super().check(config)
        if self.weighting in ("equal", "train_size"):
            return
        if self.point_weights:
            raise InvalidArgument(
                f"Weighting by {self.weighting} compares posteriors, which {self.recipe} does not: use 'equal' or "
                "'train_size'."
            )
        if config.kind not in (None, *choices.VARIATIONAL.forms()):
            raise InvalidArgument(
                f"Weighting by {self.weighting} compares posteriors, kind {config.kind!r} has none: use kind 'flipout'."
            )


class Hidden(Weighted):
    """Options of algorithms that support client-level differential privacy."""

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

    def check(self, config: object) -> None:
        super().check(config)
        of_clients = ("privacy_variance_clip_norm", "privacy_noise")
        of_both = () if getattr(self, "example_clip_norm", None) is not None else ("privacy_delta",)
        self.require("privacy_clip_norm", "differential privacy", *of_clients, *of_both)
        check_noise(self.privacy_noise, "privacy_noise")
        check_delta(self.privacy_delta, "privacy_delta")

    def arguments(self, config: Any, unlabelled: Callable[[], Any]) -> dict[str, Any]:
        given = super().arguments(config, unlabelled)
        if self.privacy_clip_norm is None:
            return given
        if config.cohort_size is None:
            raise InvalidArgument(
                "privacy_clip_norm hides clients of whom few take part at a time, and here all do: give cohort_size."
            )
        numbers = self.privacy_noise, config.cohort_size, self.privacy_delta, self.privacy_variance_clip_norm
        return {**given, "privacy": bfl.privacy.Privacy(self.privacy_clip_norm, *numbers)}


def extra(field: Any, what: str) -> Any:
    """Return the `argument` or the `names` that `option` gave a field."""
    return field.json_schema_extra[what]


def argument_names(options: type[Options]) -> dict[str, str]:
    """Return the options that are an argument of the recipe each, and its name."""
    places = {name: extra(field, "argument") for name, field in options.model_fields.items()}
    return {name: place or name for name, place in places.items() if place is not None}
