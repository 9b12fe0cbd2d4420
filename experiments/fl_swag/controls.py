"""Controls without SWAG: one fitted temperature, and Laplace approximations in one round; and what clients know."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_bfl as bfl
from experiments.fl_swag.config import COMMON
from experiments.fl_swag.federation import Federation
from tfp_bfl.algorithms.swag.work import sampled_curvature
from tfp_bfl.data import ClientExamples
from tfp_bfl.evaluation import Evaluation, at_temperature, fit_temperature
from tfp_bfl.posterior import LowRank, MeanField
from tfp_bfl.training.likelihoods import parse_likelihood
from tfp_bfl.weights import FlatWeights, assign_weights, functional_call, split_head

AT_ONCE = 500
PRIOR_STDDEV = 1.0  # As the chains'.
NEWTON_STEPS, NEAR = 30, 0.1


class Held(NamedTuple):
    """The model that the clients train, and their examples.

    Fields:
      model: their last layer, or the whole network.
      inputs: what goes into it, of each client [n_k, ...].
      labels: of each client [n_k].
      is_layer: it is one dense layer.
    """

    model: tf.keras.Model
    inputs: list[tf.Tensor]
    labels: list[np.ndarray]
    is_layer: bool


def held(data: Federation, last_layer: bool) -> Held:
    """Return the clients' examples as inputs of the trained model, which may be the last layer alone."""
    model = data.model_fn()
    assign_weights(model, data.start)
    is_layer = last_layer or len(model.trainable_variables) == 2
    below, model = split_head(model) if is_layer else (None, model)
    predict = tf.function(lambda x: below(_floats(x), training=False))
    inputs, labels = [], []
    for k in range(data.clients.num_clients):
        _, features, own = data.clients.examples(k)
        parts = [tf.constant(features[i : i + AT_ONCE]) for i in range(0, len(features), AT_ONCE)]
        inputs.append(tf.concat([predict(x) for x in parts] if is_layer else parts, 0))
        labels.append(own)
    return Held(model, inputs, labels, is_layer)


def _floats(features: tf.Tensor) -> tf.Tensor:
    return tf.image.convert_image_dtype(features, tf.float32) if features.dtype.is_integer else features


