"""Shared (Kronecker) curvature of a last layer, against dense matrices in NumPy, the full structure and `head`."""

import numpy as np
import pytest
import tensorflow as tf

import tfp_bfl as bfl
from tests.algorithms.laplace.test_last_layer import (
    CASES,
    TABLE,
    clients_of,
    conjugate,
    covariance,
    design,
    fit,
    network,
    posterior_of,
    softmax_mode,
    state_of,
    uneven,
)
from tests.algorithms.laplace_method import dense
from tests.kit import assert_same, flat, refuses
from tfp_bfl.algorithms.heads import softmax
from tfp_bfl.algorithms.heads.posterior import fit_softmax
from tfp_bfl.algorithms.heads.sums import ClassSums
from tfp_bfl.algorithms.held import Held
from tfp_bfl.algorithms.laplace.posterior import Head, laplace
from tfp_bfl.algorithms.laplace.shared import SharedCurvature
from tfp_bfl.algorithms.laplace.step import no_rows
from tfp_bfl.algorithms.laplace.work import laplace_weights
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.posterior import marginals, sample
from tfp_bfl.posterior.kronecker import Kronecker
from tfp_bfl.training.likelihoods import parse_likelihood
from tfp_bfl.weights import get_weights

RNG = np.random.default_rng(5)
N, F, C, STDDEV = 50, 3, 4, 0.7
X = np.c_[RNG.normal(size=(N, F)) * [1.0, 2.0, 0.5] + 1, np.ones(N)]
W = RNG.normal(size=(F + 1, C))
LAYER = W[:-1], W[-1]


def probabilities(w=W, x=X):
    p = np.exp(x @ w)
    return p / p.sum(1, keepdims=True)


def fisher(p):
    return np.einsum("nc,cd->ncd", p, np.eye(p.shape[1])) - np.einsum("nc,nd->ncd", p, p)


def shared(p, x=X):
    return SharedCurvature((x.T @ x)[np.triu_indices(x.shape[1])], fisher(p).sum(0))


def full(p):
    return np.einsum("nf,ng,ncd->fcgd", X, X, fisher(p)).reshape(X.shape[1] * p.shape[1], -1)


def matrix_of(q):
    """The dense covariance of a `Kronecker`, its weights as the rows of [F + 1, C] one after another."""
    root = np.kron(q.rows, q.columns) * np.ravel(q.stddev)
    return root @ root.T


def found_at(curvature, **options):
    return laplace(LAYER, curvature, (np.ones((F, C)), np.ones(C)), 3.0, prior_stddev=STDDEV, **options)


def test_posterior_is_that_of_the_kronecker_product_in_numpy():
    p = probabilities()
    found, wanted = found_at(shared(p), temperature=0.3), np.kron(X.T @ X, fisher(p).mean(0))
    precision = wanted + np.eye(len(wanted)) / STDDEV**2
    np.testing.assert_allclose(matrix_of(found.posterior), 0.3 * np.linalg.inv(precision), atol=1e-6)
    variance = flat(marginals(found.posterior).variance)
    np.testing.assert_allclose(variance, 0.3 * np.diag(np.linalg.inv(precision)), rtol=1e-5)
    same = found_at(wanted)
    assert [*found[2:5]] == pytest.approx([*same[2:5]], rel=1e-9)
    drawn = sample(found.posterior, (1, 2), 4000)[1].numpy()
    # Error rate: C variances, each beyond 6 standard deviations of its estimate with probability 2e-9.
    np.testing.assert_allclose(drawn.var(0), variance[-C:], rtol=6 * np.sqrt(2 / 4000))


