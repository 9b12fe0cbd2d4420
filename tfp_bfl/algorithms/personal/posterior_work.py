"""Clients with personal posteriors, held to a common posterior."""

from collections.abc import Callable
from typing import Any, NamedTuple, Unpack

import tensorflow as tf

from tfp_bfl import keras
from tfp_bfl.contracts import ClientWork, Work
from tfp_bfl.data import ClientExamples
from tfp_bfl.errors import InvalidArgument, check_number
from tfp_bfl.layers import sampling
from tfp_bfl.models import as_model_fn
from tfp_bfl.posterior import MeanField, gaussian_kl
from tfp_bfl.tensors import Scalar
from tfp_bfl.training.batches import Passes, checked, over_batches, with_passes, without_initial_values
from tfp_bfl.training.inference import stating
from tfp_bfl.training.likelihoods import Likelihood, parse_likelihood
from tfp_bfl.training.optimizers import AdamState, adam_step
from tfp_bfl.training.updates import Schedule, check_schedules, rate_of
from tfp_bfl.weights import ClientResult, ModelWeights, ServerMessage, TrainingMetrics, layout
from tfp_bfl.weights.flat import Vectors, WeightVectors


class PersonalPosterior(NamedTuple):
    """The memory of a client between rounds.

    Fields:
      posterior: v_k, its own.
      rounds: that it was in, int32; before the first it has none of its own.
    """

    posterior: MeanField
    rounds: Any


class _Carried(NamedTuple):
    nll: tf.Tensor
    own: Vectors
    shared: Vectors
    of_own: AdamState
    of_shared: AdamState


@stating
@with_passes()
def personal_posterior(
    model_fn: Callable[[], keras.Model],
    *,
    learning_rate: Schedule = 1e-3,
    kl_weight: float = 10.0,
    likelihood: str | Likelihood = "categorical",
    **passes: Unpack[Passes],
) -> ClientWork:
    """Return client work that fits the client's own posterior v_k beside its copy w_k of the server's posterior w.

    v_k <- Adam, by the gradient of   mean over the batch of -log p(y | x, v_k) + zeta / N_k KL[v_k || w_k]
    w_k <- Adam, by the gradient of   zeta / N_k KL[v_k || w_k],   v_k held

    in each step, from the v_k of the client's last round (w in its first) and w_k = w. The client keeps v_k, by which
    the model predicts for it (`BayesianProcess.personal_weights`), and sends w_k. Point weights are trained with v_k
    and sent.

    Args:
      model_fn: builds a Keras model with variational weights and without BatchNorm; or such a model.
      local_epochs, batch_size: of the client's training.
      learning_rate: of both Adams, which begin anew in each round; a number or a function of the rounds done so far.
      kl_weight: zeta.
      likelihood: of the labels.

    Returns:
      Client work that keeps a `PersonalPosterior`.

    Source: Zhang et al. 2022 (arXiv:2206.07977), algorithm 1 (pFedBayes).
    """
    model_fn = as_model_fn(model_fn)
    local_epochs, batch_size = checked(passes)
    check_number(kl_weight, "kl_weight")
    check_schedules(learning_rate=learning_rate)
    density, own_layout = parse_likelihood(likelihood), layout(model_fn())
    if not own_layout.variational or own_layout.moving_mean:
        what = "BatchNorm's statistics" if own_layout.variational else "point weights only"
        raise InvalidArgument(
            f"A personal posterior is over a model's weights, and {model_fn().name!r} has {what}: build it with kind "
            "'flipout', and normalization 'group' or 'none'."
        )

    def memory(weights: ModelWeights, share: Scalar) -> PersonalPosterior:
        return PersonalPosterior(weights.posterior, tf.constant(0))

    def build() -> Work:
        with tf.variable_creator_scope(without_initial_values):
            weights = WeightVectors(model_fn())

        @tf.function(autograph=False)
        def work(message: ServerMessage, examples: ClientExamples, seed: tf.Tensor) -> ClientResult:
            count = tf.shape(examples.labels)[0]
            size, rate = tf.cast(count, tf.float32), rate_of(learning_rate, message.round)
            begin = message.weights._replace(posterior=_own(message.memory, message.weights).posterior)

            def divergence(own: Vectors, shared: Vectors) -> tf.Tensor:
                (mean, log_stddev), prior = weights.gaussian(own), weights.gaussian(shared)
                return tf.reduce_sum(gaussian_kl(mean, log_stddev, *prior))

            def step(carried: _Carried, features: tf.Tensor, labels: tf.Tensor, step_seed: tf.Tensor) -> _Carried:
                personal, shared = carried.own, carried.shared
                with tf.GradientTape(watch_accessed_variables=False) as tape, sampling("flipout", step_seed):
                    tape.watch(personal)
                    nll = tf.reduce_mean(density.nll(labels, weights.call(features, personal)))
                    loss = nll + kl_weight / size * divergence(personal, shared)
                in_own = tape.gradient(loss, personal)
                personal, of_own = adam_step(personal, in_own, carried.of_own, rate)
                personal = weights.projected(personal)
                with tf.GradientTape(watch_accessed_variables=False) as tape:
                    tape.watch(shared)
                    distance = kl_weight / size * divergence(personal, shared)
                in_shared = tape.gradient(distance, shared)
                shared, of_shared = adam_step(shared, in_shared, carried.of_shared, rate)
                return _Carried(carried.nll + nll, personal, weights.projected(shared), of_own, of_shared)

            own, shared = weights.load(begin), weights.load(message.weights)
            start = _Carried(tf.constant(0.0), own, shared, AdamState.of(own), AdamState.of(shared))
            done = over_batches(examples, seed, local_epochs, batch_size, step, start)
            nll, kl = done.nll / tf.cast(done.of_own.steps, tf.float32), divergence(done.own, done.shared)
            stored = weights.store(done.own, message.weights.moments)
            sent = weights.store(done.shared, message.weights.moments)._replace(point=stored.point)
            rows = PersonalPosterior(stored.posterior, message.memory.rounds + 1)
            return ClientResult(sent, count, TrainingMetrics(nll, kl, -(nll + kl / size)), memory=rows)

        return work

    return ClientWork(build, memory=memory, personal=lambda message, client: _own(message.memory, message.weights))


def _own(stored: PersonalPosterior, weights: ModelWeights) -> ModelWeights:
    """Return the weights that predict for a client: the server's where it was in no round."""
    mine = lambda own, server: tf.where(stored.rounds > 0, own, server)
    return weights._replace(posterior=tf.nest.map_structure(mine, stored.posterior, weights.posterior))
