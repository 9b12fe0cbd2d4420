"""Structures of tensors as blocks of weights in float64, so that no copy of a large posterior is made at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfp_bfl.tensors import TensorTree

# Numbers in one block: 32 MB of float64.
BLOCK = 2**22


def width(num_rows: int) -> int:
    """Return the number of weights in a block of matrices with so many rows."""
    return max(1, BLOCK // max(1, num_rows))


def blocks(structure: TensorTree, leading: int, width: int) -> Iterator[tf.Tensor]:
    """Return the leaves, one after another, in blocks of at most `width` weights: [*leading axes, width], float64."""
    for leaf in tf.nest.flatten(structure):
        size = leaf.shape[leading:].num_elements()
        flat = tf.reshape(leaf, [*leaf.shape[:leading], size])
        for start in range(0, size, width):
            yield tf.cast(flat[..., start : start + width], tf.float64)


def join(parts: Sequence[tf.Tensor], like: TensorTree, width: int) -> Any:
    """Return a structure of the shapes of `like`, after the leading axes of the blocks: the inverse of `blocks`."""
    remaining = iter(parts)
    leaves = []
    for leaf in tf.nest.flatten(like):
        size = leaf.shape.num_elements()
        part = [next(remaining) for _ in range(0, size, width)]
        leading = parts[0].shape[:-1]
        flat = tf.concat(part, -1) if part else tf.zeros([*leading, 0], parts[0].dtype)
        leaves.append(tf.reshape(flat, [*leading, *leaf.shape]))
    return tf.nest.pack_sequence_as(like, leaves)
