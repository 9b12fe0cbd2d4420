"""The server for the clients of `client.py`: FLARE's server calls `make_server`."""

import os

import numpy as np

import tfp_bfl as bfl

NUM_FEATURES = 30


def make_server():
    """Return a server that starts from zero weights, and from the last round in the folder where there is one."""
    weights = {"weights": np.zeros(NUM_FEATURES), "bias": np.zeros(())}
    return bfl.interop.Server(weights, 0.1, rule="mean_precision_average", folder=os.environ["ROUNDS"])
