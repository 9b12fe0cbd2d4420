import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import sklearn.calibration
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_bfl.evaluation.calibration import (
    expected_calibration_error,
    maximum_calibration_error,
    reliability,
)


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
    np.testing.assert_allclose(bins.confidence[8], 0.85)
    np.testing.assert_allclose(bins.accuracy[8], 0.5)
    assert np.isnan(bins.accuracy[0])
    np.testing.assert_allclose(bins.edges, np.arange(11) / 10)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_edges_belong_to_the_lower_bin(dtype):
    p = binary([0.5, 0.6, 0.7, 0.8, 0.9, 1.0]).astype(dtype)
    count = reliability(p, np.zeros(6, np.int32), 10).count
    np.testing.assert_array_equal(count, [0, 0, 0, 0, 1, 1, 1, 1, 1, 1])
    just_above = np.nextafter(dtype(0.7), dtype(1))
    count = reliability(np.array([[just_above, 1 - just_above]], dtype), [0], 10).count
    assert int(count[7]) == 1


def test_one_bin_compares_the_means():
    p, y = binary([0.6, 0.9, 0.8]), [0, 0, 1]
    assert float(expected_calibration_error(p, y, 1)) == pytest.approx(abs(2 / 3 - 2.3 / 3))


@pytest.mark.statistical
def test_calibrated_data_has_a_small_error():
    """Labels drawn from the probabilities themselves.

    The 12,000 examples in each of the five bins in use leave a gap with a standard deviation of at most
    0.0046, so the error is about 0.003 with a standard deviation of 0.001: either bound, 0.01, fails for
    fewer than one in 100,000 seeds.
    """
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.5, 1.0, 60_000)
    y = (rng.uniform(size=confidence.size) > confidence).astype(np.int32)
    assert float(expected_calibration_error(binary(confidence), y, 10)) < 0.01
    # The same model, overconfident: what it calls 0.75 + c/2 is right in a share c of the cases.
    over = binary(0.5 + confidence / 2)
    assert float(expected_calibration_error(over, y, 10)) == pytest.approx(0.125, abs=0.01)


@pytest.mark.parametrize("num_bins", [1, 7, 15])
def test_against_tensorflow_probability(num_bins):
    p, y = random_case(3)
    expected = tfp.stats.expected_calibration_error(
        num_bins, logits=np.log(p).astype(np.float32), labels_true=y.astype(np.int32)
    )
    got = expected_calibration_error(p, y, num_bins)
    assert float(got) == pytest.approx(float(expected), abs=1e-5)


@pytest.mark.parametrize("num_bins", [1, 7, 15])
def test_bins_are_those_of_scikit_learn(num_bins):
    """It leaves out empty bins, and puts an edge into the bin above: no confidence is on one."""
    p, y = random_case(4)
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


def test_certain_and_right_is_perfect():
    assert float(expected_calibration_error(np.eye(3), [0, 1, 2])) == 0.0
    assert float(maximum_calibration_error(np.eye(3), [1, 2, 0])) == 1.0


@pytest.mark.parametrize("function", [expected_calibration_error, maximum_calibration_error])
def test_runs_in_a_graph_with_unknown_batch(function):
    p, y = random_case(5, 50)
    signature = [tf.TensorSpec([None, 4], tf.float64), tf.TensorSpec([None], tf.int64)]
    graph = tf.function(function, input_signature=signature)
    assert float(graph(p, y)) == pytest.approx(float(function(p, y)))


FOUR = np.array([[0.72, 0.17, 0.11], [0.13, 0.81, 0.06], [0.26, 0.33, 0.41], [1, 0, 0]])
FOUR_LABELS = [0, 2, 2, 0]


@pytest.mark.parametrize(("over", "ece"), [("top_label", 0.42), ("classes", 0.301667)])
def test_of_four_examples_by_hand(over, ece):
    assert float(expected_calibration_error(FOUR, FOUR_LABELS, 10, over)) == pytest.approx(ece, abs=1e-6)
    assert float(maximum_calibration_error(FOUR, FOUR_LABELS, 10, over)) == pytest.approx(0.81)


def test_over_classes_each_probability_counts_against_its_entry():
    p, y = random_case(7)
    bins = reliability(p, y, 12, "classes")
    one_hot = np.eye(4)[y].ravel()
    place = np.minimum(np.ceil(p.ravel() * 12).astype(int) - 1, 11).clip(0)
    for m in range(12):
        np.testing.assert_allclose(bins.confidence[m], p.ravel()[place == m].mean())
        np.testing.assert_allclose(bins.accuracy[m], one_hot[place == m].mean())
    assert bins.count.numpy().tolist() == np.bincount(place, minlength=12).tolist()


def test_of_two_classes_both_tell_the_same_where_confidence_is_symmetric():
    """Each example's pair p, 1 - p lies in mirrored bins, whose gaps are alike."""
    p = binary(np.random.default_rng(1).uniform(size=400))
    y = np.random.default_rng(2).integers(0, 2, 400)
    ece = [float(expected_calibration_error(p, y, 10, over)) for over in ("top_label", "classes")]
    assert ece[0] == pytest.approx(ece[1])


def test_over_classes_in_a_graph_with_unknown_batch():
    p, y = random_case(5, 50)
    signature = [tf.TensorSpec([None, 4], tf.float32), tf.TensorSpec([None], tf.int64)]
    graph = tf.function(lambda p, y: expected_calibration_error(p, y, over="classes"), input_signature=signature)
    assert float(graph(p, y)) == pytest.approx(float(expected_calibration_error(p, y, over="classes")), abs=1e-6)
