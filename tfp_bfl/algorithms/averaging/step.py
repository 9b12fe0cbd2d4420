"""FedBE: an ensemble drawn from the clients' posterior teaches one model on the server's unlabelled data."""

import concurrent.futures
from collections.abc import Callable
from typing import cast

import numpy as np
import tensorflow as tf

from tfp_bfl import keras
from tfp_bfl.contracts import WEIGHTS, ServerStep, Stack, rows_of, stack_of
from tfp_bfl.errors import (
    SOFTMAX_TEMPERATURES,
    InvalidArgument,
    check_counts,
    check_number,
    check_numbers,
    lookup,
    shown,
)
from tfp_bfl.layers import as_floats, sampling
from tfp_bfl.models import as_model_fn
from tfp_bfl.posterior import MeanField, mixtures
from tfp_bfl.servers.pooled import after, check_point_weights, check_step, replace
from tfp_bfl.tensors import Array, TensorTree
from tfp_bfl.weights import ModelWeights, functional_call
from tfp_bfl.weights.change import Point

DISTRIBUTIONS = {"gaussian": "N(mean, variance over the clients) of each weight", "dirichlet": "mixtures of clients"}
EXAMPLES_AT_ONCE = 500


def distil(
    model_fn: Callable[[], keras.Model],
    features: Array,
    *,
    server_step: ServerStep | None = None,
    distribution: str = "gaussian",
    num_models: int = 10,
    concentration: float = 1.0,
    temperature: float = 1.0,
    num_epochs: int = 2,
    batch_size: int = 32,
    learning_rate: float = 1e-3,
) -> ServerStep[Stack[ModelWeights]]:
    """Teach the mean prediction of an ensemble to the mean of the clients' weights.

    teacher  p(x) = mean_m softmax(f(x; w_m)), sharpened: proportional to p(x)^(1 / T)
    student  minimises -sum_c p_c(x) log softmax_c(f(x; w)) by SGD from the mean; w is the mean of its iterates

    The ensemble: the K clients, their mean, and `num_models` draws, from N(mean, variance over the clients) or as
    sum_k g_k w_k with g ~ Dirichlet(concentration). The student's averaging (stochastic weight averaging) counts all
    steps alike. The server then takes w as its own step says.

    Args:
      model_fn: builds the Keras model, without variational layers; or such a model.
      features: unlabelled examples of the server's [U, ...]; integers are scaled to [0, 1].
      server_step: `replace()`, the default, or `optimize(...)`: of the server's weights and the student's.
      distribution: "gaussian" or "dirichlet".
      num_models: draws.
      concentration: of the Dirichlet distribution.
      temperature: T; below 1 the teacher is sharpened.
      num_epochs, batch_size, learning_rate: of the student's SGD.

    Returns:
      A step over what `tfp_bfl.rules.stacked` gives of `ModelWeights`. Memory: the clients' weights.

    Source: Chen & Chao 2021 (arXiv:2009.01974), algorithm 2.
    """
    lookup(DISTRIBUTIONS, distribution, "distribution of FedBE")
    check_counts(num_models=num_models, num_epochs=num_epochs, batch_size=batch_size)
    check_numbers(concentration=concentration, learning_rate=learning_rate)
    check_number(temperature, "temperature", within=SOFTMAX_TEMPERATURES)
    model_fn = as_model_fn(model_fn)
    features = _check_features(features, model_fn().input_shape[1:])
    inner = check_step(replace() if server_step is None else server_step, "server_step")

    def initialize(weights: ModelWeights) -> TensorTree:
        check_point_weights(weights, "FedBE")
        return inner.initialize(weights)

    def step(
        state: TensorTree, weights: ModelWeights, given: Stack[ModelWeights], seed: tf.Tensor
    ) -> tuple[TensorTree, ModelWeights]:
        stacked = rows_of(given)
        if [x.shape.rank for x in stacked.point] != [len(x.shape) + 1 for x in weights.point]:
            raise InvalidArgument("FedBE's server takes what rules.stacked() gives: use it with that rule.")
        model = _built(model_fn)
        seeds = tf.random.experimental.stateless_split(seed, 3)
        mean = lambda x: tf.reduce_mean(x, 0)
        moments = mixtures.mixture(stacked.moments, tf.ones(tf.shape(stacked.point[0])[:1]))
        point = tuple(map(mean, stacked.point))
        draws = _draws(stacked.point, seeds[0], distribution, num_models, concentration)
        members = tuple(tf.concat([x, m[tf.newaxis], d], 0) for x, m, d in zip(stacked.point, point, draws))
        inputs = as_floats(features)
        logits = lambda own, x: _logits(model, own, x, moments)
        teacher = _teach(logits, members, inputs) ** (1 / temperature)
        teacher /= tf.reduce_sum(teacher, 1, keepdims=True)
        point = _learn(logits, point, inputs, teacher, seeds[1], num_epochs, batch_size, learning_rate)
        return inner.next(state, weights, ModelWeights(stacked.posterior, point, moments), seeds[2])

    own = inner._replace(initialize=initialize, takes=stack_of(WEIGHTS), name=after("distil", inner))
    return cast("ServerStep[Stack[ModelWeights]]", own)._replace(next=step)


