"""FedKP's kernel posterior: each weight's mode of a kernel density over the clients' values."""

from tfp_bfl.algorithms.kernel.rule import KernelModes, KernelOptions, kernel_mode, kernel_modes, kernel_posterior

__all__ = ["KernelModes", "KernelOptions", "kernel_mode", "kernel_modes", "kernel_posterior"]
