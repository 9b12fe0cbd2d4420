"""Training by gradients that say little of any one example: each is clipped, their sum is noised."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from tfp_bfl import keras
from tfp_bfl.data import ClientExamples
from tfp_bfl.errors import InvalidArgument, check_noise, check_number, shown
from tfp_bfl.layers import as_floats
from tfp_bfl.tensors import Scalar
from tfp_bfl.training.batches import State, steps_per_epoch
from tfp_bfl.weights import layout

# Which no other stream of a step is folded by (`batches`, `layers.noise`).
_OF_NOISE, _OF_BATCH = 2**29 + 1, 2**29 + 2


class ExamplePrivacy(NamedTuple):
    """Example-level differential privacy of a client's messages.

    g = (1 / B) (sum_(i in S) min(1, C / ||g_i||) g_i + s C z),   z ~ N(0, I)

    in the place of the batch's mean gradient, g_i of example i's -log p in means and point weights together; each
    example is in S with probability B / N, for itself. For a client with fewer examples than a batch, B is N. The KL's
    gradient knows no example, and neither does that of log s, which is the same g times the weights' noise.

    Fields:
      clip_norm: C.
      noise_multiplier: s. `privacy.epsilon(s, N, B, rounds * local_epochs * ceil(N / B))` is the epsilon of all steps.

    Source: Abadi et al. 2016 (arXiv:1607.00133), algorithm 1; Jaelkoe et al. 2017 (arXiv:1610.08749), for the ELBO.
    """

    clip_norm: float
    noise_multiplier: float

    def checked(self) -> ExamplePrivacy:
        """Check the values and return this object."""
        if not isinstance(self, ExamplePrivacy):
            raise InvalidArgument(
                f"example_privacy is {shown(self)}, but must be a training.ExamplePrivacy(clip_norm, noise_multiplier)."
            )
        check_number(self.clip_norm, "clip_norm")
        check_noise(self.noise_multiplier)
        return self


def check_alone(privacy: ExamplePrivacy, model: keras.Model, inference: str) -> None:
    """Raise InvalidArgument for wrong settings, and where a step asks for more of an example than its own gradient."""
    ExamplePrivacy.checked(privacy)
    places = layout(model)
    if places.moving_mean:
        raise InvalidArgument(
            f"The model {model.name!r} normalises by the batch, in which every example is part of the others' "
            "gradients: with example_privacy build it with normalization 'group' or 'none'."
        )
    if places.variational and inference != "backprop":
        raise InvalidArgument(
            f"Inference {inference!r} asks the examples for curvature besides, which example_privacy does not hide: "
            "use inference 'backprop'."
        )


def over_drawn(
    examples: ClientExamples,
    seed: tf.Tensor,
    num_epochs: int,
    batch_size: int,
    step: Callable[[State, tf.Tensor, tf.Tensor, tf.Tensor], State],
    state: State,
) -> State:
    """Return `batches.over_batches`, but that each example is in a batch with probability B / N, for itself.

    There are as many steps as in passes over all examples; the batch of one may be empty.
    """
    number = tf.shape(examples.labels)[0]
    share = tf.cast(batch_size, tf.float32) / tf.cast(number, tf.float32)

    def a_step(i: tf.Tensor, state: State) -> tuple[tf.Tensor, State]:
        step_seed = tf.random.experimental.stateless_fold_in(seed, i)
        batch_seed = tf.random.experimental.stateless_fold_in(step_seed, _OF_BATCH)
        rows = tf.where(tf.random.stateless_uniform([number], batch_seed) < share)[:, 0]
        features = as_floats(tf.gather(examples.features, rows))
        return i + 1, step(state, features, tf.gather(examples.labels, rows), step_seed)

    steps = num_epochs * steps_per_epoch(number, batch_size)
    return tf.while_loop(lambda i, _: i < steps, a_step, (tf.constant(0), state))[1]


def private_mean(
    gradient: Callable[[tuple[tf.Tensor, tf.Tensor]], tf.Tensor],
    features: tf.Tensor,
    labels: tf.Tensor,
    settings: ExamplePrivacy,
    batch_size: Scalar,
    seed: tf.Tensor,
) -> tf.Tensor:
    """Return g of `ExamplePrivacy` [D].

    Args:
      gradient: ((features, label) of one example) -> g_i [D].
      features, labels: of the examples in S, of which there may be none.
      batch_size: B, the number that is expected.
      seed: [2], of z.
    """
    # An example of zeros that counts nothing: a batch may be empty.
    one_more = lambda x: tf.concat([x, tf.zeros([1, *x.shape[1:]], x.dtype)], 0)
    each = tf.vectorized_map(gradient, (one_more(features), one_more(labels)))[:-1]
    # By the largest entry first: the squares of large ones overflow. An example without a finite gradient adds nothing.
    each = tf.where(tf.reduce_all(tf.math.is_finite(each), 1, keepdims=True), each, 0.0)
    largest = tf.reduce_max(tf.abs(each), 1, keepdims=True)
    unit = tf.math.divide_no_nan(each, largest)
    norms = tf.norm(unit, axis=1, keepdims=True)
    factor = tf.minimum(largest, tf.math.divide_no_nan(settings.clip_norm, norms))
    total = tf.reduce_sum(factor * unit, 0)
    noise_seed = tf.random.experimental.stateless_fold_in(seed, _OF_NOISE)
    noise = settings.noise_multiplier * settings.clip_norm * tf.random.stateless_normal(tf.shape(total), noise_seed)
    return (total + noise) / tf.cast(batch_size, tf.float32)
