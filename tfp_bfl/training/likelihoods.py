"""Likelihoods of labels given a model's outputs."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from tfp_bfl.errors import InvalidArgument, check_number, shown
from tfp_bfl.named import Table, WithArgument, parse
from tfp_bfl.weights import mean_and_log_variance

# Of the gradient of a batch's mean loss, with a learned variance.
MAX_GRADIENT_NORM = 1.0


class Likelihood(NamedTuple):
    """A density of labels given outputs.

    Fields:
      nll: (labels [B], outputs [B, C]) -> -log p(label | outputs) in nats [B].
      draw: (outputs, a seed [2]) -> labels drawn from it [B].
      fisher_root: outputs -> S [B, C, R] with S S^T = E_y[(d nll / d outputs) (d nll / d outputs)^T], y from the
        model's own prediction; None for a density without one.
      max_gradient_norm: in training by SGD, longer gradients of a batch's loss are scaled to this norm; None for no
        bound.
      weight: labels [B] -> the factor of each in `nll` [B]; None for 1.
      fisher_sum: outputs -> the sum of S S^T over the batch [C, C], where it needs no S; None otherwise.
    """

    nll: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
    draw: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
    fisher_root: Callable[[tf.Tensor], tf.Tensor] | None = None
    max_gradient_norm: float | None = None
    weight: Callable[[tf.Tensor], tf.Tensor] | None = None
    fisher_sum: Callable[[tf.Tensor], tf.Tensor] | None = None

    def nll_of_drawn(self, labels: tf.Tensor, outputs: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Compute losses of labels drawn from the model, to estimate the curvature by the squares of their gradients.

            sqrt(w(y)) * -log p(drawn | outputs),   w the `weight` of the example's label

        Args:
          labels: of the examples [B].
          outputs: [B, C].
          seed: [2].

        Returns:
          [B].
        """
        drawn = tf.stop_gradient(self.draw(outputs, seed))
        losses = self.nll(drawn, outputs)
        return losses if self.weight is None else losses * tf.sqrt(self.weight(labels)) / self.weight(drawn)


