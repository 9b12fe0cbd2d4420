"""SCAFFOLD: control variates take the drift of clients who differ out of federated averaging."""

from __future__ import annotations

from typing import Any, NamedTuple, Unpack

import tensorflow as tf

from tfp_bfl import clients, federated, servers
from tfp_bfl.algorithms.compose import Model, compose, passing_on, split_options
from tfp_bfl.algorithms.drift.displacement import flat_values, reach_of
from tfp_bfl.algorithms.fixed_points import DEFAULT_RULE, notices_of
from tfp_bfl.algorithms.options import WeighedOptions
from tfp_bfl.contracts import AnyRule, ClientWork, ServerStep, Work
from tfp_bfl.data import ClientExamples
from tfp_bfl.privacy import Privacy
from tfp_bfl.servers.optimizers import ServerOptimizer
from tfp_bfl.tensors import Scalar
from tfp_bfl.weights import ClientResult, LinearTerm, ModelWeights, RoundSize, ServerMessage


class Controlled(NamedTuple):
    """State of the server.

    Fields:
      control: c [D + P], the mean gradient of all clients.
      share: s, the weight of the round's clients divided by that of all clients, a scalar.
      sized: whether the number of examples of all clients is known, a scalar bool.
      inner: of the step on the weights.
    """

    control: Any
    share: Scalar
    sized: tf.Tensor
    inner: Any


@passing_on(clients.variational)
def scaffold(
    model_fn: Model,
    *,
    rule: AnyRule = DEFAULT_RULE,
    server_optimizer: ServerOptimizer | None = None,
    **options: Unpack[WeighedOptions],
) -> federated.BayesianProcess:
    """Federated averaging with clients that step along the mean gradient of all clients.

    w_k <- w_k - rate (g_k - c_k + c)                             each local step
    c_k' = c_k - c + (w - w_k) / (rate tau)                       after tau steps: client k's mean gradient
    c <- c + s sum_k b_k (c_k' - c_k),   w <- optimizer(w, sum_k b_k (w - w_k))

    c_k is the memory of client k and c_k' - c_k its extra statistic. Of a model with Gaussian weights it corrects the
    means. With part of the clients in a round c stays the mean of all c_k by s, the round's share of all examples; it
    is the share of all clients, `|S| / K` as published, where all count alike (weighting "equal", robust aggregation
    except clip). With privacy it is the expected number of clients divided by K. No such s exists for weights that
    follow from what clients send, or that are cut (max_weight_ratio, secure_sums).

    Args:
      model_fn: builds a Keras model that returns logits; or such a model.
      rule: for the weights; one that weights the means of Gaussian weights by precision is warned of.
      server_optimizer: of `servers.server_optimizer`; None to take the pool.
      **options: of `compose` and of `clients.variational`; the optimizer must be "sgd" or "momentum".

    Raises:
      InvalidArgument: as `compose`, and for means that do not move by SGD.

    Source: Karimireddy et al. 2020 (arXiv:1910.06378), algorithm 1 with option II; momentum as in Wang et al. 2020
    (arXiv:2007.07481).

    Example:
      >>> model_fn = lambda: bfl.models.mlp("deterministic", input_shape=(30,), num_classes=2)
      >>> process = bfl.algorithms.scaffold(model_fn, optimizer="sgd")
    """
    work, process = split_options(scaffold, options)
    notices = notices_of(model_fn, rule, work.get("optimizer_fn"), work.get("inference"))
    inner = servers.replace() if server_optimizer is None else servers.optimize(server_optimizer)
    step = _server(inner, work["weighting"], process.get("privacy"))
    return compose(model_fn, _client(model_fn, work), rule, step, notices=notices, **process)


def _client(model_fn: Model, options: dict[str, Any]) -> ClientWork:
    local, reach = clients.variational(model_fn, **options), reach_of(**options)

    def run(train: Work, message: ServerMessage, examples: ClientExamples, seed: tf.Tensor) -> ClientResult:
        client_control, control = message.memory, message.told
        result = train(message._replace(memory=(), told=LinearTerm(control - client_control)), examples, seed)
        rate, steps = reach(message.round, result.num_examples)
        moved = flat_values(message.weights) - flat_values(result.weights)
        change = moved / (rate * steps) - control
        return result._replace(memory=client_control + change, extra=change)

    zeros = lambda weights, *_: tf.zeros_like(flat_values(weights))
    return local.around(run)._replace(memory=zeros, extra=zeros, keeps_sent=False)


def _server(inner: ServerStep, weighting: str, privacy: Privacy | None) -> ServerStep:
    def initialize(weights: ModelWeights) -> Controlled:
        return Controlled(
            tf.zeros_like(flat_values(weights)), tf.constant(1.0), tf.constant(True), inner.initialize(weights)
        )

    def meet(state: Controlled, size: RoundSize, num_clients: tf.Tensor) -> Controlled:
        del num_clients
        sized, expected = state.sized & size.sized, None if privacy is None else privacy.cohort_size
        return state._replace(share=size.share(weighting, expected, sized), sized=sized)

    def step(
        state: Controlled, weights: ModelWeights, pooled: ModelWeights, seed: tf.Tensor, extra: tf.Tensor
    ) -> tuple[Controlled, ModelWeights]:
        own, weights = inner.next(state.inner, weights, pooled, seed)
        return Controlled(state.control + state.share * extra, state.share, state.sized, own), weights

    tell = lambda state, weights: state.control
    metrics = lambda extra: {"control_change": tf.norm(extra)}
    name = f"scaffold ({inner.name})"
    return ServerStep(initialize, step, tell=tell, meet=meet, extra=True, metrics=metrics, name=name)
