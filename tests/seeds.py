"""Seed the global random generators of every test and fixture from its own name.

A test draws the same numbers alone, in any order and in any worker of pytest-xdist. --base-seed, or the environment
variable TFP_BFL_BASE_SEED, changes the numbers of all tests: a test that then fails depends on its draws.

Seeded are Python's `random`, NumPy's and TensorFlow's global generators, the initializers of Keras and the examples of
Hypothesis, except where `nox -s fuzz` asks for new ones. A fixture is seeded by its scope's name and its own, so that a
fixture of a module or of the session does not depend on the test that sets it up first. What functions of a test file
compute once and share (`functools.cache`) must name its seeds.
"""

from __future__ import annotations

import hashlib
import os
import sys

import pytest

OPTION = "--base-seed"
VARIABLE = "TFP_BFL_BASE_SEED"


def pytest_addoption(parser):
    parser.addoption(
        OPTION, metavar="NUMBER", type=int, default=os.environ.get(VARIABLE, "0"), help=f"Default: {VARIABLE}, else 0."
    )


def pytest_report_header(config):
    return f"base seed: {config.getoption(OPTION)}"


@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report(collector):
    """Seed before a test file is imported."""
    if isinstance(collector, pytest.Module):
        seed_everything(collector)
    yield


@pytest.hookimpl(hookwrapper=True)
def pytest_fixture_setup(fixturedef, request):
    """Seed before a fixture is set up."""
    seed_everything(request.node, fixturedef.argname, getattr(request, "param_index", 0))
    yield


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_call(item):
    """Seed before a test begins, after its fixtures."""
    seed_everything(item)
    yield


def seed_of(base, *names):
    """Return a seed below 2^31 that depends on the base seed and the names alone."""
    digest = hashlib.sha256(" ".join(map(str, (base, *names))).encode()).digest()
    return int.from_bytes(digest[:4], "big") % 2**31


def seed_everything(node, *names):
    """Seed the global generators from the base seed, the name of a node of pytest and further names."""
    import tfp_bfl  # noqa: F401  chooses Keras 2 before TensorFlow is imported
    import tensorflow as tf  # isort: skip

    seed = seed_of(node.config.getoption(OPTION), node.nodeid, *names)
    tf.keras.utils.set_random_seed(seed)
    hypothesis = sys.modules.get("hypothesis")  # Not every environment has it.
    if hypothesis and node.config.getoption("--hypothesis-seed", None) is None and "TFP_BFL_FUZZ_NEW" not in os.environ:
        hypothesis.core.global_force_seed = seed
