"""The kernel posterior: cases worked out by hand, plain loops over every option, and what must not matter."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from tests.kit import assert_same, refuses
from tfp_bfl import rules
from tfp_bfl.algorithms.kernel import bandwidths, kernel_mode, kernel_modes, kernel_posterior, mean_shift
from tfp_bfl.algorithms.kernel import rule as kernel
from tfp_bfl.posterior import MeanField
from tfp_bfl.weights import ModelWeights

from . import kernel_reference as reference

NAN, INF = float("nan"), float("inf")
every_start = pytest.mark.parametrize("start", kernel.STARTS)
every_kernel = pytest.mark.parametrize("kind", kernel.KERNELS)
# Each takes a second to trace: of a fast test one of each bandwidth, in which start and kernel take turns; in the deep
# tier every start and kernel of one bandwidth too, since these enter after it.
deep = pytest.mark.deep(after="tests/algorithms/kernel/test_kernel.py")
TURNS = [(0, 0), (1, 1), (0, 1), (1, 0)]
FAST = [(kernel.STARTS[i], kernel.KERNELS[j], b) for b, (i, j) in zip(kernel.BANDWIDTHS, itertools.cycle(TURNS))]
COMBINATIONS = [*FAST, *(x for x in itertools.product(kernel.STARTS, kernel.KERNELS, ("silverman",)) if x not in FAST)]
every_combination = pytest.mark.parametrize(
    ("start", "kind", "bandwidth"),
    [options if options in FAST else pytest.param(*options, marks=deep) for options in COMBINATIONS],
)
# For what a bandwidth does not change.
SOME = [("mean", "epanechnikov", "silverman"), ("clients", "gaussian", "adaptive")]
every_start_and_kernel = pytest.mark.parametrize(
    ("start", "kind", "bandwidth"), [*SOME, *(pytest.param(*x, marks=deep) for x in FAST if x not in SOME)]
)
WEIGHTINGS = (None, "kernels", "bandwidths")
WEIGHTED = (("silverman", "kernels"), ("adaptive", "bandwidths"))
# Every bandwidth, and every start and kernel, meets every weighting; over those of one bandwidth weightings take turns.
PAIRS = [(*options, weighting) for options in FAST for weighting in WEIGHTINGS]
PAIRS += [(*options, weighting) for options, weighting in zip(COMBINATIONS[len(FAST) :], itertools.cycle(WEIGHTINGS))]
# Those of which tests/algorithms/kernel/test_bandwidths.py says enough before the loops do.
TOLD = ("scott", "silverman_wide", "plug_in")


def random_values(num_clients, size=5, dtype=np.float64, seed=0):
    """[S, D]: near 0.5 with sd 0.1, every other weight in two groups."""
    rng = np.random.default_rng(seed)
    values = 0.5 + 0.1 * rng.normal(size=(num_clients, size))
    values[: num_clients // 3, ::2] += 0.7
    return rng.permutation(values).astype(dtype)


def counts(modes):
    return {name: int(n) for name, n in modes._asdict().items() if name != "mode" and int(n)}


@pytest.mark.deep(after="tests/algorithms/kernel/test_kernel.py")
@every_start
@every_kernel
def test_a_wide_kernel_is_federated_averaging(start, kind):
    values, sizes = random_values(9), np.arange(1.0, 10)
    for weights in (None, sizes):
        mode = kernel_mode(values, start, kind, scale=1e6, weights=weights)
        np.testing.assert_allclose(mode, np.average(values, 0, weights), rtol=1e-9)


@pytest.mark.deep(after="tests/algorithms/kernel/test_kernel.py")
@every_combination
def test_clients_who_agree_are_their_value(start, kind, bandwidth):
    values = np.full([5, 3], [0.1, -1e30, 3e-30], np.float32)
    modes = kernel_modes(values, start, kind, bandwidth)
    np.testing.assert_array_equal(modes.mode, values[0])
    assert counts(modes) == {"num_zero_spread": 3}
    if bandwidth != "adaptive":
        np.testing.assert_array_equal(kernel_mode(values[:1], start, kind, bandwidth), values[0])


@every_kernel
def test_two_groups(kind):
    """Three clients near 0 and two at 10: from the mean, 4, to the larger group; from the clients, to either's own."""
    values = np.array([[0.0], [0.1], [0.2], [10.0], [10.1]])
    own = reference.silverman(values[:, 0])
    from_mean = kernel_mode(values, "mean", kind, scale=(5.5 if kind == "epanechnikov" else 2) / own)
    np.testing.assert_allclose(from_mean, [0.1], atol=0.01)
    from_clients = kernel_mode(values, "clients", kind, scale=1 / own)
    np.testing.assert_allclose(from_clients, [(3 * 0.1 + 2 * 10.05) / 5], atol=1e-4)


