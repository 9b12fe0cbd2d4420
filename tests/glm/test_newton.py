"""Newton's steps on a function with a known maximum."""

import numpy as np
import pytest

from tfp_bfl.glm.newton import maximise
from tfp_bfl.glm.sums import Sums


def ask(coefficients, value=0.0, gradient=0.0, information=0.0):
    """-sqrt(1 + d^2), d = b - 1: Newton's steps from |d| > 1 go too far. Beyond |b| = 10 with numbers added."""
    d, far = coefficients - 1.0, np.abs(coefficients) > 10
    root = np.sqrt(1 + d**2)
    added = [np.where(far, x, 0.0) for x in (value, gradient, information)]
    return Sums(9.0, 9.0, float(-root[0] + added[0][0]), -d / root + added[1], np.diag(1 / root**3 + added[2]))


@pytest.mark.parametrize(
    "beyond",
    [
        {},
        {"value": np.inf},
        {"value": np.nan},
        {"value": 99.0, "gradient": np.nan},
        {"value": 99.0, "information": np.inf},
    ],
    ids=["finite", "infinite value", "no value", "no gradient", "infinite information"],
)
def test_steps_end_at_the_maximum_past_points_that_overflow(beyond):
    start = np.array([4.0])  # From here the first step leads to -26.
    found = maximise(lambda b: ask(b, **beyond), ask(start), np.zeros(1), ["b"], start=start)
    assert found.coefficients[0] == pytest.approx(1.0, abs=1e-6) and found.messages < 25
