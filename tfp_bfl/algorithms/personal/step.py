"""The server learns what gives each client its variances, beside the weights that all share."""

from typing import Any, NamedTuple

import tensorflow as tf

from tfp_bfl.algorithms.personal.variances import LogitGradient, Parameters, PersonalVariances
from tfp_bfl.contracts import EXTENDED, Metrics, Needs, ServerStep
from tfp_bfl.errors import InvalidArgument, check_number
from tfp_bfl.posterior import flatten, unflatten
from tfp_bfl.servers.optimizers import Optimizer, server_optimizer
from tfp_bfl.servers.pooled import in_words
from tfp_bfl.tensors import TensorTree
from tfp_bfl.weights import ModelWeights


class Learning(NamedTuple):
    """The learning of the parameters by SGD: v <- momentum v + g + decay x, x <- x - rate v."""

    rate: Any
    momentum: float
    decay: float = 5e-4


class PersonalState(NamedTuple):
    """The state.

    Fields:
      parameters: of the variances.
      momenta: of the learned parameters, in the same structure.
      optimizer: state of the optimizer of the weights.
    """

    parameters: Parameters
    momenta: Parameters
    optimizer: Any


def personal(
    variances: PersonalVariances,
    optimizer: Optimizer | None = None,
    *,
    shared: Learning | None = None,
    rows: Learning | None = None,
    capped: bool = True,
    absent_decay: bool = False,
    clip_norm: float = 100.0,
    seed: int = 0,
) -> ServerStep:
    """Update weights by the pooled change, and parameters of the variances by the gradients that clients pulled back.

    theta <- optimizer(theta, theta - pooled),   psi, e_m by `Learning`

    The rates of psi and e_m are at most (1 - momentum) sum_m b_m ||Delta_m||^2 / ||gradient||^2, Delta_m = l_m - l'_m:
    to first order the logits then move along the clients' changes no further than these. Without it a hypernetwork
    amplifies common changes of the clients, and increasingly so during training.

    A round reports how far training moved the clients' logits, `logit_change`: sqrt(sum_m b_m ||l_m - l'_m||^2), and
    the dropout rates of its clients (`personal.step.DropoutRates`).

    All gradients together are first scaled to a norm of `clip_norm` at most. The server's own variances are those of a
    client that was never in training.

    Args:
      variances: as the clients have them.
      optimizer: of means and point weights; None to take the pool: SGD of rate 1.
      shared, rows: learning of the common parameters, and of the parameters of each client; None for
        `Learning(0.9, 0.6)` and `Learning(0.9, 0.3)`. A rate of 0 leaves them.
      capped: False for the rates as they are, as published.
      absent_decay: whether decay and momentum apply to the rows of absent clients too, as in the authors' program.
      clip_norm: of all gradients, the change of the weights included.
      seed: of the first parameters.

    Source: Jeon et al. 2023 (arXiv:2510.20225), algorithm 1; rates by the authors' program.
    """
    check_number(clip_norm, "clip_norm")
    if absent_decay and isinstance(variances.initialize(1, 0).rows, tuple):
        raise InvalidArgument(f"absent_decay is of clients' parameters, and {variances.name} has none: leave it out.")
    if not capped and not variances.learned:
        raise InvalidArgument(f"capped=False (--uncapped) needs learned variances, and {variances.name} learns none.")
    chosen = optimizer or server_optimizer("sgd", 1.0)
    of_all, of_each = shared or Learning(0.9, 0.6), rows or Learning(0.9, 0.3)
    each, trained = tf.nest.map_structure, lambda weights: (weights.posterior.mean, weights.point)
    norm_of = lambda structure: tf.linalg.global_norm(tf.nest.flatten(structure))

    def initialize(weights: ModelWeights) -> PersonalState:
        parameters = each(tf.convert_to_tensor, variances.start(weights.posterior.mean, seed))
        state = chosen.initialize(each(tf.TensorSpec.from_tensor, trained(weights)))
        momenta = each(tf.zeros_like, parameters._replace(middle=()))
        return PersonalState(parameters, momenta, each(tf.convert_to_tensor, state))

    def begin(state: PersonalState, weights: ModelWeights) -> ModelWeights:
        q = weights.posterior
        variance = variances.of_client(state.parameters, variances.num_clients, flatten(q.mean))
        return weights._replace(posterior=q._replace(variance=unflatten(variance, q.variance)))

    def step(
        state: PersonalState, weights: ModelWeights, pool: ModelWeights, seed: tf.Tensor, extra: LogitGradient
    ) -> tuple[PersonalState, ModelWeights]:
        del seed
        change = each(tf.subtract, trained(weights), trained(pool))
        pulled_back = Parameters(extra.shared, extra.rows)
        # With differential privacy the sums have noise, and these are not negative.
        largest = tf.maximum(extra.moved, 0.0) / tf.maximum(tf.square(norm_of(pulled_back)), 1e-30)
        gradients = change, pulled_back
        scale = tf.minimum(1.0, clip_norm / tf.maximum(norm_of(gradients), 1e-30))
        change, gradient = each(lambda g: g * scale, gradients)
        optimizer_state, (means, point) = chosen.next(state.optimizer, trained(weights), change)
        cap = lambda how: how._replace(rate=tf.minimum(how.rate, (1 - how.momentum) * largest)) if capped else how
        is_present = tf.ones_like(extra.present) if absent_decay else tf.sign(tf.maximum(extra.present, 0.0))
        parameters, momenta = _learn(state, gradient, cap(of_all), cap(of_each), is_present)
        moved = pool._replace(posterior=pool.posterior._replace(mean=means), point=point)
        new = PersonalState(parameters, momenta, optimizer_state)
        return new, begin(new, moved)

    def metrics(state: PersonalState, weights: ModelWeights, extra: LogitGradient) -> Metrics:
        rates = dropout_rates(variances, state.parameters, flatten(weights.posterior.mean), extra.present)
        return {"logit_change": tf.sqrt(tf.maximum(extra.moved, 0.0)), **rates._asdict()}

    return ServerStep(
        initialize,
        step,
        begin=begin,
        send=lambda state, weights: state.parameters,
        takes=EXTENDED,
        metrics=metrics,
        name=f"personal ({in_words(chosen)})",
        needs=Needs(most_clients=variances.num_clients),
    )