@pytest.mark.parametrize("prior_stddev", [None, STDDEV])
def test_it_is_the_full_structure_where_all_examples_have_one_fisher_information(prior_stddev):
    """Also of two classes with probabilities p and 1 - p, whichever is larger."""
    for p in (np.full((N, C), 1 / C), np.where(RNG.random((N, 1)) < 0.5, [[0.2, 0.8]], [[0.8, 0.2]])):
        layer = tuple(x[..., : p.shape[1]] for x in LAYER)
        options = {"prior_stddev": prior_stddev}
        a, b = (laplace(layer, h, layer, 3.0, **options) for h in (shared(p), full(p)))
        np.testing.assert_allclose(matrix_of(a.posterior), covariance(b.posterior), rtol=1e-3, atol=1e-6)
        assert [*a.prior_stddev, *a[2:5]] == pytest.approx([*b.prior_stddev, *b[2:5]], rel=1e-8)


def test_it_is_that_of_the_softmax_head_at_the_same_weights_and_standardised_features():
    x = np.c_[(X[:, :-1] - X[:, :-1].mean(0)) / X[:, :-1].std(0), np.ones(N)]
    p, onehot = probabilities(x=x), np.eye(C)[RNG.integers(C, size=N)]
    sums = ClassSums(*map(tf.constant, (onehot.sum(0), onehot.T @ x[:, :-1], shared(p, x[:, :-1]).rows)))
    basis = softmax.basis_of(sums)
    mode = tf.linalg.solve(basis.vectors, W)
    of_head = fit_softmax(basis, mode, fisher(p).sum(0), np.float64(STDDEV**-2)).posterior
    own = found_at(shared(p, x)).posterior
    np.testing.assert_allclose(matrix_of(own), matrix_of(of_head), atol=1e-6)
    assert_same(own.mean, of_head.mean, rtol=1e-7, atol=1e-5)


def test_the_sum_of_fisher_information_is_that_of_its_roots():
    likelihood, outputs = parse_likelihood("categorical"), tf.constant(RNG.normal(size=(5, C)))
    roots = likelihood.fisher_root(outputs)
    wanted = tf.reduce_sum(tf.matmul(roots, roots, transpose_b=True), 0)
    np.testing.assert_allclose(likelihood.fisher_sum(outputs), wanted, rtol=1e-10)


SHARED = {"structure": "kronecker"}
LATER = (pytest.mark.deep(after="tests/algorithms/laplace/test_shared.py"), pytest.mark.long)


def test_regression_is_exact_and_clients_leave_and_join_exactly(tmp_path):
    settings = {"prior_stddev": 0.7, "noise_stddev": 0.4}
    clients, head = uneven(TABLE), Head(True, **settings)
    result = fit(network, clients, likelihood="gaussian", **settings, **SHARED)
    held, q = state_of(result, head), posterior_of(result)
    mean, sigma, _ = conjugate(0.7, 0.4)
    assert isinstance(q, Kronecker)
    np.testing.assert_allclose(flat(q.mean)[::2], mean, atol=1e-5)
    np.testing.assert_allclose(matrix_of(q)[::2, ::2], sigma, atol=1e-6)
    held.remove("1").save(tmp_path / "two.npz")
    two = Held.load(tmp_path / "two.npz")
    mean, sigma, _ = conjugate(0.7, 0.4, np.concatenate([clients.indices[k] for k in (0, 2)]))
    np.testing.assert_allclose(matrix_of(two.pool().posterior)[::2, ::2], sigma, rtol=1e-4, atol=1e-6)
    again = two.join(held, ["1"]).pool().posterior
    assert_same(marginals(again), marginals(q), rtol=1e-5, atol=1e-7)
    full = state_of(fit(network, clients, likelihood="gaussian", **settings), head)
    refuses("of another structure", full.join, held, ["1"], replace=True)
    arrays = {**two._arrays(), "rows/0/curvature/rows": np.zeros(5)}
    np.savez(tmp_path / "bad.npz", **arrays)
    refuses(r"bad\.npz is not a file of clients", Held.load, tmp_path / "bad.npz")


