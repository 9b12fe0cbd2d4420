"""Messages of exact heads: what is sent, with few bits, and with noise that hides examples."""

import types

import numpy as np
import pytest
import tensorflow as tf
from scipy import optimize, stats

from tests.kit import assert_same
from tfp_bfl import algorithms, models, training
from tfp_bfl.algorithms.heads import coding, posterior, private
from tfp_bfl.algorithms.heads.sums import TEMPERATURES, ClassSums, empty_sums, repaired
from tfp_bfl.app.one_run.records import passes_of
from tfp_bfl.data import ClientExamples, label_skew
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.posterior.kronecker import symmetric
from tfp_bfl.privacy import composed_epsilon, example_steps
from tfp_bfl.weights import ServerMessage

from .test_heads import CLASSES, FEATURES, LABELS, SIZE, SOURCE, double, run, sums_of


def halves(bits):
    """The sums of two clients as they are, and as the server has them of a message."""
    for client, rows in enumerate((slice(0, 50), slice(50, 120))):
        sums = sums_of(FEATURES[rows] * (1, 100, 1, 0), LABELS[rows])
        whole = sums._replace(gram=symmetric(sums.gram))
        code = empty_sums(SIZE, CLASSES)._replace(features=coding.shorten(whole, bits, double(client)))
        yield sums, code, coding.restore(code.features, bits)


@pytest.mark.parametrize("bits", [8, 12])
def test_sums_of_few_bits_are_those_of_correlations_to_half_a_level(bits):
    for sums, _, found in halves(bits):
        assert_same(found[:2], sums[:2])
        centre = np.sum(sums.totals, 0)
        of_mean = np.outer(centre, centre) / np.sum(sums.counts)
        scatter, other = (np.asarray(symmetric(x.gram)) - of_mean for x in (sums, found))
        np.testing.assert_allclose(np.diag(other), np.diag(scatter), rtol=1e-12, atol=1e-12)
        most = np.sqrt(np.outer(np.diag(scatter), np.diag(scatter))) / 2 / (2 ** (bits - 1) - 1)
        assert np.all(np.abs(other - scatter) <= most + 1e-9) and np.any(np.abs(other - scatter) > most / 10)


def test_rounded_correlations_have_no_bias_and_the_variance_of_the_docstring():
    """Error rate: 3 means and 3 variances of 2,000 dithers, each beyond 5 standard deviations with probability 6e-7."""
    values, most = double([[1, 0.31, -0.072], [0.31, 1, 0.6], [-0.072, 0.6, 1]]), 127
    sums, error = ClassSums(double([1, 1]), tf.zeros([2, 3], tf.float64), values), []
    for client in range(2000):
        found = coding.restore(coding.shorten(sums, 8, double(client)), 8)
        error.append(np.asarray(symmetric(found.gram) - values)[np.triu_indices(3, 1)] * most)
    assert np.all(np.abs(np.mean(error, 0)) < 5 * np.sqrt(1 / 12 / 2000))
    np.testing.assert_allclose(np.var(error, 0), 1 / 12, rtol=5 * np.sqrt(0.8 / 2000))  # A kurtosis of 1.8.


@pytest.mark.parametrize("bits", [8, 64])
def test_a_message_is_what_is_read_in_its_round_and_a_damaged_one_is_refused(bits):
    weights, own = (
        types.SimpleNamespace(point=(np.zeros([SIZE, CLASSES]), np.zeros(CLASSES))),
        coding.coding(bits, False),
    )
    for _, code, _ in halves(bits):
        for done in (0, 3):
            message = types.SimpleNamespace(weights=weights, round=done)
            content = own.encode(message, code)
            assert 8 * len(content) == float(coding.num_bits(coding.read_of(code, done)))
            both = (coding.read_of(x, done) for x in (own.decode(message, content), code))
            assert_same(*both)
            for damaged in (content[:-1], content + b"1", b""):
                with pytest.raises(InvalidArgument):
                    own.decode(message, damaged)


