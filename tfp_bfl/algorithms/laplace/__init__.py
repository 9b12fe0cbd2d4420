"""Laplace's approximation after federated averaging, and exact posteriors of the last layer, from sums of clients."""
