"""Engines that run clients in other processes: TensorFlow Federated's workers, a Ray cluster."""
