"""Fits whose sums are computed by TFF's workers and by tasks of Ray, beside fits in this process."""

import sys

import numpy as np
import pytest

from tests.engines.ray_stand_in import stand_in
from tests.glm.test_cox import rows, split
from tests.glm.test_hierarchical import federation
from tfp_bfl import federated, glm
from tfp_bfl.app.options import linear_model
from tfp_bfl.errors import InvalidArgument, MissingDependency
from tfp_bfl.glm.engines import ENGINES

deep = pytest.mark.deep(after="tests/glm/test_graphs.py")


@pytest.fixture
def cluster(monkeypatch):
    """Ray's stand-in, which adds up the clients in three shares."""
    return "ray", stand_in(monkeypatch, num_workers=3)


@pytest.fixture
def workers(tff_runtime):
    return "tff", tff_runtime


CARRIERS = ["cluster", pytest.param("workers", marks=deep)]


def options(carrier):
    return dict(zip(("engine", "runtime"), carrier))


def assert_equal(found, expected, tolerance=1e-12):
    """Posteriors alike, in posterior standard deviations and relative to the covariance."""
    assert (found.messages, found.warnings, found.count) == (expected.messages, expected.warnings, expected.count)
    np.testing.assert_allclose((found.mean - expected.mean) / expected.stddev, 0, atol=tolerance)
    scale = np.outer(expected.stddev, expected.stddev)
    np.testing.assert_allclose((found.covariance - expected.covariance) / scale, 0, atol=tolerance)
    assert found.log_likelihood == pytest.approx(expected.log_likelihood, rel=tolerance)
    assert found.dispersion == pytest.approx(expected.dispersion, rel=tolerance)


def pairs_of(family):
    return split(*rows()) if family == "cox" else federation(family, clients=8)


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("family", ["gaussian", "bernoulli", "poisson", "cox"])
def test_a_fit_is_that_of_this_process(family, carrier, request):
    clients, carrier = pairs_of(family), request.getfixturevalue(carrier)
    exposure = [np.full(len(y), 1.5) for _, y in clients] if family == "poisson" else None
    expected = glm.fit(clients, family, prior_stddev=2.0, exposure=exposure)
    assert_equal(glm.fit(clients, family, prior_stddev=2.0, exposure=exposure, **options(carrier)), expected)
    assert len(clients) > 3 and (expected.messages == 1) == (family == "gaussian")


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("family", ["gaussian", "bernoulli", "poisson", "cox"])
def test_secure_sums_are_those_of_this_process(family, carrier, request):
    """Sums of integers: no order of addition rounds."""
    clients, carrier = pairs_of(family), request.getfixturevalue(carrier)
    how = {"stratified": True} if family == "cox" else {}
    expected = glm.fit(clients, family, secure_sums=True, **how)
    assert_equal(glm.fit(clients, family, secure_sums=True, **how, **options(carrier)), expected)


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("family", ["gaussian", "bernoulli", "poisson"])
@pytest.mark.parametrize("second_order", [False, True])
def test_random_effects_are_those_of_this_process(family, second_order, carrier, request):
    clients, carrier = federation(family, clients=12), request.getfixturevalue(carrier)
    expected = glm.fit_hierarchical(clients, family, second_order=second_order)
    found = glm.fit_hierarchical(clients, family, second_order=second_order, **options(carrier))
    assert_equal(found.posterior, expected.posterior, 1e-10 if second_order else 1e-11)
    np.testing.assert_allclose(found.between, expected.between, rtol=1e-11)
    effects = [np.array([effect.mean[0] for effect in result.effects]) for result in (found, expected)]
    np.testing.assert_allclose(*effects, rtol=0, atol=1e-11)
    assert np.std(effects[0]) > 0.1


