"""A Keras model in local training: its weights as flat vectors, an optimizer, and a step by the negative ELBO."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Union

import tensorflow as tf

from tfp_bfl.clients.batches import over_batches, without_initial_values
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.layers import sampling, without_autograph
from tfp_bfl.models import FlatWeights, ServerMessage, TrainingMetrics

Schedule = Union[float, Callable[[tf.Tensor], tf.Tensor]]


class _Sums(NamedTuple):
    nll: tf.Tensor
    kl: tf.Tensor
    steps: tf.Tensor


class Trainer:
    """Trains a model that it builds in the present graph; see `tfp_bfl.clients.variational` for what a step does.

    Args:
      model_fn: builds a Keras model that returns logits [B, C].
      optimizer_fn: builds a Keras optimizer.
      learning_rate: a number, or a function of the rounds done so far.
      proximal: mu of the term mu / 2 ||w - w_server||^2 over means and point weights.
      weight_decay: of the term weight_decay / 2 ||w||^2 over the same.
      prior_of: (weights, message) -> the prior of the round.

    Attributes:
      weights: the model's `FlatWeights`.

    Raises:
      InvalidArgument: an optimizer that can't take vectors of all weights.
    """

    def __init__(
        self,
        model_fn: Callable[[], tf.keras.Model],
        optimizer_fn: Callable[[], tf.keras.optimizers.Optimizer],
        learning_rate: Schedule,
        proximal: float = 0.0,
        weight_decay: float = 0.0,
        prior_of: Callable[[FlatWeights, ServerMessage], Any] = lambda weights, message: weights.prior,
    ):
        with tf.variable_creator_scope(without_initial_values):
            self._model = model_fn()
            self.weights = FlatWeights(self._model)
        self._optimizer, self._reset = _resettable(optimizer_fn, self.weights.variables)
        self._learning_rate = learning_rate
        self._proximal = proximal
        self._weight_decay = weight_decay
        self._prior_of = prior_of

    @without_autograph
    def train(
        self,
        message: ServerMessage,
        examples: Any,
        seed: tf.Tensor,
        num_epochs: int,
        batch_size: int,
        after_step: Callable[[Any, tf.Tensor], Any] = lambda state, step: state,
        state: Any = (),
    ) -> tuple[TrainingMetrics, Any]:
        """Trains from the message's weights on; the weights are then in `weights`.

        Args:
          message, examples, seed: of the client work.
          num_epochs, batch_size: of `batches.over_batches`.
          after_step: (state, steps done so far) -> state, after each step.
          state: the first.

        Returns:
          The metrics, and the last state.
        """
        self._reset()
        self.weights.load(message.weights)
        prior, anchor = self._prior_of(self.weights, message), tf.identity(self.weights.values)
        rate = self._learning_rate
        self._optimizer.learning_rate.assign(rate(message.round) if callable(rate) else rate)
        count = tf.cast(tf.shape(examples.labels)[0], tf.float32)

        @without_autograph
        def step(carried: Any, features: tf.Tensor, labels: tf.Tensor, step_seed: tf.Tensor) -> Any:
            sums, own = carried
            nll, kl = self._step(features, labels, count, step_seed, prior, anchor)
            sums = _Sums(sums.nll + nll, sums.kl + kl, sums.steps + 1)
            return sums, after_step(own, sums.steps)

        start = _Sums(tf.constant(0.0), tf.constant(0.0), tf.constant(0))
        sums, state = over_batches(examples, seed, num_epochs, batch_size, step, (start, state))
        nll, kl = sums.nll / (count * num_epochs), sums.kl / tf.cast(sums.steps, tf.float32)
        return TrainingMetrics(nll, kl, -(nll + kl / count)), state

    def _step(
        self, features: tf.Tensor, labels: tf.Tensor, count: tf.Tensor, seed: tf.Tensor, prior: Any, anchor: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        weights = self.weights
        stddev, noise = weights.draw(seed)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([*weights.leaves, noise])
            with sampling("flipout", seed, weights.by_weight(noise)):
                logits = self._model(features, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_mean(losses)
        zero = tf.UnconnectedGradients.ZERO
        in_leaves, in_noise = tape.gradient(loss, (weights.leaves, noise), unconnected_gradients=zero)
        kl, kl_in_values, kl_in_log_stddev = weights.kl_divergence(stddev, prior)
        # noise = s eps, so that its derivative in log s is itself.
        in_values = weights.flatten(in_leaves) + kl_in_values / count
        if self._proximal:
            in_values += self._proximal * (weights.values - anchor)
        if self._weight_decay:
            in_values += self._weight_decay * weights.values
        in_log_stddev = in_noise * noise + kl_in_log_stddev / count
        self._optimizer.apply_gradients(list(zip([in_values, in_log_stddev], weights.variables)))
        weights.update_model()
        return tf.reduce_sum(losses), kl


def _resettable(
    optimizer_fn: Callable[[], tf.keras.optimizers.Optimizer], variables: list[tf.Variable]
) -> tuple[tf.keras.optimizers.Optimizer, Callable[[], None]]:
    """An optimizer of the variables, and a function that starts its state anew."""
    made: list[tuple[tf.Variable, Any]] = []

    def remember(create: Callable[..., tf.Variable], **kwargs: Any) -> tf.Variable:
        variable = create(**kwargs)
        made.append((variable, kwargs["initial_value"]))
        return variable

    with tf.variable_creator_scope(remember):
        optimizer = optimizer_fn()
        if not isinstance(optimizer, tf.keras.optimizers.Optimizer):
            raise InvalidArgument(
                f"optimizer_fn gives {type(optimizer)}, but must give an optimizer of tf.keras.optimizers, and not of "
                "its legacy module."
            )
        optimizer.build(variables)
    if isinstance(optimizer, tf.keras.optimizers.Adafactor) or optimizer.clipnorm:
        raise InvalidArgument(
            "optimizer_fn gives an optimizer that treats each weight tensor apart (Adafactor, or clipnorm), but here "
            "weights are flat vectors: use global_clipnorm, clipvalue, or another optimizer."
        )

    @without_autograph
    def reset() -> None:
        for variable, initial in made:
            variable.assign(initial() if callable(initial) else initial)

    return optimizer, reset
