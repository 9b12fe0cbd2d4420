"""The sum of what clients send, whatever it is."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfp_bfl.contracts import TOTAL, ModelRule, Pooled


def total() -> ModelRule[Any, Any]:
    """Build the rule sum_k x_k over any structure of tensors: each client counts once, whatever its weight.

    Each client sends floats, and the server sees their sum alone.
    """
    return ModelRule(
        lambda local, anchor, weight: local,
        lambda a, b: tf.nest.map_structure(tf.add, a, b),
        lambda sums, anchor: Pooled(sums),
        name="total",
        takes=None,
        gives=TOTAL,
    )