def categorical() -> Likelihood:
    """Return the likelihood p(y | f) = softmax(f)_y, outputs the logits of C classes, labels integers."""

    def draw(outputs: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        drawn = tf.random.stateless_categorical(outputs, 1, seed)[:, 0]
        # Of logits that are not finite it is C: their client is left out later, and should not raise here.
        return tf.minimum(drawn, tf.cast(tf.shape(outputs)[1] - 1, drawn.dtype))

    def nll(labels: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        dtype = tf.as_dtype(labels.dtype)
        if not dtype.is_integer:
            raise InvalidArgument(
                f"The labels are {dtype.name} numbers, and the likelihood is that of classes: give likelihood "
                "'heteroscedastic' or 'gaussian:STDDEV'."
            )
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs)

    def probabilities(outputs: tf.Tensor) -> tf.Tensor:
        return tf.nn.softmax(outputs if outputs.dtype == tf.float64 else tf.cast(outputs, tf.float32))

    def fisher_root(outputs: tf.Tensor) -> tf.Tensor:
        # diag(p) - p p^T = sum_c p_c (e_c - p) (e_c - p)^T
        p = probabilities(outputs)
        identity = tf.eye(outputs.shape[1], dtype=p.dtype)
        return (identity - p[:, :, tf.newaxis]) * tf.sqrt(p)[:, tf.newaxis, :]

    def fisher_sum(outputs: tf.Tensor) -> tf.Tensor:
        p = probabilities(outputs)
        # p (1 - p) is the sum of p times each other probability, without a difference of near numbers.
        others = tf.linalg.set_diag(tf.matmul(p, p, transpose_a=True), tf.zeros(outputs.shape[1], p.dtype))
        return tf.linalg.diag(tf.reduce_sum(others, 1)) - others

    return Likelihood(nll, draw, fisher_root, fisher_sum=fisher_sum)


def gaussian(stddev: float) -> Likelihood:
    """Return the likelihood p(y | f) = N(y; f, stddev^2), one output, labels floats."""
    stddev = float(check_number(stddev, "stddev"))

    def nll(labels: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        error = (tf.cast(labels, outputs.dtype) - outputs[:, 0]) / stddev
        return 0.5 * tf.square(error) + math.log(stddev) + 0.5 * math.log(2 * math.pi)

    def draw(outputs: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        return outputs[:, 0] + stddev * tf.random.stateless_normal(tf.shape(outputs)[:1], seed)

    def fisher_root(outputs: tf.Tensor) -> tf.Tensor:
        # The variance 1 / stddev^2 of the gradient in the one output that counts.
        first = tf.one_hot(0, outputs.shape[1], dtype=outputs.dtype) / stddev
        return tf.ones_like(outputs)[:, :, tf.newaxis] * first[:, tf.newaxis]

    return Likelihood(nll, draw, fisher_root)


def heteroscedastic() -> Likelihood:
    """Return the likelihood p(y | f) = N(y; f_0, exp(f_1)): two outputs, mean and log variance, labels floats.

    The log variance is bounded (`weights.mean_and_log_variance`).

    The gradient in the mean is (f_0 - y) exp(-f_1), without a bound: where a step makes the variance small before the
    mean fits, SGD diverges. Training by SGD therefore scales the gradient of a batch to norm `MAX_GRADIENT_NORM` at
    most; labels should be standardised.

    Source: Nix and Weigend 1994; Pascanu et al. 2013 (arXiv:1211.5063), algorithm 1, for the clipping.
    """

    def nll(labels: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        mean, log_variance = mean_and_log_variance(outputs)
        error = tf.cast(labels, outputs.dtype) - mean
        return 0.5 * (tf.square(error) * tf.exp(-log_variance) + log_variance + math.log(2 * math.pi))

    def draw(outputs: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        mean, log_variance = mean_and_log_variance(outputs)
        return mean + tf.exp(0.5 * log_variance) * tf.random.stateless_normal(tf.shape(mean), seed)

    def fisher_root(outputs: tf.Tensor) -> tf.Tensor:
        # Fisher's information of N(m, v) in (m, log v): diag(1 / v, 1 / 2); none in a log variance beyond its bound.
        _, log_variance = mean_and_log_variance(outputs)
        inside = tf.equal(log_variance, outputs[:, 1])
        return tf.linalg.diag(tf.stack([tf.exp(-0.5 * log_variance), tf.where(inside, math.sqrt(0.5), 0.0)], 1))

    return Likelihood(nll, draw, fisher_root, MAX_GRADIENT_NORM)


def density() -> Likelihood:
    """Return the likelihood of models with one output, log p(row | w), as of `models.density`; labels are ignored."""

    def draw(outputs: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        raise InvalidArgument("A density has no labels to draw: use inference 'backprop', or a chain.")

    return Likelihood(lambda labels, outputs: -outputs[:, 0], draw)


def class_weighted(weights: str | Sequence[float]) -> Likelihood:
    """Return the categorical likelihood with the log likelihood of each example multiplied by the weight of its class.

        nll = -w_y log softmax(f)_y

    An example of weight 2 counts as two. Predicted probabilities then are those of a population in which class c is w_c
    times as frequent: they are not calibrated for the population of the training data.

    Args:
      weights: above 0, one for each class; or these numbers separated by commas.
    """
    numbers = _weights(weights) if isinstance(weights, str) else weights
    # Under this name the description of a run has them.
    class_weights = [check_number(x, "a class weight") for x in numbers]
    if len(class_weights) < 2:
        raise InvalidArgument(
            f"There is a class weight for {len(class_weights)} class, but there must be at least two."
        )
    plain, table = categorical(), tf.constant(class_weights, tf.float32).numpy()

    def weight(labels: tf.Tensor) -> tf.Tensor:
        return tf.gather(tf.constant(table), labels)

    def nll(labels: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        if outputs.shape[1] != len(class_weights):
            raise InvalidArgument(
                f"There are {len(class_weights)} class weights, but the model has {outputs.shape[1]} classes: give one "
                "for each."
            )
        losses = plain.nll(labels, outputs)
        return losses * tf.cast(weight(labels), losses.dtype)

    return Likelihood(nll, plain.draw, weight=weight)


def _weights(text: str) -> list[float]:
    try:
        return [float(x) for x in text.split(",")]
    except ValueError:
        raise InvalidArgument(
            f"The class weights are {shown(text)}, but must be numbers separated by commas, such as 0.5,2."
        ) from None


def balanced_weights(counts: Sequence[float]) -> list[float]:
    """Compute class weights under which each class has the same total weight.

        w_c = N / (C n_c),   N = sum_c n_c,   C the number of classes with examples

    The sum of the weights of all examples stays N. The counts are sums over clients.

    Args:
      counts: n_c, numbers of training examples [C].

    Returns:
      Weights [C]; 1 for a class without examples.

    Example:
      >>> bfl.training.balanced_weights([10, 30])
      [2.0, 0.6666666666666666]
    """
    present = [n for n in counts if n > 0]
    if not present:
        raise InvalidArgument("No class has examples, by which class weights could be balanced.")
    return [float(sum(present) / (len(present) * n)) if n > 0 else 1.0 for n in counts]


CATEGORICAL = categorical()
LIKELIHOODS: Table = {
    "categorical": categorical,
    "gaussian": WithArgument(gaussian, "stddev"),
    "heteroscedastic": heteroscedastic,
    "density": density,
    "class_weighted": WithArgument(class_weighted, "weights", str),
}


def parse_likelihood(text: str | Likelihood) -> Likelihood:
    """Return "categorical", "gaussian:STDDEV", "heteroscedastic", "density" or "class_weighted:W,W" as a likelihood."""
    if isinstance(text, Likelihood):
        return text
    return parse(LIKELIHOODS, text, "likelihood")()
