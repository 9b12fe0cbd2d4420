"""The predictive distribution of a model with a posterior, from weight samples, and what it scores on a test set."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import psutil
import tensorflow as tf

from tfp_bfl import keras
from tfp_bfl.data.checks import checked_features
from tfp_bfl.errors import InvalidArgument, check_count, check_counts, lookup
from tfp_bfl.evaluation.classification import auroc, expected_calibration_error, maximum_calibration_error
from tfp_bfl.evaluation.decomposition import decompose_entropy, summarise
from tfp_bfl.evaluation.metrics import accuracy, brier_score, macro_precision, macro_recall, negative_log_likelihood
from tfp_bfl.layers import MCDropout, as_floats, sampling
from tfp_bfl.models import in_bfloat16
from tfp_bfl.weights import MemberSampling, WeightSampling, layout, num_members, weight_sampling
from tfp_bfl.weights.model_weights import check_keras_2

PRECISIONS = {
    "float32": "the model as it was built",
    "bfloat16": "its layers in bfloat16, for processors with it; logits, softmax and all scores in float32",
}

_SCORES: dict[str, Callable[[Any, Any], Any]] = {
    **{"accuracy": accuracy, "test_nll": negative_log_likelihood, "ece": expected_calibration_error},
    **{"mce": maximum_calibration_error, "brier": brier_score, "macro_recall": macro_recall},
    **{"macro_precision": macro_precision, "auroc": auroc},
}
# Of a sample's probabilities: float32, held twice for a moment.
_BYTES = 8
_SHARE = 0.5


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
    """Return whether weight samples differ: variational weights, Monte Carlo dropout or a posterior beside it.

    Example:
      >>> kinds = ("deterministic", "mc_dropout", "flipout")
      >>> [bfl.evaluation.is_stochastic(bfl.models.mlp(x, input_shape=(4,), num_classes=2)) for x in kinds]
      [False, True, True]
    """
    layers = list(model._flatten_layers())
    samples = lambda layer: (
        isinstance(layer, (WeightSampling, MemberSampling)) or getattr(layer, "variational_weights", [])
    )
    drops = lambda layer: layer.at_prediction and layer.trainable
    return any(drops(layer) if isinstance(layer, MCDropout) else samples(layer) for layer in layers)


def sample_seeds(seed: object, num_samples: object) -> tf.Tensor:
    """Return seeds [S, 2] of S weight samples; the second number, s, selects the member of an ensemble."""
    key = tf.stack([tf.cast(seed, tf.int32), 0])
    # Folding s into a key draws the first number from the key alone, and puts s beside it.
    drawn = tf.random.experimental.stateless_fold_in(key, 0)[0]
    numbers = tf.range(num_samples)
    return tf.stack([drawn + 0 * numbers, numbers], axis=1)


def draw_probabilities(model: keras.Model, features: tf.Tensor, seed: object) -> tf.Tensor:
    """Draw p(y | x, w) = softmax(model(x; w)) for one weight sample w ~ q: [B, C].

    The sample is of the whole batch, so that a Flipout layer needs one convolution for it, not two. Each example's
    prediction is distributed as with a sample of its own; those of one batch are of one and the same model.
    """
    return tf.nn.softmax(draw_outputs(model, features, seed))


def draw_outputs(model: keras.Model, features: tf.Tensor, seed: object) -> tf.Tensor:
    """Return the model's outputs for one weight sample, as `draw_probabilities` draws it: [B, ...]."""
    with sampling("shared", seed):
        return model(features, training=False)


def linearised_probabilities(model: keras.Model, features: tf.Tensor, seed: object) -> tf.Tensor:
    """Draw softmax(f(x; m) + J(x) (w - m)), w ~ q, of the model linearised at its posterior's mean
    (`weights.WeightSampling.linearised`).
    """
    layer: Any = weight_sampling(model)
    with sampling("shared", seed):
        return tf.nn.softmax(layer.linearised(features))


