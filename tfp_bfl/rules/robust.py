"""Rules that withstand adversarial clients: each makes another of a rule, for posteriors or for whole models.

A client's weights lie in coordinates where all of them can be compared: means, point weights and log standard
deviations; BatchNorm's moving means and variances in the same two.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Callable, NamedTuple, Optional, Union

import numpy as np
import tensorflow as tf

from tfp_bfl.contracts import GatherRule, Rule
from tfp_bfl.errors import InvalidArgument, lookup
from tfp_bfl.models import by_part, change_norm, coordinates, from_coordinates
from tfp_bfl.posterior import MeanField
from tfp_bfl.rules.gather import summarise_stack
from tfp_bfl.rules.rule import check_rule, each, sharing


class _Clipped(NamedTuple):
    statistics: Any
    clipped: tf.Tensor  # clients, int32


def clipped(rule: Rule, max_norm: float) -> Rule:
    """`rule` over clients none of whom moves further than `max_norm` from the anchor.

    x_k <- x_0 + min(1, max_norm / ||x_k - x_0||) (x_k - x_0)

    in the coordinates of `change_norm`. Clients within the bound stay as they are, bit for bit. Clients' aggregation
    weights are not touched: they are those of what was sent. The number of clipped clients is the metric
    `clipped_clients`.

    The bound is on the whole: a client that spends all of it on one weight's standard deviation multiplies that
    weight's precision by up to exp(2 max_norm). `trimmed` and `median` bound every weight.

    Args:
      rule: of `tfp_bfl.rules`, or of `whole_model`.
      max_norm: such as the median `change_norm` of clients that are known to be honest.

    Raises:
      InvalidArgument: not a rule, or max_norm not a finite number above zero.

    Source: Sun et al. 2019 (arXiv:1911.07963), norm thresholding; the log standard deviations are ours.
    """
    check_rule(rule)
    max_norm = _check_max_norm(max_norm)

    def summarise(local: Any, anchor: Any, weight: tf.Tensor) -> _Clipped:
        start = coordinates(anchor)
        change = each(tf.subtract, coordinates(local), start)
        norm = change_norm(local, anchor)
        factor = max_norm / tf.maximum(norm, max_norm)
        moved = from_coordinates(each(lambda a, d: a + factor * d, start, change))
        local = each(lambda own, new: tf.where(norm <= max_norm, own, tf.cast(new, own.dtype)), local, moved)
        return _Clipped(rule.summarise(local, anchor, weight), tf.cast(norm > max_norm, tf.int32))

    def merge(a: _Clipped, b: _Clipped) -> _Clipped:
        return _Clipped(rule.merge(a.statistics, b.statistics), a.clipped + b.clipped)

    return type(rule)(
        summarise,
        merge,
        lambda total, anchor: rule.pool(total.statistics, anchor),
        f"clipped {rule.name}",
        uses_anchor=True,
        metrics=lambda total, anchor: {"clipped_clients": total.clipped, **rule.metrics(total.statistics, anchor)},
        min_clients=rule.min_clients,
    )


def trimmed(rule: Rule, share: float = 0.2) -> GatherRule:
    """`rule` over what is left of every weight when the clients with its smallest and largest means are dropped.

    k = min(floor(share K), floor((K - 1) / 2)). Of each weight the k smallest and the k largest of the K means are
    dropped; the others keep their variances, limited to the range of the K - 2 k middle ones of all K variances, so
    that no tiny or huge variance rules the result. `rule` pools these K - 2 k pairs. Point weights are trimmed
    likewise, BatchNorm's moments as pairs.

    If at most k clients are adversarial, every mean that is left lies between those of honest clients, and so does
    every variance. Who is left differs from weight to weight, so that clients' aggregation weights have no meaning
    here: all count the same. Rules that shrink the variance with the number of clients shrink it by K - 2 k. The
    server's memory is clients x weights. The metric `trimmed_clients` is 2 k: with few clients it can be zero.

    Args:
      rule: of `tfp_bfl.rules`, or of `whole_model`.
      share: of the clients to drop at each end.

    Raises:
      InvalidArgument: not a rule, or share not at least 0 and below 0.5.

    Source: Yin et al. 2018 (arXiv:1803.01498), Definition 2, for the means; the variances are ours.
    """
    share = _check_share(share)

    def at_each_end(num_clients: tf.Tensor) -> tf.Tensor:
        # A hair more: as a float64, 0.29 x 100 is below 29.
        return tf.cast(tf.floor(share * tf.cast(num_clients, tf.float64) + 1e-9), tf.int32)

    return _trimmed(rule, at_each_end, "trimmed")


def median(rule: Rule) -> GatherRule:
    """`trimmed` to the one or two middle clients of every weight: k = floor((K - 1) / 2).

    For odd K this is N(median of the means, median of the variances), whichever of `RULES` it is; for even K the rule
    pools two pairs.

    Raises:
      InvalidArgument: not a rule.

    Source: Yin et al. 2018 (arXiv:1803.01498), Definition 1, for the means of odd K.
    """
    return _trimmed(rule, lambda num_clients: num_clients, "median")


def _trimmed(rule: Rule, at_each_end: Callable[[tf.Tensor], tf.Tensor], what: str) -> GatherRule:
    check_rule(rule)

    def dropped(weights: tf.Tensor) -> tf.Tensor:
        num_clients = tf.shape(weights)[0]
        return tf.minimum(at_each_end(num_clients), (num_clients - 1) // 2)

    def total(stacked: Any, weights: tf.Tensor, anchor: Any) -> tuple[Any, Any]:
        """The statistics of what is left, and the anchor for them."""
        k, num_clients = dropped(weights), tf.shape(weights)[0]
        left = by_part(
            functools.partial(_middle, k), functools.partial(each, lambda x: _cut(tf.sort(x, 0), k)), stacked
        )
        # An anchor that only centres the sums may itself be the mean of honest and other clients.
        anchor = anchor if rule.uses_anchor else each(lambda x: x[tf.shape(x)[0] // 2], left)
        return summarise_stack(rule, left, tf.ones([num_clients - 2 * k], weights.dtype), anchor), anchor

    def together(stacked: Any, weights: tf.Tensor, anchor: Any) -> tuple[Any, dict[str, tf.Tensor]]:
        pooled, own = rule.pool_with_metrics(*total(stacked, weights, anchor))
        return pooled, {"trimmed_clients": 2 * dropped(weights), **own}

    return GatherRule(name=f"{what} {rule.name}", uses_anchor=rule.uses_anchor, **sharing(together))


def _middle(k: tf.Tensor, stacked: MeanField) -> MeanField:
    """Of each weight the pairs with the K - 2 k middle means, their variances limited: leaves [K - 2 k, ...]."""

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


def _cut(x: tf.Tensor, k: tf.Tensor) -> tf.Tensor:
    """x [K, ...] without the first and the last k."""
    return x[k : tf.shape(x)[0] - k]


def _check_max_norm(max_norm: Any) -> float:
    if not _is_number(max_norm) or not 0 < max_norm < math.inf:
        raise InvalidArgument(f"max_norm is {max_norm!r}, but must be a finite number above 0.")
    return float(max_norm)


def _check_share(share: Any) -> float:
    if not _is_number(share) or not 0 <= share < 0.5:
        raise InvalidArgument(f"share is {share!r}, but must be at least 0 and below 0.5.")
    return float(share)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.number)) and not isinstance(value, bool)


class _Entry(NamedTuple):
    make: Callable[..., Union[Rule, GatherRule]]
    argument: Optional[str] = None
    check: Callable[[Any], float] = float

    def form(self, name: str) -> str:
        return f"{name}:{self.argument.upper()}" if self.argument else name


# A new defence is one more line here.
ROBUST: dict[str, _Entry] = {
    "clip": _Entry(clipped, "max_norm", _check_max_norm),
    "trimmed": _Entry(trimmed, "share", _check_share),
    "median": _Entry(median),
}


def parse_robust(text: str) -> Callable[[Rule], Union[Rule, GatherRule]]:
    """Reads a defence from text: "clip:5.0", "trimmed:0.2" or "median".

    Returns:
      A function from a rule to the robust one.

    Raises:
      InvalidArgument: there is no such defence, or its argument is missing, superfluous, not a number or out of range.
    """
    name, colon, value = str(text).partition(":")
    entry = lookup(ROBUST, name, "defence")
    if entry.argument is None:
        if colon:
            raise InvalidArgument(f"The defence {text!r} has an argument, but {name} takes none.")
        return entry.make
    if not value:
        raise InvalidArgument(f"The defence {text!r} lacks its {entry.argument}: write {entry.form(name)}.")
    try:
        number = float(value)
    except ValueError:
        raise InvalidArgument(
            f"The defence {text!r} has the {entry.argument} {value!r}, but must be {entry.form(name)} with a number."
        ) from None
    return functools.partial(entry.make, **{entry.argument: entry.check(number)})
