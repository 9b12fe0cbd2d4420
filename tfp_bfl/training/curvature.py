"""The curvature of a client's likelihood in each weight: the diagonal of the Gauss-Newton matrix."""

from __future__ import annotations

import tensorflow as tf

from tfp_bfl import keras
from tfp_bfl.data import ClientExamples
from tfp_bfl.layers import sampling, without_autograph
from tfp_bfl.posterior import LowRank
from tfp_bfl.tensors import TensorTree
from tfp_bfl.training.batches import over_batches
from tfp_bfl.training.likelihoods import Likelihood
from tfp_bfl.weights import FlatWeights

# No step of a training draws from a seed folded by this.
_OF_CURVATURE = 2**29 + 1


@without_autograph
def curvature(
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
