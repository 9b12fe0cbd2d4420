"""FedDyn: each client's loss is corrected until its minimum is that of all clients."""

from __future__ import annotations

from typing import Any, NamedTuple, Unpack

import tensorflow as tf

from tfp_bfl import clients, federated
from tfp_bfl.algorithms.compose import Model, compose, passing_on, split_options
from tfp_bfl.algorithms.drift.displacement import flat_values, reach_of, with_flat_values
from tfp_bfl.algorithms.fixed_points import DEFAULT_RULE, notices_of
from tfp_bfl.algorithms.options import WeighedOptions
from tfp_bfl.contracts import AnyRule, ClientWork, ServerStep, Work
from tfp_bfl.data import ClientExamples
from tfp_bfl.errors import InvalidArgument, check_number
from tfp_bfl.privacy import Privacy
from tfp_bfl.tensors import Scalar
from tfp_bfl.weights import ClientResult, LinearTerm, ModelWeights, RoundSize, ServerMessage


class Dynamic(NamedTuple):
    """State of the server.

    Fields:
      gradient: h [D + P], the mean of the clients' h_k.
      share: s, the weight of the round's clients divided by that of all clients, a scalar.
      sized: whether the number of examples of all clients is known, a scalar bool.
    """

    gradient: Any
    share: Scalar
    sized: tf.Tensor


@passing_on(clients.variational)
def fed_dyn(
    model_fn: Model, *, alpha: float = 0.01, rule: AnyRule = DEFAULT_RULE, **options: Unpack[WeighedOptions]
) -> federated.BayesianProcess:
    """Federated averaging with a dynamically regularised loss on the clients.

    w_k = argmin L_k(w_k) - <h_k, w_k> + alpha / 2 ||w_k - w||^2,   h_k <- h_k - alpha (w_k - w)
    h <- h - alpha s sum_k b_k (w_k - w),   w <- sum_k b_k w_k - h / alpha

    approximately, by the steps of SGD that a client takes. s is the round's share of all examples; of all clients,
    `|S| / K` as published, where all count alike (with privacy the expected one): so h stays the mean of all h_k. h_k,
    the client's memory, is the gradient of its loss at its minimum, so that at a fixed point all clients stay and their
    gradients add to zero. Of a model with Gaussian weights it corrects the means.

    Args:
      model_fn: builds a Keras model that returns logits; or such a model.
      alpha: the coefficient of the regulariser. The smaller it is, the longer a client trains to reach its minimum.
      rule: for the weights; one that weights the means of Gaussian weights by precision is warned of.
      **options: of `compose` and of `clients.variational`; the optimizer must be "sgd" or "momentum".

    Raises:
      InvalidArgument: as `compose`, alpha that is not above 0, a proximal term besides, or means that do not move by
        SGD.

    Source: Acar et al. 2021 (arXiv:2111.04263), algorithm 1.
    """
    check_number(alpha, "alpha")
    if "proximal" in options:
        raise InvalidArgument("fed_dyn has a proximal term of its own, alpha: leave proximal out.")
    work, process = split_options(fed_dyn, options)
    notices = notices_of(model_fn, rule, work.get("optimizer_fn"), work.get("inference"))
    reach_of(**work)
    return compose(
        model_fn,
        _client(model_fn, alpha, work),
        rule,
        _server(alpha, work["weighting"], process.get("privacy")),
        notices=notices,
        **process,
    )


def _client(model_fn: Model, alpha: float, options: dict[str, Any]) -> ClientWork:
    local = clients.variational(model_fn, proximal=alpha, **options)

    def run(train: Work, message: ServerMessage, examples: ClientExamples, seed: tf.Tensor) -> ClientResult:
        gradient = message.memory
        result = train(message._replace(memory=(), told=LinearTerm(-gradient)), examples, seed)
        moved = flat_values(result.weights) - flat_values(message.weights)
        return result._replace(memory=gradient - alpha * moved)

    zeros = lambda weights, share: tf.zeros_like(flat_values(weights))
    return local.around(run)._replace(memory=zeros, keeps_sent=False)


def _server(alpha: float, weighting: str, privacy: Privacy | None) -> ServerStep:
    def initialize(weights: ModelWeights) -> Dynamic:
        return Dynamic(tf.zeros_like(flat_values(weights)), tf.constant(1.0), tf.constant(True))

    def meet(state: Dynamic, size: RoundSize, num_clients: tf.Tensor) -> Dynamic:
        del num_clients
        sized, expected = state.sized & size.sized, None if privacy is None else privacy.cohort_size
        return state._replace(share=size.share(weighting, expected, sized), sized=sized)

    def step(
        state: Dynamic, weights: ModelWeights, pooled: ModelWeights, seed: tf.Tensor
    ) -> tuple[Dynamic, ModelWeights]:
        del seed
        mean = flat_values(pooled)
        gradient = state.gradient - alpha * state.share * (mean - flat_values(weights))
        return state._replace(gradient=gradient), with_flat_values(pooled, mean - gradient / alpha)

    return ServerStep(initialize, step, meet=meet, name=f"fed_dyn (alpha {alpha:g})")
