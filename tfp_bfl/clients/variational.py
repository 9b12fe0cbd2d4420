"""Local training by the negative evidence lower bound (ELBO)."""

from __future__ import annotations

from typing import Any, Callable, Union

import tensorflow as tf

from tfp_bfl.errors import check_count
from tfp_bfl.layers import sampling
from tfp_bfl.models import (
    ClientResult,
    ServerMessage,
    TrainingMetrics,
    assign_weights,
    get_weights,
    layout,
    prior,
)
from tfp_bfl.posterior import gaussian_kl

Schedule = Union[float, Callable[[tf.Tensor], tf.Tensor]]


def variational(
    model_fn: Callable[[], tf.keras.Model],
    *,
    local_epochs: int = 1,
    batch_size: int = 32,
    learning_rate: Schedule = 1e-3,
    optimizer_fn: Callable[[], tf.keras.optimizers.Optimizer] = tf.keras.optimizers.Adam,
) -> Callable[[ServerMessage, Any, tf.Tensor], ClientResult]:
    """Client work that fits the posterior to the client's data from the server's posterior on.

    loss = (1 / B) sum_b -log p(y_b | x_b, w) + KL[q || prior] / N_k,   w ~ q

    the negative ELBO per example (Blundell et al. 2015, eq. 2; Fischer et al. 2024, eq. 5), N_k this client's examples.
    A model without variational weights has no KL: its loss is the likelihood's (deterministic, or with Monte Carlo
    dropout's masks).

    Args:
      model_fn: builds a Keras model that returns logits [B, C].
      local_epochs: passes over the client's examples, each in a new order; the last batch of a pass may be smaller.
      batch_size: B.
      learning_rate: a number, or a function from the rounds done so far (scalar int32, 0 in the first) to a scalar.
      optimizer_fn: builds a Keras optimizer, whose learning rate is then set to that; its state starts anew each round.

    Returns:
      A function of the server's message, the client's examples (features [N, ...], labels [N]) and a seed [2] int32.

    Raises:
      InvalidArgument: local_epochs or batch_size below 1.
    """
    check_count(local_epochs, "local_epochs")
    check_count(batch_size, "batch_size")

    def work(message: ServerMessage, examples: Any, seed: tf.Tensor) -> ClientResult:
        with tf.variable_creator_scope(_without_initial_values):
            model, optimizer = model_fn(), optimizer_fn()
            optimizer.build(model.trainable_variables)
        divergence = _divergence(model)
        num_examples = tf.shape(examples.labels)[0]
        count = tf.cast(num_examples, tf.float32)

        def step(rows: tf.Tensor, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            features = tf.image.convert_image_dtype(tf.gather(examples.features, rows), tf.float32)
            labels = tf.gather(examples.labels, rows)
            with tf.GradientTape() as tape:
                with sampling("flipout", seed):
                    logits = model(features, training=True)
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
                kl = divergence()
                loss = tf.reduce_mean(losses) + kl / count
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables))
            return tf.reduce_sum(losses), kl

        @tf.function
        def train() -> tuple[tf.Tensor, tf.Tensor]:
            assign_weights(model, message.weights)
            optimizer.learning_rate.assign(learning_rate(message.round) if callable(learning_rate) else learning_rate)
            steps = (num_examples + batch_size - 1) // batch_size
            total_nll, total_kl = tf.constant(0.0), tf.constant(0.0)
            for epoch in tf.range(local_epochs):
                epoch_seed = tf.random.experimental.stateless_fold_in(seed, epoch)
                order = tf.random.experimental.stateless_shuffle(tf.range(num_examples), epoch_seed)
                for i in tf.range(steps):
                    step_seed = tf.random.experimental.stateless_fold_in(epoch_seed, i)
                    nll, kl = step(order[i * batch_size : (i + 1) * batch_size], step_seed)
                    total_nll += nll
                    total_kl += kl
            return total_nll / (count * local_epochs), total_kl / tf.cast(steps * local_epochs, tf.float32)

        nll, kl = train()
        with tf.control_dependencies([nll]):
            weights = tf.nest.map_structure(tf.identity, get_weights(model))
        return ClientResult(weights, num_examples, TrainingMetrics(nll, kl, -(nll + kl / count)))

    return work


def _divergence(model: tf.keras.Model) -> Callable[[], tf.Tensor]:
    """KL[q || prior] over one flat vector: a few ops, however many layers there are."""
    variables = layout(model).variational
    if not variables:
        return lambda: tf.constant(0.0)
    flat = lambda tensors: tf.concat([tf.reshape(t, [-1]) for t in tensors], 0)
    prior_mean, prior_variance = (flat(part) for part in prior(model))
    prior_log_stddev = 0.5 * tf.math.log(prior_variance)

    def divergence() -> tf.Tensor:
        mean, log_stddev = flat(w.mean for w in variables), flat(w.log_stddev for w in variables)
        return tf.reduce_sum(gaussian_kl(mean, log_stddev, prior_mean, prior_log_stddev))

    return divergence


def _without_initial_values(create: Callable[..., tf.Variable], **kwargs: Any) -> tf.Variable:
    """Spares the random initial weights: the server's message overwrites them."""
    if kwargs.get("shape") is not None and tf.TensorShape(kwargs["shape"]).is_fully_defined():
        kwargs["initial_value"] = lambda: tf.zeros(kwargs["shape"], kwargs.get("dtype") or tf.float32)
    return create(**kwargs)
