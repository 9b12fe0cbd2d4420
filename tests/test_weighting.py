import numpy as np
import pytest
import tensorflow as tf

from tfp_bfl import weighting
from tfp_bfl.posterior import MeanField

SIZES = [(3, 2), (5,)]


def draw(num_clients, seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    shape = lambda s: s if num_clients is None else (num_clients, *s)
    return MeanField(
        tuple(rng.normal(size=shape(s)).astype(dtype) for s in SIZES),
        tuple(rng.uniform(0.1, 2, shape(s)).astype(dtype) for s in SIZES),
    )


def client(stacked, k):
    return tf.nest.map_structure(lambda x: x[k], stacked)


def distances(stacked, anchor, num_clients):
    """Weights by distance to the anchor, normalised."""
    each = [float(weighting.distance(client(stacked, k), anchor, None)) for k in range(num_clients)]
    return np.array(each) / sum(each)


def kl(q, p):
    """KL[q || p] in nats over all weights, in float64 numpy."""
    total = 0.0
    for m, v, n, u in zip(q.mean, q.variance, p.mean, p.variance):
        m, v, n, u = (np.asarray(x, np.float64) for x in (m, v, n, u))
        total += (0.5 * np.log(u / v) + (v + (m - n) ** 2) / (2 * u) - 0.5).sum()
    return total


@pytest.mark.parametrize("num_clients", [1, 2, 7])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_weights_by_distance(num_clients, dtype):
    stacked, anchor = draw(num_clients, 0, dtype), draw(None, 1, dtype)
    gamma = np.array([1 / kl(anchor, client(stacked, k)) for k in range(num_clients)])
    np.testing.assert_allclose(distances(stacked, anchor, num_clients), gamma / gamma.sum(), rtol=1e-6)


@pytest.mark.parametrize(("weigh", "neighbour"), [("max_discrepancy", min), ("max_discrepancy_farthest", max)])
@pytest.mark.parametrize("num_clients", [2, 3, 7])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_max_discrepancy_weights(num_clients, dtype, weigh, neighbour):
    stacked = draw(num_clients, 0, dtype)
    every = [client(stacked, k) for k in range(num_clients)]
    gamma = np.array([1 / neighbour(kl(q, p) for p in every if p is not q) for q in every])
    weights = getattr(weighting, f"{weigh}_weights")(stacked)
    np.testing.assert_allclose(weights, gamma / gamma.sum(), rtol=1e-10)
    np.testing.assert_allclose(tf.reduce_sum(weights), 1, rtol=1e-12)


def test_max_discrepancy_of_three_by_hand():
    # Unit variances, means 0, 1, 3: KL is half the squared distance; nearest neighbours lie 1, 1 and 2 away:
    # gamma = 2, 2, 1/2, whose sum is 9/2.
    stacked = MeanField(np.array([[0.0], [1.0], [3.0]]), np.ones((3, 1)))
    np.testing.assert_allclose(weighting.max_discrepancy_weights(stacked), [4 / 9, 4 / 9, 1 / 9], rtol=1e-12)
    # From an anchor at -1 they lie 1, 2 and 4 away: gamma = 2, 1/2, 1/8, whose sum is 21/8.
    anchor = MeanField(np.array([-1.0]), np.ones(1))
    np.testing.assert_allclose(distances(stacked, anchor, 3), [16 / 21, 4 / 21, 1 / 21], rtol=1e-6)


def test_distance_is_from_the_anchor_to_the_client():
    """KL[anchor || client], not the other way round: N(0, 1) against N(0, 4) is log 2 - 3/8, against N(1, 1) 1/2."""
    stacked = MeanField(np.array([[0.0], [1.0]]), np.array([[4.0], [1.0]]))
    anchor = MeanField(np.zeros(1), np.ones(1))
    gamma = np.array([1 / (np.log(2) - 3 / 8), 2])
    np.testing.assert_allclose(distances(stacked, anchor, 2), gamma / gamma.sum(), rtol=1e-6)


@pytest.mark.parametrize("num_clients", [1, 2, 5])
def test_identical_clients_count_alike(num_clients):
    one = draw(None)
    same = MeanField(*(tuple(np.repeat(x[None], num_clients, 0) for x in part) for part in one))
    for anchor in (one, draw(None, 1)):
        np.testing.assert_allclose(distances(same, anchor, num_clients), np.full(num_clients, 1 / num_clients))
    weights = weighting.max_discrepancy_weights(same)
    np.testing.assert_allclose(weights, np.full(num_clients, 1 / num_clients), rtol=1e-12)


def test_equal_and_size_need_no_posterior():
    assert weighting.WEIGHTINGS.keys() == {"equal", "train_size", "distance"}
    found = [
        [float(weigh(None, None, tf.constant(n))) for n in (10, 20)]
        for weigh in (weighting.equal, weighting.train_size)
    ]
    assert found == [[1, 1], [10, 20]]


@pytest.mark.parametrize("name", weighting.WEIGHTINGS)
def test_loop_functions_give_positive_finite_float32_scalars(name):
    anchor = draw(None, 0, np.float32)
    for local in (anchor, draw(None, 1, np.float32)):
        weight = tf.function(weighting.WEIGHTINGS[name])(local, anchor, tf.constant(7))
        assert weight.dtype == tf.float32 and weight.shape == ()
        assert 0 < float(weight) < np.inf


def test_an_outlier_counts_little_by_the_farthest_and_twins_much_by_the_nearest():
    # Unit variances, means 0, 1, 3: from the farthest 3, 2 and 3 away: gamma = 2/9, 1/2, 2/9, whose sum is 17/18.
    stacked = MeanField(np.array([[0.0], [1.0], [3.0]]), np.ones((3, 1)))
    weights = weighting.max_discrepancy_weights(stacked, nearest=False)
    np.testing.assert_allclose(weights, [4 / 17, 9 / 17, 4 / 17], rtol=1e-12)
    twins = MeanField(np.array([[0.0], [0.0], [1.0]]), np.ones((3, 1)))
    np.testing.assert_allclose(weighting.max_discrepancy_weights(twins), [0.5, 0.5, 0.0], atol=1e-11)
    # All are equally far from somebody.
    np.testing.assert_allclose(weighting.max_discrepancy_weights(twins, nearest=False), np.full(3, 1 / 3), rtol=1e-12)


@pytest.mark.parametrize("name", weighting.STACKED_WEIGHTINGS)
def test_stacked_weightings_are_positive_and_serve_any_number_of_clients(name):
    spec = tf.nest.map_structure(lambda x: tf.TensorSpec([None, *x.shape[1:]], x.dtype), draw(2, 0, np.float32))
    weigh = tf.function(weighting.STACKED_WEIGHTINGS[name], input_signature=[spec])
    for num_clients in (1, 2, 6):
        stacked = draw(num_clients, num_clients, np.float32)
        weights = weigh(stacked)
        assert weights.shape == (num_clients,) and np.all(weights.numpy() > 0)
        np.testing.assert_allclose(weights, weighting.STACKED_WEIGHTINGS[name](stacked), rtol=1e-9)
        np.testing.assert_allclose(tf.reduce_sum(weights), 1, rtol=1e-12)
    one = draw(None, 0, np.float32)
    same = MeanField(*(tuple(np.repeat(x[None], 3, 0) for x in part) for part in one))
    np.testing.assert_allclose(weigh(same), np.full(3, 1 / 3), rtol=1e-12)
