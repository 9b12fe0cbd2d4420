"""Faults of a client's contribution to a round."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import numpy as np
import tensorflow as tf

from tfp_bfl.errors import InvalidArgument, check_count, check_number, shown
from tfp_bfl.posterior import MeanField, positive_leaves
from tfp_bfl.posterior.families import map_positive
from tfp_bfl.tensors import Scalar, TensorTree
from tfp_bfl.weights import ClientResult, ModelWeights, change_norm
from tfp_bfl.weights.kinds import Sent

# A contribution's code is its place here; the first is none.
FAULTS = (
    "",
    "no examples",
    "not finite",
    "variance zero or below",
    "weight not above zero",
    "a number beyond max_magnitude",
    "a standard deviation below min_stddev",
    "change beyond max_change_norm",
    "fewer examples than min_examples",
    "more examples than it was given",
    "the server's state has no memory of it",
)
_NO_FAULT = len(FAULTS)
# Faults of changes that are not finite, or huge.
DIVERGENCE = frozenset((*FAULTS[2:6], "change beyond max_change_norm"))
# BatchNorm's moments are of features in whatever units; of other structures, such as gradients, no square overflows.
_MAX_MOMENT, _MAX_OTHER = 1e9, 1e15
# Of the floor of variances, which what the layers hold meets but for rounding.
_BELOW_FLOOR = 0.25


class Limits(NamedTuple):
    """Bounds of a sound contribution.

    Fields:
      max_magnitude: of means, standard deviations, point weights and extra statistics.
      max_change_norm: of `weights.change_norm`; None for any.
      min_examples: of a client.
      min_stddev: the floor of the model's own standard deviations.
      max_weight_ratio: of its weight to the median one of its round; None for any. `simulate` runs a round with a
        weight above it again, with weights cut.
    """

    max_magnitude: float = 1e6
    max_change_norm: float | None = None
    min_examples: int = 1
    min_stddev: float = 0.0
    max_weight_ratio: float | None = None

    def checked(self, sends_weights: bool = True) -> Limits:
        """Return the limits; raise InvalidArgument for one out of its range, or on messages that it does not fit."""
        change, ratio = self.max_change_norm, self.max_weight_ratio
        if change is not None and not change > 0:
            raise InvalidArgument(
                f"max_change_norm is {change}, but must be above zero, or None for changes of any size."
            )
        if change is not None and not sends_weights:
            raise InvalidArgument(
                "max_change_norm bounds how far a client's weights move, and these clients send no weights: leave it "
                "out."
            )
        check_number(self.max_magnitude, "max_magnitude")
        check_count(self.min_examples, "min_examples")
        check_number(self.min_stddev, "min_stddev", zero=True)
        if ratio is not None and not ratio >= 1:
            raise InvalidArgument(
                f"max_weight_ratio is {shown(ratio)}, but must be at least 1, or None for weights of any size."
            )
        return self


LIMITS = Limits()


def find_fault(
    result: ClientResult[Sent],
    anchor: ModelWeights,
    weight: tf.Tensor,
    limits: Limits = LIMITS,
    given: Scalar | None = None,
    known: bool | tf.Tensor = True,
) -> tf.Tensor:
    """Return the code of the first fault in what a client returns: a scalar int32, 0 if there is none.

    The client started from `anchor`, would be pooled with `weight`, and got `given` examples, None where nobody knows;
    `known` is whether it has a row where clients keep something.
    """
    count, change, most = result.num_examples, limits.max_change_norm, limits.max_magnitude
    broken = {
        "no examples": count <= 0,
        "weight not above zero": ~(tf.math.is_finite(weight) & (weight > 0)),
        "change beyond max_change_norm": change is not None
        and change_norm(cast(ModelWeights, result.weights), anchor) > change,
        "fewer examples than min_examples": count < limits.min_examples,
        "more examples than it was given": False if given is None else count > given,
        "the server's state has no memory of it": ~tf.convert_to_tensor(known),
    }
    *others, (variances, most_variance) = _bounds(result.weights, most)
    others += [(result.extra, most), (result.memory, np.inf)]
    checks: list[tuple[tf.Tensor, float, float | None]] = [
        (_flat(part), bound, None) for part, bound in others if tf.nest.flatten(part)
    ]
    checks += [(_flat(variances), most_variance, _BELOW_FLOOR * limits.min_stddev**2)] if variances else []
    sound = tf.reduce_all([_are_sound(*check) for check in checks])
    numbers = lambda: tf.reduce_min([_code_of_numbers(*check) for check in checks])
    codes = [tf.where(x, FAULTS.index(fault), _NO_FAULT) for fault, x in broken.items()]
    first = tf.reduce_min([*codes, tf.cond(sound, lambda: _NO_FAULT, numbers)])
    return tf.where(first < _NO_FAULT, first, 0)


def _are_sound(x: tf.Tensor, bound: float, floor: float | None) -> tf.Tensor:
    """Return whether all numbers are within a bound, in one pass of XLA; with a floor they are variances."""
    # NaN is below nothing.
    if floor is None:
        return tf.reduce_all((tf.abs(x) <= bound) & (tf.abs(x) < np.inf))
    return tf.reduce_all((x > 0) & (x >= floor) & (x <= bound))


def _code_of_numbers(x: tf.Tensor, bound: float, floor: float | None) -> tf.Tensor:
    """Return the least code of a fault in any number, or `_NO_FAULT`; with a floor they are variances."""
    code = tf.where(tf.abs(x) <= bound, _NO_FAULT, FAULTS.index("a number beyond max_magnitude"))
    if floor is not None:
        code = tf.where(x < floor, tf.minimum(code, FAULTS.index("a standard deviation below min_stddev")), code)
        code = tf.where(x <= 0, FAULTS.index("variance zero or below"), code)
    code = tf.where(tf.math.is_finite(x), code, FAULTS.index("not finite"))
    return tf.minimum(tf.reduce_min(code), _NO_FAULT)


def within(sent: TensorTree, max_magnitude: float) -> tf.Tensor:
    """Return whether all means, standard deviations and point weights of `ModelWeights` are finite and within a bound.

    BatchNorm's moments have a wider one of their own, and so has whatever is sent in the place of weights.
    """
    return tf.reduce_all([_all_below(part, bound) for part, bound in _bounds(sent, max_magnitude)])


def is_within(sent: TensorTree, max_magnitude: float) -> bool:
    """Return the same for arrays, without operations of TensorFlow."""
    bounds = _bounds(sent, max_magnitude)
    return all(np.all(np.abs(x) <= bound) for part, bound in bounds for x in tf.nest.flatten(part))


def _bounds(sent: TensorTree, max_magnitude: float) -> list[tuple[TensorTree, float]]:
    """Return parts with the bound of each; the last part is what must be above zero, without BatchNorm's moments."""
    if not hasattr(sent, "posterior"):
        return [(sent, _MAX_OTHER), ((), 0.0)]
    positive = {id(x): x for x in positive_leaves(sent.posterior)}
    others = [x for x in tf.nest.flatten(sent.posterior) if id(x) not in positive]
    values = (getattr(sent, "point", ()), others), max_magnitude
    return [values, (getattr(sent, "moments", ()), _MAX_MOMENT), (tuple(positive.values()), max_magnitude**2)]


