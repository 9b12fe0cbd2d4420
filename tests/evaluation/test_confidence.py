"""Accuracy above a confidence, against hand-worked numbers and a plain loop."""

import numpy as np
import pytest
import tensorflow as tf

from tfp_bfl.evaluation import confidence_curve


def test_by_hand():
    p = np.array([[0.5, 0.5], [0.7, 0.3], [0.2, 0.8], [0.9, 0.1]])
    curve = confidence_curve(p, [0, 1, 1, 0], num_points=10)
    np.testing.assert_allclose(curve.threshold, np.arange(10) / 10)
    # Right are the first (0.5), the third (0.8) and the last (0.9).
    np.testing.assert_allclose(curve.accuracy, [3 / 4] * 6 + [2 / 3] * 2 + [1, 1])
    np.testing.assert_allclose(curve.kept, [1] * 6 + [3 / 4] * 2 + [1 / 2, 1 / 4])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_against_a_loop(dtype):
    rng = np.random.default_rng(0)
    p, y = rng.dirichlet([0.5] * 4, 200).astype(dtype), rng.integers(0, 4, 200)
    curve = confidence_curve(p, y)
    assert curve.accuracy.dtype == tf.as_dtype(dtype) and len(curve.threshold) == 20
    for threshold, accuracy, kept in zip(*curve):
        sure = p.max(1) >= threshold.numpy()
        assert kept.numpy() == pytest.approx(sure.mean())
        assert accuracy.numpy() == pytest.approx((p.argmax(1) == y)[sure].mean())


def test_a_confidence_at_the_threshold_counts_and_nobody_above_is_nan():
    curve = confidence_curve(np.array([[0.3, 0.3, 0.4]] * 2, np.float32), [2, 0], num_points=10)
    np.testing.assert_array_equal(curve.kept, [1] * 5 + [0] * 5)
    assert np.isnan(curve.accuracy[5:]).all() and not np.isnan(curve.accuracy[:5]).any()


def test_in_a_graph():
    graph = tf.function(confidence_curve, input_signature=[tf.TensorSpec([None, 3]), tf.TensorSpec([None], tf.int32)])
    p, y = np.eye(3, dtype=np.float32), np.arange(3)
    for inside, outside in zip(graph(p, y), confidence_curve(p, y)):
        np.testing.assert_array_equal(inside, outside)