def test_one_step_by_hand():
    """1.5, 2 and 3.5 at h = 2, in sixteenths: 1.5 has weights 16, 15, 0; 2 has 15, 16, 7; 3.5 has 0, 7, 16."""
    values = tf.constant([[1.5], [2.0], [3.5]])
    scale = 2 / reference.silverman(values.numpy()[:, 0])
    mode = kernel_mode(values, "clients", scale=scale, max_iterations=1)
    np.testing.assert_allclose(mode, [(54 / 31 + 79 / 38 + 70 / 23) / 3], rtol=1e-6)


@every_kernel
def test_two_clients_keep_their_mean_or_meet_no_one(kind):
    """h = 0.29 |difference|: the window about the middle is empty; a Gaussian one is balanced."""
    modes = kernel_modes([[0.0, 0.5], [1.0, 0.5]], "mean", kind)
    np.testing.assert_allclose(modes.mode, [0.5, 0.5], rtol=1e-6)
    empty = {"num_empty_windows": 1} if kind == "epanechnikov" else {}
    assert counts(modes) == {"num_zero_spread": 1, **empty}


@every_start
@every_kernel
def test_a_bandwidth_of_zero_stays_and_is_counted(start, kind):
    """Three of four quarters agree: no interquartile range."""
    values = np.array([[1.0]] * 6 + [[5.0], [0.0]])
    modes = kernel_modes(values, start, kind)
    np.testing.assert_allclose(modes.mode, values.mean(0), rtol=1e-15)
    assert counts(modes) == {"num_zero_bandwidths": 1}


@pytest.mark.parametrize(
    ("start", "kind", "bandwidth", "weighting"),
    [
        x
        if x[:3] in FAST and x[2:] in (*((b, None) for b in kernel.BANDWIDTHS if b not in TOLD), *WEIGHTED)
        else pytest.param(*x, marks=deep)
        for x in PAIRS
    ],
)
def test_the_same_as_plain_loops(start, kind, bandwidth, weighting):
    """To the last digits, but for the tables: of the plug-in bandwidth, and of the Gaussian sums in float32."""
    options = {} if weighting is None else {"weights": np.linspace(1, 9, 12) ** 2, "weighting": weighting}
    values = random_values(12)
    wanted = reference.kernel_mode(values, start, kind, bandwidth, **options)
    exact = kernel_mode(values, start, kind, bandwidth, **options)
    assert exact.dtype == tf.float64
    np.testing.assert_allclose(exact, wanted, atol=2e-4 if bandwidth == "plug_in" else 1e-9)
    single = kernel_mode(values.astype(np.float32), start, kind, bandwidth, **options)
    assert single.dtype == tf.float32
    np.testing.assert_allclose(single, wanted, atol=2e-4 if bandwidth == "plug_in" else 3e-6)


@every_kernel
@pytest.mark.parametrize(
    "bandwidth",
    ["silverman", *(pytest.param(b, marks=pytest.mark.deep(after="test_kernel.py")) for b in ("scott", "adaptive"))],
)
@pytest.mark.parametrize("start", ["mean", pytest.param("clients", marks=deep)])
def test_many_clients_are_as_the_loops(start, kind, bandwidth):
    """Enough of them for the table of Gaussian sums; one weight has a client too far out for it."""
    values = random_values(60, size=4, dtype=np.float32)
    values[7, 1] = 40.0
    actual = kernel_mode(values, start, kind, bandwidth, scale=0.9)
    wanted = reference.kernel_mode(values, start, kind, bandwidth, scale=0.9)
    np.testing.assert_allclose(actual, wanted, atol=5e-6)


def test_the_table_serves_this_many():
    h = tf.constant([0.05, 0.07, 0.5], tf.float64)
    assert mean_shift.table_serves(h, 1200).numpy().tolist() == [False, True, True]
    assert not mean_shift.table_serves(h, 200).numpy().any()


@every_start_and_kernel
def test_the_order_of_clients_does_not_matter(start, kind, bandwidth):
    values, weights = random_values(11, dtype=np.float32), np.arange(1.0, 12)
    for w in (None, weights):
        mode = kernel_mode(values, start, kind, bandwidth, weights=w)
        turned = kernel_mode(values[::-1], start, kind, bandwidth, weights=None if w is None else w[::-1])
        np.testing.assert_array_equal(mode, turned)


@every_start_and_kernel
def test_shifts_and_scales_with_the_clients(start, kind, bandwidth):
    """Up to 1e-6, below which a move ends the shifting, and its last steps."""
    values = random_values(10)
    mode = kernel_mode(values, start, kind, bandwidth)
    for factor, shift in ((1.0, 3.0), (-1.0, 0.0), (5.0, -2.0)):
        moved = kernel_mode(factor * values + shift, start, kind, bandwidth)
        np.testing.assert_allclose(moved, factor * mode + shift, atol=2e-4)


