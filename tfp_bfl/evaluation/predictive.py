"""The predictive distribution of a model with a posterior, from weight samples, and what it scores on a test set."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_bfl import keras
from tfp_bfl.data.checks import checked_features
from tfp_bfl.errors import InvalidArgument, check_counts, lookup
from tfp_bfl.evaluation.calibration import expected_calibration_error, maximum_calibration_error
from tfp_bfl.evaluation.classification import auroc
from tfp_bfl.evaluation.decomposition import decompose_entropy, summarise
from tfp_bfl.evaluation.memory import check_num_samples
from tfp_bfl.evaluation.metrics import (
    accuracy,
    brier_score,
    macro_precision,
    macro_recall,
    negative_log_likelihood,
)
from tfp_bfl.layers import MCDropout, as_floats, sampling
from tfp_bfl.models import check_keras_2, in_bfloat16
from tfp_bfl.weights import MemberSampling, WeightSampling, num_members, weight_sampling

PRECISIONS = {
    "float32": "the model as it was built",
    "bfloat16": "its layers in bfloat16, for processors with it; logits, softmax and all scores in float32",
}


class Evaluation(NamedTuple):
    """A model's predictions and scores for N examples.

    Fields:
      metrics: accuracy, test_nll (nats), ece, mce, brier, macro_recall, macro_precision, auroc (left out if all labels
        are of one class); means over the examples of entropy and mutual_information (divided by log C), and of the
        traces of the aleatoric and epistemic covariances.
      probabilities: [N, C], the predictive distribution.
      entropy, aleatoric, epistemic, mutual_information: [N].
    """

    metrics: dict[str, float]
    probabilities: np.ndarray
    entropy: np.ndarray
    aleatoric: np.ndarray
    epistemic: np.ndarray
    mutual_information: np.ndarray


def is_stochastic(model: keras.Model) -> bool:
    """Return whether two weight samples of the model can differ: it has variational weights, Monte Carlo
    dropout, or a posterior beside it (`weights.predictive_model`).
    """
    layers = list(model._flatten_layers())
    samples = lambda layer: (
        isinstance(layer, (WeightSampling, MemberSampling)) or getattr(layer, "variational_weights", [])
    )
    return any(layer.at_prediction if isinstance(layer, MCDropout) else samples(layer) for layer in layers)


def sample_seeds(seed: object, num_samples: object) -> tf.Tensor:
    """Return seeds [S, 2] of S weight samples; the second number, s, selects the member of an ensemble."""
    key = tf.stack([tf.cast(seed, tf.int32), 0])
    # Folding s into a key draws the first number from the key alone, and puts s beside it.
    drawn = tf.random.experimental.stateless_fold_in(key, 0)[0]
    numbers = tf.range(num_samples)
    return tf.stack([drawn + 0 * numbers, numbers], axis=1)


def draw_probabilities(model: keras.Model, features: tf.Tensor, seed: object) -> tf.Tensor:
    """Return p(y | x, w) = softmax(model(x; w)) for one weight sample w ~ q: [B, C].

    The sample is of the whole batch, so that a Flipout layer needs one convolution for it, not two. Each example's
    prediction is distributed as with a sample of its own; those of one batch are of one and the same model.

    Args:
      model: returns logits.
      features: [B, ...], float32.
      seed: [2].
    """
    return tf.nn.softmax(draw_outputs(model, features, seed))


def draw_outputs(model: keras.Model, features: tf.Tensor, seed: object) -> tf.Tensor:
    """Return the model's outputs for one weight sample, as `draw_probabilities` draws it: [B, ...]."""
    with sampling("shared", seed):
        return model(features, training=False)


