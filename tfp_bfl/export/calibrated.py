"""The function of a SavedModel that predicts as `tfp-bfl predict` does: by its calibration, and from inputs alone."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_bfl.evaluation import summarise
from tfp_bfl.evaluation.conformal import score_of
from tfp_bfl.export import rows as rows_of_tables
from tfp_bfl.export.info import Info, calibration_of, columns_of, features_of, target_of
from tfp_bfl.export.signatures import NUM_SAMPLES, SERVE, SERVING_DEFAULT, Outputs, image_types, valid_floats


def settings_of(info: Info) -> dict[str, np.int32 | np.float32]:
    """Return the values of the optional inputs of `serve`, by name in their order: those of the calibration.

    Without one the probabilities have temperature 1, nothing is above the threshold, and a set is the label alone.
    """
    found = calibration_of(info)
    of = lambda name, other: other if found is None or getattr(found, name) is None else getattr(found, name)
    limits = {"max_uncertainty": of("limit", math.inf)}
    if target_of(info) is None:
        limits |= {"temperature": of("temperature", 1.0), "set_limit": of("set_limit", math.inf)}
    drawn = {"num_samples": np.int32(of("num_samples", NUM_SAMPLES)), "seed": np.int32(0)}
    return {**drawn, **{name: np.float32(value) for name, value in limits.items()}}


def answer_of(info: Info) -> Callable[..., Outputs]:
    """Return the function from the outputs of predict [B, ...] and the settings after the seed, each [1] or [B].

        probabilities = softmax(log p / temperature),   set = {c: score_c >= set_limit} and the label
        abstain: not uncertainty <= max_uncertainty;    uncertainty: entropy, epistemic, or stddev of a number

    The parts are those of `predict`, at temperature 1. It consists of operations that TensorFlow Lite has.
    """
    found = calibration_of(info)
    score, by = (score_of(found.set_score), found.by) if found else (score_of("probability"), "entropy")

    def of_number(outputs: Outputs, most: tf.Tensor) -> Outputs:
        stddev = outputs["stddev"]
        return {**outputs, "abstain": tf.logical_not(stddev <= tf.cast(most, stddev.dtype))}

    def of_classes(outputs: Outputs, most: tf.Tensor, temperature: tf.Tensor, set_limit: tf.Tensor) -> Outputs:
        kept = {name: x for name, x in outputs.items() if name != "mean"}
        check = tf.debugging.Assert(tf.reduce_all(temperature > 0), ["temperature must be above 0."])
        with tf.control_dependencies([check]):
            logits = tf.math.log(tf.maximum(outputs["probabilities"], np.finfo(np.float32).tiny))
        p = tf.nn.softmax(logits / temperature[:, tf.newaxis])
        kept |= {"probabilities": p, "entropy": summarise(p[tf.newaxis]).entropy}
        likeliest = tf.one_hot(outputs["label"], p.shape[-1]) > 0
        sets = tf.logical_or(score(p) >= set_limit[:, tf.newaxis], likeliest)
        # What is not a number is not below the limit.
        return {**kept, "set": sets, "abstain": tf.logical_not(kept[by] <= most)}

    return of_classes if target_of(info) is None else of_number


def serving(module: Any, info: Info) -> dict[str, Any]:
    """Give a module with the function `predict` the function `serve`; return the signatures of `signatures.SERVED`.

    `serve` accepts examples as `predict` does, and each setting as one value or one for each example. Its signature and
    `serving_default`, which has no settings, accept float32, bytes of pixels, or the columns of a table as they are.
    """
    values = settings_of(info)
    numbers = [tf.TensorSpec(None, value.dtype, name) for name, value in values.items()]
    signed = lambda f, *inputs: tf.function(f, input_signature=inputs, autograph=False)
    facts: Any = info.model
    shape, answer = [None, *facts["input_shape"]], answer_of(info)

    def run(examples: tf.Tensor, *given: tf.Tensor) -> Outputs:
        num_samples, seeds, *rest = settings = [tf.reshape(x, [-1]) for x in given]
        size = tf.shape(examples)[0]
        message = f"{', '.join(values)} must each be one value, or one for each example."
        fits = tf.stack([(tf.size(x) == 1) | (tf.size(x) == size) for x in settings])
        with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(fits), [message])]):
            examples = tf.identity(examples)
        specs = tf.TensorSpec(shape, examples.dtype), *[tf.TensorSpec([], tf.int32)] * 2
        dtypes = {x: y.dtype for x, y in module.predict.get_concrete_function(*specs).structured_outputs.items()}
        of_row = lambda row: {name: x[0] for name, x in module.predict(row[0][tf.newaxis], *row[1:]).items()}
        each = lambda: (examples, *(tf.broadcast_to(x, [size]) for x in (num_samples, seeds)))
        by_row = lambda: tf.map_fn(of_row, each(), fn_output_signature=dtypes)

        same = tf.reduce_all([tf.reduce_all(tf.equal(x, x[:1])) for x in (num_samples, seeds)])
        return answer(tf.cond(same, lambda: module.predict(examples, num_samples[0], seeds[0]), by_row), *rest)

    # What costs is traced once, for floats; only rows of a table have a use for float64.
    of_floats = signed(run, tf.TensorSpec(shape, tf.float32), *numbers).get_concrete_function()

    def of_examples(images: tf.Tensor, *given: tf.Tensor) -> Outputs:
        if images.dtype == tf.float64 and len(shape) < 4:
            return run(images, *given)
        return of_floats(images if images.dtype == tf.float32 else valid_floats(images), *given)

    module.serve = tf.function(_with_defaults(of_examples, values), autograph=False)
    unnamed = [tf.TensorSpec(None, x.dtype) for x in numbers]
    for dtype in (tf.float32, tf.uint8, tf.float64, tf.int32, tf.int64):  # The types of NumPy's arrays.
        module.serve.get_concrete_function(tf.TensorSpec(shape, dtype), *unnamed)
    inputs: dict[str, Any] = {x: tf.TensorSpec(shape, t, "images") for x, t in image_types(shape[1:]).items()}
    function = of_examples
    if rows := rows_of_tables.inputs_of(features := features_of(info), shape[1:]):
        encode, inputs = rows_of_tables.encoder(features, columns_of(info)), {"": rows}
        function = lambda columns, *given: of_floats(encode(columns), *given)
    signatures = {}
    for suffix, spec in inputs.items():
        signatures[f"{SERVE}{suffix}"] = signed(_with_defaults(function, values), spec, *numbers)
        # Constants of the graph: tensors from outside would be objects of their own in a SavedModel.
        signatures[f"{SERVING_DEFAULT}{suffix}"] = signed(
            lambda x: function(x, *map(tf.constant, values.values())), spec
        )
    return signatures


def _with_defaults(function: Callable[..., Outputs], defaults: Mapping[str, object]) -> Callable[..., Outputs]:
    """Return the function with the settings as named arguments: TensorFlow saves defaults that are tensors."""
    serve: Any = lambda images, *given: function(images, *given)
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    named = [inspect.Parameter(name, kind, default=tf.constant(value)) for name, value in defaults.items()]
    serve.__signature__ = inspect.Signature([inspect.Parameter("images", kind), *named])
    made: Callable[..., Outputs] = serve
    return made
