"""Rules that withstand adversarial clients: each makes another of a rule, over posteriors and over whole models.

A client's weights lie in coordinates where all of them can be compared: means, point weights and log standard
deviations; BatchNorm's moving means and variances in the same two.
"""

import functools
import math
import numbers
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_bfl import named
from tfp_bfl.contracts import STACK, WEIGHTS, AnyRule, ModelGatherRule, ModelRule, Pooled
from tfp_bfl.errors import InvalidArgument, check_number, shown
from tfp_bfl.named import WithArgument
from tfp_bfl.posterior import MeanField
from tfp_bfl.rules.gather import summarise_stack
from tfp_bfl.rules.rule import Clipped, each, with_metrics, without_noise_of_server
from tfp_bfl.rules.whole_model import whole_model
from tfp_bfl.weights import ModelWeights, by_part, change_norm, coordinates
from tfp_bfl.weights.change import AnyWeights, from_coordinates
from tfp_bfl.weights.kinds import Given


def clipped(rule: AnyRule[ModelWeights, Given], max_norm: float) -> ModelRule[ModelWeights, Given]:
    """Return `rule` over clients none of whom moves further than `max_norm` from the anchor.

    x_k <- x_0 + min(1, max_norm / ||x_k - x_0||) (x_k - x_0)

    in the coordinates of `change_norm`. Clients within the bound stay as they are, bit for bit. Clients' aggregation
    weights are not touched: they are those of what was sent. The number of clipped clients is the metric
    `clipped_clients`.

    The bound is on the whole: a client that spends all of it on one weight's standard deviation multiplies that
    weight's precision by up to exp(2 max_norm). `trimmed` and `median` bound every weight.

    Args:
      rule: of `tfp_bfl.rules`, or its name; of the whole model if it gives no more than the variational weights
        (`whole_model`).
      max_norm: such as the median `change_norm` of clients that are known to be honest.

    Source: Sun et al. 2019 (arXiv:1911.07963), norm thresholding; the log standard deviations are ours.
    """
    inner = _of_weights(rule)
    max_norm = check_number(max_norm, "max_norm")

    def summarise(local: ModelWeights, anchor: ModelWeights, weight: tf.Tensor) -> Clipped:
        start = coordinates(anchor)
        change = each(tf.subtract, coordinates(local), start)
        norm = change_norm(local, anchor)
        factor = max_norm / tf.maximum(norm, max_norm)
        moved = from_coordinates(each(lambda a, d: a + factor * d, start, change))
        local = each(lambda own, new: tf.where(norm <= max_norm, own, tf.cast(new, own.dtype)), local, moved)
        return Clipped(inner.summarise(local, anchor, weight), tf.cast(norm > max_norm, tf.int32))

    def merge(a: Clipped, b: Clipped) -> Clipped:
        return Clipped(inner.merge(a.sums, b.sums), a.clipped + b.clipped)

    def pool(total: Clipped, anchor: ModelWeights) -> Pooled[Given]:
        return with_metrics(inner.pool(total.sums, anchor), clipped_clients=total.clipped)

    of_inner: Any = inner.units
    units = of_inner and (lambda anchor: Clipped(of_inner(anchor), tf.constant(1)))
    traits = inner.traits._replace(uses_anchor=True, linear=False, averages="")
    return ModelRule(summarise, merge, pool, f"clipped {inner.name}", traits, gives=inner.gives, units=units)


