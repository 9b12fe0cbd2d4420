"""SavedModels of hierarchical models, in which the client is an input."""

import numpy as np
import pytest
import tensorflow as tf
from scipy import integrate, special, stats

from tests.glm.test_classes import federation as of_classes
from tests.glm.test_hierarchical import federation
from tests.kit import json_of, refuses
from tfp_bfl import glm

NAMES = [f"site {k}" for k in range(12)]


@pytest.fixture(scope="module", params=["gaussian", "bernoulli", "poisson"])
def fitted(request):
    options = {"features": "random:3", "prior_stddev": 1.0, "random": ["(intercept)", "x1"], "between_stddev": 1.0}
    return glm.fit_hierarchical(federation(request.param, clients=12), request.param, **options)


def answers(folder, features, *clients):
    return {name: x.numpy() for name, x in tf.saved_model.load(str(folder)).predict(features, list(clients)).items()}


def test_predictions_are_those_in_python(fitted, tmp_path):
    fitted.save(tmp_path / "saved", NAMES)
    features = np.random.default_rng(0).normal(size=(4, 2))
    clients = {"site 3": 3, "site 11": 11, "unknown": None, "somewhere else": None}
    found = answers(tmp_path / "saved", features, *clients)
    for i, number in enumerate(clients.values()):
        row = features[i : i + 1]
        centre, stddev = fitted.linear_predictor(row, number)
        assert found["linear_predictor"][i] == pytest.approx(centre[0], abs=1e-9)
        assert found["linear_predictor_stddev"][i] == pytest.approx(stddev[0], abs=1e-9)
        assert found["mean"][i] == pytest.approx(fitted.predict(row, number)[0], abs=1e-9)
    assert np.all(found["epistemic"] > 0)
    assert json_of(tmp_path / "saved" / "content.json")["columns"] == ["x1", "x2"]


@pytest.mark.parametrize("classes", [3, 6])
def test_probabilities_of_classes_are_those_in_python(classes, tmp_path):
    fitted = glm.fit_hierarchical(of_classes(classes, clients=12), "multinomial", prior_stddev=1.0)
    fitted.save(tmp_path / "saved", NAMES)
    features = np.random.default_rng(0).normal(size=(3, 2))
    clients = {"site 3": 3, "site 11": 11, "unknown": None}
    found = answers(tmp_path / "saved", features, *clients)
    for i, number in enumerate(clients.values()):
        row = features[i : i + 1]
        centre, stddev = fitted.linear_predictor(row, number)
        np.testing.assert_allclose(found["linear_predictor"][i], centre[0], atol=1e-9)
        np.testing.assert_allclose(found["linear_predictor_stddev"][i], stddev[0], atol=1e-9)
        np.testing.assert_allclose(found["mean"][i], fitted.predict(row, number)[0], atol=1e-9)
    mean = found["mean"]
    np.testing.assert_allclose(found["stddev"], np.sqrt(mean * (1 - mean)), atol=1e-9)
    content = json_of(tmp_path / "saved" / "content.json")
    assert content["classes"] == [str(c) for c in range(classes)] and content["columns"] == ["x1", "x2"]


def test_variances_are_those_of_the_mixture(tmp_path):
    """Var(y) = E[p (1 - p)] + Var(p), by integrals."""
    fitted = glm.fit_hierarchical(federation("bernoulli", clients=12), "bernoulli")
    fitted.save(tmp_path / "saved")
    x = np.array([[0.3, -0.5]])
    (centre,), (stddev,) = fitted.linear_predictor(x)
    found = answers(tmp_path / "saved", x, "unknown")
    of = lambda f: integrate.quad(lambda v: f(special.expit(centre + stddev * v)) * stats.norm.pdf(v), -9, 9)[0]
    mean = of(lambda p: p)
    assert found["mean"][0] == pytest.approx(mean, abs=1e-8)
    assert found["epistemic"][0] == pytest.approx(of(lambda p: p**2) - mean**2, abs=1e-8)
    assert found["stddev"][0] == pytest.approx(np.sqrt(mean * (1 - mean)), abs=1e-8)


def test_a_client_that_is_left_out_is_unknown_and_nothing_of_its_effect_is_written(tmp_path):
    fitted = glm.fit_hierarchical(federation("gaussian", clients=12))
    fitted.save(tmp_path / "saved", NAMES, leave_out=["site 3"])
    x = np.zeros((3, 2))
    found = answers(tmp_path / "saved", x, "site 3", "unknown", "site 4")["linear_predictor"]
    assert found[0] == found[1] == pytest.approx(fitted.linear_predictor(x)[0][0])
    assert found[2] == pytest.approx(fitted.linear_predictor(x, 4)[0][0])
    content = b"".join(path.read_bytes() for path in (tmp_path / "saved").rglob("*") if path.is_file())
    assert b"site 4" in content and b"site 3" not in content
    assert fitted.effects[3].mean.tobytes() not in content and fitted.effects[3].slope.tobytes() not in content


@pytest.mark.parametrize(
    ("names", "more", "message"),
    [
        (["a", "b"], {}, "client_names must be 12 different names"),
        (["a"] * 12, {}, "client_names must be 12 different names"),
        ([*NAMES[:-1], "unknown"], {}, "stands for a new client"),
        (NAMES, {"leave_out": ["site 12"]}, "There is no client 'site 12'"),
    ],
)
def test_bad_input_is_one_sentence(names, more, message, tmp_path):
    fitted = glm.fit_hierarchical(federation("gaussian", clients=12))
    refuses(message, fitted.save, tmp_path / "saved", names, **more)
    assert not (tmp_path / "saved").exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    refuses("exists: give a new folder", fitted.save, tmp_path / "full", NAMES)
