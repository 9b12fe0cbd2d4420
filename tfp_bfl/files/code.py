"""Functions in Python files of the user."""

import importlib.util
import inspect
import pathlib
import re
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from tfp_bfl.errors import InvalidArgument, lookup, shown
from tfp_bfl.files import name as path_name

# What stands for a function that was given in Python, of which a record can say no more.
GIVEN = "given"
# Files of user-supplied functions, as tracebacks name them.
_FILES = set[str]()
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>\S+)')


def names_code(value: object) -> bool:
    """Return whether an option's value is FILE.py:FUNCTION, or stands for code that was given in Python."""
    return isinstance(value, str) and (value == GIVEN or ".py:" in value)


def code_name(value: str) -> str:
    """Return FILE.py:FUNCTION without the folder of the file; other names as they are."""
    return pathlib.Path(value).name if names_code(value) else value


def name_of(role: str, function: object) -> str:
    """Return how an error names a user's function."""
    return f"The {role} function {getattr(function, '__name__', shown(function))!r}"


def is_of_library(function: object) -> bool:
    """Return whether a function is one of this library, in the place of a user's."""
    return str(getattr(function, "__module__", "")).startswith("tfp_bfl.")


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
    _FILES.add(str(spec.origin))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise InvalidArgument(f"The code of {path_name(file)} fails: {failure(error)}.") from error
    functions = {key: value for key, value in vars(module).items() if callable(value) and not key.startswith("_")}
    return lookup(functions, name, "function", f"in {path_name(file)}")


def made_by(function: Callable[..., Any], role: str, kinds: tuple[type, ...], wanted: str, **options: object) -> Any:
    """Return what a user's function makes, which must be of one of the types `kinds`, in words `wanted`."""
    made = called(name_of(role, function), function, **options)
    if not isinstance(made, kinds):
        raise InvalidArgument(f"{name_of(role, function)} returns {shown(made)}, but must return {wanted}.")
    return made


def called(what: str, function: Callable[..., Any], *arguments: object, **options: object) -> Any:
    """Return what a user's function returns, its errors as InvalidArgument that begin with `what`."""
    check_complete(what, function, *arguments, **options)
    if not is_of_library(function):
        _FILES.add(getattr(getattr(function, "__code__", None), "co_filename", ""))
    try:
        return function(*arguments, **options)
    except InvalidArgument:
        raise
    except Exception as error:
        raise InvalidArgument(f"{what} fails: {failure(error)}.") from error


def check_complete(what: str, function: Callable[..., Any], *arguments: object, **options: object) -> None:
    """Raise InvalidArgument if a parameter of a function has neither a default nor one of these values."""
    try:
        signature = inspect.signature(function)
        given = signature.bind_partial(*arguments, **options).arguments
    except (TypeError, ValueError):  # Which the call says better, or nothing tells.
        return
    for name, x in signature.parameters.items():
        if x.default is x.empty and name not in given and x.kind not in (x.VAR_POSITIONAL, x.VAR_KEYWORD):
            raise InvalidArgument(
                f"{what} requires {name}, which has no default: give the option {name}, or the parameter a default."
            )


def failure(error: BaseException) -> str:
    """Return type and message of an error in one line of at most some 200 characters, without a full stop, and the line
    of the user's file where it was raised."""
    text, place = f"{type(error).__name__}: {error}", place_of(error)
    if "in user code:" in text:  # AutoGraph's copy of the traceback, of which the last line is the error's.
        text = text.strip().splitlines()[-1]
    return f"{' '.join(text.split())[:200]}".rstrip(". ") + (f" ({place})" if place else "")


def place_of(error: BaseException) -> str | None:
    """Return "FILE.py:LINE, in FUNCTION" of the last line of a user's file that raised an error; None for none."""
    *_, last = None, *_places(error)
    return last


def _places(error: BaseException, seen: tuple[BaseException, ...] = ()) -> Iterator[str]:
    cause = error.__cause__ or error.__context__
    # Errors that one event loop raises again can be causes of each other.
    if cause is not None and not any(cause is x for x in (error, *seen)):
        yield from _places(cause, (error, *seen))
    frames = [(x.filename, x.lineno, x.name) for x in traceback.extract_tb(error.__traceback__)]
    frames += _FRAME.findall(str(error))
    yield from (f"{pathlib.Path(file).name}:{line}, in {name}" for file, line, name in frames if file in _FILES)