def trimmed(rule: AnyRule[ModelWeights, Given], share: float = 0.2) -> ModelGatherRule[ModelWeights, Given]:
    """Return `rule` over what is left of every weight when the clients with its smallest and largest means are dropped.

    k = min(floor(share K), floor((K - 1) / 2)). Of each weight the k smallest and the k largest of the K means are
    dropped; the others keep their variances, limited to the range of the K - 2 k middle ones of all K variances, so
    that no tiny or huge variance rules the result. `rule` pools these K - 2 k pairs. Point weights are trimmed
    likewise, BatchNorm's moments as pairs.

    If at most k clients are adversarial, every mean that is left lies between those of honest clients, and so does
    every variance. The remaining clients differ from weight to weight, so that clients' aggregation weights have no
    meaning here: all count the same. Rules that shrink the variance with the number of clients shrink it by K - 2 k.
    The server's memory is clients x weights. The metric `trimmed_clients` is 2 k: with few clients it can be zero.

    Args:
      rule: of `tfp_bfl.rules`, or of `whole_model`.
      share: of the clients to drop at each end.

    Source: Yin et al. 2018 (arXiv:1803.01498), Definition 2, for the means; the variances are ours.
    """
    share = _check_share(share)

    def at_each_end(num_clients: tf.Tensor) -> tf.Tensor:
        # A hair more: as a float64, 0.29 x 100 is below 29.
        return tf.cast(tf.floor(share * tf.cast(num_clients, tf.float64) + 1e-9), tf.int32)

    trim = _trimmed(rule, at_each_end, "trimmed")
    return trim._replace(traits=trim.traits._replace(min_clients=_fewest(trim.traits.min_clients, share)))


