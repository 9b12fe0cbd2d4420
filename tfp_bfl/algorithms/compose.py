"""Compose a process of client work, rule, server step, weighting and robust aggregator, checked to fit each other."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Callable, Optional, Union, cast, overload

import tensorflow as tf
from typing_extensions import Unpack

from tfp_bfl import clients, federated, models, rules
from tfp_bfl import weighting as weightings
from tfp_bfl.algorithms.options import ComposeOptions
from tfp_bfl.compression import Compressor
from tfp_bfl.contracts import (
    CHANGE,
    CLIENT_POSTERIOR,
    CURVATURE,
    GAUSSIAN,
    GRADIENT,
    MEAN,
    SCALED_GRADIENT,
    SITE_CHANGE,
    STACK,
    SUM,
    TOTAL,
    WEIGHTS,
    AnyRule,
    ClientWork,
    ModelGatherRule,
    ModelRule,
    ServerStep,
    Work,
    stack_of,
    total_of,
)
from tfp_bfl.data.augmentation import Augmentation
from tfp_bfl.errors import InvalidArgument, lookup, shown
from tfp_bfl.privacy import Privacy
from tfp_bfl.weights import ModelWeights
from tfp_bfl.weights.kinds import Given, Sent

Model = Union[tf.keras.Model, Callable[[], tf.keras.Model]]
_GRADIENTS = total_of(GRADIENT), total_of(SCALED_GRADIENT)
# Who gives and who takes what, as an error advises.
_RULES = {
    WEIGHTS: "a rule such as 'naive_weighted_average'",
    GAUSSIAN: "rules.client_gaussian()",
    stack_of(WEIGHTS): "rules.stacked()",
    stack_of(CLIENT_POSTERIOR): "clients.swag(...) with rules.stacked()",
    stack_of(CURVATURE): "clients.laplace(...) with rules.stacked()",
    **dict.fromkeys(_GRADIENTS, "clients.stochastic_gradient(...) with rules.total()"),
    total_of(CHANGE): "clients.coupled_langevin(...) with rules.total()",
    total_of(SITE_CHANGE): "clients.laplace_sites(...) with rules.total()",
}
_STEPS = {
    WEIGHTS: "servers.replace()",
    GAUSSIAN: "servers.keep_gaussian()",
    stack_of(WEIGHTS): "servers.distil(...)",
    stack_of(CLIENT_POSTERIOR): "servers.online_product(...)",
    stack_of(CURVATURE): "servers.laplace(...)",
    **dict.fromkeys(_GRADIENTS, "servers.descend(...)"),
    total_of(CHANGE): "servers.couple(...) or servers.follow()",
    total_of(SITE_CHANGE): "servers.laplace_dual(...)",
}


@overload
def compose(
    model_fn: Model,
    client_work: Union[ClientWork, Callable[[], Work]],
    rule: AnyRule,
    server_step: ServerStep[ModelWeights],
    **options: Unpack[ComposeOptions],
) -> federated.BayesianProcess: ...
@overload
def compose(
    model_fn: Model,
    client_work: Union[ClientWork[Sent], Callable[[], Work[Sent]]],
    rule: Union[ModelRule[Sent, Given], ModelGatherRule[Sent, Given]],
    server_step: ServerStep[Given],
    **options: Unpack[ComposeOptions],
) -> federated.BayesianProcess: ...
def compose(
    model_fn: Model,
    client_work: Union[ClientWork[Sent], Callable[[], Work[Sent]]],
    rule: AnyRule[Sent, Given],
    server_step: ServerStep[Given],
    *,
    weighting: str = "train_size",
    robust: Optional[str] = None,
    compressor: Optional[Union[str, Compressor]] = None,
    per_tensor: bool = False,
    error_memory: bool = False,
    augmentation: Optional[Union[str, Augmentation]] = None,
    privacy: Optional[Privacy] = None,
    secure_sums: Optional[float] = None,
    **process_options: Any,
) -> federated.BayesianProcess:
    """Return a process of any client work, rule, server step, weighting and robust aggregator that fit each other.

    Most client works send a model's weights, and most rules make of these the weights that most server steps take.
    Three are apart: `servers.keep_gaussian` takes what `rules.client_gaussian` gives, `servers.distil` what
    `rules.stacked` gives, and `clients.swag` sends posteriors for `rules.stacked` and `servers.online_product`.

    Args:
      model_fn: builds a Keras model that returns logits; or such a model.
      client_work: such as `clients.variational(model_fn, ...)` or `clients.posterior_averaging(model_fn, ...)`.
      rule: of `tfp_bfl.rules`, or its name, such as "log_linear_pool".
      server_step: of `tfp_bfl.servers`.
      weighting: "equal" or "train_size"; for models with variational weights also "distance", "max_discrepancy" or
        "max_discrepancy_farthest". For the last two the server holds all that clients send at once.
      robust: a robust aggregator against adversarial clients, "clip:MAX_NORM", "trimmed:SHARE", "median" or
        "centered_clip" (`rules.parse_robust`); for the last three the server holds all that clients send at once, and
        all count the same.
      compressor, per_tensor, error_memory: of the changes that clients send (`clients.compressed`), for a rule that is
        linear and weights that do not follow from what is sent; None for none.
      augmentation: of clients' features (`clients.augmented`), such as "crop_and_flip:4"; None for none.
      privacy: clipping and noise (`rules.private`), for a rule that is a plain sum and clients that weigh the same;
        None for none.
      secure_sums: the largest weight that a client may have: clients send whole numbers (`rules.quantised`), whose sum
        is all that the server need see; None for numbers as they are.
      **process_options: of `federated.build_process`: element_spec, seed, max_magnitude, max_change_norm,
        max_weight_ratio (10 where weights follow from what clients send), min_examples, notices, and the burn_in_rounds
        of the parts, so that `simulate` can refuse a run of no more rounds.

    Raises:
      InvalidArgument: no such rule, weighting, robust aggregator or option, or a part that is none or does not fit the
        others.

    Example:
      >>> model_fn = lambda: bfl.models.mlp("flipout", input_shape=(30,), num_classes=2)
      >>> work = bfl.clients.variational(model_fn, local_epochs=5)
      >>> process = bfl.algorithms.compose(model_fn, work, "linear_pool", bfl.servers.replace(), weighting="equal")
    """
    model_fn = models.as_model_fn(model_fn)
    _check_names(process_options, PROCESS_OPTIONS, "compose")
    work = _as_work(client_work)
    lookup(weightings.ALL_WEIGHTINGS, weighting, "weighting")
    whole = rules.whole_model(rule) if privacy is None else _private(rule, privacy, weighting, robust)
    _check_fit(work, whole, server_step)
    _check_extra(work, whole, server_step, weighting, robust)
    work = work if augmentation is None else clients.augmented(work, augmentation)
    if compressor is not None:
        _check_compressible(whole, weighting, robust, secure_sums)
        work = cast(Any, clients.compressed(cast(Any, work), compressor, per_tensor, error_memory))
    _check_change_norm(process_options, work)
    if weighting in weightings.COMPARE_POSTERIORS:
        _check_posteriors(weighting, work, model_fn)
        process_options = {"max_weight_ratio": weightings.MAX_RATIO, **process_options}
    return federated.build_process(
        model_fn,
        client_work=work,
        weigh=weightings.WEIGHTINGS.get(weighting, weightings.equal),
        rule=_defended(whole, work, weighting, robust, process_options.get("max_weight_ratio"), secure_sums),
        server_step=server_step,
        privacy=privacy,
        **process_options,
    )


PROCESS_OPTIONS = tuple(
    name
    for name in inspect.signature(federated.build_process).parameters
    if name not in ("model_fn", "client_work", "weigh", "rule", "server_step", "privacy")
)
COMPRESSION = ("compressor", "per_tensor", "error_memory")
# Those that a recipe passes on.
SHARED_OPTIONS = (
    "weighting",
    "robust",
    *COMPRESSION,
    "augmentation",
    "privacy",
    "secure_sums",
    *(name for name in PROCESS_OPTIONS if name not in ("burn_in_rounds", "notices")),
)


def split_options(
    recipe: Callable[..., object],
    work: Callable[..., object],
    options: Mapping[str, object],
    shared: tuple[str, ...] = SHARED_OPTIONS,
    **defaults: object,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a recipe's options for its client work, with the recipe's defaults, and those for `compose`.

    `optimizer` is another name of `optimizer_fn`.

    Raises:
      InvalidArgument: an option of neither; the message names the recipe.
    """
    if "optimizer" in options and "optimizer_fn" in inspect.signature(work).parameters:
        if "optimizer_fn" in options:
            raise InvalidArgument("optimizer and optimizer_fn are the same option: give one of them.")
        options = {"optimizer_fn" if name == "optimizer" else name: x for name, x in options.items()}
    recipe_options = [name for name, x in inspect.signature(recipe).parameters.items() if x.kind is x.KEYWORD_ONLY]
    of_work = [name for name in inspect.signature(work).parameters if name != "model_fn" and name not in recipe_options]
    _check_names(options, (*recipe_options, *of_work, *shared), recipe.__name__)
    process = {name: x for name, x in options.items() if name in shared or name not in of_work}
    return {**defaults, **{name: x for name, x in options.items() if name in of_work}}, process


