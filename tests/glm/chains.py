"""Long chains of the No-U-Turn sampler on all rows in one place, as the truth for fits from sums."""

import tensorflow as tf
import tensorflow_probability as tfp

CHAINS, BURN_IN, DRAWS = 4, 500, 5000


def sample(log_posterior, centre, root, seed):
    """Return draws of theta [CHAINS * DRAWS, size], and their R-hat [size].

    Args:
      log_posterior: theta [CHAINS, size] -> [CHAINS], float64.
      centre: about the mode [size].
      root: about a root of the covariance [size, size]: chains move in theta = centre + root z.
      seed: of the chains.
    """
    centre, root = tf.constant(centre, tf.float64), tf.constant(root, tf.float64)
    of_z = lambda z: log_posterior(centre + tf.linalg.matvec(root, z))
    kernel = tfp.mcmc.DualAveragingStepSizeAdaptation(
        tfp.mcmc.NoUTurnSampler(of_z, step_size=tf.constant(0.5, tf.float64), max_tree_depth=8),
        num_adaptation_steps=int(0.8 * BURN_IN),
        target_accept_prob=tf.constant(0.8, tf.float64),
    )
    start = tf.random.stateless_normal((CHAINS, centre.shape[0]), (seed, 0), dtype=tf.float64)

    @tf.function(jit_compile=True)
    def run():
        return tfp.mcmc.sample_chain(
            DRAWS, start, kernel=kernel, num_burnin_steps=BURN_IN, trace_fn=None, seed=(seed, 1)
        )

    theta = centre + tf.linalg.matvec(root, run())
    r_hat = tfp.mcmc.potential_scale_reduction(theta).numpy()
    return theta.numpy().reshape(-1, centre.shape[0]), r_hat
