"""The options of the algorithms, each in one place: type, default, limits, help, and its recipe's argument.

A new option of a recipe is one more field here; a new algorithm is one more class, in `_CLASSES`.
The command line, the configuration and `build` read these classes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from pydantic.fields import FieldInfo

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl.app.options import choices
from tfp_bfl.app.options.chains import DGSGLD, FSGLD, QLSD
from tfp_bfl.app.options.fields import (
    INT32_MAX,
    SGD,
    AnyKind,
    Bounded,
    Count,
    CountOrZero,
    Defended,
    Hidden,
    Optimized,
    Options,
    Pooled,
    Positive,
    PositiveOrZero,
    Weighted,
    option,
)
from tfp_bfl.app.options.messages import WithErrorMemory
from tfp_bfl.app.options.own_model import names_code
from tfp_bfl.app.options.personal import MetaLearning, MetaVD, PFedBayes
from tfp_bfl.app.options.point_weights import (
    FedAG,
    FedBE,
    FedDyn,
    FedKP,
    FedKPPA,
    FedNova,
    FedOpt,
    FedPA,
    FedProx,
    FedSGLD,
    Scaffold,
)
from tfp_bfl.errors import InvalidArgument, check_noise, lookup


class _Inferred(Optimized, Bounded):
    """Clients fit a posterior by the ELBO."""

    default_schedule: ClassVar[str] = "inverse"

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
    temperature: Positive | None = option(
        None,
        "Posterior temperature T: as if each example had been seen 1/T times; by default 0.01, for regression 1.",
    )

    def rate(self) -> float:
        from tfp_bfl.training.inference import default_optimizer

        optimizer = self.optimizer or default_optimizer(getattr(self, "update_prior", False))
        return self.learning_rate or bfl.clients.default_rate(self.inference or self.default_inference(), optimizer)

    def default_inference(self) -> str:
        """Return the inference where none is given."""
        raise NotImplementedError

    def arguments(self, config: object, unlabelled: Callable[[], Any]) -> dict[str, Any]:
        given = super().arguments(config, unlabelled)
        recipes_own = ("inference", "noise", "temperature", "kl", "rule")
        return {name: x for name, x in given.items() if x is not None or name not in recipes_own}


class _HiddenExamples(Options):
    """Clients with differential privacy of their examples."""

    example_clip_norm: Positive | None = option(
        None,
        "Example-level differential privacy: clipping norm of one example's gradient; requires inference backprop.",
        argument=None,
    )
    example_noise: PositiveOrZero = option(
        1.0, "Noise multiplier: standard deviation of the noise divided by example_clip_norm.", argument=None
    )

    def check(self, config: object) -> None:
        super().check(config)
        self.require("example_clip_norm", "differential privacy", "example_noise")
        check_noise(self.example_noise, "example_noise")

    def arguments(self, config: object, unlabelled: Callable[[], Any]) -> dict[str, Any]:
        given = super().arguments(config, unlabelled)
        if self.example_clip_norm is None:
            return given
        return {**given, "example_privacy": bfl.clients.ExamplePrivacy(self.example_clip_norm, self.example_noise)}


class Variational(_Inferred, Pooled, Defended, AnyKind, Hidden, _HiddenExamples, WithErrorMemory):
    """Options of `variational`, which pre-training uses too."""

    recipe: ClassVar[str] = "variational"
    summary: ClassVar[str] = "clients fit a posterior by the ELBO, many rounds; the server pools by a rule"

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

    def default_inference(self) -> str:
        from tfp_bfl.training.inference import settings_for

        return settings_for(
            update_prior=self.update_prior, example_privacy=self.example_clip_norm is not None
        ).inference

    def check(self, config: Any) -> None:
        super().check(config)
        if self.pretrained and not self.update_prior:
            raise InvalidArgument(
                "pretrained makes the start a prior for update_prior, which is not given: give that too."
            )
        if self.update_prior and config.kind not in (None, *choices.VARIATIONAL.forms()):
            raise InvalidArgument(
                f"update_prior makes the posterior the prior, and kind {config.kind!r} has none: use kind 'flipout'."
            )

    def arguments(self, config: Any, unlabelled: Callable[[], Any]) -> dict[str, Any]:
        return {
            **super().arguments(config, unlabelled),
            "pretrained": bool(config.pretrain_share) or self.pretrained,
        }


class _Sites(_Inferred, AnyKind):
    """Recipes of `tfp_bfl.algorithms.sites`."""

    # The clients' first factors hold the start: the narrower it is, the longer it pulls.
    defaults: ClassVar[dict[str, Any]] = {"initial_stddev": 0.05}

    def default_inference(self) -> str:
        from tfp_bfl.clients.sites import SITES_INFERENCE

        return SITES_INFERENCE

    damping: Positive | None = option(
        None, "Damping of the approximate likelihood factors between rounds; 1 / clients by default.", le=1
    )

    def check(self, config: Any) -> None:
        super().check(config)
        if config.kind not in (None, "flipout"):
            raise InvalidArgument(
                f"{self.recipe} finds a posterior over weights with a fixed prior, kind {config.kind!r} has none: use "
                "kind 'flipout'."
            )


class PartitionedVI(_Sites, Weighted):
    recipe: ClassVar[str] = "partitioned_vi"
    summary: ClassVar[str] = "each client keeps its likelihood's factor of the posterior, which the server multiplies"


class BayesianADMM(_Sites):
    recipe: ClassVar[str] = "bayesian_admm"
    summary: ClassVar[str] = "partitioned_vi with clients held to the server's posterior, and averaged"

    admm_step_size: Positive = option(
        1.0, "Penalty rho that holds clients to the server's posterior.", argument="step_size"
    )
    empty_sites: bool = option(
        False,
        "Start with approximate likelihood factors of 1, as published, instead of parts of the initial posterior.",
    )


class FLSwag(SGD):
    recipe: ClassVar[str] = "fl_swag"
    summary: ClassVar[str] = "one round of SWAG posteriors and their product; clients join and leave"
    defaults: ClassVar[dict[str, Any]] = {
        **{"kind": "deterministic", "rounds": 1, "local_epochs": 20, "learning_rate": 0.05},
    }

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
        super().check(config)
        if self.last_layer and not config.pretrain_share:
            raise InvalidArgument(
                "last_layer freezes all that lies below, which would be random: give pretrain_share, on which the "
                "server trains it first."
            )


class OwnAlgorithm(Optimized, Pooled, Bounded, Defended, AnyKind, Weighted):
    """An algorithm of the user, FILE.py:FUNCTION, which gets those of these options that it takes."""

    recipe: ClassVar[str] = "own"
    summary: ClassVar[str] = "an algorithm of the user"
    default_schedule: ClassVar[str] = "inverse"


_CLASSES: tuple[type[Options], ...] = (
    *(Variational, PartitionedVI, BayesianADMM, FLSwag),
    *(FedOpt, FedProx, Scaffold, FedDyn, FedNova),
    *(FedAG, FedBE, FedPA, FedSGLD, FedKP, FedKPPA),
    *(QLSD, DGSGLD, FSGLD),
    *(MetaLearning, MetaVD, PFedBayes),
)
ALGORITHMS = {options.recipe: options for options in _CLASSES}


@functools.cache
def fields() -> dict[str, FieldInfo]:
    """Return the options of all algorithms by name; an option of several is declared once, and is the same in all."""
    collected: dict[str, FieldInfo] = {}
    for options in _CLASSES:
        collected = {**options.model_fields, **collected}
    return collected


def takers(name: str) -> tuple[str, ...]:
    """Return the algorithms that an option is of; none for one that says something to all."""
    if name in Options.model_fields:
        return ()
    return tuple(recipe for recipe, options in ALGORITHMS.items() if name in options.model_fields)


def serves(name: str, algorithm: str) -> bool:
    """Return whether an algorithm has an option."""
    return not takers(name) or name in algorithm_options(algorithm).model_fields


def in_words(algorithms: Iterable[str]) -> str:
    """Return algorithms in words, such as "variational and fl_swag"; all of the family fed_* by that name."""
    algorithms = tuple(algorithms)
    others = [name for name in ALGORITHMS if name not in algorithms]
    if 0 < len(others) < 5 and len(algorithms) > 4:
        return f"all but {in_words(others)}"
    family = {name for name in ALGORITHMS if name.startswith("fed_")}
    if family <= set(algorithms):
        algorithms = (*(name for name in algorithms if name not in family), "fed_*")
    *most, last = algorithms
    return f"{', '.join(most)} and {last}" if most else last


def default_in_words(name: str, default: object) -> str:
    """Return the default of an option's field, and those of the algorithms that have another; "" for none."""
    others: dict[str, list[str]] = {}
    for algorithm in takers(name) or ALGORITHMS:
        value = ALGORITHMS[algorithm].defaults.get(name, default)
        others.setdefault("" if value is None else str(value), []).append(algorithm)
    if len(others) == 1:
        return next(iter(others))
    others.pop("" if default is None else str(default), None)
    return "; ".join(
        [
            *([] if default is None else [str(default)]),
            *(f"{value} for {in_words(have)}" for value, have in others.items()),
        ]
    )


# What papers and other libraries call them.
ALIASES = {"fedavg": "fed_opt", "pvi": "partitioned_vi"}


def canonical(algorithm: str) -> str:
    """Return the name here of an algorithm that others write otherwise, such as FedAvg, "fedProx" or "fl-swag"."""
    plain = lambda name: name.lower().replace("_", "").replace("-", "")
    known = {**{plain(name): name for name in ALGORITHMS}, **ALIASES}
    if algorithm in ALGORITHMS or names_code(algorithm):
        return algorithm
    return known.get(plain(algorithm), algorithm)


def algorithm_options(algorithm: str) -> type[Options]:
    """Return the class of an algorithm; of FILE.py:FUNCTION `OwnAlgorithm`.

    Raises:
      InvalidArgument: there is none of that name.
    """
    options: type[Options] = OwnAlgorithm if names_code(algorithm) else lookup(ALGORITHMS, algorithm, "algorithm")
    return options
