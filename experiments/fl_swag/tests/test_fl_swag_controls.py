"""The FL-SWAG study's controls: Laplace approximations against automatic differentiation, and one temperature."""

import numpy as np
import pytest
import tensorflow as tf

import tfp_bfl as bfl
from experiments.fl_swag import controls, federation, run, tables
from tfp_bfl.algorithms.swag.work import with_curvature

CELL = {**next(run.cells("logistic_regression", "small")), "clients": 3}


@pytest.fixture(scope="module")
def held():
    with bfl.engines.tff.local_workers() as runtime:
        return controls.held(federation.federation(CELL, None, runtime), CELL["last_layer"])


def some_weights(held, seed):
    rng = np.random.default_rng(seed)
    return tuple(tf.constant(rng.normal(size=w.shape, scale=0.1), tf.float32) for w in held.model.trainable_variables)


def nll(held, weights, k):
    logits = bfl.weights.functional_call(held.model, weights, held.inputs[k])
    return tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(held.labels[k], logits))


def hessian_diagonal(held, weights, k):
    """Of the negative log-likelihood: in a last layer it is the Gauss-Newton matrix."""
    with tf.GradientTape(persistent=True) as outer:
        outer.watch(weights)
        with tf.GradientTape() as inner:
            inner.watch(weights)
            loss = nll(held, weights, k)
        gradients = inner.gradient(loss, weights)
    found = []
    for w, g in zip(weights, gradients):
        jacobian = outer.jacobian(g, w, experimental_use_pfor=False)
        size = w.shape.num_elements()
        found.append(tf.reshape(tf.linalg.diag_part(tf.reshape(jacobian, [size, size])), w.shape))
    return found


def test_the_curvature_is_the_hessians_diagonal(held):
    weights = some_weights(held, 0)
    for mine, own in zip(controls.curvature(held.model, weights, held.inputs[1]), hessian_diagonal(held, weights, 1)):
        np.testing.assert_allclose(mine, own, rtol=1e-4, atol=1e-4)


def test_the_hessian_is_that_of_automatic_differentiation(held):
    weights = some_weights(held, 0)
    matrix = controls.hessian(held.model, weights, held.inputs[1])
    np.testing.assert_allclose(matrix, matrix.T, rtol=1e-9, atol=1e-9)
    diagonal = np.concatenate([np.ravel(x) for x in hessian_diagonal(held, weights, 1)])
    np.testing.assert_allclose(np.diag(matrix), diagonal, rtol=1e-4, atol=1e-4)
    rng = np.random.default_rng(1)
    way = [tf.constant(rng.normal(size=w.shape), tf.float32) for w in weights]
    with tf.GradientTape() as outer:
        outer.watch(weights)
        with tf.GradientTape() as inner:
            inner.watch(weights)
            loss = nll(held, weights, 1)
        slope = tf.add_n([tf.reduce_sum(g * d) for g, d in zip(inner.gradient(loss, weights), way)])
    wanted = np.concatenate([np.ravel(x) for x in outer.gradient(slope, weights)])
    got = matrix @ np.concatenate([np.ravel(d) for d in way])
    np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-3 * np.abs(wanted).max())


def test_what_clients_know_is_sampled_by_the_librarys_own_pass_and_near_the_closed_form(held):
    """One drawn label an example: each batch's square is chi^2 with one degree of freedom about its mean."""
    weights = some_weights(held, 0)
    sampled, exact = controls.estimator(held)(weights, 1), controls.curvature(held.model, weights, held.inputs[1])
    for mine, own in zip(sampled, exact):
        assert float(tf.reduce_sum(mine) / tf.reduce_sum(own)) == pytest.approx(1, abs=0.25)
    q = bfl.posterior.LowRank(weights, *(tuple(f(w) for w in weights) for f in (tf.ones_like, lambda w: w[None])))
    wider = with_curvature(q, controls.curvatures(held, [q, q, q])[0])
    for w, before, after in zip(weights, q.diagonal, wider.diagonal):
        assert (
            0
            < float(tf.reduce_min(after - before))
            <= float(tf.reduce_max(after - before))
            <= float(tf.reduce_mean(w**2)) * 1.001
        )


