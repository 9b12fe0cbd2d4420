"""Federated SGLD's server: its noise, the rows that it keeps, and what predicts."""

import numpy as np
import pytest
import tensorflow as tf

from tfp_bfl import servers
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.federated import server_optimizer
from tfp_bfl.models import ModelWeights
from tfp_bfl.posterior import MeanField, Samples

from .cases import assert_identical, client

NONE = MeanField((), ())


def weights(value, size=3):
    moments = MeanField((tf.fill([2], value),), (tf.fill([2], 1.0),))
    return ModelWeights(NONE, (tf.fill([size, 2], value), tf.fill([2], -value)), moments)


def chain(rounds, inner=None, step_size=1e-12, **options):
    """The step, its state and the weights after rounds that pooled 1, 2, 3 ..."""
    step = servers.langevin(inner or servers.replace(), step_size, **options)
    own, state = weights(0.0), step.initialize(weights(0.0))
    for number in range(1, rounds + 1):
        state, own = step.next(state, own, weights(float(number)), tf.constant([5, number]))
    return step, tf.nest.map_structure(np.asarray, state), own


@pytest.mark.statistical
@pytest.mark.parametrize("step_size", [0.02, 0.5])
def test_noise_has_variance_2_eta(step_size):
    """40,002 draws: mean and variance within 4.5 standard errors, which a fresh seed fails with probability 1.4e-5."""
    step = servers.langevin(servers.replace(), step_size)
    old, pooled = weights(0.0, 20000), weights(1.0, 20000)
    _, new = step.next(step.initialize(old), old, pooled, tf.constant([3, 4]))
    noise = np.concatenate([np.ravel(a - b) for a, b in zip(new.point, pooled.point)]).astype(np.float64)
    n, variance = noise.size, 2 * step_size
    assert abs(noise.mean()) < 4.5 * np.sqrt(variance / n)
    assert abs(noise.var() / variance - 1) < 4.5 * np.sqrt(2 / n)
    assert abs(np.corrcoef(noise[:-1], noise[1:])[0, 1]) < 4.5 / np.sqrt(n)
    assert_identical(new.moments, pooled.moments)


def test_noise_is_a_function_of_the_seed():
    step = servers.langevin(servers.replace(), 0.1)
    draw = lambda *seed: step.next(step.initialize(weights(0.0)), weights(0.0), weights(1.0), tf.constant(seed))[1]
    assert_identical(draw(1, 2), draw(1, 2))
    first, other = draw(1, 2).point, draw(1, 3).point
    assert all(np.all(a != b) for a, b in zip(first, other))
    assert np.all(first[0][0] - 1 != first[1] + 1)  # Each leaf has its own.


def test_noise_comes_after_the_servers_optimizer():
    _, _, own = chain(1, servers.optimize(server_optimizer("sgd", 0.5)))
    np.testing.assert_allclose(own.point[0], 0.5, atol=1e-4)


@pytest.mark.parametrize(
    ("rounds", "burn_in", "most", "rows"),
    [
        (1, 0, 3, [1]),
        (3, 0, 3, [1, 2, 3]),
        (4, 0, 3, [4, 2, 3]),
        (8, 0, 3, [7, 8, 6]),
        (5, 3, 4, [4, 5]),
        (9, 2, 1, [9]),
    ],
)
def test_the_last_rounds_after_burn_in_predict(rounds, burn_in, most, rows):
    step, state, own = chain(rounds, burn_in_rounds=burn_in, max_samples=most)
    predictive = step.predictive(state, own)
    assert isinstance(predictive.posterior, Samples) and predictive.point == ()
    values = predictive.posterior[0]
    assert [x.shape for x in values] == [(len(rows), 3, 2), (len(rows), 2)]
    np.testing.assert_allclose(values[0][:, 0, 0], rows, atol=1e-4)
    np.testing.assert_allclose(values[1][:, 0], np.negative(rows), atol=1e-4)
    assert_identical(predictive.moments, own.moments)


@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_during_burn_in_the_weights_predict(rounds):
    step, state, own = chain(rounds, burn_in_rounds=2)
    assert_identical(step.predictive(state, own), own)


def test_the_chain_keeps_the_noise():
    step, state, own = chain(3, step_size=0.5, max_samples=3)
    for rows, leaf in zip(step.predictive(state, own).posterior[0], own.point, strict=True):
        np.testing.assert_array_equal(rows[2], leaf)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"step_size": 0.0}, "step_size is 0.0"),
        ({"step_size": float("nan")}, "step_size is nan"),
        ({"step_size": 1.0, "burn_in_rounds": -1}, "burn_in_rounds is -1"),
        ({"step_size": 1.0, "max_samples": 0}, "max_samples is 0"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(InvalidArgument, match=message):
        servers.langevin(servers.replace(), **options)


def test_models_with_variational_layers_are_refused():
    variational = weights(0.0)._replace(posterior=MeanField(client(1).posterior.mean, client(1).posterior.diagonal))
    with pytest.raises(InvalidArgument, match="SGLD finds a posterior over point weights"):
        servers.langevin(servers.replace(), 0.1).initialize(variational)
