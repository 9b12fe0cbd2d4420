"""Optimizers by name, for the server's step."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Callable, NamedTuple

import tensorflow as tf

from tfp_bfl.errors import InvalidArgument, check_number, lookup

_State = OrderedDict[str, Any]


class Optimizer(NamedTuple):
    """A gradient's step, as `tfp_bfl.servers.optimize` takes it; those of `tff.learning.optimizers` have the same form.

    Fields:
      initialize: `tf.TensorSpec`s of the weights -> the first state, which holds the options too.
      next: state, weights, gradients -> the next state, the next weights.
    """

    initialize: Callable[[Any], _State]
    next: Callable[[_State, Any, Any], tuple[_State, Any]]


def _sgd(learning_rate: float, momentum: float = 0.0) -> Optimizer:
    if not momentum:
        return _leafwise({"learning_rate": learning_rate}, {}, lambda o, w, g: (w - o["learning_rate"] * g,))

    def update(o: Any, w: Any, g: Any, a: Any) -> tuple[Any, ...]:
        a = o["momentum"] * a + g
        return w - o["learning_rate"] * a, a

    return _leafwise({"learning_rate": learning_rate, "momentum": momentum}, {"accumulator": 0.0}, update)


def _adam(learning_rate: float, beta_1: float = 0.9, beta_2: float = 0.999, epsilon: float = 1e-7) -> Optimizer:
    options = {"learning_rate": learning_rate, "beta_1": beta_1, "beta_2": beta_2, "epsilon": epsilon}
    return _adaptive(options, 0.0, lambda p, square, rate: p + rate * (square - p))


def _yogi(
    learning_rate: float,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-3,
    initial_preconditioner_value: float = 1e-6,
) -> Optimizer:
    options = {"learning_rate": learning_rate, "beta_1": beta_1, "beta_2": beta_2, "epsilon": epsilon}
    return _adaptive(
        options, initial_preconditioner_value, lambda p, square, rate: p + rate * tf.sign(square - p) * square
    )


def _adagrad(learning_rate: float, initial_preconditioner_value: float = 0.1, epsilon: float = 1e-7) -> Optimizer:
    def update(o: Any, w: Any, g: Any, p: Any) -> tuple[Any, ...]:
        p = p + g**2
        return w - o["learning_rate"] * g / tf.sqrt(p + o["epsilon"]), p

    options = {"learning_rate": learning_rate, "epsilon": epsilon}
    return _leafwise(options, {"preconditioner": initial_preconditioner_value}, update)


def _adaptive(options: dict[str, float], first: float, second_moment: Callable[[Any, Any, Any], Any]) -> Optimizer:
    """w <- w - rate sqrt(1 - beta_2^t) / (1 - beta_1^t) a / (sqrt(p) + epsilon), with a the gradients' running mean and
    p <- second_moment(p, g^2, 1 - beta_2)."""

    def update(o: Any, w: Any, g: Any, a: Any, p: Any) -> tuple[Any, ...]:
        rate = o["learning_rate"] * tf.sqrt(1 - o["beta_2"] ** o["step"]) / (1 - o["beta_1"] ** o["step"])
        a = a + (g - a) * (1 - o["beta_1"])
        p = second_moment(p, g**2, 1 - o["beta_2"])
        return w - rate * a / (tf.sqrt(p) + o["epsilon"]), a, p

    return _leafwise({**options, "step": 0}, {"accumulator": 0.0, "preconditioner": first}, update)


def _leafwise(options: dict[str, Any], moments: dict[str, float], update: Callable[..., tuple[Any, ...]]) -> Optimizer:
    """An optimizer that treats each weight by itself.

    Args:
      options: what the state carries beside moments; a "step" counts, from 1 at the first call.
      moments: first values of tensors of the weights' shapes.
      update: options, weight, gradient, *moments -> weight, *moments.
    """

    def initialize(specs: Any) -> _State:
        fill = lambda value: tf.nest.map_structure(lambda s: tf.fill(s.shape, tf.cast(value, s.dtype)), specs)
        return OrderedDict(**options, **{name: fill(value) for name, value in moments.items()})

    def following(state: _State, weights: Any, gradients: Any) -> tuple[_State, Any]:
        now = OrderedDict((name, state[name] + 1 if name == "step" else state[name]) for name in options)
        flat = tf.nest.flatten
        updated = [
            update({name: tf.cast(value, leaves[0].dtype) for name, value in now.items()}, *leaves)
            for leaves in zip(flat(weights), flat(gradients), *(flat(state[name]) for name in moments))
        ]
        pack = lambda index: tf.nest.pack_sequence_as(weights, [row[index] for row in updated])
        return OrderedDict(**now, **{name: pack(i) for i, name in enumerate(moments, 1)}), pack(0)

    return Optimizer(initialize, following)


SERVER_OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "sgd": _sgd,
    "adam": _adam,
    "yogi": _yogi,
    "adagrad": _adagrad,
}


def server_optimizer(name: str, learning_rate: float, **options: Any) -> Optimizer:
    """An optimizer for `tfp_bfl.servers.optimize`.

    sgd:      a <- momentum a + g,                 w <- w - learning_rate a
    adagrad:  p <- p + g^2,                        w <- w - learning_rate g / sqrt(p + epsilon)
    adam:     a <- beta_1 a + (1 - beta_1) g,      p <- beta_2 p + (1 - beta_2) g^2,
              w <- w - learning_rate sqrt(1 - beta_2^t) / (1 - beta_1^t) a / (sqrt(p) + epsilon)
    yogi:     as adam, with p <- p + (1 - beta_2) sign(g^2 - p) g^2

    Args:
      name: "sgd", "adam", "yogi" or "adagrad" (FedAvgM, FedAdam, FedYogi, FedAdagrad of Reddi et al. 2021).
      learning_rate: of the server.
      **options: momentum (0) of sgd; beta_1 (0.9) and beta_2 (0.999) of adam and yogi; epsilon of all but sgd (1e-7,
        yogi 1e-3); initial_preconditioner_value, p's first, of yogi (1e-6) and adagrad (0.1).

    Raises:
      InvalidArgument: no such optimizer, or options that it does not take.
    """
    build = lookup(SERVER_OPTIMIZERS, name, "server optimizer")
    check_number(learning_rate, "The server's learning_rate")
    try:
        for option, value in options.items():
            if check_number(value, option, zero=True) > 1 and option in ("momentum", "beta_1", "beta_2"):
                raise ValueError(f"{option} is {value}, but must be at most 1.")
        return build(learning_rate=learning_rate, **options)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"The server optimizer {name!r} does not take these options: {error}") from None
