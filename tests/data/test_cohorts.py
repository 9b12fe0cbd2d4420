import numpy as np
import pytest

from tests.kit import refuses
from tfp_bfl import data


def test_cohort_is_sorted_distinct_and_a_function_of_seed_and_round():
    draws = [data.cohort(100, 10, r, seed=5) for r in range(20)]
    for draw in draws:
        assert draw.dtype == np.int64 and draw.shape == (10,) and (np.diff(draw) > 0).all()
    assert len({tuple(d) for d in draws}) == 20
    np.testing.assert_array_equal(draws[7], data.cohort(100, 10, 7, seed=5))
    assert tuple(draws[7]) != tuple(data.cohort(100, 10, 7, seed=6))
    for size in (None, 10):
        np.testing.assert_array_equal(data.cohort(10, size, 3, seed=0), np.arange(10))


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
        *(((10, 2, 1, 0, 0, popularity), "popularity is") for popularity in (0.0, -1.0, float("nan"))),
    ],
)
def test_bad_input(arguments, message):
    refuses(message, data.cohort, *arguments)


def appearances(popularity, seed=0):
    drawn = [data.cohort(20, 3, r, seed, popularity=popularity) for r in range(400)]
    return np.bincount(np.concatenate(drawn), minlength=20)


def test_popular_clients_are_drawn_more_often_in_all_rounds():
    assert appearances(0.1).std() > 3 * appearances(1e6).std()
    assert np.corrcoef(appearances(0.3), appearances(0.3, seed=1))[0, 1] < 0.9
    draws = [data.cohort(50, 10, 4, 7, popularity=0.05) for _ in range(2)]
    assert (np.diff(draws[0]) > 0).all() and len(draws[0]) == 10
    np.testing.assert_array_equal(*draws)
