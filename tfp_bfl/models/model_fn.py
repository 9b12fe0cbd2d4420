"""A function that builds a model, of what the caller gave in its place."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_bfl import keras
from tfp_bfl.errors import InvalidArgument, shown
from tfp_bfl.layers import sampling
from tfp_bfl.models.keras_3 import from_keras_3
from tfp_bfl.weights.frozen import freeze, frozen_layers, frozen_values
from tfp_bfl.weights.model_checks import check_steps
from tfp_bfl.weights.model_weights import is_keras_3

_CONVERTS = "_tfp_bfl_converts_keras_3"


def as_model_fn(model: object) -> Callable[[], keras.Model]:
    """Return a function that builds a Keras 2 model: of a function, one that calls it and converts what Keras 3 built
    (`from_keras_3`); of a Keras model, one that builds its like with the weights that it has now.

    Frozen layers of each of these models have the same weights, and compute as in prediction (`weights.frozen`).

    Example:
      >>> model_fn = bfl.models.as_model_fn(bfl.models.mlp("deterministic", input_shape=(4,), num_classes=2))
      >>> model_fn().output_shape
      (None, 2)
    """
    if is_keras_3(model):
        return _converting(_building(lambda: from_keras_3(model)))
    if not isinstance(model, keras.Model):
        if not callable(model):
            raise InvalidArgument(
                f"model_fn is {shown(model)}, but must be a function that builds a Keras model, or such a model."
            )
        return _converting(model)
    if not model._is_graph_network:
        raise InvalidArgument(
            f"Keras can't clone the model {model.name!r}: give a function that builds it, such as lambda: "
            f"{type(model).__name__}(...)."
        )
    check_steps(model)  # Of which a clone has none.
    return _converting(_building(lambda: keras.models.clone_model(model), model.get_weights()))


def _building(clone: Callable[[], keras.Model], weights: list[np.ndarray] | None = None) -> Callable[[], Any]:
    """Return a function that builds by `clone`, with these weights; None for those that `clone` gives now."""
    weights = clone().get_weights() if weights is None else weights

    def build() -> keras.Model:
        model = _built_by(clone)
        # In a graph what is built gets its weights from the server.
        if tf.executing_eagerly():
            model.set_weights(weights)
        return model

    return build


def _converting(model_fn: Callable[[], Any]) -> Callable[[], keras.Model]:
    if hasattr(model_fn, _CONVERTS):
        return model_fn

    def new() -> keras.Model:
        model = _built_by(model_fn)
        return from_keras_3(model) if is_keras_3(model) else model

    constants = functools.cache(lambda: frozen_values(new))

    @functools.wraps(model_fn, updated=())
    def build() -> keras.Model:
        model = new()
        if isinstance(model, keras.Model) and model._is_graph_network and frozen_layers(model):
            values = constants()
            # These are of models outside of the graph, for which Keras turns its classes into those of version 2.
            model = model if tf.executing_eagerly() else new()
            freeze(model, values)
        return model

    setattr(build, _CONVERTS, True)
    return build


def _built_by(model_fn: Callable[[], Any]) -> Any:
    """Return a model, for whose shapes Keras calls each layer once.

    These calls need no noise, and without it a model of Flipout layers is built in a third of the time.
    """
    with sampling("mean"):
        return model_fn()
