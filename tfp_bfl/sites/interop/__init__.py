"""Servers for clients of any framework: rules, server steps and checks over NumPy arrays.

A client sends means and variances by name, whatever trained them: PyTorch, JAX, R. `Server` pools them by a rule of
this library; `flower_strategy` makes it a strategy of Flower, `flare_recipe` a recipe of NVIDIA FLARE.
"""

from tfp_bfl.sites.interop.frameworks import flare_recipe, flower_strategy
from tfp_bfl.sites.interop.pooling import Answer, Server

__all__ = ["Answer", "Server", "flare_recipe", "flower_strategy"]
