"""The permutation test of posterior standard deviations: does their assignment to weights matter?"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfp_bfl import keras
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.evaluation.predictive import evaluate
from tfp_bfl.weights import layout


def evaluate_permuted(
    model: keras.Model, features: Any, labels: Any, permutation_seed: int = 0, **options: Any
) -> dict[str, float]:
    """Return the metrics of `evaluate` with the standard deviations of each layer's weights permuted among themselves.

    Means, and how wide each layer's posterior is, stay as they are. Where the scores stay too, which weight has which
    standard deviation says nothing; a spread that the data have determined loses by it.

    Args:
      model: with variational weights; it is left as it was.
      features, labels: as of `evaluate`.
      permutation_seed: of the permutation.
      **options: of `evaluate`.

    Raises:
      InvalidArgument: as `evaluate`, or a model without variational weights.
    """
    with permuted_stddevs(model, permutation_seed):
        return evaluate(model, features, labels, **options).metrics


@contextlib.contextmanager
def permuted_stddevs(model: keras.Model, seed: int = 0) -> Iterator[None]:
    """Permute the standard deviations of each variational weight tensor of the model inside the block.

    Raises:
      InvalidArgument: a model without variational weights.
    """
    weights = layout(model).variational
    if not weights:
        raise InvalidArgument(
            f"The model {model.name!r} has no variational weights, and so no standard deviations to permute."
        )
    before = [tf.identity(w.scale) for w in weights]
    try:
        for number, w in enumerate(weights):
            values = tf.convert_to_tensor(w.log_stddev)
            flat = tf.reshape(values, [-1])
            order = tf.random.experimental.stateless_shuffle(tf.range(tf.size(flat)), [seed, number])
            w.assign_log_stddev(tf.reshape(tf.gather(flat, order), values.shape))
        yield
    finally:
        for w, scale in zip(weights, before):
            w.scale.assign(scale)
