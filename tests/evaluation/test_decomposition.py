import hypothesis
import hypothesis.extra.numpy as arrays
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf

from tests.kit import assert_same, refuses
from tfp_bfl.evaluation.decomposition import decompose, decompose_entropy, scalars, summarise


def dirichlet(shape, concentration=0.5, dtype=np.float64, seed=0):
    *batch, classes = shape
    values = np.random.default_rng(seed).dirichlet([concentration] * classes, size=batch)
    return values.astype(dtype)


def test_two_samples_of_two_classes_by_hand():
    u = decompose(np.array([[[0.9, 0.1]], [[0.5, 0.5]]]))
    np.testing.assert_allclose(u.mean, [[0.7, 0.3]])
    np.testing.assert_allclose(u.entropy, [0.8812908992306927])  # the binary entropy of 0.3, in bits
    # p (1 - p) is 0.09 and 0.25; the probabilities lie 0.2 on either side of their mean.
    np.testing.assert_allclose(u.aleatoric, [[[0.17, -0.17], [-0.17, 0.17]]])
    np.testing.assert_allclose(u.epistemic, [[[0.04, -0.04], [-0.04, 0.04]]])
    traces = scalars(u)
    np.testing.assert_allclose(traces.aleatoric_trace, [0.34])
    np.testing.assert_allclose(traces.epistemic_trace, [0.08])


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 1e-6)])
@pytest.mark.parametrize("concentration", [0.05, 1.0, 100.0])
def test_parts_add_up(dtype, tolerance, concentration):
    """Matrices to the covariance of the label, entropies to that of the mean."""
    p = dirichlet((50, 7, 10), concentration, dtype)
    u, parts = decompose(p), decompose_entropy(p)
    assert all(part.dtype == tf.as_dtype(dtype) for part in (*u, *parts))
    expected = np.stack([np.diag(m) - np.outer(m, m) for m in u.mean.numpy()])
    np.testing.assert_allclose(u.aleatoric + u.epistemic, expected, rtol=0, atol=tolerance)
    np.testing.assert_allclose(parts.expected_entropy + parts.mutual_information, parts.entropy, rtol=0, atol=tolerance)
    np.testing.assert_array_equal(parts.entropy, u.entropy)
    each = np.stack([decompose(sample[np.newaxis]).entropy for sample in p])
    np.testing.assert_allclose(parts.expected_entropy, each.mean(0), rtol=1e-6)
    assert np.all((parts.mutual_information.numpy() > 0) & (parts.mutual_information.numpy() <= 1))


def test_matches_the_definition_written_as_loops():
    p = dirichlet((6, 4, 3), seed=1)
    u = decompose(p)
    for b in range(4):
        aleatoric = np.mean([np.diag(q) - np.outer(q, q) for q in p[:, b]], axis=0)
        epistemic = np.cov(p[:, b], rowvar=False, bias=True)
        np.testing.assert_allclose(u.aleatoric[b], aleatoric, atol=1e-15)
        np.testing.assert_allclose(u.epistemic[b], epistemic, atol=1e-15)


def test_entropy_parts_of_two_samples_by_hand():
    parts = decompose_entropy(np.array([[[1.0, 0.0], [0.9, 0.1]], [[0.0, 1.0], [0.5, 0.5]]]))
    ninth = -0.9 * np.log2(0.9) - 0.1 * np.log2(0.1)  # Two classes: in bits.
    np.testing.assert_allclose(parts.entropy, [1, 0.8812908992306927])
    np.testing.assert_allclose(parts.expected_entropy, [0, (ninth + 1) / 2])
    np.testing.assert_allclose(parts.mutual_information, [1, 0.8812908992306927 - (ninth + 1) / 2])


def test_equal_samples_have_no_epistemic_part_and_one_hot_ones_no_aleatoric_part():
    p = np.repeat(dirichlet((1, 5, 4)), 7, axis=0)
    np.testing.assert_allclose(decompose_entropy(p).mutual_information, np.zeros(5), atol=1e-30)
    np.testing.assert_array_equal(decompose_entropy(p[:1]).mutual_information, np.zeros(5))
    np.testing.assert_allclose(decompose(p).epistemic, np.zeros((5, 4, 4)), atol=1e-30)
    np.testing.assert_array_equal(decompose(p[:1]).epistemic, np.zeros((5, 4, 4)))
    u = decompose(np.eye(3)[[0, 1, 2, 2]][:, None, :])
    np.testing.assert_array_equal(u.aleatoric, np.zeros((1, 3, 3)))
    np.testing.assert_allclose(scalars(u).epistemic_trace, [1 - (0.25**2 + 0.25**2 + 0.5**2)])


