"""Posteriors with approximate likelihood factors at the clients: partitioned inference, Bayesian ADMM, FedLap."""
