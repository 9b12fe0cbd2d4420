"""A Gaussian posterior over all weights: clients' training, adaptive steps of the server, and their average."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Unpack

import tensorflow as tf

from tfp_bfl import clients, federated, models
from tfp_bfl import weighting as weightings
from tfp_bfl.algorithms.compose import Model, compose, passing_on, split_options
from tfp_bfl.algorithms.drift import flat_values, mean_size, reach_of, relative_steps, with_flat_values
from tfp_bfl.algorithms.fixed_points import DEFAULT_RULE
from tfp_bfl.algorithms.options import WeighedOptions
from tfp_bfl.contracts import ServerStep, Work
from tfp_bfl.data import ClientExamples
from tfp_bfl.defaults import LOCAL_EPOCHS_OF_DEFAULT
from tfp_bfl.errors import check_number
from tfp_bfl.posterior import flatten
from tfp_bfl.servers.optimizers import adam
from tfp_bfl.tensors import Scalar
from tfp_bfl.training.inference import TEMPERATURE_OF_DEFAULT, default_temperature
from tfp_bfl.training.natural import share_of_estimates
from tfp_bfl.training.optimizers import DEFAULT_OPTIMIZER, optimizer_rate
from tfp_bfl.training.schedules import falling
from tfp_bfl.training.updates import Schedule, rate_of
from tfp_bfl.weights import ClientResult, ModelWeights, RoundSize, ServerMessage, layout

# The first learning rate of the server, in units of a weight (`_units`).
SERVER_RATE = 0.1
# Rounds over which adaptive steps begin: the first ones are of full length in every weight, and can end a training.
BEGINNING = 10
# Of the noise in the first round.
FIRST_STDDEV = 0.02
# Squares of gradients are of the last 100 rounds: they get smaller by orders of magnitude.
_ADAM = adam(1.0, beta_2=0.99)
# Of a weight that is no kernel's, such as a bias.
_UNIT = 0.1
# Options of the clients' training that are part of the method.
_OF_RECIPE = (
    *("optimizer_fn", "inference", "noise", "decay", "stddev_rate", "step_damping", "first_stddev", "kl"),
    *("update_prior", "pretrained", "proximal", "example_privacy"),
)


class AdaptiveSteps(NamedTuple):
    """State of the server.

    Fields:
      rounds: of the run, int32; 0 where they are not known.
      adam: of `servers.adam`, over means and point weights as one vector.
    """

    rounds: Any
    adam: Any


@passing_on(clients.variational, without=_OF_RECIPE, local_epochs=LOCAL_EPOCHS_OF_DEFAULT)
def default(
    model_fn: Model, *, server_learning_rate: float = SERVER_RATE, **options: Unpack[WeighedOptions]
) -> federated.BayesianProcess:
    """Fit one Gaussian posterior over many rounds, fast at first and at rest at the posterior.

    w_k = the end of client k's training from w on, by SGD with momentum at the rate rho_r, of a_k steps
    d = sum_k b_k (a / a_k) (w_k - w),   g = -d / rho_r
    w <- w + (1 - s_r / 2) d - eta s_r u m / (sqrt(v) + epsilon),   m, v of g and g^2 as of `servers.adam`

    over means and point weights, with b_k the clients' weights, a the steps of a client of mean size and u the unit of
    a weight: the standard deviation sqrt(2 / inputs) of its kernel's first values. f_r falls from 1 to 0 over the
    rounds of the run, rho_r as its square (`training.schedules.falling`), and s_r = f_r min(1, (r + 1) / 10): adaptive
    steps, which go on where clients disagree or gradients are small, and the average at last. Where the weighted mean
    of the clients' gradients vanishes both rest, whatever the clients' sizes; what several local steps drift apart is
    in proportion to rho_r.

    Precisions are the mean of the clients' curvatures, sum_k b_k (1 / t^2 + n h_k), from the first round on
    (`training.natural.ByCurvature`, first_stddev). A model without Gaussian weights has the same steps of its weights,
    with Monte Carlo dropout's masks if it has them.

    Args:
      model_fn: builds a Keras model that returns logits; or such a model.
      server_learning_rate: eta_0.
      **options: of `compose`, and of `clients.variational`: local_epochs (by default 3), batch_size, learning_rate
        (rho_0, a number), temperature (T; by default 0.06 for classes, and 1 for others) and likelihood. variance_bits
        is 8 where nothing else of `compose` changes what clients send, so that a message is 1.25 times that of point
        weights.

    Source: Wang et al. 2020 (arXiv:2007.07481) for a / a_k; Reddi et al. 2021 (arXiv:2003.00295) for adaptive steps.
    That the average takes over as the rates fall is this library's.

    Example:
      >>> model_fn = lambda: bfl.models.mlp("flipout", input_shape=(30,), num_classes=2)
      >>> process = bfl.algorithms.default(model_fn)
    """
    work, process = split_options(default, options)
    process = {name: x for name, x in process.items() if x is not None}
    work.setdefault("local_epochs", LOCAL_EPOCHS_OF_DEFAULT)
    model_fn = models.as_model_fn(model_fn)
    is_gaussian = bool(layout(model_fn()).variational)
    likelihood = work.get("likelihood", "categorical")
    if work.get("temperature") is None:
        work["temperature"] = default_temperature(likelihood, TEMPERATURE_OF_DEFAULT)
    check_number(server_learning_rate, "server_learning_rate")
    given_rate = work.pop("learning_rate", None)
    first_rate = optimizer_rate(DEFAULT_OPTIMIZER) if given_rate is None else check_number(given_rate, "learning_rate")
    rate = falling(first_rate, 2.0, 3e-3)
    local = clients.variational(model_fn, **work, learning_rate=rate, first_stddev=FIRST_STDDEV)
    reach = reach_of(**{name: x for name, x in work.items() if name != "weighting"}, learning_rate=rate)

    def estimated(message: ServerMessage, num_examples: Scalar) -> tf.Tensor:
        of_round = reach(message.round, num_examples, message.federation.rounds)
        return share_of_estimates(message.round, of_round.number, of_round.rate / first_rate)

    def run(train: Work, message: ServerMessage, examples: ClientExamples, seed: tf.Tensor) -> ClientResult:
        result = train(message, examples, seed)
        begin, end = flat_values(message.weights), flat_values(result.weights)
        moved = (end - begin) / relative_steps(reach, message, result.num_examples)
        weights = with_flat_values(result.weights, begin + moved)
        own, usual = (estimated(message, x) for x in (result.num_examples, mean_size(message)))
        sent = lambda before, after: 1 / (1 / before + usual / own * (1 / after - 1 / before))
        variance = tf.nest.map_structure(sent, message.weights.posterior.variance, weights.posterior.variance)
        return result._replace(weights=weights._replace(posterior=weights.posterior._replace(variance=variance)))

    changed = process.keys() & {"variance_bits", "secure_sums", "robust", "privacy"}
    if is_gaussian and not changed and process.get("weighting") not in weightings.COMPARE_POSTERIORS:
        process["variance_bits"] = 8
        local = local._replace(settings=(*dict(local.settings).items(), ("variance_bits", 8)))
    return compose(model_fn, local.around(run), DEFAULT_RULE, _server(server_learning_rate, rate), **process)


def _server(learning_rate: float, rate: Schedule) -> ServerStep:
    """Return the step eta s_r u Adam(g), and that to the average; `rate` is of the clients."""
    share_of = falling(1.0)

    def initialize(weights: ModelWeights) -> AdaptiveSteps:
        return AdaptiveSteps(tf.constant(0), _ADAM.initialize(flat_values(weights)))

    def advance(
        state: AdaptiveSteps, weights: ModelWeights, pooled: ModelWeights, seed: tf.Tensor
    ) -> tuple[AdaptiveSteps, ModelWeights]:
        del seed
        begin, done = flat_values(weights), state.adam["step"]
        moved = flat_values(pooled) - begin
        share = rate_of(share_of, done, state.rounds) * tf.minimum(1.0, (tf.cast(done, tf.float32) + 1) / BEGINNING)
        adam, direction = _ADAM.next(state.adam, tf.zeros_like(begin), -moved / rate_of(rate, done, state.rounds))
        step = learning_rate * share * _units(weights) * direction
        return state._replace(adam=adam), with_flat_values(pooled, begin + (1 - share / 2) * moved + step)

    def meet(state: AdaptiveSteps, size: RoundSize) -> AdaptiveSteps:
        return state._replace(rounds=size.rounds)

    name = f"average and adam, learning rate {learning_rate:g}"
    return ServerStep(initialize, advance, meet=meet, name=name)


def _units(weights: ModelWeights) -> tf.Tensor:
    """Return u [D + P]."""
    unit = lambda x: math.sqrt(2 / math.prod(x.shape[:-1])) if len(x.shape) > 1 else _UNIT
    return flatten(tf.nest.map_structure(lambda x: tf.fill(x.shape, unit(x)), (weights.posterior.mean, weights.point)))
