"""Chains of QLSD beside serial SGLD, and what their steps, memories and empty rounds do to the law of a Gaussian."""

import numpy as np
import pytest
import tensorflow as tf

from tests import gaussians
from tfp_bfl import algorithms, models
from tfp_bfl.algorithms.chains.driver import simulate_chains
from tfp_bfl.algorithms.chains.work import draw_batch

SIZES, MEANS, SEED = (2, 3, 5), (1.0, -1.0, 0.2), 4
fold_in = tf.random.experimental.stateless_fold_in


def seed_of(*numbers):
    """As a round folds it from the run's seed, the round and the client, or -2 for the server."""
    seed = tf.constant([SEED, 0])
    for number in numbers:
        seed = fold_in(seed, number)
    return seed


def noise_of(number, size):
    """The server's, of a round."""
    seeds = tf.random.experimental.stateless_split(seed_of(number, -2), 2)
    return tf.random.stateless_normal([size], seeds[1]).numpy()


def test_one_client_without_compression_is_serial_sgld():
    """w <- w - g ((N / n) sum_S (w - y_j) + w / t^2) + sqrt(2 g) Z, of the same batches and noise."""
    rows = np.float32(np.random.default_rng(1).normal(2, 1, (12, 3)))
    step, w, wanted = 0.03, np.zeros(3), []
    process = algorithms.qlsd(
        gaussians.model_fn(3),
        step_size=step,
        prior_stddev=0.5,
        estimator="plain",
        compressor="none",
        batch_size=4,
        seed=SEED,
        likelihood="density",
    )
    found = simulate_chains(process, gaussians.clients_of([rows]), 8).draws.point[0][0]
    for number in range(8):
        batch, counts = draw_batch(tf.ones(12, bool), tf.constant(12), 4, fold_in(seed_of(number, 0), 0))
        gradient = (counts.numpy()[:, np.newaxis] * (w - rows[batch])).sum(0)
        w = w - step * (gradient + w / 0.5**2) + np.sqrt(2 * step) * noise_of(number, 3)
        wanted.append(w)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_an_empty_round_goes_by_the_memories_and_the_prior():
    """Its step is w <- w - g (sum_i eta_i + w / t^2) + noise, with memories that are not zero and stay as they are."""
    data = gaussians.clients_of([np.full((n, 3), m) for n, m in zip(SIZES, MEANS)])
    process = algorithms.qlsd(
        gaussians.model_fn(3, 1.0),
        step_size=0.05,
        prior_stddev=0.5,
        compressor="quantiser:2",
        participation=0.3,
        refresh_every=2,
        seed=SEED,
        likelihood="density",
    )
    state = process.with_clients(process.local.initialize(), range(3), SIZES)
    empty = 0
    for number in range(14):
        output = process.local.next(state, [data.dataset(k) for k in range(3)])
        new, metrics = output.state, output.metrics
        eta, w = np.asarray(state.step.memory), np.asarray(state.weights.point[0])
        np.testing.assert_allclose(eta, np.sum(state.memory.rows.memory, 0), atol=1e-4)
        if metrics["participants"] == 0 and np.abs(eta).min() > 0.1:
            empty += 1
            wanted = w - 0.05 * (eta + w / 0.5**2) + np.sqrt(0.1) * noise_of(number, 3)
            np.testing.assert_allclose(new.weights.point[0], wanted, rtol=1e-5, atol=1e-5)
            for before, after in ((state.memory.rows, new.memory.rows), (state.step.memory, new.step.memory)):
                tf.nest.map_structure(np.testing.assert_array_equal, before, after)
            assert metrics["upload_bits"] == metrics["download_bits"] == 0
        state = new
    assert empty >= 2


@pytest.mark.deep(after="tests/algorithms/chains/test_chain_laws.py")
@pytest.mark.long
@pytest.mark.statistical
def test_the_bias_halves_with_the_step():
    """The variance over the posterior's, less one, is g L / (2 - g L): 0.0526 and 0.0256 at g L = 0.1 and 0.05. 256
    coordinates of 20,000 rounds are worth 2.5e5 and 1.3e5 draws: standard errors 0.0028 and 0.0039. Error rate at 4 of
    them each: 1.3e-4."""
    data = gaussians.clients_of([np.full((n, 256), m) for n, m in zip(SIZES, MEANS)])
    biases = []
    for share, error in ((0.1, 0.0028), (0.05, 0.0039)):
        process = algorithms.qlsd(
            gaussians.model_fn(256), step_size=share / 10, estimator="plain", compressor="none", count_bits=False,
            seed=SEED, **gaussians.OPTIONS,
        )  # fmt: skip
        draws = simulate_chains(process, data, 20_200, xla=True).draws.point[0][0, 200:]
        biases.append(10 * np.square(draws, dtype=np.float64).mean() - 1)
        assert abs(biases[-1] - share / (2 - share)) < 4 * error
    assert 1.2 < biases[0] / biases[1] < 4.5


@pytest.mark.deep(after="tests/algorithms/chains/test_chain_laws.py")
@pytest.mark.long
@pytest.mark.statistical
def test_the_covariance_of_correlated_weights():
    """u_j = (w - y_j)^T A (w - y_j) / 2: V = (N A (I - g N A / 2))^-1, off the diagonal too. 128 pairs of weights are
    as many chains: within 4.5 standard errors over them, 2e-5."""
    a = np.float32([[2.0, 0.9], [0.9, 1.0]])

    def log_density(theta, rows):
        apart = tf.reshape(rows - theta, [-1, 128, 2])
        return -tf.reduce_sum(apart * tf.matmul(apart, a), [1, 2]) / 2

    process = algorithms.qlsd(
        lambda: models.density(log_density, 256, 256),
        step_size=0.03,
        compressor="none",
        batch_size=1,
        refresh_every=5,
        count_bits=False,
        seed=SEED,
        **gaussians.OPTIONS,
    )
    data = gaussians.clients_of([np.full((n, 256), m) for n, m in zip(SIZES, MEANS)])
    draws = simulate_chains(process, data, 2100, xla=True).draws.point[0][0, 100:].reshape(-1, 128, 2).astype(float)
    of_pairs = np.einsum("rpi,rpj->pij", draws, draws) / len(draws)
    wanted = np.linalg.inv(10 * a @ (np.eye(2) - 0.03 * 10 * a / 2))
    errors = of_pairs.std(0, ddof=1) / np.sqrt(128)
    assert np.all(np.abs(of_pairs.mean(0) - wanted) < 4.5 * errors) and np.all(errors < 0.05 * np.abs(wanted).min())
