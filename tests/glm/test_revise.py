"""Clients that join and leave by their sums."""

import numpy as np
import pytest

from tests.glm.test_fit import rows, split
from tests.kit import refuses
from tfp_bfl import glm


def test_gaussian_revisions_are_new_fits():
    clients = split(*rows("gaussian"))
    whole = glm.fit(clients, prior_stddev=3.0)
    left = glm.revise(whole, remove=clients[2:4])
    want = glm.fit(clients[:2] + clients[4:], prior_stddev=3.0)
    for have, wanted in ((left.posterior, want), (glm.revise(left.posterior, add=clients[2:4]).posterior, whole)):
        np.testing.assert_allclose(have.mean, wanted.mean, rtol=1e-9)
        np.testing.assert_allclose(have.covariance, wanted.covariance, rtol=1e-9)
        assert have.dispersion == pytest.approx(wanted.dispersion, rel=1e-9)
        assert (have.count, have.num_clients) == (wanted.count, wanted.num_clients)
    assert left.moved == 0


def test_a_given_dispersion_stays():
    clients = split(*rows("gaussian"))
    assert glm.revise(glm.fit(clients, dispersion=2.0), remove=clients[:3]).posterior.dispersion == 2.0


@pytest.mark.parametrize("family", ["bernoulli", "poisson"])
def test_other_revisions_are_one_newton_step_away(family):
    clients = split(*rows(family, count=2000), clients=20)
    whole = glm.fit(clients, family, prior_stddev=3.0)
    left = glm.revise(whole, remove=clients[5:7])
    want = glm.fit(clients[:5] + clients[7:], family, prior_stddev=3.0)
    error = np.max(np.abs(left.posterior.mean - want.mean) / want.stddev)
    assert error < left.moved**2 / 10 < 0.1
    assert np.max(np.abs(whole.mean - want.mean) / want.stddev) > 20 * error
    np.testing.assert_allclose(left.posterior.stddev, want.stddev, rtol=0.05)
    # The way back ends where it began: the sums are of the same coefficients.
    back = glm.revise(left.posterior, add=clients[5:7])
    np.testing.assert_allclose(back.posterior.mean, whole.mean, rtol=1e-9)


def test_many_small_departures_are_measured_from_the_last_fit():
    """One after another, each moves the maximum little; together they are warned of."""
    clients = split(*rows("bernoulli", count=400), clients=20)
    one_by_one = glm.fit(clients, "bernoulli", prior_stddev=3.0)
    moved = []
    for client in clients[6:]:
        revised = glm.revise(one_by_one, remove=[client])
        one_by_one, moved = revised.posterior, [*moved, revised.moved]
    at_once = glm.revise(glm.fit(clients, "bernoulli", prior_stddev=3.0), remove=clients[6:])
    assert moved[-1] == pytest.approx(at_once.moved, rel=1e-6) and moved[-1] > moved[0]
    assert any("fewer than 10 for each" in warning for warning in one_by_one.warnings)


def test_exposures_of_those_that_leave_count():
    features, counts = rows("poisson")
    years = np.random.default_rng(0).uniform(1, 3, 400)
    halves = [(features[:200], counts[:200]), (features[200:], counts[200:])]
    whole = glm.fit(halves, "poisson", exposure=[years[:200], years[200:]])
    left = glm.revise(whole, remove=halves[1:], remove_exposure=[years[200:]])
    want = glm.fit(halves[:1], "poisson", exposure=[years[:200]])
    assert np.max(np.abs(left.posterior.mean - want.mean) / want.stddev) < 0.2


def test_bad_input_is_one_sentence():
    clients = split(*rows("bernoulli"))
    whole = glm.fit(clients, "bernoulli")
    survival = glm.fit(
        [(clients[-1][0], np.stack([np.arange(1.0, len(clients[-1][0]) + 1), clients[-1][1]], 1))], "cox"
    )
    refuses("among gaussian, bernoulli, poisson, multinomial. Fit", glm.revise, survival, remove=clients[:1])
    with pytest.raises(ValueError, match="it must come from fit without second_order"):
        glm.revise(glm.fit(clients, "bernoulli", second_order=True), remove=clients[:1])
    refuses("no more can be removed", glm.revise, whole, remove=clients)
    refuses("names has 3 names, but there are 2", glm.revise, whole, add=[(clients[0][0][:, :2], clients[0][1])])
