"""Exact heads on pre-trained features, against tuned FedAvg of the same head."""
