"""A Gaussian posterior over all weights: clients' training, adaptive steps of the server, and their average."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Unpack

import tensorflow as tf

from tfp_bfl import clients, federated, keras, models
from tfp_bfl import weighting as weightings
from tfp_bfl.algorithms.compose import Model, compose, passing_on, split_options
from tfp_bfl.algorithms.drift import Reach, flat_values, mean_size, reach_of, relative_steps, with_flat_values
from tfp_bfl.algorithms.fixed_points import DEFAULT_RULE
from tfp_bfl.algorithms.options import WeighedOptions
from tfp_bfl.contracts import EXTENDED, ServerStep, Work
from tfp_bfl.data import ClientExamples
from tfp_bfl.defaults import LOCAL_EPOCHS_OF_DEFAULT, TEMPERATURE_OF_DEFAULT
from tfp_bfl.errors import check_number
from tfp_bfl.posterior import flatten
from tfp_bfl.servers.optimizers import adam
from tfp_bfl.tensors import Scalar
from tfp_bfl.training.inference import default_temperature
from tfp_bfl.training.natural import share_of_estimates
from tfp_bfl.training.optimizers import DEFAULT_OPTIMIZER, optimizer_rate
from tfp_bfl.training.schedules import falling
from tfp_bfl.training.updates import Schedule, rate_of
from tfp_bfl.weights import ClientResult, ModelWeights, RoundSize, ServerMessage, layout
from tfp_bfl.weights.exchange import AtTemperature

# The first learning rate of the server, in units of a weight (`_units`).
SERVER_RATE = 0.1
# Rounds over which adaptive steps begin: the first ones are of full length in every weight, and can end a training.
BEGINNING = 10
# Of the noise in the first round.
FIRST_STDDEV = 0.02
# Of means of gradients over rounds: with 0.9 they oscillate for longer than 60 rounds are.
MOMENTUM = 0.7
# Squares of gradients are of the last 100 rounds: they get smaller by orders of magnitude.
_ADAM = adam(1.0, beta_1=MOMENTUM, beta_2=0.99)
# Of a weight that is no kernel's, such as a bias.
_UNIT = 0.1
# Of the share l of a guess's loss that training leaves, the posterior temperature 1.5 l, and more above 1 / 8; its
# least and most.
OF_LOSS, OF_SQUARE = 1.5, 12.0
TEMPERATURES = 0.01, 0.5
# With fewer examples of all clients T does not rise: much of their loss is of the noise of the weights.
ENOUGH = 1000
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
      carried: c: the step along the gradients of former rounds over that along the present one, a scalar.
      loss: the least mean loss of a round so far, as a share of log C; most: the largest T at the end; temperature: T:
        scalars; () where T is fixed.
    """

    rounds: Any
    adam: Any
    carried: Any = 0.0
    loss: Any = ()
    most: Any = ()
    temperature: Any = ()


