"""A Keras model in local training: its weights as flat vectors, and steps by the negative ELBO."""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tfp_bfl import keras
from tfp_bfl.contracts import num_present
from tfp_bfl.data import ClientExamples
from tfp_bfl.layers import sampling, without_autograph
from tfp_bfl.training.batches import State, over_present, without_initial_values
from tfp_bfl.training.example_privacy import ExamplePrivacy, over_drawn, private_mean
from tfp_bfl.training.likelihoods import CATEGORICAL, Likelihood
from tfp_bfl.training.updates import Batch, Target, Update
from tfp_bfl.weights import FlatWeights, LinearTerm, ServerMessage, TrainingMetrics
from tfp_bfl.weights.flat import Draw

# Nats an example: a loss beyond it is that of a training that diverges.
_MAX_LOSS = 1e6
_NOTHING: Any = ()


class _Sums(NamedTuple):
    nll: tf.Tensor
    steps: tf.Tensor
    diverged_at: tf.Tensor


class _Rows(NamedTuple):
    """A batch's rows.

    Fields:
      present: which of them count [B]; None for all.
    """

    features: tf.Tensor
    labels: tf.Tensor
    present: tf.Tensor | None

    @property
    def size(self) -> tf.Tensor:
        """The number of rows that count."""
        if self.present is None:
            return tf.cast(tf.shape(self.labels)[0], tf.float32)
        return tf.math.count_nonzero(self.present, dtype=tf.float32)

    def counted(self, losses: tf.Tensor) -> tf.Tensor:
        """Return losses [B], those of rows that do not count zero."""
        return losses if self.present is None else tf.where(self.present, losses, tf.zeros_like(losses))

    def mean(self, losses: tf.Tensor) -> tf.Tensor:
        """Return the mean of counted losses."""
        return tf.reduce_mean(losses) if self.present is None else tf.reduce_sum(losses) / self.size