def _built(model_fn: Callable[[], keras.Model]) -> keras.Model:
    """Return the model; in a compiled function, which may make no variables when it is traced again, made
    outside of it.
    """
    if not tf.inside_function():
        return model_fn()
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        return thread.submit(model_fn).result()


def _check_features(features: Array, shape: tuple) -> np.ndarray:
    try:
        array = np.asarray(features)
    except ValueError:  # Rows of several lengths.
        array = np.asarray(None)
    if not np.issubdtype(array.dtype, np.number):
        raise InvalidArgument(f"FedBE's features are {shown(features)}, but must be numbers [U, ...].")
    if array.ndim and not len(array):
        raise InvalidArgument("FedBE needs unlabelled examples of the server's, but features is empty.")
    if not array.ndim or not tf.TensorShape(array.shape[1:]).is_compatible_with(shape):
        raise InvalidArgument(
            f"An example of FedBE's features has shape {list(array.shape[1:])}, but the model takes {list(shape)}."
        )
    spoiled = np.flatnonzero(~np.isfinite(array).reshape(len(array), -1).all(1))
    if spoiled.size:
        raise InvalidArgument(
            f"FedBE's features are not finite in {spoiled.size} of {len(array)} examples, such as {spoiled[0]}: leave "
            "these out."
        )
    return array


def _logits(model: keras.Model, point: Point, inputs: tf.Tensor, moments: MeanField) -> tf.Tensor:
    with sampling("mean"):
        return functional_call(model, point, inputs, moments)


def _draws(point: Point, seed: tf.Tensor, distribution: str, number: int, concentration: float) -> list[tf.Tensor]:
    """Return models from the clients' distribution: leaves [K, ...] -> [number, ...]."""
    seeds = tf.random.experimental.stateless_split(seed, len(point))
    if distribution == "gaussian":
        noise = lambda x, i: tf.random.stateless_normal([number, *x.shape[1:]], seeds[i], dtype=x.dtype)
        return [tf.reduce_mean(x, 0) + tf.math.reduce_std(x, 0) * noise(x, i) for i, x in enumerate(point)]
    shape = [number, tf.shape(point[0])[0]]
    shares = tf.random.stateless_gamma(shape, seeds[0], concentration)
    shares /= tf.reduce_sum(shares, 1, keepdims=True)
    return [tf.tensordot(shares, x, 1) for x in point]


def _teach(logits: Callable[..., tf.Tensor], members: Point, inputs: tf.Tensor) -> tf.Tensor:
    """Return the mean prediction of the members [M, ...] on all inputs [U, ...]: [U, C]."""
    parts = [inputs[i : i + EXAMPLES_AT_ONCE] for i in range(0, inputs.shape[0], EXAMPLES_AT_ONCE)]
    predict = lambda own: tf.concat([tf.nn.softmax(logits(own, part)) for part in parts], 0)
    number = tf.shape(members[0])[0]
    first = predict(tuple(x[0] for x in members))
    add = lambda i, total: (i + 1, total + predict(tuple(x[i] for x in members)))
    _, total = tf.while_loop(lambda i, total: i < number, add, (tf.constant(1), first), parallel_iterations=1)
    return total / tf.cast(number, tf.float32)


def _learn(
    logits: Callable[..., tf.Tensor],
    point: Point,
    inputs: tf.Tensor,
    teacher: tf.Tensor,
    seed: tf.Tensor,
    num_epochs: int,
    batch_size: int,
    learning_rate: float,
) -> tuple[tf.Tensor, ...]:
    """Return the mean of the student's iterates."""
    size = inputs.shape[0]
    steps_an_epoch = -(-size // batch_size)

    def step(i: tf.Tensor, student: Point, averages: Point) -> tuple[tf.Tensor, Point, Point]:
        epoch_seed = tf.random.experimental.stateless_fold_in(seed, i // steps_an_epoch)
        order = tf.random.experimental.stateless_shuffle(tf.range(size), epoch_seed)
        start = i % steps_an_epoch * batch_size
        rows = order[start : start + batch_size]
        with tf.GradientTape() as tape:
            tape.watch(student)
            losses = tf.nn.softmax_cross_entropy_with_logits(
                tf.gather(teacher, rows), logits(student, tf.gather(inputs, rows))
            )
            loss = tf.reduce_mean(losses)
        gradient = tape.gradient(loss, student, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        student = tuple(w - learning_rate * g for w, g in zip(student, gradient))
        share = 1 / tf.cast(i + 1, tf.float32)
        return i + 1, student, tuple(a + share * (w - a) for a, w in zip(averages, student))

    total = num_epochs * steps_an_epoch
    start = tf.constant(0), point, point
    return tf.while_loop(lambda i, *_: i < total, step, start, parallel_iterations=1)[2]
