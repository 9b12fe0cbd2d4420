"""One round of QLSD by hand: what clients send and keep, and what the server makes of it."""

import functools
import itertools

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from tests import kit
from tests.gaussians import mode_at, model_fn
from tfp_bfl import compression, models
from tfp_bfl.algorithms.chains import work as gradient
from tfp_bfl.algorithms.chains.step import descend
from tfp_bfl.algorithms.chains.work import ESTIMATORS, draw_batch, stochastic_gradient
from tfp_bfl.data import ClientExamples
from tfp_bfl.posterior import MeanField
from tfp_bfl.tensors import traced_for_xla
from tfp_bfl.training import Potential
from tfp_bfl.weights import Anchor, ModelWeights, ServerMessage, get_weights

DENSITY = {"likelihood": "density"}
TABLES = [np.float32(t) for t in ([(1, 0), (3, 2)], [(-2, 1), (0, -1), (5, 3)])]
NUM = len(TABLES)


def examples_of(table, client=0):
    number = np.zeros(len(table), np.int32)
    return ClientExamples(tf.constant(number + client), tf.constant(table), tf.constant(number))


def weights_of(theta):
    return ModelWeights(MeanField((), ()), (tf.constant(np.float32(theta)),), MeanField((), ()))


def with_draws(levels, uniform):
    """The quantiser with numbers of our own: u_j < r_j - floor(r_j) goes up."""
    true = compression.quantiser(levels)

    def compress(x, seed):
        del seed
        r = levels * tf.math.divide_no_nan(tf.abs(x), tf.norm(x))
        sizes = tf.floor(r) + tf.cast(uniform < r - tf.floor(r), tf.float32)
        return compression.Quantised(tf.norm(x), tf.cast(tf.sign(x) * sizes, tf.int32))

    return true._replace(compress=compress)


def test_the_transcript():
    """Three rounds of the equations with a memory, whoever is in them, by numbers worked out by hand."""
    uniform = tf.Variable([0.0, 0.0])
    work = stochastic_gradient(
        model_fn(2), compressor=with_draws(2, uniform), memory_rate=2 / 3, count_bits=False, **DENSITY
    )
    step, run = descend(0.05, memory_rate=2 / 3), work()
    theta, kept = np.float32([1, 1]), [work.memory(None, 0.0) for _ in range(NUM)]
    state = step.initialize(weights_of(theta))
    rounds = [
        ({0: (0.3, 0.6), 1: (0.9, 0.2)}, (0.5, -1), {0: (-2, 0), 1: (0, 0)}, (1.258114, 0.683772)),
        ({1: (0.1, 0.7)}, (1, 0.25), {1: (1.224584, -0.612292)}, (1.518550, 0.824058)),
        ({0: (0.4, 0.8)}, (-0.75, 2), {0: (0.510923, -0.255462)}, (1.256134, 1.502470)),
    ]
    for draws, noise, sent, after in rounds:
        total = np.zeros(2, np.float32)
        for client, u in draws.items():
            uniform.assign(u)
            message = ServerMessage(weights_of(theta), tf.constant(0), memory=kept[client])
            result = run(message, examples_of(TABLES[client]), tf.constant([0, 0]))
            np.testing.assert_allclose(result.weights, sent[client], atol=2e-6)
            total, kept[client] = total + result.weights, result.memory
        state = step.meet(state, kit.sized(NUM, 5, len(draws)))
        state, moved = step.next(state, weights_of(theta), total, None)
        theta = moved.point[0].numpy() + np.sqrt(0.1) * np.float32(noise)
        np.testing.assert_allclose(theta, after, atol=2e-6)
    np.testing.assert_allclose([k.memory for k in kept], [(-0.992718, -0.170308), (0.816389, -0.408195)], atol=2e-6)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("with_memory", [False, True])
