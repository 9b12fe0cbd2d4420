"""Pruned exchange: what a client leaves out is nothing to it, is not counted, and stays with the server."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.algorithms.personal.test_meta_vd import ANCHOR, LINEAR, SOURCES, by_change, pooled, results
from tests.kit import refuses
from tfp_bfl import algorithms, clients, models
from tfp_bfl.algorithms.personal.variances import Parameters, kept_weights
from tfp_bfl.algorithms.personal.work import personal as personal_variances_work
from tfp_bfl.contracts import ClientWork
from tfp_bfl.posterior import MeanField
from tfp_bfl.privacy import Privacy
from tfp_bfl.weights import ServerMessage


def test_by_log_alpha_a_published_threshold_prunes():
    """The dropout rate is above .8 where log alpha is above log 4, which a client's logits must reach first."""
    source = SOURCES["free_variances"](2, ranged="clamped", parametrization="log_alpha")
    personal_variances_work(by_change(), source, 0.8)
    rows, mean = np.linspace(-6, 6, 500, dtype=np.float32), tf.fill([500], 0.1)
    parameters = Parameters((), np.stack([rows, rows]))
    kept = kept_weights(mean, source.of_client(parameters, 0, mean), 0.8)
    np.testing.assert_array_equal(kept, rows - 2 <= np.log(4))


def test_pruned_weights_are_nothing_to_the_client_and_stay_with_the_server():
    """p = sigma^2 / (theta^2 + sigma^2): of theta = .5 it is .5 at sigma^2 = .25, of theta = .1 it is .96."""
    theta = np.array([0.5, 0.1], np.float32)
    anchor = ANCHOR._replace(posterior=MeanField((tf.constant(theta),), (tf.fill([2], 0.01),)))
    source = SOURCES["common_variances"](2, middle=float(np.log(0.25)), ranged="clamped")

    def build():
        inner = by_change(moved=0.3)()

        def work(message, *given):
            first, second = tf.unstack(message.weights.posterior.mean[0])
            seen = {"first": first, "second": second, "kept": tf.reduce_sum(message.extra.kept)}
            return inner(message, *given)._replace(counts=seen)

        return work

    personal = personal_variances_work(ClientWork(build), source, 0.8)
    found = results(personal, source.initialize(2, 0), anchor)
    assert [float(found[0].counts[name]) for name in ("first", "second", "kept")] == [0.5, 0.0, 1.0]
    assert [int(x.counts["pruned_weights"]) for x in found] == [1, 1]
    assert [float(x.counts["upload_bits"]) for x in found] == [64 + 2, 64 + 2]
    pool, extra = pooled(personal, found, anchor=anchor)
    np.testing.assert_allclose(pool.posterior.mean[0], [0.8, 0.1], rtol=1e-6)
    assert extra.shared[0][1] == 0 and extra.shared[0][0] != 0
    own = personal.personal(ServerMessage(anchor, 0, source.initialize(2, 0)), 0)
    np.testing.assert_array_equal(own.posterior.mean[0], [0.5, 0.0])


@pytest.mark.parametrize("rule", ["naive_weighted_average", "linear_pool", "distributed_weight_consolidation"])
def test_pruned_weights_would_count_by_a_rule_without_precisions(rule):
    model_fn = lambda: models.mlp("variational_dropout", (3,), 2, hidden=())
    make = functools.partial(algorithms.meta_vd, model_fn, num_clients=2)
    refuses(f"By the rule {rule} a weight that a client prunes would count as the", make, rule=rule, threshold=0.8)
    make(rule="conflation", threshold=0.8)
    for option, value in (("robust", "median"), ("max_change_norm", 5.0)):
        refuses(f"{option} compares what all clients send of each weight", make, threshold=0.8, **{option: value})
    for options, message in (
        ({"privacy": Privacy(1.0, 1.0, 2), "weighting": "equal"}, "privacy limits how much a client changes the prec"),
        ({"secure_sums": 50.0}, "secure_sums rounds the precision"),
        ({"weighting": "distance"}, "weighting 'distance' compares all weights of the clients"),
        ({"max_magnitude": 1e4}, "max_magnitude is 10000, but clients send a standard deviation of 100000"),
    ):
        refuses(message, make, threshold=0.8, **options)


def test_a_compressed_message_is_counted_as_a_federation_sends_it():
    """Without compression as many bits as without a compressor, and no gradient of what the server holds."""
    work = personal_variances_work(by_change(), LINEAR, 0.999999)
    plain, coded = results(work), results(clients.compressed(work, "none"))
    source = SOURCES["common_variances"](2, middle=float(np.log(0.25)))
    pruned, parameters = personal_variances_work(by_change(), source, 0.4), source.initialize(2, 0)
    plain += results(pruned, parameters)
    coded += results(clients.compressed(pruned, "none"), parameters)
    assert [int(x.counts["pruned_weights"]) for x in plain] == [0, 0, 2, 2]
    for one, other in zip(plain, coded):
        code = 32.0 * (2 - float(one.counts["pruned_weights"]))  # Of a pruned weight the code still has its zero.
        for name in ("upload_bits", "download_bits"):
            extra = 64.0 - code if name == "upload_bits" else 0.0
            assert float(other.counts[name]) == float(one.counts[name]) + extra


def test_without_a_threshold_all_weights_are_sent():
    (first, _) = results(personal_variances_work(by_change(), LINEAR))
    assert int(first.counts["pruned_weights"]) == 0 and float(first.counts["download_bits"]) == 128
