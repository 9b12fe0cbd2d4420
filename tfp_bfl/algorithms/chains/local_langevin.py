"""Clients that take several Langevin steps of their own in a round: DG-SGLD and FSGLD, QLSD's competitors.

Rounds report `participants`, `upload_bits` and `download_bits`, 32 a weight each way. Messages that the server sends
once, with the initial weights or the surrogates, are not counted. Arguments that are not listed are as of
`chains.work.stochastic_gradient`.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Unpack

import numpy as np
import tensorflow as tf

from tfp_bfl import keras
from tfp_bfl.algorithms.chains.work import check_batch_size, draw_batch, number_of
from tfp_bfl.contracts import CHANGE, PADDED, ClientWork, Needs, Work
from tfp_bfl.data import ClientData, ClientExamples
from tfp_bfl.errors import InvalidArgument, check_count, check_number, check_numbers
from tfp_bfl.models import as_model_fn
from tfp_bfl.posterior import flatten
from tfp_bfl.tensors import Array
from tfp_bfl.training.batches import without_initial_values
from tfp_bfl.training.likelihoods import Likelihood
from tfp_bfl.training.potential import ModeOptions, Potential, check_independent, find_mode, squared_gradients
from tfp_bfl.weights import ClientResult, ServerMessage, TrainingMetrics


class Surrogate(NamedTuple):
    """A Gaussian N(mean, diag(1 / precision)) near a client's likelihood, up to a factor.

    Fields:
      mean: m_i [D].
      precision: P_i [D].
    """

    mean: np.ndarray
    precision: np.ndarray


def coupled_langevin(
    model_fn: Callable[[], keras.Model],
    *,
    step_size: float,
    coupling: float,
    local_steps: int = 1,
    batch_size: int | float | None = None,
    likelihood: str | Likelihood = "categorical",
) -> ClientWork[tf.Tensor]:
    """Return DG-SGLD's client work: each client keeps weights z_i of its own, which the server's pull, in `local_steps`
    steps

    z_i <- z_i - gamma (N_i / n) sum_(j in S) grad u_j(z_i) - (gamma / rho) (z_i - w) + sqrt(2 gamma) Z_i

    Args:
      step_size: gamma.
      coupling: rho, the variance of each z_i about w; gamma / rho must be below 2.
      local_steps: J.

    Returns:
      Client work that sends the `CHANGE` of its z_i [D].

    Source: Plassier et al. 2021 (arXiv:2106.06300), DG-LMC with stochastic gradients.
    """
    check_numbers(step_size=step_size, coupling=coupling)
    if step_size >= 2 * coupling:
        raise InvalidArgument(
            f"step_size is {step_size:g}, but must be below 2 coupling, {2 * coupling:g}: clients diverge from there."
        )

    def drift(z: tf.Tensor, w: tf.Tensor, client: tf.Tensor, gradient: Callable[..., tf.Tensor]) -> tf.Tensor:
        del client
        return gradient(z) + (z - w) / coupling

    return _local(model_fn, drift, step_size, local_steps, batch_size, likelihood, keeps=True)


def conducive_langevin(
    model_fn: Callable[[], keras.Model],
    surrogates: Sequence[Surrogate],
    *,
    step_size: float,
    prior_precision: float = 1.0,
    local_steps: int = 16,
    batch_size: int | float | None = None,
    likelihood: str | Likelihood = "categorical",
) -> ClientWork[tf.Tensor]:
    """Return FSGLD's client work: `local_steps` steps of the whole chain by one client, drawn with probability 1 / b,

    w <- w - gamma H + sqrt(2 gamma) Z
    H = grad U_0(w) + b (N_i / n) sum_(j in S) grad u_j(w) + sum_k P_k (w - m_k) - b P_i (w - m_i)

    where the last two terms, of mean zero over i, stand for the absent clients. Give cohorts of one.

    Args:
      surrogates: N(m_k, 1 / P_k) of the clients 0, ..., b - 1, of `fit_surrogates`.
      step_size: gamma.
      prior_precision: of U_0; 0 for a flat prior.
      local_steps: J.

    Returns:
      Client work that sends the `CHANGE` of w [D].

    Source: El Mekkaoui et al. 2021 (arXiv:2004.11231), FSGLD.
    """
    check_number(step_size, "step_size")
    size, clients = Potential(as_model_fn(model_fn)()).size, len(surrogates)
    shapes = {np.shape(x) for s in surrogates for x in s}
    if shapes != {(size,)}:
        raise InvalidArgument(f"surrogates have leaves {sorted(shapes)}, but the model has {size} weights: ({size},).")
    means, precisions = (np.stack([np.float32(s[i]) for s in surrogates]) for i in range(2))
    total, shift = precisions.sum(0), (precisions * means).sum(0)

    def drift(z: tf.Tensor, w: tf.Tensor, client: tf.Tensor, gradient: Callable[..., tf.Tensor]) -> tf.Tensor:
        del w
        own = tf.gather(tf.constant(precisions), client), tf.gather(tf.constant(means), client)
        away = tf.constant(total) * z - tf.constant(shift) - clients * own[0] * (z - own[1])
        return prior_precision * z + clients * gradient(z) + away

    work = _local(model_fn, drift, step_size, local_steps, batch_size, likelihood, keeps=False)
    return work._replace(needs=Needs(clients))


def fit_surrogate(
    model_fn: Callable[[], keras.Model], features: Array, labels: Array, **options: Unpack[ModeOptions]
) -> Surrogate:
    """Return a Gaussian near one client's likelihood: about the mode of its own posterior, as precise as its gradients
    vary.

    m_i = argmin U_i(w) + ||w||^2 / (2 t^2),   P_i = sum_j (grad u_j(m_i))^2

    The gradient of a step has no bias with any Gaussian, and the less noise the nearer it is to the likelihood. So the
    last point of the search serves where `max_steps` end before the mode, as they may for networks.

    Args:
      features, labels: of the client.
      **options: of `training.find_mode`; the prior holds the mode where the client's data do not.
    """
    mode = find_mode(model_fn, features, labels, tolerance=np.inf, **options)
    mean = np.concatenate([np.ravel(x) for x in mode.point])
    potential = Potential(as_model_fn(model_fn)(), mode.likelihood)
    return Surrogate(mean, squared_gradients(potential, tf.constant(mean), features, labels).numpy())


def fit_surrogates(
    model_fn: Callable[[], keras.Model], clients: ClientData, **options: Unpack[ModeOptions]
) -> list[Surrogate]:
    """Return `fit_surrogate` of the examples of each client, in the order of the clients' numbers."""
    parts = map(clients.examples, range(clients.num_clients))
    return [fit_surrogate(model_fn, part.features, part.labels, **options) for part in parts]


