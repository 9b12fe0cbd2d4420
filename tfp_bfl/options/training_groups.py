"""Groups of options of the clients' training."""

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BeforeValidator

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl.defaults import LOCAL_EPOCHS
from tfp_bfl.errors import InvalidArgument, check_noise
from tfp_bfl.faces import keras
from tfp_bfl.options import choices, class_weights
from tfp_bfl.options.group import (
    INT32_MAX,
    Count,
    CountOrZero,
    Group,
    Positive,
    PositiveOrZero,
    ShareOrZero,
    option,
)


class Batches(Group):
    """The one group that all algorithms have."""

    batch_size: Count = option(32, "Batch size of training.")


class Local(Group):
    """Training of a client in a round."""

    local_epochs: Count = option(LOCAL_EPOCHS, "Number of epochs of a client in each round.")
    learning_rate: Positive | None = option(None, "Learning rate of the clients; by default that of the inference.")
    class_weight: Annotated[str | None, BeforeValidator(class_weights.as_text)] = option(
        None,
        "Class weights of the training loss: balanced (inverse to the class counts of all clients), or "
        "CLASS=WEIGHT,...; equal weights by default.",
        argument=None,
    )

    def fitted(
        self, config: Any, model_fn: Any, clients: Callable[[], Any], likelihood: dict[str, Any]
    ) -> dict[str, Any]:
        return class_weights.likelihood(self.class_weight, clients) if self.class_weight else {}


class Augmented(Group):
    """Clients step through batches, which can be augmented."""

    augmentation: str | None = option(
        None,
        "Augmentation of images at each step; none by default.",
        names=choices.AUGMENTATIONS,
    )

    def check(self, config: Any) -> None:
        if self.augmentation is not None:
            bfl.data.parse_augmentation(self.augmentation)


class Rounds(Group):
    """Training over many rounds at rates of a schedule."""

    schedule: str | None = option(
        None,
        "Schedule of the learning rate over the rounds: cosine (to a tenth), linear (to zero), inverse, exponential or "
        "constant.",
        argument=None,
        names=choices.SCHEDULES,
    )
    learning_rate_decay: PositiveOrZero = option(
        0.0, "Decay rate of the exponential schedule, per round; above 0 it selects that schedule.", argument=None
    )
    silent_rounds: CountOrZero = option(0, "Number of rounds before the exponential schedule begins.", argument=None)

    def check(self, config: Any) -> None:
        if self.learning_rate_decay and self.schedule not in (None, "exponential"):
            raise InvalidArgument(
                f"learning_rate_decay is a number of the exponential schedule, and the schedule is {self.schedule}: "
                "give one of them."
            )

    def arguments(self, config: Any, given: dict[str, Any], unlabelled: Callable[[], Any]) -> dict[str, Any]:
        rate = config.rate()
        schedules = {
            "cosine": lambda: bfl.training.cosine_decay(rate, config.rounds),
            "linear": lambda: bfl.training.linear_decay(rate, config.rounds),
            "inverse": lambda: bfl.training.inverse_decay(rate),
            "exponential": lambda: bfl.training.exponential_decay(rate, self.learning_rate_decay, self.silent_rounds),
            "constant": lambda: rate,
        }
        return {**given, "learning_rate": schedules[config.schedule_name()]()}


class LocalOptimizer(Group):
    """Clients step their means and point weights by a Keras optimizer."""

    optimizer: str | None = option(
        None,
        "Optimizer of the clients; by default momentum, SGD with momentum 0.9.",
        argument="optimizer_fn",
        names=choices.OPTIMIZERS,
    )


class Momentum(Group):
    """Clients step by SGD; its momentum is that of the optimizer `momentum` where one can be chosen."""

    momentum: ShareOrZero = option(0.0, "SGD momentum of the clients (0 to 1).")

    def check(self, config: Any) -> None:
        optimizer = config.optimizer
        if optimizer not in (None, "momentum") and config.given(["momentum"]):
            raise InvalidArgument(
                f"momentum is a number of the optimizer momentum, and optimizer is {optimizer}: give one of them."
            )

    def arguments(self, config: Any, given: dict[str, Any], unlabelled: Callable[[], Any]) -> dict[str, Any]:
        if not config.has("optimizer"):
            return given
        given = {name: x for name, x in given.items() if name != "momentum"}
        if config.optimizer in (None, "momentum"):
            given["optimizer_fn"] = lambda: keras.optimizers.SGD(momentum=self.momentum)
        return given


class Tempered(Group):
    """Clients fit a posterior to a tempered likelihood."""

    temperature: Positive | None = option(
        None,
        "Posterior temperature T: as if each example had been seen 1/T times; by default it "
        "follows from the loss (algorithm default) or is 0.01, and 1 for regression.",
    )


