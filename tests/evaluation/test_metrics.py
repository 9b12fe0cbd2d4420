import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import sklearn.metrics
import tensorflow as tf

from tfp_bfl.evaluation.metrics import (
    accuracy,
    agreement,
    brier_score,
    macro_precision,
    macro_recall,
    negative_log_likelihood,
    total_variation,
)

P = np.array([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6], [0.2, 0.5, 0.3]])
Y = np.array([0, 1, 1])
SCORES = [accuracy, negative_log_likelihood, brier_score]


def random_case(seed, size=40, classes=5):
    rng = np.random.default_rng(seed)
    return rng.dirichlet([0.5] * classes, size=size) * 0.999 + 0.001 / classes, rng.integers(0, classes, size)


def test_by_hand():
    assert float(accuracy(P, Y)) == pytest.approx(2 / 3)
    assert float(negative_log_likelihood(P, Y)) == pytest.approx(-np.log(0.7 * 0.3 * 0.5) / 3)
    # 0.09 + 0.04 + 0.01, 0.01 + 0.49 + 0.36 and 0.04 + 0.25 + 0.09.
    assert float(brier_score(P, Y)) == pytest.approx((0.14 + 0.86 + 0.38) / 3)
    assert [float(brier_score(np.eye(3), y)) for y in ([0, 1, 2], [1, 2, 0])] == [0.0, 2.0]  # Both bounds.
    assert float(accuracy(np.full((2, 4), 0.25), [0, 3])) == 0.5  # Of equal probabilities the first class.


@pytest.mark.parametrize("seed", range(3))
def test_against_sklearn_and_keras(seed):
    p, y = random_case(seed)
    assert float(accuracy(p, y)) == pytest.approx(sklearn.metrics.accuracy_score(y, p.argmax(-1)))
    nll = float(negative_log_likelihood(p, y))
    assert nll == pytest.approx(sklearn.metrics.log_loss(y, p, labels=range(5)))
    assert nll == pytest.approx(float(tf.reduce_mean(tf.keras.losses.sparse_categorical_crossentropy(y, p))), rel=1e-6)
    two = p[:, :2] / p[:, :2].sum(-1, keepdims=True)
    binary = sklearn.metrics.brier_score_loss(y % 2, two[:, 1])
    assert float(brier_score(two, y % 2)) == pytest.approx(2 * binary)


@pytest.mark.parametrize(("dtype", "cost"), [(np.float32, 87.3365), (np.float64, 708.3964)])
def test_a_label_of_probability_zero_costs_a_finite_amount(dtype, cost):
    assert float(negative_log_likelihood(np.array([[1.0, 0.0]], dtype), [1])) == pytest.approx(cost, rel=1e-6)


@hypothesis.settings(max_examples=20, deadline=None)
@hypothesis.given(st.integers(0, 2**31), st.integers(1, 30), st.integers(2, 6))
def test_bounds(seed, size, classes):
    p, y = random_case(seed, size, classes)
    for score, high in zip(SCORES, (1.0, np.inf, 2.0)):
        assert 0.0 <= float(score(p, y)) <= high


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("classes", [3, 8])
def test_macro_recall_and_precision_against_sklearn(seed, classes):
    """With a class that has no examples, but is predicted, and one that is never predicted."""
    p, y = random_case(seed, classes=classes)
    y[y == 0] = 1
    p[:, 2] = 0
    p /= p.sum(1, keepdims=True)
    options = {"labels": np.unique(y), "average": "macro", "zero_division": 0}
    assert float(macro_recall(p, y)) == pytest.approx(sklearn.metrics.recall_score(y, p.argmax(-1), **options))
    assert float(macro_precision(p, y)) == pytest.approx(sklearn.metrics.precision_score(y, p.argmax(-1), **options))


def test_agreement_and_total_variation():
    p = np.float32([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4], [0.2, 0.5, 0.3]])
    q = np.float32([[0.6, 0.3, 0.1], [0.5, 0.4, 0.1], [0.3, 0.3, 0.4], [0.0, 1.0, 0.0]])
    assert agreement(p, q) == 0.75 and agreement(p, p) == 1
    np.testing.assert_allclose(total_variation(p, q), (0.1 + 0.4 + 0 + 0.5) / 4, rtol=1e-6)
    assert total_variation(p, p) == 0
    assert total_variation(np.float32([[1, 0]]), np.float32([[0, 1]])) == 1
