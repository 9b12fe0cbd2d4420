"""The Breast Cancer study: its plane and surface against closed forms, and a run of tiny size."""

import numpy as np
import pytest
import tensorflow as tf

import tfp_bfl as bfl
from experiments.fl_swag import breast_cancer, hmc, surface
from tfp_bfl.posterior import LowRank

SMALL = breast_cancer.Sizes(
    chains={"num_chains": 4, "num_results": 4, "num_burnin": 10, "seed": 0},
    central={"local_epochs": 4, "burn_in_epochs": 2},
    federated={"local_epochs": 4, "burn_in_epochs": 2},
    grid=5,
)


def test_the_plane_holds_the_directions_of_most_variance():
    rng = np.random.default_rng(0)
    first = np.zeros([200, 6], np.float32)
    first[:, 4] = rng.normal(size=200)
    second = first + np.eye(6, dtype=np.float32)[2] * 10
    plane = surface.principal_plane([first, second])
    np.testing.assert_allclose(plane.axes[0], np.eye(6)[2], atol=1e-5)
    np.testing.assert_allclose(np.abs(plane.axes[1]), np.eye(6)[4], atol=1e-5)
    variance = np.array([25, first[:, 4].var()])
    np.testing.assert_allclose(plane.explained, variance / variance.sum(), rtol=1e-4)
    np.testing.assert_allclose(surface.project(plane, first)[:, 0], -5, rtol=1e-4)


def test_a_draw_that_a_chain_repeats_counts_once():
    distinct = np.random.default_rng(0).normal(size=[30, 8]).astype(np.float32)
    repeated = np.repeat(distinct, np.where(np.arange(30) == 7, 20, 1), 0)
    plain, again = (surface.principal_plane([draws]) for draws in (distinct, repeated))
    np.testing.assert_allclose(again.explained, plain.explained, rtol=1e-5)
    np.testing.assert_allclose(np.abs(np.sum(again.axes * plain.axes, 1)), 1, rtol=1e-4)


def test_a_plane_through_three_points_holds_them():
    points = np.random.default_rng(0).normal(size=[3, 9]).astype(np.float32)
    plane = surface.plane_through(points)
    found = surface.project(plane, points)
    np.testing.assert_allclose(found[:2, 1], 0, atol=1e-5)
    np.testing.assert_allclose(plane.origin + found @ plane.axes, points, atol=1e-5)


def test_the_surface_is_the_loss_at_the_points_of_the_plane():
    weights, rng = bfl.clients.Potential(hmc.model()), np.random.default_rng(0)
    features, labels = rng.normal(size=[7, 30]).astype(np.float32), rng.integers(0, 2, 7)
    points = 0.1 * rng.normal(size=[3, hmc.model().count_params()]).astype(np.float32)
    plane = surface.plane_through(points)
    x, y = surface.around(surface.project(plane, points), 3, margin=0.0)
    found = surface.loss_surface(weights, plane, x, y, features, labels, 0.5)
    at = plane.origin + x[2] * plane.axes[0] + y[1] * plane.axes[1]
    probabilities = tf.nn.softmax(weights.outputs(tf.constant(at, tf.float32), tf.constant(features))).numpy()
    assert found.nll[1, 2] == pytest.approx(-np.log(probabilities[np.arange(7), labels]).sum(), rel=1e-4)
    assert found.penalty[1, 2] == pytest.approx((at**2).sum() / (2 * 0.5**2), rel=1e-4)


def test_clients_hold_the_prior_once_together():
    """sum_k N_k wd ||w||^2 / 2 = ||w||^2 / (2 t^2)."""
    sizes = np.array([35, 67, 74, 131, 149])
    assert np.sum(sizes * breast_cancer.weight_decay(sizes.sum())) == pytest.approx(1 / hmc.PRIOR_STDDEV**2)


def test_the_say_of_a_client_is_its_share_of_the_precision():
    """Variances 3 (1 + 2) and 1 of a weight that the first client uses: (1 / 3) / (1 / 3 + 1) = 1 / 4."""
    first = LowRank([tf.constant([2.0, 0.0])], [tf.constant([1.0, 1.0])], [tf.constant([[2.0**0.5, 0.0]])])
    second = LowRank([tf.constant([0.0, 0.1])], [tf.constant([1.0, 1.0])], [tf.constant([[0.0, 0.0]])])
    assert breast_cancer.say_of_users([first, second], number=1) == pytest.approx(1 / 4)


def _trained():
    """All clients' posteriors of one training: a process a posterior would take most of the time."""
    with bfl.engines.tff.local_workers() as runtime:
        return breast_cancer.train(bfl.data.noniid_datasets(**breast_cancer.CLIENTS), SMALL.federated, True, 0, runtime)


@pytest.mark.long
@pytest.mark.deep(after="tests/test_fl_swag_breast_cancer.py")
def test_a_run_leaves_table_and_figures_and_samples_once(tmp_path, monkeypatch):
    monkeypatch.setattr(hmc, "MAP_STEPS", 5)
    monkeypatch.setattr(hmc, "HIDDEN", (6,))
    monkeypatch.setattr(breast_cancer, "STARTS", 1)
    monkeypatch.setattr(breast_cancer, "DPI", 20)
    clients, seconds = _trained()
    monkeypatch.setattr(breast_cancer, "train", lambda partition, *_: (clients[: partition.num_clients], seconds))
    breast_cancer.run(tmp_path, SMALL)
    table = (tmp_path / "breast_cancer.csv").read_text().splitlines()
    assert len(table) == 12 and table[1].startswith("HMC,")
    assert len(list((tmp_path / "figures").glob("*.png"))) == 4
    assert breast_cancer.load(tmp_path / "fl_swag,prior=True" / "exact").draws.shape == (16, 6 * 31 + 2 * 7)

    monkeypatch.setattr(hmc, "run", None)
    monkeypatch.setattr(breast_cancer, "train", None)
    breast_cancer.sample_all(tmp_path, SMALL)
    with pytest.raises(bfl.errors.InvalidArgument, match="is of other options"):
        breast_cancer.sample_all(tmp_path, SMALL._replace(central={"local_epochs": 5, "burn_in_epochs": 2}))