@passing_on(clients.variational, without=_OF_RECIPE, local_epochs=LOCAL_EPOCHS_OF_DEFAULT)
def default(
    model_fn: Model, *, server_learning_rate: float = SERVER_RATE, **options: Unpack[WeighedOptions]
) -> federated.BayesianProcess:
    """Fit one Gaussian posterior over many rounds, fast at first and at rest at the posterior.

    w_k = the end of client k's training from w on, by SGD with momentum at the rate rho_r, of a_k steps
    d = sum_k b_k (a / a_k) (w_k - w),   g = -d / rho_r
    w <- w + (1 - s_r / 2) (d - rho_r c m) - eta s_r u m' / (sqrt(v') + epsilon)

    over means and point weights, with b_k the clients' weights, a the steps of a client of mean size and u the unit of
    a weight: the standard deviation sqrt(2 / inputs) of its kernel's first values. m and v are of g and g^2 as of
    `servers.adam`, ' after this round. f_r falls from 1 to 0 over the rounds of the run, rho_r as its cube
    (`training.schedules.falling`), and s_r = f_r min(1, (r + 1) / 10): adaptive steps, which go on where clients
    disagree or gradients are small, and the average at last. c carries momentum from round to round, which clients of
    few steps do not reach by themselves. Where the weighted mean of the clients' gradients vanishes both
    rest, whatever the clients' sizes; what several local steps drift apart is in proportion to rho_r.

    Precisions are the mean of the clients' curvatures, sum_k b_k (1 / t^2 + n h_k / T), from the first round on
    (`training.natural.ByCurvature`, first_stddev). A model without Gaussian weights has the same steps of its weights,
    with Monte Carlo dropout's masks if it has them.

    The posterior temperature T follows from the loss that training leaves. Of classes, where none is given,

    l_r = min_{j < r} sum_k b_k L_jk / log C,   T_0 = 0.06
    T_r = clip(max(1.5 l_r, 12 l_r^2), 0.01, 0.06 (M / 0.06)^((1 - f_r)^2))

    with L_jk the mean loss of client k's training in round j, log C that of a guess among C classes, and M = 0.5, or
    0.06 with fewer than 1,000 examples, where much of the loss is of the noise of the weights. T is what the dispersion
    is to the covariance of a generalised linear model: what stays of the loss counts as noise. With T the data's part
    of each precision, 1 / s^2 - 1 / t^2, changes at once. A client sends one number for it. With privacy T stays 0.06.

    Args:
      model_fn: builds a Keras model that returns logits; or such a model.
      server_learning_rate: eta_0.
      **options: of `compose`, and of `clients.variational`: local_epochs (by default 3), batch_size, learning_rate
        (rho_0, a number), temperature (T of all rounds; None for that above, and for 1 in regressions) and likelihood.
        variance_bits is 8 where nothing else of `compose` changes what clients send, so that a message is 1.25 times
        that of point weights.

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
    model = model_fn()
    is_gaussian, given = bool(layout(model).variational), work.get("temperature")
    usual = default_temperature(work.get("likelihood", "categorical"), TEMPERATURE_OF_DEFAULT)
    follows = given is None and is_gaussian and usual != 1 and "privacy" not in process
    guess = math.log(model.output_shape[-1]) if follows else None
    work["temperature"] = usual if given is None else given
    check_number(server_learning_rate, "server_learning_rate")
    given_rate = work.pop("learning_rate", None)
    first_rate = optimizer_rate(DEFAULT_OPTIMIZER) if given_rate is None else check_number(given_rate, "learning_rate")
    rate = falling(first_rate, 3.0, 3e-3)
    local = clients.variational(model_fn, **work, learning_rate=rate, first_stddev=FIRST_STDDEV)
    reach = reach_of(**{name: x for name, x in work.items() if name != "weighting"}, learning_rate=rate)

    changed = process.keys() & {"variance_bits", "secure_sums", "robust", "privacy"}
    if is_gaussian and not changed and process.get("weighting") not in weightings.COMPARE_POSTERIORS:
        process["variance_bits"] = 8
        local = local._replace(settings=(*dict(local.settings).items(), ("variance_bits", 8)))
    own, step = local.around(_sending(reach, first_rate, guess)), _server(server_learning_rate, rate, reach)
    if guess:
        stated = {**dict(own.settings), "temperature": "by the loss"}
        own = own._replace(extra=lambda weights: tf.constant(0.0), settings=tuple(stated.items()))
        step = _following(step, model)
    return compose(model_fn, own, DEFAULT_RULE, step, **process)


def _sending(reach: Callable[..., Reach], first_rate: float, guess: float | None) -> Callable[..., ClientResult]:
    """Return what a client sends around its training, as of a client of mean size; its loss as a share of that of a
    guess, unless that is None.
    """

    def estimated(message: ServerMessage, num_examples: Scalar) -> tf.Tensor:
        of_round = reach(message.round, num_examples, message.federation.rounds)
        return share_of_estimates(message.round, of_round.number, of_round.rate / first_rate)

    def run(train: Work, message: ServerMessage, examples: ClientExamples, seed: tf.Tensor) -> ClientResult:
        result = train(message, examples, seed)
        begin, end = flat_values(message.weights), flat_values(result.weights)
        moved = (end - begin) / relative_steps(reach, message, result.num_examples)
        weights = with_flat_values(result.weights, begin + moved)
        own, usual = (estimated(message, x) for x in (result.num_examples, mean_size(message.federation)))
        sent = lambda before, after: 1 / (1 / before + usual / own * (1 / after - 1 / before))
        variance = tf.nest.map_structure(sent, message.weights.posterior.variance, weights.posterior.variance)
        result = result._replace(weights=weights._replace(posterior=weights.posterior._replace(variance=variance)))
        loss = tf.where(result.num_examples > 0, result.metrics.nll / guess, 0.0) if guess else ()
        return result._replace(extra=loss)

    return run


def _following(step: ServerStep, model: keras.Model) -> ServerStep:
    """Return the step with a posterior temperature that follows from the loss of training."""
    stddevs = [w.prior for w in layout(model).variational]
    first, (least, most) = TEMPERATURE_OF_DEFAULT, TEMPERATURES
    left = falling(1.0)

    def initialize(weights: ModelWeights) -> AdaptiveSteps:
        heat = tf.constant(first)
        return step.initialize(weights)._replace(loss=tf.constant(1.0), most=heat, temperature=heat)

    def advance(
        state: AdaptiveSteps, weights: ModelWeights, pooled: ModelWeights, seed: tf.Tensor, loss: tf.Tensor
    ) -> tuple[AdaptiveSteps, ModelWeights]:
        done = tf.square(1 - rate_of(left, state.adam["step"] + 1, state.rounds))
        loss, bound = tf.minimum(state.loss, loss), first * (state.most / first) ** done
        temperature = tf.clip_by_value(tf.maximum(OF_LOSS * loss, OF_SQUARE * loss**2), least, bound)
        state, weights = step.next(state._replace(loss=loss), weights, pooled, seed)
        mean, variance = weights.posterior
        heated = tuple(
            _heated(m, v, t, state.temperature / temperature) for m, v, t in zip(mean, variance, stddevs, strict=True)
        )
        weights = weights._replace(posterior=weights.posterior._replace(variance=heated))
        return state._replace(temperature=temperature), weights

    def meet(state: AdaptiveSteps, size: RoundSize) -> AdaptiveSteps:
        return step.meet(state, size)._replace(most=tf.where(size.num_examples < ENOUGH, first, most))

    return step._replace(
        initialize=initialize,
        next=advance,
        meet=meet,
        takes=EXTENDED,
        send=lambda state, weights: AtTemperature(state.temperature),
        metrics=lambda state, weights, extra: {"temperature": state.temperature},
    )


def _heated(mean: tf.Tensor, variance: tf.Tensor, of_prior: float | None, factor: tf.Tensor) -> tf.Tensor:
    """Return the variance after the data's part of the precision is multiplied; a hierarchical prior is of q itself."""
    prior = 1 / (tf.square(mean) + variance) if of_prior is None else 1 / of_prior**2
    return 1 / (prior + factor * tf.maximum(1 / variance - prior, 0.0))


