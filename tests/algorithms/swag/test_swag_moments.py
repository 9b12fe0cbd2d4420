import numpy as np
import pytest
import tensorflow as tf

from tests.kit import assert_same, refuses
from tfp_bfl import posterior
from tfp_bfl.algorithms.swag import swag_moments
from tfp_bfl.posterior import LowRank, MeanField


def iterates(number, num_weights=7, mean=0.0, stddev=1.0, seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    return (mean + stddev * np.cumsum(rng.normal(size=(number, num_weights)), 0) / 3).astype(dtype)


def by_the_book(thetas, max_columns):
    """Train-SWAG in numpy, float64, with its mean of squares: mean, Sigma_diag, columns."""
    thetas = np.float64(thetas)
    mean, mean_sq, columns = thetas[0], thetas[0] ** 2, []
    for n, theta in enumerate(thetas[1:], start=1):
        mean = (n * mean + theta) / (n + 1)
        mean_sq = (n * mean_sq + theta**2) / (n + 1)
        columns = [*columns, theta - mean][-max_columns:]
    return mean, mean_sq - mean**2, np.array(columns)


def collected(thetas, max_columns):
    state = swag_moments.start(tf.constant(thetas[0]), max_columns)
    for theta in thetas[1:]:
        state = swag_moments.collect(state, tf.constant(theta))
    return state


@pytest.mark.parametrize("number", [2, 3, 5, 6, 7, 23])
def test_moments_are_those_of_the_book(number):
    """Five columns at most: fewer, just as many, and several times around the ring."""
    thetas = iterates(number + 1)
    mean, variance, columns = by_the_book(thetas, 5)
    q = swag_moments.posterior_of(collected(thetas, 5), 1e-6)
    assert isinstance(q, LowRank) and q.deviations.shape == (5, 7)
    np.testing.assert_allclose(q.mean, mean, rtol=1e-13)
    np.testing.assert_allclose(q.diagonal, variance / 2, rtol=1e-12)
    low_rank = columns.T @ columns / (2 * (len(columns) - 1))
    np.testing.assert_allclose(posterior.covariance(q), np.diag(variance / 2) + low_rank, rtol=1e-12, atol=1e-13)


def test_moments_by_hand():
    """theta = 0, 2, 4: means 1 and 2, columns 1 and 2, variance 8 / 3."""
    q = swag_moments.posterior_of(collected(np.array([[0.0], [2.0], [4.0]]), 2))
    np.testing.assert_allclose(q.mean, [2])
    np.testing.assert_allclose(q.diagonal, [4 / 3])
    np.testing.assert_allclose(np.abs(q.deviations), np.array([[1], [2]]) / np.sqrt(2))


def test_float32_keeps_its_digits_where_the_variance_is_far_below_the_mean():
    """A mean of 0.5 and a standard deviation of 1e-4: the difference of float32 squares has none left."""
    rng = np.random.default_rng(0)
    thetas = np.float32(0.5 + 1e-4 * rng.normal(size=(400, 50)))
    mean, variance, columns = by_the_book(thetas, 10)
    squares = np.mean(thetas**2, 0, dtype=np.float32) - np.mean(thetas, 0, dtype=np.float32) ** 2
    assert np.abs(squares / variance - 1).max() > 0.5
    state = collected(thetas, 10)
    q = swag_moments.posterior_of(state, 1e-12)
    assert {x.dtype for x in q} == {tf.float32}
    np.testing.assert_allclose(q.diagonal, variance / 2, rtol=1e-5)
    np.testing.assert_allclose(q.mean, mean, rtol=1e-7)
    # The newest of 399 columns is in row 8, the oldest of the ten in row 9.
    np.testing.assert_allclose(state.columns, np.roll(columns, -1, axis=0), rtol=1e-4, atol=1e-9)


def test_small_variances_are_raised_before_they_are_halved():
    thetas = np.array([[0.0, 0.0], [0.0, 1.0], [0.0, 2.0]])
    q = swag_moments.posterior_of(collected(thetas, 2), min_variance=0.1)
    np.testing.assert_allclose(q.diagonal, [0.05, 1 / 3])
    np.testing.assert_allclose(swag_moments.posterior_of(collected(thetas, 2)).diagonal[0], 5e-7)


def test_the_mean_field_has_the_whole_variance():
    thetas = iterates(9)
    mean, variance, _ = by_the_book(thetas, 4)
    q = swag_moments.mean_field_of(collected(thetas, 4))
    assert isinstance(q, MeanField)
    np.testing.assert_allclose(q.mean, mean, rtol=1e-13)
    np.testing.assert_allclose(q.variance, variance, rtol=1e-12)


def test_structures_and_variables():
    thetas = iterates(8, 6)
    pack = lambda x: [{"kernel": x[..., :4].reshape(*x.shape[:-1], 2, 2)}, (x[..., 4], x[..., 5:])]
    variables = tf.nest.map_structure(tf.Variable, pack(thetas[0]))
    state = swag_moments.start(variables, 3)
    for theta in thetas[1:]:
        tf.nest.map_structure(lambda v, x: v.assign(x), variables, pack(theta))
        state = swag_moments.collect(state, variables)
    q, flat = swag_moments.posterior_of(state), swag_moments.posterior_of(collected(thetas, 3))
    tf.nest.assert_same_structure(q.mean, pack(thetas[0]))
    for have, want in zip(q, flat):
        tf.nest.map_structure(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-13), have, pack(want.numpy()))


