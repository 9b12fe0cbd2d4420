"""The arithmetic on structures of tensors that lets a rule read like its equation, and rules by name."""

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import tensorflow as tf

from tfp_bfl import named
from tfp_bfl.contracts import GatherRule, Pooled, Rule
from tfp_bfl.errors import InvalidArgument, shown
from tfp_bfl.posterior import MeanField
from tfp_bfl.tensors import TensorTree
from tfp_bfl.weights.kinds import Statistics

Weights = TypeVar("Weights")
Structure = TypeVar("Structure")
# `tfp_bfl.rules` fills it.
RULES: dict[str, Any] = {}


def each(function: Callable[..., TensorTree], *structures: TensorTree) -> Any:
    """Return `function` on the corresponding leaves of structures of tensors."""
    return tf.nest.map_structure(function, *structures)


def add(a: Structure, b: Structure) -> Structure:
    """Return the sum of two clients' statistics, leaf by leaf."""
    return tf.nest.map_structure(tf.add, a, b)


def typed_as(weight: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """Return a scalar weight in the type of the tensor that it multiplies."""
    return tf.cast(weight, like.dtype)


def stddevs(q: MeanField) -> Any:
    """Return the standard deviations, one where there is none: a unit of means."""
    return each(lambda v: tf.where(v > 0, tf.sqrt(v), tf.ones_like(v)), q.variance)


class Clipped(NamedTuple, Generic[Statistics]):
    """Hold statistics, and the number of clients, or of numbers, that a bound cut."""

    sums: Statistics
    clipped: tf.Tensor


def kept(rule: tuple[object, ...], **changed: object) -> dict[str, Any]:
    """Return the fields that a rule keeps when another is made of it, with some changed."""
    return {**{name: getattr(rule, name) for name in ("name", "traits", "takes", "gives")}, **changed}


def without_noise_of_server(rule: Structure) -> Structure:
    """Return the rule; raise InvalidArgument for one with noise (`rules.private`), which another around it loses."""
    if getattr(rule, "randomise", None) is not None:
        raise InvalidArgument(
            f"The rule {getattr(rule, 'name', rule)!r} hides clients by noise, which another rule around it would not "
            "add: leave the other one out."
        )
    return rule


def with_metrics(pooled: Pooled[Weights], **metrics: tf.Tensor) -> Pooled[Weights]:
    """Return what a rule pooled with more metrics; its own win."""
    return pooled._replace(metrics={**metrics, **pooled.metrics})


def checked_pool(name: str, pooled: Pooled[Weights]) -> Pooled[Weights]:
    """Return what the `pool` of a rule of this name returned."""
    if not isinstance(pooled, Pooled):
        raise InvalidArgument(
            f"The rule {name!r} pools a {type(pooled).__name__}, but must return rules.Pooled(weights, metrics), "
            "such as rules.Pooled(posterior)."
        )
    return pooled


def parse_rule(text: str) -> Rule:
    """Return the rule that text names: "conflation", or "name:ARGUMENT" of one with a parameter.

    Example:
      >>> clients = bfl.posterior.MeanField(np.array([[0.0], [3.0]]), np.array([[1.0], [2.0]]))
      >>> pooled = bfl.rules.aggregate(bfl.rules.parse_rule("conflation"), clients)
      >>> print(np.round(pooled.mean, 3))
      [1.]
    """
    return named.parse(RULES, text, "rule")()


def check_rule(rule: object) -> None:
    """Raise InvalidArgument for anything but a `Rule` or a `GatherRule`."""
    if not isinstance(rule, (Rule, GatherRule)):
        name = getattr(rule, "__name__", rule)
        raise InvalidArgument(
            f"rule must be a Rule, such as tfp_bfl.rules.conflation() with its brackets, not {shown(name)}."
        )
