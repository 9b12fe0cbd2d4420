"""Server steps: how the pooled weights become the server's next weights.

A step is two pure functions: `initialize(weights)` -> state; `next(state, weights, pooled, seed)` -> state, weights.
A third says which weights predict, where these are not the ones that clients start from.
"""

from tfp_bfl.contracts import ServerStep
from tfp_bfl.servers.change import couple, follow
from tfp_bfl.servers.curvatures import Curvatures
from tfp_bfl.servers.descend import descend
from tfp_bfl.servers.distil import distil
from tfp_bfl.servers.dual import dual
from tfp_bfl.servers.factors import ClientSite, Factors
from tfp_bfl.servers.gaussian import keep_gaussian
from tfp_bfl.servers.held import Held, factors_of
from tfp_bfl.servers.langevin import langevin
from tfp_bfl.servers.laplace import laplace
from tfp_bfl.servers.laplace_dual import laplace_dual
from tfp_bfl.servers.last_layer import held_sums, last_layer
from tfp_bfl.servers.optimize import optimize
from tfp_bfl.servers.optimizers import SERVER_OPTIMIZERS, server_optimizer
from tfp_bfl.servers.personal import Learning, personal
from tfp_bfl.servers.product import Product, online_product
from tfp_bfl.servers.replace import replace

__all__ = [
    "SERVER_OPTIMIZERS",
    "ClientSite",
    "Curvatures",
    "Factors",
    "Held",
    "Learning",
    "Product",
    "ServerStep",
    "couple",
    "descend",
    "distil",
    "dual",
    "factors_of",
    "follow",
    "held_sums",
    "keep_gaussian",
    "langevin",
    "laplace",
    "laplace_dual",
    "last_layer",
    "online_product",
    "optimize",
    "personal",
    "replace",
    "server_optimizer",
]
