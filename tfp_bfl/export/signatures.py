"""The functions of a SavedModel of this library and their outputs: classes, or a number."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_bfl import keras
from tfp_bfl.data import Feature
from tfp_bfl.evaluation import (
    Unusual,
    central_interval,
    draw_outputs,
    gaussians,
    is_stochastic,
    sample_seeds,
    summarise,
    summarise_gaussians,
)
from tfp_bfl.evaluation.unusual import penultimate, unusual_score
from tfp_bfl.export import rows as rows_of_tables
from tfp_bfl.layers import as_floats, sampling
from tfp_bfl.models.backbones import backbone_of

NUM_SAMPLES = 20
# By which resizing may leave the range of pixels.
_ROUNDING = 0.01

# What each function takes beside images.
NUMBERS = {"num_samples": tf.int32, "seed": tf.int32}
NUMBERS |= dict.fromkeys(("max_uncertainty", "temperature", "set_limit"), tf.float32)
INPUTS: dict[str, tuple[str, ...]] = {"mean": (), **dict.fromkeys(("sample", "predict"), ("num_samples", "seed"))}
INPUTS["abstain"] = ("num_samples", "seed", "max_uncertainty")
# A signature takes one type of images: each function has one of its own name for floats, and one for bytes.
IMAGES = {"": tf.float32, "_uint8": tf.uint8}
# By the calibration of the model (`calibrated`): without further inputs, and with settings that have defaults.
SERVED = SERVING_DEFAULT, SERVE = "serving_default", "serve"
SIGNATURES = {f"{name}{suffix}": (name, dtype) for name in (*INPUTS, *SERVED) for suffix, dtype in IMAGES.items()}


def image_types(shape: Sequence[int]) -> dict[str, tf.DType]:
    """Return `IMAGES` for examples of this shape: bytes are pixels, and tables have none."""
    return {suffix: dtype for suffix, dtype in IMAGES.items() if dtype != tf.uint8 or len(shape) == 3}


def output_type(name: str) -> tf.DType:
    """Return the type of an output."""
    return {"label": tf.int32, "set": tf.bool, "abstain": tf.bool}.get(name, tf.float32)


def numbers_of(function: str, outputs: Mapping[str, Mapping[str, int]]) -> dict[str, tf.TensorSpec]:
    """Return the inputs of a function beside examples, by name: scalars; of `serve` of any shape.

    `outputs` are those of the head (`OutputHead.outputs`).
    """
    if function != SERVE:
        return {name: tf.TensorSpec([], NUMBERS[name], name) for name in INPUTS.get(function, ())}
    names = NUMBERS if "label" in outputs[SERVE] else INPUTS["abstain"]
    return {name: tf.TensorSpec(None, NUMBERS[name], name) for name in names}


def make_functions(
    model: keras.Model,
    columns: Sequence[Sequence[Any]] = (),
    target: Sequence[Any] | None = None,
    features: Sequence[Feature] = (),
    unusual: Unusual | None = None,
    backbone: keras.Model | None = None,
) -> tf.Module:
    """Return a module with the functions of `INPUTS`, which takes NumPy's images as they are, and with `draw`.

    `draw(images, seed)` is what one weight sample says, p(y | x, w) or mean and standard deviation of a number:
    float32 [B, ...] and int32 [2] -> [B, C] or [B, 2]. The module holds the model's variables, not its layers: whoever
    loads it needs neither this package nor TFP.

    `columns` and `target` are (name, mean, standard deviation) of each column of a table, which the functions take as
    it is, and of the number that is predicted, None for classes. With the `features` of a table that has categories or
    empty cells there is a function `predict_rows`, which accepts {column: [B]} as they are. `unusual` is None for a
    model without this output. A `backbone` computes the features that the model takes of images, once for all samples.
    """
    answers, stochastic = head(target), is_stochastic(model)
    spec = lambda network: tf.TensorSpec([None, *network.input_shape[1:]], tf.float32, "images")
    scaled, given, pair = spec(model), spec(backbone or model), tf.TensorSpec([2], tf.int32, "seed")

    # What costs is traced here, once, for floats; what follows calls it. To save a function is to trace it again.
    def traced(*inputs: tf.TensorSpec, of: tf.TensorSpec = scaled) -> Callable[[Callable[..., Any]], Any]:
        return lambda f: tf.function(f, input_signature=[of, *inputs], autograph=False).get_concrete_function()

    network = backbone_of(backbone) if backbone else functools.partial(_standardised, columns=columns)
    of_images: Any = traced(of=given)(lambda images: network(images)) if backbone else None

    def prepared(images: tf.Tensor) -> tf.Tensor:
        checked = valid_floats(images)
        if backbone:
            return valid_floats(of_images(checked))
        return network(checked if images.dtype == tf.float32 or not columns else tf.cast(images, tf.float64))

    in_units = lambda outputs, images: answers.in_units(outputs, tf.float32 if backbone else images.dtype)
    number = {name: tf.TensorSpec([], dtype, name) for name, dtype in NUMBERS.items()}

    def of_sample(rows: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        with _portable(model):
            return answers.of_sample(draw_outputs(model, rows, seed))

    @functools.partial(tf.function, input_signature=[given, pair], autograph=False)
    def draw(images: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        return answers.sample_in_units(of_sample(network(images), seed))

    # Traced again where inputs or units differ: TensorFlow Lite's file is split within the graph of `draw`.
    at_sample = traced(pair)(of_sample) if columns or target or backbone else draw.get_concrete_function()

    # Not traced for nothing: a function without variables would be an operation of its own.
    scored = (lambda images: {}) if unusual is None else traced()(_scoring(model, unusual))

    @traced()
    def at_mean(images: tf.Tensor) -> Outputs:
        with _portable(model), sampling("mean"):
            at = answers.at_mean(answers.of_sample(model(images, training=False)))
        return {**at, **scored(images)}

    @traced(number["num_samples"], number["seed"])
    def drawn(images: tf.Tensor, num_samples: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        # [S, B, L]; a model without anything random has one sample.
        with tf.control_dependencies([tf.debugging.assert_positive(num_samples, "num_samples must be at least 1.")]):
            seeds = sample_seeds(seed, num_samples if stochastic else 1)
        return tf.map_fn(lambda seed: at_sample(images, seed), seeds, fn_output_signature=tf.float32)

    @traced(number["num_samples"], number["seed"])
    def summarised(images: tf.Tensor, num_samples: tf.Tensor, seed: tf.Tensor) -> Outputs:
        return {**answers.summary(drawn(images, num_samples, seed)), **scored(images)}

    def mean(images: tf.Tensor) -> Outputs:
        return in_units(at_mean(prepared(images)), images)

    def sample(images: tf.Tensor, num_samples: object = NUM_SAMPLES, seed: object = 0) -> Outputs:
        samples = drawn(prepared(images), num_samples, seed)
        return in_units(answers.sampled(samples if stochastic else tf.repeat(samples, num_samples, 0)), images)

    def predict(images: tf.Tensor, num_samples: object = NUM_SAMPLES, seed: object = 0) -> Outputs:
        return in_units(summarised(prepared(images), num_samples, seed), images)

    def abstain(images: tf.Tensor, num_samples: tf.Tensor, seed: tf.Tensor, max_uncertainty: tf.Tensor) -> Outputs:
        return answers.limited(predict(images, num_samples, seed), max_uncertainty)

    def predict_rows(rows: Outputs, num_samples: object = NUM_SAMPLES, seed: object = 0) -> Outputs:
        return predict(encode(rows), num_samples, seed)

    module = tf.Module()
    if rows_of_tables.inputs_of(features):
        encode = rows_of_tables.encoder(features, columns)
        setattr(module, rows_of_tables.NAME, tf.function(predict_rows, autograph=False))
    module.weights = [*model.variables, *(backbone.variables if backbone else ())]
    module.draw = draw
    for function in (mean, sample, predict, abstain):
        setattr(module, function.__name__, tf.function(function, autograph=False))
    return module


def _standardised(rows: tf.Tensor, columns: Sequence[Sequence[Any]]) -> tf.Tensor:
    """Return rows as the model takes them, float32: computed in their type, rounded once."""
    if not columns:
        return rows
    # Not tensors, which a SavedModel would hold as objects of their own.
    means, stddevs = (np.array([column[i] for column in columns], rows.dtype.as_numpy_dtype) for i in (1, 2))
    return tf.cast((rows - means) / stddevs, tf.float32)


def _scoring(model: keras.Model, unusual: Unusual) -> Callable[[tf.Tensor], Outputs]:
    """Return the function that says how unusual images are."""
    features_of = penultimate(model)

    def score(images: tf.Tensor) -> Outputs:
        with _portable(model), sampling("mean"):
            return {"unusual": unusual_score(unusual, features_of(images), images)}

    return score


def valid_floats(images: tf.Tensor) -> tf.Tensor:
    """Return examples as the model takes them; refuse numbers that are not finite, and images of another scale."""
    if not images.dtype.is_floating:
        if images.shape.rank != 4 or images.dtype == tf.uint8:
            return as_floats(images)
        message = "images are whole numbers outside 0 to 255, but must be pixels from 0 to 255, or floats in [0, 1]."
        in_range = tf.reduce_all((images >= 0) & (images <= tf.uint8.max))
        with tf.control_dependencies([tf.debugging.Assert(in_range, [message])]):
            return as_floats(tf.cast(images, tf.uint8))
    # Not by `is_finite`, an operation that TensorFlow Lite lacks.
    message = "examples hold numbers that are not finite: fill them in, or leave those examples out."
    checks = {message: tf.abs(images) <= images.dtype.max}
    if images.shape.rank == 4:
        message = "images are floats outside 0 to 1, but must be uint8, or floats in [0, 1]: divide pixels by 255."
        checks[message] = tf.abs(images - 0.5) <= 0.5 + _ROUNDING
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(x), [m]) for m, x in checks.items()]):
        return as_floats(images)


@contextlib.contextmanager
def _portable(model: keras.Model) -> Iterator[None]:
    """Trace recurrent layers as plain loops inside the block: else readers of the graph may choose a GPU kernel."""
    chosen = {x: x._could_use_gpu_kernel for x in model._flatten_layers() if hasattr(x, "_could_use_gpu_kernel")}
    try:
        for layer in chosen:
            layer._could_use_gpu_kernel = False
        yield
    finally:
        for layer, choice in chosen.items():
            layer._could_use_gpu_kernel = choice


def make_signatures(module: tf.Module, shape: tuple[int, ...], features: Sequence[Feature] = ()) -> dict[str, Any]:
    """Return the serving signatures of a module of `make_functions`, for examples of this shape and these features."""
    signatures = {}
    if rows := rows_of_tables.inputs_of(features, shape):
        numbers = [tf.TensorSpec([], NUMBERS[number], number) for number in INPUTS["predict"]]
        function = getattr(module, rows_of_tables.NAME)
        signatures[rows_of_tables.NAME] = function.get_concrete_function(rows, *numbers)
    for name in INPUTS:
        numbers = [tf.TensorSpec([], NUMBERS[number], number) for number in INPUTS[name]]
        function = getattr(module, name)
        for suffix, dtype in image_types(shape).items():
            images = tf.TensorSpec([None, *shape], dtype, "images")
            signatures[f"{name}{suffix}"] = function.get_concrete_function(images, *numbers)
        # No signatures, but the types of NumPy's arrays: without them a loaded function refuses these arrays.
        unnamed = [tf.TensorSpec([], spec.dtype) for spec in numbers]
        for dtype in (tf.float64, tf.int32, tf.int64):
            function.get_concrete_function(tf.TensorSpec([None, *shape], dtype), *unnamed)
    return signatures


Outputs = dict[str, tf.Tensor]

_OF_CLASSES = {"probabilities": 2, "mean": 2, "entropy": 1, "aleatoric": 1, "epistemic": 1, "label": 1}
_OF_NUMBERS = dict.fromkeys(("mean", "stddev", "aleatoric", "epistemic", "low", "high"), 1)
# What each function gives: each output with its rank.
CLASS_OUTPUTS: dict[str, dict[str, int]] = dict.fromkeys(("predict", "abstain"), _OF_CLASSES)
CLASS_OUTPUTS |= {"mean": {"probabilities": 2, "entropy": 1, "label": 1}, "sample": {"probabilities": 3}}
_SERVED = {name: rank for name, rank in _OF_CLASSES.items() if name != "mean"} | {"set": 2, "abstain": 1}
CLASS_OUTPUTS |= dict.fromkeys(SERVED, _SERVED)
NUMBER_OUTPUTS: dict[str, dict[str, int]] = dict.fromkeys(("predict", "abstain"), _OF_NUMBERS)
NUMBER_OUTPUTS |= {"mean": {"mean": 1, "stddev": 1}, "sample": {"mean": 2, "stddev": 2}}
NUMBER_OUTPUTS |= {name: {**_OF_NUMBERS, "abstain": 1} for name in SERVED}


class OutputHead(NamedTuple):
    """The mapping from a model's outputs to predictions; numbers are standardised, and then in units of the target."""

    outputs: Mapping[str, Mapping[str, int]]  # Of each function.
    of_sample: Callable[[tf.Tensor], tf.Tensor]  # The model's outputs [B, K] -> what one weight sample says [B, L].
    summary: Callable[[tf.Tensor], Outputs]  # Samples [S, B, L] -> the outputs of predict.
    at_mean: Callable[[tf.Tensor], Outputs]  # [B, L] -> those of mean.
    sampled: Callable[[tf.Tensor], Outputs]  # Samples [S, B, L] -> those of sample.
    limited: Callable[[Outputs, tf.Tensor], Outputs]  # (Outputs of predict, a limit) -> those of abstain.
    sample_in_units: Callable[[tf.Tensor], tf.Tensor]  # [B, L] of one weight sample -> the same in units.
    in_units: Callable[[Outputs, tf.DType], Outputs]  # (Outputs, type of the examples) -> the same in units.


