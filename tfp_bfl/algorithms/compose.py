"""Compose a process of client work, rule, server step, weighting and robust aggregator, checked to fit each other."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar, Unpack, cast, overload

from tfp_bfl import clients, federated, keras, models
from tfp_bfl import weighting as weightings
from tfp_bfl.algorithms.fitting import (
    check_compressible,
    check_fit,
    counts_alike,
    defended_rule,
    whole_rule,
)
from tfp_bfl.algorithms.options import ComposeOptions
from tfp_bfl.compression import Compressor
from tfp_bfl.compression.variances import are_coarse
from tfp_bfl.contracts import WEIGHTS, AnyRule, ClientWork, ModelGatherRule, ModelRule, ServerStep, Work
from tfp_bfl.data.augmentation import Augmentation
from tfp_bfl.defaults import check_refused
from tfp_bfl.errors import InvalidArgument, lookup, shown
from tfp_bfl.federated.faults import Limits
from tfp_bfl.keywords import keywords_of, show
from tfp_bfl.privacy import Privacy
from tfp_bfl.weights import ModelWeights, layout
from tfp_bfl.weights.kinds import Given, Sent

_Recipe = TypeVar("_Recipe", bound=Callable[..., federated.BayesianProcess])
Model: TypeAlias = keras.Model | Callable[[], keras.Model]


@overload
def compose(
    model_fn: Model,
    client_work: ClientWork | Callable[[], Work],
    rule: AnyRule,
    server_step: ServerStep[ModelWeights],
    **options: Unpack[ComposeOptions],
) -> federated.BayesianProcess: ...
@overload
def compose(
    model_fn: Model,
    client_work: ClientWork[Sent] | Callable[[], Work[Sent]],
    rule: ModelRule[Sent, Given] | ModelGatherRule[Sent, Given],
    server_step: ServerStep[Given],
    **options: Unpack[ComposeOptions],
) -> federated.BayesianProcess: ...
def compose(
    model_fn: Model,
    client_work: ClientWork[Sent] | Callable[[], Work[Sent]],
    rule: AnyRule[Sent, Given],
    server_step: ServerStep[Given],
    *,
    weighting: str = "train_size",
    robust: str | None = None,
    compressor: str | Compressor | None = None,
    per_tensor: bool = False,
    error_memory: bool = False,
    variance_bits: int | None = None,
    augmentation: str | Augmentation | None = None,
    privacy: Privacy | None = None,
    secure_sums: float | None = None,
    **process_options: Any,
) -> federated.BayesianProcess:
    """Return a process of any client work, rule, server step, weighting and robust aggregator that fit each other.

    Most client works send a model's weights, and most rules make of these the weights that most server steps take.
    Three are apart: `servers.keep_gaussian` takes what `rules.client_gaussian` gives, `averaging.step.distil` what
    `rules.stacked` gives, and `swag.work.swag` sends posteriors for `rules.stacked` and `swag.step.online_product`.

    Args:
      model_fn: builds a Keras model that returns logits; or such a model.
      client_work: such as `clients.variational(model_fn, ...)` or `averaging.work.posterior_averaging(model_fn, ...)`.
      rule: of `tfp_bfl.rules`, or its name, such as "log_linear_pool".
      server_step: of `tfp_bfl.servers`.
      weighting: "equal" or "train_size"; for models with variational weights also "distance", "max_discrepancy" or
        "max_discrepancy_farthest". For the last two the server holds all that clients send at once.
      robust: a robust aggregator against adversarial clients, "clip:MAX_NORM", "trimmed:SHARE", "median" or
        "centered_clip" (`rules.parse_robust`); for the last three the server holds all that clients send at once, and
        all count the same.
      compressor, per_tensor, error_memory: of the changes that clients send (`clients.compressed`), for a rule that is
        linear and weights that do not follow from what is sent; None for none.
      variance_bits: 8 for variances as logarithms (`compression.variances`), rounded without bias in what the rule
        averages, precisions or variances; 32, or None, for float32.
      augmentation: of clients' features (`clients.augmented`), such as "crop_and_flip:4"; None for none.
      privacy: clipping and noise (`rules.private`), for a rule that is a plain sum and clients that weigh the same;
        None for none.
      secure_sums: the largest weight that a client may have: clients send whole numbers (`rules.quantised`); their sum
        is all that the server need see; None for numbers as they are.
      **process_options: of `federated.build_process`: element_spec, seed, thinning and notices; and of its `Limits`:
        max_magnitude, max_change_norm, max_weight_ratio (10 where weights follow from what clients send), min_examples.

    Example:
      >>> model_fn = lambda: bfl.models.mlp("flipout", input_shape=(30,), num_classes=2)
      >>> work = bfl.clients.variational(model_fn, local_epochs=5)
      >>> process = bfl.algorithms.compose(model_fn, work, "linear_pool", bfl.servers.replace(), weighting="equal")
    """
    model_fn = models.as_model_fn(model_fn)
    _check_names(process_options, PROCESS_OPTIONS, "compose")
    work = _as_work(client_work)
    lookup(weightings.ALL_WEIGHTINGS, weighting, "weighting")
    whole = whole_rule(rule, privacy, weighting, robust)
    check_fit(work, whole, server_step)
    work = work if augmentation is None else clients.augmented(work, augmentation)
    short = compressor, per_tensor, error_memory, variance_bits
    work = _shortened(work, model_fn, whole, (weighting, robust, secure_sums), *short)
    if weighting in weightings.COMPARE_POSTERIORS:
        if work.sends != WEIGHTS or not layout(model_fn()).variational:
            raise InvalidArgument(
                f"Weighting by {weighting!r} compares posteriors and this model has none: use 'train_size'."
            )
        process_options = {"max_weight_ratio": weightings.MAX_RATIO, **process_options}
    return federated.build_process(
        model_fn,
        client_work=work,
        weigh=weightings.weigh_of(weighting),
        rule=defended_rule(whole, work, weighting, robust, process_options.get("max_weight_ratio"), secure_sums),
        server_step=server_step,
        privacy=privacy,
        **_with_limits(process_options),
    )


def _shortened(
    work: Any,
    model_fn: Callable[[], keras.Model],
    rule: ModelRule[Any, Any],
    pooled_by: tuple[str, str | None, float | None],
    compressor: str | Compressor | None,
    per_tensor: bool,
    error_memory: bool,
    variance_bits: int | None,
) -> Any:
    """Return client work with short messages, where their noise is no bias of what is `pooled_by` a weighting, a robust
    aggregator and secure sums.
    """
    coarse = are_coarse(variance_bits)
    if coarse and not layout(model_fn()).variational:
        raise InvalidArgument("variance_bits is of Gaussian weights, and this model has none: leave it out.")
    check_compressible(rule, *pooled_by, compressor is not None, coarse)
    work = work if compressor is None else clients.compressed(work, compressor, per_tensor, error_memory)
    return clients.coarse_variances(work, rule.traits.averages) if coarse else work


def _with_limits(options: dict[str, object]) -> dict[str, Any]:
    """Return the options for `federated.build_process`, where guards are one object."""
    guards: dict[str, Any] = {name: options.pop(name) for name in _GUARDS if name in options}
    return {**options, "limits": Limits(**guards)}


_GUARDS = {name: x for name, x in inspect.signature(Limits).parameters.items() if name != "min_stddev"}
_OF_PROCESS = inspect.signature(federated.build_process).parameters
PROCESS_OPTIONS = ("element_spec", "seed", *_GUARDS, "thinning", "notices")
show(compose, [{**_OF_PROCESS, **_GUARDS}[name] for name in PROCESS_OPTIONS])
COMPRESSION = ("compressor", "per_tensor", "error_memory", "variance_bits")
# Those that a recipe passes on.
SHARED_OPTIONS = (
    "weighting",
    "robust",
    *COMPRESSION,
    "augmentation",
    "privacy",
    "secure_sums",
    *(name for name in PROCESS_OPTIONS if name not in ("notices", "thinning")),
)


def passing_on(
    work: Callable[..., object],
    shared: tuple[str, ...] = SHARED_OPTIONS,
    without: tuple[str, ...] = (),
    more: tuple[inspect.Parameter, ...] = (),
    **defaults: object,
) -> Callable[[_Recipe], _Recipe]:
    """Let the signature of a recipe show the options that it passes on by `**options`, see `split_options`.

    Args:
      work: makes its client work.
      shared: options of `compose`.
      without: options of the client work that the recipe gives itself.
      more: options of the recipe that are declared elsewhere; `split_options` returns them with those for `compose`.
      **defaults: of the recipe, where they differ from those of work and `compose`.
    """

    def decorate(recipe: _Recipe) -> _Recipe:
        recipe.own_signature = inspect.signature(recipe)  # type: ignore[attr-defined]
        own = recipe.own_signature.parameters  # type: ignore[attr-defined]
        given = {name: x for name, x in keywords_of(work).items() if name not in {*own, *without}}
        if "optimizer_fn" in given:  # Under another name, too.
            given["optimizer"] = given["optimizer_fn"].replace(name="optimizer")
        of_process = {name: x for name, x in keywords_of(compose).items() if name in shared}
        every = {**{x.name: x for x in more}, **given, **of_process}
        show(recipe, [x.replace(default=defaults.get(name, x.default)) for name, x in every.items()])
        recipe.passes_on = tuple(given), shared  # type: ignore[attr-defined]
        return recipe

    return decorate


def split_options(
    recipe: Callable[..., object], options: Mapping[str, object]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of a recipe that is `passing_on` them for its client work, and those for `compose`.

    `optimizer` is another name of `optimizer_fn`.
    """
    of_work, shared = recipe.passes_on  # type: ignore[attr-defined]
    if "optimizer" in options and "optimizer_fn" in of_work:
        if "optimizer_fn" in options:
            raise InvalidArgument("optimizer and optimizer_fn are the same option: give one of them.")
        options = {"optimizer_fn" if name == "optimizer" else name: x for name, x in options.items()}
    for name in options:
        check_refused(recipe.__name__, name)
    _check_names(options, tuple(keywords_of(recipe)), recipe.__name__)
    process = {name: x for name, x in options.items() if name in shared or name not in of_work}
    given = {name: x for name, x in options.items() if name in of_work}
    if "weighting" in of_work and "weighting" in shared:  # By which the work finds the size of the target.
        weighting = process.get("weighting", "train_size")
        given["weighting"] = "equal" if counts_alike(cast(Any, process.get("robust"))) else weighting
    return given, process


def known_options(
    function: Callable[..., object], options: object, what: str, given: tuple[str, ...]
) -> dict[str, Any]:
    """Return the options for a function, all of which it must have, except those `given` by the recipe."""
    if options is not None and not isinstance(options, Mapping):
        raise InvalidArgument(f"The options of {what} are {shown(options)}, but must be a dictionary.")
    names = tuple(name for name in inspect.signature(function).parameters if name not in given)
    _check_names(options or {}, names, what)
    return dict(options or {})


def _check_names(options: Mapping[str, object], names: tuple[str, ...], what: str) -> None:
    for name in options:
        lookup(dict.fromkeys(names), name, f"option of {what}")


def _as_work(client_work: ClientWork[Sent] | Callable[[], Work[Sent]]) -> ClientWork[Sent]:
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
