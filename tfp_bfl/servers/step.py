"""What a server step is."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple

from tfp_bfl.models import ModelWeights


class ServerStep(NamedTuple):
    """A pair of pure functions of structures of tensors.

    Fields:
      initialize: weights -> the step's own state.
      next: (state, the server's weights, what the rule pooled, a seed [2] for this round) -> (state, the server's next
        weights).
      predictive: (state, the server's weights) -> the weights that predict, outside any graph; those of the server
        unless the step has better ones. They may hold a posterior over point weights.
    """

    initialize: Callable[[ModelWeights], Any]
    next: Callable[[Any, ModelWeights, Any, Any], tuple[Any, ModelWeights]]
    predictive: Callable[[Any, ModelWeights], ModelWeights] = lambda state, weights: weights
