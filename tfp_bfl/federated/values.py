"""Compare user-supplied functions and objects by value: a digest that names of variables do not change."""

from __future__ import annotations

import dataclasses
import dis
import functools
import hashlib
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

# Packages whose objects count by their type, and whose functions by their name.
_FOREIGN = ("tensorflow", "keras", "tf_keras", "tensorflow_probability", "numpy", "builtins")
_OURS = "tfp_bfl"
# Instructions whose order follows from the names of variables.
_BY_NAME = ("MAKE_CELL", "LOAD_CLOSURE", "COPY_FREE_VARS", "RESUME")
_VARIABLES = ("DEREF", "CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF")


def is_simple(value: object) -> bool:
    """Return whether a value is None, a number or text."""
    return value is None or isinstance(value, (bool, int, float, str, np.generic))


def is_foreign(value: object) -> bool:
    """Return whether a value is an object of TensorFlow, Keras or NumPy."""
    return _package(value) in _FOREIGN


def is_custom(value: object) -> bool:
    """Return whether a value is a function or an object of neither this library nor those below it."""
    if isinstance(value, functools.partial):
        return False  # Its function and arguments count one by one.
    if isinstance(value, (np.ndarray, tf.Tensor)):
        return True
    if type(value) in (list, tuple, dict, set, frozenset):
        return False
    return not is_foreign(value) and _package(value) != _OURS


def digest(value: object) -> str:
    """Return eight characters that are equal for equal values.

    Functions count by their instructions, constants, defaults and the values of variables from outside, arrays by their
    numbers, objects by their type and attributes; functions and objects of other packages by their names.
    """
    return hashlib.sha256("|".join(_parts(value, [])).encode()).hexdigest()[:8]


def _parts(value: object, above: list[int]) -> Iterator[str]:
    """Yield the texts of a value; `above` holds the ids of the values around it, which may be inside it again."""
    if isinstance(value, np.generic):
        yield repr(value.item())
    elif is_simple(value) or isinstance(value, (bytes, complex, type(Ellipsis))):
        yield repr(value)
    elif isinstance(value, tf.Tensor) and hasattr(value, "numpy"):
        yield from _parts(value.numpy(), above)
    elif isinstance(value, np.ndarray) and value.dtype != object:
        yield f"{value.dtype} {value.shape} {hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()}"
    elif isinstance(value, types.ModuleType):
        yield value.__name__
    elif id(value) in above:
        yield "again"
    else:
        yield from _parts_of_object(value, [*above, id(value)])


def _parts_of_object(value: object, above: list[int]) -> Iterator[str]:
    given: list[Any] = []
    function = getattr(value, "python_function", value)
    if isinstance(value, Mapping):
        given = [x for pair in value.items() for x in pair]
    elif isinstance(value, (set, frozenset)):
        given = sorted("|".join(_parts(x, above)) for x in value)
    elif isinstance(value, (list, tuple)):
        given = list(value)
    elif isinstance(value, functools.partial):
        given = [value.func, *value.args, *(x for _, x in sorted(value.keywords.items()))]
    elif isinstance(value, types.MethodType):
        given = [value.__func__, value.__self__]
    elif isinstance(function, types.FunctionType) and _package(function) not in _FOREIGN:
        yield from _parts_of_function(function, above)
        return
    elif isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
        yield f"{value.__module__}.{value.__qualname__}"
        return
    elif not is_foreign(value) and not isinstance(value, (tf.Module, tf.Variable)):
        given = [x for pair in sorted(_attributes(value).items()) for x in pair]
        call = vars(type(value)).get("__call__")
        given += [call] if isinstance(call, types.FunctionType) else []
    yield f"{type(value).__module__}.{type(value).__qualname__} of {len(given)}"
    for x in given:
        yield from _parts(x, above)


def _attributes(value: object) -> dict[str, Any]:
    """Return the fields of a dataclass, or the attributes of an object of a user; none of another of this library."""
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if _package(value) == _OURS:
        return {}
    slots = [name for base in type(value).__mro__ for name in getattr(base, "__slots__", ()) if hasattr(value, name)]
    return {
        **{name: getattr(value, name) for name in slots if not name.startswith("__")},
        **getattr(value, "__dict__", {}),
    }


def _parts_of_function(function: Any, above: list[int]) -> Iterator[str]:
    cells: dict[str, Sequence[Any] | None] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            cells[name] = [cell.cell_contents]
        except ValueError:  # It is not filled yet.
            cells[name] = []
    for default in (*(function.__defaults__ or ()), *(x for _, x in sorted((function.__kwdefaults__ or {}).items()))):
        yield from _parts(default, above)
    if _package(function) == _OURS:  # The version of the library counts beside, and its names are its own.
        yield f"{function.__module__}.{function.__qualname__}"
        for _, held in sorted(cells.items()):
            yield from (part for x in held or () for part in _parts(x, above))
        return
    yield from _parts_of_code(function.__code__, function.__globals__, cells, above)


def _parts_of_code(code: Any, names: Mapping[str, Any], cells: dict[str, Any], above: list[int]) -> Iterator[str]:
    """Yield the instructions of a function, with values in the place of the names of variables."""
    places: dict[str, int] = {}
    yield f"{code.co_argcount} {code.co_kwonlyargcount} {code.co_flags}"
    for step in dis.get_instructions(code):
        if step.opname in _BY_NAME:
            continue
        yield step.opname
        if step.opname.endswith(_VARIABLES):
            if cells.get(step.argval) is None:  # A variable of this function, by its place.
                yield str(places.setdefault(step.argval, len(places)))
            else:
                yield from (part for x in cells[step.argval] for part in _parts(x, above))
        elif step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield from _parts(names[step.argval], above) if step.argval in names else [step.argval]
        elif isinstance(step.argval, types.CodeType):
            inner = {name: cells.get(name) for name in step.argval.co_freevars}
            yield from _parts_of_code(step.argval, names, inner, above)
        elif "FAST" in step.opname:
            yield str(step.arg)
        elif step.opcode in dis.hasconst:
            if not _is_name(step):
                yield from _parts(step.argval, above)
        elif step.argval is not None:
            yield str(step.argval)


def _is_name(step: Any) -> bool:
    """Return whether a constant is the qualified name of a function that is made inside (Python below 3.11)."""
    return isinstance(step.argval, str) and "<locals>" in step.argval


def _package(value: object) -> str:
    module = getattr(value, "__module__", None) or type(value).__module__
    return str(module).partition(".")[0]
