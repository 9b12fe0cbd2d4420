"""Out-of-distribution detection by an uncertainty, and a score of unusual examples from sums of clients."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from scipy import optimize, stats

from tfp_bfl import keras
from tfp_bfl.data import ClientData
from tfp_bfl.data.checks import checked_features
from tfp_bfl.errors import InvalidArgument, check_count, check_share
from tfp_bfl.evaluation.metrics import to_tensor
from tfp_bfl.layers import as_floats, sampling
from tfp_bfl.weights import weight_sampling

CAUGHT = 0.95


class OutOfDistribution(NamedTuple):
    """The separation of out-of-distribution examples from the model's test examples by a score.

    Fields:
      auroc, aupr: in [0, 1] and (0, 1]; a score that knows nothing has 1/2 and M / (N + M).
      fpr95: in [0, 1], the fraction of *in* at or above the score that 95 % of *out* reach; by chance 0.95.
    """

    auroc: float
    aupr: float
    fpr95: float


def out_of_distribution(scores_in: object, scores_out: object) -> OutOfDistribution:
    """Compute areas under the ROC and the precision-recall curve of a score that is to be large out of distribution.

        auroc = P(out > in) + P(out = in) / 2                over all N M pairs
        aupr  = sum_t (recall_t - recall_t-1) precision_t    over the distinct scores t, from the largest down
        precision_t = |{out >= t}| / |{in or out >= t}|,   recall_t = |{out >= t}| / M

    The positive class is *out*, scores [M] of examples from elsewhere; `scores_in` are [N], of examples like the
    training data. Any uncertainty serves as the score, such as the entropy, or the epistemic part alone. Examples of
    equal score count together. AUPR depends on the share of examples from elsewhere: compare it only where M / N is the
    same.

    Sources: Hendrycks & Gimpel 2017 (arXiv:1610.02136), section 2; computed by scikit-learn (its average precision,
    which does not interpolate).

    Example:
      >>> areas = bfl.evaluation.out_of_distribution(np.array([0.1, 0.2, 0.6]), np.array([0.5, 0.8]))
      >>> print(round(float(areas.auroc), 3))
      0.833
    """
    from sklearn.metrics import average_precision_score, roc_auc_score

    scores = [check_scores(scores_in, "scores_in"), check_scores(scores_out, "scores_out")]
    is_out = np.repeat([0, 1], [len(part) for part in scores])
    together = np.concatenate(scores)
    # The largest score that leaves 5 % of those from elsewhere below at most.
    limit = np.sort(scores[1])[int(np.floor((1 - CAUGHT) * len(scores[1]) + 1e-9))]
    auroc, aupr = roc_auc_score(is_out, together), average_precision_score(is_out, together, pos_label=1)
    return OutOfDistribution(float(auroc), float(aupr), float(np.mean(scores[0] >= limit)))


def auroc_interval(auroc: float, num_in: int, num_out: int, confidence: float = 0.95) -> tuple[float, float]:
    """Compute the ends of a confidence interval of an area under the ROC curve of N and M examples: the areas A with

        (auroc - A)^2 = z^2 A (1 - A) (1 + (n - 1) (1 - A) / (2 - A) + (n - 1) A / (1 + A)) / (N M),   n = (N + M) / 2

    so that an area of 1 of few examples has an interval too. Source: Newcombe 2006, method 5, from the variance of
    Hanley & McNeil 1982.

    Example:
      >>> print(np.round(bfl.evaluation.auroc_interval(0.9, 50, 50), 3))
      [0.816 0.946]
    """
    check_count(num_in, "num_in")
    check_count(num_out, "num_out")
    check_share(auroc, "auroc", zero=True, one=True)
    check_share(confidence, "confidence")
    more, z = (num_in + num_out) / 2 - 1, stats.norm.ppf((1 + confidence) / 2)

    def excess(area: float) -> float:
        inner = 1 + more * (1 - area) / (2 - area) + more * area / (1 + area)
        return float(np.square(auroc - area) - z**2 * area * (1 - area) * inner / (num_in * num_out))

    # The ends 0 and 1 solve the equation, too.
    low = optimize.brentq(excess, 0, min(auroc, 1 - 1e-9)) if auroc > 0 else 0.0
    high = optimize.brentq(excess, max(auroc, 1e-9), 1) if auroc < 1 else 1.0
    return float(low), float(high)


def check_scores(scores: object, name: str) -> np.ndarray:
    """Return scores [N], finite and at least one, as a float64 array."""
    tensor = to_tensor(scores, name)
    if not (tensor.dtype.is_floating or tensor.dtype.is_integer) or tensor.shape.rank != 1:
        raise InvalidArgument(f"{name} must be numbers of shape [N], not {tensor.dtype.name} {tensor.shape}.")
    values = tensor.numpy().astype(np.float64)
    if not values.size:
        raise InvalidArgument(f"{name} must have at least one score, but is empty.")
    if not np.all(np.isfinite(values)):
        raise InvalidArgument(f"{name} must be finite, but holds NaN or infinity.")
    return values


BATCH_SIZE = 256
# A SavedModel holds the covariance of so many features in 16 MB.
MOST_FEATURES = 2048
_TABLE = 2


class FeatureSums(NamedTuple):
    """Sums over a client's examples, merged by `merge_feature_sums`: counts of each class [C], C = 1 in regression;
    totals of the features below the last layer by class [C, F]; products sum_i f_i f_i^T [F, F]; ends of columns [D].
    """

    counts: np.ndarray
    totals: np.ndarray
    products: np.ndarray
    low: np.ndarray
    high: np.ndarray


class Unusual(NamedTuple):
    """A score that exceeds 1 for unusual examples.

    score = max(min_c ||(f - m_c) L|| / feature_limit,  max_j |x_j - center_j| / half_j / range_limit)

    Fields:
      means: m, of the features of each class [C, F].
      root: L, with L L^T the inverse of the covariance that the classes share [F, F].
      feature_limit: of the distance; infinite where it is not used.
      low, high: of the columns of a table in training [D]; of images [0].
      range_limit: of the range, 1 at its ends; infinite where it is not used.
      rate: probability that an example like the held-out examples is unusual, at most.
      number: of held-out examples.
    """

    means: np.ndarray
    root: np.ndarray
    feature_limit: float
    low: np.ndarray
    high: np.ndarray
    range_limit: float
    rate: float
    number: int


def penultimate(model: keras.Model) -> Callable[[tf.Tensor], tf.Tensor]:
    """Return the function from inputs to the features [B, F] that enter a model's last layer with weights.

    Features with further axes are averaged over these. Weights are those of the posterior's mean. The model is
    functional or sequential, and has at most 2,048 features.
    """
    sampled = weight_sampling(model)
    inner = model if sampled is None else sampled.model
    layers = [layer for layer in getattr(inner, "layers", []) if layer.weights]
    if not layers or not inner._is_graph_network or isinstance(layers[-1], keras.Model):
        raise InvalidArgument(f"The model {model.name!r} is no functional or sequential model: it has no last layer.")
    features = layers[-1].get_input_at(0)
    if not isinstance(features.shape[-1], int) or features.shape[-1] > MOST_FEATURES:
        shape = f"The last layer of {model.name!r} has inputs of shape {features.shape}"
        raise InvalidArgument(f"{shape}, but at most {MOST_FEATURES:,} features can be compared.")
    below = keras.Model(inner.inputs, features)
    axes = list(range(1, len(features.shape) - 1))

    def call(inputs: tf.Tensor) -> tf.Tensor:
        found = tf.cast(below(inputs, training=False), tf.float32)
        return tf.reduce_mean(found, axes) if axes else found

    return call


def feature_sums(features: np.ndarray, inputs: Any, labels: Any = None, num_classes: int = 1) -> FeatureSums:
    """Compute the sums of features [n, F] below the last layer and inputs [n, ...] of a client, C = 1 of no labels."""
    hot = np.eye(num_classes)[np.zeros(len(features), int) if labels is None else np.asarray(labels)]
    table = np.asarray(inputs, np.float64) if np.ndim(inputs) == _TABLE else np.zeros((len(features), 0))
    low, high = (f(table, 0, initial=x) for f, x in ((np.min, np.inf), (np.max, -np.inf)))
    return FeatureSums(hot.sum(0), hot.T @ features, features.T @ features, low, high)


def merge_feature_sums(a: FeatureSums, b: FeatureSums) -> FeatureSums:
    """Merge the sums of two clients, or of two groups of clients."""
    counts, totals, products = (x + y for x, y in zip(a[:3], b[:3]))
    return FeatureSums(counts, totals, products, np.minimum(a.low, b.low), np.maximum(a.high, b.high))


def fit_unusual(
    model: keras.Model, clients: ClientData, held_out: Any, *, false_alarms: float = 0.01, num_classes: int = 0
) -> Unusual:
    """Fit the score on sums of clients, and its threshold on held-out examples.

    The features below the last layer have a Gaussian for each class, with a shared covariance (OAS shrinkage). Columns
    of a table have the range of training. Each of these parts is calibrated at an equal part of `false_alarms`, at the
    k-th smallest of n held-out scores, k = ceil((n + 1) (1 - rate)), or the largest where that is above n: `rate` is at
    most 2 / (n + 1) where there are too few held-out examples for `false_alarms`.

    Args:
      held_out: features [n, ...] of examples on which nobody trained, drawn as the clients' examples.
      false_alarms: the probability of calling such an example unusual.
      num_classes: C; 0 for regression, where the model gives mean and log variance.

    Source: Lee et al. 2018 (arXiv:1807.03888) for the distance; Chen et al. 2010 (arXiv:0907.4698), eq. 23, for the
    shrinkage; Vovk et al. 2005 for the threshold.
    """
    held_out = held_out if np.ndim(held_out) == _TABLE else checked_features(held_out)
    number = len(held_out)
    check_share(false_alarms, "false_alarms")
    if not number:
        raise InvalidArgument("The threshold of unusual examples needs held-out examples, and there are none.")
    below = penultimate(model)

    @functools.partial(tf.function, autograph=False, reduce_retracing=True)
    def batch(inputs: tf.Tensor) -> tf.Tensor:
        with sampling("mean"):
            return below(as_floats(inputs))

    def features_of(examples: Any) -> np.ndarray:
        starts = range(0, len(examples), BATCH_SIZE)
        return np.concatenate([np.float64(batch(tf.constant(examples[i : i + BATCH_SIZE]))) for i in starts])

    def sums_of(k: int) -> FeatureSums:
        examples = clients.examples(k)
        labels = examples.labels if num_classes else None
        return feature_sums(features_of(examples.features), examples.features, labels, num_classes or 1)

    sums = (sums_of(k) for k in range(clients.num_clients) if clients.sizes[k])
    total = functools.reduce(merge_feature_sums, sums)
    means, root = _gaussians(total)
    unfitted = Unusual(means, root, 1.0, total.low, total.high, math.inf, 1.0, 0)
    parts = {"feature_limit": _distance(unfitted, tf.constant(features_of(held_out), tf.float32))}
    if total.low.size:
        parts["range_limit"] = _range(unfitted, tf.constant(held_out, tf.float32))
    return _with_thresholds(unfitted, {name: x.numpy() for name, x in parts.items()}, false_alarms)


def _with_thresholds(unusual: Unusual, parts: dict[str, np.ndarray], false_alarms: float) -> Unusual:
    """Return the score with thresholds from held-out values of its parts, limit -> [n], and their rate."""
    number = len(parts["feature_limit"])
    place = min(math.ceil((number + 1) * (1 - false_alarms / len(parts)) - 1e-9), number)
    limits: dict[str, Any] = {name: max(float(np.sort(x)[place - 1]), 1e-6) for name, x in parts.items()}
    return unusual._replace(**limits, number=number, rate=min(len(parts) * (number + 1 - place) / (number + 1), 1.0))


def unusual_score(unusual: Unusual, features: tf.Tensor, inputs: tf.Tensor) -> tf.Tensor:
    """Compute the score [B] of features [B, F] below the last layer and inputs [B, ...]: above 1 is unusual."""
    score = _distance(unusual, features) / np.float32(unusual.feature_limit)
    if not unusual.low.size:
        return score
    return tf.maximum(score, _range(unusual, inputs) / np.float32(unusual.range_limit))


def _distance(unusual: Unusual, features: tf.Tensor) -> tf.Tensor:
    """Compute the distance to the nearest class [B]: of each as a difference of products, without [B, C, F]."""
    root = np.float32(unusual.root)
    centers: np.ndarray = np.float32(unusual.means @ unusual.root)  # type: ignore[assignment]
    projected = tf.matmul(features, root)
    nearest = [tf.reduce_sum(tf.square(projected - centers[c]), 1) for c in range(len(centers))]
    return tf.sqrt(functools.reduce(tf.minimum, nearest))


def _range(unusual: Unusual, inputs: tf.Tensor) -> tf.Tensor:
    center = np.float32((unusual.low + unusual.high) / 2)
    half = (unusual.high - unusual.low) / 2
    # Of a column that is constant in training one other value says nothing: a level that is rare has such columns.
    scale = np.float32(np.where(half > 0, 1 / np.where(half > 0, half, 1), 0))
    return tf.reduce_max(tf.abs(inputs - center) * scale, 1)


def _gaussians(sums: FeatureSums) -> tuple[np.ndarray, np.ndarray]:
    """Return the means of the classes that have examples, and the root of the shared precision."""
    present = sums.counts > 0
    means = sums.totals[present] / sums.counts[present, np.newaxis]
    number, width = sums.counts.sum(), sums.totals.shape[1]
    within = (sums.products - (means.T * sums.counts[present]) @ means) / number
    size, square = np.trace(within) / width, np.mean(within**2)
    spread = (number + 1) * (square - size**2 / width)
    shrinkage = 1.0 if spread <= 0 else min((square + size**2) / spread, 1.0)
    covariance = (1 - shrinkage) * within + (shrinkage * size + 1e-9) * np.eye(width)
    values, vectors = np.linalg.eigh(covariance)
    return means, vectors / np.sqrt(np.maximum(values, 1e-9 * max(values.max(), 1e-30)))
