"""Models, rules and algorithms of the user in runs: functions of a Python file that the command names, or objects.

Parameters of these functions are options: given, swept and tuned as those of the library.
"""

import contextlib
import functools
import inspect
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Union

import pydantic

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl.app.options.refusals import NoTruthAsNumber, refusal
from tfp_bfl.data.sources import Learnt
from tfp_bfl.errors import InvalidArgument, check_range, lookup, shown
from tfp_bfl.faces import keras
from tfp_bfl.files import name as path_name
from tfp_bfl.files.code import GIVEN as GIVEN
from tfp_bfl.files.code import called, check_complete, function_of, is_of_library, made_by, name_of
from tfp_bfl.files.code import names_code as names_code
from tfp_bfl.options.methods import OWN, argument_names

# Options that take FILE.py:FUNCTION.
OPTIONS = ("model", "rule", "algorithm", "dataset")
# Begins what stands for data that were given in Python.
GIVEN_DATA = f"{GIVEN}: "
# Options of models beside their kind, of which a user's model takes those that are given.
OF_A_MODEL = (
    *("normalization", "width", "variational_initializer", "output_dropout", "variational_layers", "parametrization"),
    *("precision", "prior_stddev", "initial_stddev", "min_stddev", "dropout_rate"),
)
# Options of a run that functions receive.
_RECEIVED = {"model": ("model", "kind", "seed", *OF_A_MODEL), "algorithm": tuple(argument_names(OWN).values())}
_TRUSTED = set[str]()
Value = str | int | float | bool | None
# Role of a function (model, rule, algorithm, dataset) -> the function.
Functions = Mapping[str, Callable[..., Any]]


class Code(NamedTuple):
    """Hold what a program gives in the place of names: functions that build a model, a rule and a process, or a rule
    itself, and a `given_data.GivenData`; None for what it does not give.
    """

    model: Any = None
    rule: Any = None
    algorithm: Any = None
    data: Any = None


NO_CODE = Code()


def load(value: str, option: str = "model") -> Callable[..., Any]:
    """Return the function that FILE.py:FUNCTION names; the file's code is run."""
    if value == GIVEN:
        raise InvalidArgument(
            f"The {option} of this run was given in Python: use bfl.run(resume=..., {option}=...), or, where "
            f"a command takes --{option} FILE.py:FUNCTION, name a file with it."
        )
    if value.endswith(".py"):
        raise InvalidArgument(f"{option} is the file {path_name(value)} without a function: give {value}:FUNCTION.")
    return function_of(value, f"--{option} FILE.py:FUNCTION")


def model_fn(
    function: Any,
    source: Learnt,
    options: Mapping[str, Any],
    given: Mapping[str, Any] = {},
    kind: str | None = None,
) -> Callable[[], Any]:
    """Build a model by a user's function, which gets those of the options that it takes, and must take those given.

    The weights of initializers without a seed follow from the option seed. A model of another kind than the user gave
    is converted to point weights or Monte Carlo dropout.
    """
    what, taken = name_of("model", function), parameters_of(function)
    # Where the model is converted, its dropout has the rate.
    rate = given.get("dropout_rate") if kind == "mc_dropout" and "dropout_rate" not in taken else None
    for name in given:
        if name not in taken and (name, rate) != ("dropout_rate", given[name]) and not takes_all(function):
            raise InvalidArgument(f"{what} takes no {name}, which is given: leave it out, or let it take {name}.")
    offered = {"input_shape": source.element_shape, "num_classes": source.num_outputs, **options}
    arguments = {**{name: x for name, x in offered.items() if name in taken}, **given}
    if rate is not None and not takes_all(function):
        del arguments["dropout_rate"]
    if not is_model(function):
        check_complete(what, function, **arguments)
        function = functools.partial(function, **arguments)

    def new() -> Any:
        with bfl.weights.seeded(options["seed"]):
            return function()

    build_keras_2 = bfl.models.as_model_fn(function if is_model(function) else new)
    model = called(what, build_keras_2)
    if not isinstance(model, keras.Model):
        raise InvalidArgument(f"{what} returns {shown(model)}, but must return a Keras model that gives logits.")
    bfl.weights.check_form(model)
    shapes = tuple(model.input_shape[1:]), model.output_shape[-1]
    if shapes != (source.element_shape, source.num_outputs):
        raise InvalidArgument(
            f"{what} returns a model from {list(shapes[0])} to {shapes[1]} outputs, but {source.name} has examples "
            f"of shape {list(source.element_shape)} and wants {source.num_outputs} outputs: let it take input_shape "
            "and num_classes."
        )
    convert = _conversion(what, bfl.models.kind_of(model), kind, rate, options.get("dropout_rate"))

    def build() -> Any:
        built = build_keras_2()
        return convert(built) if convert else built

    if convert:
        convert(model)  # Here, where a layer that cannot be converted is an error of the options.
    return build


