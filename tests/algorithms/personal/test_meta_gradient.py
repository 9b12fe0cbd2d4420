"""Gradients through adaptation, on quadratics whose every derivative is known."""

import numpy as np
import pytest
import tensorflow as tf

from tfp_bfl.algorithms.personal.work import LEARNERS, meta_gradient

CURVATURES = [np.diag([1.0, 2.0]), np.array([[2.0, 0.5], [0.5, 1.0]]), np.array([[1.0, 0.2], [0.2, 3.0]])]
CENTRES = [np.array([1.0, 0.0]), np.array([0.0, 1.0]), np.array([-3.0, 2.0])]
START = np.array([0.5, -0.5])
RATE = 0.1


def quadratic(curvature, centre):
    def loss(weights):
        shift = weights[0] - centre
        return 0.5 * tf.tensordot(shift, tf.linalg.matvec(tf.constant(curvature), shift), 1)

    return loss


LOSSES = [quadratic(*pair) for pair in zip(CURVATURES, CENTRES)]


def gradient_of(learner, **options):
    return meta_gradient(learner, LOSSES, [tf.constant(START)], RATE, **options)


@pytest.mark.parametrize(
    ("learner", "expected"),
    [
        ("plain", [0.25, -1.25]),
        ("first_order_maml", [0.4, -1.125]),
        ("maml", [0.36, -0.9]),
        ("hessian_free_maml", [0.3825, -0.7955]),
    ],
)
def test_gradients_by_hand(learner, expected):
    loss, (found,) = gradient_of(learner)
    np.testing.assert_allclose(found, expected, rtol=1e-7)
    adapted = START if learner == "plain" else np.array([0.55, -0.4])
    shift = adapted - CENTRES[1]
    np.testing.assert_allclose(loss, shift @ CURVATURES[1] @ shift / 2, rtol=1e-12)


@pytest.mark.parametrize("difference", [1e-5, 1e-2, 10.0])
def test_differences_are_exact_of_a_quadratic(difference):
    np.testing.assert_allclose(
        gradient_of("hessian_free_maml", difference=difference)[1][0], [0.3825, -0.7955], rtol=1e-6
    )


@pytest.mark.parametrize("learner", ["maml", "plain"])
def test_maml_is_the_gradient_of_the_adapted_loss_by_finite_differences(learner):
    """Through the clip of the adaptation too, which is active here, as far as the outer one is not."""
    clip = 0.5

    def adapted_loss(w):
        step = CURVATURES[0] @ (w - CENTRES[0])
        after = w if learner == "plain" else w - RATE * step * min(1.0, clip / np.linalg.norm(step))
        return (after - CENTRES[1]) @ CURVATURES[1] @ (after - CENTRES[1]) / 2

    expected = np.array([(adapted_loss(START + h) - adapted_loss(START - h)) / 2e-6 for h in 1e-6 * np.eye(2)])
    (found,) = gradient_of(learner, clip_norm=clip)[1]
    np.testing.assert_allclose(found, expected * min(1.0, clip / np.linalg.norm(expected)), rtol=1e-6)


def test_only_the_first_of_the_weights_is_adapted_and_all_have_a_gradient():
    """w' = w - a s w,   L = s w'^2: d L / d s = w'^2 - 2 s w' a w."""
    w, s = tf.constant(2.0, tf.float64), tf.constant(3.0, tf.float64)
    inner, outer = (lambda x: x[1] * x[0] ** 2 / 2), (lambda x: x[1] * x[0] ** 2)
    _, (in_w, in_s) = meta_gradient("maml", [inner, outer, outer], [w, s], RATE)
    np.testing.assert_allclose([in_w, in_s], [2 * 3 * 1.4 * 0.7, 1.4**2 - 2 * 3 * 1.4 * RATE * 2], rtol=1e-12)
    _, (in_w, in_s) = meta_gradient("first_order_maml", [inner, outer, outer], [w, s], RATE)
    np.testing.assert_allclose([in_w, in_s], [2 * 3 * 1.4, 1.4**2], rtol=1e-12)


@pytest.mark.parametrize("learner", LEARNERS)
def test_a_penalty_counts_in_the_gradient_and_not_in_the_loss(learner):
    penalty = lambda weights: tf.reduce_sum(weights[0])
    loss, (found,) = gradient_of(learner, penalty=penalty)
    without_loss, (without,) = gradient_of(learner)
    np.testing.assert_allclose(loss, without_loss)
    shift = {"maml": np.diag(np.eye(2) - RATE * CURVATURES[0])}.get(learner, 1.0)
    if learner != "hessian_free_maml":  # whose differences are taken along the gradient with the penalty
        np.testing.assert_allclose(found - without, shift * np.ones(2), rtol=1e-9)
    else:
        np.testing.assert_allclose(found - without, np.ones(2) - RATE * CURVATURES[2].sum(1), rtol=1e-6)


@pytest.mark.parametrize("learner", ["plain", "maml", "first_order_maml"])
def test_gradients_are_no_longer_than_the_clip_and_of_length_zero_where_there_is_none(learner):
    assert np.linalg.norm(gradient_of(learner, clip_norm=1e-3)[1][0]) == pytest.approx(1e-3)
    flat = lambda weights: 0.0 * tf.reduce_sum(weights[0])
    (found,) = meta_gradient(learner, [flat] * 3, [tf.constant(START)], RATE, clip_norm=1.0)[1]
    np.testing.assert_array_equal(found, [0.0, 0.0])
