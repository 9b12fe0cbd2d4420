"""The description of a run in words, which must equal that of a checkpoint before the run resumes from it.

User-supplied functions and objects are compared by value: by a digest that names of variables do not change.
"""

import contextlib
import dataclasses
import dis
import functools
import hashlib
import json
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_bfl import keras
from tfp_bfl.contracts import ClientWork, Needs, Rule, ServerStep, Traits
from tfp_bfl.weights.frozen import frozen_digest, frozen_variables


def describe(model: keras.Model, rule: str, memory: Sequence[tf.TensorSpec] = ()) -> dict[str, str]:
    """Describe the library, the model, the rule and the server step's state; alike for models of the same layers."""
    layers = [
        (type(layer).__name__, {name: x for name, x in layer.get_config().items() if name != "name"})
        for layer in model.layers
    ]
    variables = [[list(v.shape), v.dtype.name] for v in model.variables]
    frozen = sum(v.shape.num_elements() for v in frozen_variables(model))
    specs = [[spec.shape.as_list(), spec.dtype.name] for spec in memory]
    count = sum(v.shape.num_elements() for v in model.variables)
    return {
        "library": f"tfp_bfl {metadata.version('tfp_bfl')}",
        **({"frozen weights": f"{frozen:,} numbers ({frozen_digest(model)[:16]})"} if frozen else {}),
        # Keras numbers the models of a process that have no name of their own.
        "model": f"{re.sub(r'_[0-9]+$', '', model.name)} with {count:,} numbers ({_digest(layers, variables)})",
        "rule": rule,
        **({"server state": f"{len(memory)} tensors ({_digest(specs)})"} if memory else {}),
    }


def settings_of(**parts: Any) -> dict[str, str]:
    """Describe the parts of a process, name -> value: learning rates, epochs, batch sizes.

    A part states its `settings` by name, and the functions of this library the numbers and names that they were made
    with. Different values of one name are all there, in the order in which they are met; of a list each value.
    User-supplied functions and objects count under "code" by value (`digest`), whatever their variables are
    called. The model itself describes how it is built.
    """
    settings: dict[str, list[str]] = {}
    seen: set[int] = set()

    def meet(name: str, value: Any) -> None:
        if is_simple(value) or isinstance(value, type):
            if name not in _NOT_STATED:
                settings.setdefault(name, []).append(repr(value) if is_simple(value) else value.__qualname__)
        elif type(value) in (list, tuple) and len({*map(repr, value)}) > 1 and all(map(is_simple, value)):
            if name not in _NOT_STATED:  # Such as one value for each client, of which each counts, in order.
                settings.setdefault(name, []).append(", ".join(map(repr, value)))
        elif is_custom(value):
            settings.setdefault("code", []).append(digest(value))
        elif isinstance(value, (list, tuple)):
            for field, x in zip(getattr(value, "_fields", [name] * len(value)), value):
                meet(field, x)
        elif isinstance(value, Mapping):
            for field, x in value.items():
                meet(str(field), x)
        elif id(value) not in seen and not is_foreign(value):
            seen.add(id(value))
            for field, x in _held(value):
                if field not in _NOT_MET:
                    meet(field, x)

    for name, part in parts.items():
        if isinstance(part, ClientWork):  # As pairs; the work that another is around is met by nothing else.
            meet("settings", dict(part.settings))
        meet(name, part)
    return {name: ", ".join(dict.fromkeys(values)) for name, values in sorted(settings.items())}


# What builds a model, and the model itself; noise is of the run's seed.
_NOT_MET = ("model_fn", "model", "self", "seed")
# What the parts promise each other follows from which they are.
_NOT_STATED = {x for part in (ClientWork, Needs, Rule, ServerStep, Traits) for x in part._fields}


def _held(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the values that a function of this library was made with."""
    if isinstance(value, functools.partial):
        yield from (("argument", x) for x in (*value.args, value.func))
        yield from value.keywords.items()
    function = getattr(value, "python_function", value)
    code = getattr(function, "__code__", None)
    if code is None:
        return
    if code.co_name == "<lambda>":
        yield from (("constant", x) for x in code.co_consts if isinstance(x, (int, float)))
    for variable, cell in zip(code.co_freevars, function.__closure__ or ()):
        with contextlib.suppress(ValueError):  # It is not filled yet.
            yield variable, cell.cell_contents


def _digest(*values: object) -> str:
    # What JSON does not know counts by its type: the text of an object has its address.
    text = json.dumps(values, sort_keys=True, default=lambda value: type(value).__name__)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


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
            yield from _parts(step.argval, above)
        elif step.argval is not None:
            yield str(step.argval)


def _package(value: object) -> str:
    module = getattr(value, "__module__", None) or type(value).__module__
    return str(module).partition(".")[0]
