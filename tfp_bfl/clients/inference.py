"""The ways in which local training finds a posterior, by name."""

from __future__ import annotations

import functools
from typing import Any, Callable, Optional

from tfp_bfl.clients.adam import Adam
from tfp_bfl.clients.natural import ByCurvature
from tfp_bfl.clients.updates import ByOptimizer, OptimizerFn, Schedule, Update
from tfp_bfl.errors import InvalidArgument, check_number, lookup, shown
from tfp_bfl.models import FlatWeights

INFERENCES = {
    "curvature": "means by the optimizer, precisions by the likelihood's curvature",
    "natural": "means by natural gradients, precisions by the likelihood's curvature",
    "ivon": "means and precisions by natural gradients, the curvature by Price's theorem",
    "backprop": "means and log standard deviations by the optimizer",
}
NOISES = {"shared": "one draw of the weights for a batch", "flipout": "a draw for each example"}
_NATURAL: dict[str, dict[str, Any]] = {
    "curvature": {},
    "natural": {"natural_means": True},
    "ivon": {"natural_means": True, "draw_labels": False, "decay": 0.999},
}
_RATES = {"natural": 0.02, "ivon": 0.05}


def default_rate(inference: str) -> float:
    """The learning rate of the means where none is given.

    Raises:
      InvalidArgument: no such inference.
    """
    lookup(INFERENCES, inference, "inference")
    return _RATES.get(inference, 1e-3)


def update_of(
    inference: str,
    *,
    learning_rate: Optional[Schedule] = None,
    optimizer_fn: OptimizerFn = Adam,
    noise: Optional[str] = None,
    decay: Optional[float] = None,
    stddev_rate: float = 1.0,
) -> Callable[[FlatWeights], Update]:
    """The update of an inference for the weights of a model.

    Args:
      inference: one of `INFERENCES`.
      learning_rate: of the means; None for `default_rate`: 1e-3, 0.02 for "natural" and 0.05 for "ivon".
      optimizer_fn: builds a Keras optimizer.
      noise: one of `NOISES`; None for "flipout" with "backprop" and else "shared".
      decay: of the precision from estimate to estimate; None for 0.9, and for 0.999 with "ivon".
      stddev_rate: for "backprop", the rate of log s over that of the means.

    Raises:
      InvalidArgument: no such inference or noise, or a number outside its range.
    """
    rate = default_rate(inference) if learning_rate is None else learning_rate
    if noise is not None:
        lookup(NOISES, noise, "noise")
    check_number(stddev_rate, "stddev_rate")
    if decay is not None and (inference == "backprop" or not 0 <= check_number(decay, "decay", zero=True) < 1):
        raise InvalidArgument(
            f"decay is {shown(decay)}, but must be at least 0 and below 1, and inference 'backprop' has none."
        )
    if stddev_rate != 1 and inference != "backprop":
        raise InvalidArgument(f"stddev_rate is of inference 'backprop', and this is {inference!r}: leave it out.")
    by_optimizer = functools.partial(
        ByOptimizer,
        optimizer_fn=optimizer_fn,
        learning_rate=rate,
        stddev_rate=stddev_rate,
        noise=noise or "flipout",
    )
    options = {**_NATURAL.get(inference, {}), **({} if decay is None else {"decay": decay})}

    def make(weights: FlatWeights) -> Update:
        if inference == "backprop" or not weights.has_posterior:
            return by_optimizer(weights)
        return ByCurvature(weights, optimizer_fn, rate, noise=noise or "shared", **options)

    return make