@pytest.mark.parametrize(("start", "kind"), [("mean", "epanechnikov"), ("clients", "gaussian")])
def test_weights_that_lie_close_keep_their_digits(start, kind):
    """Around 0.5 with sd 1e-4, in float32: as the loops on the same values, to one unit in the last place of 0.5."""
    values = (0.5 + 1e-4 * np.random.default_rng(0).normal(size=(30, 20))).astype(np.float32)
    wanted = reference.kernel_mode(values, start, kind, "silverman")
    np.testing.assert_allclose(kernel_mode(values, start, kind), wanted, rtol=0, atol=6e-8)


@pytest.mark.deep(after="tests/algorithms/kernel/test_kernel.py")
@every_start
@every_kernel
def test_integer_weights_are_repeated_clients(start, kind):
    values, weights = random_values(6, size=1), np.array([1, 3, 2, 1, 5, 2])
    repeated = np.repeat(values, weights, 0)
    scale = reference.silverman(values[:, 0]) / reference.silverman(repeated[:, 0])
    weighted = kernel_mode(values, start, kind, weights=weights)
    np.testing.assert_allclose(weighted, kernel_mode(repeated, start, kind, scale=scale), rtol=1e-9)
    np.testing.assert_array_equal(weighted, kernel_mode(values, start, kind, weights=weights / 7))


@every_start_and_kernel
def test_blocks_do_not_matter(monkeypatch, start, kind, bandwidth):
    values = random_values(60, size=7, dtype=np.float32)
    wanted = kernel_modes(values, start, kind, bandwidth)
    for module, block in ((kernel, 120), (mean_shift, 2**15), (bandwidths, 2048)):
        monkeypatch.setattr(module, "BLOCK", block)
    kernel._traced.cache_clear()
    assert_same(kernel_modes(values, start, kind, bandwidth), wanted, rtol=1e-7, atol=1e-6)
    kernel._traced.cache_clear()


@pytest.mark.deep(after="tests/algorithms/kernel/test_kernel.py")
@every_combination
def test_in_a_graph_nothing_need_be_known(start, kind, bandwidth):
    @tf.function(input_signature=[tf.TensorSpec([None, None])])
    def run(values):
        return kernel_modes(values, start, kind, bandwidth)

    for num_clients in (12, 3):
        values = random_values(num_clients, dtype=np.float32)
        modes = run(values)
        if num_clients >= 5:
            np.testing.assert_allclose(modes.mode, kernel_mode(values, start, kind, bandwidth), atol=1e-7)
        elif bandwidth == "adaptive":
            assert modes.num_fallbacks == 5
            np.testing.assert_allclose(modes.mode, kernel_mode(values, start, kind, "scott"), atol=1e-6)
        assert np.isfinite(modes.mode).all()


@pytest.mark.deep(after="tests/algorithms/kernel/test_kernel.py")
def test_a_graph_can_be_saved(tmp_path):
    """As a round's computation is sent to a worker: nothing in it is Python."""
    module = tf.Module()
    spec = tf.TensorSpec([None, 4])
    combinations = [options for options in FAST if options[2] in ("plug_in", "cross_validated", "adaptive")]
    for i, options in enumerate(combinations):
        run = lambda values, options=options: kernel_mode(values, *options)
        setattr(module, f"run_{i}", tf.function(run, [spec]))
    tf.saved_model.save(module, str(tmp_path))
    values = random_values(8, size=4, dtype=np.float32)
    loaded = tf.saved_model.load(str(tmp_path))
    for i, options in enumerate(combinations):
        np.testing.assert_allclose(getattr(loaded, f"run_{i}")(values), kernel_mode(values, *options), atol=1e-6)


def stack_of_models(num_clients=7):
    rng = np.random.default_rng(0)
    draw = lambda *shape: tf.constant(rng.normal(size=(num_clients, *shape)), tf.float32)
    variance = lambda *shape: tf.constant(rng.uniform(0.5, 1, (num_clients, *shape)), tf.float32)
    pair = lambda *shape: MeanField((draw(*shape),), (variance(*shape),))
    return ModelWeights(pair(3, 2), (draw(2, 2), draw(3)), pair(4))


