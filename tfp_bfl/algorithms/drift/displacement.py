"""The length of a client's SGD steps for a gradient of one, which turns a displacement into a mean gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tfp_bfl.defaults import LOCAL_EPOCHS
from tfp_bfl.errors import InvalidArgument, shown
from tfp_bfl.posterior import flatten, unflatten
from tfp_bfl.tensors import Scalar
from tfp_bfl.training.batches import steps_per_epoch
from tfp_bfl.training.inference import default_optimizer, default_rate, settings_for
from tfp_bfl.training.optimizers import SGD, Optimizer, optimizer_of
from tfp_bfl.training.schedules import inverse_decay
from tfp_bfl.training.updates import Schedule, rate_of
from tfp_bfl.weights import ModelWeights


class Reach(NamedTuple):
    """The displacement of a client's training under a gradient of one in each step, as rate times steps.

    Fields:
      rate: of the round, a scalar.
      steps: the sum of the coefficients of the gradients: the number of steps tau, and with momentum m
        (tau - m (1 - m^tau) / (1 - m)) / (1 - m).
    """

    rate: tf.Tensor
    steps: tf.Tensor


def reach_of(
    *,
    local_epochs: int = LOCAL_EPOCHS,
    batch_size: int = 32,
    learning_rate: Schedule | None = None,
    optimizer_fn: Optimizer | None = None,
    inference: str | None = None,
    update_prior: bool = False,
    **others: object,
) -> Callable[[Scalar, Scalar], Reach]:
    """Return the function from the round and a client's number of examples to its `Reach`.

    Args:
      local_epochs, batch_size, learning_rate, optimizer_fn, inference, update_prior, others: as of
        `clients.variational`, with its defaults.

    Raises:
      InvalidArgument: means that do not move by SGD, or by Nesterov's momentum.

    Source: Wang et al. 2020 (arXiv:2007.07481), section 4.1, for the vector of coefficients.
    """
    settings = settings_for(inference, update_prior=update_prior, example_privacy=bool(others.get("example_privacy")))
    chosen: Optimizer = default_optimizer(update_prior) if optimizer_fn is None else optimizer_fn
    built: Any = optimizer_of(chosen)()
    if not isinstance(built, SGD) or built.nesterov or settings.inference in ("natural", "ivon"):
        means = f"inference {settings.inference!r}" if isinstance(built, SGD) and not built.nesterov else shown(chosen)
        raise InvalidArgument(
            f"The displacement of a client is its mean gradient for SGD alone, and here the step is by {means}: use "
            "optimizer 'sgd' or 'momentum' with inference 'curvature' or 'backprop'."
        )
    momentum = float(built.momentum or 0.0)
    rate = inverse_decay(default_rate(settings.inference, chosen)) if learning_rate is None else learning_rate

    def reach(round: Scalar, num_examples: Scalar) -> Reach:
        steps = tf.cast(local_epochs * steps_per_epoch(num_examples, batch_size), tf.float32)
        steps = tf.maximum(steps, 1.0)
        coefficients = (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)
        return Reach(tf.cast(rate_of(rate, round), tf.float32), coefficients)

    return reach


def flat_values(weights: ModelWeights) -> tf.Tensor:
    """Return means and point weights as one vector [D + P], in the order of `LinearTerm`."""
    return flatten((weights.posterior.mean, weights.point))


def with_flat_values(weights: ModelWeights, values: tf.Tensor) -> ModelWeights:
    """Return the weights with these means and point weights [D + P], all else as it is."""
    mean, point = unflatten(values, (weights.posterior.mean, weights.point))
    return weights._replace(posterior=weights.posterior._replace(mean=mean), point=point)
