"""The ways in which local training finds a posterior, by name, and their defaults."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar, cast

from tfp_bfl.errors import InvalidArgument, check_number, lookup, shown
from tfp_bfl.training.likelihoods import Likelihood
from tfp_bfl.training.natural import ByCurvature
from tfp_bfl.training.optimizers import DEFAULT_OPTIMIZER, Optimizer, optimizer_of, optimizer_rate
from tfp_bfl.training.schedules import inverse_decay
from tfp_bfl.training.updates import ByOptimizer, Schedule, Update, check_schedules
from tfp_bfl.weights import FlatWeights

_Make = TypeVar("_Make", bound=Callable[..., Any])
INFERENCES = {
    "curvature": "means by the optimizer, precisions by the likelihood's curvature",
    "natural": "means by natural gradients, precisions by the likelihood's curvature",
    "ivon": "means and precisions by natural gradients, the curvature by Price's theorem",
    "backprop": "means and log standard deviations by the optimizer",
}
DEFAULT_INFERENCE = "curvature"
# Posterior temperature by likelihood: within 0.006 nats of the best of 0.005 to 1 with all examples of three datasets
# (experiments/default_posterior).
TEMPERATURES = {"categorical": 0.01, "class_weighted": 0.01}
NOISES = {"shared": "one draw of the weights for a batch", "flipout": "a draw for each example"}
_NATURAL: dict[str, dict[str, Any]] = {
    "curvature": {},
    "natural": {"natural_means": True},
    "ivon": {"natural_means": True, "draw_labels": False, "decay": 0.999},
}
_RATES = {"natural": 0.005, "ivon": 0.05}


class PosteriorSettings(NamedTuple):
    """Hold the options that decide a client's posterior, all defaults filled in."""

    inference: str
    temperature: float
    kl: str


def default_temperature(likelihood: str | Likelihood, of_classes: float | None = None) -> float:
    """Return the default posterior temperature of a likelihood: that of `TEMPERATURES`, and 1 for others.

    `of_classes` is in place of those.

    A regression has its noise in the model.
    """
    found = TEMPERATURES.get(likelihood.partition(":")[0]) if isinstance(likelihood, str) else None
    return 1.0 if found is None else of_classes or found


def settings_for(
    inference: str | None = None,
    temperature: float | None = None,
    kl: str | None = None,
    *,
    likelihood: str | Likelihood = "categorical",
    update_prior: bool = False,
    example_privacy: bool = False,
    one_shot: bool = False,
) -> PosteriorSettings:
    """Fill in the defaults of client work that fits a posterior.

    Args:
      inference, temperature, kl: what the user gave; None for the default.
      likelihood: of the labels, for `default_temperature`.
      update_prior: the prior is the last pooled posterior: backprop at temperature 1 and KL / N_k, as published
        (Fischer et al. 2024).
      example_privacy: gradients are clipped and noised, which only "backprop" allows.
      one_shot: the rule is for one round, in which the product of all clients' densities counts the prior once.
    """
    if inference is None:
        inference = "backprop" if update_prior or example_privacy else DEFAULT_INFERENCE
    if temperature is None:
        temperature = 1.0 if update_prior else default_temperature(likelihood)
    if kl is None:
        kl = "product" if one_shot else "client" if update_prior else "total"
    return PosteriorSettings(inference, temperature, kl)


def default_optimizer(update_prior: bool = False) -> str:
    """Return the default optimizer: momentum, but Adam where the prior is the last posterior.

    That prior's precision is that of the posterior, 1e5 at first, and gradients of its KL would take SGD away at any
    rate that the likelihood needs.
    """
    return "adam" if update_prior else DEFAULT_OPTIMIZER


def default_rate(inference: str, optimizer: Optimizer = DEFAULT_OPTIMIZER) -> float:
    """Return the default learning rate of the means: that of the inference, or else of the optimizer.

    Example:
      >>> bfl.training.default_rate("curvature"), bfl.training.default_rate("backprop", "adam")
      (0.03, 0.001)
    """
    lookup(INFERENCES, inference, "inference")
    return _RATES[inference] if inference in _RATES else optimizer_rate(optimizer)


def default_noise(inference: str) -> str:
    """Return the default noise of an inference of Gaussian weights, one of `NOISES`."""
    return "flipout" if inference == "backprop" else "shared"


def stated_training(
    learning_rate: Schedule | None, optimizer: Optimizer, inference: str = "backprop"
) -> dict[str, Any]:
    """Return the name of the optimizer, and learning rate and schedule by name, as client work states them.

    A user-supplied function has its own name, and an optimizer without one is left out.
    """
    name = optimizer if isinstance(optimizer, str) else getattr(optimizer, "__name__", "<lambda>")
    named = {} if name == "<lambda>" else {"optimizer": name}
    if learning_rate is None:
        learning_rate = inverse_decay(default_rate(inference, optimizer))
    if not callable(learning_rate):
        return {**named, "learning_rate": float(learning_rate), "schedule": "constant"}
    custom = {"schedule": getattr(learning_rate, "__name__", "custom")}
    return {**named, **getattr(learning_rate, "settings", custom)}


