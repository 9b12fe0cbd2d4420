"""Server steps: how the pooled weights become the server's next weights.

A step is two pure functions: `initialize(weights)` -> state; `next(state, weights, pooled, seed)` -> state, weights.
A third says which weights predict, where these are not the ones that clients start from.
"""

from tfp_bfl.contracts import ServerStep
from tfp_bfl.servers.optimizers import SERVER_OPTIMIZERS, server_optimizer
from tfp_bfl.servers.pooled import keep_gaussian, optimize, replace

__all__ = [
    "SERVER_OPTIMIZERS",
    "ServerStep",
    "keep_gaussian",
    "optimize",
    "replace",
    "server_optimizer",
]
