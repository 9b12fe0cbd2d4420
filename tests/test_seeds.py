"""Every test and fixture begins with generators that are seeded by its own name."""

import random

import hypothesis
import numpy as np
import pytest
import tensorflow as tf

from tests import seeds


def draw():
    of_keras = tf.keras.initializers.GlorotUniform()([2])
    return np.stack([[random.random() for _ in range(2)], np.random.uniform(size=2), tf.random.normal([2]), of_keras])


@pytest.fixture(scope="module", params=["first", "second"])
def shared(request):
    return request.param_index, draw()


@pytest.fixture
def own():
    return draw()


def test_a_test_draws_by_its_name_after_its_fixtures(request, shared, own):
    found = draw()
    seeds.seed_everything(request.node)
    np.testing.assert_array_equal(found, draw())
    assert (found != own).all() and (found != shared[1]).all()


def test_a_fixture_of_a_module_draws_by_the_modules_name(request, shared):
    index, found = shared
    random.random()
    seeds.seed_everything(request.node.getparent(pytest.Module), "shared", index)
    np.testing.assert_array_equal(found, draw())


def test_another_base_seed_name_or_fixture_gives_another_seed():
    """Compare six seeds below 2^31: two are equal once in 10^8 choices of names."""
    names = [(0, "a"), (1, "a"), (0, "b"), (0, "a", "shared", 0), (0, "a", "shared", 1), (0, "a", "own", 0)]
    assert len({seeds.seed_of(*name) for name in names}) == len(names)
    assert all(0 <= seeds.seed_of(*name) < 2**31 for name in names)


@pytest.mark.parametrize("number", range(2))
def test_the_examples_of_hypothesis_follow_from_the_tests_name(request, number):
    drawn = []
    examples = hypothesis.given(hypothesis.strategies.integers(0, 2**31))(lambda number: drawn.append(number))
    check = hypothesis.settings(max_examples=5, database=None, deadline=None)(examples)
    check()
    first, drawn[:] = list(drawn), []
    check()
    assert drawn == first and hypothesis.core.global_force_seed == seeds.seed_of(
        request.config.getoption(seeds.OPTION), request.node.nodeid
    )
