"""A function that builds a model, of what the caller gave in its place."""

from __future__ import annotations

from typing import Any, Callable

import tensorflow as tf

from tfp_bfl.errors import InvalidArgument, shown


def as_model_fn(model: Any) -> Callable[[], tf.keras.Model]:
    """Return `model` if it is a function; of a Keras model, a function that builds its like with the weights that it
    has now.

    Raises:
      InvalidArgument: it is neither, or a model that Keras can't clone: neither functional nor a built `Sequential`.
    """
    if not isinstance(model, tf.keras.Model):
        if not callable(model):
            raise InvalidArgument(
                f"model_fn is {shown(model)}, but must be a function that builds a Keras model, or such a model."
            )
        return model
    if not model._is_graph_network:
        raise InvalidArgument(
            f"Keras can't clone the model {model.name!r}: give a function that builds it, such as lambda: "
            f"{type(model).__name__}(...)."
        )
    weights = model.get_weights()

    def build() -> tf.keras.Model:
        clone = tf.keras.models.clone_model(model)
        # In a graph what is built gets its weights from the server.
        if tf.executing_eagerly():
            clone.set_weights(weights)
        return clone

    return build
