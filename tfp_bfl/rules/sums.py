"""Rules for secure aggregation, by sums of integers, and for differential privacy.

Both are of z, a client's statistics in the rule's units (`Rule.units`), by the anchor's standard deviations: numbers
near one, whatever the rule.
"""

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tfp_bfl.contracts import WEIGHTS, AnyRule, ModelRule, Pooled
from tfp_bfl.errors import InvalidArgument, check_count, check_number
from tfp_bfl.rules.rule import Clipped, add, each, kept, with_metrics
from tfp_bfl.rules.whole_model import Parts, whole_model
from tfp_bfl.tensors import TensorTree
from tfp_bfl.weights import ModelWeights

WeightsRule = ModelRule[ModelWeights, ModelWeights, Any]
# With noise, sums of precisions or variances stay within this factor of those of clients who all send the anchor.
MOST_CHANGE = 4.0


def quantised(rule: AnyRule, *, max_weight: float = 1.0, bound: float = 1024.0, bits: int = 40) -> WeightsRule:
    """Return `rule` over sums of whole numbers, which masks or encryption can hide from the server.

    q = round(min(max(z, -bound), bound) 2^bits / bound)

    and the server takes sum_k q_k as sum_k z_k. Sums are of int64, and exact for up to 2^(63 - bits) clients. The
    metric `clipped_numbers` counts those beyond the bound.

    Args:
      rule: of `tfp_bfl.rules`, or its name; its statistics merge by a plain sum.
      max_weight: a public bound of the clients' weights, which are divided by it; a larger weight counts as it.
      bound: of z.
      bits: of z without its sign, from 8 to 52.
    """
    inner, units = _plain_sum(rule)
    max_weight, bound = check_number(max_weight, "max_weight"), check_number(bound, "bound")
    if check_count(bits, "bits", 8) > 52:
        raise InvalidArgument(f"bits is {bits}, but must be at most 52: float64 holds no longer numbers exactly.")
    step = bound / 2.0**bits

    def summarise(local: ModelWeights, anchor: ModelWeights, weight: tf.Tensor) -> Clipped:
        statistics = inner.summarise(local, anchor, tf.minimum(weight / max_weight, 1.0))
        z = each(lambda x, unit: _double(x) / _double(unit), statistics, units(anchor))
        clipped = [tf.math.count_nonzero(tf.abs(x) > bound) for x in tf.nest.flatten(z)]
        q = each(lambda x: tf.cast(tf.round(tf.clip_by_value(x, -bound, bound) / step), tf.int64), z)
        return Clipped(q, tf.add_n(clipped))

    def pool(total: Clipped, anchor: ModelWeights) -> Pooled[ModelWeights]:
        back = lambda q, unit: tf.cast(_double(q) * step * _double(unit), unit.dtype)
        pooled = inner.pool(each(back, total.sums, units(anchor)), anchor)
        return with_metrics(pooled, clipped_numbers=total.clipped)

    traits = inner.traits._replace(linear=False, averages="")
    return ModelRule(summarise, add, pool, **kept(inner, name=f"quantised {inner.name}", traits=traits))


