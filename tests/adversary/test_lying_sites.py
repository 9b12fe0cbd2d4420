"""Threat: a site of a linear model that sends false sums: left out by name, or by how much it moves a coefficient.

A move is the largest one of a coefficient, in posterior standard deviations of the honest fit. One of three sites lies.
"""

import json

import numpy as np
import pytest

from tests.sites.linear_models import ILL, Channel, pooled, run
from tfp_bfl.errors import Error
from tfp_bfl.files.arrays import stored_arrays, to_bytes
from tfp_bfl.glm.federation import answer
from tfp_bfl.glm.sums import Sums, pack
from tfp_bfl.sites.deployment.channel import SUMS
from tfp_bfl.sites.deployment.glm_job import from_arrays


class Lying(Channel):
    """A site s1 that changes its sums."""

    def __init__(self, kits, lie):
        super().__init__(kits)
        self.lie = lie

    def reply(self, task, site, content):
        if task != SUMS or site is not self.sites["s1"] or site._rows is None:
            return super().reply(task, site, content)
        size = site._rows.design.shape[1]
        question = from_arrays(stored_arrays(content, "message", 2**30), site._job, size)[0]
        return to_bytes({"sums": self.lie(answer(site._rows, "bernoulli", question), question.points[0])})


def flipped(numbers, point):
    """The gradient with the opposite sign."""
    sums = Sums.unpack(numbers, len(point))
    return pack(*sums._replace(gradient=-sums.gradient))


def tilted(numbers, point):
    """Log likelihood and gradient as of ten further events: plausible numbers that fit each other."""
    sums = Sums.unpack(numbers, len(point))
    value, gradient = sums.log_likelihood + 10 * point[0], sums.gradient + 10 * np.eye(len(point))[0]
    return pack(*sums._replace(log_likelihood=value, gradient=gradient))


def move(kits, lie):
    done = run(kits, Lying(kits, lie))
    found, exact = json.loads((done / "posterior.json").read_text()), pooled(ILL)
    parties = json.loads((done / "summary.json").read_text())["parties"]
    return parties, float(np.max(np.abs((np.array(found["mean"]) - exact.mean) / exact.stddev)))


@pytest.mark.parametrize(
    ("lie", "least", "most"),
    [
        # Each row three times: the site has the weight of three sites.
        (lambda x, point: 3 * x, 0.5, 2.5),
        # The sums of one row: about those of a fit without the site.
        (lambda x, point: x / 100, 0.5, 2.5),
        (tilted, 1.0, 20.0),
    ],
)
def test_plausible_false_sums_move_a_coefficient(kits, lie, least, most):
    """No warning: 1.2, 1.3 and 9.0 posterior standard deviations."""
    parties, moved = move(kits, lie)
    assert parties == ["s0", "s1", "s2"] and least < moved < most, moved


@pytest.mark.parametrize("lie", [lambda x, point: x * 1e300, lambda x, point: -x, flipped])
def test_sums_that_no_rows_have_end_the_fit(kits, lie):
    """Huge sums, negative ones and a gradient with the opposite sign give no result, and the site is not named."""
    with pytest.raises(Error):
        move(kits, lie)
    assert not (kits / "runs" / "first" / "posterior.json").exists()
