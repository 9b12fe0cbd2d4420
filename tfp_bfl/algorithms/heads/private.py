"""Differential privacy of the examples of an exact head: sums over clipped rows, with Gaussian noise once.

x <- x min(1, R / |x|),   N_c + a s z,   M_c + a s R z,   G + a s R^2 (Z + Z^T) / 2,   a = sqrt(3)

with R the clip norm, s the noise multiplier, z and Z [F, F] standard normal. An example adds e_c, x / R and x x^T / R^2
to (N, M / R, G / R^2), each with a norm of at most 1 (of x x^T: Frobenius), and all three together at most sqrt(3). The
Frobenius norm is Euclidean in the diagonal and sqrt(2) times the entries above it: there the noise of G is isotropic.
So all sums together are one Gaussian mechanism, `privacy.example_steps(s, N, N, 1)`.

Source: Dwork et al. 2014, "Analyze Gauss"; Wang 2018 (arXiv:1803.02596) for regression from noisy sums.
"""

import tensorflow as tf

from tfp_bfl.algorithms.heads.sums import ClassSums
from tfp_bfl.training.example_privacy import ExamplePrivacy


def clipped(x: tf.Tensor, norm: float) -> tf.Tensor:
    """Return rows [B, F] with a norm of at most `norm`; a row that is not finite becomes zeros."""
    x = tf.where(tf.reduce_all(tf.math.is_finite(x), 1, keepdims=True), x, tf.zeros_like(x))
    factor = tf.math.divide_no_nan(tf.constant(norm, x.dtype), tf.norm(x, axis=1, keepdims=True))
    return x * tf.minimum(factor, 1.0)


def noised(sums: ClassSums, privacy: ExamplePrivacy, seed: tf.Tensor) -> ClassSums:
    """Return sums over clipped rows, of which the Gram matrix is whole [F, F], with noise."""
    seeds, norm = tf.unstack(tf.random.experimental.stateless_split(seed, 3)), privacy.clip_norm
    z = [tf.random.stateless_normal(x.shape, key, dtype=tf.float64) for x, key in zip(sums, seeds)]
    noise = z[0], norm * z[1], norm**2 * (z[2] + tf.transpose(z[2])) / 2
    return ClassSums(*(x + 3**0.5 * privacy.noise_multiplier * y for x, y in zip(sums, noise)))