def known_options(
    function: Callable[..., object], options: object, what: str, given: tuple[str, ...]
) -> dict[str, Any]:
    """Return the options for a function, all of which it must have, except those `given` by the recipe.

    Raises:
      InvalidArgument: no dictionary, or an option that the function does not have.
    """
    if options is not None and not isinstance(options, Mapping):
        raise InvalidArgument(f"The options of {what} are {shown(options)}, but must be a dictionary.")
    names = tuple(name for name in inspect.signature(function).parameters if name not in given)
    _check_names(options or {}, names, what)
    return dict(options or {})


def _check_names(options: Mapping[str, object], names: tuple[str, ...], what: str) -> None:
    for name in options:
        lookup(dict.fromkeys(names), name, f"option of {what}")


def _as_work(client_work: Union[ClientWork[Sent], Callable[[], Work[Sent]]]) -> ClientWork[Sent]:
    if isinstance(client_work, ClientWork):
        return client_work
    if not callable(client_work):
        raise InvalidArgument(
            f"client_work must be a function, as clients.variational(...) gives, not {shown(client_work)}."
        )
    required = [x for x in _parameters(client_work) if x.default is x.empty and x.kind is x.POSITIONAL_OR_KEYWORD]
    if required:
        raise InvalidArgument(
            "client_work must be a function without arguments that makes the work, as clients.variational(model_fn) "
            f"gives, but {getattr(client_work, '__name__', 'this one')} needs {required[0].name!r}."
        )
    return ClientWork(client_work)


