"""Frozen layers: constants of the function that builds a model, which no round sends, pools or changes.

A layer is frozen where it, or a layer around it, has `trainable = False`. It computes as in prediction, at the means of
its weights and without dropout, so that the frozen part of a network is a function of its inputs alone.
"""

import concurrent.futures
import hashlib
import inspect
import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_bfl import keras
from tfp_bfl.errors import InvalidArgument, shown

# In an error.
_MOST_NAMES = 30


def frozen_layers(model: keras.Model) -> list[keras.layers.Layer]:
    """Return the layers that are frozen, or inside a layer that is, each once."""
    outer = [layer for layer in model._flatten_layers() if not layer.trainable]
    return list({id(inner): inner for layer in outer for inner in layer._flatten_layers()}.values())


def frozen_variables(model: keras.Model) -> list[tf.Variable]:
    """Return the variables of frozen layers alone, in the order of the model's weights."""
    frozen = {id(v) for layer in frozen_layers(model) for v in layer.weights}
    trained = {id(v) for v in model.trainable_variables}
    return [v for v in model.weights if id(v) in frozen - trained]


def frozen_digest(model: keras.Model) -> str:
    """Return the SHA-256 sum of the frozen weights: of their types, shapes and values, in the model's order."""
    return digest([v.numpy() for v in frozen_variables(model)])


def digest(values: Sequence[np.ndarray]) -> str:
    """Return the SHA-256 sum of arrays: of their types, shapes and values."""
    total = hashlib.sha256()
    for x in values:
        total.update(f"{x.dtype.name} {x.shape} ".encode() + np.ascontiguousarray(x).tobytes())
    return total.hexdigest()


def frozen_values(build: Callable[[], keras.Model]) -> list[np.ndarray]:
    """Build a model twice, and return the values of its frozen variables.

    This happens in a thread of its own: the caller may be tracing a graph, or creating variables without values.

    Raises:
      InvalidArgument: the two models have other frozen weights.
    """

    def values() -> list[np.ndarray]:
        return [v.numpy() for v in frozen_variables(build())]

    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        first, second = (thread.submit(values).result() for _ in range(2))
    if digest(first) != digest(second):
        raise InvalidArgument(
            "The frozen weights of the model differ from one call of its function to the next, but must be constants: "
            "load them from a file, or give the initializers of its frozen layers a seed."
        )
    return first


def freeze(model: keras.Model, values: Sequence[np.ndarray]) -> None:
    """Set the frozen variables of a new model, and let its frozen layers compute as in prediction.

    Layers inside a frozen one are frozen, whatever they were set to. In a graph the values take the place of the
    variables, which nothing initialises there.

    Raises:
      InvalidArgument: all layers are frozen; or, in a graph, a frozen variable is no attribute of its layer.
    """
    if not model.trainable_variables:
        raise InvalidArgument(
            f"All weights of the model {model.name!r} are frozen, so that nothing is trained: leave its last layer "
            "trainable."
        )
    layers, variables = frozen_layers(model), frozen_variables(model)
    for layer in layers:
        layer.trainable = False
        _in_prediction(layer)
    if tf.executing_eagerly():
        for variable, value in zip(variables, values):
            variable.assign(value)
        return
    of = {id(v): (v, value) for v, value in zip(variables, values)}
    for layer in layers:
        attributes = vars(layer)  # Past Keras, which would track what is set.
        for name, held in list(attributes.items()):
            if isinstance(held, tf.Variable) and id(held) in of:
                variable, value = of[id(held)]
                attributes[name] = tf.constant(value, read_type(layer, variable))


def _in_prediction(layer: Any) -> None:
    """Let a layer ignore that the model around it trains."""
    call = layer.call
    signature = inspect.signature(call)
    if "training" not in signature.parameters:
        return

    def predict(*args: object, **kwargs: object) -> Any:
        given = signature.bind(*args, **kwargs)
        given.arguments["training"] = False
        return call(*given.args, **given.kwargs)

    vars(layer)["call"] = predict


def read_type(layer: keras.layers.Layer, variable: tf.Variable) -> tf.DType:
    """Return the type in which a layer reads its variable."""
    autocast = type(variable).__name__.startswith("AutoCast")
    return tf.as_dtype(layer.compute_dtype) if autocast else variable.dtype


def freeze_named(model: keras.Model, names: Sequence[str]) -> keras.Model:
    """Freeze layers of a new model by their names, with those inside them, and return the model.

    Keras numbers the layers without a name of all models of a program. Here they count from 0 on in their model, in any
    kind of weights: dense, dense_1.

    Args:
      names: of layers at any depth; "*" stands for any letters.

    Raises:
      InvalidArgument: a name that no layer has.
    """
    layers = _by_name(model)
    for name in names:
        pattern = re.compile(re.escape(name).replace(r"\*", ".*"))
        found = [layer for known, layer in layers.items() if pattern.fullmatch(known)]
        if not found:
            known = [known for known, layer in layers.items() if layer.weights]
            rest = f" and {len(known) - _MOST_NAMES} more" if len(known) > _MOST_NAMES else ""
            raise InvalidArgument(
                f"freeze has {shown(name)}, which is no layer of the model {model.name!r}: its layers with weights are "
                f"{', '.join(known[:_MOST_NAMES])}{rest}."
            )
        for layer in found:
            layer.trainable = False
    return model


def _by_name(model: keras.Model) -> dict[str, keras.layers.Layer]:
    """Return a model's layers by their names in it, at all depths."""
    found: dict[str, keras.layers.Layer] = {}
    for layer in model._flatten_layers(include_self=False):
        name, base = layer.name, re.sub(r"_\d+$", "", layer.name)
        if base.replace("_", "") == type(layer).__name__.lower():  # As Keras names a layer.
            base = re.sub(r"_(flipout|variational_dropout)$", "", base)
            numbered = (f"{base}_{i}" if i else base for i in itertools.count())
            name = next(x for x in numbered if x not in found)
        found.setdefault(name, layer)
    return found