def test_the_estimate_has_no_bias(estimator, with_memory, monkeypatch):
    """E[G] = grad U over all batches of one example, all roundings and all cohorts of two of three clients, with
    memories and the server's sum of them not zero."""
    rng = np.random.default_rng(5)
    tables = [np.float32(rng.normal(size=(2, 2)) + 2 * k) for k in range(3)]
    theta, zeta, mode = (np.float32(rng.normal(size=2)) for _ in range(3))
    rate = 0.3 if with_memory else None
    uniform, row = tf.Variable([0.0, 0.0]), tf.Variable(0)
    monkeypatch.setattr(
        gradient, "draw_batch", lambda here, number, batch_size, seed: (row[tf.newaxis], tf.constant([2.0]))
    )
    work = stochastic_gradient(
        model_fn(2),
        estimator=estimator,
        batch_size=1,
        compressor=with_draws(1, uniform),
        memory_rate=rate,
        fixed_point=mode_at(mode, 6) if estimator == "fixed_point" else None,
        count_bits=False,
        **DENSITY,
    )
    run = work()
    memories = [tf.constant(np.float32(rng.normal(size=2))) if with_memory else () for _ in tables]
    means = []
    for client, table in enumerate(tables):
        anchored = estimator == "anchored"
        kept = gradient.Kept(memories[client], tf.zeros(2) if anchored else (), tf.constant(-1) if anchored else ())
        told = Anchor((tf.constant(zeta),), tf.constant(0)) if anchored else ()
        message = ServerMessage(weights_of(theta), tf.constant(0), told, kept)
        given = message, examples_of(table, client), tf.constant([0, 0])
        mean = np.zeros(2)
        for i in range(2):
            row.assign(i)
            # What is rounded with which probability is seen by numbers that never go up.
            uniform.assign([2.0, 2.0])
            below = run(*given).weights.numpy()
            uniform.assign([-1.0, -1.0])
            above = run(*given).weights.numpy()
            h = {"plain": 2 * (theta - table[i]), "fixed_point": 2 * (theta - mode)}
            h["anchored"] = 2 * (theta - zeta) + (2 * zeta - table.sum(0))
            h = h[estimator] - (memories[client].numpy() if with_memory else 0)
            share = np.abs(h) / np.linalg.norm(h)
            for ups in itertools.product((0, 1), repeat=2):
                chance = np.prod([p if up else 1 - p for p, up in zip(share, ups)])
                mean += 0.5 * chance * np.where(ups, above, below)
        means.append(mean)
    step = descend(1.0, memory_rate=rate, fixed_point=[mode] if estimator == "fixed_point" else None, prior_precision=4)
    state = step.initialize(weights_of(theta))
    if with_memory:
        state = state._replace(memory=tf.add_n(memories))
    moves = []
    for pair in itertools.combinations(range(3), 2):
        total = tf.constant(np.float32(sum(means[k] for k in pair)))
        met = step.meet(state, kit.sized(3, 6, 2))
        moves.append(theta - step.next(met, weights_of(theta), total, None)[1].point[0].numpy())
    of_data = sum(2 * theta - t.sum(0) for t in tables)
    # At any point w* the clients' gradients and the prior's are both less those there.
    at_mode = sum(2 * mode - t.sum(0) for t in tables) + mode / 0.25 if estimator == "fixed_point" else 0
    np.testing.assert_allclose(np.mean(moves, 0), of_data + theta / 0.25 - at_mode, rtol=1e-4, atol=1e-4)


def test_an_anchor_is_met_once():
    """Of two anchors the gradient of all examples is taken when each is new; between, the row's serves."""
    work = stochastic_gradient(model_fn(2), estimator="anchored", batch_size=1, **DENSITY)
    run, kept = work(), work.memory(None, 0.0)
    theta, table = np.float32([0.5, -1]), TABLES[1]
    for number, zeta, downloads in ((0, (1, 2), 128), (0, (7, 7), 64), (1, (0, 3), 128), (3, (0, 3), 128)):
        told = Anchor((tf.constant(np.float32(zeta)),), tf.constant(number))
        result = run(
            ServerMessage(weights_of(theta), tf.constant(0), told, kept), examples_of(table), tf.constant([0, number])
        )
        known = zeta if downloads == 128 else (1, 2)
        wanted = 3 * (theta - np.float32(zeta)) + 3 * np.float32(known) - table.sum(0)
        np.testing.assert_allclose(result.weights, wanted, atol=1e-5)
        assert result.counts["download_bits"] == downloads
        kept = result.memory


