"""Models, rules and algorithms of the user in runs: functions of a Python file that the command names, or objects."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from tfp_bfl import data
from tfp_bfl.app.options.parameters import (
    Functions,
    defaults_of,
    is_model,
    names_of,
    parameters_of,
    taken_by,
    takes_all,
    values_of,
)
from tfp_bfl.errors import InvalidArgument, lookup, shown
from tfp_bfl.files import name as path_name
from tfp_bfl.files.code import GIVEN as GIVEN
from tfp_bfl.files.code import called, check_complete, function_of, made_by, name_of
from tfp_bfl.files.code import names_code as names_code

# Options that take FILE.py:FUNCTION.
OPTIONS = ("model", "rule", "algorithm", "dataset")
# Begins what stands for data that were given in Python.
GIVEN_DATA = f"{GIVEN}: "
NOTHING: Mapping[str, Any] = MappingProxyType({})
_TRUSTED = set[str]()


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
    source: data.Source | data.Schema,
    options: Mapping[str, Any],
    given: Mapping[str, Any] = NOTHING,
    kind: str | None = None,
) -> Callable[[], Any]:
    """Build a model by a user's function, which gets those of the options that it takes.

    Args:
      options: with their values or defaults, such as kind; among them seed, from which the weights of initializers
        without a seed follow.
      given: options that the user gave and that the function must take, and its parameters.
      kind: that the user gave: a model of another kind is converted to point weights or Monte Carlo dropout. None for
        that of the function.
    """
    from tfp_bfl import keras, models
    from tfp_bfl.weights import check_form, seeded

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
    build_keras_2 = models.as_model_fn(function)
    model = called(what, build_keras_2)
    if not isinstance(model, keras.Model):
        raise InvalidArgument(f"{what} returns {shown(model)}, but must return a Keras model that gives logits.")
    check_form(model)
    shapes = tuple(model.input_shape[1:]), model.output_shape[-1]
    if shapes != (source.element_shape, source.num_outputs):
        raise InvalidArgument(
            f"{what} returns a model from {list(shapes[0])} to {shapes[1]} outputs, but {source.name} has examples "
            f"of shape {list(source.element_shape)} and wants {source.num_outputs} outputs: let it take input_shape "
            "and num_classes."
        )
    convert = _conversion(what, models.kind_of(model), kind, rate, options.get("dropout_rate"))

    def build() -> Any:
        with seeded(options["seed"]):
            built = build_keras_2()
            return convert(built) if convert else built

    if convert:
        convert(model)  # Here, where a layer that cannot be converted is an error of the options.
    return build


def _conversion(
    what: str, found: str, wanted: str | None, rate: float | None, default: Any
) -> Callable[[Any], Any] | None:
    """Return the function that converts a model of a kind to the kind that was given; None where it is of that kind."""
    from tfp_bfl import models

    if wanted is None or (found == wanted and rate is None):
        return None
    if wanted == "deterministic":
        return models.deterministic
    if wanted == "mc_dropout":
        return functools.partial(models.mc_dropout, rate=default if rate is None else rate)
    raise InvalidArgument(
        f"{what} returns a model of kind {found}, and kind {wanted} is given: leave kind out, or build the model from "
        "the layers of tfp_bfl.layers of that kind."
    )


def rule_of(given: Any, value: str | None, parameters: Mapping[str, Any] = NOTHING) -> Any:
    """Return the rule that a program gives, or that FILE.py:FUNCTION names."""
    from tfp_bfl import rules

    known = (rules.Rule, rules.GatherRule)
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
    from tfp_bfl.federated.process import BayesianProcess

    what, parameters = name_of("algorithm", function), inspect.signature(function).parameters
    for name in chosen:
        if not (takes_all(function) or name in parameters):
            option = names.get(name, name)
            raise InvalidArgument(f"{what} takes no {option}, which is given: leave it out, or let it take {name}.")
    taken = {name: x for name, x in others.items() if x is not None and (takes_all(function) or name in parameters)}
    process = called(what, function, model_fn, **{**taken, **chosen})
    if type(process) is not BayesianProcess:
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