def _parameters(function: Callable[..., object]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # Of some callables nothing tells.
        return []


def _check_fit(work: ClientWork[Sent], rule: ModelRule[Sent, Given], step: ServerStep[Given]) -> None:
    if not isinstance(step, ServerStep):
        raise InvalidArgument(f"server_step must be a ServerStep, such as servers.replace(), not {shown(step)}.")
    if rule.takes not in (None, work.sends):
        raise InvalidArgument(
            f"The clients send a {work.sends}, but the rule {rule.name!r} takes {rule.takes}: use rules.stacked(), or "
            "other client work, such as clients.variational(...)."
        )
    given = {STACK: stack_of, TOTAL: total_of}.get(rule.gives, lambda what: rule.gives)(work.sends)
    if given != step.takes:
        use, instead = _RULES.get(step.takes, f"a rule that gives {step.takes}"), _STEPS.get(given)
        raise InvalidArgument(
            f"The server step {step.name!r} takes {step.takes}, which {use} gives, but the rule {rule.name!r} gives "
            f"{given}: use that{f', or {instead}' if instead else ''}."
        )


def _check_extra(
    work: ClientWork[Sent],
    rule: ModelRule[Sent, Given],
    step: ServerStep[Given],
    weighting: str,
    robust: Optional[str],
) -> None:
    if step.extra != (work.extra is not None):
        raise InvalidArgument(
            f"The server step {step.name!r} needs statistics beside the weights, and these clients send none: use it "
            "with the client work that its docstring names."
            if step.extra
            else f"The clients send statistics beside their weights, and the server step {step.name!r} takes none: use "
            "the step of their algorithm."
        )
    if work.extra is None:
        return
    if rule.gives != WEIGHTS or work.sends != WEIGHTS:
        raise InvalidArgument(
            f"Statistics beside the weights are pooled as point weights are, and the rule {rule.name!r} gives "
            f"{rule.gives}: use a rule such as 'naive_weighted_average'."
        )
    if work.extra_pool not in (MEAN, SUM):
        raise InvalidArgument(f"extra_pool is {shown(work.extra_pool)}, but must be {MEAN!r} or {SUM!r}.")
    robust = None if (robust or "clip").startswith("clip") else robust
    if work.extra_pool == SUM and weighting != "equal" and (robust or weighting in weightings.STACKED_WEIGHTINGS):
        what = f"The robust aggregator {robust!r}" if robust else f"The weighting {weighting!r}"
        raise InvalidArgument(
            f"{what} gives clients weights that follow from what all of them send, and a sum of statistics needs those "
            "of each client: use weighting='equal'."
        )


def _check_change_norm(options: Mapping[str, object], work: ClientWork[Sent]) -> None:
    if options.get("max_change_norm") is not None and work.sends != WEIGHTS:
        raise InvalidArgument(
            f"max_change_norm bounds how far a model's weights move, but the clients send a {work.sends}: leave it out."
        )


def _check_compressible(
    rule: ModelRule[Sent, Given], weighting: str, robust: Optional[str], secure_sums: Optional[float]
) -> None:
    if secure_sums is not None:
        raise InvalidArgument(
            "Under masks each number takes 8 bytes, whatever it is: leave out the compressor, or secure_sums."
        )
    what = "" if rule.linear else f"the rule {rule.name!r} is not linear in the clients' means"
    if weighting in weightings.COMPARE_POSTERIORS:
        what = f"weighting by {weighting!r} follows from what they send"
    if robust is not None:
        what = f"the robust aggregator {robust!r} is not linear in it"
    if what:
        raise InvalidArgument(
            f"The noise of a compressor would be a bias, as {what}: use a rule such as 'log_linear_pool', weighted by "
            "'train_size', without a robust aggregator."
        )


def _private(
    rule: AnyRule[Sent, Given], privacy: Privacy, weighting: str, robust: Optional[str]
) -> ModelRule[Sent, Given]:
    if not isinstance(privacy, Privacy):
        raise InvalidArgument(
            f"privacy must be a Privacy, such as privacy.Privacy(clip_norm=10, noise_multiplier=1, cohort_size=50), "
            f"not {shown(privacy)}."
        )
    how = {"weighting": (weighting, "equal"), "robust": (robust, None)}
    for name, (given, wanted) in how.items():
        if given != wanted:
            raise InvalidArgument(
                f"{name} is {given!r}, but privacy hides one client among others who count the same, clipped by its "
                f"own norm: use {name}={wanted!r}."
            )
    settings = privacy.checked()._asdict()
    del settings["delta"]
    return cast(Any, rules.private(cast(Any, rule), **settings))


def _summed(
    rule: ModelRule[Sent, Given], largest_weight: Optional[float], weighting: str, max_ratio: Optional[float]
) -> ModelRule[Sent, Given]:
    if largest_weight is None:
        return rule
    if weighting in weightings.COMPARE_POSTERIORS:
        raise InvalidArgument(
            f"Weighting by {weighting!r} has no bound that is known beforehand, and secure sums need one: use 'equal' "
            "or 'train_size'."
        )
    if max_ratio is not None:
        raise InvalidArgument(
            "max_weight_ratio runs a round again with other weights, and under masks a round has one sum: leave it "
            f"out, as no client weighs more than secure_sums, {largest_weight:g}."
        )
    return cast(Any, rules.quantised(cast(Any, rule), max_weight=largest_weight))


def _check_posteriors(weighting: str, work: ClientWork[Sent], model_fn: Callable[[], tf.keras.Model]) -> None:
    if work.sends != WEIGHTS or not models.layout(model_fn()).variational:
        raise InvalidArgument(
            f"Weighting by {weighting!r} compares posteriors and this model has none: use 'train_size'."
        )


def _defended(
    whole: ModelRule[Sent, Given],
    work: ClientWork[Sent],
    weighting: str,
    robust: Optional[str],
    max_ratio: Optional[float],
    secure_sums: Optional[float],
) -> ModelRule[Sent, Given]:
    if robust is None:
        defended: Any = whole
    else:
        make = rules.parse_robust(robust)
        if work.sends != WEIGHTS:
            raise InvalidArgument(
                f"The robust aggregator {robust!r} is of a model's weights, but the clients send a {work.sends}: "
                "leave it out."
            )
        defended = make(cast(Any, whole))
    if weighting in weightings.STACKED_WEIGHTINGS:
        if isinstance(defended, rules.GatherRule):
            raise InvalidArgument(
                f"The robust aggregator {robust!r} counts all clients the same, so that weighting by {weighting!r} "
                "can't serve it: use 'equal', or the robust aggregator clip."
            )
        weigh = weightings.STACKED_WEIGHTINGS[weighting]
        cap = lambda weights: weights if max_ratio is None else weightings.capped(weights, max_ratio)
        defended = rules.reweighted(defended, lambda stacked: cap(weigh(stacked.posterior)))
    return _summed(rules.whole_model(defended), secure_sums, weighting, max_ratio)