def test_bits_are_those_of_the_bytes_and_of_who_takes_part():
    theta, table = np.float32(np.linspace(-1, 1, 50)), np.float32(np.random.default_rng(1).normal(size=(4, 50)))
    compressor = compression.quantiser(4)
    work = stochastic_gradient(model_fn(50), compressor=compressor, participation=0.5, **DENSITY)
    run, here = work(), []
    for number in range(12):
        seed = tf.constant([3, number])
        result = run(ServerMessage(weights_of(theta), tf.constant(0)), examples_of(table), seed)
        counts = {name: float(x) for name, x in result.counts.items()}
        here.append(counts["participants"])
        if counts["participants"]:
            noise = tf.random.experimental.stateless_fold_in(seed, 1)
            message = compressor.compress(tf.constant(4 * theta - table.sum(0)), noise)
            assert counts["upload_bits"] == 8 * len(compressor.encode(tf.nest.map_structure(np.asarray, message)))
            assert counts["upload_bound"] == pytest.approx(compressor.bound(50)) and counts["download_bits"] == 1600
        else:
            assert not any(counts.values()) and not np.any(result.weights)
    assert 0 < sum(here) < 12


@pytest.mark.parametrize("batch_size", [None, 3, 7, 40, 0.2, 0.5])
@pytest.mark.parametrize("padding", [0, 5])
def test_batches_are_without_replacement_and_padding_is_not_there(batch_size, padding):
    here = tf.constant([True] * 10 + [False] * padding)
    drawn = {None: 10, 3: 3, 7: 7, 40: 10, 0.2: 2, 0.5: 5}[batch_size]
    seen = np.zeros(10 + padding)
    for seed in range(30):
        rows, counts = draw_batch(here, tf.constant(10), batch_size, tf.constant([seed, 1]))
        rows, counts = rows.numpy()[counts.numpy() > 0], counts.numpy()[counts.numpy() > 0]
        assert len(rows) == len(set(rows)) == drawn and np.all(counts == np.float32(10 / drawn))
        seen[rows] += 1
    assert not seen[10:].any() and seen[:10].all()


@pytest.mark.parametrize("padding", [0, 3])
def test_batches_of_compiled_work_are_uniform_subsets(padding):
    """Floyd's: each of the 10 pairs of 5 rows; a chi-square test that errs once in 10,000."""
    here = tf.constant([True] * 5 + [False] * padding)
    draw = lambda i: draw_batch(here, tf.constant(5), 2, tf.stack([i, 7]))

    @tf.function(jit_compile=True, autograph=False)
    def draws():
        with traced_for_xla():
            return tf.map_fn(draw, tf.range(5000), fn_output_signature=(tf.int32, tf.float32))

    rows, counts = (x.numpy() for x in draws())
    assert np.all(counts == np.float32(2.5)) and rows.min() == 0 and rows.max() == 4
    seen = np.unique(np.sort(rows, 1), axis=0, return_counts=True)
    assert len(seen[0]) == 10 and np.all(seen[0][:, 0] < seen[0][:, 1])
    assert scipy.stats.chisquare(seen[1]).pvalue > 1e-4


@pytest.mark.parametrize("batch_size", [3, 10, 40, 0.2])
def test_batches_of_compiled_work_count_once(batch_size):
    drawn, here = {3: 3, 10: 10, 40: 10, 0.2: 2}[batch_size], tf.constant([True] * 10 + [False] * 20)
    with traced_for_xla():
        for seed in range(10):
            rows, counts = draw_batch(here, tf.constant(10), batch_size, tf.constant([seed, 1]))
            counted = rows.numpy()[counts.numpy() > 0]
            assert len(counted) == len(set(counted)) == drawn and counted.max() < 10
            assert counts.numpy().sum() == pytest.approx(10) and rows.numpy().max() < 30


