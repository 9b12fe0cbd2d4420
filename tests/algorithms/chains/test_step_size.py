"""The largest stable step of a chain of compressed gradients, beside the recursion of its second moments."""

import functools

import numpy as np
import pytest

from tests import gaussians
from tests.algorithms.chains.test_langevin import QUARTER, chain, compare, constant_rows
from tests.kit import refuses
from tfp_bfl import algorithms, models
from tfp_bfl.algorithms.chains.driver import simulate_chains
from tfp_bfl.algorithms.chains.step_size import largest_curvature, largest_step_size
from tfp_bfl.federated import check_clients, simulate

SIZES = (2.0, 3.0, 5.0)


def recursion(step, shares, noise, rates):
    """The operator of the second moments M of (theta, eta_1 / L, ..., eta_b / L), and what the noise adds to M.

    M <- A M A^T + sum_i w_i b_i b_i^T (c_i^T M c_i) + 2 g e e^T, in units of the curvature L of the potential."""
    memories = np.zeros([0, 0]) if rates is None else np.eye(len(shares))
    size = 1 + len(memories)
    a, unit = np.eye(size), np.eye(size)[0]
    a[0, 0] -= step
    a[1:, 1:] -= memories * (0 if rates is None else rates)
    a[1:, 0] = () if rates is None else rates * shares
    operator = np.kron(a, a)
    for i, (share, w) in enumerate(zip(shares, noise)):
        c, b = share * unit, -step * unit
        c[1:] -= memories[i : i + 1].ravel()
        b[1:] += memories[i : i + 1].ravel() * (0 if rates is None else rates[i])
        operator += w * np.kron(np.outer(b, c), np.outer(b, c))
    return operator, 2 * step * np.outer(unit, unit)


def variance_of(step, shares, omega, memory):
    """The stationary variance of theta over the posterior's, of clients without a distance from the mode."""
    rates = np.full(len(shares), 1 / (1 + omega)) if memory else None
    operator, added = recursion(step, np.asarray(shares), np.full(len(shares), float(omega)), rates)
    assert np.abs(np.linalg.eigvals(operator)).max() < 1
    return np.linalg.solve(np.eye(len(operator)) - operator, added.ravel())[0]


@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_the_spectral_radius_is_1_at_the_bound(seed, memory):
    rng = np.random.default_rng(seed)
    number = rng.integers(1, 5)
    own, omegas = rng.gamma(1.0, 10.0, number), rng.choice([0.0, 0.5, 3.0, 9.0, 30.0], number)
    probabilities, prior_stddev = rng.choice([0.3, 0.75, 1.0], number), rng.choice([None, 0.5])
    rates = rng.uniform(0.5, 1, number) / (1 + omegas) if memory else None
    given = {"omegas": omegas, "participation": probabilities, "memory_rates": rates, "prior_stddev": prior_stddev}
    bound = largest_step_size(own, **given)
    total = own.sum() + (0 if prior_stddev is None else 4)
    noise, mean = (1 + omegas) / probabilities - 1, rates * probabilities if memory else None
    radius = lambda step: np.abs(np.linalg.eigvals(recursion(step * total, own / total, noise, mean)[0])).max()
    assert radius(0.999 * bound) < 1 < radius(1.001 * bound)


@pytest.mark.parametrize("number", [1, 3, 10])
def test_without_compression_it_is_that_of_the_exact_chain(number):
    for rates in (None, 1.0):
        assert largest_step_size(np.ones(number), memory_rates=rates) == pytest.approx(2 / number, rel=1e-6)


@pytest.mark.deep(after="tests/algorithms/chains/test_step_size.py")
@pytest.mark.statistical
def test_the_variance_with_memories_is_that_of_the_recursion():
    """At g L = 0.3 and omega 3: 2.081 times the posterior's, 1 / 10. Error rate: 4.5 standard errors of a t
    distribution with 19 degrees of freedom, 2.5e-4."""
    wanted = variance_of(0.3, np.array(SIZES) / 10, 3, memory=True)
    assert wanted == pytest.approx(2.0814, abs=1e-3)
    options = {"estimator": "anchored", "compressor": QUARTER, "refresh_every": 1, "step_size": 0.03}
    compare(chain(constant_rows(), 4100, **options).draws.point[0][0], wanted / 10)


def test_the_curvature_of_a_gaussian_is_its_number_of_examples():
    rows = np.float32(np.random.default_rng(1).normal(size=(12, 3)))
    given = {"prior_stddev": 0.5, "likelihood": "density", "steps": 2}
    found = largest_curvature(gaussians.model_fn(3), rows, np.zeros(12, np.int32), **given)
    assert found == pytest.approx(12 + 4, rel=1e-5)
    part = largest_curvature(gaussians.model_fn(3), rows[:4], np.zeros(4, np.int32), num_examples=12, **given)
    assert part == pytest.approx(12 + 4, rel=1e-5)