def _conversion(
    what: str, found: str, wanted: str | None, rate: float | None, default: Any
) -> Callable[[Any], Any] | None:
    """Return the function that converts a model of a kind to the kind that was given; None where it is of that kind."""
    if wanted is None or (found == wanted and rate is None):
        return None
    if wanted == "deterministic":
        return bfl.models.deterministic
    if wanted == "mc_dropout":
        return functools.partial(bfl.models.mc_dropout, rate=default if rate is None else rate)
    raise InvalidArgument(
        f"{what} returns a model of kind {found}, and kind {wanted} is given: leave kind out, or build the model from "
        "the layers of tfp_bfl.layers of that kind."
    )


def rule_of(given: Any, value: str | None, parameters: Mapping[str, Any] = {}) -> Any:
    """Return the rule that a program gives, or that FILE.py:FUNCTION names."""
    known = (bfl.rules.Rule, bfl.rules.GatherRule)
    if isinstance(given, known):
        return given
    function = given if given is not None else load(str(value), "rule")
    return made_by(function, "rule", known, "a rules.Rule or a rules.GatherRule", **taken_by(function, parameters))


def process_of(
    function: Callable[..., Any],
    model_fn: object,
    chosen: dict[str, Any],
    others: dict[str, Any],
    names: Mapping[str, str],
) -> Any:
    """Return the process that a user's algorithm builds: it must take what the user chose, and gets of the other
    arguments those that it takes and that are not None. `names` is argument -> option.
    """
    what, parameters = name_of("algorithm", function), inspect.signature(function).parameters
    for name in chosen:
        if not (takes_all(function) or name in parameters):
            option = names.get(name, name)
            raise InvalidArgument(f"{what} takes no {option}, which is given: leave it out, or let it take {name}.")
    taken = {name: x for name, x in others.items() if x is not None and (takes_all(function) or name in parameters)}
    process = called(what, function, model_fn, **{**taken, **chosen})
    if type(process) is not bfl.federated.BayesianProcess:
        raise InvalidArgument(
            f"{what} returns {shown(process)}, but must return a process, such as algorithms.compose(...) gives."
        )
    return process


def functions_of(values: Mapping[str, Any], code: Code = NO_CODE) -> Functions:
    """Return the functions of a run by their roles; the code of files is run."""
    given = {name: getattr(code, name) for name in ("model", "rule", "algorithm") if callable(getattr(code, name))}
    if function := getattr(code.data, "function", None):
        given["dataset"] = function
    named = {name: str(x) for name in OPTIONS if names_code(x := values.get(name)) and x != GIVEN}
    return {**{name: load(x, name) for name, x in named.items()}, **given}


