"""The accountant of differential privacy: against closed forms, and at the ends of its ranges."""

import math

import numpy as np
import pytest
import scipy.optimize
import scipy.stats

from tfp_bfl.errors import MAX_NOISE, MIN_DELTA, MIN_NOISE, InvalidArgument
from tfp_bfl.privacy import Steps, composed_epsilon, epsilon, example_steps, largest_example_epsilon

dp_accounting = pytest.importorskip("dp_accounting")
normal = scipy.stats.norm


def inverse(delta_of, delta):
    """The epsilon at which a decreasing function is delta."""
    return scipy.optimize.brentq(lambda x: delta_of(x) - delta, 0, 200, xtol=1e-12)


def gaussian(stddevs, delta):
    """Epsilon of a Gaussian mechanism, or of several as one.

    delta(epsilon) = Phi(mu / 2 - epsilon / mu) - exp(epsilon) Phi(-mu / 2 - epsilon / mu)

    Source: Balle and Wang 2018 (arXiv:1805.06530), theorem 8.
    """
    second = lambda x: math.exp(x + normal.logcdf(-stddevs / 2 - x / stddevs))
    return inverse(lambda x: normal.cdf(stddevs / 2 - x / stddevs) - second(x), delta)


def sampled_once(noise, share, delta):
    """Epsilon of one sum in which the term is with this probability; its likelihood ratio grows along the line."""

    def delta_of(x):
        removed = lambda t: normal.sf(t / noise)
        added = lambda t: (1 - share) * normal.sf(t / noise) + share * normal.sf((t - 1) / noise)
        ratio = lambda x: noise**2 * math.log((math.exp(x) - 1 + share) / share) + 0.5
        lost = added(ratio(x)) - math.exp(x) * removed(ratio(x))
        if math.exp(-x) <= 1 - share:
            return lost
        t = noise**2 * math.log((math.exp(-x) - 1 + share) / share) + 0.5
        return max(lost, 1 - removed(t) - math.exp(x) * (1 - added(t)))

    return inverse(delta_of, delta)


@pytest.mark.parametrize("noise, number", [(1.0, 50), (4.0, 20), (300.0, 15), (0.5, 1), (100.0, 100_000)])
@pytest.mark.parametrize("delta", [1e-5, 1e-9])
def test_epsilon_without_sampling_is_that_of_one_gaussian(noise, number, delta):
    exact = gaussian(math.sqrt(number) / noise, delta)
    assert exact <= composed_epsilon([Steps(noise, 1.0, number)], delta) < 1.001 * exact


@pytest.mark.parametrize("noise, share", [(1.0, 0.05), (0.5, 0.2), (2.0, 0.5), (0.3, 0.9)])
def test_epsilon_of_one_sampled_sum(noise, share):
    exact = sampled_once(noise, share, 1e-5)
    assert exact <= composed_epsilon([Steps(noise, share, 1)]) < 1.001 * exact


@pytest.mark.parametrize("given", [(1.0, 1000, 50, 100), (0.8, 100, 20, 30), (2.0, 1000, 50, 2000)])
def test_epsilon_is_tighter_than_by_renyi_divergences_and_above_the_central_limit(given):
    """Dong et al. 2022 (arXiv:1905.02383), corollary 4: many sums are as one Gaussian."""
    noise, everyone, cohort, rounds = given
    share = cohort / everyone
    event = dp_accounting.PoissonSampledDpEvent(share, dp_accounting.GaussianDpEvent(noise))
    renyi = dp_accounting.rdp.RdpAccountant().compose(event, rounds).get_epsilon(1e-5)
    limit = gaussian(share * math.sqrt(rounds * math.expm1(noise**-2)), 1e-5)
    assert 0.8 * limit < epsilon(*given) < 0.95 * renyi


def test_epsilon_knows_its_direction():
    assert epsilon(1.0, 1000, 50, 10) < epsilon(1.0, 1000, 50, 20) < epsilon(0.5, 1000, 50, 20)
    assert epsilon(1.0, 2000, 50, 20) < epsilon(1.0, 1000, 50, 20) < epsilon(1.0, 1000, 50, 20, delta=1e-9)
    assert epsilon(0.0, 1000, 50, 20) is None


BEYOND = r"noise_multiplier is .*, but must (be|lie between 0\.01 and 1000)"


@pytest.mark.parametrize(
    ("compute", "given", "message"),
    [
        (epsilon, (1.0, 10, 11, 5), "cohort_size is 11, but must be at most num_clients, 10"),
        (epsilon, (1.0, 10, 5, -1), "rounds is -1"),
        (epsilon, (-1.0, 10, 5, 1), "noise_multiplier is -1"),
        (epsilon, (1.0, 10, 5, 1, 1.0), "delta is 1.0, but must be at least 1e-10 and below 1"),
        *((composed_epsilon, ([Steps(x, 0.5, 10)],), BEYOND) for x in (1e-200, 1e200, 0.009, -1.0, math.nan)),
        *((composed_epsilon, ([Steps(1.0, x, 10)],), "share is|at most 1") for x in (0.0, 1.5)),
    ],
)
def test_what_no_epsilon_is_of(compute, given, message):
    with pytest.raises(InvalidArgument, match=message):
        compute(*given)


def test_what_steps_tell_adds_up():
    steps = example_steps(1.5, 100, 10, 4)
    assert steps == (1.5, 0.1, 40)
    assert example_steps(1.5, 15, 10, 4) == (1.5, 10 / 15, 8)
    assert example_steps(1.5, 5, 10, 4) == (1.5, 1.0, 4)
    alone = composed_epsilon([steps])
    assert alone == pytest.approx(epsilon(1.5, 100, 10, 40))
    halves = [steps._replace(number=20)] * 2
    assert composed_epsilon(halves) == pytest.approx(alone)
    assert composed_epsilon([steps, steps._replace(share=0.2)]) > alone
    assert composed_epsilon([steps, steps._replace(noise_multiplier=0.0)]) is None
    assert composed_epsilon([]) == 0.0


def test_the_largest_epsilon_of_examples_is_not_that_of_the_smallest_client():
    """33 examples in batches of 32 take two steps a pass, 32 one."""
    alone = [largest_example_epsilon(2.0, [size], 32, 20) for size in (32, 33, 320)]
    assert alone == [composed_epsilon([example_steps(2.0, size, 32, 20)]) for size in (32, 33, 320)]
    assert alone[1] > 1.4 * alone[0] > alone[2]
    assert largest_example_epsilon(2.0, np.array([320, 32, 33, 32]), 32, np.int64(20)) == alone[1]
    assert largest_example_epsilon(0.0, [32, 33], 32, 20) is None


def test_many_sizes_need_few_compositions():
    sizes = range(100, 260)
    found = largest_example_epsilon(1.0, sizes, 64, 10)
    assert found == max(composed_epsilon([example_steps(1.0, size, 64, 10)]) for size in (100, 129, 193, 257))


@pytest.mark.parametrize("noise", [MIN_NOISE, 0.1, 1.0, MAX_NOISE])
@pytest.mark.parametrize("share", [1 / (2**31 - 1), 1e-6, 0.5, 1.0])
@pytest.mark.parametrize("number", [1, 10**9])
def test_the_accountant_bears_the_ends_of_its_ranges(noise, share, number):
    assert 0 <= composed_epsilon([Steps(noise, share, number)], MIN_DELTA) < math.inf
