"""The description of a run in words, which must equal that of a checkpoint before the run resumes from it."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any

import tensorflow as tf

from tfp_bfl import keras
from tfp_bfl.contracts import ClientWork, Rule, ServerStep
from tfp_bfl.federated.values import digest, is_custom, is_foreign, is_simple


def describe(model: keras.Model, rule: str, memory: Sequence[tf.TensorSpec] = ()) -> dict[str, str]:
    """Describe the library, the model and the rule; alike for models of the same layers with the same options.

    Args:
      memory: specs of the server step's state; if there are any, they are described too.
    """
    layers = [(type(layer).__name__, _without_name(layer.get_config())) for layer in model.layers]
    variables = [[list(v.shape), v.dtype.name] for v in model.variables]
    specs = [[spec.shape.as_list(), spec.dtype.name] for spec in memory]
    count = sum(v.shape.num_elements() for v in model.variables)
    return {
        "library": f"tfp_bfl {metadata.version('tfp_bfl')}",
        # Keras numbers the models of a process that have no name of their own.
        "model": f"{re.sub(r'_[0-9]+$', '', model.name)} with {count:,} numbers ({_digest(layers, variables)})",
        "rule": rule,
        **({"server state": f"{len(memory)} tensors ({_digest(specs)})"} if memory else {}),
    }


def settings_of(**parts: Any) -> dict[str, str]:
    """Describe the parts of a process, name -> value: learning rates, epochs, batch sizes.

    A part states its `settings` by name, and the functions of this library the numbers and names that they were made
    with. Different values of one name are all there, in the order in which they are met; of a list each value.
    User-supplied functions and objects count under "code" by value (`values.digest`), whatever their variables are
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
        meet(name, part)
    return {name: ", ".join(dict.fromkeys(values)) for name, values in sorted(settings.items())}


# What builds a model, and the model itself; noise is of the run's seed.
_NOT_MET = ("model_fn", "model", "self", "seed")
# What the parts promise each other follows from which they are.
_NOT_STATED = {*ClientWork._fields, *Rule._fields, *ServerStep._fields}


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


def _without_name(config: dict) -> dict:
    return {name: value for name, value in config.items() if name != "name"}


def _digest(*values: object) -> str:
    # What JSON does not know counts by its type: the text of an object has its address.
    text = json.dumps(values, sort_keys=True, default=lambda value: type(value).__name__)
    return hashlib.sha256(text.encode()).hexdigest()[:8]
