"""Optimizers of the server: pure functions of the weights, the gradient and a state of tensors.

They are those of `tff.learning.optimizers` under the same two functions, and need no TensorFlow Federated. The gradient
g of a round is the server's weights less what was pooled (`servers.optimize`). Reddi et al. 2021 (arXiv:2003.00295),
algorithm 2, with the corrections for the start that TFF's have. Each rests where the pooled weights are the server's:
its rate and momentum change how it comes there, but not where that is.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import tensorflow as tf

from tfp_bfl.errors import InvalidArgument, check_number, lookup, shown
from tfp_bfl.tensors import TensorTree

State = Mapping[str, TensorTree]
# A number, or a function of the rounds done so far, as those of `tfp_bfl.training.schedules`.
Rate = float | Callable[[tf.Tensor], tf.Tensor]


class ServerOptimizer(Protocol):
    """An optimizer that `servers.optimize` takes: `Optimizer`, or one of `tff.learning.optimizers`."""

    @property
    def initialize(self) -> Callable[[TensorTree], Any]:
        """Specs of the weights -> the state, a structure of tensors."""

    @property
    def next(self) -> Callable[[Any, Any, Any], tuple[Any, Any]]:
        """(state, weights, gradients) -> (state, the next weights)."""


class Optimizer(NamedTuple):
    """An optimizer.

    Fields:
      initialize: specs of the weights -> its state, a structure of tensors.
      next: (state, weights, gradients) -> (state, the next weights).
      name: as users spell it.
      learning_rate: of the server, a number or a function of the rounds done so far.
    """

    initialize: Callable[[TensorTree], State]
    next: Callable[[State, TensorTree, TensorTree], tuple[State, Any]]
    name: str
    learning_rate: Rate


def sgd(learning_rate: float, momentum: float = 0.0) -> Optimizer:
    """Stochastic gradient descent (FedAvgM with momentum): v = momentum v + g,   w = w - rate v."""
    momentum = _share(momentum, "momentum")

    def step(state: State, weights: TensorTree, gradients: TensorTree) -> tuple[State, TensorTree]:
        if momentum:
            state = {"accumulator": _each(lambda v, g: momentum * v + g, state["accumulator"], gradients)}
            gradients = state["accumulator"]
        return state, _each(lambda w, v: w - learning_rate * v, weights, gradients)

    return Optimizer(lambda specs: {"accumulator": _filled(specs, 0.0)} if momentum else {}, step, "sgd", learning_rate)


def adam(learning_rate: float, beta_1: float = 0.9, beta_2: float = 0.999, epsilon: float = 1e-7) -> Optimizer:
    """Adam (FedAdam).

    m = m + (1 - b1) (g - m),   v = v + (1 - b2) (g^2 - v)
    w = w - rate sqrt(1 - b2^t) / (1 - b1^t) m / (sqrt(v) + epsilon)
    """
    second = lambda v, g, rest: v + (tf.square(g) - v) * rest
    return _adaptive("adam", learning_rate, beta_1, beta_2, epsilon, 0.0, second)


def yogi(
    learning_rate: float,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-3,
    initial_preconditioner_value: float = 1e-6,
) -> Optimizer:
    """Yogi (FedYogi): `adam` with v = v + (1 - b2) sign(g^2 - v) g^2, from `initial_preconditioner_value` on."""
    second = lambda v, g, rest: v + rest * tf.sign(tf.square(g) - v) * tf.square(g)
    return _adaptive("yogi", learning_rate, beta_1, beta_2, epsilon, initial_preconditioner_value, second)


def adagrad(learning_rate: float, initial_preconditioner_value: float = 0.1, epsilon: float = 1e-7) -> Optimizer:
    """Adagrad (FedAdagrad), from v = `initial_preconditioner_value` on.

    v = v + g^2,   w = w - rate g / sqrt(v + epsilon)
    """
    start = check_number(initial_preconditioner_value, "initial_preconditioner_value", zero=True)
    epsilon = check_number(epsilon, "epsilon", zero=True)

    def step(state: State, weights: TensorTree, gradients: TensorTree) -> tuple[State, TensorTree]:
        v = _each(lambda v, g: v + tf.square(g), state["preconditioner"], gradients)
        move = lambda w, g, v: w - learning_rate * g / tf.sqrt(v + epsilon)
        return {"preconditioner": v}, _each(move, weights, gradients, v)

    return Optimizer(lambda specs: {"preconditioner": _filled(specs, start)}, step, "adagrad", learning_rate)


def _adaptive(
    name: str,
    rate: float,
    beta_1: float,
    beta_2: float,
    epsilon: float,
    start: float,
    second: Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor],
) -> Optimizer:
    b1, b2 = _share(beta_1, "beta_1"), _share(beta_2, "beta_2")
    epsilon = check_number(epsilon, "epsilon", zero=True)
    start = check_number(start, "initial_preconditioner_value", zero=True)

    def initialize(specs: TensorTree) -> State:
        return {"step": tf.constant(0), "accumulator": _filled(specs, 0.0), "preconditioner": _filled(specs, start)}

    def step(state: State, weights: TensorTree, gradients: TensorTree) -> tuple[State, TensorTree]:
        steps = tf.add(state["step"], 1)
        t = tf.cast(steps, tf.float32)
        # 1 - b in float32, as TFF has it: of 0.999 it is 1.3e-5 of itself less.
        rest = lambda beta, like: tf.cast(1 - tf.constant(beta), like.dtype)
        m = _each(lambda m, g: m + (g - m) * rest(b1, g), state["accumulator"], gradients)
        v = _each(lambda v, g: second(v, g, rest(b2, g)), state["preconditioner"], gradients)
        corrected = rate * tf.sqrt(1 - tf.pow(b2, t)) / (1 - tf.pow(b1, t))
        move = lambda w, m, v: w - tf.cast(corrected, w.dtype) * m / (tf.sqrt(v) + epsilon)
        return {"step": steps, "accumulator": m, "preconditioner": v}, _each(move, weights, m, v)

    return Optimizer(initialize, step, name, rate)


class _Entry(NamedTuple):
    make: Callable[..., Optimizer]
    learning_rate: float


# A new optimizer is one more line here: with the rate that it has if none is given.
SERVER_OPTIMIZERS = {
    "sgd": _Entry(sgd, 1.0),
    "adam": _Entry(adam, 0.01),
    "yogi": _Entry(yogi, 0.03),
    "adagrad": _Entry(adagrad, 0.1),
}


def server_optimizer(name: str, learning_rate: Rate | None = None, **options: float) -> Optimizer:
    """Return an optimizer for `servers.optimize` by its name.

    Args:
      name: "sgd", "adam", "yogi" or "adagrad" (FedAvgM, FedAdam, FedYogi, FedAdagrad of Reddi et al. 2021).
      learning_rate: of the server, a number, or a function of the rounds that it has stepped so far, such as
        `training.cosine_decay(0.01, rounds=60, last=0)`; None for the optimizer's own of `SERVER_OPTIMIZERS`.
      **options: of the function of this name: momentum of `sgd`; beta_1, beta_2 and epsilon of `adam` and so on.
    """
    entry = lookup(SERVER_OPTIMIZERS, name, "server optimizer")
    rate = entry.learning_rate if learning_rate is None else learning_rate
    if not callable(rate):
        check_number(rate, "The server's learning_rate")
    known = [option for option in inspect.signature(entry.make).parameters if option != "learning_rate"]
    for option in options:
        lookup(dict.fromkeys(known), option, f"option of the server optimizer {name}")
    return _scheduled(entry.make(1.0, **options), rate) if callable(rate) else entry.make(float(rate), **options)


def _scheduled(unit: Optimizer, rate: Callable[[tf.Tensor], tf.Tensor]) -> Optimizer:
    """Return `unit`, an optimizer of rate 1, at a rate of the rounds so far: its step from 0 is the direction."""

    def step(state: State, weights: TensorTree, gradients: TensorTree) -> tuple[State, TensorTree]:
        own, directions = unit.next(state, _each(tf.zeros_like, weights), gradients)
        now = rate(state["round"])
        moved = _each(lambda w, d: w + tf.cast(now, w.dtype) * d, weights, directions)
        return {**own, "round": tf.add(state["round"], 1)}, moved

    return Optimizer(lambda specs: {**unit.initialize(specs), "round": tf.constant(0)}, step, unit.name, rate)


def _filled(specs: TensorTree, value: float) -> Any:
    return _each(lambda x: tf.fill(x.shape, tf.cast(value, x.dtype)), specs)


def _share(value: float, name: str) -> float:
    number = check_number(value, name, zero=True)
    if number >= 1:
        raise InvalidArgument(f"{name} is {shown(value)}, but must be at least 0 and below 1.")
    return number


_each = tf.nest.map_structure