class Trainer:
    """Trains a model that it builds in the present graph; see `tfp_bfl.clients.variational` for what a step does.

    Args:
      model_fn: builds a Keras model that returns logits [B, C].
      update_fn: weights -> what steps them.
      proximal: mu of the term mu / 2 ||w - w_server||^2 over means and point weights.
      weight_decay: of the term weight_decay / 2 ||w||^2 over the same.
      likelihood: of the labels.
      example_privacy: clipping and noise of gradients; the update must then draw weights for a batch.

    Attributes:
      model: of which the weights are.
      weights: the model's `FlatWeights`.
      update: what steps them.
    """

    def __init__(
        self,
        model_fn: Callable[[], keras.Model],
        update_fn: Callable[[FlatWeights], Update],
        proximal: float = 0.0,
        weight_decay: float = 0.0,
        likelihood: Likelihood = CATEGORICAL,
        example_privacy: ExamplePrivacy | None = None,
    ):
        with tf.variable_creator_scope(without_initial_values):
            self.model = model_fn()
            self.weights = FlatWeights(self.model)
        self.update = update_fn(self.weights)
        self._proximal = proximal
        self._weight_decay = weight_decay
        self._likelihood = likelihood
        self._privacy = example_privacy

    @without_autograph
    def train(
        self,
        message: ServerMessage,
        examples: ClientExamples,
        seed: tf.Tensor,
        num_epochs: int,
        batch_size: int,
        after_step: Callable[[State, tf.Tensor], State] = lambda state, step: state,
        state: State = _NOTHING,
        target: Target | None = None,
        resume: Callable[[Update], None] = lambda update: None,
    ) -> tuple[TrainingMetrics, State]:
        """Train from the message's weights on; the weights are then in `weights`.

        A `LinearTerm` of the message is added to each gradient.

        Args:
          message, examples, seed: of the client work.
          num_epochs, batch_size: of `batches.over_batches`.
          after_step: (state, steps done so far) -> state, after each step.
          state: the first.
          target: None for the layers' own prior and the examples that there are.
          resume: sets the state of the update that earlier rounds left.

        Returns:
          The metrics, and the last state.
        """
        self.update.start(message.round, message.federation.rounds)
        resume(self.update)
        self.weights.load(message.weights)
        anchor = tf.identity(self.weights.values)
        linear = message.extra.gradient if isinstance(message.extra, LinearTerm) else None
        count = tf.cast(num_present(examples), tf.float32)
        target = target or Target(self.weights.prior, count)
        expected = tf.minimum(tf.cast(batch_size, tf.float32), count)  # of the examples of a drawn batch

        @without_autograph
        def step(
            carried: tuple[_Sums, State],
            features: tf.Tensor,
            labels: tf.Tensor,
            step_seed: tf.Tensor,
            present: tf.Tensor | None = None,
        ) -> tuple[_Sums, State]:
            sums, state = carried
            rows = _Rows(features, labels, present)
            nll = self._step(rows, step_seed, sums.steps, target, anchor, expected, linear)
            steps = sums.steps + 1
            diverged_at = tf.where(self._is_sound(nll, rows.size) | (sums.diverged_at > 0), sums.diverged_at, steps)
            sums = _Sums(sums.nll + nll, steps, diverged_at)
            return sums, after_step(state, sums.steps)

        start = _Sums(tf.constant(0.0), tf.constant(0), tf.constant(0))
        over: Any = over_drawn if self._privacy else over_present
        sums, state = over(examples, seed, num_epochs, batch_size, step, (start, state))
        nll = sums.nll / (count * num_epochs)
        kl, _, _ = self.weights.kl_divergence(tf.exp(self.weights.log_stddev), target.prior)
        return TrainingMetrics(nll, kl, -(nll + kl / target.size), sums.diverged_at), state

    def _is_sound(self, nll: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
        """Return whether the loss of a step, and the weights after it, are finite."""
        if self._privacy:  # The step would say something of the examples.
            return tf.constant(True)
        # By the sums, in one pass; NaN is below nothing. Weights may be NaN and the loss finite: ReLU gives 0 for NaN.
        total = tf.reduce_sum(self.weights.values) + tf.reduce_sum(self.weights.log_stddev)
        return (nll <= _MAX_LOSS * size) & tf.math.is_finite(total)

    def _step(
        self,
        rows: _Rows,
        seed: tf.Tensor,
        number: tf.Tensor,
        target: Target,
        anchor: tf.Tensor,
        expected: tf.Tensor,
        linear: tf.Tensor | None,
    ) -> tf.Tensor:
        draw = self.weights.draw(seed)
        if self._privacy:
            in_values = self._private(rows.features, rows.labels, seed, draw, expected)
            nll, in_noise, in_noise_of_drawn_labels = tf.constant(0.0), in_values[: draw.noise.shape[0]], None
        else:
            nll, in_values, in_noise, in_noise_of_drawn_labels = self._gradients(rows, seed, draw)
        target = target._replace(prior=self.weights.at_present(target.prior, draw.stddev))
        _, kl_in_values, kl_in_log_stddev = self.weights.kl_divergence(draw.stddev, target.prior)
        if self._proximal:
            in_values += self._proximal * (self.weights.values - anchor)
        if linear is not None:
            in_values += linear
        if self._weight_decay:
            in_values += self._weight_decay * self.weights.values
        kls = kl_in_values, kl_in_log_stddev
        # The gradient of examples in private has a bound and noise already.
        max_norm = None if self._privacy else self._likelihood.max_gradient_norm
        batch = Batch(in_values, in_noise, in_noise_of_drawn_labels, *kls, draw, rows.size, number, max_norm)
        self.update.step(batch, target)
        self.weights.update_model()
        return nll

    def _private(
        self, features: tf.Tensor, labels: tf.Tensor, seed: tf.Tensor, draw: Draw, size: tf.Tensor
    ) -> tf.Tensor:
        """Return the noised mean of the clipped gradients in means and point weights."""
        weights, settings = self.weights, self._privacy
        assert settings

        def of_one(example: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
            feature, label = example
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch([*weights.point, draw.noise])
                with sampling("shared", seed, weights.by_weight(draw.noise)):
                    outputs = self.model(feature[tf.newaxis], training=True)
                loss = tf.reduce_sum(self._likelihood.nll(label[tf.newaxis], outputs))
            zero = tf.UnconnectedGradients.ZERO
            in_point, in_noise = tape.gradient(loss, (weights.point, draw.noise), unconnected_gradients=zero)
            return weights.flatten([*([in_noise] if weights.has_posterior else []), *in_point])

        return private_mean(of_one, features, labels, settings, size, seed)

    def _gradients(
        self, rows: _Rows, seed: tf.Tensor, draw: Draw
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, Callable[[], tf.Tensor] | None]:
        """Return the sum of the batch's losses, and the first of `Batch`'s fields."""
        weights, draws_labels = self.weights, self.update.draws_labels
        # Shared by the batch, weights are mean + noise: the means' gradient is that in the noise.
        shared = self.update.noise == "shared" and weights.has_posterior
        watched = weights.point if shared else weights.leaves
        with tf.GradientTape(persistent=draws_labels, watch_accessed_variables=False) as tape:
            tape.watch([*watched, draw.noise])
            with sampling(self.update.noise, seed, weights.by_weight(draw.noise)):
                outputs = self.model(rows.features, training=True)
            losses = rows.counted(self._likelihood.nll(rows.labels, outputs))
            loss = rows.mean(losses)
        zero = tf.UnconnectedGradients.ZERO
        in_watched, in_noise = tape.gradient(loss, (watched, draw.noise), unconnected_gradients=zero)
        in_values = weights.flatten([*([in_noise] if shared else []), *in_watched])

        def in_noise_of_drawn_labels() -> tf.Tensor:
            own_seed = tf.random.experimental.stateless_fold_in(seed, 1)
            with tf.GradientTape(watch_accessed_variables=False) as of_outputs:
                of_outputs.watch(outputs)
                of_drawn = rows.mean(rows.counted(self._likelihood.nll_of_drawn(rows.labels, outputs, own_seed)))
            in_outputs = of_outputs.gradient(of_drawn, outputs)
            return tape.gradient(outputs, draw.noise, in_outputs, unconnected_gradients=zero)

        return tf.reduce_sum(losses), in_values, in_noise, in_noise_of_drawn_labels if draws_labels else None
