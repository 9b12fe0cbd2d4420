import numpy as np
import pytest

from tfp_bfl import data
from tfp_bfl.errors import InvalidArgument


@pytest.mark.parametrize("size", [None, 10])
def test_full_cohort(size):
    np.testing.assert_array_equal(data.cohort(10, size, 3, seed=0), np.arange(10))


def test_cohort_is_sorted_distinct_and_a_function_of_seed_and_round():
    draws = [data.cohort(100, 10, r, seed=5) for r in range(20)]
    for draw in draws:
        assert draw.dtype == np.int64 and draw.shape == (10,) and (np.diff(draw) > 0).all()
    assert len({tuple(d) for d in draws}) == 20
    np.testing.assert_array_equal(draws[7], data.cohort(100, 10, 7, seed=5))
    assert tuple(draws[7]) != tuple(data.cohort(100, 10, 7, seed=6))


@pytest.mark.statistical
def test_every_client_is_as_likely():
    """Appearances are Binomial(2000, 0.3); seeded, bound at 4.5 sd: a fresh seed fails below 1e-4."""
    seen = np.bincount(np.concatenate([data.cohort(10, 3, r, seed=0) for r in range(2000)]))
    assert np.abs(seen - 600).max() < 4.5 * np.sqrt(2000 * 0.3 * 0.7)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((10, 11, 0, 0), "cohort_size is 11, but must be at most the number of clients, 10."),
        ((10, 0, 0, 0), "cohort_size is 0"),
        ((0, None, 0, 0), "num_clients is 0"),
        ((10, 2, -1, 0), "round_number is -1"),
        ((10, 2, 0, None), "seed is None"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(InvalidArgument, match=message):
        data.cohort(*arguments)