def stating(make: _Make) -> _Make:
    """Decorate a function that makes client work, which then states its options by name (`ClientWork.settings`).

    Stated are the optimizer, the learning rate with its schedule, inference, temperature, KL scaling, noise, epochs and
    batch size, defaults filled in, and other options that are not at their defaults.
    """
    signature = inspect.signature(make)

    @functools.wraps(make)
    def stated(*args: object, **kwargs: object) -> object:
        work, given = make(*args, **kwargs), signature.bind(*args, **kwargs)
        chosen = {name: x for name, x in given.arguments.items() if isinstance(x, (bool, int, float, str))}
        chosen = {name: x for name, x in chosen.items() if x != signature.parameters[name].default}
        given.apply_defaults()
        settings = {**chosen, **_settled(given.arguments), **dict(work.settings)}
        return work._replace(settings=tuple(settings.items()))  # Client work can be hashed.

    return cast(_Make, stated)


def _settled(arguments: Mapping[str, object]) -> dict[str, object]:
    """Return options of a client's training as they are used, from the arguments of a function that makes its work."""
    given = cast("dict[str, Any]", arguments)
    settled: dict[str, Any] = {name: given[name] for name in ("local_epochs", "batch_size") if name in given}
    update_prior, is_private = given.get("update_prior", False), bool(given.get("example_privacy"))
    likelihood = {"likelihood": given.get("likelihood", "categorical")}
    facts: Any = {**likelihood, "update_prior": update_prior, "example_privacy": is_private}
    asked = (given.get(name) for name in PosteriorSettings._fields)
    found = {**settings_for(*asked, **facts)._asdict(), "noise": given.get("noise")}
    if "inference" in given:
        found["noise"] = found["noise"] or default_noise(found["inference"])
    settled |= {name: x for name, x in found.items() if name in given}
    if "learning_rate" in given:
        inference = found["inference"] if "inference" in given else "backprop"
        optimizer = given.get("optimizer_fn") or default_optimizer(update_prior)
        training = stated_training(given["learning_rate"], optimizer, inference)
        settled |= {name: x for name, x in training.items() if name != "optimizer" or "optimizer_fn" in given}
    return settled


def update_of(
    inference: str,
    *,
    learning_rate: Schedule | None = None,
    optimizer_fn: Optimizer = DEFAULT_OPTIMIZER,
    noise: str | None = None,
    decay: float | None = None,
    stddev_rate: float = 1.0,
    step_damping: float | None = None,
    first_stddev: float | None = None,
) -> Callable[[FlatWeights], Update]:
    """Return the update of an inference for the weights of a model.

    Args:
      inference: one of `INFERENCES`.
      learning_rate: of the means; None for `inverse_decay(default_rate(...))`.
      optimizer_fn: one of `optimizers.OPTIMIZERS`, or a function that builds a Keras optimizer.
      noise: one of `NOISES`; None for `default_noise`, and for "flipout" of a model without Gaussian weights.
      decay: of the precision from estimate to estimate; None for 0.9, and for 0.999 with "ivon".
      stddev_rate: for "backprop", the rate of log s over that of the means.
      step_damping: of natural gradients, a share of n (`ByCurvature`); None for 0.
      first_stddev: of inference "curvature", the width of the first noise (`ByCurvature`).
    """
    optimizer_of(optimizer_fn)
    check_schedules(learning_rate=learning_rate)
    rate = inverse_decay(default_rate(inference, optimizer_fn)) if learning_rate is None else learning_rate
    if noise is not None:
        lookup(NOISES, noise, "noise")
    check_number(stddev_rate, "stddev_rate")
    if decay is not None and (inference == "backprop" or not 0 <= check_number(decay, "decay", zero=True) < 1):
        raise InvalidArgument(
            f"decay is {shown(decay)}, but must be at least 0 and below 1, and inference 'backprop' has none."
        )
    if stddev_rate != 1 and inference != "backprop":
        raise InvalidArgument(f"stddev_rate is of inference 'backprop', and this is {inference!r}: leave it out.")
    if step_damping is not None and (
        inference not in _RATES or check_number(step_damping, "step_damping", zero=True) < 0
    ):
        raise InvalidArgument(
            f"step_damping is {shown(step_damping)}, an option of natural gradients, and inference is {inference!r}: "
            "leave it out, or use inference 'natural' or 'ivon'."
        )
    if first_stddev is not None and (inference != "curvature" or not check_number(first_stddev, "first_stddev")):
        raise InvalidArgument(
            f"first_stddev is {shown(first_stddev)}, an option of inference 'curvature', and this is {inference!r}: "
            "leave it out."
        )
    by_optimizer = functools.partial(
        ByOptimizer,
        optimizer_fn=optimizer_fn,
        learning_rate=rate,
        stddev_rate=stddev_rate,
        noise=noise or "flipout",
    )
    options = {**_NATURAL.get(inference, {}), **({} if decay is None else {"decay": decay})}
    options.update({} if step_damping is None else {"damping": step_damping})
    options.update({} if first_stddev is None else {"first_stddev": first_stddev})

    def make(weights: FlatWeights) -> Update:
        if inference == "backprop" or not weights.has_posterior:
            return by_optimizer(weights)
        return ByCurvature(weights, optimizer_fn, rate, noise=noise or default_noise(inference), **options)

    return make
