import pytest

from tests import processes


@pytest.fixture(scope="package", autouse=True)
def runtime():
    """None: processes run in this process. tests/federated/test_engines.py holds TFF's to what they give here."""
    with processes.in_this_process(), processes.shared_client_work():
        yield None
