"""Parameters of a user's functions as options: given, swept and tuned as those of the library."""

from __future__ import annotations

import contextlib
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, Union

import pydantic

from tfp_bfl.app.options.refusals import NoTruthAsNumber, refusal
from tfp_bfl.errors import InvalidArgument, check_range, shown
from tfp_bfl.files.code import is_of_library, name_of
from tfp_bfl.options.methods import OWN, argument_names

Value = str | int | float | bool | None
# Role of a function (model, rule, algorithm, dataset) -> the function.
Functions = Mapping[str, Callable[..., Any]]
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
    return {name: x for name, x in _signature(function).parameters.items() if x.kind in by_name}


def _signature(function: Any) -> inspect.Signature:
    """Return the signature of a function as it is written, without what a recipe passes on (`algorithms.compose`)."""
    own: inspect.Signature = getattr(function, "own_signature", None) or inspect.signature(function)
    return own


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
    parts = [x for x in _alternatives(annotation) if x is not type(None)]
    if not parts or not all(x in _PLAIN or typing.get_origin(x) is Literal for x in parts):
        has = "no annotation" if annotation in (type, type(None)) else f"the annotation {_in_words(annotation)}"
        raise InvalidArgument(
            f"{name_of(role, function)} has {has} for {name}, but an option must be a bool, int, float, str or "
            "Literal of these: annotate it so."
        )
    return annotation


def _alternatives(annotation: object) -> tuple[Any, ...]:
    is_union = typing.get_origin(annotation) is Union or type(annotation).__name__ == "UnionType"
    return typing.get_args(annotation) if is_union else (annotation,)


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


def check_names(functions: Functions, given: Iterable[str], reaches: Callable[[str, str], bool]) -> None:
    """Raise InvalidArgument where an option of the run is given that is a parameter of a function, too, which does not
    get the option's value by `reaches(role, option)`.
    """
    for role, function in functions.items():
        for name in set(given) & set(parameters_of(function)):
            if not reaches(role, name):
                raise InvalidArgument(
                    f"{name_of(role, function)} has the parameter {name}, but does not receive the run's option of "
                    "that name: rename the parameter."
                )


def names_of(functions: Functions) -> dict[str, None]:
    """Return the names of all parameters, for suggestions."""
    return {name: None for role, function in functions.items() for name in options_of(role, function)}
