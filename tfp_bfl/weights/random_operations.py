"""Find the layers of a model that draw noise from other generators than the seed of `layers.sampling`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from tfp_bfl import keras
from tfp_bfl.layers import sampling

# Operations with these attributes keep the state of a generator; stateless ones take their seed as an input.
_SEEDS = {"seed", "seed2"}
# Inputs of operations that advance a `tf.random.Generator`.
_ALGORITHMS = {"alg", "algorithm"}


class Drawn(NamedTuple):
    """A random operation that no seed of a run reaches.

    Fields:
      operation: its type, such as "RandomStandardNormal".
      layer: the layer of the model that calls it; None where its place in the graph does not name one.
    """

    operation: str
    layer: Any | None


def unseeded_operation(model: keras.Model) -> Drawn | None:
    """Trace a model in training and in prediction, and return a stateful random operation in the graph or in a function
    that it calls: bodies of loops, branches, nested `tf.function`s.

    Noise that is multiplied by a constant 0 does not count, as that of `GaussianNoise(0.0)`. What runs when a model is
    built, such as initializers, is in no graph of its call.

    Args:
      model: a Keras model of one input.

    Returns:
      One such operation; None without any.
    """

    def both(features: tf.Tensor) -> Any:
        with sampling("flipout", seed=tf.zeros([2], tf.int32)):
            return [model(features, training=is_training) for is_training in (True, False)]

    (given,) = model.inputs
    traced = tf.function(both, autograph=False).get_concrete_function(tf.TensorSpec(given.shape, given.dtype))
    graph = traced.graph.as_graph_def()
    functions = {function.signature.name: function.node_def for function in graph.library.function}
    found = next(_drawing(graph.node, functions, {}), None)
    if found is None:
        return None
    path, operation = found
    named = {layer.name: layer for layer in model._flatten_layers(include_self=False)}
    return Drawn(operation, next((named[part] for part in reversed(path.split("/")) if part in named), None))


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
    return of_generator or {attribute.name for attribute in kind.attr} >= _SEEDS


def _is_silent(node: Any, nodes: Sequence[Any]) -> bool:
    """Return whether an operation's own rate is 0, or all that takes its noise multiplies it by a constant 0."""
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