def private(
    rule: AnyRule,
    *,
    clip_norm: float,
    noise_multiplier: float,
    cohort_size: int,
    variance_clip_norm: float | None = None,
) -> WeightsRule:
    """Return `rule` with client-level differential privacy: no client moves the sum further than the noise hides.

    x_k <- min(1, C / ||x_k||) x_k,   sum_k x_k <- sum_k x_k + sqrt(2) s C N(0, I)      of the means
    v_k <- min(1, V / ||v_k||) v_k,   sum_k v_k <- sum_k v_k + sqrt(2) s V N(0, I)      of the variances

    with C clip_norm, V variance_clip_norm and s noise_multiplier; without a posterior s C in the place of sqrt(2) s C.
    (x_k, v_k) = z_k is here what the client's statistics differ by from those of the anchor itself, so that one who
    learns nothing, or is faulty, adds nothing. Each client counts once, and all together as `cohort_size` clients,
    however many took part: whoever knows the pooled posterior does not know how many they were. Where there is noise,
    no precision or variance changes by more than the factor `MOST_CHANGE` in a round: it is the unit of the next noise.

    The guarantee is `tfp_bfl.privacy.epsilon`'s, for the pooled posterior, if clients are drawn each for itself as
    `simulate` draws them. The metric `clipped_clients`, as all that a round reports of clients, is outside it.

    Args:
      rule: of `tfp_bfl.rules`, or its name; its statistics merge by a plain sum, without a robust aggregator.
      clip_norm: C, of all means or shifts together, in the anchor's standard deviations; without a posterior in the
        weights' own unit.
      variance_clip_norm: V, of all variances or precisions together, in the anchor's; None for a twentieth of
        clip_norm. Each round's noise is sqrt(2) s V / cohort_size times the variances themselves.
      noise_multiplier: s; zero for clipping alone.
      cohort_size: how many clients a round has in expectation.

    Source: McMahan et al. 2018 (arXiv:1710.06963), algorithm 1, with the estimator of fixed denominator; posteriors and
      units are ours.
    """
    inner, of_anchor = _plain_sum(rule)
    if inner.traits.uses_anchor or inner.gives != WEIGHTS:
        raise InvalidArgument(
            f"The rule {inner.name!r} is no mean of what clients send, and noise would not stay in bounds: use one "
            "such as 'naive_weighted_average' or 'log_linear_pool', without a robust aggregator."
        )
    clip_norm = check_number(clip_norm, "clip_norm")
    of_variances = check_number(
        clip_norm / 20 if variance_clip_norm is None else variance_clip_norm, "variance_clip_norm"
    )
    size = float(check_count(cohort_size, "cohort_size"))
    noise = check_number(noise_multiplier, "noise_multiplier", zero=True)

    def start_of(anchor: ModelWeights) -> Any:
        """Return the message of clients that learn nothing: variances and precisions are positive, and means zero."""
        return inner.summarise(anchor, anchor, tf.ones([]))

    def units(anchor: ModelWeights) -> Any:
        """Return the unit of clipped sums."""
        of = lambda unit, start: unit * tf.cast(tf.where(start > 0, of_variances, clip_norm), unit.dtype)
        return each(of, of_anchor(anchor), start_of(anchor))

    def summarise(local: ModelWeights, anchor: ModelWeights, weight: tf.Tensor) -> Clipped:
        start = start_of(anchor)
        difference = each(tf.subtract, inner.summarise(local, anchor, tf.ones([])), start)
        z = each(lambda x, unit: x / unit, difference, units(anchor))
        # Who counts nothing adds nothing: a round in which nobody was drawn is run with one of weight zero.
        here = [each(lambda s, positive=positive: (s > 0) == positive, start) for positive in (False, True)]
        norms = [_norm(each(lambda x, yes: tf.where(yes, x, tf.zeros_like(x)), z, part)) for part in here]
        # A difference that overflows in these units adds nothing, as that of a faulty client.
        counts = [(weight > 0) & tf.math.is_finite(norm) for norm in norms]
        factors = [tf.where(count, 1 / tf.maximum(norm, 1.0), 0.0) for count, norm in zip(counts, norms)]
        cut = lambda x, s: tf.math.multiply_no_nan(x, tf.cast(tf.where(s > 0, factors[1], factors[0]), x.dtype))
        return Clipped(each(cut, z, start), tf.cast((norms[0] > 1) | (norms[1] > 1), tf.int32))

    def randomise(total: Clipped, seed: tf.Tensor) -> Clipped:
        leaves = tf.nest.flatten(total.sums)
        seeds = tf.unstack(tf.random.experimental.stateless_split(seed, len(leaves)))
        stddev = noise * (2.0 if _has_variances(total.sums) else 1.0) ** 0.5
        noisy = [x + stddev * tf.random.stateless_normal(x.shape, s, dtype=x.dtype) for x, s in zip(leaves, seeds)]
        return total._replace(sums=_without_weights(tf.nest.pack_sequence_as(total.sums, noisy)))

    def pool(total: Clipped, anchor: ModelWeights) -> Pooled[ModelWeights]:
        def back(x: tf.Tensor, unit: tf.Tensor, start: tf.Tensor) -> tf.Tensor:
            same = tf.cast(size, x.dtype) * start
            whole = same + unit * x
            if not noise:
                return whole
            return tf.where(start > 0, tf.clip_by_value(whole, same / MOST_CHANGE, same * MOST_CHANGE), whole)

        pooled = inner.pool(each(back, total.sums, units(anchor), start_of(anchor)), anchor)
        return with_metrics(pooled, clipped_clients=total.clipped)

    traits = inner.traits._replace(uses_anchor=True, linear=False, averages="")
    fields = kept(inner, name=f"private {inner.name}", traits=traits)
    return ModelRule(summarise, add, pool, **fields, randomise=randomise)


def _norm(structure: TensorTree) -> tf.Tensor:
    return tf.sqrt(tf.add_n([tf.reduce_sum(tf.square(_double(x))) for x in tf.nest.flatten(structure)]))


def _without_weights(sums: object) -> Any:
    """Return sums without noise on how much clients count, which all know: on scalars with the name "weight"."""
    given: Any = sums
    if isinstance(sums, tuple) and not hasattr(sums, "_fields"):
        return tuple(map(_without_weights, sums))
    parts = given._asdict() if hasattr(sums, "_fields") else sums
    if not isinstance(parts, Mapping):
        return sums
    is_known = lambda name, x: name == "weight" and getattr(getattr(x, "shape", None), "rank", None) == 0
    kept = {name: tf.zeros_like(x) if is_known(name, x) else _without_weights(x) for name, x in parts.items()}
    return type(given)(**kept) if hasattr(sums, "_fields") else type(given)(kept)


def _has_variances(sums: object) -> bool:
    """Return whether noise must hide variances besides means; also where the sums do not say so."""
    parts = (sums.posterior, sums.moments) if isinstance(sums, Parts) else ()
    return not parts or any(len(tf.nest.flatten(part)) > 1 for part in parts)


def _plain_sum(rule: AnyRule) -> tuple[WeightsRule, Callable[[ModelWeights], Any]]:
    inner = whole_model(rule)
    if inner.units is None:
        raise InvalidArgument(
            f"The rule {inner.name!r} needs more of the clients than a sum, or does not say in what units the sum is, "
            "and only a sum hides them: set the field units of your own rule, or use one such as 'log_linear_pool', "
            "'naive_weighted_average' or weighted_conflation(largest_weight=1), without a robust aggregator but clip."
        )
    return inner, inner.units


def _double(x: tf.Tensor) -> tf.Tensor:
    return tf.cast(x, tf.float64)
