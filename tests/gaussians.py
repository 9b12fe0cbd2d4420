"""Federations whose posterior is a Gaussian in closed form: u_j = ||theta - y_j||^2 / 2, so that L = N."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import tensorflow as tf

from tfp_bfl import data, models
from tfp_bfl.training import Mode

OPTIONS = {"likelihood": "density", "prior_stddev": None}


def log_density(theta, rows):
    return -tf.reduce_sum(tf.square(rows - theta), -1) / 2


@functools.cache
def model_fn(size, start=0.0):
    return lambda: models.density(log_density, size, size, start)


def mode_at(point, num_examples, error=0.0):
    """A point that is the mode of so many rows [D] without a prior, or is said to be."""
    scale = np.full(np.size(point), np.sqrt(num_examples), np.float32)
    return Mode((point,), error, None, "density", num_examples, scale)


def clients_of(tables):
    """A client for each table [N_i, D]."""
    rows = np.concatenate(tables).astype(np.float32)
    ends = np.cumsum([0, *map(len, tables)])
    source = data.Source("gaussians", "train", rows, np.zeros(len(rows), np.int32), ("none",))
    return data.Clients(source, [np.arange(a, b) for a, b in itertools.pairwise(ends)])
