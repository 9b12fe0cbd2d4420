"""Servers for clients of any framework: rules, server steps and checks over NumPy arrays.

A client sends means and variances by name, whatever trained them: PyTorch, JAX, R. `Server` pools them by a rule of
this library; `interop.flower` makes it a strategy of Flower.
"""

from typing import TYPE_CHECKING

from tfp_bfl.faces import export_later
from tfp_bfl.interop.server import Answer, Server

if TYPE_CHECKING:
    from tfp_bfl.interop.flower import BayesianStrategy

export_later(__name__, {"BayesianStrategy": "tfp_bfl.interop.flower"})

__all__ = ["Answer", "BayesianStrategy", "Server"]
