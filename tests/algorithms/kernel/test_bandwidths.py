"""Bandwidths against other libraries, where these have them, and against plain loops."""

import numpy as np
import pytest
import tensorflow as tf
from KDEpy.bw_selection import improved_sheather_jones as kdepy
from scipy import stats

from tfp_bfl.algorithms.kernel import bandwidths

from . import kernel_reference as reference

deep = pytest.mark.deep(after="tests/algorithms/kernel/test_bandwidths.py")
every_kernel = pytest.mark.parametrize("gaussian", [False, True], ids=["epanechnikov", "gaussian"])


def samples(num_clients, size=6, seed=0):
    """[size, num_clients]: normal, and every other one of two groups."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(size, num_clients))
    values[::2] += np.where(rng.random((len(values[::2]), num_clients)) < 0.4, 6.0, 0.0)
    return np.sort(values, -1)


def selected(name, values, gaussian=True):
    h, fallback = bandwidths.BANDWIDTHS[name](tf.constant(values, tf.float64), gaussian)
    return h.numpy(), fallback.numpy()


def test_silverman_by_hand():
    """0, 1, 2, 3, 10: sd sqrt(62.8 / 4), quartiles 1 and 3, 5^(-1/5) = 0.72478."""
    values = np.array([[0.0, 1, 2, 3, 10]])
    np.testing.assert_allclose(selected("silverman", values)[0], 0.9 * 2 / 1.34 * 0.724780, rtol=1e-6)
    np.testing.assert_allclose(selected("silverman_wide", values)[0], 1.06 * 2 * 0.724780, rtol=1e-6)
    np.testing.assert_allclose(selected("scott", values)[0], np.sqrt(62.8 / 4) * 0.724780, rtol=1e-6)


@pytest.mark.parametrize("num_clients", [2, 3, 4, 7, 10, 101])
def test_rules_of_thumb_are_the_loops(num_clients):
    values = samples(num_clients)
    for name in ("silverman", "silverman_wide", "scott"):
        h, fallback = selected(name, values)
        np.testing.assert_allclose(h, [getattr(reference, name)(w) for w in values], rtol=1e-12)
        assert not fallback.any()


def test_scott_is_scipys():
    values = samples(40)
    wanted = [np.sqrt(stats.gaussian_kde(w, "scott").covariance[0, 0]) for w in values]
    np.testing.assert_allclose(selected("scott", values)[0], wanted, rtol=1e-12)


@pytest.mark.deep(after="tests/algorithms/kernel/test_bandwidths.py")
@pytest.mark.parametrize("num_clients", [20, 400, *(pytest.param(n, marks=deep) for n in (10, 50, 100))])
def test_plug_in_is_twice_kdepys_of_a_wide_range(num_clients):
    """It multiplies by the range, not by the grid's width, twice that; up to the tables' 2e-4."""
    values = samples(num_clients, seed=num_clients)
    wanted = [2 * kdepy(100 * w[:, np.newaxis]) / 100 for w in values]
    h, fallback = selected("plug_in", values)
    assert not fallback.any()
    np.testing.assert_allclose(h, wanted, rtol=2e-4)


def test_plug_in_is_the_normal_reference_for_many_normal_values():
    """1.06 sd S^(-1/5), within 10 % in the mean of 20."""
    values = np.sort(np.random.default_rng(0).normal(size=(20, 2000)), -1)
    np.testing.assert_allclose(selected("plug_in", values)[0].mean(), 1.06 * 2000**-0.2, rtol=0.1)


def test_plug_in_without_a_root_is_silvermans():
    values = np.array([[0.0, 1.0], [0.0, 0.0]])
    h, found = bandwidths.improved_sheather_jones(tf.constant(values))
    assert not found.numpy().any() and not h.numpy().any()
    h, fallback = selected("plug_in", values)
    assert fallback.all()
    np.testing.assert_array_equal(h, selected("silverman", values)[0])


@every_kernel
@pytest.mark.parametrize("num_clients", [3, 8, 30])
def test_cross_validation_is_the_loops(gaussian, num_clients):
    values = samples(num_clients)
    kernel = reference.kernel_of("gaussian" if gaussian else "epanechnikov")
    wanted = [reference.cross_validated(w, kernel) for w in values]
    np.testing.assert_allclose(selected("cross_validated", values, gaussian)[0], wanted, rtol=1e-12)


def test_cross_validation_falls_back_when_a_client_is_alone():
    """At 10 h = 6 the client at 1e3 has no other; a Gaussian kernel has all of them everywhere."""
    values = np.append(np.linspace(0, 1, 9), 1e3)[np.newaxis]
    own = selected("silverman", values)[0]
    for gaussian in (False, True):
        h, fallback = selected("cross_validated", values, gaussian)
        assert fallback.all() != gaussian
        np.testing.assert_allclose(h, own * (10 if gaussian else 1), rtol=1e-12)


@pytest.mark.parametrize("num_clients", [5, 6, 9, 40])
def test_adaptive_is_the_loops(num_clients):
    values = samples(num_clients)
    points = np.concatenate([values, np.linspace(values.min(1) - 1, values.max(1) + 1, 37).T], 1)
    wanted = [[reference.adaptive(w, x) for x in xs] for w, xs in zip(values, points)]
    actual = bandwidths.adaptive(tf.constant(values))(tf.constant(points))
    np.testing.assert_allclose(actual, wanted, rtol=1e-9)


def test_adaptive_takes_the_smaller_of_two_that_are_equally_far():
    """5 lies between 0 and 10: its five are 0 to 4; a little further up they are 1 to 4 and 10."""
    h = bandwidths.adaptive(tf.constant([[0.0, 1, 2, 3, 4, 10]], tf.float64))
    wanted = [np.std(five, ddof=1) * 5**-0.2 for five in ([0, 1, 2, 3, 4], [1, 2, 3, 4, 10])]
    np.testing.assert_allclose(h(tf.constant([[5.0, 5.01]], tf.float64))[0], wanted, rtol=1e-12)


def test_adaptive_of_ties_is_zero():
    values = tf.constant([[0.1] * 5 + [0.7, 0.9]], tf.float64)
    h = bandwidths.adaptive(values)(tf.constant([[0.0, 0.1, 0.9]], tf.float64)).numpy()
    assert (h[0, :2] == 0).all() and h[0, 2] > 0


def test_adaptive_of_fewer_clients_is_scotts():
    values = samples(3)
    h = bandwidths.adaptive(tf.constant(values))(tf.zeros([len(values), 1], tf.float64))
    np.testing.assert_allclose(h[:, 0], selected("scott", values)[0], rtol=1e-12)


def test_of_two_equally_far_the_smaller_is_among_the_nearest():
    """Of 0, 1, 2, 3, 4 and 25 the first five at 12.5, the last five right of it."""
    values = tf.constant([[0.0, 1.0, 2.0, 3.0, 4.0, 25.0]], tf.float64)
    middle = 0.5 * (0.0 + 25.0)
    found = bandwidths.adaptive(values)(tf.constant([[middle, np.nextafter(middle, 20.0)]], tf.float64))
    near, far = (np.std(x, ddof=1) * 5**-0.2 for x in ([0, 1, 2, 3, 4], [1, 2, 3, 4, 25]))
    np.testing.assert_allclose(found, [[near, far]], rtol=1e-12)