def _server(learning_rate: float, rate: Schedule, reach: Callable[..., Reach]) -> ServerStep:
    """Return the step eta s_r u Adam(g), and that to the average; `rate` and `reach` are of the clients."""
    share_of = falling(1.0)

    def initialize(weights: ModelWeights) -> AdaptiveSteps:
        return AdaptiveSteps(tf.constant(0), _ADAM.initialize(flat_values(weights)), tf.constant(0.0))

    def advance(
        state: AdaptiveSteps, weights: ModelWeights, pooled: ModelWeights, seed: tf.Tensor
    ) -> tuple[AdaptiveSteps, ModelWeights]:
        del seed
        begin, done = flat_values(weights), state.adam["step"]
        moved = flat_values(pooled) - begin
        share = rate_of(share_of, done, state.rounds) * tf.minimum(1.0, (tf.cast(done, tf.float32) + 1) / BEGINNING)
        of_round, before = rate_of(rate, done, state.rounds), state.adam["accumulator"]
        adam, direction = _ADAM.next(state.adam, tf.zeros_like(begin), -moved / of_round)
        step = learning_rate * share * _units(weights) * direction
        average = moved - of_round * state.carried * before
        return state._replace(adam=adam), with_flat_values(pooled, begin + (1 - share / 2) * average + step)

    def meet(state: AdaptiveSteps, size: RoundSize) -> AdaptiveSteps:
        usual = reach(0, mean_size(size))
        # The velocity m / (1 - b) of former rounds moves on by b (1 - b^tau) / (1 - b) of itself in tau steps.
        further = MOMENTUM * (1 - MOMENTUM**usual.number) / (1 - MOMENTUM) ** 2
        return state._replace(rounds=size.rounds, carried=further / usual.steps)

    name = f"average and adam, learning rate {learning_rate:g}"
    return ServerStep(initialize, advance, meet=meet, name=name)


def _units(weights: ModelWeights) -> tf.Tensor:
    """Return u [D + P]."""
    unit = lambda x: math.sqrt(2 / math.prod(x.shape[:-1])) if len(x.shape) > 1 else _UNIT
    return flatten(tf.nest.map_structure(lambda x: tf.fill(x.shape, unit(x)), (weights.posterior.mean, weights.point)))