def test_the_curvature_of_logistic_regression_is_the_hessians():
    """At weights 0 of two classes: the Hessian is X^T X / 4 for each sign of the classes' difference."""
    rng = np.random.default_rng(3)
    features, labels = np.float32(rng.normal(size=(40, 3)) * [3, 1, 0.3]), rng.integers(0, 2, 40).astype(np.int32)

    def build():
        model = models.mlp("deterministic", (3,), 2, hidden=(), seed=0)
        model.set_weights([np.zeros_like(x) for x in model.get_weights()])
        return model

    both = np.concatenate([features, np.ones((40, 1), np.float32)], 1)
    largest = np.linalg.eigvalsh(both.T @ both)[-1] / 4 * 2
    found = largest_curvature(build, features, labels, prior_stddev=None, steps=50)
    assert found == pytest.approx(largest, rel=1e-3)


GIVEN = {"step_size": 0.06, "compressor": "sparsifier:0.25", **gaussians.OPTIONS}


ROWS = gaussians.clients_of([np.full((int(n), 2), 1.0) for n in SIZES])


def make(**more):
    return algorithms.qlsd(gaussians.model_fn(2), **{**GIVEN, **more})


@pytest.mark.parametrize("run", [functools.partial(simulate, engine="local"), simulate_chains])
def test_a_step_at_which_any_chain_diverges_is_refused_before_the_first_round(run):
    message = (
        r"step_size is 0.2, but with the curvature 10 any chain diverges from 2 / L = 0.2 on: take a smaller step\.$"
    )
    refuses(message, run, make(curvature=10, step_size=0.2), ROWS, 2)


def test_a_step_above_the_bound_of_the_compressors_is_warned_of_and_the_run_keeps_the_warning(caplog):
    """The bound of the toy is 0.0443 with memories and 0.0935 without them."""
    warning = (
        "step_size is 0.06, but with the curvature 10 and these compressors a chain can diverge from 0.0443 on: take a "
        "smaller step or a finer compressor, or memory=False (--forgetful)."
    )
    for run in (functools.partial(simulate, engine="local"), simulate_chains):
        caplog.clear()
        result = run(make(curvature=10), ROWS, 2)
        assert [x.getMessage() for x in caplog.records if x.name.startswith("tfp_bfl")] == [warning]
        if run is not simulate_chains:
            assert list(result.warnings) == [warning]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"curvatures": []}, "curvatures is empty"),
        ({"omegas": [1, 2, 3]}, "omegas must be one number, or 2 numbers"),
        ({"omegas": -3}, "omegas must be at least 0"),
        ({"curvatures": [2, 3, 5], "participation": [0.5, 0.5]}, "participation must be one number, or 3 numbers"),
        ({"omegas": 3, "memory_rates": 2}, "memory_rates above 0 and at most 1 / "),
    ],
)
def test_bounds_of_what_is_no_chain_are_refused(given, message):
    refuses(message, largest_step_size, **{"curvatures": [1.0, 2.0], **given})


def test_a_sequence_of_no_compressors_is_refused():
    refuses("compressor has 0 entries, but must have one entry for each client", make, compressor=[])


@pytest.mark.parametrize("fits", [{"memory": False}, {"step_size": 0.04}, {"compressor": "none"}, {"curvature": None}])
def test_a_step_that_does_not_diverge(fits, caplog):
    check_clients(make(**{"curvature": 10, **fits}), ROWS)
    assert not [x for x in caplog.records if x.name.startswith("tfp_bfl")]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"curvature": 3, "prior_stddev": 0.5}, "curvature is 3, but must be above that of the prior alone, 1 /"),
        ({"curvature": "guess"}, "curvature is 'guess', but must be a finite number above 0"),
    ],
)
def test_curvatures_out_of_range(given, message):
    refuses(message, check_clients, make(**given), ROWS)


def test_an_estimated_curvature_issues_one_warning(caplog):
    process = make(curvature="estimate")
    check_clients(process, ROWS)
    simulate(process, ROWS, 2, engine="local")
    warnings = [record.getMessage() for record in caplog.records if "can diverge from" in record.getMessage()]
    assert len(warnings) == 1 and warnings[0].startswith(
        "step_size is 0.06, but with the curvature 10 (estimated) and these compressors a chain can diverge from 0.04"
    )
