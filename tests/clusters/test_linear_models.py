"""Linear models on a Ray cluster of this machine, beside fits in this process."""

import numpy as np
import pytest

from tests.glm.test_cox import rows, split
from tests.glm.test_hierarchical import federation
from tfp_bfl import federated, glm

pytest.importorskip("ray")
pytestmark = pytest.mark.deep(after="tests/glm/test_engines.py")


@pytest.fixture(scope="module")
def runtime():
    with federated.ray_runtime(num_workers=2) as cluster:
        yield cluster


@pytest.mark.parametrize("secure_sums", [False, True])
@pytest.mark.parametrize("family", ["gaussian", "bernoulli", "poisson", "cox"])
def test_a_fit_is_that_of_this_process(family, secure_sums, runtime):
    clients = split(*rows()) if family == "cox" else federation(family, clients=8)
    how = {"stratified": secure_sums and family == "cox", "secure_sums": secure_sums}
    expected = glm.fit(clients, family, **how)
    found = glm.fit(clients, family, engine="ray", runtime=runtime, **how)
    np.testing.assert_allclose((found.mean - expected.mean) / expected.stddev, 0, atol=1e-12)
    np.testing.assert_allclose(found.stddev, expected.stddev, rtol=1e-12)


def test_random_effects_are_those_of_this_process(runtime):
    clients = federation("poisson", clients=12)
    expected = glm.fit_hierarchical(clients, "poisson")
    found = glm.fit_hierarchical(clients, "poisson", engine="ray", runtime=runtime)
    np.testing.assert_allclose(found.between, expected.between, rtol=1e-11)
    np.testing.assert_allclose(found.posterior.mean, expected.posterior.mean, rtol=1e-11)