def test_classes_have_the_mode_of_the_full_structure():
    """The curvature is another, and the mode is that of softmax regression in one place."""
    model_fn, source, classes = CASES["images"]
    whole = fit(model_fn, clients_of(source), 40, prior_stddev=0.6, temperature=1.0, **SHARED)
    mean, sigma = softmax_mode(design(model_fn, source), source.labels, classes, 0.6)
    q = posterior_of(whole)
    found = flat(q.mean)
    np.testing.assert_allclose((found - mean) / np.sqrt(np.diag(sigma)), 0, atol=1e-3)
    x = design(model_fn, source)
    p = probabilities(found.reshape(-1, classes), x)
    wanted = np.linalg.inv(dense(shared(p, x)) + np.eye(len(mean)) / 0.6**2)
    np.testing.assert_allclose(matrix_of(q), wanted, atol=1e-5)
    # How far the shared curvature is off here: logits of the two posteriors.
    j = np.kron(x, np.eye(classes))
    ratio = np.sqrt(np.einsum("nd,de,ne->n", j, wanted, j) / np.einsum("nd,de,ne->n", j, sigma, j))
    assert np.quantile(ratio, 0.05) > 0.8 and np.quantile(ratio, 0.95) < 1.25, np.quantile(ratio, [0.05, 0.5, 0.95])


@pytest.mark.parametrize("structure", ["kronecker", pytest.param("last_layer", marks=LATER)])
def test_sums_of_whole_numbers_which_masks_hide_have_the_same_posterior(structure):
    model_fn, source, _ = CASES["table"]
    given = {"prior_stddev": 0.6, "structure": structure}
    plain, hidden = (fit(model_fn, uneven(source), 3, **more) for more in (given, {**given, "secure_sums": 60.0}))
    assert len(plain.state.step.rows.client) == 3 and hidden.state.step.rows.num_examples.tolist() == [90]
    assert_same(*(marginals(posterior_of(x)) for x in (plain, hidden)), rtol=1e-4, atol=1e-6)


def test_exact_sums_of_whole_numbers_of_laplace():
    network = lambda: bfl.models.mlp("deterministic", hidden=(4,), seed=2)
    clients = uneven(CASES["table"][1])
    processes = (bfl.algorithms.laplace(network, **SHARED, **more) for more in ({}, {"secure_sums": 60.0}))
    plain, hidden = (bfl.simulate(x, clients, 1, engine="local") for x in processes)
    assert_same(*(marginals(posterior_of(x)) for x in (plain, hidden)), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("model", ["lenet", "resnet20"])
def test_a_message_is_at_most_1_2_times_that_of_federated_averaging(model):
    network = getattr(bfl.models, model)("deterministic", input_shape=(32, 32, 3), num_classes=10)
    rows = no_rows(laplace_weights(network, "kronecker"), "kronecker", tf.float64)
    numbers = lambda leaves: sum(int(np.prod(x.shape[1:])) for x in tf.nest.flatten(leaves))
    ratio = 8 * numbers(rows) / (4 * sum(np.size(x) for x in get_weights(network).point))
    assert ratio < {"lenet": 0.3, "resnet20": 0.03}[model]


def test_what_does_not_fit_is_refused():
    linear = lambda size: bfl.models.linear("deterministic", input_shape=(size,), num_classes=3)
    with pytest.raises(
        InvalidArgument, match=r"4,097 features and 3 classes, .* 0.4 GiB. The structure 'kronecker' has"
    ):
        bfl.algorithms.last_layer(linear(4097), **SHARED)
    refuses(r"12,003 weights, .* use the structure 'kronecker'", bfl.algorithms.laplace, linear(4000))
    with pytest.raises(InvalidArgument, match="prior_by_layer is for the structure 'diagonal'"):
        bfl.algorithms.laplace(linear(4), prior_by_layer=True, **SHARED)
    refuses("secure_sums", bfl.algorithms.laplace, linear(4), secure_sums=0.0, **SHARED)