def linearised_probabilities(model: keras.Model, features: tf.Tensor, seed: object) -> tf.Tensor:
    """Compute `draw_probabilities` of the model linearised in its weights at the posterior's mean: [B, C].

    softmax(f(x; m) + J(x) (w - m)),   w ~ q   (`weights.WeightSampling.linearised`)

    Args:
      model, features, seed: as of `draw_probabilities`; a model of `weights.predictive_model` with a posterior over
        point weights.
    """
    layer: Any = weight_sampling(model)
    with sampling("shared", seed):
        return tf.nn.softmax(layer.linearised(features))


def sample_probabilities(model: keras.Model, features: tf.Tensor, seeds: tf.Tensor) -> tf.Tensor:
    """Return `draw_probabilities` for each seed, in one graph.

    Args:
      model: returns logits.
      features: [B, ...]; integers are scaled to [0, 1].
      seeds: [S, 2].

    Returns:
      [S, B, C].
    """
    return _samples(draw_probabilities, model, features, seeds)


def _samples(draw: Callable[..., tf.Tensor], model: keras.Model, features: tf.Tensor, seeds: tf.Tensor) -> tf.Tensor:
    features = as_floats(features)
    return tf.map_fn(lambda seed: draw(model, features, seed), seeds, fn_output_signature=tf.float32)


_TRACED = "_tfp_bfl_samples"


def _traced(draw: Callable[..., tf.Tensor], model: keras.Model) -> Any:
    """Return `_samples` of this model, traced once, for as long as there is the model."""
    cache = vars(model).setdefault(_TRACED, {})  # past Keras, which would track it
    if draw not in cache:
        cache[draw] = tf.function(functools.partial(_samples, draw, model), reduce_retracing=True)
    return cache[draw]


def predict(
    model: keras.Model,
    features: Any,
    num_samples: int = 20,
    seed: int = 0,
    batch_size: int = 500,
    precision: str = "float32",
    linearised: bool = False,
) -> np.ndarray:
    """Return sampled predictions p(y | x, w_s): [S, N, C]; the same S weight samples for all examples.

    Args:
      model: returns logits.
      features: [N, ...]; integers are scaled to [0, 1].
      num_samples: S.
      seed: the same seed gives the same samples.
      batch_size: examples at once.
      precision: in which the model computes, one of `PRECISIONS`; what bfloat16 gains and costs: docs/speed.md.
      linearised: predict by the model linearised in its weights at the posterior's mean (`linearised_probabilities`),
        for a posterior over point weights: Laplace's approximation of a whole network requires it.

    Raises:
      InvalidArgument: num_samples or batch_size below 1, more samples than memory holds, no such precision, no
        examples, or examples of another shape; linearised without a posterior over point weights.

    Example:
      >>> model = bfl.models.mlp("flipout", input_shape=(30,), num_classes=2, seed=0)
      >>> test = bfl.data.load("breast_cancer", split="test")
      >>> bfl.evaluation.predict(model, test.features, num_samples=5).shape
      (5, 113, 2)
    """
    draw = _drawing(model, linearised)
    if is_stochastic(model):
        check_num_samples(num_samples, len(features), model.output_shape[-1])
    parts = _batches(draw, model, features, num_samples, seed, batch_size, precision)
    samples = np.concatenate(list(parts), axis=1)
    return np.broadcast_to(samples, (num_samples, *samples.shape[1:]))