class Inference(Group):
    """Clients fit a posterior by the ELBO."""

    inference: str | None = option(
        None,
        "Local inference of the posterior; by default curvature, and natural for clients with "
        "approximate likelihood factors.",
        names=choices.INFERENCES,
    )
    noise: str | None = option(
        None,
        "Noise of the weights in training: shared by a batch, or flipout for each example; by default "
        "that of the inference.",
        names=choices.NOISES,
    )


class RoundPosterior(Group):
    """The posterior of a round, as the prior of clients and of the next round."""

    kl: str | None = option(
        None,
        "Scaling of the KL term on each client (see `tfp-bfl list`); by default that of the rule.",
        names=choices.KLS,
    )
    update_prior: bool = option(
        False, "Use the pooled posterior as the prior of the next round; by default with backprop at temperature 1."
    )
    pretrained: bool = option(
        False, "Use the initial weights as the first prior of update_prior; implied by pretrain_share."
    )

    def check(self, config: Any) -> None:
        if self.pretrained and not self.update_prior:
            raise InvalidArgument(
                "pretrained makes the start a prior for update_prior, which is not given: give that too."
            )
        if self.update_prior and config.kind not in (None, *choices.VARIATIONAL.entries):
            raise InvalidArgument(
                f"update_prior makes the posterior the prior, and kind {config.kind!r} has none: use kind 'flipout'."
            )

    def arguments(self, config: Any, given: dict[str, Any], unlabelled: Callable[[], Any]) -> dict[str, Any]:
        return {**given, "pretrained": bool(config.pretrain_share) or self.pretrained}


class PrivateExamples(Group):
    """Differential privacy of the clients' examples."""

    example_clip_norm: Positive | None = option(
        None,
        "Example-level differential privacy: clipping norm of an example's gradient (inference backprop) or features.",
        argument=None,
    )
    example_noise: PositiveOrZero = option(
        1.0, "Noise multiplier: standard deviation of the noise divided by example_clip_norm.", argument=None
    )

    def check(self, config: Any) -> None:
        self.require("example_clip_norm", "differential privacy", "example_noise")
        check_noise(self.example_noise, "example_noise")

    def arguments(self, config: Any, given: dict[str, Any], unlabelled: Callable[[], Any]) -> dict[str, Any]:
        if self.example_clip_norm is None:
            return given
        return {**given, "example_privacy": bfl.training.ExamplePrivacy(self.example_clip_norm, self.example_noise)}


class SiteFactors(Group):
    """Approximate likelihood factors, which clients keep."""

    damping: Positive | None = option(
        None, "Damping of the approximate likelihood factors between rounds; 1 / clients by default.", le=1
    )


class ADMM(Group):
    """Clients are held to the server's posterior."""

    admm_step_size: Positive = option(
        1.0, "Penalty rho that holds clients to the server's posterior.", argument="step_size"
    )
    empty_sites: bool = option(
        False,
        "Start with approximate likelihood factors of 1, as published, instead of parts of the initial posterior.",
    )


class Swag(Group):
    """Posteriors of SGD's iterates, in one round."""

    last_layer: bool = option(
        False, "Fit a posterior over the last layer only; the layers below are pretrained and frozen."
    )
    diagonal_only: bool = option(
        True, "Use only the diagonals of the clients' covariances; --no-diagonal-only for the whole."
    )
    between_clients: bool = option(
        True,
        "Widen the clients' posteriors by the variance between their means; --no-between-clients for the"
        " published product.",
    )
    curvature: bool = option(
        True,
        "Widen a client's posterior by the curvature of its likelihood; --no-curvature for the variance of SGD alone.",
    )
    min_examples: Count = option(10, "Minimum number of examples of a client; smaller clients are refused.")
    burn_in_epochs: CountOrZero | None = option(
        None, "Number of epochs before SWAG collects; half of the local epochs by default."
    )
    collect_every: Count | None = option(None, "Number of steps between collected iterates; one epoch by default.")
    max_columns: int = option(20, "Maximum number of deviation columns that a client sends.", ge=2, le=INT32_MAX)
    min_variance: Positive = option(1e-6, "Floor of the iterates' variances.")
    weight_decay: PositiveOrZero = option(0.0, "L2 weight decay of the clients' SGD.")

    def check(self, config: Any) -> None:
        if self.last_layer and not config.pretrain_share:
            raise InvalidArgument(
                "last_layer freezes all that lies below, which would be random: give pretrain_share, on which the "
                "server trains it first."
            )


class Proximal(Group):
    """Clients are held near the server's weights."""

    proximal: PositiveOrZero = option(0.01, "Coefficient mu of the proximal term mu / 2 ||w - w_server||^2.")


class DynamicLoss(Group):
    """Clients' losses are corrected until their minima agree."""

    alpha: Positive = option(0.01, "Coefficient of the dynamic regulariser.")