def test_newtons_method_ends_where_the_gradient_does(held):
    potential, prior_stddev = bfl.training.Potential(held.model), 0.5
    inputs, labels = tf.concat(held.inputs, 0), tf.constant(np.concatenate(held.labels))
    w, matrix = controls.mode(held.model, inputs, labels, prior_stddev)
    w32 = tf.constant(w, tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(w32)
        energy = tf.reduce_sum(potential.each(w32, inputs, labels)) + tf.reduce_sum(w32**2) / (2 * prior_stddev**2)
    gradient = tape.gradient(energy, w32).numpy().astype(np.float64)
    assert gradient @ np.linalg.solve(matrix, gradient) < controls.NEAR**2
    np.testing.assert_allclose(matrix, matrix.T, rtol=1e-9, atol=1e-9)
    assert np.linalg.eigvalsh(matrix)[0] >= 1 / prior_stddev**2 - 1e-4


def test_laplace_counts_the_prior_once_and_weighs_each_client_by_its_precision(held):
    ends, stddev = [some_weights(held, k) for k in range(3)], 0.7
    q = controls.laplace(held, ends, stddev)
    each = [controls.curvature(held.model, w, x) for w, x in zip(ends, held.inputs)]
    for i, (mean, variance) in enumerate(zip(q.mean, q.variance)):
        precision = 1 / stddev**2 + sum(h[i].numpy() for h in each)
        np.testing.assert_allclose(variance, 1 / precision, rtol=1e-5)
        np.testing.assert_allclose(mean, sum(h[i] * w[i] for h, w in zip(each, ends)) / precision, rtol=1e-4, atol=1e-6)
    same = controls.laplace(held, [ends[0]] * 3, 1e4)
    told = np.concatenate([np.ravel(h) for h in map(tf.add_n, zip(*each))]) > 1
    for mine, own in zip(*(np.concatenate([np.ravel(x) for x in w])[told] for w in (same.mean, ends[0]))):
        assert mine == pytest.approx(own, rel=1e-3, abs=1e-5)


def test_the_temperature_has_the_least_nll_on_what_the_clients_hold(held):
    """The weights are three times those of twenty steps of gradient descent from zero, and so too sure."""
    weights = [tf.Variable(tf.zeros(w.shape)) for w in held.model.trainable_variables]
    optimizer = tf.keras.optimizers.SGD(0.003)
    for _ in range(20):
        optimizer.minimize(lambda: tf.add_n([nll(held, weights, k) for k in range(3)]), weights)
    weights = [3 * w for w in weights]
    at = lambda t: sum(float(nll(held, tuple(w / t for w in weights), k)) for k in range(3))
    found = controls.temperature(held, weights)
    assert 1 < found < 10 and at(found) <= min(at(0.97 * found), at(1.03 * found), at(1.0))


def test_a_temperature_scales_the_log_odds_and_leaves_nothing_epistemic():
    p = np.random.default_rng(0).dirichlet(np.ones(4), size=6).astype(np.float32)
    before = bfl.evaluation.Evaluation({}, p, *[None] * 4)
    after = controls.scaled(before, 2.0)
    np.testing.assert_allclose(np.log(after.probabilities[:, 0] / after.probabilities[:, 1]),
                               0.5 * np.log(p[:, 0] / p[:, 1]), rtol=1e-4)  # fmt: skip
    np.testing.assert_allclose(after.aleatoric, 1 - (after.probabilities**2).sum(-1), rtol=1e-5)
    np.testing.assert_allclose(after.epistemic, 0, atol=1e-6)
    np.testing.assert_allclose(after.entropy, bfl.evaluation.decompose(after.probabilities[None]).entropy)
    np.testing.assert_array_equal(after.mutual_information, np.zeros(6))


def test_the_truth_is_at_no_distance_from_itself_and_other_seeds_have_none(tmp_path):
    p = np.array([[0.9, 0.1], [0.4, 0.6]], np.float32)
    runs = []
    for name, seed, options in (("nuts", 0, {"sampler": "nuts"}), ("FedAvg", 0, {}), ("FedAvg", 1, {})):
        folder = tmp_path / f"{name}{seed}"
        folder.mkdir()
        np.savez(folder / "predictions.npz", **{name: p if name == "nuts" else p[::-1]})
        own = {"setting": "shared_features", "dataset": "mnist", "seed": seed, **options}
        facts = {"acceptance_rate": [0.8, 0.6], "scale_reduction": {"median": 1.01, "most": 1.2}}
        runs.append({"folder": folder, "options": own, "rows": [{"method": name, "floor": None}], **facts})
    assert tables.truth_table(runs)[1:] == [
        ["shared_features", "mnist", "nuts", "", "0.0000", "1.0000", "0.70", "1.01, 1.20"],
        ["shared_features", "mnist", "FedAvg", "", "0.5000", "0.0000", "", ""],
    ]


@pytest.mark.deep(after="experiments/fl_swag/tests/test_fl_swag_controls.py")
@pytest.mark.long
def test_clients_with_their_own_starts_and_one_alike_with_shuffled_labels(tmp_path):
    short = {"clients": 3, "num_samples": 3, "local_epochs": 4, "burn_in_epochs": 2, "server": None, "limit": 300}
    own = {**next(run.cells("own_starts", "small")), **short, "model": "logistic_regression"}
    run.run_cell(tmp_path / "own", own, pretrained=tmp_path)
    run.run_cell(tmp_path / "one", {**own, "own_starts": False}, pretrained=tmp_path)
    apart = [tables.read_cell(tmp_path / name)["geometry"]["average_distance"] for name in ("own", "one")]
    assert apart[0] > apart[1]
    cell = {**list(run.cells("examples", "small"))[1], **short}
    assert cell["shuffled"] and cell["alike"]
    clients, plain = (federation.clients_of({**cell, "shuffled": s}) for s in (True, False))
    assert sorted(clients.source.labels) == sorted(plain.source.labels)
    assert (clients.source.labels != plain.source.labels).mean() > 0.8
    assert np.ptp(clients.sizes) <= 1