def head(target: Sequence[Any] | None, unusual: bool = False) -> OutputHead:
    """Return the head of a regression model with target (name, mean, standard deviation), or of a classifier for None.

    `unusual` is for a model that also scores unusual examples.
    """
    plain = _classes() if target is None else _numbers(*target[1:])
    if not unusual:
        return plain
    scored = {name: {**outputs, "unusual": 1} for name, outputs in plain.outputs.items() if name != "sample"}
    return plain._replace(outputs={**plain.outputs, **scored})


def _classes() -> OutputHead:
    def summary(samples: tf.Tensor) -> Outputs:
        mean, entropy, aleatoric, epistemic = summarise(samples)
        values = {"entropy": entropy, "aleatoric": aleatoric, "epistemic": epistemic}
        return {"probabilities": mean, "mean": mean, **values, "label": _label(mean)}

    def at_mean(probabilities: tf.Tensor) -> Outputs:
        found = summarise(probabilities[tf.newaxis])
        return {"probabilities": found.mean, "entropy": found.entropy, "label": _label(found.mean)}

    def limited(outputs: Outputs, limit: tf.Tensor) -> Outputs:
        # What is not a number is not below the limit.
        return {**outputs, "label": tf.where(outputs["entropy"] <= limit, outputs["label"], -1)}

    sampled, same = (lambda samples: {"probabilities": samples}), (lambda outputs, *_: outputs)
    return OutputHead(CLASS_OUTPUTS, tf.nn.softmax, summary, at_mean, sampled, limited, same, same)


