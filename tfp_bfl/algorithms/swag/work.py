"""SWAG: a Gaussian posterior from the iterates of stochastic gradient descent at a constant rate."""

import functools
from collections.abc import Callable

import tensorflow as tf

from tfp_bfl import keras
from tfp_bfl.algorithms.swag import swag_moments
from tfp_bfl.contracts import CLIENT_POSTERIOR, ClientWork, Work
from tfp_bfl.data import ClientExamples
from tfp_bfl.errors import InvalidArgument, check_count, check_counts, check_number, check_numbers, shown
from tfp_bfl.layers import as_floats, sampling, without_autograph
from tfp_bfl.models import as_model_fn
from tfp_bfl.posterior import LowRank, MeanField
from tfp_bfl.tensors import Scalar, TensorTree
from tfp_bfl.training.batches import over_batches, steps_per_epoch, without_initial_values
from tfp_bfl.training.inference import stating
from tfp_bfl.training.likelihoods import Likelihood, parse_likelihood
from tfp_bfl.training.trainer import Trainer
from tfp_bfl.training.updates import ByOptimizer
from tfp_bfl.weights import (
    ClientPosterior,
    ClientResult,
    FlatWeights,
    ServerMessage,
    assign_weights,
    batch_moments,
    get_weights,
    layout,
    split_head,
)

# Examples on which a client computes BatchNorm's statistics at the mean of its posterior, and at once through the
# feature network.
NORMALIZED_AT_ONCE = 1000
FEATURES_AT_ONCE = 256
# No step of a training draws from a seed folded by this.
_OF_CURVATURE = 2**29 + 1


@stating
def swag(
    model_fn: Callable[[], keras.Model],
    *,
    last_layer: bool = False,
    local_epochs: int = 20,
    burn_in_epochs: int | None = None,
    collect_every: int | None = None,
    max_columns: int = 20,
    min_variance: float = 1e-6,
    batch_size: int = 32,
    learning_rate: float = 0.05,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    curvature: bool = False,
    likelihood: str | Likelihood = "categorical",
) -> ClientWork[ClientPosterior]:
    """Return client work that runs SGD from the server's weights and returns the SWAG posterior of its iterates.

    theta_(i + 1) = theta_i - rate v_i,   v_i = momentum v_(i - 1) + grad loss_i + weight_decay theta_i
    q = N(mean, max(Sigma_diag, min_variance) / 2 + D D^T / (2 (K - 1)))

    with the mean, the variances Sigma_diag and the deviations D of the iterates that are collected (`posterior.
    swag_moments`), and loss_i the mean negative log likelihood of a batch. The moments take max_columns + 3
    times the memory of the weights.

    SGD's iterates spread by the noise of its gradients, not by what the data leave open: with `curvature` the diagonal
    has this besides,

    1 / (H + 1 / t^2),   t^2 = mean_d mean_d^2

    with the Gauss-Newton diagonal H of all the client's examples at the mean, and t^2 from the weights of each tensor.

    Args:
      model_fn: builds a Keras model without variational layers that returns logits [B, C]; or such a model.
      last_layer: the posterior is over the last layer alone, on features that are computed once; all below stays as the
        server sent it, with BatchNorm's moving statistics. False: over all weights.
      local_epochs: passes over the client's examples, each in a new order.
      burn_in_epochs: the first of them, before the moments start: theta_0 is where they end; None for half of them.
        Clients that collect on their way share where they began, and there the product of their posteriors lies: each
        is wide along its own way, and only there.
      collect_every: steps between two collected iterates; None for one an epoch.
      max_columns: of the deviations that are kept, the last ones: K.
      min_variance: floor of Sigma_diag.
      batch_size, learning_rate, momentum: of the steps; a constant rate that is high, so that the iterates spread.
      weight_decay: the gradient of weight_decay ||theta||^2 / 2, a prior N(0, 1 / (N_k weight_decay)): the product of
        several clients holds it several times.
      curvature: what the data leave open widens the posterior too, for one more pass over them.
      likelihood: of the labels (`clients.LIKELIHOODS`).

    It sends a `ClientPosterior` with a `LowRank` over the last layer's weights or all of them.

    Source: Maddox et al. 2019 (arXiv:1902.02476), algorithm 1; Makni 2022, Train-SWAG. Departure: a prior, a burn-in
    or curvature (MacKay 1992, Laplace's approximation) can be given.
    """
    model_fn, of_labels = as_model_fn(model_fn), parse_likelihood(likelihood)
    check_counts(local_epochs=local_epochs, batch_size=batch_size)
    burn_in_epochs = local_epochs // 2 if burn_in_epochs is None else check_count(burn_in_epochs, "burn_in_epochs", 0)
    check_count(max_columns, "max_columns", 2)
    check_numbers(min_variance=min_variance, learning_rate=learning_rate)
    check_count(1 if collect_every is None else collect_every, "collect_every")
    if local_epochs - burn_in_epochs < (2 if collect_every is None else 1):
        few = f"of {local_epochs} local epochs {burn_in_epochs} are burn-in"
        raise InvalidArgument(f"SWAG needs at least two columns, but {few}: ask for more epochs, or less burn-in.")
    check_number(weight_decay, "weight_decay", zero=True)
    if check_number(momentum, "momentum", zero=True) >= 1:
        raise InvalidArgument(f"momentum is {shown(momentum)}, but must be at least 0 and below 1.")

    def build() -> Work[ClientPosterior]:
        with tf.variable_creator_scope(without_initial_values):
            model = model_fn()
            swag_weights(model, last_layer)
            parts = split_head(model) if last_layer else None
        network = parts.head if parts else model
        optimizer_fn = functools.partial(keras.optimizers.SGD, momentum=momentum)
        update_fn = functools.partial(ByOptimizer, optimizer_fn=optimizer_fn, learning_rate=learning_rate)
        trainer = Trainer(lambda: network, update_fn, weight_decay=weight_decay, likelihood=of_labels)

        @tf.function(autograph=False)
        def work(message: ServerMessage, examples: ClientExamples, seed: tf.Tensor) -> ClientResult[ClientPosterior]:
            assign_weights(model, message.weights)
            local_message = message._replace(weights=get_weights(network))
            if parts:
                examples = examples._replace(features=_features(parts.features, examples.features))
            num_examples = tf.shape(examples.labels)[0]
            an_epoch = steps_per_epoch(num_examples, batch_size)
            every, first = collect_every or an_epoch, burn_in_epochs * an_epoch
            collect = functools.partial(_collect, trainer.weights, first, every, max_columns)
            start = swag_moments.start(trainer.weights.flatten(local_message.weights.point), max_columns)
            metrics, moments = trainer.train(local_message, examples, seed, local_epochs, batch_size, collect, start)
            q = _posterior(trainer.weights, moments, min_variance)
            if curvature:
                known = sampled_curvature(network, trainer.weights, of_labels, examples, seed, batch_size)
                q = with_curvature(q, trainer.weights.unflatten(known))
            client = tf.reduce_max(tf.concat([[-1], examples.client], 0))  # -1: it has no examples.
            local = ClientPosterior(client, num_examples, q, _statistics(network, q, examples.features, seed))
            return ClientResult(local, num_examples, metrics)

        return work

    return ClientWork(build, sends=CLIENT_POSTERIOR)


