"""The arithmetic on structures of tensors that lets a rule read like its equation."""

from __future__ import annotations

from typing import Any, Callable

import tensorflow as tf

from tfp_bfl.contracts import Rule
from tfp_bfl.errors import InvalidArgument


def each(function: Callable[..., Any], *structures: Any) -> Any:
    """`function` on the corresponding leaves of structures of tensors."""
    return tf.nest.map_structure(function, *structures)


def add(a: Any, b: Any) -> Any:
    """The sum of two clients' statistics, leaf by leaf."""
    return each(tf.add, a, b)


def scale(weight: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """A scalar weight in the type of the tensor that it multiplies."""
    return tf.cast(weight, like.dtype)


def sharing(together: Callable[..., tuple[Any, dict[str, tf.Tensor]]]) -> dict[str, Any]:
    """The fields of a `Rule` or `GatherRule` whose metrics come from the work of pooling."""
    return {
        "pool": lambda *given: together(*given)[0],
        "metrics": lambda *given: together(*given)[1],
        "together": together,
    }


def check_rule(rule: Any) -> None:
    """Raises InvalidArgument for anything but a `Rule`."""
    if not isinstance(rule, Rule):
        name = getattr(rule, "__name__", rule)
        raise InvalidArgument(
            f"rule must be a Rule, such as tfp_bfl.rules.conflation() with its brackets, not {name!r}."
        )
