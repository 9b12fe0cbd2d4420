"""Models of Keras 3 (`import keras`) as models of Keras 2, which all of this library computes with."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfp_bfl import keras
from tfp_bfl.errors import InvalidArgument, shown
from tfp_bfl.layers.base import check_keras_3
from tfp_bfl.weights import weight_sampling
from tfp_bfl.weights.model_checks import check_steps
from tfp_bfl.weights.model_weights import is_keras_3


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


# Of layers with noise: what is zero where they draw none.
_AMOUNTS = ("rate", "dropout", "recurrent_dropout", "stddev")
_VARIABLES = "_tfp_bfl_keras_3_variables"
# The attributes in which layers of this library hold their variables.
_OF_VARIATIONAL = ("kernel_mean", "kernel_log_stddev", "kernel_logits", "bias", "bias_log_stddev")


def from_keras_3(model: Any) -> keras.Model:
    """Build the Keras 2 model of the same layers and weights as a model of Keras 3.

        import keras

        network = keras.Sequential([keras.Input([4]), keras.layers.Dense(3)])
        scores = bfl.evaluation.evaluate(bfl.models.from_keras_3(network), features, labels)

    Functions that accept a model function or a model to train call it themselves. Each layer of Keras 3 computes with
    variables of the new model, by `keras.StatelessScope`. Three become their equals of Keras 2: `Dense` without
    activation or with softmax, which ends a model; `BatchNormalization`, whose statistics are pooled; and the layers of
    `tfp_bfl.layers.keras_3`. In training, Keras 2 divides the variance of a batch of images by N - 1 where Keras 3
    divides by N.

    Args:
      model: functional, or Sequential with an input shape, on the TensorFlow backend of Keras 3. It is not changed.

    Returns:
      A functional Keras 2 model with the present weights; `copy_to_keras_3` copies trained weights back.
    """
    if not is_keras_3(model):
        raise InvalidArgument(f"{shown(model)} is no model of Keras 3: build one with keras.Sequential or keras.Model.")
    check_keras_3(sys.modules["keras"])
    check_steps(model)
    for layer in model._flatten_layers(include_self=False):
        _check(layer)
    twins = _LayersOfKeras2()
    built = twins.model(model)
    for layer in built._flatten_layers(include_self=False):
        if getattr(layer, "adds_losses", False):  # Not raised inside the call, where Keras would add lines to it.
            raise _losses(layer.operation)
    values = [(twins.variables[id(x)], x) for x in model.weights]
    if tf.executing_eagerly():  # In a graph what is built gets its weights from the server.
        for variable, source in values:
            variable.assign(source.value)
    vars(built)[_VARIABLES] = [variable for variable, _ in values]  # past Keras, which would track them
    return built


def copy_to_keras_3(model: keras.Model, target: Any) -> None:
    """Copy the weights of a trained model into the model of Keras 3 that it was built from.

        result = bfl.simulate(process, clients, rounds=20, seed=0)
        bfl.models.copy_to_keras_3(result.model, network)

    Args:
      model: what `simulate` returned for a model of Keras 3, or what `from_keras_3` built. Of a posterior over its
        weights the mean is copied.
      target: a model of Keras 3 of the same layers; its weights are overwritten.
    """
    sampling = weight_sampling(model) if isinstance(model, keras.Model) else None
    variables = vars(sampling.model if sampling else model).get(_VARIABLES)
    if variables is None:
        raise InvalidArgument("model was not built from a model of Keras 3: give what simulate returned for one.")
    if not is_keras_3(target):
        raise InvalidArgument(f"target is {shown(target)}, but must be a model of Keras 3.")
    shapes = [tuple(x.shape) for x in variables], [tuple(x.shape) for x in target.weights]
    if shapes[0] != shapes[1]:
        raise InvalidArgument(
            f"The target {target.name!r} has weights of shapes {shapes[1]}, but the model has {shapes[0]}: give a "
            "model of the same layers."
        )
    target.set_weights([x.numpy() for x in variables])


def _check(layer: Any) -> None:
    kind = type(layer).__name__
    if _draws_noise(layer):
        raise InvalidArgument(
            f"The layer {layer.name!r} ({kind}) of Keras 3 draws noise that the run's seed does not reach: set its "
            "dropout to 0, or use tfp_bfl.layers.keras_3.MCDropout."
        )
    attributes = [x if isinstance(x, (list, tuple)) else [x] for x in vars(layer).values()]
    of_keras_2 = [x for each in attributes for x in each if isinstance(x, keras.layers.Layer)]
    if of_keras_2:
        raise InvalidArgument(
            f"The layer {layer.name!r} ({kind}) holds {of_keras_2[0].name!r}, a layer of Keras 2, whose weights Keras "
            "3 does not see: use layers of Keras 3; tfp_bfl.layers.keras_3 has those of this library."
        )
    if _graph(layer) is not None:  # Its layers are checked one by one.
        return
    _check_outermost(layer)
    losses = [] if hasattr(layer, "keras_2") else layer.losses
    if losses or getattr(layer, "activity_regularizer", None) is not None:
        raise _losses(layer)


def _draws_noise(layer: Any) -> bool:
    """Return whether a layer draws from a seed generator of Keras 3, whose operations are stateless."""
    if not getattr(layer, "_seed_generators", None):
        return False
    try:
        config = layer.get_config()
    except NotImplementedError:
        return True
    amounts = [config[name] for name in _AMOUNTS if name in config]
    return not amounts or any(x != 0 for x in amounts)


def _check_outermost(operation: Any) -> None:
    """Check that a layer that Keras 3 computes as a whole has none of this library inside."""
    parts = operation._flatten_layers() if hasattr(operation, "_flatten_layers") else []
    for part in parts:
        if hasattr(part, "keras_2") and (part is not operation or "keras_2" not in vars(type(part))):
            raise InvalidArgument(
                f"The layer {part.name!r} ({type(part).__name__}) of tfp_bfl.layers.keras_3 is subclassed or inside "
                f"{operation.name!r}, which Keras 3 computes as a whole (a custom layer, a model with masks, or one "
                "called with training=): call it in the functional model itself."
            )


def _losses(layer: Any) -> InvalidArgument:
    return InvalidArgument(
        f"The layer {layer.name!r} ({type(layer).__name__}) has losses of its own, which local training would leave "
        "out: build it without regularizers and add_loss."
    )


def _graph(model: object) -> Any | None:
    """Return what holds the graph of a functional or built Sequential model; None for another layer."""
    sequential = getattr(model, "_functional", None)
    graph = sequential if sequential is not None else model
    functional = next((base for base in type(graph).__mro__ if base.__name__ == "Functional"), None)
    given = next((base for base in type(model).__mro__ if "call" in vars(base)), None)
    by_keras = given is not None and given.__module__.startswith("keras.")
    return graph if functional is not None and by_keras else None


class _LayersOfKeras2:
    """Build Keras 2 layers for those of Keras 3, one for each, also where a layer is called more than once.

    Attributes:
      variables: those of the Keras 2 layers, by the id of the variable of Keras 3 in whose place they are.
    """

    def __init__(self) -> None:
        self.variables: dict[int, tf.Variable] = {}
        self._made: dict[int, Callable[..., Any]] = {}
        self._names: dict[str, int] = {}

    def model(self, model: Any) -> keras.Model:
        """Return the functional model of the layers that a functional or Sequential one has, nested models unfolded."""
        graph = _graph(model)
        if graph is None:
            raise InvalidArgument(
                f"The model {model.name!r} ({type(model).__name__}) is subclassed, or has no input shape: build it as "
                "a functional model, or as a Sequential one with an input shape."
            )
        inputs = [keras.Input(tuple(x.shape[1:]), dtype=x.dtype, name=self._name(x.name)) for x in graph.inputs]
        if any(_masks(layer) for layer in graph._flatten_layers(include_self=False)):
            # A mask goes from layer to layer of Keras 3 beside the tensors: the graph is one layer.
            outputs = self._layer(graph)(inputs[0] if len(inputs) == 1 else inputs)
        else:
            outputs = graph._run_through_graph(inputs, self._operation)
        return keras.Model(inputs, outputs, name=model.name)

    def _name(self, name: str) -> str:
        """Return a name that no other layer has; those of nested models may be alike."""
        self._names[name] = number = self._names.get(name, -1) + 1
        return self._name(f"{name}_{number}") if number else name

    def _operation(self, operation: object) -> Callable[..., Any]:
        if id(operation) not in self._made:
            self._made[id(operation)] = self._make(operation)
        return self._made[id(operation)]

    def _make(self, operation: object) -> Callable[..., Any]:
        keras: Any = sys.modules["keras"]
        if isinstance(operation, keras.Model) and (graph := _graph(operation)) is not None:
            return self._unfolded(operation, graph)
        # These types, and none that are derived from them.
        if type(operation) is keras.layers.Dense and (dense := _dense(operation, self._name)):
            return self._built(dense, operation, ("kernel", "bias"))
        if type(operation) is keras.layers.BatchNormalization and not getattr(operation, "renorm", False):
            held = ("gamma", "beta", "moving_mean", "moving_variance")
            return self._built(_normalization(operation, self._name), operation, held)
        if "keras_2" in vars(type(operation)):
            return self._of_this_library(operation)
        return self._layer(operation)

    def _of_this_library(self, operation: Any) -> Callable[..., Any]:
        config = {**operation.get_config(), **_common(operation, self._name)}
        activation = getattr(operation, "activation", None)
        if activation is not None:
            config |= {"kernel_initializer": "zeros", "activation": _ends().get(activation)}
        linear = self._built(operation.keras_2(**config), operation, _OF_VARIATIONAL)
        if activation is None or activation in _ends():
            return linear
        keras: Any = sys.modules["keras"]
        after = self._layer(keras.layers.Activation(activation, dtype=operation.dtype_policy))
        return lambda *args, **kwargs: after(linear(*args, **kwargs))

    def _unfolded(self, model: Any, graph: Any) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            if len(args) == 1 and all(x is None for x in kwargs.values()):
                return graph._run_through_graph(args[0], self._operation)
            # Such as training=False: then the model is one layer.
            if id(graph) not in self._made:
                self._made[id(graph)] = self._layer(model)
            return self._made[id(graph)](*args, **kwargs)

        return run

    def _layer(self, operation: Any) -> Callable[..., Any]:
        _check_outermost(operation)
        trainable = bool(getattr(operation, "trainable", True))
        layer = HeldKeras3Layer(operation, name=self._name(operation.name), trainable=trainable)
        self.variables.update(zip(map(id, layer.sources), layer.held))
        return layer.apply

    def _built(self, layer: keras.layers.Layer, operation: object, names: tuple[str, ...]) -> Callable[..., Any]:
        apply = _called(layer)

        def build(*args: object, **kwargs: object) -> Any:
            outputs = apply(*args, **kwargs)
            for name in names:
                if getattr(operation, name, None) is not None:
                    self.variables[id(getattr(operation, name))] = getattr(layer, name)
            return outputs

        return build


def _called(layer: Any) -> Callable[..., Any]:
    """Return the call of a layer of Keras 2 by the arguments of one of Keras 3; those that are None are left out."""
    return lambda *args, **kwargs: layer(*args, **{name: x for name, x in kwargs.items() if x is not None})


def _masks(layer: object) -> bool:
    return bool(getattr(layer, "mask_zero", False)) or type(layer).__name__ == "Masking"


def _common(layer: Any, name: Callable[[str], str]) -> dict[str, Any]:
    return {"name": name(layer.name), "dtype": layer.dtype_policy.name, "trainable": layer.trainable}


def _ends() -> dict[Any, str]:
    """Return the activations of Keras 3 that may end a model."""
    keras: Any = sys.modules["keras"]
    return {keras.activations.linear: "linear", keras.activations.softmax: "softmax"}


def _dense(layer: Any, name: Callable[[str], str]) -> keras.layers.Layer | None:
    """Return the Keras 2 layer of a dense layer that may end a model; None for another."""
    ends = _ends()
    if layer.activation not in ends or getattr(layer, "lora_enabled", False) or layer.quantization_mode is not None:
        return None
    return keras.layers.Dense(
        layer.units,
        activation=ends[layer.activation],
        use_bias=layer.use_bias,
        kernel_constraint=layer.kernel_constraint,
        bias_constraint=layer.bias_constraint,
        **_common(layer, name),
    )


def _normalization(layer: Any, name: Callable[[str], str]) -> keras.layers.Layer:
    return keras.layers.BatchNormalization(
        axis=layer.axis,
        momentum=layer.momentum,
        epsilon=layer.epsilon,
        center=layer.center,
        scale=layer.scale,
        gamma_constraint=layer.gamma_constraint,
        beta_constraint=layer.beta_constraint,
        **_common(layer, name),
    )