@without_autograph
def _collect(
    weights: FlatWeights,
    first: tf.Tensor,
    every: Scalar,
    max_columns: int,
    moments: swag_moments.SwagMoments,
    steps: tf.Tensor,
) -> swag_moments.SwagMoments:
    """Return the moments after a step: begun anew after the `first`, then with one of `every` iterates added."""
    values = tf.identity(weights.values)
    moments = tf.cond(tf.equal(steps, first), lambda: swag_moments.start(values, max_columns), lambda: moments)
    due = (steps > first) & tf.equal((steps - first) % every, 0)
    return tf.cond(due, lambda: swag_moments.collect(moments, values), lambda: moments)


@without_autograph
def _posterior(weights: FlatWeights, moments: swag_moments.SwagMoments, min_variance: float) -> LowRank:
    """Return the posterior of the moments, and set the weights to its mean.

    Of fewer than two iterates the mean is NaN: the round leaves out the client and names it; an assertion would end
    the round.
    """
    enough = moments.num_collected >= 2
    moments = moments._replace(num_collected=tf.maximum(moments.num_collected, 2))
    q = swag_moments.posterior_of(moments, min_variance)
    q = q._replace(mean=tf.where(enough, q.mean, float("nan")))
    weights.values.assign(q.mean)
    return LowRank(*map(weights.unflatten, q))


@without_autograph
def _statistics(network: keras.Model, q: LowRank, features: tf.Tensor, seed: tf.Tensor) -> MeanField:
    """Return BatchNorm's statistics at the posterior's mean; empty for a network without it."""
    if not layout(network).moving_mean:
        return MeanField((), ())
    images = as_floats(features[:NORMALIZED_AT_ONCE])
    with sampling("mean", seed):
        return batch_moments(network, q.mean, images)


