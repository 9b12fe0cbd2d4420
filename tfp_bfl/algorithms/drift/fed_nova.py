"""FedNova: clients of more steps count no more than clients of few."""

from __future__ import annotations

from typing import Any, Unpack

import tensorflow as tf

from tfp_bfl import clients, federated
from tfp_bfl.algorithms.compose import Model, compose, passing_on, split_options
from tfp_bfl.algorithms.drift.displacement import flat_values, reach_of, with_flat_values
from tfp_bfl.algorithms.fixed_points import DEFAULT_RULE, notices_of
from tfp_bfl.algorithms.options import WeighedOptions
from tfp_bfl.contracts import AnyRule, ClientWork, ServerStep, Work
from tfp_bfl.data import ClientExamples
from tfp_bfl.weights import ClientResult, ModelWeights, ServerMessage


@passing_on(clients.variational)
def fed_nova(
    model_fn: Model, *, rule: AnyRule = DEFAULT_RULE, **options: Unpack[WeighedOptions]
) -> federated.BayesianProcess:
    """Federated averaging of the clients' displacements, each normalised by its number of steps.

    d_k = (w_k - w) / a_k,   w <- w + (sum_k b_k a_k) sum_k b_k d_k

    with a_k the sum of the coefficients of client k's gradients: its steps, and with momentum
    (tau - m (1 - m^tau) / (1 - m)) / (1 - m). In federated averaging a client of twice the steps moves the mean twice
    as far; here each counts by its weight b_k alone. Of a model with Gaussian weights the means are normalised.

    With a the coefficients of a client of mean size, a client sends w + a d_k and, as its extra statistic, a_k / a - 1:
    both have the size of what other algorithms send, so that the same bounds fit. Clients of one size make this
    federated averaging.

    Args:
      model_fn: builds a Keras model that returns logits; or such a model.
      rule: for the weights; one that weights the means of Gaussian weights by precision is warned of.
      **options: of `compose` and of `clients.variational`; the optimizer must be "sgd" or "momentum".

    Raises:
      InvalidArgument: as `compose`, and for means that do not move by SGD.

    Source: Wang et al. 2020 (arXiv:2007.07481), algorithm 1 and section 4.1.
    """
    work, process = split_options(fed_nova, options)
    notices = notices_of(model_fn, rule, work.get("optimizer_fn"), work.get("inference"))
    step = ServerStep(lambda weights: (), _step, extra=True, metrics=lambda extra: {"relative_steps": 1 + extra})
    return compose(model_fn, _client(model_fn, work), rule, step._replace(name="fed_nova"), notices=notices, **process)


def _client(model_fn: Model, options: dict[str, Any]) -> ClientWork:
    local, reach = clients.variational(model_fn, **options), reach_of(**options)

    def run(train: Work, message: ServerMessage, examples: ClientExamples, seed: tf.Tensor) -> ClientResult:
        result = train(message, examples, seed)
        # Where the server does not know the federation, a client of one batch is the measure.
        num_clients = tf.cast(tf.maximum(message.federation.num_clients, 1), tf.int64)
        mean_size = tf.cast(message.federation.num_examples, tf.int64) // num_clients
        usual = reach(message.round, tf.cast(mean_size, tf.int32)).steps
        steps = reach(message.round, result.num_examples).steps
        weights = _scaled(message.weights, result.weights, usual / steps)
        return result._replace(weights=weights, extra=steps / usual - 1)

    return local.around(run)._replace(extra=lambda weights: tf.constant(0.0))


def _step(
    state: object, weights: ModelWeights, pooled: ModelWeights, seed: tf.Tensor, extra: tf.Tensor
) -> tuple[Any, ModelWeights]:
    del seed
    return state, _scaled(weights, pooled, 1 + extra)


def _scaled(start: ModelWeights, end: ModelWeights, factor: tf.Tensor) -> ModelWeights:
    """Return weights with means and point weights start + factor (end - start), all else as at the end."""
    begin = flat_values(start)
    return with_flat_values(end, begin + factor * (flat_values(end) - begin))