def evaluate(
    model: keras.Model,
    features: object,
    labels: object,
    num_samples: int = 20,
    seed: int = 0,
    batch_size: int = 500,
    precision: str = "float32",
    linearised: bool = False,
) -> Evaluation:
    """Score a model's predictive distribution, the mean of S sampled predictions, on N labelled examples.

    Args:
      labels: [N], integers in [0, C).
      others: as `predict`.

    Raises:
      InvalidArgument: as `predict`, or labels that do not fit.

    Example:
      >>> model = bfl.models.mlp("flipout", input_shape=(30,), num_classes=2, seed=0)
      >>> test = bfl.data.load("breast_cancer", split="test")
      >>> scores = bfl.evaluation.evaluate(model, test.features, test.labels, num_samples=5)
      >>> sorted(scores.metrics)[:4]
      ['accuracy', 'aleatoric', 'auroc', 'brier']
      >>> scores.epistemic.shape
      (113,)
    """
    parts = []
    draw = _drawing(model, linearised)
    for probabilities in _batches(draw, model, features, num_samples, seed, batch_size, precision):
        parts.append((*summarise(probabilities), decompose_entropy(probabilities).mutual_information))
    mean, entropy, aleatoric, epistemic, information = (np.concatenate(part) for part in zip(*parts))
    area = auroc(mean, labels)
    metrics = {
        "accuracy": accuracy(mean, labels),
        "test_nll": negative_log_likelihood(mean, labels),
        "ece": expected_calibration_error(mean, labels),
        "mce": maximum_calibration_error(mean, labels),
        "brier": brier_score(mean, labels),
        "macro_recall": macro_recall(mean, labels),
        "macro_precision": macro_precision(mean, labels),
        **({} if area is None else {"auroc": area}),
        "entropy": entropy.mean(),
        "aleatoric": aleatoric.mean(),
        "epistemic": epistemic.mean(),
        "mutual_information": information.mean(),
    }
    return Evaluation({k: float(v) for k, v in metrics.items()}, mean, entropy, aleatoric, epistemic, information)


def evaluator(features: Any, labels: Any, **options: Any) -> Callable[[keras.Model], dict[str, float]]:
    """Return the metrics of `evaluate` as a function of the model alone, as `tfp_bfl.simulate` takes it."""
    return lambda model: evaluate(model, features, labels, **options).metrics


def _drawing(model: keras.Model, linearised: bool) -> Callable[..., tf.Tensor]:
    check_keras_2(model)
    if not isinstance(model, keras.Model):
        raise InvalidArgument(f"model comes before the features: a Keras model, and here is a {type(model).__name__}.")
    if linearised and weight_sampling(model) is None:
        raise InvalidArgument(
            "Linearised predictions require a posterior over point weights, such as algorithms.laplace finds, and the "
            "model has none: leave linearised out."
        )
    return linearised_probabilities if linearised else draw_probabilities


def sampled_outputs(
    model: keras.Model, features: object, num_samples: int, seed: int, batch_size: int, precision: str
) -> Iterator[np.ndarray]:
    """Return outputs [S, B, ...] of each batch in turn, by the samples of `evaluate`; S is 1 without
    anything random.
    """
    return _batches(draw_outputs, model, features, num_samples, seed, batch_size, precision)


def _batches(
    draw: Callable[..., tf.Tensor],
    model: keras.Model,
    features: Any,
    num_samples: int,
    seed: int,
    batch_size: int,
    precision: str,
) -> Iterator[np.ndarray]:
    check_counts(num_samples=num_samples, batch_size=batch_size)
    lookup(PRECISIONS, precision, "precision of prediction")
    if not len(features):
        raise InvalidArgument("There are no examples to predict: features is empty.")
    wanted, given = list(model.input_shape[1:]), list(np.shape(features)[1:])
    if wanted != given:
        raise InvalidArgument(f"The model takes examples of shape {wanted}, but these have shape {given}.")
    if len(given) != 2:  # Bytes [height, width] are no image without a channel, which the model does not take.
        features = checked_features(features)
    if is_stochastic(model):
        check_num_samples(num_samples, min(batch_size, len(features)), model.output_shape[-1])
    members = num_members(model)
    if num_samples < members:
        raise InvalidArgument(
            f"num_samples is {num_samples}, but the ensemble has {members} members: ask for a sample of each at least."
        )
    seeds = sample_seeds(seed, num_samples if is_stochastic(model) else 1)
    traced = _traced(draw, in_bfloat16(model) if precision == "bfloat16" else model)
    for start in range(0, len(features), batch_size):
        yield traced(tf.convert_to_tensor(features[start : start + batch_size]), seeds).numpy()