def _local(
    model_fn: Callable[[], keras.Model],
    drift: Callable[..., tf.Tensor],
    step_size: float,
    local_steps: int,
    batch_size: int | float | None,
    likelihood: str | Likelihood,
    keeps: bool,
) -> ClientWork[tf.Tensor]:
    model_fn = as_model_fn(model_fn)
    first = model_fn()
    check_independent(first)
    size = Potential(first, likelihood).size
    check_count(local_steps, "local_steps")
    check_batch_size(batch_size)

    def build() -> Work[tf.Tensor]:
        with tf.variable_creator_scope(without_initial_values):
            potential = Potential(model_fn(), likelihood)

        def work(message: ServerMessage, examples: ClientExamples, seed: tf.Tensor) -> ClientResult[tf.Tensor]:
            w, is_present = flatten(message.weights.point), examples.client >= 0
            number = tf.math.count_nonzero(is_present, dtype=tf.int32)
            client = number_of(examples)
            # The row is how far z_i is from where the run began, which the server tells.
            start = flatten(message.extra) + message.memory if keeps else w

            def a_step(i: tf.Tensor, z: tf.Tensor, value: tf.Tensor) -> Any:
                of_batch, of_noise = tf.unstack(
                    tf.random.experimental.stateless_split(tf.random.experimental.stateless_fold_in(seed, i))
                )
                rows, counts = draw_batch(is_present, number, batch_size, of_batch)
                batch = tf.gather(examples.features, rows), tf.gather(examples.labels, rows), counts
                values: list[tf.Tensor] = []

                def gradient(at: tf.Tensor) -> tf.Tensor:
                    value, of_sum = potential.total(at, *batch)
                    values.append(value)
                    return of_sum

                noise = (2 * step_size) ** 0.5 * tf.random.stateless_normal([size], of_noise)
                z = z - step_size * drift(z, w, client, gradient) + noise
                return i + 1, z, value + values[0]

            begin = tf.constant(0), start, tf.constant(0.0)
            _, z, value = tf.while_loop(lambda i, *_: i < local_steps, a_step, begin, parallel_iterations=1)
            mean = value / (local_steps * tf.cast(tf.maximum(number, 1), tf.float32))
            metrics = TrainingMetrics(mean, tf.constant(0.0), -mean)
            bits = tf.constant(32.0 * size)
            counts = {"participants": tf.constant(1), "upload_bits": bits, "upload_bound": bits, "download_bits": bits}
            return ClientResult(z - start, number, metrics, counts, memory=message.memory + z - start if keeps else ())

        return tf.function(work, autograph=False)

    memory = (lambda weights, share: tf.zeros([size])) if keeps else None
    return ClientWork(build, sends=CHANGE, memory=memory, shapes=PADDED)
