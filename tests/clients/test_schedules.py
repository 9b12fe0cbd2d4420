"""Schedules against their values by hand."""

import numpy as np
import pytest
import tensorflow as tf

from tfp_bfl import clients
from tfp_bfl.errors import InvalidArgument


def test_exponential_decay_after_silent_rounds():
    rate = clients.exponential_decay(1e-3, 0.04, 50)
    for number, wanted in ((0, 1e-3), (50, 1e-3), (51, 1e-3 * np.exp(-0.04)), (100, 1e-3 * np.exp(-2))):
        np.testing.assert_allclose(rate(tf.constant(number)), wanted, rtol=1e-6)
    np.testing.assert_allclose(clients.exponential_decay(0.5, 0.0, 0)(tf.constant(999)), 0.5)
    for arguments in ({"learning_rate": 0.0}, {"decay": -0.1}, {"silent_rounds": -1}, {"learning_rate": float("nan")}):
        with pytest.raises(InvalidArgument, match=f"{next(iter(arguments))} is .*, but must be"):
            clients.exponential_decay(**arguments)


def test_sigmoid_warm_up_is_the_published_one():
    weight = clients.sigmoid_warm_up(10.0, 20)
    found = [weight(tf.constant(r)) for r in (0, 1, 2, 3, 10, 20, 21, 999)]
    np.testing.assert_allclose(found, [0.0247, 0.0450, 0.0816, 0.1477, 5.0, 9.9753, 10.0, 10.0], rtol=2e-3)


@pytest.mark.parametrize("options", [{"weight": 0.0}, {"num_rounds": 0}])
def test_warm_up_of_nothing_is_refused(options):
    with pytest.raises(InvalidArgument, match=next(iter(options))):
        clients.sigmoid_warm_up(**options)
