import numpy as np
import pytest

from tfp_bfl.errors import InvalidArgument
from tfp_bfl.evaluation import rounds_to, running_mean

VALUES = [0.2, 0.6, 0.5, 0.9, 0.7]
ROWS = [
    {"round": 1},
    *({"round": 2 * i, "accuracy": v} for i, v in enumerate(VALUES, 1)),
    {"round": 11, "accuracy": None},
]


@pytest.mark.parametrize(("threshold", "wanted"), [(0.1, 2), (0.6, 4), (0.61, 8), (0.95, None)])
def test_first_round_at_a_threshold(threshold, wanted):
    assert rounds_to(ROWS, threshold) == wanted


@pytest.mark.parametrize("window", [1, 2, 3, 5, 10])
def test_running_mean(window):
    wanted = [np.mean(VALUES[max(0, i + 1 - window) : i + 1]) for i in range(5)]
    np.testing.assert_allclose(running_mean(ROWS, window=window), wanted, rtol=1e-12)


def test_bad_arguments():
    for call in (lambda: rounds_to(ROWS, 0.5, "ece"), lambda: running_mean(ROWS, "ece"), lambda: running_mean([])):
        with pytest.raises(InvalidArgument, match="No round has the metric"):
            call()
    with pytest.raises(InvalidArgument, match="window is 0"):
        running_mean(ROWS, window=0)
