import pytest

from tfp_bfl import federated


@pytest.fixture(scope="module")
def runtime():
    """A worker for the tests of a module."""
    with federated.local_workers(max_concurrent_calls=1) as running:
        yield running
