"""Engines that run clients in other processes: TensorFlow Federated's workers, a Ray cluster."""

from tfp_bfl.engines import ray, tff

__all__ = ["ray", "tff"]