def test_clients_send_sums_once():
    clients = SOURCE.partition(label_skew(3, 1), seed=0)
    found = {bits: run("ridge", clients, 3, sum_bits=bits) for bits in (64, 10)}
    later = 3 * 64 * (len(TEMPERATURES) + 1)
    numbers = CLASSES * (SIZE + 1) + SIZE * (SIZE + 1) // 2
    assert [row["upload_bits"] for row in found[64][1].rounds] == [3 * 64 * numbers, later, later]
    assert [row["upload_bits"] for row in found[10][1].rounds[1:]] == [later, later]
    assert found[10][1].rounds[0]["nll"] == found[64][1].rounds[0]["nll"] > 0
    a, b = (found[bits][1].state.weights.point[0] for bits in (64, 10))
    np.testing.assert_allclose(a, b, atol=0.02 * np.abs(a).max())


def test_repaired_sums_are_those_without_noise_and_positive_semidefinite_with_it():
    exact = sums_of(FEATURES[:3], LABELS[:3])  # Fewer rows than features.
    assert_same(exact, repaired(exact), rtol=1e-9)
    noisy = exact._replace(gram=exact.gram + np.random.default_rng(0).normal(size=exact.gram.shape))
    found = repaired(noisy)
    least = lambda x: np.linalg.eigvalsh(symmetric(x.gram) - x.totals.numpy().T / np.maximum(x.counts, 1) @ x.totals)[0]
    assert least(noisy) < -0.5
    assert least(found) > -1e-9
    for head in ("gaussian", "ridge"):
        assert np.all(np.isfinite(posterior.fit(found, posterior.HeadSettings(head)).mean))


def test_an_example_moves_the_sums_by_at_most_the_stated_sensitivity():
    """In units of R: the counts, the totals, and the Gram matrix by its Frobenius norm."""
    norm, largest, onehot = 2.0, 0.0, np.eye(CLASSES)[LABELS[:10]]

    def sums(x, keep):
        return onehot[keep].sum(0), onehot[keep].T @ x[keep] / norm, x[keep].T @ x[keep] / norm**2

    for k in range(30):
        rows = np.r_[FEATURES[:9] * 10.0 ** (k % 4 - 2), [[np.inf, 0, 0, 0]]]
        x = np.asarray(private.clipped(double(rows), norm))
        every, left = sums(x, np.arange(10)), sums(x, np.delete(np.arange(10), k % 10))
        moved = np.sqrt(sum(np.sum((a - b) ** 2) for a, b in zip(every, left)))
        assert moved <= 3**0.5 + 1e-12
        largest = max(largest, moved)
    assert largest > 3**0.5 - 1e-9


def test_noise_of_the_sums_is_isotropic_in_the_units_of_the_sensitivity():
    """Error rate: 5 variances of 1,000 to 8,000 numbers, each beyond 6 standard deviations with probability 2e-9."""
    given = training.ExamplePrivacy(2.0, 1.5)
    zeros = ClassSums(tf.zeros([2], tf.float64), tf.zeros([2, 4], tf.float64), tf.zeros([4, 4], tf.float64))
    drawn = [private.noised(zeros, given, tf.constant([k, 1])) for k in range(1000)]
    counts, totals, gram = (np.stack(x) for x in zip(*drawn))
    np.testing.assert_array_equal(gram, np.swapaxes(gram, 1, 2))
    above = 2**0.5 * gram[:, *np.triu_indices(4, 1)]
    for x, unit in ((counts, 1), (totals, 2), (above, 4), (np.diagonal(gram, 0, 1, 2), 4)):
        np.testing.assert_allclose(x.var(), 3 * 1.5**2 * unit**2, rtol=6 * np.sqrt(2 / x.size))
    assert abs(np.corrcoef(above[:, 0], above[:, 1])[0, 1]) < 6 / np.sqrt(1000)


