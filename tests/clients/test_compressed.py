"""Messages of other client work, compressed."""

import numpy as np
import pytest
import tensorflow as tf

from tests.algorithms.method import CLIENTS, fold, mlp, result_of
from tests.kit import assert_same, refuses
from tfp_bfl import algorithms, clients, compression, rules, simulate
from tfp_bfl.algorithms.chains.work import stochastic_gradient
from tfp_bfl.algorithms.factors.work import factors
from tfp_bfl.contracts import ClientWork
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.posterior import flatten
from tfp_bfl.privacy import Privacy
from tfp_bfl.weights import ClientResult, ServerMessage, TrainingMetrics, get_weights

TRAINING = {"local_epochs": 1, "batch_size": 8, "learning_rate": 0.02}


def change_of(weights, before):
    flat = lambda w: flatten((w.posterior.mean, w.point)).numpy()
    return flat(weights) - flat(before)


@pytest.mark.parametrize("kind", ["flipout", "deterministic"])
def test_what_is_sent_is_what_the_bytes_say(kind):
    work, quantiser = clients.variational(mlp(kind), **TRAINING), compression.quantiser(8)
    before, plain = get_weights(mlp(kind)()), result_of(work, mlp(kind), 0)
    sent = result_of(clients.compressed(work, quantiser), mlp(kind), 0)
    change, size = change_of(plain.weights, before), len(change_of(plain.weights, before))
    message = quantiser.compress(tf.constant(change), tf.random.experimental.stateless_fold_in(fold(0, 0), 2**30))
    decoded = quantiser.decode(quantiser.encode(tf.nest.map_structure(np.asarray, message)), size)
    np.testing.assert_allclose(change_of(sent.weights, before), quantiser.decompress(decoded), rtol=1e-5, atol=1e-6)
    variances = sum(np.size(v) for v in before.posterior.variance)
    bits = 8 * len(quantiser.encode(tf.nest.map_structure(np.asarray, message))) + 32 * variances
    assert sent.counts["upload_bits"] == bits and bits < 0.3 * 32 * size + 32 * variances
    assert sent.counts["download_bits"] == 32 * (size + variances)
    assert_same(plain.weights.posterior.variance, sent.weights.posterior.variance)
    assert (sent.num_examples, sent.metrics) == (plain.num_examples, plain.metrics)


def test_the_mean_of_many_seeds_is_the_change():
    """A sparsifier of a half: each of 1,000 draws has the variance x^2, so that 5 standard errors are 0.16 |x|; one
    of 600,000 runs of other seeds would fail."""
    change = np.float32([1.0, -2.0, 0.5])
    given, before = changing(change[np.newaxis])
    work = clients.compressed(given, "sparsifier:0.5")()
    message = ServerMessage(before, tf.constant(0))
    draw = lambda i: flatten(work(message, (), tf.stack([i, 0])).weights.point) - flatten(before.point)
    found = tf.map_fn(draw, tf.range(1000), fn_output_signature=tf.float32).numpy()
    np.testing.assert_array_less(np.abs(found.mean(0) - change), 0.16 * np.abs(change))


def test_bits_are_listed_and_summed():
    process = algorithms.fed_opt(mlp("deterministic"), compressor="none", learning_rate=0.1)
    (row,) = simulate(process, CLIENTS, 1, engine="local").rounds
    assert row["upload_bits"] == row["upload_bound"] == row["download_bits"] == 3 * 32 * (30 * 3 + 3 + 3 * 2 + 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rule": "linear_pool"}, "as the rule 'linear_pool' is not linear in the clients' means: use a rule such as"),
        ({"rule": "conflation", "robust": "median"}, "as the robust aggregator 'median' is not linear in it"),
        ({"rule": "log_linear_pool", "weighting": "distance"}, "as weighting by 'distance' follows from what they"),
        ({"rule": "log_linear_pool", "compressor": "zip"}, "no compressor 'zip'"),
        ({"rule": "log_linear_pool", "compressor": "quantiser:0"}, "levels"),
    ],
)
def test_where_its_noise_would_be_a_bias(options, message):
    refuses(message, algorithms.variational, mlp("flipout"), **{"compressor": "quantiser:4", **options})


def test_coarse_variances_with_a_compressor_of_means():
    """The code of the means is that without them, its bits too; variances lie within a step of the client's."""
    work, before = clients.compressed(clients.variational(mlp("flipout"), **TRAINING), "quantiser:8"), mlp("flipout")
    fine, coarse = (result_of(x, before, 0) for x in (work, clients.coarse_variances(work, "precision")))
    start, sizes = get_weights(before()).posterior.variance, 30 * 3 + 3 * 2
    assert fine.counts["upload_bits"] - coarse.counts["upload_bits"] == 24 * sizes - 2 * 32
    assert fine.counts["download_bits"] == coarse.counts["download_bits"]
    np.testing.assert_array_equal(
        change_of(fine.weights, get_weights(before())), change_of(coarse.weights, get_weights(before()))
    )
    for known, v, rounded, step in zip(
        start, fine.weights.posterior.variance, coarse.weights.posterior.variance, coarse.sent.code[1].steps
    ):
        np.testing.assert_allclose(step, np.abs(np.log(v / known)).max() / 127, rtol=1e-4)
        assert 0 < np.abs(np.log(rounded / v)).max() <= 1.001 * step


