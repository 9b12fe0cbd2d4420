"""Named recipes: client work + rule + server step, a file a family."""

from tfp_bfl.algorithms.variational import variational

__all__ = ["variational"]