def split(
    values: Mapping[str, Any],
    known: Mapping[str, Any],
    is_option: Callable[[str], bool],
    runs_code: bool,
    code: Code,
    dropped: Collection[str] = (),
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of a run, and those that are parameters of its functions; `dropped` if they are neither."""
    others = {name: x for name, x in values.items() if not is_option(name)}
    functions = functions_of(values, code) if runs_code else {}
    here = {**code._asdict(), "dataset": code.data, **functions}
    coded = (role for role in OPTIONS if names_code(x := values.get(role)) or str(x).startswith(GIVEN_DATA))
    if any(here[role] is None for role in coded):  # A record, of parameters that were found before.
        default = lambda name: known[name].default if name in known else None
        found = {name: x for name, x in others.items() if name not in known or x not in (default(name), None)}
    else:
        found = values_of(others, functions)
        every = {**known, **names_of(functions)}
        for name in (name for name in others if name not in dropped):
            lookup(every, name, "option")
        found = {**defaults_of(functions, is_option), **found}
        values = {name: x for name, x in values.items() if name in every or name not in dropped}
    return {name: x for name, x in values.items() if name not in found}, found


def trust(named: Mapping[str, Any]) -> None:
    """Let the code that a command names be run."""
    _TRUSTED.update(str(x) for name, x in named.items() if name in OPTIONS and names_code(x))


def trust_dataset(named: str | None, datasets: Sequence[str]) -> None:
    """Let the code of a dataset be run that a command names again."""
    if named is not None and named not in datasets:
        raise InvalidArgument(f"dataset is {shown(named)}, which is that of none of these runs: leave it out.")
    trust({"dataset": named})


def is_trusted(value: str) -> bool:
    """Return whether a command of this process named the code."""
    return value in _TRUSTED


def check_trust(values: Mapping[str, Any], named: Mapping[str, Any], file: object) -> None:
    """Raise InvalidArgument where a configuration from a file would run code that the command does not name."""
    for option in OPTIONS:
        value = values.get(option)
        if option not in named and names_code(value) and value != GIVEN:
            raise InvalidArgument(
                f"The config {path_name(file)} names code, {shown(value)}, which is run only where the command names "
                f"it: add --{option} {value}."
            )


_PLAIN = (bool, int, float, str)
# Parameters that a run gives by itself, whatever its options are.
_SUPPLIED = {
    "model": ("input_shape", "num_classes"),
    "algorithm": ("model_fn", "element_spec", "likelihood", "secure_sums", *argument_names(OWN).values()),
}


def parameters_of(function: Any) -> dict[str, inspect.Parameter]:
    """Return the parameters of a function that can be given by name; a Keras model has none."""
    if is_model(function):
        return {}
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    # As it is written, without what a recipe passes on (`algorithms.compose`).
    signature: inspect.Signature = getattr(function, "own_signature", None) or inspect.signature(function)
    return {name: x for name, x in signature.parameters.items() if x.kind in by_name}


def is_model(function: object) -> bool:
    """Return whether this is a Keras model in the place of a function that builds one."""
    return hasattr(function, "get_config")


def takes_all(function: Any) -> bool:
    """Return whether a function has `**options`, of whatever names."""
    parameters = {} if is_model(function) else inspect.signature(function).parameters
    return any(x.kind is x.VAR_KEYWORD for x in parameters.values())


def options_of(role: str, function: object) -> dict[str, inspect.Parameter]:
    """Return the parameters of a function that can be options: those that the run does not give by itself."""
    found = parameters_of(function)
    first = next(iter(found), "") if role == "algorithm" else ""
    return {name: x for name, x in found.items() if name not in (first, *_SUPPLIED.get(role, ()))}


def defaults_of(functions: Functions, is_option: Callable[[str], bool]) -> dict[str, Value]:
    """Return the defaults of parameters that can be options and that one function alone has, besides `is_option`.

    Raises:
      InvalidArgument: a default is that of an option, and the annotation is of no option.
    """
    found: dict[str, Value] = {}
    for role, function in functions.items():
        others = {name for other, x in functions.items() if other != role for name in parameters_of(x)}
        for name, parameter in {} if is_of_library(function) else options_of(role, function).items():
            if type(parameter.default) in _PLAIN and not is_option(name):
                type_of(role, function, name)
                found |= {} if name in others else {name: parameter.default}
    return found


def type_of(role: str, function: Any, name: str) -> Any:
    """Return the type of a parameter, by its annotation or its default."""
    parameter = parameters_of(function)[name]
    annotation: Any = parameter.annotation
    if isinstance(annotation, str):
        with contextlib.suppress(Exception):  # A name that is known to type checkers alone, or to nobody.
            alone = types.SimpleNamespace(__annotations__={name: annotation})
            annotation = typing.get_type_hints(alone, getattr(inspect.unwrap(function), "__globals__", {}))[name]
    if annotation in (parameter.empty, Any):
        annotation = type(parameter.default)
    is_union = typing.get_origin(annotation) in (Union, types.UnionType)
    parts = [x for x in (typing.get_args(annotation) if is_union else [annotation]) if x is not type(None)]
    if not parts or not all(x in _PLAIN or typing.get_origin(x) is Literal for x in parts):
        has = "no annotation" if annotation in (type, type(None)) else f"the annotation {_in_words(annotation)}"
        raise InvalidArgument(
            f"{name_of(role, function)} has {has} for {name}, but an option must be a bool, int, float, str or "
            "Literal of these: annotate it so."
        )
    return annotation


def _in_words(annotation: object) -> str:
    return shown(annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation)))


def value_of(role: str, function: object, name: str, value: object) -> Value:
    """Return the value of a parameter as its type has it, of the text or number that was given."""
    annotation: Any = type_of(role, function, name), pydantic.Field(alias=name)
    kind: Any = pydantic.create_model("Parameter", __base__=NoTruthAsNumber, value=annotation)
    try:
        found: Value = kind(**{name: value}).value
    except pydantic.ValidationError as error:
        raise refusal(error) from None
    if isinstance(found, str) and not found.isprintable():
        raise InvalidArgument(f"{name} is {shown(found)}, but must be printable characters.")
    if isinstance(found, float):
        check_range(found, name)
    return found


def values_of(given: Mapping[str, Any], functions: Functions) -> dict[str, Value]:
    """Return the values of options that are parameters of the user's functions; others are left out."""
    found: dict[str, Value] = {}
    for name, value in given.items():
        roles = [role for role, function in functions.items() if name in options_of(role, function)]
        if len(roles) > 1:
            raise InvalidArgument(
                f"{name} is a parameter of the {roles[0]} and of the {roles[1]}: rename one of these parameters."
            )
        for role in roles:
            found[name] = value_of(role, functions[role], name, value)
    return found


def taken_by(function: object, parameters: Mapping[str, Value]) -> dict[str, Value]:
    """Return those of the given parameters that a function has."""
    own = parameters_of(function)
    return {name: value for name, value in parameters.items() if name in own}


def check_names(functions: Functions, given: Iterable[str]) -> None:
    """Raise InvalidArgument where an option of the run is given that is a parameter of a function, too, which does not
    get the option's value.
    """
    for role, function in functions.items():
        for name in {*given} & {*parameters_of(function)} - {*_RECEIVED.get(role, ())}:
            raise InvalidArgument(
                f"{name_of(role, function)} has the parameter {name}, but that name is taken by an option of the "
                "library, which it does not receive: give the parameter another name."
            )


def names_of(functions: Functions) -> dict[str, None]:
    """Return the names of all parameters, for suggestions."""
    return {name: None for role, function in functions.items() for name in options_of(role, function)}