def estimator(held: Held) -> Callable[[Sequence[tf.Tensor], int], tuple[tf.Tensor, ...]]:
    """Return the function (weights, k) -> the diagonal of the Gauss-Newton matrix of client k's examples, as FL-SWAG's
    clients take it.
    """
    weights, likelihood = FlatWeights(held.model), parse_likelihood("categorical")
    shape, dtype = held.inputs[0].shape[1:], held.inputs[0].dtype

    @tf.function(
        autograph=False, input_signature=[tf.TensorSpec([None, *shape], dtype), tf.TensorSpec([None], tf.int32)]
    )
    def of_examples(features: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        examples = ClientExamples(tf.zeros_like(labels), features, labels)
        return sampled_curvature(held.model, weights, likelihood, examples, tf.constant([0, 1]), COMMON["batch_size"])

    def at(values: Sequence[tf.Tensor], k: int) -> tuple[tf.Tensor, ...]:
        weights.values.assign(weights.flatten(values))
        return weights.unflatten(of_examples(held.inputs[k], tf.constant(held.labels[k], tf.int32)))

    return at


def curvatures(held: Held, posteriors: Sequence[LowRank]) -> list[tuple[tf.Tensor, ...]]:
    """Return the curvature of each client's examples at its mean, the default of FL-SWAG's clients."""
    at = estimator(held)
    return [at(q.mean, k) for k, q in enumerate(posteriors)]


def curvature(head: tf.keras.Model, weights: Sequence[tf.Tensor], inputs: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the diagonal of the Gauss-Newton matrix of the negative log-likelihood in a last layer's kernel and bias.

    h_dc = sum_n x_nd^2 p_nc (1 - p_nc),   h_c = sum_n p_nc (1 - p_nc)
    """
    p = tf.nn.softmax(functional_call(head, weights, inputs))
    spread = p * (1 - p)
    return tf.linalg.matmul(tf.square(inputs), spread, transpose_a=True), tf.reduce_sum(spread, 0)


def hessian(head: tf.keras.Model, weights: Sequence[tf.Tensor], inputs: tf.Tensor) -> np.ndarray:
    """Return the Hessian of the negative log-likelihood in a last layer's kernel [D, C] and bias [C], concatenated.

    sum_n (diag(p_n) - p_n p_n^T) (x) x_n x_n^T,   with x_n and a 1 for the bias: [(D + 1) C, (D + 1) C]
    """
    p = tf.cast(tf.nn.softmax(functional_call(head, weights, inputs)), tf.float64)
    x = tf.concat([tf.cast(inputs, tf.float64), tf.ones([len(inputs), 1], tf.float64)], 1)
    size, classes = x.shape[1], p.shape[1]
    found = np.empty([size, classes, size, classes])
    for a in range(classes):
        for b in range(classes):
            weight = p[:, a] * ((a == b) - p[:, b])
            found[:, a, :, b] = tf.linalg.matmul(x * weight[:, tf.newaxis], x, transpose_a=True)
    return found.reshape(size * classes, -1)


def mode(
    head: tf.keras.Model, inputs: tf.Tensor, labels: tf.Tensor, prior_stddev: float = PRIOR_STDDEV
) -> tuple[np.ndarray, np.ndarray]:
    """Return the mode of a last layer's posterior by Newton's method from its weights, halving steps, and the Hessian
    there.

    U(w) = sum_n u_n(w) + ||w||^2 / (2 t^2)
    """

    potential = bfl.training.Potential(head)

    def at(w: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        point = tf.constant(w, tf.float32)
        value, gradient = tfp.math.value_and_gradient(lambda x: tf.reduce_sum(potential.each(x, inputs, labels)), point)
        matrix = hessian(head, potential.shaped(point), inputs) + np.eye(len(w)) / prior_stddev**2
        return float(value) + w @ w / (2 * prior_stddev**2), gradient.numpy() + w / prior_stddev**2, matrix

    w = potential.start().numpy().astype(np.float64)
    value, gradient, matrix = at(w)
    for _ in range(NEWTON_STEPS):
        step = np.linalg.solve(matrix, gradient)
        if gradient @ step < NEAR**2:  # of the distance in standard deviations, all weights together
            break
        for halvings in range(10):
            found = at(w - step / 2**halvings)
            if found[0] <= value + 1e-4 * abs(value):  # single precision
                break
        w, (value, gradient, matrix) = w - step / 2**halvings, found
    return w, matrix


def laplace(held: Held, ends: Sequence[Any], prior_stddev: float = PRIOR_STDDEV) -> MeanField:
    """Return the product of the clients' Laplace approximations where their trainings ended, the prior counted once.

    P = 1 / t^2 + sum_k h_k(w_k),   m = (sum_k h_k(w_k) w_k) / P
    """
    sampled = estimator(held)
    at = lambda w, k: curvature(held.model, w, held.inputs[k]) if held.is_layer else sampled(w, k)
    each = [at(w, k) for k, w in enumerate(ends)]
    precision = [1 / prior_stddev**2 + tf.add_n(h) for h in zip(*each)]
    pull = [tf.add_n([h[i] * w[i] for h, w in zip(each, ends)]) for i in range(len(precision))]
    return MeanField(tuple(a / b for a, b in zip(pull, precision)), tuple(1 / b for b in precision))


def temperature(held: Held, weights: Sequence[tf.Tensor]) -> float:
    """Return the temperature of least NLL on the clients' training examples: no examples are held out."""
    predict = tf.function(lambda x: tf.nn.softmax(functional_call(held.model, weights, _floats(x))))
    p = [predict(x[i : i + AT_ONCE]).numpy() for x in held.inputs for i in range(0, len(x), AT_ONCE)]
    return fit_temperature(np.concatenate(p), np.concatenate(held.labels))


def scaled(evaluation: Evaluation, temperature: float) -> Evaluation:
    """Return an evaluation of one set of weights at another temperature, still without its metrics."""
    p = at_temperature(evaluation.probabilities, temperature)
    parts = bfl.evaluation.summarise(p[np.newaxis])
    return evaluation._replace(
        **{name: getattr(parts, name).numpy() for name in ("entropy", "aleatoric", "epistemic")},
        probabilities=p,
        mutual_information=np.zeros(len(p), p.dtype),
    )


def posteriors(held: Held, ends: Sequence[Any], mean: Any) -> Iterator[tuple[str, MeanField]]:
    """Yield Laplace's approximation in one round, and that about a mean which clients receive in a second round."""
    yield "Laplace, one round", laplace(held, ends)
    yield "FedAvg, Laplace in a second round", MeanField(mean, laplace(held, [mean] * len(ends)).variance)