def _label(probabilities: tf.Tensor) -> tf.Tensor:
    return tf.argmax(probabilities, -1, tf.int32)


def _numbers(shift: float, scale: float) -> OutputHead:
    def of_sample(outputs: tf.Tensor) -> tf.Tensor:
        mean, variance = gaussians(outputs)
        return tf.stack([mean, tf.sqrt(variance)], -1)

    def summary(samples: tf.Tensor) -> Outputs:
        means, variances = samples[..., 0], tf.square(samples[..., 1])
        mean, aleatoric, epistemic = summarise_gaussians(means, variances)
        low, high = central_interval(means, variances)
        parts = {"aleatoric": aleatoric, "epistemic": epistemic, "low": low, "high": high}
        return {"mean": mean, "stddev": tf.sqrt(aleatoric + epistemic), **parts}

    def limited(outputs: Outputs, limit: tf.Tensor) -> Outputs:
        answered = outputs["stddev"] <= tf.cast(limit, outputs["stddev"].dtype)
        return {**outputs, "mean": tf.where(answered, outputs["mean"], float("nan"))}

    def sample_in_units(sample: tf.Tensor) -> tf.Tensor:
        return tf.stack([shift + scale * sample[..., 0], scale * sample[..., 1]], -1)

    def in_units(outputs: Outputs, dtype: tf.DType) -> Outputs:
        factors = dict.fromkeys(("aleatoric", "epistemic"), (0.0, scale**2))
        factors |= {"stddev": (0.0, scale), **dict.fromkeys(("mean", "low", "high"), (shift, scale))}
        dtype = tf.float64 if dtype == tf.float64 else tf.float32
        found = {name: (tf.cast(outputs[name], dtype), *x) for name, x in factors.items() if name in outputs}
        return {**outputs, **{name: start + factor * x for name, (x, start, factor) in found.items()}}

    both = lambda samples: {"mean": samples[..., 0], "stddev": samples[..., 1]}
    return OutputHead(NUMBER_OUTPUTS, of_sample, summary, both, both, limited, sample_in_units, in_units)
