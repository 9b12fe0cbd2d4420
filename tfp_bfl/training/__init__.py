"""The local training of a client: batches, optimizers, schedules, likelihoods and inferences."""

from tfp_bfl.training.example_privacy import ExamplePrivacy
from tfp_bfl.training.inference import INFERENCES, TEMPERATURES, default_rate
from tfp_bfl.training.likelihoods import balanced_weights
from tfp_bfl.training.optimizers import OPTIMIZERS
from tfp_bfl.training.potential import Mode, Potential, find_mode, potentials_of
from tfp_bfl.training.schedules import (
    cosine_decay,
    exponential_decay,
    inverse_decay,
    linear_decay,
    sigmoid_warm_up,
)
from tfp_bfl.training.updates import KLS

__all__ = [
    "INFERENCES",
    "KLS",
    "OPTIMIZERS",
    "TEMPERATURES",
    "ExamplePrivacy",
    "Mode",
    "Potential",
    "balanced_weights",
    "cosine_decay",
    "default_rate",
    "exponential_decay",
    "find_mode",
    "inverse_decay",
    "linear_decay",
    "potentials_of",
    "sigmoid_warm_up",
]
