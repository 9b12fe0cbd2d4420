"""Step sizes at which a chain of compressed gradients has a stationary distribution, on a Gaussian posterior.

`prior_stddev` is t of the prior N(0, t^2 I), None for a flat one. Arguments that are not listed are as of
`chains.work.stochastic_gradient`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_bfl import keras
from tfp_bfl.algorithms.chains.client_settings import AnyCompressor, PerClient
from tfp_bfl.algorithms.chains.client_settings import memory_rate as best_memory_rate
from tfp_bfl.data import ClientData
from tfp_bfl.errors import InvalidArgument, check_count, check_number, check_probabilities
from tfp_bfl.models import as_model_fn
from tfp_bfl.tensors import Array
from tfp_bfl.training.likelihoods import Likelihood
from tfp_bfl.training.potential import Potential, prior_precision

# Examples and products of the Hessian by which a curvature is estimated.
_EXAMPLES, _PRODUCTS = 200, 15
# Steps in units of 1 / L: the exact chain diverges from 2 on.
_GRID = np.linspace(0.005, 2, 400)
_HALVINGS = 30


class _Chain(NamedTuple):
    """A chain in units of the curvature L of the whole potential.

    Fields:
      shares: L_i / L [b].
      noise: w_i = (1 + omega_i) / p_i - 1 [b].
      rates: mean change of a memory, alpha_i p_i [b]; zeros without memories.
    """

    shares: np.ndarray
    noise: np.ndarray
    rates: np.ndarray | None


def largest_step_size(
    curvatures: Array,
    *,
    omegas: PerClient[float] = 0.0,
    participation: PerClient[float] = 1.0,
    memory_rates: PerClient[float] | None = None,
    prior_stddev: float | None = None,
) -> float:
    """Return the step size from which on `algorithms.qlsd` diverges on a Gaussian posterior.

    The potential of client i is L_i ||w - m_i||^2 / 2, that of the prior ||w||^2 / (2 t^2), and the compressors have
    E ||C(x) - x||^2 = omega ||x||^2. The second moments of the weights and of the clients' memories then follow a
    linear recursion, and the chain has a stationary distribution if its spectral radius is below 1. Without compression
    the bound is 2 / L, L = sum_i L_i + 1 / t^2. Memories lower it, since a compressor's error enters both the step and
    the memory.

    Args:
      curvatures: L_i [b].
      omegas: of the compressors, one for all clients or one for each.
      participation: p_i, likewise.
      memory_rates: alpha_i, likewise; None without memories.

    Returns:
      The bound. It is that of all clients in each round with their whole gradients: cohorts, and batches of "plain",
      lower it further.

    Example:
      >>> round(bfl.algorithms.chains.step_size.largest_step_size([2.0, 3.0, 5.0]), 3)
      0.2
      >>> round(bfl.algorithms.chains.step_size.largest_step_size([2.0, 3.0, 5.0], omegas=3, memory_rates=1 / 4), 3)
      0.044
    """
    own = np.array([check_number(x, "a curvature") for x in np.ravel(curvatures)])
    if not own.size:
        raise InvalidArgument("curvatures is empty, but at least one client must have a curvature.")
    omega, memory = (_by_client(x, name, own.size) for x, name in ((omegas, "omegas"), (memory_rates, "memory_rates")))
    if np.any(omega < 0) or np.any((memory <= 0) | (memory > 1 / (1 + omega) + 1e-9)):
        raise InvalidArgument("omegas must be at least 0, and memory_rates above 0 and at most 1 / (1 + omega).")
    total = own.sum() + prior_precision(prior_stddev)
    probabilities = _by_client(check_probabilities(participation, "participation"), "participation", own.size)
    noise = (1 + omega) / probabilities - 1
    rates = None if memory_rates is None else memory * probabilities
    chain = _Chain(own / total, noise, rates)
    first = next((i for i, step in enumerate(_GRID) if not _is_stable(chain, step)), len(_GRID) - 1)
    low, high = _GRID[first - 1] if first else 0.0, _GRID[first]
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _is_stable(chain, middle) else (low, middle)
    return float(low / total)


def _by_client(values: PerClient[float] | None, name: str, number: int) -> np.ndarray:
    """Return one number for each client [b]; a rate that is None is the smallest positive number."""
    array = np.asarray(np.finfo(float).tiny if values is None else values, float)
    if array.ndim > 1 or (array.ndim and array.size not in (1, number)) or not np.all(np.isfinite(array)):
        raise InvalidArgument(f"{name} must be one number, or {number} numbers, one for each client.")
    return np.broadcast_to(array, (number,))


def _is_stable(chain: _Chain, step: float) -> bool:
    """Return whether the second moments of the chain have a stationary value.

    With the step g in units of 1 / L, eps_i of variance w_i, the deviation y_i = eta_i - l_i theta of a memory from the
    client's gradient, a_i = alpha_i p_i and Z ~ N(0, 1):

    theta <- (1 - g) theta + g sum_j y_j eps_j + sqrt(2 g) Z
    y_i <- (1 - a_i) y_i - a_i y_i eps_i + l_i theta - l_i theta',   theta' the new theta

    T = E theta^2, C_i = E theta y_i and V_i = E y_i^2 are stationary where these recursions have a solution with
    positive T and V_i. Given T and u = sum_j w_j V_j, each pair (C_i, V_i) solves two equations by itself.
    """
    g, (share, w, a) = step, chain
    if a is None:
        return bool((1 - g) ** 2 + g**2 * np.sum(w * share**2) < 1)
    # (C, V) of each client solves m (C, V) = of_t T + of_u u + of_noise, each [b, 2].
    m = np.empty((len(share), 2, 2))
    m[:, 0, 0], m[:, 0, 1] = 1 - (1 - g) * (1 - a), g * a * w
    m[:, 1, 0], m[:, 1, 1] = -2 * (1 - a) * share * g, 1 - (1 - a) ** 2 - a**2 * w - 2 * a * share * g * w
    of_t = np.stack([(1 - g) * g * share, (share * g) ** 2], -1)
    of_u = np.stack([-(g**2) * share, (share * g) ** 2], -1)
    of_noise = np.stack([-2 * g * share, 2 * g * share**2], -1)
    try:
        parts = np.linalg.solve(m, np.stack([of_t, of_u, of_noise], -1))
        sums = (w[:, np.newaxis] * parts[:, 1]).sum(0)
        both = np.array([[1 - (1 - g) ** 2, -(g**2)], [-sums[0], 1 - sums[1]]])
        t, u = np.linalg.solve(both, [2 * g, sums[2]])
    except np.linalg.LinAlgError:
        return False
    v = parts[:, 1] @ np.array([t, u, 1])
    return bool(t > 0 and np.all(v > 0))


def check_step_size(
    model_fn: Callable[[], keras.Model],
    clients: ClientData,
    step_size: float,
    curvature: float | str,
    *,
    prior_stddev: float | None = 1.0,
    likelihood: str | Likelihood = "categorical",
    compressor: PerClient[AnyCompressor] = "none",
    per_tensor: bool = False,
    participation: PerClient[float] = 1.0,
    memory_rate: PerClient[float] | None = None,
    **others: object,
) -> str | None:
    """Compare the step size of a chain of compressed gradients with the bound of `largest_step_size`.

    Each client has a part of the curvature of all examples in proportion to the number of its examples.

    Args:
      clients: of the run.
      step_size: gamma.
      curvature: L, the largest curvature of the potential, prior included; or "estimate", for `largest_curvature` of
        200 examples at the weights of `model_fn` and a warning in place of an error.

    Returns:
      A warning for a step size from the bound of these compressors on; None below it. The bound is for the largest
      error of the compressors and the curvature L in all directions, so a chain can still be stable.
    """
    del others
    of_prior, is_known = prior_precision(prior_stddev), curvature != "estimate"
    if not is_known:
        every = max(1, int(clients.sizes.sum()) // _EXAMPLES)
        parts = map(clients.examples, range(clients.num_clients))
        some = [(part.features[::every], part.labels[::every]) for part in parts]  # In proportion to their sizes.
        features, labels = map(np.concatenate, zip(*some))
        given: Any = {"prior_stddev": prior_stddev, "likelihood": likelihood, "steps": _PRODUCTS}
        curvature = largest_curvature(model_fn, features, labels, num_examples=int(clients.sizes.sum()), **given)
    elif check_number(curvature, "curvature") <= of_prior:
        raise InvalidArgument(
            f"curvature is {curvature:g}, but must be above that of the prior alone, 1 / prior_stddev^2 = {of_prior:g}."
        )
    total = max(float(curvature), of_prior * (1 + 1e-6))
    own = (total - of_prior) * clients.sizes / clients.sizes.sum()
    omegas = 1 / np.asarray(best_memory_rate(model_fn, compressor=compressor, per_tensor=per_tensor)) - 1
    chain: Any = {"omegas": omegas, "participation": participation, "memory_rates": memory_rate}
    most = largest_step_size(own, prior_stddev=prior_stddev, **chain)
    if step_size < most:
        return None
    without = "" if memory_rate is None else ", or memory=False (--forgetful)"
    start = f"step_size is {step_size:g}, but with the curvature {total:.4g}{'' if is_known else ' (estimated)'}"
    if is_known and step_size >= 2 / total:
        raise InvalidArgument(f"{start} any chain diverges from 2 / L = {2 / total:.3g} on: take a smaller step.")
    finer = f"take a smaller step or a finer compressor{without}"
    return f"{start} and these compressors a chain can diverge from {most:.3g} on: {finer}."


def largest_curvature(
    model_fn: Callable[[], keras.Model],
    features: Array,
    labels: Array,
    *,
    prior_stddev: float | None = 1.0,
    likelihood: str | Likelihood = "categorical",
    num_examples: int | None = None,
    steps: int = 20,
) -> float:
    """Estimate the largest curvature of the potential at the model's own weights, by power iteration.

    It is the absolute value of the Hessian's eigenvalue that is largest by size. A chain can come to weights where the
    curvature is larger.

    Args:
      features, labels: of all clients, or of a random part [N, ...], [N].
      num_examples: of all clients, to which the curvature of N examples is scaled; N if None.
      steps: products of the Hessian and a vector.
    """
    check_count(steps, "steps")
    potential = Potential(as_model_fn(model_fn)(), likelihood)
    precision = prior_precision(prior_stddev)
    given, w = (tf.convert_to_tensor(features), tf.convert_to_tensor(labels)), potential.start()
    scale = (num_examples or len(labels)) / len(labels)

    @tf.function(autograph=False)
    def product(direction: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(w)
            along = tf.reduce_sum(potential.gradient(w, *given)[1] * direction)
        return scale * tape.gradient(along, w) + precision * direction

    vector = tf.random.stateless_normal([potential.size], [0, 1])
    size = tf.norm(vector)
    for _ in range(steps):
        vector = product(vector / size)
        size = tf.maximum(tf.norm(vector), 1e-30)
    return float(size)