def _all_below(structure: TensorTree, bound: float) -> tf.Tensor:
    # NaN is below nothing.
    return tf.reduce_all(tf.abs(_flat(structure)) <= bound)


def _flat(structure: TensorTree) -> tf.Tensor:
    """Return all numbers of a structure: [N] float32, N may be 0."""
    leaves = [tf.cast(tf.reshape(x, [-1]), tf.float32) for x in tf.nest.flatten(structure)]
    return tf.concat([tf.zeros([0]), *leaves], 0)


def infinite_where_unsound(pooled: Any) -> Any:
    """Return weights that a rule gives with infinity for each variance that is no finite number above 0.

    No later step makes it finite again, as a floor does of a negative number, so that `spoilt` finds it in any engine.
    """
    sound = lambda v: tf.where(tf.math.is_finite(v) & (v > 0), v, tf.constant(np.inf, v.dtype))
    return pooled._replace(posterior=map_positive(sound, pooled.posterior))


def spoilt(state: Any, rule: str, step: str, bound: float) -> str | None:
    """Return what is wrong with the server's state after a round, by its rule or its step; None if nothing is."""
    finite = lambda structure: all(np.isfinite(x).all() for x in tf.nest.flatten(structure))
    if not finite(positive_leaves(state.weights.posterior)):
        return (
            f"The rule {rule!r} gives variances in round {state.round} that are not finite numbers above 0: correct "
            "its function pool, or, where they overflow, take a smaller step"
        )
    if finite((state.weights, state.step)) and is_within(state.weights, bound):
        return None
    return (
        f"The server's weights are not finite, or beyond {bound:g}, after round {state.round}, by its step {step}: "
        "take a smaller step, at the server or the clients"
    )


def is_sound(fault: tf.Tensor) -> tf.Tensor:
    """Return whether a code states no fault, elementwise."""
    # Not `fault == 0`: in the graphs that TFF traces, `==` compares tensors as Python objects.
    return tf.equal(fault, 0)


def posterior_of(sent: TensorTree) -> Any:
    """Return the posterior in what a client sends; one over nothing if there is none."""
    return getattr(sent, "posterior", None) or MeanField((), ())
