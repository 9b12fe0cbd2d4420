"""The outputs of a SavedModel: classes, or a number. Its four functions are the same for both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfp_bfl.evaluation import central_interval, gaussians, summarise, summarise_gaussians

Outputs = dict[str, tf.Tensor]

_OF_CLASSES = {"probabilities": 2, "mean": 2, "entropy": 1, "aleatoric": 1, "epistemic": 1, "label": 1}
_OF_NUMBERS = dict.fromkeys(("mean", "stddev", "aleatoric", "epistemic", "low", "high"), 1)
# What each function gives: each output with its rank.
CLASS_OUTPUTS: dict[str, dict[str, int]] = {
    "mean": {"probabilities": 2, "entropy": 1, "label": 1},
    "sample": {"probabilities": 3},
    "predict": _OF_CLASSES,
    "abstain": _OF_CLASSES,
}
NUMBER_OUTPUTS: dict[str, dict[str, int]] = {
    "mean": {"mean": 1, "stddev": 1},
    "sample": {"mean": 2, "stddev": 2},
    "predict": _OF_NUMBERS,
    "abstain": _OF_NUMBERS,
}


class OutputHead(NamedTuple):
    """The mapping from a model's outputs to predictions.

    Fields:
      outputs: of each function.
      of_sample: the model's outputs [B, K] -> what one weight sample says [B, L]; numbers are standardised.
      summary: samples [S, B, L] -> the outputs of predict.
      at_mean: [B, L] -> those of mean.
      sampled: samples [S, B, L] -> those of sample.
      limited: (outputs of predict, a limit) -> those of abstain.
      sample_in_units: [B, L] of one weight sample -> the same in the units of the target.
      in_units: (outputs of standardised numbers, type of the examples) -> outputs in the units of the target.
    """

    outputs: Mapping[str, Mapping[str, int]]
    of_sample: Callable[[tf.Tensor], tf.Tensor]
    summary: Callable[[tf.Tensor], Outputs]
    at_mean: Callable[[tf.Tensor], Outputs]
    sampled: Callable[[tf.Tensor], Outputs]
    limited: Callable[[Outputs, tf.Tensor], Outputs]
    sample_in_units: Callable[[tf.Tensor], tf.Tensor]
    in_units: Callable[[Outputs, tf.DType], Outputs]


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

    sampled = lambda samples: {"probabilities": samples}
    return OutputHead(
        CLASS_OUTPUTS,
        tf.nn.softmax,
        summary,
        at_mean,
        sampled,
        limited,
        lambda sample: sample,
        lambda outputs, _: outputs,
    )


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
