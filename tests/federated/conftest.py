import pytest

from tests.processes import in_this_process
from tfp_bfl.engines.tff import local_workers


@pytest.fixture(scope="module")
def runtime():
    """None: processes run in this process, where a round costs no TFF; test_engines.py holds TFF's to the same."""
    with in_this_process():
        yield None


@pytest.fixture(scope="module")
def tff_runtime():
    """A worker for the tests of a module."""
    pytest.importorskip("tensorflow_federated")
    with local_workers(max_concurrent_calls=1) as running:
        yield running