@without_autograph
def sampled_curvature(
    model: keras.Model,
    weights: FlatWeights,
    likelihood: Likelihood,
    examples: ClientExamples,
    seed: tf.Tensor,
    batch_size: int,
) -> tf.Tensor:
    """Return the diagonal of the Gauss-Newton matrix of the negative log likelihood of all examples, where the weights
    are.

    H = sum_n E_y[(d -log p(y | x_n) / d w)^2],   y from the model's own prediction

    estimated in one pass, with one label drawn for each example: sum_B (sum_(n in B) g_n)^2 over batches B has H as its
    expectation, as drawn labels are independent and their gradients g_n have the mean 0.

    Args:
      model: without variational layers.
      weights: those of the model; their `values` count.
      likelihood: of the labels.
      examples: features [N, ...], labels [N].
      seed: [2].
      batch_size: B.

    Returns:
      [P], as `weights.values`.

    Source: Martens 2020 (arXiv:1412.1193), section 9.2.
    """
    weights.update_model()

    @without_autograph
    def add(total: tf.Tensor, features: tf.Tensor, labels: tf.Tensor, step_seed: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights.point)
            with sampling("mean", step_seed):
                outputs = model(features, training=True)
            loss = tf.reduce_sum(likelihood.nll_of_drawn(labels, outputs, step_seed))
        gradients = tape.gradient(loss, weights.point, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return total + tf.square(weights.flatten(gradients))

    own_seed = tf.random.experimental.stateless_fold_in(seed, _OF_CURVATURE)
    return over_batches(examples, own_seed, 1, batch_size, add, tf.zeros_like(weights.values))


def with_curvature(q: LowRank, known: TensorTree) -> LowRank:
    """Return a posterior, its diagonal widened by what the data leave open.

    1 / (H + 1 / t^2),   t^2 = mean_d mean_d^2

    Laplace's approximation with a prior N(0, t^2) for each tensor, as wide as its weights: without one, a
    weight of which the data say nothing would be infinitely wide.

    Args:
      q: its means are where H was taken.
      known: H, a structure of the means'.

    Source: MacKay 1992, with t^2 from the weights themselves.
    """

    def left_open(mean: tf.Tensor, known: tf.Tensor) -> tf.Tensor:
        prior = tf.reduce_mean(tf.square(mean))
        return prior / (1 + known * prior)

    return q._replace(diagonal=tf.nest.map_structure(lambda d, m, h: d + left_open(m, h), q.diagonal, q.mean, known))


def swag_weights(model: keras.Model, last_layer: bool = False) -> list[tf.Variable]:
    """Return the model's variables that the posterior is over: the last of its point weights."""
    if layout(model).variational:
        raise InvalidArgument(
            f"SWAG finds a posterior over point weights, and the layers of {model.name!r} have one of their own: build "
            "the model with kind 'deterministic' or 'mc_dropout'."
        )
    return layout(split_head(model).head if last_layer else model).point


def smallest_client(
    *,
    local_epochs: int = 20,
    burn_in_epochs: int | None = None,
    collect_every: int | None = None,
    batch_size: int = 32,
    **others: object,
) -> int:
    """Return the number of examples from which on a client collects two columns, arguments as of `swag`."""
    del others
    burn_in_epochs = check_count(local_epochs, "local_epochs") // 2 if burn_in_epochs is None else burn_in_epochs
    if collect_every is None:
        return 1
    steps_an_epoch = -(-2 * collect_every // (local_epochs - burn_in_epochs))
    return (steps_an_epoch - 1) * batch_size + 1


@without_autograph
def _features(network: keras.Model, inputs: tf.Tensor) -> tf.Tensor:
    """Compute the outputs of the frozen network for all examples [N, ...], a few at a time: [N, F]."""
    number = tf.shape(inputs)[0]
    size = FEATURES_AT_ONCE

    def some(i: tf.Tensor) -> tf.Tensor:
        part = as_floats(inputs[i * size : (i + 1) * size])
        with sampling("mean"):
            features = tf.cast(network(part, training=False), tf.float32)
        return tf.pad(features, [[0, size - tf.shape(features)[0]], [0, 0]])

    spec = tf.TensorSpec([size, network.output_shape[-1]], tf.float32)
    parts = tf.map_fn(some, tf.range(steps_per_epoch(number, size)), fn_output_signature=spec, parallel_iterations=1)
    return tf.reshape(parts, [-1, network.output_shape[-1]])[:number]
