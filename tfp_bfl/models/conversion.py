"""Convert the layers of any model into those of another kind: point weights, with or without Monte Carlo dropout."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_bfl import keras
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.layers import sampling
from tfp_bfl.layers.dropout import MCDropout
from tfp_bfl.layers.gaussian import Convolution, GaussianLayer
from tfp_bfl.layers.variational_dropout import VariationalDropout
from tfp_bfl.weights.model_weights import check_keras_2
from tfp_bfl.weights.posterior_model import MemberSampling, WeightSampling

_OF_KERAS = keras.layers
# Layers with a kernel, which Monte Carlo dropout follows.
_KERNELS = (_OF_KERAS.Dense, _OF_KERAS.Conv1D, _OF_KERAS.Conv2D, _OF_KERAS.Conv3D)
_NORMALIZATIONS = (_OF_KERAS.BatchNormalization, _OF_KERAS.LayerNormalization, _OF_KERAS.GroupNormalization)
_ACTIVATIONS = (_OF_KERAS.Activation, _OF_KERAS.ReLU, _OF_KERAS.LeakyReLU, _OF_KERAS.ELU, _OF_KERAS.PReLU)


def deterministic(model: keras.Model) -> keras.Model:
    """Build the model of the same architecture with point weights, which start at the means.

    The layers of `tfp_bfl.layers` with Gaussian weights become Keras' `Dense` and `Conv2D`; `MCDropout` becomes
    dropout in training alone. Other layers are copied.

    Args:
      model: a functional or Sequential Keras 2 model. It is not changed.

    Example:
      >>> model = bfl.models.deterministic(bfl.models.mlp("flipout", input_shape=(30,), num_classes=2))
      >>> model.count_params()
      4130
    """
    return _Twins(None).whole(model)


def mc_dropout(model: keras.Model, rate: float = 0.2) -> keras.Model:
    """Build the model of the same architecture with point weights and Monte Carlo dropout.

    As `deterministic`, with `MCDropout` after each dense layer and convolution but the last one: after its activation
    and normalization, where layers for these follow. Layers `MCDropout` of the model remain, with this rate.

    Args:
      model: as of `deterministic`.
      rate: share of units that are dropped, at least 0 and below 1.

    Example:
      >>> model = bfl.models.mc_dropout(bfl.models.mlp("flipout", input_shape=(30,), num_classes=2), 0.5)
      >>> [layer.rate for layer in model.layers if isinstance(layer, bfl.layers.MCDropout)]
      [0.5, 0.5]
    """
    found = _Twins(rate).whole(model)
    if kind_of(found) != "mc_dropout":
        raise InvalidArgument("Dropout is between layers, and this model has one layer: use the kind deterministic.")
    return found


def kind_of(model: keras.Model) -> str:
    """Return which of `KINDS` a model is, by its layers.

    Example:
      >>> bfl.models.kind_of(bfl.models.mlp("mc_dropout", input_shape=(4,), num_classes=2))
      'mc_dropout'
    """
    layers = list(model._flatten_layers(include_self=False))
    if any(isinstance(layer, VariationalDropout) for layer in layers):
        return "variational_dropout"
    if any(getattr(layer, "variational_weights", ()) for layer in layers):
        return "flipout"
    dropped = any(isinstance(x, MCDropout) and x.at_prediction and x.trainable for x in layers)
    return "mc_dropout" if dropped else "deterministic"


def options_of(model: keras.Model) -> dict[str, Any]:
    """Return the options of a model that all its layers of this library share, whoever built it."""
    found = dict[str, list[Any]]()
    for layer in model._flatten_layers(include_self=False):
        if isinstance(layer, MCDropout) and layer.at_prediction:
            found.setdefault("dropout_rate", []).append(layer.rate)
        elif isinstance(layer, GaussianLayer):
            options = layer.get_config()
            for name in {"prior_stddev", "initial_stddev"} & {*options}:
                found.setdefault(name, []).append(options[name])
    return {name: values[0] for name, values in found.items() if len({*values}) == 1}


class _Twins:
    """Builds a model anew with other layers.

    Args:
      rate: of Monte Carlo dropout; None for none.
    """

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._layers = dict[int, tuple[keras.layers.Layer, keras.layers.Layer]]()

    def whole(self, model: object) -> keras.Model:
        """Return the twin of a model, with its present weights."""
        check_keras_2(model)
        twin = self._model(model, is_inner=False)
        if tf.executing_eagerly():  # In a graph what is built gets its weights from the server.
            for layer, other in self._layers.values():
                if not isinstance(layer, keras.Model):
                    other.set_weights(_values(layer))
        return twin

    def _model(self, model: Any, is_inner: bool) -> keras.Model:
        """Return the twin of a model; `is_inner` of one that is a layer of another, after which kernels follow."""
        if not getattr(model, "_is_graph_network", False):
            raise InvalidArgument(
                f"The model {model.name!r} is neither functional nor a Sequential model with an input shape: its "
                "layers cannot be converted."
            )
        nodes = [n for _, of_depth in sorted(model._nodes_by_depth.items(), reverse=True) for n in of_depth]
        nodes = [node for node in nodes if not node.is_input]
        ends = _ends(nodes, is_inner) if self._rate is not None else ()
        inputs = [keras.Input(batch_shape=x.shape, dtype=x.dtype) for x in model.inputs]
        uses, tensors = model._tensor_usage_count, dict[str, list[Any]]()
        for name, value in zip(map(str, map(id, model.inputs)), inputs):
            tensors[name] = [value] * uses[name]
        for node in nodes:
            arguments, options = node.map_arguments(tensors)
            outputs = self._twin(node.layer)(*arguments, **options)
            if self._rate is not None and id(node) in ends:
                outputs = MCDropout(self._rate)(outputs)
            for name, value in zip(node.flat_output_ids, tf.nest.flatten(outputs)):
                tensors[name] = [value] * uses[name]
        outputs = [tensors[str(id(x))][-1] for x in model.outputs]
        is_plain = len(outputs) == 1 and len(inputs) == 1
        return keras.Model(*((inputs[0], outputs[0]) if is_plain else (inputs, outputs)), name=model.name)

    def _twin(self, layer: keras.layers.Layer) -> keras.layers.Layer:
        if id(layer) not in self._layers:
            self._layers[id(layer)] = layer, self._converted(layer)
        return self._layers[id(layer)][1]

    def _converted(self, layer: keras.layers.Layer) -> keras.layers.Layer:
        if isinstance(layer, keras.Model):
            return self._model(layer, is_inner=True)
        if isinstance(layer, GaussianLayer):
            if own := _own_methods(layer):
                raise InvalidArgument(
                    f"The layer {layer.name!r} ({type(layer).__name__}) has its own {own[0]}, which Keras' layer of "
                    "point weights would lack: build the model of the wanted kind."
                )
            return _point(layer)
        if any(isinstance(x, (GaussianLayer, MCDropout)) for x in layer._flatten_layers(include_self=False)):
            raise InvalidArgument(
                f"The layer {layer.name!r} ({type(layer).__name__}) holds layers of tfp_bfl.layers inside, which "
                "cannot be converted: use these directly in a functional or Sequential model."
            )
        try:
            config = layer.get_config()
            if isinstance(layer, MCDropout):
                remains = layer.at_prediction and self._rate is not None
                config |= {"at_prediction": remains, **({"rate": self._rate} if remains else {})}
            return type(layer).from_config(config)
        except Exception as error:
            raise InvalidArgument(
                f"The layer {layer.name!r} ({type(layer).__name__}) cannot be built again from its configuration "
                f"({type(error).__name__}): define get_config, or build the model of the wanted kind."
            ) from error


def _own_methods(layer: GaussianLayer) -> list[str]:
    """Return the methods by which a class derived from one of this library's computes something else."""
    classes = type(layer).__mro__
    own = itertools.takewhile(lambda x: not x.__module__.startswith("tfp_bfl.layers."), classes)
    methods = [name for x in own for name, value in vars(x).items() if callable(value)]
    return [name for name in methods if name not in ("__init__", "get_config")]