@deep
def test_two_effects_at_two_workers(tff_runtime):
    """Several workers split the clients; REML asks for the information at many points at once."""
    clients = federation("gaussian", clients=12, between=1.5)
    how = {"random": ["(intercept)", "x1"], "between_stddev": 1.0}
    expected = glm.fit_hierarchical(clients, **how)
    with federated.local_workers(2, max_concurrent_calls=1) as runtime:
        found = glm.fit_hierarchical(clients, engine="tff", runtime=runtime, **how)
        times = glm.fit(split(*rows()), "cox", engine="tff", runtime=runtime)
    assert_equal(found.posterior, expected.posterior, 1e-10)
    assert_equal(times, glm.fit(split(*rows()), "cox"))


@deep
@pytest.mark.tff
def test_a_worker_of_its_own():
    clients = federation("bernoulli", clients=3)
    assert_equal(
        glm.fit(clients, "bernoulli", prior_stddev=1.0, engine="tff"), glm.fit(clients, "bernoulli", prior_stddev=1.0)
    )


@pytest.mark.parametrize("carrier", CARRIERS)
def test_what_the_rows_do_not_determine_is_named(carrier, request):
    carrier, rng = options(request.getfixturevalue(carrier)), np.random.default_rng(0)
    x = rng.normal(size=(20, 1))
    with pytest.raises(InvalidArgument, match="twice"):
        glm.fit([(np.column_stack([x, 2 * x]), x[:, 0])] * 2, names=["once", "twice"], **carrier)
    with pytest.raises(InvalidArgument, match="dose"):
        glm.fit([(x, x[:, 0] > 0)] * 2, "bernoulli", names=["dose"], **carrier)
    with pytest.raises(InvalidArgument, match="which are no sum: with secure sums give stratified"):
        glm.fit(split(*rows()), "cox", secure_sums=True, **carrier)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"engine": "compiled"},
            "compiles the rounds of a network, and a linear model has none: choose 'local', 'tff'",
        ),
        ({"engine": "tfff"}, "no engine of linear models 'tfff': did you mean 'tff'"),
        ({"engine": None}, "no engine of linear models None: choose one of 'local', 'ray', 'tff'"),
        ({"runtime": "workers"}, "runtime holds workers of the engine tff or ray, and this is local: leave one out"),
    ],
)
@pytest.mark.parametrize("fit", [glm.fit, glm.fit_hierarchical])
def test_engines_that_do_not_fit_are_refused_before_rows_are_read(fit, given, words):
    with pytest.raises(InvalidArgument, match=words):
        fit(None, **given)


def test_a_runtime_of_another_engine(cluster):
    with pytest.raises(InvalidArgument, match="runtime is 'workers', but the engine ray needs a cluster of federated"):
        glm.fit(federation("gaussian", clients=3), engine="ray", runtime="workers")


@deep
@pytest.mark.tff
def test_a_runtime_of_another_engine_than_tff(cluster):
    with pytest.raises(InvalidArgument, match="but the engine tff needs workers of federated"):
        glm.fit(federation("gaussian", clients=3), engine="tff", runtime=cluster[1])


def test_without_the_package_of_an_engine(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingDependency, match=r"needs the package ray.*pip install 'ray"):
        glm.fit(None, engine="ray")


def test_a_machine_with_another_numpy(cluster, monkeypatch):
    monkeypatch.setattr("tfp_bfl.engines.ray.linear_models.examine", lambda: ("tfp_bfl 0.0.1, numpy 1.9", ""))
    with pytest.raises(InvalidArgument, match=r"has tfp_bfl 0\.0\.1, numpy 1\.9, but this program tfp_bfl .*, numpy"):
        glm.fit(federation("gaussian", clients=3), **options(cluster))


def test_more_clients_than_fixed_point_adds(cluster, monkeypatch):
    monkeypatch.setattr("tfp_bfl.glm.federation.MOST_CLIENTS", 7)
    with pytest.raises(InvalidArgument, match="Secure sums are of at most 7 clients, not 8"):
        glm.fit(federation("gaussian", clients=8), secure_sums=True, **options(cluster))
    glm.fit(federation("gaussian", clients=7), secure_sums=True, **options(cluster))


def test_the_command_has_the_engines_of_the_library():
    assert tuple(ENGINES) == linear_model.ENGINES
