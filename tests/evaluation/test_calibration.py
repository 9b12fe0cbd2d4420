import itertools

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import sklearn.calibration
import tensorflow as tf
import tensorflow_probability as tfp
from scipy import integrate, stats

from tfp_bfl import evaluation
from tfp_bfl.evaluation.classification import expected_calibration_error, maximum_calibration_error, reliability


def binary(confidences):
    c = np.asarray(confidences, np.float64)
    return np.stack([c, 1 - c], axis=-1)


def random_case(seed, size=500, classes=4):
    rng = np.random.default_rng(seed)
    p = rng.dirichlet([0.7] * classes, size=size)
    return p, np.array([rng.choice(classes, p=q) for q in p])


def test_by_hand():
    # Bin (0.8, 0.9]: confidence 0.85, one of two right. Bin (0.5, 0.6]: confidence 0.6, right.
    p, y = binary([0.82, 0.88, 0.6]), [0, 1, 0]
    assert float(expected_calibration_error(p, y, 10)) == pytest.approx(2 / 3 * 0.35 + 1 / 3 * 0.4)
    assert float(maximum_calibration_error(p, y, 10)) == pytest.approx(0.4)
    bins = reliability(p, y, 10)
    np.testing.assert_array_equal(bins.count, [0, 0, 0, 0, 0, 1, 0, 0, 2, 0])
    np.testing.assert_allclose([bins.confidence[8], bins.accuracy[8]], [0.85, 0.5])
    assert np.isnan(bins.accuracy[0])
    np.testing.assert_allclose(bins.edges, np.arange(11) / 10)
    assert float(expected_calibration_error(np.eye(3), [0, 1, 2])) == 0.0
    assert float(maximum_calibration_error(np.eye(3), [1, 2, 0])) == 1.0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_edges_belong_to_the_lower_bin(dtype):
    p = binary([0.5, 0.6, 0.7, 0.8, 0.9, 1.0]).astype(dtype)
    count = reliability(p, np.zeros(6, np.int32), 10).count
    np.testing.assert_array_equal(count, [0, 0, 0, 0, 1, 1, 1, 1, 1, 1])
    just_above = np.nextafter(dtype(0.7), dtype(1))
    count = reliability(np.array([[just_above, 1 - just_above]], dtype), [0], 10).count
    assert int(count[7]) == 1


@pytest.mark.parametrize("num_bins", [1, 7, 15])
def test_bins_are_those_of_tensorflow_probability_and_scikit_learn(num_bins):
    """The latter leaves out empty bins, and puts an edge into the bin above: no confidence is on one."""
    p, y = random_case(3)
    logits, labels = np.log(p).astype(np.float32), y.astype(np.int32)
    expected = tfp.stats.expected_calibration_error(num_bins, logits=logits, labels_true=labels)
    assert float(expected_calibration_error(p, y, num_bins)) == pytest.approx(float(expected), abs=1e-5)
    bins = reliability(p, y, num_bins)
    shares, means = sklearn.calibration.calibration_curve(p.argmax(-1) == y, p.max(-1), n_bins=num_bins)
    used = bins.count.numpy() > 0
    np.testing.assert_allclose(bins.accuracy.numpy()[used], shares)
    np.testing.assert_allclose(bins.confidence.numpy()[used], means)


@hypothesis.settings(max_examples=20, deadline=None)
@hypothesis.given(st.integers(0, 2**31), st.integers(1, 40), st.integers(1, 20))
def test_properties(seed, size, num_bins):
    p, y = random_case(seed, size)
    ece = float(expected_calibration_error(p, y, num_bins))
    mce = float(maximum_calibration_error(p, y, num_bins))
    assert 0.0 <= ece <= mce + 1e-12 <= 1.0 + 1e-9
    bins = reliability(p, y, num_bins)
    assert int(tf.reduce_sum(bins.count)) == size
    used = bins.count.numpy() > 0
    middle = bins.confidence.numpy()[used]
    assert np.all(middle >= bins.edges.numpy()[:-1][used] - 1e-12)
    assert np.all(middle <= bins.edges.numpy()[1:][used] + 1e-12)


def test_over_classes_each_probability_counts_against_its_entry():
    p, y = random_case(7)
    bins = reliability(p, y, 12, "classes")
    one_hot = np.eye(4)[y].ravel()
    place = np.minimum(np.ceil(p.ravel() * 12).astype(int) - 1, 11).clip(0)
    for m in range(12):
        np.testing.assert_allclose(bins.confidence[m], p.ravel()[place == m].mean())
        np.testing.assert_allclose(bins.accuracy[m], one_hot[place == m].mean())
    assert bins.count.numpy().tolist() == np.bincount(place, minlength=12).tolist()


RNG = np.random.default_rng(0)
PROBABILITIES = RNG.dirichlet(np.ones(3), 101).astype(np.float32)
LABELS = RNG.integers(0, 3, 101)


def test_the_classwise_error_is_the_mean_over_classes():
    """As of a classifier that says of each example with which probability it is of the class."""
    errors = []
    for c in range(3):
        p = PROBABILITIES[:, c]
        inside = [(low < p) & (p <= high) for low, high in itertools.pairwise(np.linspace(0, 1, 6))]
        errors.append(sum(abs(np.sum((c == LABELS[m]) - p[m])) / 101 for m in inside))
    assert evaluation.classwise_calibration_error(PROBABILITIES, LABELS, 5) == pytest.approx(np.mean(errors), abs=1e-6)


def test_calibrated_probabilities_have_small_errors():
    """Controls: labels drawn from the probabilities, and the same probabilities made overconfident."""
    rng = np.random.default_rng(1)
    p = rng.dirichlet(np.ones(3), 20_000)
    labels = (rng.uniform(size=(20_000, 1)) > p.cumsum(1)).sum(1).clip(0, 2)
    for name in ("adaptive", "classwise", "expected"):
        error = getattr(evaluation, f"{name}_calibration_error")
        assert error(p, labels) < 0.02 < 0.05 < error(evaluation.at_temperature(p, 0.5), labels)


@pytest.mark.parametrize(
    ("means", "variances"), [([0.3], [2.0]), ([-1.0, 0.5, 4.0], [0.2, 1.0, 3.0])], ids=["Gaussian", "mixture"]
)
def test_crps_is_the_integral(means, variances):
    cdf = lambda t: np.mean([stats.norm.cdf(t, m, v**0.5) for m, v in zip(means, variances)])
    for y in (-2.0, 0.7):
        below, _ = integrate.quad(lambda t: cdf(t) ** 2, -30, y)
        above, _ = integrate.quad(lambda t: (1 - cdf(t)) ** 2, y, 30)
        found = evaluation.mixture_crps(np.array(means)[:, None], np.array(variances)[:, None], [y])
        assert found[0] == pytest.approx(below + above, abs=1e-7)


def test_crps_of_a_sample_and_of_a_point():
    x, y = RNG.normal(size=(7, 4)), RNG.normal(size=4)
    energy = np.abs(x - y).mean(0) - np.abs(x[:, None] - x[None]).mean((0, 1)) / 2
    np.testing.assert_allclose(evaluation.mixture_crps(x, np.zeros_like(x), y), energy)
    np.testing.assert_allclose(evaluation.mixture_crps(x[:1], np.zeros((1, 4)), y), np.abs(x[0] - y))
