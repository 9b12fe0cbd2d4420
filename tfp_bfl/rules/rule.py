"""What a rule is, and the arithmetic on structures of tensors that lets a rule read like its equation."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Optional

import tensorflow as tf

from tfp_bfl.errors import InvalidArgument
from tfp_bfl.posterior import MeanField


def each(function: Callable[..., Any], *structures: Any) -> Any:
    """`function` on the corresponding leaves of structures of tensors."""
    return tf.nest.map_structure(function, *structures)


def add(a: Any, b: Any) -> Any:
    """The sum of two clients' statistics, leaf by leaf."""
    return each(tf.add, a, b)


def scale(weight: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """A scalar weight in the type of the tensor that it multiplies."""
    return tf.cast(weight, like.dtype)


def no_metrics(total: Any, anchor: MeanField) -> dict[str, tf.Tensor]:
    """For rules with nothing to report."""
    del total, anchor
    return {}


class Rule(NamedTuple):
    """An aggregation rule, as pure functions of structures of tensors.

    Fields:
      summarise: (local, anchor, weight) -> statistics of one client. `local` and `anchor` are `MeanField`s (of
        `whole_model`: `ModelWeights`), `weight` a positive scalar that need not be normalised.
      merge: (statistics, statistics) -> statistics. Commutative and associative; all zeros change nothing.
      pool: (total, anchor) -> the pooled `MeanField`.
      name: as users spell it.
      uses_anchor: the equation itself holds the anchor (otherwise it only centres the sums).
      metrics: (total, anchor) -> scalars to report with the round.
      min_clients: the fewest for whom the rule is what its name says.
      together: (total, anchor) -> what pool and metrics give, of a rule whose two share work (`sharing`).
    """

    summarise: Callable[[Any, Any, tf.Tensor], Any]
    merge: Callable[[Any, Any], Any]
    pool: Callable[[Any, Any], Any]
    name: str = "custom"
    uses_anchor: bool = False
    metrics: Callable[[Any, Any], dict[str, tf.Tensor]] = no_metrics
    min_clients: int = 1
    together: Optional[Callable[[Any, Any], tuple[Any, dict[str, tf.Tensor]]]] = None

    def pool_with_metrics(self, total: Any, anchor: Any) -> tuple[Any, dict[str, tf.Tensor]]:
        """What `pool` and `metrics` give."""
        if self.together:
            return self.together(total, anchor)
        return self.pool(total, anchor), self.metrics(total, anchor)


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
