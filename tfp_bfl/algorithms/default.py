"""The default: a Gaussian posterior over all weights, by clients' training, one average, and adaptive server steps."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Unpack

import tensorflow as tf

from tfp_bfl import clients, federated, models
from tfp_bfl import weighting as weightings
from tfp_bfl.algorithms.compose import Model, compose, passing_on, split_options
from tfp_bfl.algorithms.drift import flat_values, reach_of, with_flat_values
from tfp_bfl.algorithms.fixed_points import DEFAULT_RULE
from tfp_bfl.algorithms.options import WeighedOptions
from tfp_bfl.contracts import ServerStep, Work
from tfp_bfl.data import ClientExamples
from tfp_bfl.errors import check_number
from tfp_bfl.posterior import flatten
from tfp_bfl.training.inference import default_temperature
from tfp_bfl.training.optimizers import DEFAULT_OPTIMIZER, optimizer_rate
from tfp_bfl.training.schedules import falling
from tfp_bfl.training.updates import rate_of
from tfp_bfl.weights import ClientResult, ModelWeights, RoundSize, ServerMessage, layout

# Of the classes' likelihood (experiments/default_posterior).
TEMPERATURE = 0.03
# The first learning rate of the server, in units of a weight (`_units`).
SERVER_RATE = 0.1
# Of the noise in the first round.
FIRST_STDDEV = 0.02
_BETA_1, _BETA_2, _EPSILON = 0.9, 0.99, 1e-7
# Of a weight that is no kernel's, such as a bias.
_UNIT = 0.1
# Options of the clients' training that are part of the method.
_OF_RECIPE = (
    *("optimizer_fn", "inference", "noise", "decay", "stddev_rate", "step_damping", "first_stddev", "kl"),
    *("update_prior", "pretrained", "proximal", "example_privacy"),
)


class Steps(NamedTuple):
    """State of the server.

    Fields:
      round: rounds done, int32.
      rounds: of the run, int32; 0 where they are not known.
      mean, square: running means of the gradient and of its square [D + P].
    """

    round: Any
    rounds: Any
    mean: Any
    square: Any


@passing_on(clients.variational, without=_OF_RECIPE)
def default(
    model_fn: Model, *, server_learning_rate: float = SERVER_RATE, **options: Unpack[WeighedOptions]
) -> federated.BayesianProcess:
    """Fit one Gaussian posterior over many rounds, fast at first and at rest at the posterior.

    w_k = the end of client k's training from w on, by SGD with momentum at the rate rho_r, of a_k steps
    p = w + sum_k b_k (a / a_k) (w_k - w),   g = (w - p) / rho_r
    w <- p - eta_r u m / (sqrt(v) + epsilon),   m, v the running means of g and g^2, corrected for their start

    over means and point weights, with b_k the clients' weights, a the steps of a client of mean size and u the unit of
    a weight: the standard deviation sqrt(2 / inputs) of its kernel's first values. The pool p goes as far as the
    clients have come, and the adaptive step beyond it, along directions in which clients disagree from round to round
    or have small gradients. Both rates fall to zero over the rounds of the run (`training.falling`), rho_r twice as
    fast: where the weighted mean of the clients' gradients vanishes, both steps rest, whatever the clients' sizes, and
    what several local steps drift apart is in proportion to rho_r.

    Precisions are the mean of the clients' curvatures, sum_k b_k (1 / t^2 + n h_k), from the first round on
    (`training.natural.ByCurvature`, first_stddev). A model without Gaussian weights has the same steps of its weights,
    with Monte Carlo dropout's masks if it has them.

    Args:
      model_fn: builds a Keras model that returns logits; or such a model.
      server_learning_rate: eta_0.
      **options: of `compose`, and of `clients.variational`: local_epochs, batch_size, learning_rate (rho_0, a number),
        temperature (T; by default 0.03 for classes, and 1 for others) and likelihood. variance_bits is 8 where nothing
        else of `compose` changes what clients send, so that a message is 1.25 times that of point weights.

    Source: Wang et al. 2020 (arXiv:2007.07481) for a / a_k; Reddi et al. 2021 (arXiv:2003.00295) for adaptive steps.
    That the pool is taken besides is this library's; `experiments/default_posterior` measures it.

    Example:
      >>> model_fn = lambda: bfl.models.mlp("flipout", input_shape=(30,), num_classes=2)
      >>> process = bfl.algorithms.default(model_fn)
    """
    work, process = split_options(default, options)
    process = {name: x for name, x in process.items() if x is not None}
    model_fn = models.as_model_fn(model_fn)
    is_gaussian = bool(layout(model_fn()).variational)
    likelihood = work.get("likelihood", "categorical")
    if work.get("temperature") is None:
        work["temperature"] = TEMPERATURE if default_temperature(likelihood) != 1 else 1.0
    check_number(server_learning_rate, "server_learning_rate")
    given_rate = work.pop("learning_rate", None)
    first_rate = optimizer_rate(DEFAULT_OPTIMIZER) if given_rate is None else check_number(given_rate, "learning_rate")
    rate, server_share = falling(first_rate, 2.0, 3e-3), falling(1.0)
    local = clients.variational(model_fn, **work, learning_rate=rate, first_stddev=FIRST_STDDEV)
    reach = reach_of(**{name: x for name, x in work.items() if name != "weighting"}, learning_rate=rate)

    def run(train: Work, message: ServerMessage, examples: ClientExamples, seed: tf.Tensor) -> ClientResult:
        result = train(message, examples, seed)
        # Where the server does not know the federation, a client of one batch is the measure.
        num_clients = tf.cast(tf.maximum(message.federation.num_clients, 1), tf.int64)
        mean_size = tf.cast(tf.cast(message.federation.num_examples, tf.int64) // num_clients, tf.int32)
        share = reach(message.round, mean_size).steps / reach(message.round, result.num_examples).steps
        begin, end = flat_values(message.weights), flat_values(result.weights)
        return result._replace(weights=with_flat_values(result.weights, begin + share * (end - begin)))

    def initialize(weights: ModelWeights) -> Steps:
        zeros = tf.zeros_like(flat_values(weights))
        return Steps(tf.constant(0), tf.constant(0), zeros, zeros)

    def advance(
        state: Steps, weights: ModelWeights, pooled: ModelWeights, seed: tf.Tensor
    ) -> tuple[Steps, ModelWeights]:
        del seed
        begin, end, done = flat_values(weights), flat_values(pooled), state.round
        gradient = (begin - end) / rate_of(rate, done, state.rounds)
        mean = _BETA_1 * state.mean + (1 - _BETA_1) * gradient
        square = _BETA_2 * state.square + (1 - _BETA_2) * tf.square(gradient)
        number = tf.cast(done + 1, tf.float32)
        of_start = (1 - _BETA_1**number) / tf.sqrt(1 - _BETA_2**number)
        share = rate_of(server_share, done, state.rounds)
        step = server_learning_rate * share * _units(weights) * mean / (tf.sqrt(square) + _EPSILON) / of_start
        values = begin + (1 - 0.5 * share) * (end - begin) - step
        return Steps(done + 1, state.rounds, mean, square), with_flat_values(pooled, values)

    def meet(state: Steps, size: RoundSize) -> Steps:
        return state._replace(rounds=size.rounds)

    changed = process.keys() & {"variance_bits", "secure_sums", "robust", "privacy"}
    if is_gaussian and not changed and process.get("weighting") not in weightings.COMPARE_POSTERIORS:
        process["variance_bits"] = 8
    step = ServerStep(initialize, advance, meet=meet, name=f"average and adam, learning rate {server_learning_rate:g}")
    return compose(model_fn, local.around(run), DEFAULT_RULE, step, **process)


def _units(weights: ModelWeights) -> tf.Tensor:
    """Return u [D + P]."""
    unit = lambda x: math.sqrt(2 / math.prod(x.shape[:-1])) if len(x.shape) > 1 else _UNIT
    return flatten(tf.nest.map_structure(lambda x: tf.fill(x.shape, unit(x)), (weights.posterior.mean, weights.point)))
