"""The mode of a posterior, which QLSD*'s control variate is about, and how far off a point is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_bfl import keras
from tfp_bfl.data import ClientData
from tfp_bfl.errors import InvalidArgument, check_count, check_number
from tfp_bfl.models import as_model_fn
from tfp_bfl.tensors import Array
from tfp_bfl.training.likelihoods import Likelihood
from tfp_bfl.training.potential import Potential, check_independent

_ValueAndGradient = Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]
# Of a standard deviation: so far the mean of a chain may lie off.
TOLERANCE = 0.1


class Mode(NamedTuple):
    """A point near the least potential.

    Fields:
      point: w*, leaves like the model's point weights.
      error: max_d abs(grad U(w*)_d) / sqrt(sum_j (grad u_j(w*)_d)^2 + 1 / t^2): about how many standard deviations
        of the posterior a chain with its control variate there is off, in the weight where it is most.
      prior_stddev, likelihood: of U, as `find_mode` was given them.
      num_examples: of which U is.
      scale: the square roots that `error` is over [D].
    """

    point: tuple[np.ndarray, ...]
    error: float
    prior_stddev: float | None
    likelihood: str | Likelihood
    num_examples: int
    scale: np.ndarray


def find_mode(
    model_fn: Callable[[], keras.Model],
    features: Array,
    labels: Array,
    *,
    prior_stddev: float | None = 1.0,
    likelihood: str | Likelihood = "categorical",
    max_steps: int = 1000,
    tolerance: float = TOLERANCE,
) -> Mode:
    """Minimise U(w) = sum_j u_j(w) + ||w||^2 / (2 t^2) by L-BFGS from the model's own weights.

    Args:
      model_fn: as of `stochastic_gradient`.
      features, labels: of all clients [N, ...], [N].
      prior_stddev: t; None for a flat prior.
      likelihood: "categorical", "gaussian:STDDEV", "heteroscedastic" or "density".
      max_steps: at most.
      tolerance: the largest error of a mode, in posterior standard deviations; infinity accepts any point.

    Raises:
      InvalidArgument: arguments as of `stochastic_gradient`, or no point was found that is near enough: the potential
        of a network has no such mode for a method of the second order.
    """
    potential, value_and_gradient, given = _target(model_fn, features, labels, prior_stddev, likelihood)
    check_count(max_steps, "max_steps")
    search = tf.function(
        lambda start: (
            tfp.optimizer.lbfgs_minimize(
                value_and_gradient, start, tolerance=0.0, max_iterations=max_steps, num_correction_pairs=20
            ).position
        ),
        autograph=False,
    )(potential.start())
    mode = _at(potential, value_and_gradient, search, *given, prior_stddev, likelihood)
    if not mode.error <= tolerance:
        raise InvalidArgument(
            f"No mode was found in {max_steps} steps: the last point is {mode.error:.2g} standard deviations off, and "
            f"at most {tolerance:g} serve. Use more steps, or the estimator 'anchored', which needs none."
        )
    return mode


def mode_at(
    model_fn: Callable[[], keras.Model],
    point: Sequence[Array],
    features: Array,
    labels: Array,
    *,
    prior_stddev: float | None = 1.0,
    likelihood: str | Likelihood = "categorical",
) -> Mode:
    """Return a given point as a `Mode`, with its distance from the optimum; arguments as of `find_mode`."""
    potential, value_and_gradient, given = _target(model_fn, features, labels, prior_stddev, likelihood)
    vector = tf.concat([tf.reshape(tf.convert_to_tensor(x, tf.float32), [-1]) for x in point], 0)
    return _at(potential, value_and_gradient, vector, *given, prior_stddev, likelihood)


def check_mode(mode: Mode, potential: Potential, clients: ClientData) -> None:
    """Make sure that a point is the mode of the examples of clients, each of whom is gone through once.

    Args:
      mode: the point.
      potential: of a model, with the mode's likelihood.
      clients: `data.ClientData`.

    Raises:
      InvalidArgument: it is the mode of another number of examples, or further than `TOLERANCE` from that of these.
    """
    number = int(np.sum(clients.sizes))
    if number != mode.num_examples:
        raise InvalidArgument(
            f"fixed_point is the mode of {mode.num_examples:,} examples, but the clients have {number:,}: take "
            "training.find_mode(...) of theirs."
        )
    w = tf.concat([tf.reshape(tf.convert_to_tensor(x, tf.float32), [-1]) for x in mode.point], 0)
    of = tf.function(lambda x, y: potential.total(w, x, y)[1], autograph=False, reduce_retracing=True)
    total = 0.0 if mode.prior_stddev is None else w.numpy().astype(np.float64) / mode.prior_stddev**2
    for k in range(clients.num_clients):
        part = clients.examples(k)
        total = total + of(tf.convert_to_tensor(part.features), tf.convert_to_tensor(part.labels)).numpy()
    off = np.max(np.divide(np.abs(total), mode.scale, out=np.zeros(potential.size), where=mode.scale > 0))
    if not off <= TOLERANCE:
        raise InvalidArgument(
            f"fixed_point is {off:.2g} standard deviations from the mode of these clients' examples, by which the "
            f"chain would be off, and at most {TOLERANCE:g} serve: take training.find_mode(...) of theirs."
        )


def _target(
    model_fn: Callable[[], keras.Model],
    features: Array,
    labels: Array,
    prior_stddev: float | None,
    likelihood: str | Likelihood,
) -> tuple[Potential, _ValueAndGradient, tuple[tf.Tensor, tf.Tensor]]:
    model = as_model_fn(model_fn)()
    check_independent(model)
    potential = Potential(model, likelihood)
    if prior_stddev is not None:
        check_number(prior_stddev, "prior_stddev")
    precision = 0.0 if prior_stddev is None else 1 / prior_stddev**2
    given = tf.convert_to_tensor(features), tf.convert_to_tensor(labels)

    def value_and_gradient(w: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        value, gradient = potential.total(w, *given)
        return value + 0.5 * precision * tf.reduce_sum(tf.square(w)), gradient + precision * w

    return potential, value_and_gradient, given


def _at(
    potential: Potential,
    value_and_gradient: _ValueAndGradient,
    w: tf.Tensor,
    features: tf.Tensor,
    labels: tf.Tensor,
    prior_stddev: float | None,
    likelihood: str | Likelihood,
) -> Mode:
    scale = tf.sqrt(
        squared_gradients(potential, w, features, labels) + (0.0 if prior_stddev is None else 1 / prior_stddev**2)
    )
    off = tf.math.divide_no_nan(tf.abs(value_and_gradient(w)[1]), scale)
    point, number = tuple(x.numpy() for x in potential.shaped(w)), int(labels.shape[0])
    return Mode(point, float(tf.reduce_max(off)), prior_stddev, likelihood, number, scale.numpy())


def squared_gradients(potential: Potential, w: tf.Tensor, features: Array, labels: Array) -> tf.Tensor:
    """Return sum_j (grad u_j(w))^2 over all examples [D]: near the potential's curvature where the model is right."""
    features, labels = tf.convert_to_tensor(features), tf.convert_to_tensor(labels)

    def add(j: tf.Tensor, total: tf.Tensor) -> Any:
        _, gradient = potential.gradient(w, features[j : j + 1], labels[j : j + 1])
        return j + 1, total + tf.square(gradient)

    @tf.function(autograph=False)
    def over_all() -> tf.Tensor:
        number = tf.shape(features)[0]
        return tf.while_loop(lambda j, _: j < number, add, (tf.constant(0), tf.zeros_like(w)))[1]

    return over_all()
