"""Posteriors as distributions of TensorFlow Probability, for all that it can do with them."""

from typing import Any

import tensorflow as tf
import tensorflow_probability as tfp

from tfp_bfl.errors import InvalidArgument
from tfp_bfl.posterior.families import Samples
from tfp_bfl.posterior.kronecker import Kronecker, factor
from tfp_bfl.posterior.low_rank import LowRank, as_low_rank
from tfp_bfl.posterior.mean_field import MeanField
from tfp_bfl.tensors import TensorTree

tfd = tfp.distributions


def to_tfp(q: LowRank | MeanField | Kronecker | Samples) -> Any:
    """Return a posterior as a TFP distribution.

        q = bfl.simulate(process, clients, rounds=20).state.weights.posterior
        bfl.posterior.to_tfp(q).sample(5)

    - `MeanField`: a `JointDistributionSequential` of a normal distribution a leaf, its events the leaves in `tf.nest`'s
      order: sample() gives a list of tensors, log_prob takes one.
    - `LowRank`: `MultivariateNormalDiagPlusLowRankCovariance` over all leaves, flattened and joined in that order [D].
    - `Kronecker`: `MultivariateNormalLinearOperator` over the same [D], whose covariance is never dense.
    - `Samples`: `Empirical` over the same [D], each draw as probable as another.

    Example:
      >>> q = bfl.posterior.MeanField(np.array([0.0, 1.0], np.float32), np.array([1.0, 4.0], np.float32))
      >>> print(np.array(bfl.posterior.to_tfp(q).stddev()[0]))
      [1. 2.]
    """
    if not isinstance(q, (LowRank, MeanField, Kronecker, Samples)):
        raise InvalidArgument(f"q must be a LowRank, a MeanField, a Kronecker or Samples, not {type(q).__name__}.")
    if not tf.nest.flatten(q):
        raise InvalidArgument("The posterior has no weights: a model of point weights alone has nothing to distribute.")
    if isinstance(q, MeanField):
        pairs = zip(map(tf.convert_to_tensor, tf.nest.flatten(q.mean)), tf.nest.flatten(q.variance))
        each = [tfd.Independent(tfd.Normal(m, tf.sqrt(v)), m.shape.rank) for m, v in pairs]
        return tfd.JointDistributionSequential(each)
    if isinstance(q, Samples):
        return tfd.Empirical(_joined(q.values, 1), event_ndims=1)
    if isinstance(q, Kronecker):
        return tfd.MultivariateNormalLinearOperator(_joined(q.mean, 0), factor(q))
    q = as_low_rank(q)
    deviations = tf.transpose(_joined(q.deviations, 1))
    return tfd.MultivariateNormalDiagPlusLowRankCovariance(_joined(q.mean, 0), _joined(q.diagonal, 0), deviations)


def _joined(structure: TensorTree, leading: int) -> tf.Tensor:
    """Return the leaves flattened but for their leading axes, and joined."""
    leaves = [tf.convert_to_tensor(leaf) for leaf in tf.nest.flatten(structure)]
    return tf.concat([tf.reshape(leaf, [*leaf.shape[:leading], -1]) for leaf in leaves], -1)
