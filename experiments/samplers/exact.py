"""Chains with the exact posterior as their stationary distribution: the reference for other chains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_bfl.errors import InvalidArgument, check_counts, check_numbers, lookup
from tfp_bfl.training.potential import Potential, check_independent

KERNELS = {"hmc": "Hamiltonian Monte Carlo", "mala": "Metropolis-adjusted Langevin"}
TARGET_ACCEPTANCE = 0.75
# Of its proposals a chain that moves at all accepts more.
LEAST_ACCEPTANCE = 0.01


class ExactChains(NamedTuple):
    """M chains of R draws after burn-in.

    Fields:
      draws: [R, M, D], the point weights one after another in the order of `weights.layout`.
      acceptance_rate: [M], the mean over the draws of min(1, the ratio of densities).
      step_size: of the last draw, one for all chains.
    """

    draws: tf.Tensor
    acceptance_rate: np.ndarray
    step_size: float


def exact_chains(
    potential: Potential,
    features: Any,
    labels: Any,
    starts: Any,
    *,
    num_draws: int,
    burn_in: int,
    kernel: str = "hmc",
    prior_stddev: float | None = 1.0,
    step_size: float | None = None,
    num_leapfrog_steps: int = 30,
    thin: int = 1,
    seed: int = 0,
) -> ExactChains:
    """Draw from p(w | data) ~ exp(-sum_j u_j(w) - ||w||^2 / (2 t^2)) on all examples, by TensorFlow Probability.

    "hmc" is Hamiltonian Monte Carlo. "mala" proposes y = w - gamma grad U(w) + sqrt(2 gamma) Z and accepts with

    min(1, exp(U(w) - U(y) - ||w - y + gamma grad U(y)||^2 / (4 gamma) + ||y - w + gamma grad U(w)||^2 / (4 gamma)))

    Args:
      potential: of a model.
      features, labels: of all examples [N, ...], [N].
      starts: of the chains [M, D].
      num_draws: R.
      burn_in: steps before them, at least 10; in the first four fifths of them "hmc" adapts its step size.
      kernel: "hmc" or "mala".
      prior_stddev: t; None for a flat prior.
      step_size: of a leapfrog step at first, None for 0.1 t / sqrt(D); of "mala" gamma, about D^(-1/3) / L for the
        largest curvature L of U.
      num_leapfrog_steps: of "hmc".
      thin: steps from one draw to the next.
      seed: the same seed, the same draws.

    Raises:
      InvalidArgument: arguments outside their ranges, starts that are not [M, D], a model with a random potential, or
        a chain that accepts less than a hundredth of its proposals.

    Source: Neal 2011, "MCMC using Hamiltonian dynamics"; Roberts & Tweedie 1996.
    """
    lookup(KERNELS, kernel, "kernel")
    check_independent(potential.model)
    check_counts(num_draws=num_draws, thin=thin, num_leapfrog_steps=num_leapfrog_steps)
    check_counts(10, burn_in=burn_in)
    check_counts(0, seed=seed)
    given = {"prior_stddev": prior_stddev, "step_size": step_size}
    check_numbers(**{name: number for name, number in given.items() if number is not None})
    if kernel == "mala" and step_size is None:
        raise InvalidArgument(
            "The kernel 'mala' needs a step_size: about D^(-1/3) / L for the largest curvature L of U."
        )
    features, labels = tf.convert_to_tensor(features), tf.convert_to_tensor(labels)
    starts = tf.convert_to_tensor(starts, tf.float32)
    if starts.shape.rank != 2 or starts.shape[1] != potential.size:
        raise InvalidArgument(f"starts has the shape {starts.shape}, but must be (chains, {potential.size}).")
    precision = 0.0 if prior_stddev is None else 1 / prior_stddev**2
    first = step_size or 0.1 * (prior_stddev or 1.0) / potential.size**0.5

    def log_density(w: tf.Tensor) -> tf.Tensor:
        return -tf.reduce_sum(potential.each(w, features, labels)) - 0.5 * precision * tf.reduce_sum(tf.square(w))

    def of_chains(w: tf.Tensor) -> tf.Tensor:
        return tf.stack([log_density(x) for x in tf.unstack(w)])

    if kernel == "hmc":
        transition, trace = _hmc(of_chains, first, num_leapfrog_steps, burn_in)
    else:
        # TFP's step is 2 gamma.
        transition = tfp.mcmc.MetropolisAdjustedLangevinAlgorithm(of_chains, step_size=2 * first)
        trace = lambda _, results: (results.log_accept_ratio, tf.constant(first))

    @tf.function(autograph=False)
    def chains() -> Any:
        return tfp.mcmc.sample_chain(
            num_draws,
            starts,
            kernel=transition,
            num_burnin_steps=burn_in,
            num_steps_between_results=thin - 1,
            trace_fn=trace,
            seed=tf.constant([seed, 0]),
        )

    draws, (log_ratios, step_sizes) = chains()
    # Where the ratio is not a number the proposal is refused.
    rates = np.nan_to_num(np.exp(np.minimum(log_ratios, 0))).mean(0)
    if rates.min() < LEAST_ACCEPTANCE:
        raise InvalidArgument(
            f"Chain {rates.argmin()} accepted {rates.min():.2g} of its proposals, of which at least "
            f"{LEAST_ACCEPTANCE:g} must be, at the step size {float(step_sizes[-1]):.3g}: it has "
            "not moved; give a smaller step_size."
        )
    return ExactChains(draws, rates, float(step_sizes[-1]))


def _hmc(
    log_density: Callable[[tf.Tensor], tf.Tensor], step_size: float, num_leapfrog_steps: int, burn_in: int
) -> tuple[Any, Callable[..., Any]]:
    """Return HMC's kernel with an adaptive step size, and its trace: the log acceptance ratio and the step size."""
    transition = tfp.mcmc.DualAveragingStepSizeAdaptation(
        tfp.mcmc.HamiltonianMonteCarlo(log_density, step_size=step_size, num_leapfrog_steps=num_leapfrog_steps),
        num_adaptation_steps=4 * burn_in // 5,
        target_accept_prob=TARGET_ACCEPTANCE,
    )
    return transition, lambda _, results: (results.inner_results.log_accept_ratio, results.new_step_size)
