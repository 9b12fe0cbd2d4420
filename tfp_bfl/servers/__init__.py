"""Server steps: how the pooled weights become the server's next weights.

A step is two pure functions: `initialize(weights) -> state` and `next(state, weights, pooled) -> (state, weights)`.
"""

from tfp_bfl.servers.replace import replace
from tfp_bfl.servers.step import ServerStep

__all__ = ["ServerStep", "replace"]
