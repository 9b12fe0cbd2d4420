"""Passes over one client's examples in batches, for all client work by gradient steps."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator
from typing import Any, Callable, Optional, TypeVar

import tensorflow as tf

from tfp_bfl.data import ClientExamples
from tfp_bfl.data.augmentation import Augmentation
from tfp_bfl.layers import as_floats
from tfp_bfl.tensors import Scalar

State = TypeVar("State")
# No step draws from a seed folded by this.
_AUGMENTED = 2**29


@dataclasses.dataclass
class Augmenting:
    """The augmentation of the features of batches, and whether there is any."""

    augmentation: Augmentation
    used: bool = False


_augmenting: contextvars.ContextVar[Optional[Augmenting]] = contextvars.ContextVar("augmenting", default=None)


@contextlib.contextmanager
def augmenting(scope: Augmenting) -> Iterator[None]:
    """Change the features of every batch that `over_batches` takes inside the block, while it is traced."""
    token = _augmenting.set(scope)
    try:
        yield
    finally:
        _augmenting.reset(token)


def steps_per_epoch(num_examples: Scalar, batch_size: int) -> Any:
    """Return steps in a pass over N examples in batches of B, of which the last may be smaller: ceil(N / B)."""
    return (num_examples + batch_size - 1) // batch_size


def over_batches(
    examples: ClientExamples,
    seed: tf.Tensor,
    num_epochs: int,
    batch_size: int,
    step: Callable[[State, tf.Tensor, tf.Tensor, tf.Tensor], State],
    state: State,
) -> State:
    """Return the state after `step(state, features, labels, seed)` on each batch of each epoch.

    Each epoch has a new order; its last batch may be smaller. Features are floats, integers scaled to [0, 1].

    Args:
      examples: features [N, ...], labels [N].
      seed: [2], of the orders and of the steps.
      state: what the first step is given, a structure of tensors.
    """
    num_examples = tf.shape(examples.labels)[0]
    num_steps = steps_per_epoch(num_examples, batch_size)

    # Loops written out: AutoGraph would read the code of the model and of all that a step calls.
    def an_epoch(epoch: tf.Tensor, state: State) -> tuple[tf.Tensor, State]:
        epoch_seed = tf.random.experimental.stateless_fold_in(seed, epoch)
        order = tf.random.experimental.stateless_shuffle(tf.range(num_examples), epoch_seed)

        def a_step(i: tf.Tensor, state: State) -> tuple[tf.Tensor, State]:
            step_seed = tf.random.experimental.stateless_fold_in(epoch_seed, i)
            rows = order[i * batch_size : (i + 1) * batch_size]
            features = _batch(tf.gather(examples.features, rows), step_seed)
            return i + 1, step(state, features, tf.gather(examples.labels, rows), step_seed)

        return epoch + 1, tf.while_loop(lambda i, _: i < num_steps, a_step, (tf.constant(0), state))[1]

    return tf.while_loop(lambda epoch, _: epoch < num_epochs, an_epoch, (tf.constant(0), state))[1]


def _batch(features: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    features, scope = as_floats(features), _augmenting.get()
    if scope is None:
        return features
    scope.used = True
    return scope.augmentation(features, tf.random.experimental.stateless_fold_in(seed, _AUGMENTED))


def without_initial_values(create: Callable[..., tf.Variable], **kwargs: object) -> tf.Variable:
    """Spare the random initial weights: the server's message overwrites them."""
    if kwargs.get("shape") is not None and tf.TensorShape(kwargs["shape"]).is_fully_defined():
        kwargs["initial_value"] = lambda: tf.zeros(kwargs["shape"], kwargs.get("dtype") or tf.float32)
    return create(**kwargs)