def test_inside_a_while_loop():
    thetas = tf.constant(iterates(12, dtype=np.float32))

    @tf.function
    def run(thetas):
        keep_on = lambda i, state: i < tf.shape(thetas)[0]
        step = lambda i, state: (i + 1, swag_moments.collect(state, thetas[i]))
        first = (tf.constant(1), swag_moments.start(thetas[0], 4))
        _, state = tf.while_loop(keep_on, step, first)
        return state, swag_moments.posterior_of(state)

    state, q = run(thetas)
    assert int(state.num_collected) == 11
    wanted = collected(thetas.numpy(), 4)
    assert_same((*state, *q), (*wanted, *swag_moments.posterior_of(wanted)), rtol=1e-5, atol=1e-6)
    with pytest.raises(tf.errors.InvalidArgumentError, match="too few iterates, but a covariance needs at least two"):
        run(thetas[:2])


def test_nothing_given_changes():
    state = collected(iterates(4), 3)
    kept = tf.nest.map_structure(lambda x: x.numpy().copy(), state)
    swag_moments.collect(state, tf.ones(7, tf.float64))
    tf.nest.map_structure(np.testing.assert_array_equal, state, kept)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: swag_moments.posterior_of(collected(iterates(1), 3)), "collected 0 iterates, but a covariance needs"),
        (lambda: swag_moments.posterior_of(collected(iterates(2), 3)), "collected 1 iterates, but a covariance needs"),
        (lambda: swag_moments.mean_field_of(collected(iterates(1), 3)), "collected 0 iterates, but a variance needs"),
        *((lambda n=n: swag_moments.start(tf.zeros(2), n), "max_columns is .* at least 2") for n in (0, 1, 2.5, None)),
        *(
            (lambda v=v: swag_moments.posterior_of(collected(iterates(4), 3), v), "min_variance is .* above 0")
            for v in (0, -1e-6, float("nan"), float("inf"), "1e-6")
        ),
        *(
            (lambda w=w: swag_moments.collect(swag_moments.start(tf.zeros(2), 2), w), "collect needs weights")
            for w in (tf.zeros(3), tf.zeros(2, tf.float64), tf.zeros([]), (tf.zeros(2),))
        ),
    ],
)
def test_bad_input_is_refused(call, message):
    refuses(message, call)
