"""Models, rules and algorithms of the user in runs: functions of a Python file that the command names, or objects."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any, Callable, NamedTuple, Optional, Union

from tfp_bfl import data
from tfp_bfl.errors import InvalidArgument, shown
from tfp_bfl.files import name as path_name
from tfp_bfl.files.code import failure, function_of, made_by

# What stands for a function that was given in Python, of which a record can say no more.
GIVEN = "given"
# Options that take FILE.py:FUNCTION.
OPTIONS = ("model", "rule", "algorithm")


class Code(NamedTuple):
    """Hold what a program gives in the place of names; None for what it does not give.

    Fields:
      model: a function that builds a Keras model.
      rule: a `Rule` or `GatherRule`, or a function that returns one.
      algorithm: a function that builds a process, as those of `tfp_bfl.algorithms` do.
      data: the training and the test data, a `given_data.GivenData`.
    """

    model: Any = None
    rule: Any = None
    algorithm: Any = None
    data: Any = None


NO_CODE = Code()


def names_code(value: Any) -> bool:
    """Return whether an option's value is FILE.py:FUNCTION, or stands for code that was given in Python."""
    return isinstance(value, str) and (value == GIVEN or ".py:" in value)


def load(value: str, option: str = "model") -> Callable[..., Any]:
    """Return the function that FILE.py:FUNCTION names; the file's code is run.

    Args:
      value: FILE.py:FUNCTION.
      option: one of `OPTIONS`.

    Raises:
      InvalidArgument: there is no such file or function, or its code fails.
    """
    if value == GIVEN:
        raise InvalidArgument(
            f"The {option} of this run was given in Python: use bfl.run(resume=..., {option}=...), or, where "
            f"a command takes --{option} FILE.py:FUNCTION, name a file with it."
        )
    return function_of(value, f"--{option} FILE.py:FUNCTION")


def model_fn(
    function: Callable[..., Any], source: Union[data.Source, data.Schema], options: dict[str, Any]
) -> Callable[[], Any]:
    """Build a model by a user's function, which gets those of the options that it takes.

    Args:
      function: returns a Keras model that gives logits.
      source: of the training data; its shape and number of classes are options besides.
      options: others, such as kind; among them seed, from which the weights of initializers without a seed follow.

    Raises:
      InvalidArgument: it fails, or its model does not fit these examples or these classes.
    """
    import tensorflow as tf

    from tfp_bfl import models

    offered = {"input_shape": source.element_shape, "num_classes": source.num_outputs, **options}
    taken = inspect.signature(function).parameters
    given = {name: x for name, x in offered.items() if name in taken}
    build_keras_2 = models.as_model_fn(functools.partial(function, **given))
    what = f"The model function {getattr(function, '__name__', shown(function))!r}"
    try:
        model = build_keras_2()
    except InvalidArgument:
        raise
    except Exception as error:
        raise InvalidArgument(f"{what} fails: {failure(error)}.") from error
    if not isinstance(model, tf.keras.Model):
        raise InvalidArgument(f"{what} returns {shown(model)}, but must return a Keras model that gives logits.")
    models.check_form(model)
    shapes = tuple(model.input_shape[1:]), model.output_shape[-1]
    if shapes != (source.element_shape, source.num_outputs):
        raise InvalidArgument(
            f"{what} returns a model from {list(shapes[0])} to {shapes[1]} outputs, but {source.name} has examples "
            f"of shape {list(source.element_shape)} and wants {source.num_outputs} outputs: let it take input_shape "
            "and num_classes."
        )

    def build() -> Any:
        with models.seeded(options["seed"]):
            return build_keras_2()

    return build


def rule_of(given: Any, value: Optional[str]) -> Any:
    """Return the rule that a program gives, or that FILE.py:FUNCTION names.

    Args:
      given: a rule, or a function without arguments that returns one; None for that of `value`.
      value: FILE.py:FUNCTION; the code is run.

    Raises:
      InvalidArgument: the function fails, needs arguments, or returns no rule.
    """
    from tfp_bfl import rules

    known = (rules.Rule, rules.GatherRule)
    if isinstance(given, known):
        return given
    function = given if given is not None else load(str(value), "rule")
    return made_by(function, "rule", known, "a rules.Rule or a rules.GatherRule")


def process_of(function: Callable[..., Any], model_fn: Any, chosen: dict[str, Any], others: dict[str, Any]) -> Any:
    """Return the process that a user's algorithm builds.

    Args:
      function: takes a function that builds the model, and options.
      model_fn: builds the model.
      chosen: options that the user gave, all of which it must take.
      others: options with their defaults, of which it gets those that it takes and that are not None.

    Raises:
      InvalidArgument: it does not take an option, fails, or returns no process.
    """
    from tfp_bfl.federated.process import BayesianProcess

    what = f"The algorithm function {getattr(function, '__name__', shown(function))!r}"
    parameters = inspect.signature(function).parameters
    takes_all = any(x.kind is x.VAR_KEYWORD for x in parameters.values())
    for name in chosen:
        if not (takes_all or name in parameters):
            raise InvalidArgument(f"{what} takes no {name}, which is given: leave it out, or let it take {name}.")
    taken = {name: x for name, x in others.items() if x is not None and (takes_all or name in parameters)}
    given = {**taken, **chosen}
    try:
        process = function(model_fn, **given)
    except InvalidArgument:
        raise
    except Exception as error:
        raise InvalidArgument(f"{what} fails: {failure(error)}.") from error
    if type(process) is not BayesianProcess:
        raise InvalidArgument(
            f"{what} returns {shown(process)}, but must return a process, such as algorithms.compose(...) gives."
        )
    return process


def check_trust(values: Mapping[str, Any], named: Mapping[str, Any], file: Any) -> None:
    """Raise InvalidArgument where a configuration from a file would run code that the command does not name.

    Args:
      values: of the file.
      named: options of the command.
      file: of the configuration.
    """
    for option in OPTIONS:
        value = values.get(option)
        if option not in named and names_code(value) and value != GIVEN:
            raise InvalidArgument(
                f"The config {path_name(file)} names code, {shown(value)}, which is run only where the command names "
                f"it: add --{option} {value}."
            )