def sample_probabilities(model: keras.Model, features: tf.Tensor, seeds: tf.Tensor) -> tf.Tensor:
    """Draw `draw_probabilities` for each seed [S, 2] in one graph: [S, B, C]; integer features are scaled to [0, 1]."""
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
    """Draw predictions p(y | x, w_s): [S, N, C]; the same S weight samples for all examples.

    Args:
      model, features: the model returns logits; integer features [N, ...] are scaled to [0, 1].
      num_samples, seed: S; the same seed gives the same samples.
      batch_size: examples at once.
      precision: in which the model computes, one of `PRECISIONS`; what bfloat16 gains and costs: docs/speed.md.
      linearised: predict by the model linearised in its weights at the posterior's mean, for a posterior over point
        weights: Laplace's approximation of a whole network requires it.

    Example:
      >>> model = bfl.models.mlp("flipout", input_shape=(30,), num_classes=2, seed=0)
      >>> test = bfl.data.load("breast_cancer", split="test")
      >>> bfl.evaluation.predict(model, test.features, num_samples=5).shape
      (5, 113, 2)
    """
    draw = _drawing(model, linearised)
    if is_stochastic(model):
        check_num_samples(num_samples, len(features), model.output_shape[-1])
    parts = sampled_batches(draw, model, features, num_samples, seed, batch_size, precision)
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
    """Score a model's predictive distribution, the mean of S sampled predictions (`predict`), on N labelled examples.

    Example:
      >>> model = bfl.models.mlp("flipout", input_shape=(30,), num_classes=2, seed=0)
      >>> test = bfl.data.load("breast_cancer", split="test")
      >>> scores = bfl.evaluation.evaluate(model, test.features, test.labels, num_samples=5)
      >>> sorted(scores.metrics)[:4], scores.epistemic.shape
      (['accuracy', 'aleatoric', 'auroc', 'brier'], (113,))
    """
    parts = []
    draw = _drawing(model, linearised)
    for probabilities in sampled_batches(draw, model, features, num_samples, seed, batch_size, precision):
        parts.append((*summarise(probabilities), decompose_entropy(probabilities).mutual_information))
    mean, entropy, aleatoric, epistemic, information = (np.concatenate(part) for part in zip(*parts))
    metrics = {name: score(mean, labels) for name, score in _SCORES.items()}
    parts_of = {"entropy": entropy, "aleatoric": aleatoric, "epistemic": epistemic, "mutual_information": information}
    metrics |= {name: part.mean() for name, part in parts_of.items()}
    numbers = {name: float(x) for name, x in metrics.items() if x is not None}
    return Evaluation(numbers, mean, entropy, aleatoric, epistemic, information)


def evaluator(features: Any, labels: Any, **options: Any) -> Callable[[keras.Model], dict[str, float]]:
    """Return the metrics of `evaluate` as a function of the model alone, as `tfp_bfl.simulate` takes it."""
    return lambda model: evaluate(model, features, labels, **options).metrics


def _drawing(model: keras.Model, linearised: bool) -> Callable[..., tf.Tensor]:
    check_keras_2(model)
    if not isinstance(model, keras.Model):
        raise InvalidArgument(f"model comes before the features: a Keras model, and here is a {type(model).__name__}.")
    if linearised and weight_sampling(model) is None:
        posterior = "a posterior over point weights, such as algorithms.laplace finds"
        raise InvalidArgument(f"Linearised predictions require {posterior}, and the model has none.")
    return linearised_probabilities if linearised else draw_probabilities


def sampled_batches(
    draw: Callable[..., tf.Tensor],
    model: keras.Model,
    features: Any,
    num_samples: int,
    seed: int,
    batch_size: int,
    precision: str,
) -> Iterator[np.ndarray]:
    """Yield `draw` of each batch by S weight samples, [S, B, ...]; S is 1 without anything random."""
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
        raise InvalidArgument(f"num_samples is {num_samples}, but the ensemble has {members} members: give that many.")
    seeds = sample_seeds(seed, num_samples if is_stochastic(model) else 1)
    traced = _traced(draw, in_bfloat16(model) if precision == "bfloat16" else model)
    for start in range(0, len(features), batch_size):
        yield traced(tf.convert_to_tensor(features[start : start + batch_size]), seeds).numpy()


def check_num_samples(num_samples: int, num_examples: int, num_classes: int) -> None:
    """Check that S samples of N examples' C probabilities take no more than half of the free memory."""
    check_count(num_samples, "num_samples")
    of_one = _BYTES * max(1, num_examples * num_classes)
    most = max(1, int(_SHARE * psutil.virtual_memory().available / of_one))
    if num_samples > most:
        take = f"predictions of {num_examples} examples at once take {num_samples * of_one / 2**30:,.0f} GiB"
        raise InvalidArgument(f"num_samples is {num_samples}; {take}: take at most {most} here.")


def evaluate_permuted(
    model: keras.Model, features: Any, labels: Any, permutation_seed: int = 0, **options: Any
) -> dict[str, float]:
    """Return the metrics of `evaluate` with the standard deviations of each layer's weights permuted among themselves.

    Means, and how wide each layer's posterior is, stay as they are; so does the model. Where the scores stay too, which
    weight has which standard deviation says nothing; posterior standard deviations that the data have determined lose
    by it.
    """
    with permuted_stddevs(model, permutation_seed):
        return evaluate(model, features, labels, **options).metrics


@contextlib.contextmanager
def permuted_stddevs(model: keras.Model, seed: int = 0) -> Iterator[None]:
    """Permute the standard deviations of each variational weight tensor of the model inside the block."""
    weights = layout(model).variational
    if not weights:
        raise InvalidArgument(f"The model {model.name!r} has no variational weights: there is nothing to permute.")
    before = [tf.identity(w.scale) for w in weights]
    try:
        for number, w in enumerate(weights):
            values = tf.convert_to_tensor(w.log_stddev)
            flat = tf.reshape(values, [-1])
            order = tf.random.experimental.stateless_shuffle(tf.range(tf.size(flat)), [seed, number])
            w.assign_log_stddev(tf.reshape(tf.gather(flat, order), values.shape))
        yield
    finally:
        for w, scale in zip(weights, before):
            w.scale.assign(scale)
