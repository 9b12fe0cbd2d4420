"""Corrections of client drift: SCAFFOLD, FedDyn and FedNova, of means that move by SGD.

Of a model with Gaussian weights they correct the means. Their options are those of `compose` and of
`clients.variational`, and `rule` is for the weights. `server_optimizer` is of `servers.server_optimizer`, None to take
the pool. The optimizer must be "sgd" or "momentum", and a rule that weights means by precision is warned
of. Parameters outside their ranges raise InvalidArgument.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Unpack

import tensorflow as tf

from tfp_bfl import clients, federated, servers
from tfp_bfl.algorithms.compose import Model, compose, passing_on, split_options
from tfp_bfl.algorithms.fixed_points import DEFAULT_RULE, notices_of
from tfp_bfl.algorithms.options import WeighedOptions
from tfp_bfl.contracts import EXTENDED, AnyRule, ClientWork, ServerStep, Work
from tfp_bfl.data import ClientExamples
from tfp_bfl.defaults import LOCAL_EPOCHS
from tfp_bfl.errors import InvalidArgument, check_number, shown
from tfp_bfl.posterior import flatten, unflatten
from tfp_bfl.servers.optimizers import ServerOptimizer
from tfp_bfl.tensors import Scalar
from tfp_bfl.training.batches import steps_per_epoch
from tfp_bfl.training.inference import default_optimizer, default_rate, settings_for
from tfp_bfl.training.optimizers import SGD, Optimizer, optimizer_of
from tfp_bfl.training.schedules import inverse_decay
from tfp_bfl.training.updates import Schedule, rate_of
from tfp_bfl.weights import ClientResult, LinearTerm, ModelWeights, Population, RoundSize, ServerMessage


class Reach(NamedTuple):
    """The displacement of a client's training under a gradient of one in each step, as rate times steps.

    Fields:
      rate: of the round, a scalar.
      steps: the sum of the coefficients of the gradients: the number of steps tau, and with momentum m
        (tau - m (1 - m^tau) / (1 - m)) / (1 - m).
      number: tau.
    """

    rate: tf.Tensor
    steps: tf.Tensor
    number: tf.Tensor


def reach_of(
    *,
    local_epochs: int = LOCAL_EPOCHS,
    batch_size: int = 32,
    learning_rate: Schedule | None = None,
    optimizer_fn: Optimizer | None = None,
    inference: str | None = None,
    update_prior: bool = False,
    **others: object,
) -> Callable[..., Reach]:
    """Return the function from the round, a client's number of examples and the number of rounds to its `Reach`;
    options with defaults.

    Source: Wang et al. 2020 (arXiv:2007.07481), section 4.1, for the vector of coefficients.
    """
    settings = settings_for(inference, update_prior=update_prior, example_privacy=bool(others.get("example_privacy")))
    chosen: Optimizer = default_optimizer(update_prior) if optimizer_fn is None else optimizer_fn
    built: Any = optimizer_of(chosen)()
    if not isinstance(built, SGD) or built.nesterov or settings.inference in ("natural", "ivon"):
        means = f"inference {settings.inference!r}" if isinstance(built, SGD) and not built.nesterov else shown(chosen)
        raise InvalidArgument(
            f"The displacement of a client is its mean gradient for SGD alone, and here the step is by {means}: use "
            "optimizer 'sgd' or 'momentum' with inference 'curvature' or 'backprop'."
        )
    momentum = float(built.momentum or 0.0)
    rate = inverse_decay(default_rate(settings.inference, chosen)) if learning_rate is None else learning_rate

    def reach(round: Scalar, num_examples: Scalar, rounds: tf.Tensor | int = 0) -> Reach:
        steps = tf.cast(local_epochs * steps_per_epoch(num_examples, batch_size), tf.float32)
        steps = tf.maximum(steps, 1.0)
        coefficients = (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)
        return Reach(tf.cast(rate_of(rate, round, rounds), tf.float32), coefficients, steps)

    return reach


def relative_steps(reach: Callable[..., Reach], message: ServerMessage, num_examples: Scalar) -> tf.Tensor:
    """Return a_k / a: the steps of a client of so many examples by those of one of mean size, a scalar."""
    return reach(message.round, num_examples).steps / reach(message.round, mean_size(message.federation)).steps


def mean_size(federation: Population | RoundSize) -> tf.Tensor:
    """Return the mean number of a client's examples; 0, of a client of one batch, where the server knows none."""
    num_clients = tf.cast(tf.maximum(federation.num_clients, 1), tf.int64)
    return tf.cast(tf.cast(federation.num_examples, tf.int64) // num_clients, tf.int32)


def flat_values(weights: ModelWeights) -> tf.Tensor:
    """Return means and point weights as one vector [D + P], in the order of `LinearTerm`."""
    return flatten((weights.posterior.mean, weights.point))


def with_flat_values(weights: ModelWeights, values: tf.Tensor) -> ModelWeights:
    """Return the weights with these means and point weights [D + P], all else as it is."""
    mean, point = unflatten(values, (weights.posterior.mean, weights.point))
    return weights._replace(posterior=weights.posterior._replace(mean=mean), point=point)


class Corrected(NamedTuple):
    """State of the server.

    Fields:
      mean: of what all clients keep [D + P]: SCAFFOLD's c, their mean gradient, or FedDyn's h.
      share: s, the weight of the round's clients divided by that of all clients, a scalar.
      sized: whether the number of examples of all clients is known, a scalar bool.
      inner: of the step on the weights.
    """

    mean: Any
    share: Scalar
    sized: tf.Tensor
    inner: Any = ()


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

    c_k is the memory of client k and c_k' - c_k its extra statistic. With part of the clients in a round c stays the
    mean of all c_k by s, the round's share of all examples; it is the share of all clients, `|S| / K` as published,
    where all count alike (weighting "equal", robust aggregation except clip). With privacy it is the expected number of
    clients divided by K. No such s exists for weights that follow from what clients send, or that are cut
    (max_weight_ratio, secure_sums).

    Source: Karimireddy et al. 2020 (arXiv:1910.06378), algorithm 1 with option II; momentum as in Wang et al. 2020
    (arXiv:2007.07481).

    Example:
      >>> model_fn = lambda: bfl.models.mlp("deterministic", input_shape=(30,), num_classes=2)
      >>> process = bfl.algorithms.scaffold(model_fn, optimizer="sgd")
    """
    work, process = split_options(scaffold, options)
    inner = servers.optimize(server_optimizer)
    local, reach = clients.variational(model_fn, **work), reach_of(**work)

    def run(train: Work, message: ServerMessage, examples: ClientExamples, seed: tf.Tensor) -> ClientResult:
        client_control, control = message.memory, message.extra
        result = train(message._replace(memory=(), extra=LinearTerm(control - client_control)), examples, seed)
        rate, steps, _ = reach(message.round, result.num_examples)
        moved = flat_values(message.weights) - flat_values(result.weights)
        change = moved / (rate * steps) - control
        return result._replace(memory=client_control + change, extra=change)

    def advance(
        state: Corrected, weights: ModelWeights, pooled: ModelWeights, seed: tf.Tensor, extra: tf.Tensor
    ) -> tuple[Corrected, ModelWeights]:
        own, weights = inner.next(state.inner, weights, pooled, seed)
        return state._replace(mean=state.mean + state.share * extra, inner=own), weights

    send, metrics = lambda state, weights: state.mean, lambda *given: {"control_change": tf.norm(given[-1])}
    step = _server(inner, advance, work, process)
    step = step._replace(send=send, takes=EXTENDED, metrics=metrics, name=f"scaffold ({inner.name})")
    return _compose(model_fn, _keeping(local, run)._replace(extra=_zeros), rule, step, work, process)


@passing_on(clients.variational)
def fed_dyn(
    model_fn: Model,
    *,
    alpha: float = 0.01,
    rule: AnyRule = DEFAULT_RULE,
    server_optimizer: ServerOptimizer | None = None,
    **options: Unpack[WeighedOptions],
) -> federated.BayesianProcess:
    """Federated averaging with a dynamically regularised loss on the clients.

    w_k = argmin L_k(w_k) - <h_k, w_k> + alpha / 2 ||w_k - w||^2,   h_k <- h_k - alpha (w_k - w)
    h <- h - alpha s sum_k b_k (w_k - w),   w <- optimizer(w, w - sum_k b_k w_k + h / alpha)

    approximately, by the steps of SGD that a client takes, with s as of `scaffold`, so that h stays the mean of all
    h_k. h_k, the client's memory, is the gradient of its loss at its minimum, so that at a fixed point all clients stay
    and their gradients add to zero. That holds under any optimizer: h stays where the clients' mean is w, and w stays
    where h then is zero.

    The smaller alpha is, the longer a client trains to reach its minimum. It takes the place of proximal.

    Source: Acar et al. 2021 (arXiv:2111.04263), algorithm 1.

    Example:
      >>> model_fn = lambda: bfl.models.mlp("deterministic", input_shape=(30,), num_classes=2)
      >>> process = bfl.algorithms.fed_dyn(model_fn, local_epochs=5)
    """
    check_number(alpha, "alpha")
    if "proximal" in options:
        raise InvalidArgument("fed_dyn has a proximal term of its own, alpha: leave proximal out.")
    work, process = split_options(fed_dyn, options)
    reach_of(**work)
    local, inner = clients.variational(model_fn, proximal=alpha, **work), servers.optimize(server_optimizer)

    def run(train: Work, message: ServerMessage, examples: ClientExamples, seed: tf.Tensor) -> ClientResult:
        gradient = message.memory
        result = train(message._replace(memory=(), extra=LinearTerm(-gradient)), examples, seed)
        moved = flat_values(result.weights) - flat_values(message.weights)
        return result._replace(memory=gradient - alpha * moved)

    def advance(
        state: Corrected, weights: ModelWeights, pooled: ModelWeights, seed: tf.Tensor
    ) -> tuple[Corrected, ModelWeights]:
        mean = flat_values(pooled)
        gradient = state.mean - alpha * state.share * (mean - flat_values(weights))
        own, weights = inner.next(state.inner, weights, with_flat_values(pooled, mean - gradient / alpha), seed)
        return state._replace(mean=gradient, inner=own), weights

    step = _server(inner, advance, work, process)._replace(name=f"fed_dyn (alpha {alpha:g}, {inner.name})")
    return _compose(model_fn, _keeping(local, run), rule, step, work, process)


@passing_on(clients.variational)
def fed_nova(
    model_fn: Model,
    *,
    rule: AnyRule = DEFAULT_RULE,
    server_optimizer: ServerOptimizer | None = None,
    **options: Unpack[WeighedOptions],
) -> federated.BayesianProcess:
    """Federated averaging of the clients' displacements, each normalised by its number of steps.

    d_k = (w_k - w) / a_k,   w <- optimizer(w, -(sum_k b_k a_k) sum_k b_k d_k)

    with a_k the steps of client k (`Reach.steps`). In federated averaging a client of twice the steps moves the mean
    twice as far; here each counts by its weight b_k alone. With a the steps of a client of mean size, a client sends
    w + a d_k and, as its extra statistic, a_k / a - 1: both have the size of what other algorithms send, so that the
    same bounds fit. Clients of one size make this federated averaging.

    Source: Wang et al. 2020 (arXiv:2007.07481), algorithm 1 and section 4.1.

    Example:
      >>> model_fn = lambda: bfl.models.mlp("deterministic", input_shape=(30,), num_classes=2)
      >>> process = bfl.algorithms.fed_nova(model_fn, local_epochs=5)
    """
    work, process = split_options(fed_nova, options)
    local, reach = clients.variational(model_fn, **work), reach_of(**work)
    inner = servers.optimize(server_optimizer)

    def run(train: Work, message: ServerMessage, examples: ClientExamples, seed: tf.Tensor) -> ClientResult:
        result = train(message, examples, seed)
        steps = relative_steps(reach, message, result.num_examples)
        weights = _scaled(message.weights, result.weights, 1 / steps)
        return result._replace(weights=weights, extra=steps - 1)

    def advance(
        state: Any, weights: ModelWeights, pooled: ModelWeights, seed: tf.Tensor, extra: tf.Tensor
    ) -> tuple[Any, ModelWeights]:
        return inner.next(state, weights, _scaled(weights, pooled, 1 + extra), seed)

    metrics = lambda state, weights, extra: {"relative_steps": 1 + extra}
    step = ServerStep(inner.initialize, advance, takes=EXTENDED, metrics=metrics, name=f"fed_nova ({inner.name})")
    sending = local.around(run)._replace(extra=lambda weights: tf.constant(0.0))
    return _compose(model_fn, sending, rule, step, work, process)


def _compose(
    model_fn: Model,
    local: ClientWork,
    rule: AnyRule,
    step: ServerStep,
    work: Mapping[str, Any],
    process: Mapping[str, Any],
) -> federated.BayesianProcess:
    notices = notices_of(model_fn, rule, work.get("optimizer_fn"), work.get("inference"))
    return compose(model_fn, local, rule, step, notices=notices, **process)


def _zeros(weights: ModelWeights, *_: object) -> tf.Tensor:
    return tf.zeros_like(flat_values(weights))


def _keeping(local: ClientWork, run: Callable[..., ClientResult]) -> ClientWork:
    """Return client work with a vector [D + P] as its memory, zero at first, which no compressor may change."""
    return local.around(run)._replace(memory=_zeros, needs=local.needs._replace(keeps_sent=False))


def _server(
    inner: ServerStep, advance: Callable[..., Any], work: Mapping[str, Any], process: Mapping[str, Any]
) -> ServerStep:
    """Return a step with the state `Corrected`, which learns the round's share of all clients before each `advance`."""
    privacy = process.get("privacy")
    expected = None if privacy is None else privacy.cohort_size

    def initialize(weights: ModelWeights) -> Corrected:
        return Corrected(_zeros(weights), tf.constant(1.0), tf.constant(True), inner.initialize(weights))

    def meet(state: Corrected, size: RoundSize) -> Corrected:
        sized = state.sized & size.sized
        return state._replace(share=size.share(work["weighting"], expected, sized), sized=sized)

    return ServerStep(initialize, advance, meet=meet)


def _scaled(start: ModelWeights, end: ModelWeights, factor: tf.Tensor) -> ModelWeights:
    """Return weights with means and point weights start + factor (end - start), all else as at the end."""
    begin = flat_values(start)
    return with_flat_values(end, begin + factor * (flat_values(end) - begin))
