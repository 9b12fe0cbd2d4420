"""Divergences, samples, stacks and spreads of mean-field posteriors."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from tests.kit import refuses
from tfp_bfl import posterior
from tfp_bfl.posterior import MeanField, mean_field, mixtures


def draw(shape, seed, dtype=np.float64):
    rng = np.random.default_rng(seed)
    return MeanField(rng.normal(size=shape).astype(dtype), rng.uniform(0.2, 3, shape).astype(dtype) ** 2)


def tfp_kl(q, p, axis=None):
    """In float64, from standard deviations, by TensorFlow Probability."""
    normal = lambda x: tfp.distributions.Normal(
        np.asarray(x.mean, np.float64), np.sqrt(np.asarray(x.variance, np.float64))
    )
    return tf.reduce_sum(tfp.distributions.kl_divergence(normal(q), normal(p)), axis).numpy()


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 1e-6)])
@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 4, 5)])
def test_kl_is_that_of_tfp(dtype, tolerance, shape):
    q, p = draw(shape, 0, dtype), draw(shape, 1, dtype)
    kl = posterior.kl_divergence(q, p)
    assert kl.shape == () and kl.dtype == tf.as_dtype(dtype)
    np.testing.assert_allclose(kl, tfp_kl(q, p), rtol=tolerance)


def test_kl_by_hand():
    # log(2 / 1) + (1 + 9) / 8 - 1 / 2
    kl = posterior.kl_divergence(MeanField([3.0], [1.0]), MeanField([0.0], [4.0]))
    np.testing.assert_allclose(kl, np.log(2) + 0.75, rtol=1e-6)


def test_elementwise_kl_takes_log_standard_deviations():
    q, p = draw((3, 2), 0), draw((3, 2), 1)
    kl = posterior.gaussian_kl(q.mean, 0.5 * np.log(q.variance), p.mean, 0.5 * np.log(p.variance))
    np.testing.assert_allclose(kl, tfp_kl(q, p, axis=()), rtol=1e-12)


@pytest.mark.parametrize("shape", [(), (1,), (3, 2), (4,)])
def test_kl_of_stacks(shape):
    many, one = draw((4, *shape), 0), draw(shape, 1)
    others = draw((4, *shape), 2)
    row = lambda q, k: MeanField(q.mean[k], q.variance[k])
    left, right = posterior.kl_divergence(many, one), posterior.kl_divergence(one, many)
    np.testing.assert_allclose(left, [tfp_kl(row(many, k), one) for k in range(4)], rtol=1e-12)
    np.testing.assert_allclose(right, [tfp_kl(one, row(many, k)) for k in range(4)], rtol=1e-12)
    assert posterior.kl_divergence(many, others).shape == ()
    np.testing.assert_allclose(posterior.kl_divergence(many, others), tfp_kl(many, others), rtol=1e-12)


@pytest.mark.parametrize("num_posteriors", [None, 4])
def test_kl_of_nested_structures_is_the_sum_over_leaves(num_posteriors):
    lead = () if num_posteriors is None else (num_posteriors,)
    leaves = [(draw((*lead, *shape), i), draw(shape, 9 + i)) for i, shape in enumerate([(2, 3), (), (5,)])]
    nest = lambda a, b, c: {"kernel": a, "rest": (b, [c])}
    q, p = (MeanField(*(nest(*(getattr(pair[i], f) for pair in leaves)) for f in MeanField._fields)) for i in (0, 1))
    wanted = sum(posterior.kl_divergence(a, b) for a, b in leaves)
    np.testing.assert_allclose(posterior.kl_divergence(q, p), wanted, rtol=1e-12)
    assert posterior.kl_divergence(q, p).shape == lead


@pytest.mark.parametrize("empty", [(), {}, []])
def test_kl_of_nothing_is_zero(empty):
    kl = posterior.kl_divergence(MeanField(empty, empty), MeanField(empty, empty))
    assert kl.shape == () and float(kl) == 0


normal = lambda *shape: MeanField(np.zeros(shape), np.ones(shape))
TWO = MeanField((1.0, 1.0), (1.0, 1.0))
STRUCTURES = [((1.0,),) * 2, ([1.0, 1.0],) * 2, ({"a": 1.0},) * 2, ((), ())]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        *(
            (lambda x=x: posterior.kl_divergence(TWO, MeanField(*x)), "q and p of the same structure")
            for x in STRUCTURES
        ),
        *(
            (lambda x=x: posterior.kl_divergence(MeanField(*x), TWO), "q and p of the same structure")
            for x in STRUCTURES
        ),
        *(
            (lambda q=q, p=p: posterior.kl_divergence(normal(*q), normal(*p)), "same shapes")
            for q, p in (([4], [5]), ([4, 1], [1, 4]), ([3, 4], [5]), ([2, 3, 4], [4]))
        ),
        (lambda: posterior.stack([]), "stack needs at least one posterior"),
        (lambda: posterior.stack([normal(3), normal(2)]), "posteriors of one structure and one shape a weight"),
        (lambda: posterior.stack([normal(3), MeanField((np.zeros(3),), (np.ones(3),))]), "posteriors of one structure"),
    ],
)
def test_refused(call, message):
    refuses(message, call)


numbers = st.floats(-10, 10)
log_stddevs = st.floats(-10, 3)


@hypothesis.settings(deadline=None, max_examples=60, derandomize=True)
@hypothesis.given(m=numbers, n=numbers, s=log_stddevs, t=log_stddevs)
def test_kl_is_positive_unless_the_posteriors_are_equal(m, n, s, t):
    with_log = lambda mean, log_stddev: MeanField(tf.constant(mean, tf.float64), tf.exp(tf.constant(2 * log_stddev)))
    double = lambda q: MeanField(*(tf.cast(x, tf.float64) for x in q))
    q, p = double(with_log(m, s)), double(with_log(n, t))
    kl = float(posterior.kl_divergence(q, p))
    assert kl >= -1e-15
    assert float(posterior.kl_divergence(q, q)) == float(posterior.kl_divergence(p, p)) == 0
    if abs(s - t) > 1e-4 or abs(m - n) > 1e-4 * np.exp(t):
        assert kl > 0


def test_kl_keeps_its_digits_between_close_posteriors_in_float32():
    """Shifts of 1e-3 standard deviations: the log and the quotient of the closed form cancel to 5e-7 of a nat."""
    q = MeanField(np.float32([0.0]), np.float32([1.0]))
    p = MeanField(np.float32([1e-3]), np.float32([1.0]))
    np.testing.assert_allclose(posterior.kl_divergence(q, p), 5e-7, rtol=1e-5)
    wider = MeanField(np.float32([0.0]), np.float32([1.002]))
    np.testing.assert_allclose(posterior.kl_divergence(q, wider), tfp_kl(q, wider), rtol=1e-3)


@pytest.mark.statistical
def test_sample_moments():
    """Means within 4.5 standard errors and variances within 4.5 of theirs, 40,000 draws of 6 weights: below 1e-4."""
    q = MeanField({"a": np.array([-3.0, 0.0, 5.0]), "b": (np.array([[1.0], [2.0], [3.0]]),)},
                  {"a": np.array([0.01, 1.0, 9.0]), "b": (np.array([[4.0], [1e-6], [2.0]]),)})  # fmt: skip
    number = 40_000
    wide = tf.nest.map_structure(lambda x: np.broadcast_to(x, (number, *x.shape)), q)
    drawn = posterior.sample(wide, tf.constant([1, 2]))
    tf.nest.assert_same_structure(drawn, q.mean)
    rows = np.concatenate([x.numpy().reshape(number, -1) for x in tf.nest.flatten(drawn)], 1)
    mean, variance = (np.concatenate([x.ravel() for x in tf.nest.flatten(part)]) for part in q)
    assert (np.abs(rows.mean(0) - mean) < 4.5 * np.sqrt(variance / number)).all()
    assert (np.abs(rows.var(0) / variance - 1) < 4.5 * np.sqrt(2 / number)).all()
    correlations = np.corrcoef(rows.T) - np.eye(6)
    assert np.abs(correlations).max() < 5 / np.sqrt(number)


def test_sample_follows_its_seed_and_leaves_differ():
    q = MeanField((tf.zeros(5), tf.zeros(5)), (tf.ones(5), tf.ones(5)))
    first, again, other = (posterior.sample(q, seed) for seed in ([3, 4], tf.constant([3, 4]), [3, 5]))
    np.testing.assert_array_equal(first, again)
    assert np.abs(np.subtract(first, other)).min() > 1e-6
    assert np.abs(first[0] - first[1]).max() > 0.1
    inside = tf.function(lambda seed: posterior.sample(q, seed))(tf.constant([3, 4]))
    np.testing.assert_allclose(inside, first, rtol=1e-6)


def test_sample_of_nothing_and_in_float64():
    assert posterior.sample(MeanField((), ()), [0, 0]) == ()
    assert posterior.sample(draw((3,), 0), [0, 0]).dtype == tf.float64


def test_stack():
    nested = [tf.nest.map_structure(tf.constant, MeanField({"a": m, "b": (m + 1,)}, {"a": v, "b": (v,)}))
              for m, v in (draw((2, 3), s) for s in range(4))]  # fmt: skip
    stacked = posterior.stack(nested)
    tf.nest.assert_same_structure(stacked, nested[0])
    assert isinstance(stacked, MeanField)
    for k, q in enumerate(nested):
        for leaf, whole in zip(tf.nest.flatten(q), tf.nest.flatten(stacked)):
            assert whole.shape == (4, 2, 3)
            np.testing.assert_array_equal(whole[k], leaf)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_floor_variance(dtype):
    q = MeanField((np.array([1.0, 2.0, 3.0], dtype),), (np.array([1e-12, 4e-4, 9.0], dtype),))
    floored = posterior.floor_variance(q, 0.01)
    assert floored.mean is q.mean
    np.testing.assert_allclose(floored.variance[0], [1e-4, 4e-4, 9.0], rtol=1e-6)
    assert floored.variance[0].dtype == tf.as_dtype(dtype)


@pytest.mark.parametrize("size", [1, 2, 37, 101, 1001])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_spread_quantiles(size, dtype):
    stddev = np.random.default_rng(size).lognormal(size=size).astype(dtype)
    variance = stddev**2
    half = size // 2
    q = MeanField((np.zeros(half), np.zeros((size - half, 1))), (variance[:half], variance[half:, None]))
    spread = posterior.spread(q)
    wanted = np.quantile(stddev, [0.05, 0.5, 0.95], method="nearest")
    np.testing.assert_allclose([spread.stddev_q05, spread.stddev_median, spread.stddev_q95], wanted, rtol=1e-6)
    assert float(spread.share_at_floor) == 0
    assert {x.dtype for x in spread} == {tf.as_dtype(dtype)}


def test_share_at_floor_counts_up_to_one_percent_above():
    variance = np.array([1e-4, 1e-6, 1.018e-4, 1.022e-4, 1.0]) * 1.0  # sd 0.01, 0.001, 0.01009, 0.01011, 1
    spread = posterior.spread(MeanField(np.zeros(5), variance), min_stddev=0.01)
    np.testing.assert_allclose(spread.share_at_floor, 3 / 5, rtol=1e-6)


def test_spread_of_nothing_is_nan():
    spread = posterior.spread(MeanField((), ()))
    assert len(spread) == 5 and all(np.isnan(x) for x in spread)


MEANS, VARIANCES, WEIGHTS = [0.0, 3.0], [1.0, 4.0], [1.0, 2.0]


def part(k):
    return MeanField((tf.constant([MEANS[k]]),), (tf.constant([VARIANCES[k]]),))


def assert_by_hand(q):
    np.testing.assert_allclose(q.mean[0], [2.0], rtol=1e-6)
    np.testing.assert_allclose(q.variance[0], [5.0], rtol=1e-6)
    assert q.mean[0].dtype == tf.float32


@pytest.mark.parametrize("centre", [0.0, -7.0])
def test_sums_of_parts(centre):
    anchor = MeanField((tf.constant([centre]),), (tf.constant([1.0]),))
    sums = [mixtures.summarise(part(k), anchor, tf.constant(WEIGHTS[k])) for k in range(2)]
    assert_by_hand(mixtures.moments(tf.nest.map_structure(tf.add, *sums), anchor))


def test_points_that_agree_have_no_variance():
    """The sums are not exact: 143 d / 143 differs from d by rounding, and so do the squares."""
    generator = np.random.default_rng(0)
    anchor = MeanField((tf.constant(generator.normal(size=1000), tf.float32),), (tf.zeros(1000),))
    mean = anchor.mean[0] + tf.constant(0.01 * generator.normal(size=1000), tf.float32)
    for sizes in ((143.0,), (143.0, 150.0, 144.0)):
        sums = [mixtures.summarise(MeanField((mean,), (tf.zeros(1000),)), anchor, tf.constant(n)) for n in sizes]
        variance = mixtures.moments(tf.nest.map_structure(lambda *x: tf.add_n(x), *sums), anchor).variance[0]
        assert np.all(variance >= 0) and np.max(variance) < 1e-12


@pytest.mark.parametrize("scale", [1.0, 10.0])
def test_a_stack(scale):
    stacked = tf.nest.map_structure(lambda *x: tf.stack(x), part(0), part(1))
    assert_by_hand(mixtures.mixture(stacked, [scale * w for w in WEIGHTS]))


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_numbers_at_ranks_are_those_of_the_sorted_ones(size):
    """Ties, zeros, the smallest and the largest numbers among them, to the bit."""
    rng = np.random.default_rng(size)
    numbers = np.exp(rng.normal(0, 20, size)).astype(np.float32)
    numbers[rng.random(size) < 0.3] = rng.choice(np.float32([0, 1e-45, 0.5, 0.5, np.inf]))
    ranks = np.unique(np.int32([0, size // 3, size // 2, size - 1]))
    for dtype in (np.float32, np.float64):
        found = tf.function(mean_field._at_ranks, jit_compile=True)(tf.constant(numbers, dtype), tf.constant(ranks))
        np.testing.assert_array_equal(found, np.sort(numbers.astype(dtype))[ranks])
