"""Types of what functions take and give, where TensorFlow has none that a type checker sees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Union

import numpy as np
import tensorflow as tf

# A number, or a tensor of shape [].
Scalar = Union[float, tf.Tensor]
# An array of numbers, or what becomes one.
Array = Union[np.ndarray, tf.Tensor]
# A structure of tensors, arrays and numbers, as `tf.nest` knows them; NamedTuples are tuples.
TensorTree = Union[Array, float, tuple["TensorTree", ...], list["TensorTree"], Mapping[str, "TensorTree"]]
