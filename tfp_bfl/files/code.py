"""Functions in Python files of the user."""

from __future__ import annotations

import importlib.util
import pathlib
from collections.abc import Callable
from typing import Any

from tfp_bfl.errors import InvalidArgument, lookup, shown
from tfp_bfl.files import name as path_name

# What stands for a function that was given in Python, of which a record can say no more.
GIVEN = "given"


def names_code(value: object) -> bool:
    """Return whether an option's value is FILE.py:FUNCTION, or stands for code that was given in Python."""
    return isinstance(value, str) and (value == GIVEN or ".py:" in value)


def function_of(value: str, wanted: str) -> Callable[..., Any]:
    """Return the function that FILE.py:FUNCTION names; the file's code is run.

    Args:
      value: FILE.py:FUNCTION.
      wanted: what is to be given, for the message, such as "--model FILE.py:FUNCTION".

    Raises:
      InvalidArgument: there is no such file or function, or its code fails.
    """
    path, _, name = value.rpartition(":")
    file = pathlib.Path(path)
    if not file.is_file():
        raise InvalidArgument(f"There is no file {path_name(file)}: give {wanted}.")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise InvalidArgument(f"The code of {path_name(file)} fails: {failure(error)}.") from error
    functions = {key: value for key, value in vars(module).items() if callable(value) and not key.startswith("_")}
    function: Callable[..., Any] = lookup(functions, name, "function", f"in {path_name(file)}")
    return function


def made_by(function: Callable[..., Any], option: str, kinds: tuple[type, ...], wanted: str) -> Any:
    """Return what a user's function without arguments makes.

    Args:
      function: of the user.
      option: what it makes, such as "rule".
      kinds: types of which it must be.
      wanted: these types, for the message.

    Raises:
      InvalidArgument: the function fails, needs arguments, or returns something else.
    """
    what = f"The {option} function {getattr(function, '__name__', shown(function))!r}"
    try:
        made = function()
    except Exception as error:
        raise InvalidArgument(f"{what} fails: {failure(error)}; it is called without arguments.") from error
    if not isinstance(made, kinds):
        raise InvalidArgument(f"{what} returns {shown(made)}, but must return {wanted}.")
    return made


def called(what: str, function: Callable[..., Any], *arguments: object, **options: object) -> Any:
    """Return what a user's function returns, its errors as InvalidArgument that begin with `what`."""
    try:
        return function(*arguments, **options)
    except InvalidArgument:
        raise
    except Exception as error:
        raise InvalidArgument(f"{what} fails: {failure(error)}.") from error


def failure(error: Exception) -> str:
    """Return type and message of an error in one line of at most some 200 characters, without a full stop."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}".rstrip(". ")
