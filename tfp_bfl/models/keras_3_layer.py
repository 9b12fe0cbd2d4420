"""A layer of Keras 3 inside a model of Keras 2, with variables of its own."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfp_bfl import keras


class HeldKeras3Layer(keras.layers.Layer):
    """Call a layer or an operation of Keras 3 with the weights that this layer holds.

        y = f(x; w),   w: variables of this layer, in the place of the weights of the layer of Keras 3

    Args:
      operation: a built layer of Keras 3, or an operation of `keras.ops` in a functional model; it is not changed.
      structures: of the arguments of the calls, of a layer that is built from a configuration.

    Attributes:
      sources: the weights of Keras 3.
      held: this layer's variables, one for each; attributes of it, as `weights.functional_call` needs them.
      adds_losses: whether the layer of Keras 3 called add_loss in the last call.
    """

    def __init__(self, operation: object, structures: Sequence[Any] = (), **kwargs: object):
        policy = getattr(operation, "dtype_policy", None)
        super().__init__(**{"dtype": policy.name if policy else "float32", **kwargs}, autocast=False)
        # Past Keras 2, which would save the variables of Keras 3 beside its own.
        attributes: dict[str, Any] = self.__dict__
        attributes["operation"] = operation
        attributes["sources"] = list(getattr(operation, "weights", []))
        attributes["structures"] = list(structures)
        attributes["adds_losses"] = False
        self._names = [f"weight_{i}" for i in range(len(self.sources))]
        for name, source in zip(self._names, self.sources):
            zeros = lambda source=source: tf.zeros(source.shape, source.dtype)
            variable = tf.Variable(
                zeros,
                trainable=source.trainable,
                constraint=source.constraint,
                name=source.path,
                dtype=source.dtype,
                shape=source.shape,
            )
            setattr(self, name, variable)

    @property
    def held(self) -> list[tf.Variable]:
        """Variables, or the values that stand in their place at present."""
        return [getattr(self, name) for name in self._names]

    def apply(self, *args: object, **kwargs: object) -> Any:
        """Call this layer by the arguments of the layer of Keras 3."""
        leaves = tf.nest.flatten((args, kwargs))
        is_tensor = [any(base.__name__ == "KerasTensor" for base in type(x).__mro__) for x in leaves]
        fixed = [None if tensor else x for x, tensor in zip(leaves, is_tensor)]
        self.structures.append((is_tensor, tf.nest.pack_sequence_as((args, kwargs), fixed)))
        tensors = [x for x, tensor in zip(leaves, is_tensor) if tensor]
        return self(tensors, structure=len(self.structures) - 1)

    @tf.autograph.experimental.do_not_convert
    def call(self, inputs: object, structure: int = 0, training: object = None) -> Any:
        is_tensor, arguments = self.structures[structure]
        tensors = iter(tf.nest.flatten(inputs))
        leaves = [next(tensors) if tensor else x for x, tensor in zip(tf.nest.flatten(arguments), is_tensor)]
        args, kwargs = tf.nest.pack_sequence_as(arguments, leaves)
        if getattr(self.operation, "_call_has_training_arg", False) and kwargs.get("training") is None:
            kwargs = {**kwargs, "training": False if training is None else training}
        keras: Any = sys.modules["keras"]
        with keras.StatelessScope(list(zip(self.sources, self.held)), collect_losses=True) as scope:
            outputs = self.operation(*args, **kwargs)
        self.__dict__["adds_losses"] = bool(scope.losses)
        return outputs

    def get_config(self) -> dict[str, Any]:
        """Return what `from_config` builds the like of this layer from; the two share the layer of Keras 3."""
        own = getattr(self.operation, "get_config", dict)
        options: dict[str, Any]
        try:
            options = own()
        except NotImplementedError:
            options = {}
        return {
            **super().get_config(),
            "operation": self.operation,
            "structures": self.structures,
            "options": options,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> HeldKeras3Layer:
        """Build a layer that calls the same layer of Keras 3 with variables of its own."""
        return cls(**{name: x for name, x in config.items() if name not in ("options", "autocast")})
