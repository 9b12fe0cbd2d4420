"""Federated SGLD's server: its noise."""

import numpy as np
import pytest
import tensorflow as tf

from tests.algorithms.cases import assert_identical, client
from tfp_bfl import servers
from tfp_bfl.algorithms.chains.step import langevin
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.federated import server_optimizer
from tfp_bfl.posterior import MeanField
from tfp_bfl.weights import ModelWeights

NONE = MeanField((), ())


def weights(value, size=3):
    moments = MeanField((tf.fill([2], value),), (tf.fill([2], 1.0),))
    return ModelWeights(NONE, (tf.fill([size, 2], value), tf.fill([2], -value)), moments)


def after_a_round(inner, step_size=1e-12):
    """The weights after a round that pooled 1."""
    step = langevin(inner, step_size)
    return step.next(step.initialize(weights(0.0)), weights(0.0), weights(1.0), tf.constant([5, 1]))[1]


@pytest.mark.statistical
@pytest.mark.parametrize("step_size", [0.02, 0.5])
def test_noise_has_variance_2_eta(step_size):
    """40,002 draws: mean and variance within 4.5 standard errors, which a fresh seed fails with probability 1.4e-5."""
    step = langevin(servers.replace(), step_size)
    old, pooled = weights(0.0, 20000), weights(1.0, 20000)
    _, new = step.next(step.initialize(old), old, pooled, tf.constant([3, 4]))
    noise = np.concatenate([np.ravel(a - b) for a, b in zip(new.point, pooled.point)]).astype(np.float64)
    n, variance = noise.size, 2 * step_size
    assert abs(noise.mean()) < 4.5 * np.sqrt(variance / n)
    assert abs(noise.var() / variance - 1) < 4.5 * np.sqrt(2 / n)
    assert abs(np.corrcoef(noise[:-1], noise[1:])[0, 1]) < 4.5 / np.sqrt(n)
    assert_identical(new.moments, pooled.moments)


def test_noise_is_a_function_of_the_seed():
    step = langevin(servers.replace(), 0.1)
    draw = lambda *seed: step.next(step.initialize(weights(0.0)), weights(0.0), weights(1.0), tf.constant(seed))[1]
    assert_identical(draw(1, 2), draw(1, 2))
    first, other = draw(1, 2).point, draw(1, 3).point
    assert all(np.all(a != b) for a, b in zip(first, other))
    assert np.all(first[0][0] - 1 != first[1] + 1)  # Each leaf has its own.


def test_noise_comes_after_the_servers_optimizer():
    own = after_a_round(servers.optimize(server_optimizer("sgd", 0.5)))
    np.testing.assert_allclose(own.point[0], 0.5, atol=1e-4)


def test_what_the_inner_step_tells_and_takes_stays():
    inner = servers.replace()._replace(tell=lambda state, weights: weights.point[1], takes="other")
    step = langevin(inner, 0.1)
    np.testing.assert_array_equal(step.tell((), weights(2.0)), weights(2.0).point[1])
    assert step.takes == "other"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"step_size": 0.0}, "step_size is 0.0"),
        ({"step_size": float("nan")}, "step_size is nan"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(InvalidArgument, match=message):
        langevin(servers.replace(), **options)


def test_models_with_variational_layers_are_refused():
    variational = weights(0.0)._replace(posterior=MeanField(client(1).posterior.mean, client(1).posterior.diagonal))
    with pytest.raises(InvalidArgument, match="SGLD finds a posterior over point weights"):
        langevin(servers.replace(), 0.1).initialize(variational)
