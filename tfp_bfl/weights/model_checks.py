"""Checks of user-supplied Keras models: their form, what their layers draw and lose, and that they return logits."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from tfp_bfl import keras
from tfp_bfl.errors import InvalidArgument, shown
from tfp_bfl.layers import sampling
from tfp_bfl.weights.frozen import frozen_layers, frozen_variables

_PROBES = 8
# Inputs of this standard deviation take what is not bounded beyond 1.
_WIDE = 100.0
_ROUNDING = 1e-3
# Methods of models that Keras calls, and nothing else does.
_STEPS = ("train_step", "test_step", "predict_step", "compute_loss")
_OF_KERAS = ("keras", "tf_keras", "tensorflow")


def check_steps(model: Any) -> None:
    """Check that a model of Keras 2 or 3 has no method of its own in the place of one that `fit` calls."""
    classes = [cls for cls in type(model).__mro__ if cls.__module__.partition(".")[0] not in _OF_KERAS]
    for name in _STEPS:
        if any(name in vars(own) for own in (model, *classes)):
            raise InvalidArgument(
                f"The model {model.name!r} ({type(model).__name__}) has a {name} of its own, which no run calls: leave "
                "it out, or write what the clients do as client work, for tfp_bfl.algorithms.compose."
            )


def check_form(model: object) -> None:
    """Check that a model has one input and one output, is functional or Sequential, holds float32 weights, and has no
    training of its own.

    Args:
      model: a Keras model.

    Raises:
      InvalidArgument: it has another form.
    """
    if not isinstance(model, keras.Model):
        raise InvalidArgument(f"The function of the model returns {shown(model)}, but must return a Keras model.")
    if not model._is_graph_network:
        raise InvalidArgument(
            f"The model {model.name!r} ({type(model).__name__}) is subclassed, or has no input shape: build it as a "
            "functional model, or as a Sequential one with an input shape."
        )
    check_steps(model)
    for what, tensors in (("inputs", model.inputs), ("outputs", model.outputs)):
        if len(tensors) != 1:
            raise InvalidArgument(
                f"The model {model.name!r} has {len(tensors)} {what}, but must have one: concatenate them into one "
                "array."
            )
    for layer in model._flatten_layers(include_self=False):
        for dtype in {*(v.dtype for v in layer.weights), tf.as_dtype(layer.compute_dtype or "float32")}:
            if dtype in (tf.float64, tf.float16):
                raise InvalidArgument(
                    f"The layer {layer.name!r} of the model {model.name!r} is of type {dtype.name}, but must be "
                    "float32, or mixed_bfloat16: leave its dtype out."
                )


def check_layers(model: keras.Model) -> None:
    """Check that local training takes account of all that the model's layers do.

    The model is traced once in training and in prediction: noise of `tfp_bfl.layers`, and of any stateless operation,
    passes, and so does noise that is multiplied by a constant 0, as that of `GaussianNoise(0.0)`. Layers of Keras with
    noise pass where their rates are 0, as those of LSTM, GRU and attention are by default. What runs when a model is
    built, such as initializers, is in no graph of its call.

    Args:
      model: a Keras model.

    Raises:
      InvalidArgument: a layer adds losses that are not the KL of this library's layers, draws noise that no seed
        reaches, or is frozen and changes its variables.
    """
    still = {id(layer) for layer in frozen_layers(model)}
    for layer in model._flatten_layers(include_self=False):
        kind, parts = type(layer), [*layer._flatten_layers()]
        # Those of frozen layers are constants of the weights.
        adds = any((x._losses or x._callable_losses) and id(x) not in still for x in parts)
        of_kl = any(getattr(part, "variational_weights", []) for part in parts)
        if "tensorflow_probability" in kind.__module__ or (adds and not of_kl):
            raise InvalidArgument(
                f"The layer {layer.name!r} ({kind.__name__}) has losses of its own, which local training would leave "
                "out: use the layers of tfp_bfl.layers, without regularizers."
            )
    graph = _traced(model)
    _check_constant(model, graph)
    found = _first_draw(graph)
    if found is not None:
        path, operation = found
        named = {layer.name: layer for layer in model._flatten_layers(include_self=False)}
        layer = next((named[part] for part in reversed(path.split("/")) if part in named), None)
        what = f"layer {layer.name!r} ({type(layer).__name__})" if layer else f"model {model.name!r}"
        raise InvalidArgument(
            f"The {what} draws noise that the run's seed does not reach: set its dropout to 0, or use "
            f"tfp_bfl.layers.MCDropout or tf.random.stateless operations in place of {operation}."
        )


def check_logits(model: keras.Model, of_classes: bool = True) -> None:
    """Check that a model returns logits, of which losses and predictions take the softmax themselves.

    The last layer is checked by its type, and the outputs for random inputs by their values.

    Args:
      model: a Keras model of one input and one output.
      of_classes: the labels are classes, so that a sigmoid at the end is an error too.

    Raises:
      InvalidArgument: the outputs are probabilities.
    """
    last: Any = model.layers[-1] if model.layers else None
    while isinstance(last, keras.Model) and last.layers:
        last = last.layers[-1]
    softmax = keras.activations.softmax
    if isinstance(last, keras.layers.Softmax) or getattr(last, "activation", None) is softmax:
        raise InvalidArgument(
            f"The last layer, {last.name!r}, gives probabilities, but must give logits: leave its softmax out."
        )
    if not tf.executing_eagerly():
        return
    outputs = [x for x in (_outputs(model, scale) for scale in (1.0, _WIDE)) if x is not None]
    inside = [bool(((x >= 0) & (x <= 1)).all()) for x in outputs]
    if outputs and all(inside) and all(np.allclose(x.sum(-1), 1, atol=_ROUNDING) for x in outputs):
        raise InvalidArgument(
            f"The outputs of the model {model.name!r} sum to 1: they are probabilities, but must be logits; leave the "
            "softmax at its end out."
        )
    if of_classes and len(outputs) == 2 and all(inside) and outputs[1].std() > _ROUNDING:
        raise InvalidArgument(
            f"The outputs of the model {model.name!r} all lie between 0 and 1, as those of a sigmoid do, but must be "
            "logits: leave the activation at its end out."
        )


def _outputs(model: keras.Model, scale: float) -> Any:
    """Return outputs for random inputs, float32 [8, C]; None where the model does not take such numbers."""
    rng = np.random.default_rng(0)
    shape = [_PROBES, *(n or _PROBES for n in model.input_shape[1:])]
    inputs = rng.random(shape) if scale == 1 else rng.normal(0, scale, shape)
    try:
        with sampling("mean"):
            return tf.cast(model(inputs.astype(np.float32), training=False), tf.float32).numpy()
    except (tf.errors.OpError, ValueError, TypeError):  # Such as an embedding, of numbers that are no words.
        return None


# Operations with these attributes keep the state of a generator; stateless ones take their seed as an input.
_SEEDS = {"seed", "seed2"}
# Inputs of operations that advance a `tf.random.Generator`.
_ALGORITHMS = {"alg", "algorithm"}
# Python code that may draw: its caller does not state that it is a function of its arguments alone.
_PYTHON = {"PyFunc", "EagerPyFunc"}


def _traced(model: keras.Model) -> tf.Graph:
    """Trace a model of one input in training and in prediction."""

    def both(features: tf.Tensor) -> Any:
        with sampling("flipout", seed=tf.zeros([2], tf.int32)):
            return [model(features, training=is_training) for is_training in (True, False)]

    (given,) = model.inputs
    return tf.function(both, autograph=False).get_concrete_function(tf.TensorSpec(given.shape, given.dtype)).graph


def _check_constant(model: keras.Model, graph: Any) -> None:
    """Check that no operation of a model's graph writes to a frozen variable."""
    places = {id(inner): outer for outer, inner in graph.captures}
    frozen = {id(v.handle): v.name for v in frozen_variables(model)}
    for operation in graph.get_operations():
        if operation.type.startswith("Assign") and operation.inputs:
            changed = frozen.get(id(places.get(id(operation.inputs[0]))))
            if changed is not None:
                raise InvalidArgument(
                    f"A frozen layer changes its variable {changed} when the model is called, but frozen weights are "
                    "constants: use a layer without a state of its own."
                )