@functools.cache
def lenet(kind, normalization="none"):
    return models.resnet20(kind, (8, 8, 3), 3, normalization=normalization)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"estimator": "plane"}, "no estimator 'plane': did you mean 'plain'"),
        ({"compressor": "quantiser:0"}, "levels is 0, but must be an integer of at least 1"),
        ({"compressor": "sparsifier:2"}, "share is 2, but must be at most 1"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"batch_size": 1.5}, "batch_size is 1.5, but must be an integer, or a share between 0 and 1"),
        ({"participation": 0.0}, "participation is 0.0, but must be"),
        ({"participation": 1.5}, "participation is 1.5, but must be at most 1: it is a probability"),
        ({"compressor": "quantiser:1", "memory_rate": 0.9}, r"must be at most 1 / \(1 \+ omega\), 0.414214 for the"),
        ({"estimator": "fixed_point"}, "needs a fixed_point: take training.find_mode"),
        ({"fixed_point": mode_at(np.zeros(2), 5)}, "The estimator 'plain' takes no fixed_point"),
        ({"estimator": "fixed_point", "fixed_point": mode_at(np.zeros(3), 5)}, r"has leaves \[\(3,\)\], but the"),
        ({"estimator": "fixed_point", "fixed_point": mode_at(np.zeros(2), 5, 0.5)}, "fixed_point is 0.5 standard"),
        (
            {"estimator": "fixed_point", "fixed_point": mode_at(np.zeros(2), 5)._replace(likelihood="categorical")},
            "the mode with the likelihood 'categorical', but the clients have 'density'",
        ),
        ({"estimator": "fixed_point", "fixed_point": [np.zeros(2)]}, "must be a Mode, as training.find_mode"),
    ],
)
def test_arguments_out_of_range(given, message):
    kit.refuses(message, stochastic_gradient, model_fn(2), **DENSITY, **given)


@pytest.mark.parametrize(
    ("kind", "normalization", "message"),
    [
        ("deterministic", "batch", "normalises by the batch"),
        ("mc_dropout", "none", "draws masks, but the potential of a Langevin chain has none"),
        ("flipout", "none", "has variational layers"),
    ],
)
def test_models_whose_potential_is_random(kind, normalization, message):
    kit.refuses(message, stochastic_gradient, functools.partial(lenet, kind, normalization))


@pytest.mark.parametrize("likelihood", ["categorical", "gaussian:0.5"])
def test_the_potential_of_many_examples_is_the_sum_of_each(likelihood, monkeypatch):
    """In pieces, with rows that do not count, and its gradient by differences."""
    monkeypatch.setattr("tfp_bfl.training.potential.AT_ONCE", 4)
    model = models.mlp("deterministic", (3,), 2, hidden=(2,), seed=4)
    potential = Potential(model, likelihood)
    rng = np.random.default_rng(2)
    features, labels = np.float32(rng.normal(size=(11, 3))), rng.integers(0, 2, 11).astype(np.int32)
    counts = np.float32(rng.integers(0, 3, 11))
    w = potential.start()
    each = potential.each(w, features, labels).numpy()
    model_says = get_weights(model)
    assert [x.shape for x in potential.shaped(w)] == [x.shape for x in model_says.point]
    for given, wanted in ((None, each.sum()), (tf.constant(counts), (counts * each).sum())):
        value, found = potential.total(w, tf.constant(features), tf.constant(labels), given)
        np.testing.assert_allclose(value, wanted, rtol=1e-5)
        for d in (0, 5, potential.size - 1):
            e = 1e-2 * tf.one_hot(d, potential.size)
            high, low = (
                potential.total(w + s * e, tf.constant(features), tf.constant(labels), given)[0] for s in (1, -1)
            )
            np.testing.assert_allclose(found[d], (high - low) / 2e-2, rtol=2e-2, atol=2e-3)


@pytest.mark.parametrize("known", [True, False], ids=["number known", "number unknown"])
@pytest.mark.parametrize("number, rows", [(3, [3]), (4, [4]), (9, [4, 4, 4])])
def test_a_small_batch_costs_no_more_than_its_rows(number, rows, known, monkeypatch):
    monkeypatch.setattr("tfp_bfl.training.potential.AT_ONCE", 4)
    potential, seen = Potential(models.mlp("deterministic", (3,), 2, hidden=(2,), seed=4)), []
    outputs = potential.outputs

    def counted(vector, features):
        with tf.control_dependencies([tf.py_function(lambda n: seen.append(int(n)), [tf.shape(features)[0]], [])]):
            return outputs(vector, tf.identity(features))

    monkeypatch.setattr(potential, "outputs", counted)
    shape = number if known else None
    spec = tf.TensorSpec([shape, 3]), tf.TensorSpec([shape], tf.int32)
    total = tf.function(lambda x, y: potential.total(potential.start(), x, y), input_signature=spec, autograph=False)
    total(tf.zeros([number, 3]), tf.zeros([number], tf.int32))
    assert seen == rows