def test_linear_pool_averages_variances_but_not_means():
    assert algorithms.variational(mlp("flipout"), "linear_pool", variance_bits=8).client_work.coding


def custom(rule):
    rule = rules.parse_rule(rule)
    return rule._replace(traits=rule.traits._replace(averages=""), name="own")


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("deterministic", {}, "variance_bits is of Gaussian weights, and this model has none: leave it out"),
        ("flipout", {"variance_bits": 4}, "variance_bits is 4, but must be 8 or 32"),
        ("flipout", {"rule": custom("linear_pool")}, "the rule 'own' averages neither precisions nor variances: use"),
        ("flipout", {"robust": "median"}, "as the robust aggregator 'median' is not linear in it"),
        ("flipout", {"weighting": "distance"}, "as weighting by 'distance' follows from what they"),
        ("flipout", {"secure_sums": 10.0}, "Under masks each number takes 8 bytes"),
        (
            "flipout",
            {"privacy": Privacy(1.0, 1.0, 5), "weighting": "equal"},
            "averages neither precisions nor variances",
        ),
    ],
)
def test_where_coarse_variances_would_be_biased_or_of_no_use(kind, options, message):
    refuses(message, algorithms.variational, mlp(kind), **{"variance_bits": 8, **options})


def changing(changes):
    """Work whose change in round t is changes[t], and weights [2, 1] and [1] before it."""
    model_fn = lambda: tf.keras.Sequential([tf.keras.layers.Dense(1, use_bias=True, input_shape=(2,))])

    def build():
        def run(message, examples, seed):
            del examples, seed
            change = tf.gather(tf.constant(changes), message.round)
            point = tuple(w + tf.reshape(d, w.shape) for w, d in zip(message.weights.point, (change[:2], change[2:])))
            nothing = TrainingMetrics(*[tf.constant(0.0)] * 3)
            return ClientResult(message.weights._replace(point=point), tf.constant(1), nothing)

        return run

    return ClientWork(build), get_weights(model_fn())


@pytest.mark.parametrize("compressor", ["quantiser:1", "quantiser:4", "sparsifier:0.3", "largest:0.3", "none"])
def test_what_was_sent_in_all_is_the_changes_less_the_last_error(compressor):
    """And that error stays bounded: without the factor of an unbiased compressor it would grow as omega^t."""
    changes = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32)
    work, before = changing(changes)
    work = clients.compressed(work, compressor, error_memory=True)
    run, kept, sent, sizes = work(), work.memory(before, 0.0), np.zeros(3), []
    for t in range(len(changes)):
        message = ServerMessage(before, tf.constant(t), memory=kept)
        result = run(message, (), tf.constant([t, 0]))
        sent += flatten(result.weights.point).numpy() - flatten(before.point).numpy()
        kept = result.memory
        _, error = kept
        sizes.append(np.linalg.norm(error))
        np.testing.assert_allclose(sent + error, changes[: t + 1].sum(0), atol=2e-4)
    omega = compression.parse_compressor(compressor).omega(3)
    unbiased = compression.parse_compressor(compressor).unbiased
    share = omega / (1 + omega) if unbiased else omega  # of ||x||^2 that may stay in expectation
    largest = np.sqrt(share) / (1 - np.sqrt(share)) * np.linalg.norm(changes, axis=1).max()
    assert np.sqrt(np.mean(np.square(sizes))) <= largest + 1e-6
    assert compressor != "none" or max(sizes) == 0


def test_a_biased_compressor_needs_the_memory():
    work, _ = changing(np.zeros([1, 3], np.float32))
    refuses(r"leaves the same values out for good: use it with error_memory", clients.compressed, work, "largest:0.3")
    with pytest.raises(InvalidArgument, match=r"biased, and so would the chain be: use one such as 'quantiser:16'"):
        algorithms.qlsd(mlp("deterministic"), step_size=1e-4, compressor="largest:0.3")


def test_masks_leave_nothing_to_compress():
    with pytest.raises(InvalidArgument, match="Under masks each number takes 8 bytes"):
        algorithms.variational(mlp("flipout"), "log_linear_pool", compressor="none", secure_sums=10.0)


def test_work_that_sends_something_else_or_keeps_it():
    sites, gradient = factors(mlp("flipout")), stochastic_gradient(mlp("deterministic"))
    refuses("keep a memory that must be what they sent: leave it out", clients.compressed, sites, "none")
    refuses(r"send a gradient: leave it out, or use algorithms\.qlsd", clients.compressed, gradient, "none")
    for name in ("compressor", "variance_bits"):
        refuses(f"no option of partitioned_vi '{name}'", algorithms.partitioned_vi, mlp("flipout"), **{name: None})
    refuses("no option of meta_vd 'variance_bits'", algorithms.meta_vd, mlp("flipout"), num_clients=3, variance_bits=8)
