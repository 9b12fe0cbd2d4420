"""Clients' posteriors over a small model's weights, and servers' states of them."""

import numpy as np
import tensorflow as tf

from tfp_bfl.algorithms.held import Held
from tfp_bfl.algorithms.swag.step import Product
from tfp_bfl.posterior import LowRank, MeanField
from tfp_bfl.weights import ClientPosterior, ModelWeights

SHAPES = ((3, 4), (4,), (4, 2), (2,))  # two dense layers, BatchNorm's four channels between them
ROWS = 3
ALL, HEAD = 4, 2  # leaves that a posterior is over


def rng_of(*numbers):
    return np.random.default_rng(numbers)


def weights(seed=0, normalized=True, dtype=np.float32):
    rng = rng_of(seed)
    point = tuple(rng.normal(size=shape).astype(dtype) for shape in SHAPES)
    moments = MeanField((rng.normal(size=4).astype(dtype),), (rng.uniform(0.5, 2, 4).astype(dtype),))
    return ModelWeights(MeanField((), ()), point, moments if normalized else MeanField((), ()))


def posterior_of(number, over=ALL, scale=1e-3, dtype=np.float32):
    """Narrow beside a prior of `prior_of`."""
    rng = rng_of(1, number)
    shapes = SHAPES[len(SHAPES) - over :]
    draw = lambda make: tuple(np.asarray(make(shape), dtype) for shape in shapes)
    return LowRank(
        draw(lambda shape: rng.normal(size=shape)),
        draw(lambda shape: scale * rng.uniform(0.5, 2, shape)),
        draw(lambda shape: rng.normal(size=(ROWS, *shape)) * scale**0.5),
    )


def prior_of(over=ALL, dtype=np.float32):
    rng = rng_of(2)
    shapes = SHAPES[len(SHAPES) - over :]
    means = tuple(rng.normal(size=shape).astype(dtype) for shape in shapes)
    return MeanField(means, tuple((10 * rng.uniform(0.5, 2, shape)).astype(dtype) for shape in shapes))


def client(number, over=ALL, normalized=True, dtype=np.float32, version=0):
    """What a client sends: no moments with a posterior over the head. Other versions are of other training."""
    rng = rng_of(3, number, version)
    moments = MeanField((rng.normal(size=4).astype(dtype),), (rng.uniform(0.5, 2, 4).astype(dtype),))
    moments = moments if normalized and over == ALL else MeanField((), ())
    q = posterior_of(100 * version + number, over, dtype=dtype)
    return ClientPosterior(np.int32(number), np.int32(10 * number + 7), q, moments)


def stack(*clients):
    return tf.nest.map_structure(lambda *x: np.stack(x), *clients)


def state_of(*numbers, over=ALL, normalized=True, dtype=np.float32, prior=None):
    """A server's state of these clients."""
    clients = stack(*(client(n, over, normalized, dtype) for n in numbers or (0,)))
    clients = clients if numbers else tf.nest.map_structure(lambda x: x[:0], clients)
    return Held.of_stack(clients, weights(0, normalized, dtype), Product(prior))


def flat(q):
    """A posterior over one vector of weights."""
    join = lambda leaves, lead: np.concatenate([np.reshape(x, [*np.shape(x)[:lead], -1]) for x in leaves], -1)
    return type(q)(*(join(part, field == "deviations") for field, part in zip(q._fields, q)))


def assert_identical(actual, wanted):
    tf.nest.assert_same_structure(actual, wanted)
    for a, b in zip(tf.nest.flatten(actual), tf.nest.flatten(wanted), strict=True):
        assert np.asarray(a).dtype == np.asarray(b).dtype
        np.testing.assert_array_equal(a, b)