@pytest.mark.parametrize(("start", "weighting"), [("mean", None), ("clients", "kernels"), ("mean", "bandwidths")])
def test_the_rule_for_whole_models(start, weighting):
    stacked, sizes = stack_of_models(), np.array([3.0, 1, 4, 1, 5, 9, 2], np.float32)
    anchor = tf.nest.map_structure(lambda x: x[0], stacked)
    rule = rules.gathered(kernel_posterior(start, weighting=weighting))
    total = type(rule.summarise(anchor, anchor, tf.ones([])))(stacked, tf.constant(sizes))
    pooled, metrics = rule.pool(total, anchor)
    tf.nest.assert_same_structure(pooled, anchor)
    options = {} if weighting is None else {"weights": sizes, "weighting": weighting}
    flat = lambda x: tf.reshape(x, [7, -1])
    pairs = zip((*pooled.posterior.mean, *pooled.point), (*stacked.posterior.mean, *stacked.point))
    for actual, leaf in pairs:
        wanted = kernel_mode(flat(leaf), start, **options)
        np.testing.assert_array_equal(actual, tf.reshape(wanted, leaf.shape[1:]))
    own = None if weighting is None else sizes
    np.testing.assert_allclose(pooled.posterior.variance[0], np.average(stacked.posterior.variance[0], 0, own), 1e-6)
    mean = np.average(stacked.moments.mean[0], 0, sizes)
    second = np.average(stacked.moments.variance[0] + stacked.moments.mean[0] ** 2, 0, sizes)
    np.testing.assert_allclose(pooled.moments.mean[0], mean, atol=1e-6)
    np.testing.assert_allclose(pooled.moments.variance[0], second - mean**2, rtol=1e-5)
    whole = tf.concat([flat(x) for x in (*stacked.posterior.mean, *stacked.point)], 1)
    modes = kernel_modes(whole, start, **options)
    assert {k: int(v) for k, v in metrics.items()} == {n: int(getattr(modes, n)) for n in modes._fields[1:]}


def test_the_rule_is_an_op_too():
    stacked = MeanField({"a": random_values(6)}, {"a": np.full([6, 5], 0.04)})
    pooled = rules.aggregate(kernel_posterior("clients", "gaussian"), stacked)
    np.testing.assert_array_equal(pooled.mean["a"], kernel_mode(stacked.mean["a"], "clients", "gaussian"))
    np.testing.assert_allclose(pooled.variance["a"], np.full(5, 0.04))


@pytest.mark.parametrize(
    ("values", "options", "message"),
    [
        (np.zeros([3, 2]), {"start": "median"}, "There is no start 'median'"),
        (np.zeros([3, 2]), {"kernel": "gausian"}, "did you mean 'gaussian'"),
        (np.zeros([3, 2]), {"bandwidth": "silvermann"}, "did you mean 'silverman'"),
        (np.zeros([3, 2]), {"weighting": "none"}, "There is no weighting by data size"),
        (np.zeros([3, 2]), {"scale": 0.0}, "scale is 0.0, but must be a finite number above 0"),
        (np.zeros([3, 2]), {"max_iterations": 0}, "max_iterations is 0, but must be an integer of at least 1"),
        (np.zeros([4, 2]), {"bandwidth": "adaptive"}, "needs at least 5 clients, but there are 4"),
        (np.zeros([3]), {}, "values must be \\[S, D\\]"),
        (np.zeros([0, 2]), {}, "at least one client"),
        (np.zeros([3, 0]), {}, "one weight"),
        (np.zeros([3, 2], np.int32), {}, "floating-point numbers, but are int32"),
        ([[1.0, 2.0], [3.0]], {}, "numbers of shape \\[S, D\\]"),
        (np.array([[0.0], [NAN], [INF]]), {}, "not so for the clients at \\[1, 2\\]"),
        (np.zeros([3, 2]), {"weights": [1.0, 2.0]}, "weights must be \\[3\\]"),
        (np.zeros([3, 2]), {"weights": [1.0, 0.0, 2.0]}, "finite and above zero"),
    ],
)
def test_what_can_not_be_used_is_refused(values, options, message):
    refuses(message, kernel_mode, values, **options)


def test_the_rule_refuses_the_same():
    for options in ({"start": "x"}, {"scale": 0}, {"max_iterations": 0}, {"weighting": "x"}):
        refuses(next(iter(options)), kernel_posterior, **options)


def test_with_a_bandwidth_for_each_client_the_point_is_a_mode():
    """Of sum_i exp(-u_i^2 / 2): its derivative vanishes there, as it does not where the factor 1 / h_i^2 is missing."""
    values, sizes = np.array([0.0, 0.1, 0.4]), np.array([1.0, 3.0, 2.0])
    options = {"kernel": "gaussian", "bandwidth": "scott", "max_iterations": 500}
    (x,) = kernel_mode(values[:, None], weights=sizes, weighting="bandwidths", **options).numpy()
    h = reference.bandwidth_of("scott", values, "gaussian")(0.0) * (1 / sizes) / np.mean(1 / sizes)
    u = (x - values) / h
    assert abs(np.sum(np.exp(-(u**2) / 2) * u / h)) < 1e-3
    without = np.sum(np.exp(-(u**2) / 2) * (values - x)) / np.sum(np.exp(-(u**2) / 2))
    assert abs(without) > 1e-3