def _point(layer: Any) -> keras.layers.Layer:
    """Return Keras' layer in the place of one with Gaussian weights."""
    taken = ("name", "trainable", "dtype", "activation", "use_bias", "kernel_initializer")
    config = {name: x for name, x in layer.get_config().items() if name in taken}
    if isinstance(layer, Convolution):
        shape = {"kernel_size": layer.kernel_size, "strides": layer.strides, "padding": layer.padding}
        return keras.layers.Conv2D.from_config({**config, "filters": layer.filters, **shape})
    return keras.layers.Dense.from_config({**config, "units": layer.units})


def _values(layer: Any) -> list[np.ndarray]:
    """Return the weights of a layer's twin: of Gaussian ones the means."""
    if isinstance(layer, GaussianLayer):
        return [x.numpy() for x in (layer.kernel_mean, *([layer.bias] if layer.use_bias else []))]
    return list(layer.get_weights())


def _ends(nodes: Sequence[Any], is_inner: bool) -> set[int]:
    """Return the nodes after which dropout stands: after kernels, their normalization and activation.

    Args:
      nodes: the calls of a model's layers.
      is_inner: other layers follow the model, so that its last kernel is not that of the output.
    """
    readers: dict[str, list[Any]] = {}
    for node in nodes:
        for name in node.flat_input_ids:
            readers.setdefault(name, []).append(node)
    after = lambda node: [reader for name in node.flat_output_ids for reader in readers.get(name, [])]
    has_kernel = lambda x: bool(x.trainable_weights) and not isinstance(x, (*_NORMALIZATIONS, *_ACTIVATIONS))
    leads: dict[int, bool] = {}  # To another kernel.
    for node in reversed(nodes):
        leads[id(node)] = any(has_kernel(x.layer) or leads[id(x)] for x in after(node))
    ends = set()
    for node in nodes:
        if not (isinstance(node.layer, (GaussianLayer, *_KERNELS)) and (is_inner or leads[id(node)])):
            continue
        while len(after(node)) == 1 and isinstance(after(node)[0].layer, (*_NORMALIZATIONS, *_ACTIVATIONS)):
            (node,) = after(node)
        if not any(isinstance(x.layer, MCDropout) for x in after(node)):
            ends.add(id(node))
    return ends