def test_epsilon_of_a_head_is_that_of_one_gaussian_mechanism():
    found = composed_epsilon([example_steps(1.3, 500, *passes_of(types.SimpleNamespace(has=lambda name: False), 500))])
    # Balle and Wang 2018 (arXiv:1805.06530), theorem 8.
    delta = lambda e: stats.norm.cdf(0.5 / 1.3 - e * 1.3) - np.exp(e) * stats.norm.cdf(-0.5 / 1.3 - e * 1.3)
    np.testing.assert_allclose(found, optimize.brentq(lambda e: delta(e) - 1e-5, 0, 50), rtol=1e-3)


@pytest.mark.parametrize("head", ["gaussian", "ridge"])
def test_no_noise_and_a_wide_norm_change_nothing_and_much_noise_leaves_finite_heads(head):
    clients = SOURCE.partition(label_skew(3, 1), seed=0)
    plain = run(head, clients, 1, held_back=0.0)[1].state
    with_noise = lambda noise: run(head, clients, 1, example_privacy=training.ExamplePrivacy(100.0, noise))
    process, found = with_noise(0.0)
    assert_same(plain.weights.point, found.state.weights.point, rtol=1e-3, atol=1e-3)
    assert process.client_work.needs.is_private and not found.warnings and "nll" not in found.rounds[0]
    noisy = with_noise(5.0)[1]
    assert (
        np.all(np.isfinite(noisy.model(FEATURES).numpy()))
        and float(tf.reduce_min(noisy.state.step.features.counts)) >= 0
    )


def largest_array(samples, function, *arguments):
    """The bytes of the largest array in the graphs of a function, and its operation, with 256 rows in a batch.

    The number of samples, of a shape [S, F + 1, C], is not known in a graph: of weights and of their logits.
    """
    graph = tf.function(function, autograph=False).get_concrete_function(*arguments).graph.as_graph_def(add_shapes=True)
    sizes = set()
    for node in (*graph.node, *(node for each in graph.library.function for node in each.node_def)):
        width = max((tf.as_dtype(x.type).size for x in node.attr.values() if x.type), default=0)
        for shape in node.attr["_output_shapes"].list.shape:
            dims = [x.size for x in shape.dim]
            if dims[:2] == [-1, -1] or dims == [-1, *samples[1:]]:
                dims[0] = samples[0]
            dims = [256 if x < 0 else x for x in dims]
            sizes.add((width * int(np.prod(dims)), node.op))
    return max(sizes)


@pytest.mark.parametrize("head", ["gaussian", "ridge", "softmax"])
def test_no_array_has_a_matrix_of_features_for_each_class_or_example(head):
    """At most the 16 samples of the weights, of 512 features and 200 classes, in float32: 6.6 MB."""
    size, number, rows = 512, 200, 400
    samples = [16, size + 1, number]
    most = 4 * int(np.prod(samples))
    assert most < min(number * size**2 * 8, rows * number * size * 4) / 20
    network = models.linear("deterministic", input_shape=(size,), num_classes=number)
    process = algorithms.head(network, head=head, seed=0)
    seed, weights = tf.constant([0, 0]), process.get_model_weights(process.initialize())
    work, step = process.client_work.build(), process.server_step
    examples = ClientExamples(np.zeros(rows, np.int32), np.zeros([rows, size], np.float32), np.zeros(rows, np.int32))
    state = step.initialize(weights)
    pooled = tf.nest.map_structure(tf.zeros_like, empty_sums(size, number, head == "softmax"))
    pooled = pooled._replace(features=state.features)
    message = ServerMessage(weights, tf.constant(0), step.send(state, weights))
    for found in (
        largest_array(samples, lambda sent, given: work(sent, given, seed), message, examples),
        largest_array(samples, lambda *given: step.next(*given, seed), state, weights, pooled),
    ):
        assert size**2 * 8 <= found[0] <= most, found