def test_entropy_is_zero_when_certain_and_one_when_uniform():
    certain = decompose(np.eye(4)[None]).entropy
    np.testing.assert_array_equal(certain, np.zeros(4))
    assert not np.signbit(certain).any()  # "-0.000" in a table.
    for dtype in (np.float32, np.float64):
        entropy = decompose(np.full((3, 2, 10), 0.1, dtype)).entropy.numpy()
        np.testing.assert_allclose(entropy, 1.0, rtol=1e-6)
        assert entropy.max() <= 1.0
    assert decompose(np.array([[[0.5, 0.5005]]])).entropy.shape == [1]  # A sum within the tolerance.


def test_tiny_disagreement_survives_float32():
    """Raw second moments would lose a spread of 1e-5 around 0.5 in float32's rounding of 6e-8."""
    delta = np.float32(1e-5)
    first = np.array([0.5 + delta, 0.5 - delta], np.float32)
    p = np.stack([first, first[::-1]])[:, None, :]
    exact = (p[0, 0, 0].astype(np.float64) - p[1, 0, 0].astype(np.float64)) ** 2 / 4
    np.testing.assert_allclose(decompose(p).epistemic[0, 0, 0], exact, rtol=1e-2)
    # To second order KL(p || 1/2) = 2 (p - 1/2)^2 nats. The difference of the entropies in float32 is 0 or 1e-7.
    np.testing.assert_allclose(decompose_entropy(p).mutual_information, [2 * exact / np.log(2)], rtol=3e-2)


@hypothesis.settings(max_examples=25, deadline=None)
@hypothesis.given(
    arrays.arrays(
        np.float64,
        st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(2, 5)),
        elements=st.floats(0.0, 1.0, allow_subnormal=False),
    )
)
def test_properties(raw):
    p = (raw + 1e-9) / (raw + 1e-9).sum(-1, keepdims=True)
    u = decompose(p)
    for part in (u.aleatoric.numpy(), u.epistemic.numpy()):
        np.testing.assert_allclose(part, part.swapaxes(1, 2), atol=1e-15)
        np.testing.assert_allclose(part.sum((1, 2)), 0.0, atol=1e-12)
        assert np.linalg.eigvalsh(part).min() >= -1e-12
    assert np.all((u.entropy >= 0) & (u.entropy <= 1))
    total = sum(t.numpy() for t in scalars(u))
    np.testing.assert_allclose(total, 1 - (u.mean.numpy() ** 2).sum(-1), atol=1e-12)
    shuffled = decompose(p[::-1])
    np.testing.assert_allclose(shuffled.epistemic, u.epistemic, atol=1e-12)
    entropy, expected, information = (part.numpy() for part in decompose_entropy(p))
    np.testing.assert_allclose(expected + information, entropy, atol=1e-12)
    most = np.log(min(p.shape[0], p.shape[2])) / np.log(p.shape[2])
    assert np.all((information >= 0) & (information <= most + 1e-12))


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("op", [decompose, decompose_entropy])
def test_runs_in_a_graph_with_unknown_samples_and_batch(op, jit_compile):
    signature = [tf.TensorSpec([None, None, 3], tf.float32)]
    graph = tf.function(op, input_signature=signature, jit_compile=jit_compile)
    for shape in ((4, 5, 3), (2, 1, 3), (1, 0, 3)):
        p = dirichlet(shape, dtype=np.float32)
        for got, expected in zip(graph(p), op(p)):
            assert got.shape == expected.shape
            np.testing.assert_allclose(got, expected, atol=1e-6)


def test_graphs_of_unknown_and_wrong_rank():
    graph = tf.function(decompose, input_signature=[tf.TensorSpec(None, tf.float64)])
    p = dirichlet((4, 5, 3))
    np.testing.assert_allclose(graph(p).epistemic, decompose(p).epistemic, atol=1e-15)
    # AutoGraph would wrap the error in one of its own.
    graph = tf.function(decompose, input_signature=[tf.TensorSpec([None, None], tf.float32)], autograph=False)
    refuses(r"shape \[S, B, C\]", graph, tf.ones([2, 2]) / 2)


def test_summaries_are_the_traces_of_the_decomposition():
    probabilities = dirichlet((6, 5, 4), 0.3, np.float32)
    probabilities[:, 0] = [1, 0, 0, 0]
    wanted, summary = decompose(probabilities), summarise(probabilities)
    np.testing.assert_array_equal(summary.mean, wanted.mean)
    np.testing.assert_array_equal(summary.entropy, wanted.entropy)
    assert_same(summary[2:], scalars(wanted), rtol=1e-5, atol=1e-7)
    assert summary.entropy[0] == 0 and summary.epistemic[0] == 0