def _learn(
    state: PersonalState, gradient: Parameters, shared: Learning, rows: Learning, is_present: tf.Tensor
) -> tuple[Parameters, Parameters]:
    each = tf.nest.map_structure

    def learn(how: Learning, x: TensorTree, v: TensorTree, g: TensorTree) -> tuple[Any, Any]:
        v = each(lambda x, v, g: how.momentum * v + g + how.decay * x, x, v, g)
        return each(lambda x, v: x - how.rate * v, x, v), v

    of_all = learn(shared, state.parameters.shared, state.momenta.shared, gradient.shared)
    of_each = learn(rows, state.parameters.rows, state.momenta.rows, gradient.rows)
    stay = lambda new, old: each(
        lambda n, o: tf.where(tf.reshape(is_present, [-1] + [1] * (len(o.shape) - 1)) > 0, n, o), new, old
    )
    at_rows = stay(of_each[0], state.parameters.rows), stay(of_each[1], state.momenta.rows)
    return state.parameters._replace(shared=of_all[0], rows=at_rows[0]), Parameters(of_all[1], at_rows[1])


# Rates are computed for at most this many clients of a round.
MOST_CLIENTS = 32
# Logits within this fraction of the range from its top count as saturated.
SATURATED = 0.01


class DropoutRates(NamedTuple):
    """The dropout rates p = sigma^2 / (theta^2 + sigma^2) of clients' weights.

    Fields:
      dropout_rate_q05, dropout_rate_median, dropout_rate_q95: quantiles over a client's weights, means over clients.
      dropout_rate_stddev: of the clients' mean rates.
      logit_stddev: standard deviation over clients of a weight's logit, root mean square over the weights.
      saturated_share: fraction of logits within 1 % of the range from its top.
    """

    dropout_rate_q05: tf.Tensor
    dropout_rate_median: tf.Tensor
    dropout_rate_q95: tf.Tensor
    dropout_rate_stddev: tf.Tensor
    logit_stddev: tf.Tensor
    saturated_share: tf.Tensor


def dropout_rates(
    variances: PersonalVariances, parameters: Parameters, mean: tf.Tensor, present: tf.Tensor
) -> DropoutRates:
    """Return the rates of the clients of a round, the first 32 of them.

    Args:
      variances, parameters: trained by the server.
      mean: theta [D].
      present: above 0 for the clients of the round [M]. Where it is above 0 for none, as a median of the clients is,
        the rates are of all clients.
    """
    present = tf.sign(tf.maximum(present, 0.0))
    present = tf.where(tf.reduce_any(present > 0), present, tf.ones_like(present))
    weights, clients = tf.math.top_k(present, min(MOST_CLIENTS, variances.num_clients))
    weights = tf.math.divide_no_nan(weights, tf.reduce_sum(weights))
    of_client = lambda k: variances.logits(parameters.shared, variances.row(parameters, k), parameters.middle)
    logits = tf.map_fn(of_client, clients, fn_output_signature=tf.float32)  # [K, D]
    variance = variances.variance(logits, mean)
    rates = variance / (tf.square(mean) + variance)
    average = lambda x: tf.tensordot(weights, x, 1)
    stddev = lambda x: tf.sqrt(average(tf.square(x - average(x))))
    ordered, last = tf.sort(rates, 1), rates.shape[1] - 1
    quantile = lambda q: average(ordered[:, round(q * last)])
    low, high = variances.logit_range
    top = tf.cast(logits > high - SATURATED * (high - low), tf.float32)
    quantiles = quantile(0.05), quantile(0.5), quantile(0.95)
    of_logits = tf.sqrt(tf.reduce_mean(tf.square(stddev(logits))))
    return DropoutRates(*quantiles, stddev(tf.reduce_mean(rates, 1)), of_logits, average(tf.reduce_mean(top, 1)))
