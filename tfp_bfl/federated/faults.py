"""What can be wrong with a client's contribution to a round."""

from __future__ import annotations

from typing import Any, Optional

import tensorflow as tf

from tfp_bfl.errors import InvalidArgument
from tfp_bfl.models import ClientResult, ModelWeights, change_norm
from tfp_bfl.posterior import MeanField, positive_leaves

# A contribution's code is its place here; the first is none.
FAULTS = (
    "",
    "no examples",
    "not finite",
    "variance zero or below",
    "weight not above zero",
    "change beyond max_change_norm",
    "fewer examples than min_examples",
    "the server's state has no memory of it",
)


def check_max_change_norm(max_change_norm: Optional[float], sends_weights: bool = True) -> None:
    """Raises InvalidArgument for a bound that is not above zero, or on messages that are no model's weights."""
    if max_change_norm is None:
        return
    if not max_change_norm > 0:
        raise InvalidArgument(
            f"max_change_norm is {max_change_norm}, but must be above zero, or None for changes of any size."
        )
    if not sends_weights:
        raise InvalidArgument(
            "max_change_norm bounds how far a client's weights move, and these clients send no weights: leave it out."
        )


def find_fault(
    result: ClientResult,
    anchor: ModelWeights,
    weight: tf.Tensor,
    max_change_norm: Optional[float] = None,
    min_examples: int = 1,
    known: Any = True,
) -> tf.Tensor:
    """The code of the first fault in what a client returns: a scalar int32, 0 if there is none.

    Args:
      result: of the client's work.
      anchor: the weights that the client started from.
      weight: with which the client would be pooled.
      max_change_norm: the largest `models.change_norm` of a sound client; None for any.
      min_examples: the fewest examples of a sound client.
      known: whether there is a row of the client's where clients keep something.
    """
    leaves = [tf.cast(tf.reshape(x, [-1]), tf.float32) for x in tf.nest.flatten((result.weights, result.memory))]
    variances = [tf.reshape(v, [-1]) for v in positive_leaves(posterior_of(result.weights))]
    too_far = max_change_norm is not None and change_norm(result.weights, anchor) > max_change_norm
    broken = (
        result.num_examples <= 0,
        ~tf.reduce_all(tf.math.is_finite(tf.concat(leaves, 0))),
        tf.reduce_any(tf.concat(variances, 0) <= 0) if variances else False,
        ~(tf.math.is_finite(weight) & (weight > 0)),
        too_far,
        result.num_examples < min_examples,
        ~tf.convert_to_tensor(known),
    )
    # Of booleans argmax is the first true one, and 0 if there is none.
    return tf.argmax(tf.cast(tf.stack([False, *broken]), tf.int32), output_type=tf.int32)


def is_sound(fault: tf.Tensor) -> tf.Tensor:
    """Whether a code says that there is no fault, elementwise."""
    # Not `fault == 0`: in the graphs that TFF traces, `==` compares tensors as Python objects.
    return tf.equal(fault, 0)


def posterior_of(sent: Any) -> Any:
    """The posterior in what a client sends; one over nothing if there is none."""
    return getattr(sent, "posterior", None) or MeanField((), ())
