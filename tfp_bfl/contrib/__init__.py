"""Methods that a publication describes and that few federations need."""

from tfp_bfl.contrib import kernel

__all__ = ["kernel"]