_TWIN, _SILENT = "_tfp_bfl_in_bfloat16", "_tfp_bfl_without_noise"


def in_bfloat16(model: keras.Model) -> keras.Model:
    """Return the model with float32 layers computing in bfloat16 (Keras' mixed_bfloat16); its logits are float32.

    Its variables are its own, float32, and have the model's values at the time of this call. The next call for the same
    model gives the same twin, with new values.

    Args:
      model: a functional or sequential Keras model.

    Example:
      >>> model = bfl.models.in_bfloat16(bfl.models.mlp("deterministic", input_shape=(4,), num_classes=2))
      >>> model.layers[1].compute_dtype
      'bfloat16'
    """
    attributes = vars(model)  # past Keras, which would track it
    if _TWIN not in attributes:
        attributes[_TWIN] = _twin(model)
    for variable, value in zip(attributes[_TWIN].variables, model.variables):
        variable.assign(value)
    return attributes[_TWIN]


def _twin(model: keras.Model) -> keras.Model:
    try:
        body = keras.models.clone_model(model, clone_function=_layer)
    except (NotImplementedError, TypeError, ValueError) as error:
        raise InvalidArgument(
            "To compute in bfloat16 a model must be functional or sequential, of layers that have a configuration, "
            f"but {model.name!r} is not: {str(error).strip().partition(chr(10))[0]}"
        ) from error
    logits = keras.layers.Activation("linear", dtype="float32")(body.outputs[0])
    twin = keras.Model(body.inputs, logits, name=model.name)
    return without_noise(twin) if _SILENT in vars(model) else twin


def without_noise(model: keras.Model) -> keras.Model:
    """Return the model; from now on its calls predict by the means of the weights, and so do those of its bfloat16
    twin.
    """
    attributes = vars(model)
    if _SILENT not in attributes:
        call = model.call

        def by_means(inputs: object, training: object = None, mask: object = None) -> Any:
            with sampling("mean"):
                return call(inputs, training=training, mask=mask)

        model.call = by_means
        attributes[_SILENT] = True
        attributes.pop(_TWIN, None)  # It was made with noise.
    return model


def _layer(layer: keras.layers.Layer) -> keras.layers.Layer:
    if isinstance(layer, (WeightSampling, MemberSampling)):
        return layer.over(in_bfloat16(layer.model))
    config = layer.get_config()
    return type(layer).from_config(
        {**config, "dtype": "mixed_bfloat16"} if config.get("dtype") == "float32" else config
    )
