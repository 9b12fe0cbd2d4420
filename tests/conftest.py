"""Where TensorFlow Federated is not installed, tests marked `tff` are skipped: here, and nowhere else."""

import importlib.util

import pytest


def pytest_collection_modifyitems(items):
    if importlib.util.find_spec("tensorflow_federated") is None:
        for item in items:
            if item.get_closest_marker("tff") or "tff_runtime" in item.fixturenames:
                item.add_marker(pytest.mark.skip(reason="TensorFlow Federated is not installed"))
