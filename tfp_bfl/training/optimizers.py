"""The optimizers of client training, by name."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from tfp_bfl import keras
from tfp_bfl.errors import InvalidArgument, lookup, shown
from tfp_bfl.training.adam import Adam

OptimizerFn = Callable[[], keras.optimizers.Optimizer]
SGD = keras.optimizers.SGD


class ClientOptimizer(NamedTuple):
    """An optimizer of client training.

    Fields:
      make: () -> a Keras optimizer.
      learning_rate: the default learning rate.
    """

    make: OptimizerFn
    learning_rate: float


OPTIMIZERS: dict[str, ClientOptimizer] = {
    "sgd": ClientOptimizer(SGD, 0.1),
    "momentum": ClientOptimizer(functools.partial(SGD, momentum=0.9), 0.03),
    "nesterov": ClientOptimizer(functools.partial(SGD, momentum=0.9, nesterov=True), 0.03),
    "adagrad": ClientOptimizer(keras.optimizers.Adagrad, 1e-2),
    "rmsprop": ClientOptimizer(keras.optimizers.RMSprop, 1e-3),
    "adam": ClientOptimizer(Adam, 1e-3),
}
DEFAULT_OPTIMIZER = "momentum"
Optimizer = str | OptimizerFn


def optimizer_of(optimizer: Optimizer) -> OptimizerFn:
    """Return the function that builds a Keras optimizer, given its name in `OPTIMIZERS` or the function itself.

    Raises:
      InvalidArgument: no such name, or neither a name nor a function.
    """
    if isinstance(optimizer, str):
        return lookup(OPTIMIZERS, optimizer, "optimizer").make
    if not callable(optimizer):
        raise InvalidArgument(
            f"optimizer_fn is {shown(optimizer)}, but must be one of {', '.join(OPTIMIZERS)}, or a function that "
            "builds a Keras optimizer."
        )
    return optimizer


def optimizer_rate(optimizer: Optimizer) -> float:
    """Return the default learning rate of an optimizer: that of `OPTIMIZERS`, or the Keras optimizer's own."""
    if isinstance(optimizer, str):
        return lookup(OPTIMIZERS, optimizer, "optimizer").learning_rate
    for known in OPTIMIZERS.values():
        if optimizer is known.make:
            return known.learning_rate
    built = optimizer_of(optimizer)()
    return float(getattr(built, "learning_rate", 1e-3))


def is_linear(optimizer: Optimizer) -> bool:
    """Return whether an optimizer's displacement is a linear function of the gradients, as SGD's is.

    Only then does the weighted mean of the clients' displacements vanish where the weighted mean of their gradients
    does. Adam, Adagrad and RMSprop divide each weight's gradient by its size on that client. Source: Wang et al. 2021
    (arXiv:2106.02305), section 3.
    """
    built: Any = optimizer_of(optimizer)()
    return isinstance(built, SGD)
