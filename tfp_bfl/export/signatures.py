"""What a SavedModel of this library can be asked, and the functions that answer."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_bfl.evaluation import draw_probabilities, is_stochastic, sample_seeds, summarise
from tfp_bfl.layers import sampling

NUM_SAMPLES = 20
# By which resizing may leave the range of pixels.
_ROUNDING = 0.01

# What each function takes beside images, and what it gives: each output with its rank.
NUMBERS = {"num_samples": tf.int32, "seed": tf.int32, "max_uncertainty": tf.float32}
INPUTS = {
    "mean": (),
    "sample": ("num_samples", "seed"),
    "predict": ("num_samples", "seed"),
    "abstain": ("num_samples", "seed", "max_uncertainty"),
}
_UNCERTAIN = {"probabilities": 2, "mean": 2, "entropy": 1, "aleatoric": 1, "epistemic": 1, "label": 1}
OUTPUTS = {
    "mean": {"probabilities": 2, "entropy": 1, "label": 1},
    "sample": {"probabilities": 3},
    "predict": _UNCERTAIN,
    "abstain": _UNCERTAIN,
}
# A signature takes one type of images: each function has one of its own name for floats, and one for bytes.
IMAGES = {"": tf.float32, "_uint8": tf.uint8}
SIGNATURES = {f"{name}{suffix}": (name, dtype) for name in INPUTS for suffix, dtype in IMAGES.items()}


def image_types(shape: Sequence[int]) -> dict[str, tf.DType]:
    """`IMAGES` for examples of this shape: bytes are pixels, and tables have none."""
    return {suffix: dtype for suffix, dtype in IMAGES.items() if dtype != tf.uint8 or len(shape) == 3}


def output_type(name: str) -> tf.DType:
    """The type of an output."""
    return tf.int32 if name == "label" else tf.float32


def make_functions(model: tf.keras.Model, columns: Sequence[Sequence[Any]] = ()) -> tf.Module:
    """A module with the functions of `INPUTS`, which takes NumPy's images as they are, and with `draw`.

    `draw(images, seed)` is one weight sample's p(y | x, w): float32 [B, ...] and int32 [2] -> [B, C]. The module holds
    the model's variables, not its layers: whoever loads it needs neither this package nor TFP.

    Args:
      model: that gives logits.
      columns: (name, mean, standard deviation) of each, where the model was trained on a table less the former and over
        the latter: its functions then take the table as it is.
    """
    shape = model.input_shape[1:]
    stochastic = is_stochastic(model)
    scaled = tf.TensorSpec([None, *shape], tf.float32, "images")

    # Not tensors, which a SavedModel would hold as objects of their own.
    means, stddevs = (np.array([column[i] for column in columns], np.float32) for i in (1, 2))
    standardised = (lambda rows: (rows - means) / stddevs) if columns else (lambda images: images)

    # What costs is traced here, once, for floats; what follows calls it. To save a function is to trace it again.
    def traced(*inputs: tf.TensorSpec) -> Callable[[Callable[..., Any]], Any]:
        return lambda f: tf.function(f, input_signature=[scaled, *inputs], autograph=False).get_concrete_function()

    pair = tf.TensorSpec([2], tf.int32, "seed")
    number = {name: tf.TensorSpec([], dtype, name) for name, dtype in NUMBERS.items()}

    @functools.partial(tf.function, input_signature=[scaled, pair], autograph=False)
    def draw(images: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        return draw_probabilities(model, standardised(images), seed)

    at_sample = draw.get_concrete_function()

    @traced()
    def at_mean(images: tf.Tensor) -> dict[str, tf.Tensor]:
        with sampling("mean"):
            summary = summarise(tf.nn.softmax(model(standardised(images), training=False))[tf.newaxis])
        return {"probabilities": summary.mean, "entropy": summary.entropy, "label": _label(summary.mean)}

    @traced(number["num_samples"], number["seed"])
    def drawn(images: tf.Tensor, num_samples: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """[S, B, C]; a model without anything random has one sample."""
        with tf.control_dependencies([tf.debugging.assert_positive(num_samples, "num_samples must be at least 1.")]):
            seeds = sample_seeds(seed, num_samples if stochastic else 1)
        return tf.map_fn(lambda seed: at_sample(images, seed), seeds, fn_output_signature=tf.float32)

    @traced(number["num_samples"], number["seed"])
    def summarised(images: tf.Tensor, num_samples: tf.Tensor, seed: tf.Tensor) -> dict[str, tf.Tensor]:
        return summary_outputs(drawn(images, num_samples, seed))

    def mean(images: tf.Tensor) -> dict[str, tf.Tensor]:
        return at_mean(_scaled(images))

    def sample(images: tf.Tensor, num_samples: Any = NUM_SAMPLES, seed: Any = 0) -> dict[str, tf.Tensor]:
        samples = drawn(_scaled(images), num_samples, seed)
        return {"probabilities": samples if stochastic else tf.repeat(samples, num_samples, 0)}

    def predict(images: tf.Tensor, num_samples: Any = NUM_SAMPLES, seed: Any = 0) -> dict[str, tf.Tensor]:
        return summarised(_scaled(images), num_samples, seed)

    def abstain(
        images: tf.Tensor, num_samples: tf.Tensor, seed: tf.Tensor, max_uncertainty: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        outputs = summarised(_scaled(images), num_samples, seed)
        # What is not a number is not below the limit.
        return {**outputs, "label": tf.where(outputs["entropy"] <= max_uncertainty, outputs["label"], -1)}

    module = tf.Module()
    module.weights = list(model.variables)
    module.draw = draw
    for function in (mean, sample, predict, abstain):
        setattr(module, function.__name__, tf.function(function, autograph=False))
    return module


def summary_outputs(samples: tf.Tensor) -> dict[str, tf.Tensor]:
    """What `predict` gives for samples [S, B, C]."""
    mean, entropy, aleatoric, epistemic = summarise(samples)
    values = {"entropy": entropy, "aleatoric": aleatoric, "epistemic": epistemic}
    return {"probabilities": mean, "mean": mean, **values, "label": _label(mean)}


def _scaled(images: tf.Tensor) -> tf.Tensor:
    """Examples as the model takes them; pixels that are neither bytes nor shares of 1 are refused."""
    if not images.dtype.is_floating or images.shape.rank != 4:
        return tf.image.convert_image_dtype(images, tf.float32)
    # What is not a number may be there: its answer is not a number either.
    inside = tf.reduce_all((tf.abs(images - 0.5) <= 0.5 + _ROUNDING) | tf.not_equal(images, images))
    message = "images are floats outside 0 to 1, but must be uint8, or floats in [0, 1]: divide pixels by 255."
    with tf.control_dependencies([tf.debugging.Assert(inside, [message])]):
        return tf.image.convert_image_dtype(images, tf.float32)


def _label(probabilities: tf.Tensor) -> tf.Tensor:
    return tf.argmax(probabilities, -1, tf.int32)


def make_signatures(module: tf.Module, shape: tuple[int, ...]) -> dict[str, Any]:
    """The serving signatures of a module of `make_functions`, for examples of this shape."""
    signatures = {}
    for name in INPUTS:
        numbers = [tf.TensorSpec([], NUMBERS[number], number) for number in INPUTS[name]]
        function = getattr(module, name)
        for suffix, dtype in image_types(shape).items():
            images = tf.TensorSpec([None, *shape], dtype, "images")
            signatures[f"{name}{suffix}"] = function.get_concrete_function(images, *numbers)
        # Not a signature, but what NumPy makes of images: without it a loaded function refuses them.
        unnamed = [tf.TensorSpec([], spec.dtype) for spec in numbers]
        function.get_concrete_function(tf.TensorSpec([None, *shape], tf.float64), *unnamed)
    return signatures