def _fewest(left: int, share: float) -> int:
    """Return the fewest clients from which on trimming leaves at least so many."""
    if left <= 1:  # At most (K - 1) / 2 at each end: one is always left.
        return 1
    fewest = math.ceil(left / (1 - 2 * share))  # K - 2 k is at least (1 - 2 share) K.
    while fewest > 1 and fewest - 1 - 2 * min(math.floor(share * (fewest - 1) + 1e-9), (fewest - 2) // 2) >= left:
        fewest -= 1
    return fewest


def median(rule: AnyRule[ModelWeights, Given]) -> ModelGatherRule[ModelWeights, Given]:
    """Return `trimmed` to the one or two middle clients of every weight: k = floor((K - 1) / 2).

    For odd K this is N(median of the means, median of the variances), whichever of `RULES` it is; for even K the rule
    pools two pairs.

    Source: Yin et al. 2018 (arXiv:1803.01498), Definition 1, for the means of odd K.
    """
    trim = _trimmed(rule, lambda num_clients: num_clients, "median")
    if trim.traits.min_clients > 1:
        raise InvalidArgument(
            f"A median leaves one or two values of each weight, but the rule {trim.name.partition(' ')[2]} needs at "
            f"least {trim.traits.min_clients}: use trimmed or centered_clip."
        )
    return trim


def centered_clip(rule: AnyRule[ModelWeights, Given]) -> ModelGatherRule[ModelWeights, Given]:
    """Return `rule` over clients drawn towards their geometric median: none lies further from it than the median
    client.

    z = argmin_z sum_k ||x_k - z||,  r = median_k ||x_k - z||,  x_k <- z + min(1, r / ||x_k - z||) (x_k - z)

    over means and point weights, in which honest clients differ where their labels do. A client that alone has a class
    still counts, where `trimmed` and `median` drop it weight by weight, and needs no bound chosen beforehand, as
    `clipped` does. Of every weight the K variances, and BatchNorm's, are limited to the range of those that are left
    when min(ceil(K / 4), floor((K - 1) / 2)) at each end are dropped, so that no tiny or huge variance rules the
    result.

    While fewer than half of the clients are hostile, z lies among the honest, and a hostile one moves the mean by at
    most r / K further than another. All count the same. The server's memory is clients x weights. The metric
    `clipped_clients` counts those who were drawn in: half of them, as a rule.

    Args:
      rule: of `tfp_bfl.rules`, or of `whole_model`.

    Source: Karimireddy et al. 2021 (arXiv:2012.10333), eq. 3, around the geometric median of Pillutla et al. 2022
      (arXiv:1912.13445), by Weiszfeld's algorithm, instead of around the round before; radius and variances are ours.
    """
    inner = _for_stack(rule, "centered_clip")

    def pool(stacked: ModelWeights, importance: tf.Tensor, anchor: ModelWeights) -> Pooled[Given]:
        k = tf.minimum((tf.shape(importance)[0] + 3) // 4, (tf.shape(importance)[0] - 1) // 2)
        limit = functools.partial(each, functools.partial(_limited, k))
        left = by_part(lambda q: q._replace(variance=limit(q.variance)), lambda x: x, stacked)
        if isinstance(left, ModelWeights):
            left = left._replace(moments=limit(left.moments))
        rows = [tf.reshape(x, [tf.shape(x)[0], -1]) for x in tf.nest.flatten(_values(stacked))]
        # In float64, where no square of a float32 overflows.
        points = tf.concat([tf.cast(x, tf.float64) for x in rows], 1)
        center = geometric_median(points)
        distance = tf.norm(points - center, axis=1)
        radius = tf.sort(distance)[tf.shape(distance)[0] // 2]
        factor = tf.math.divide_no_nan(radius, tf.maximum(distance, radius))
        left = _with_points(left, center + factor[:, tf.newaxis] * (points - center))
        pooled = _pool(inner, left, tf.ones_like(importance), anchor)
        return with_metrics(pooled, clipped_clients=tf.math.count_nonzero(distance > radius, dtype=tf.int32))

    return _gather_rule(pool, "centered_clip", inner)


def geometric_median(points: tf.Tensor, tolerance: float = 1e-6, most_steps: int = 200) -> tf.Tensor:
    """Return argmin_z sum_k ||x_k - z|| of points [K, D]: a vector [D], by Weiszfeld's algorithm from the median of
    each axis.

    z <- sum_k x_k / d_k / sum_k 1 / d_k,  d_k = max(||x_k - z||, tolerance x the median distance),

    until a step is shorter than that floor, or `most_steps` were taken.

    Source: Pillutla et al. 2022 (arXiv:1912.13445), algorithm 2, smoothed.
    """
    middle = tf.shape(points)[0] // 2
    distances = lambda z: tf.norm(points - z, axis=1)
    floor = lambda d: tf.maximum(tf.cast(tolerance, d.dtype) * tf.sort(d)[middle], np.finfo(np.float32).tiny)

    def step(z: tf.Tensor, moved: tf.Tensor, d: tf.Tensor) -> Any:
        inverse = 1 / tf.maximum(d, floor(d))
        new = tf.linalg.matvec(points, inverse / tf.reduce_sum(inverse), transpose_a=True)
        return new, tf.norm(new - z), distances(new)

    start = tf.sort(points, 0)[middle]
    first = start, tf.constant(np.inf, points.dtype), distances(start)
    going = lambda z, moved, d: moved > floor(d)
    return tf.while_loop(going, step, first, parallel_iterations=1, maximum_iterations=most_steps)[0]


def _trimmed(
    rule: AnyRule[ModelWeights, Given], at_each_end: Callable[[tf.Tensor], tf.Tensor], what: str
) -> ModelGatherRule[ModelWeights, Given]:
    inner = _for_stack(rule, what)

    def pool(stacked: ModelWeights, importance: tf.Tensor, anchor: ModelWeights) -> Pooled[Given]:
        num_clients = tf.shape(importance)[0]
        k = tf.minimum(at_each_end(num_clients), (num_clients - 1) // 2)
        ordered = lambda point: each(lambda x: tf.sort(x, 0)[k : num_clients - k], point)
        left = by_part(functools.partial(_middle, k), ordered, stacked)
        pooled = _pool(inner, left, tf.ones([num_clients - 2 * k], importance.dtype), anchor)
        return with_metrics(pooled, trimmed_clients=2 * k)

    return _gather_rule(pool, what, inner)


def _gather_rule(
    pool: Callable[..., Pooled[Given]], what: str, inner: ModelRule[ModelWeights, Given]
) -> ModelGatherRule[ModelWeights, Given]:
    traits = inner.traits._replace(linear=False, averages="")
    return ModelGatherRule(pool, f"{what} {inner.name}", traits, gives=inner.gives)


def _for_stack(rule: AnyRule[ModelWeights, Given], what: str) -> ModelRule[ModelWeights, Given]:
    inner = _of_weights(rule)
    if inner.gives == STACK:
        raise InvalidArgument(
            f"A {what} stack holds no client's own weights, so that the rule {inner.name!r} has none to give: use the "
            "robust aggregator clip."
        )
    return inner


def _pool(
    inner: ModelRule[ModelWeights, Given], left: ModelWeights, importance: tf.Tensor, anchor: ModelWeights
) -> Pooled[Given]:
    # An anchor that only centres the sums may itself be the mean of honest and other clients.
    anchor = anchor if inner.traits.uses_anchor else each(lambda x: x[tf.shape(x)[0] // 2], left)
    return inner.pool(summarise_stack(inner, left, importance, anchor), anchor)


def _of_weights(rule: AnyRule[ModelWeights, Given]) -> ModelRule[ModelWeights, Given]:
    whole = without_noise_of_server(whole_model(rule))
    if whole.takes not in (None, WEIGHTS):
        raise InvalidArgument(
            f"The rule {whole.name!r} takes a {whole.takes}, but a robust aggregator needs the clients' {WEIGHTS}: use "
            "another rule, or no robust aggregator."
        )
    return whole


def _middle(k: tf.Tensor, stacked: MeanField) -> MeanField:
    """Return of each weight the pairs with the K - 2 k middle means, their variances limited: leaves [K - 2 k, ...]."""

    def of_leaf(mean: tf.Tensor, variance: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        num_clients = tf.shape(mean)[0]
        mean_rows, variance_rows = (tf.transpose(tf.reshape(x, [num_clients, -1])) for x in (mean, variance))
        # By variance first, so that of equal means it is not the order of the clients that tells.
        order = tf.argsort(variance_rows)
        mean_rows, variance_rows = (tf.gather(x, order, batch_dims=1) for x in (mean_rows, variance_rows))
        low, high = variance_rows[:, k, tf.newaxis], variance_rows[:, num_clients - 1 - k, tf.newaxis]
        order = tf.argsort(mean_rows, stable=True)[:, k : num_clients - k]
        mean_rows, variance_rows = (tf.gather(x, order, batch_dims=1) for x in (mean_rows, variance_rows))
        back = lambda x: tf.reshape(tf.transpose(x), [num_clients - 2 * k, *mean.shape[1:]])
        return back(mean_rows), back(tf.clip_by_value(variance_rows, low, high))

    pairs = [of_leaf(*pair) for pair in zip(*map(tf.nest.flatten, stacked))]
    return MeanField(*(tf.nest.pack_sequence_as(part, [p[i] for p in pairs]) for i, part in enumerate(stacked)))


def _limited(k: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """Return x [K, ...], each of its numbers within the range of the K - 2 k middle ones of all clients."""
    ordered = tf.sort(x, 0)
    return tf.clip_by_value(x, ordered[k], ordered[tf.shape(x)[0] - 1 - k])


def _with_points(stacked: AnyWeights, points: tf.Tensor) -> Any:
    """Return the stack with other means and point weights."""
    values = _values(stacked)
    leaves = tf.nest.flatten(values)
    parts = tf.split(points, [x.shape[1:].num_elements() for x in leaves], 1)
    shaped = [tf.cast(tf.reshape(p, tf.shape(x)), x.dtype) for p, x in zip(parts, leaves)]
    mean, point = tf.nest.pack_sequence_as(values, shaped)
    if not isinstance(stacked, ModelWeights):
        return stacked._replace(mean=mean)
    return stacked._replace(posterior=stacked.posterior._replace(mean=mean), point=point)


def _values(stacked: AnyWeights) -> tuple[Any, Any]:
    return (stacked.posterior.mean, stacked.point) if isinstance(stacked, ModelWeights) else (stacked.mean, ())


def _check_share(share: float) -> float:
    number = isinstance(share, numbers.Real) and not isinstance(share, bool)
    if not number or not 0 <= share < 0.5:
        raise InvalidArgument(f"share is {shown(share)}, but must be at least 0 and below 0.5.")
    return float(share)


# A new robust aggregator is one more line here.
ROBUST: named.Table = {
    "clip": WithArgument(clipped, "max_norm", check=functools.partial(check_number, name="max_norm")),
    "trimmed": WithArgument(trimmed, "share", check=_check_share),
    "median": median,
    "centered_clip": centered_clip,
}


def parse_robust(text: str) -> Callable[[AnyRule], ModelRule | ModelGatherRule]:
    """Return the robust aggregator that text names, "clip:5.0", "trimmed:0.2" or "median": a function from a rule to
    the robust one.

    Example:
      >>> bfl.rules.parse_robust("trimmed:0.2")("conflation").name
      'trimmed conflation'
    """
    return named.parse(ROBUST, text, "robust aggregator")