def seed_alone(what: str, part: Callable[..., Any], *given: object) -> Any:
    """Call a part of a round, and check that it draws noise from the seed that it gets alone.

    Args:
      what: the part in words, such as "client work".

    Raises:
      InvalidArgument: it adds a stateful random operation to the present graph, or to a function that it calls.
    """
    graph = tf.compat.v1.get_default_graph()
    first = len(graph.get_operations())
    result = part(*given)
    drawn = None if tf.executing_eagerly() else _first_draw(graph, first)
    if drawn is not None:
        raise InvalidArgument(
            f"The {what} draws noise that the run's seed does not reach: use tf.random.stateless operations in place "
            f"of {drawn[1]}."
        )
    return result


def _first_draw(graph: tf.Graph, first: int = 0) -> tuple[str, str] | None:
    """Return the name and the type of a random operation of a graph, from its operation number `first` on."""
    nodes = [operation.node_def for operation in graph.get_operations()[first:]]
    library = graph.as_graph_def().library
    functions = {function.signature.name: function.node_def for function in library.function}
    return next(_drawing(nodes, functions, {}), None)


def _drawing(
    nodes: Sequence[Any], functions: Mapping[str, Sequence[Any]], known: dict[str, str | None]
) -> Iterator[tuple[str, str]]:
    """Yield the names of nodes that draw, or call a function that does, each with the type of the random operation."""
    for node in nodes:
        if _draws(node) and not _is_silent(node, nodes):
            yield node.name, node.op
        for name in _called(node, functions):
            if name not in known:
                known[name] = None  # For functions that call themselves.
                known[name] = next((op for _, op in _drawing(functions[name], functions, known)), None)
            if operation := known[name]:
                yield node.name, operation


def _draws(node: Any) -> bool:
    kind = op_def_registry.get(node.op)
    if kind is None:  # The name of a function.
        return False
    of_generator = kind.is_stateful and not _ALGORITHMS.isdisjoint(arg.name for arg in kind.input_arg)
    return of_generator or node.op in _PYTHON or {attribute.name for attribute in kind.attr} >= _SEEDS


def _is_silent(node: Any, nodes: Sequence[Any]) -> bool:
    """Return whether an operation's own rate is 0, or all that takes its noise multiplies it by a constant 0.

    Python code of which nothing takes a result only watches.
    """
    if node.op in _PYTHON:
        return not any(name.partition(":")[0] == node.name for user in nodes for name in user.input)
    if "dropout" in node.attr:  # Of recurrent layers on a GPU.
        return node.attr["dropout"].f == 0
    zeros = {x.name for x in nodes if x.op == "Const" and not tf.make_ndarray(x.attr["value"].tensor).any()}
    sources = lambda user: [name.lstrip("^").partition(":")[0] for name in user.input]
    users = [user for user in nodes if node.name in sources(user)]
    return bool(users) and all(user.op == "Mul" and not zeros.isdisjoint(sources(user)) for user in users)


def _called(node: Any, functions: Mapping[str, Any]) -> Iterator[str]:
    names = [node.op]
    for value in node.attr.values():
        names += [value.func.name, *(each.name for each in value.list.func)]
    return (name for name in names if name in functions)
