"""Clients of a chain that differ in compressors, probabilities of taking part and memory rates."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from tests import gaussians, kit
from tests.algorithms.chains.test_gradient import DENSITY, TABLES, examples_of, weights_of
from tfp_bfl import algorithms, compression
from tfp_bfl.algorithms.chains.client_settings import memory_rate
from tfp_bfl.algorithms.chains.driver import simulate_chains
from tfp_bfl.algorithms.chains.step import descend
from tfp_bfl.algorithms.chains.work import Kept, stochastic_gradient
from tfp_bfl.federated import simulate
from tfp_bfl.weights import ServerMessage

SHARES, COMPRESSORS, RATES = (0.5, 0.75), ("none", "sparsifier:0.5"), (1.0, 0.5)
GIVEN = {"compressor": COMPRESSORS, "participation": SHARES}


@pytest.mark.parametrize("rates", [RATES, None])
def test_the_estimate_has_no_bias(rates, monkeypatch):
    """E[G] = grad U and E[alpha_i g_i] = alpha_i p_i (h_i - eta_i) over all coins and all masks of the sparsifier."""
    coin, mask = tf.Variable(0.0), tf.Variable([0.0, 0.0])
    monkeypatch.setattr(
        tf.random, "stateless_uniform", lambda shape, seed: (coin if isinstance(shape, list) else mask) + 0.0
    )
    work = stochastic_gradient(gaussians.model_fn(2), memory_rate=rates, **GIVEN, **DENSITY)
    assert work.needs.num_clients == 2
    run, theta = work(), np.float32([0.5, -1.0])
    memories = np.float32([(1, -2), (0.5, 3)]) if rates else np.zeros([2, 2], np.float32)
    remains, means = [2 * theta - TABLES[0].sum(0), 3 * theta - TABLES[1].sum(0)], []
    for client, share in enumerate(SHARES):
        kept = Kept(tf.constant(memories[client]) if rates else (), (), ())
        message = ServerMessage(weights_of(theta), tf.constant(0), memory=kept)
        masks = list(itertools.product((0.0, 0.9), repeat=2)) if client else [(0.0, 0.0)]
        for takes_part, values in itertools.product((True, False), masks):
            coin.assign(share - 0.01 if takes_part else share)
            mask.assign(values)
            result = run(message, examples_of(TABLES[client], client), tf.constant([0, 0]))
            assert bool(result.counts["participants"]) == takes_part
            chance = (share if takes_part else 1 - share) / len(masks)
            means.append(tf.nest.map_structure(lambda x, c=chance: c * x, result.weights))
            if rates:
                np.testing.assert_allclose(result.memory.memory, memories[client] + result.weights.memory, rtol=1e-6)
    # The server's step is linear in the sum of what independent clients send.
    total = tf.nest.map_structure(lambda *x: tf.add_n(x), *means)
    step = descend(1.0, participation=SHARES, memory_rate=rates, prior_precision=4)
    state = step.meet(step.initialize(weights_of(theta)), kit.sized(2, 5, 2))
    state = state._replace(memory=tf.constant(memories.sum(0)) if rates else ())
    after, moved = step.next(state, weights_of(theta), total, None)
    np.testing.assert_allclose(theta - moved.point[0].numpy(), sum(remains) + theta / 0.25, rtol=1e-5)
    if rates:
        wanted = sum(a * p * (h - eta) for a, p, h, eta in zip(rates, SHARES, remains, memories))
        np.testing.assert_allclose(after.memory - state.memory, wanted, rtol=1e-5)


def test_each_client_sends_by_its_own_compressor():
    """Bits, bound and message are those of the compressor, with a byte for its number and 32 bits of the client's."""
    work = stochastic_gradient(
        gaussians.model_fn(2), compressor=("none", "quantiser:1"), participation=(1.0, 1.0), **DENSITY
    )
    run = work()
    for client, name in enumerate(("none", "quantiser:1")):
        message = ServerMessage(weights_of([1.0, 2.0]), tf.constant(0))
        result = run(message, examples_of(TABLES[client], client), tf.constant([0, 7]))
        code = work.coding.encode(message, tf.nest.map_structure(np.asarray, result.sent.code))
        assert code[0] == client and result.counts["upload_bits"] == 8 * len(code) + 32
        assert float(result.counts["upload_bound"]) == pytest.approx(compression.parse_compressor(name).bound(2) + 40)
        sent = result.sent._replace(code=work.coding.decode(message, code))
        tf.nest.map_structure(np.testing.assert_array_equal, work.coding.expand(message, sent), result.weights)
    kit.refuses("The code names none of the 2 compressors: it is damaged", work.coding.decode, message, b"\x02")


def test_memory_rates_are_those_of_the_compressors():
    rates = memory_rate(gaussians.model_fn(4), compressor=("quantiser:1", "none", "quantiser:1"))
    np.testing.assert_allclose(rates, (1 / 3, 1, 1 / 3))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"participation": (0.5, 0.0)}, "participation of client 1 is 0.0, but must be a finite number above 0"),
        ({"participation": [0.5, 1.5]}, "participation of client 1 is 1.5, but must be at most 1: it is a probability"),
        ({"participation": ()}, "participation has 0 entries, but each must have one entry for each client"),
        ({"participation": (0.5,), "compressor": COMPRESSORS}, "compressor has 2 and participation has 1 entries, but"),
        ({"compressor": ("none", "gzip")}, "no compressor 'gzip'"),
        ({"compressor": ("none", "largest:0.1")}, "'largest:0.1' is biased, and so would the chain be"),
        ({"compressor": ("none", "quantiser:1"), "memory_rate": (1.0, 0.9)}, "memory_rate is 0.9, but must be at most"),
    ],
)
def test_settings_out_of_range(given, message):
    kit.refuses(message, stochastic_gradient, gaussians.model_fn(2), **DENSITY, **given)


@pytest.mark.parametrize("run", [simulate, simulate_chains])
@pytest.mark.parametrize("name", ["compressor", "participation"])
def test_settings_of_other_clients_are_refused(run, name):
    data = gaussians.clients_of([np.zeros([n, 2]) for n in (2, 3, 5)])
    process = algorithms.qlsd(gaussians.model_fn(2), step_size=0.05, **{name: GIVEN[name]}, **gaussians.OPTIONS)
    kit.refuses("There are 3 clients, but their settings have 2 entries: give one entry", run, process, data, 2)
