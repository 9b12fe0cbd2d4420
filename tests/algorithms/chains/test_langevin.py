"""Chains of QLSD and its relatives against what is known exactly of them.

Coordinates of a Gaussian do not know of each other: each is a chain of its own in one client's batches and coins.
"""

import functools

import numpy as np
import pytest

from tests import gaussians
from tests.kit import refuses
from tfp_bfl import algorithms, models
from tfp_bfl.algorithms.chains.driver import simulate_chains
from tfp_bfl.errors import Diverged
from tfp_bfl.federated import Thinning
from tfp_bfl.training import find_mode
from tfp_bfl.weights import get_weights

more = pytest.mark.deep(after="tests/algorithms/chains/test_langevin.py")
SIZES, MEANS, STEP = (2, 3, 5), (1.0, -1.0, 0.2), 0.05
TOTAL, SAME = sum(SIZES), 256
AT_MODE = gaussians.mode_at(np.zeros(SAME, np.float32), TOTAL)
EXACT = {"compressor": "none", "count_bits": False, **gaussians.OPTIONS}
ROUNDS = 700


@functools.cache
def constant_rows():
    """Each client's rows are all its mean, in every coordinate."""
    return gaussians.clients_of([np.full((n, SAME), m) for n, m in zip(SIZES, MEANS)])


@functools.cache
def rows_with_spread():
    """Each client's rows are +-1 about its mean, for 4 rows each, in another order in each coordinate."""
    rng = np.random.default_rng(8)
    signs = np.array([1.0, 1.0, -1.0, -1.0])
    return gaussians.clients_of([m + np.stack([rng.permutation(signs) for _ in range(SAME)], 1) for m in MEANS])


def chain(data, rounds=ROUNDS, step_size=STEP, size=SAME, start=0.0, cohort_size=None, seed=4, metrics=(), **options):
    process = algorithms.qlsd(gaussians.model_fn(size, start), step_size=step_size, seed=seed, **{**EXACT, **options})
    return simulate_chains(process, data, rounds, cohort_size=cohort_size, metrics=metrics)


def compare(draws, wanted, burn_in=100):
    """Mean squares about the mode 0 of draws [R, D], within 4.5 standard errors that 20 blocks of rounds tell."""
    blocks = np.square(np.float64(draws[burn_in:])).mean(1).reshape(20, -1).mean(1)
    error = blocks.std(ddof=1) / np.sqrt(20)
    assert abs(blocks.mean() - wanted) < 4.5 * error and error < 0.05 * wanted, (blocks.mean(), wanted, error)


HALF, QUARTER = "sparsifier:0.5", "sparsifier:0.25"
STAR = {"estimator": "fixed_point", "fixed_point": AT_MODE}
PLAIN = {"estimator": "plain"}
# omega = (1, 0, 3): client i's estimate has the variance ((1 + omega_i) / p_i - 1) ||h_i||^2.
BY_CLIENT = {"participation": (0.5, 0.75, 1.0), "compressor": (HALF, "none", QUARTER)}


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({**STAR, "compressor": HALF, "participation": 0.5}, 0.215054),
        pytest.param({**PLAIN, "compressor": HALF}, 0.206107, marks=more),
        pytest.param({**PLAIN, "cohort_size": 2}, 0.170320, marks=more),
        pytest.param(PLAIN, 0.133333, marks=more),
        pytest.param({**PLAIN, "participation": 0.5}, 0.206107, marks=more),
        pytest.param({**PLAIN, "compressor": QUARTER}, 0.440860, marks=more),
        pytest.param({**STAR, "compressor": HALF}, 0.152672, marks=more),
        pytest.param({**STAR, "compressor": QUARTER}, 0.215054, marks=more),
        pytest.param({**STAR, "cohort_size": 2}, 0.134907, marks=more),
        pytest.param({**PLAIN, **BY_CLIENT}, 0.276190, marks=more),
        pytest.param({**STAR, **BY_CLIENT}, 0.190476, marks=more),
    ],
)
def test_stationary_variance(options, wanted):
    """v = (2 g + g^2 sum_i w_i N_i^2 d_i^2) / (1 - (1 - g L)^2 - g^2 sum_i w_i N_i^2),   w_i = (1 + omega_i) / p_i - 1

    by a random sparsifier, coins and cohorts. Error rate: 4.5 standard errors of a t distribution with 19 degrees of
    freedom, 2.5e-4 each, for one seed.
    """
    compare(chain(constant_rows(), 2100, **options).draws.point[0][0], wanted)


@more
@pytest.mark.statistical
def test_stationary_variance_of_minibatches():
    """v = (2 + g S) / (L (2 - g L)),   S = sum_i (N_i^2 / n_i) (1 - n_i / N_i) s_i^2. Error rate: 2.5e-4."""
    per_client = 16 / 2 * (1 - 2 / 4) * (4 / 3)
    wanted = (2 + STEP * 3 * per_client) / (12 * (2 - STEP * 12))
    draws = chain(rows_with_spread(), 2100, batch_size=2, **PLAIN).draws.point[0][0]
    compare(draws - np.mean(MEANS), wanted)


@more
@pytest.mark.parametrize("options", [STAR, {"estimator": "anchored", "refresh_every": 7}])
def test_batches_make_no_difference_where_gradients_differ_by_a_constant(options):
    """grad u_j(w) - grad u_j(w') = w - w' for every j: the chain of the full gradient, step by step."""
    given = {**options, "batch_size": 1}
    if "fixed_point" in given:
        given["fixed_point"] = gaussians.mode_at(np.full(SAME, np.mean(MEANS), np.float32), 12)
    found = chain(rows_with_spread(), 30, **given).draws.point[0]
    full = chain(rows_with_spread(), 30, **PLAIN).draws.point[0]
    batches = chain(rows_with_spread(), 30, **PLAIN, batch_size=1).draws.point[0]
    np.testing.assert_allclose(found, full, atol=2e-5)
    assert np.abs(batches - full).max() > 0.1


@more
@pytest.mark.statistical
@pytest.mark.long
def test_a_memory_takes_the_compressors_noise_away():
    """Where heterogeneity is large: with a memory the variance comes near that of the control variate at the mode,
    0.152672 (its own memory moves, which costs some), and without it stays at 0.206107. Error rate: below 1e-6."""
    options = {"estimator": "anchored", "refresh_every": 1, "compressor": HALF}
    square = lambda memory: np.square(
        chain(constant_rows(), 2100, memory=memory, **options).draws.point[0][0, 200:]
    ).mean()
    assert square(False) == pytest.approx(0.206107, rel=0.05)
    assert square(True) < 0.175


@more
def test_chains_from_two_starts_meet():
    """||w_k - w'_k|| <= (1 - g m)^k ||w_0 - w'_0|| for strongly convex potentials and the same noise."""
    rng = np.random.default_rng(2)
    features = np.float32(rng.normal(size=(60, 3)))
    labels = np.int32(features @ [1, -1, 2] > 0)
    data = gaussians.clients_of([features[:20], features[20:]])
    data.source.labels[:] = labels
    starts = []
    for shift in (0.0, 3.0):
        model_fn = lambda: models.mlp("deterministic", (3,), 2, hidden=(), seed=1)
        process = algorithms.qlsd(
            model_fn, step_size=0.01, prior_stddev=0.5, compressor="none", count_bits=False, **PLAIN
        )
        first = get_weights(model_fn())
        first = first._replace(point=tuple(x + shift for x in first.point))
        draws = simulate_chains(process, data, 60, start=first).draws.point
        starts.append(np.concatenate([x[0].reshape(60, -1) for x in draws], 1))
    distance = np.linalg.norm(starts[0] - starts[1], axis=1)
    bound = 3 * np.sqrt(8) * (1 - 0.01 * 4) ** np.arange(1, 61)
    assert np.all(distance <= bound * (1 + 1e-4)) and distance[-1] < 0.1 * distance[0]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"prior_stddev": 0.1}, "the mode with the prior_stddev 0.1, but the chain's is None: take training.find_mode"),
        ({"shift": 3.0}, "fixed_point is .* standard deviations from the mode of these clients' examples"),
        ({"rows": 9}, "fixed_point is the mode of 9 examples, but the clients have 10"),
    ],
)
def test_a_mode_of_something_else_is_refused(other, message):
    """A chain about it would be off by as much, and nothing in it would say so."""
    data, size = gaussians.clients_of([np.full((n, 2), m) for n, m in zip(SIZES, MEANS)]), 2
    rows = data.source.features[: other.get("rows")] + other.get("shift", 0.0)
    find = {"prior_stddev": other.get("prior_stddev"), "likelihood": "density"}
    mode = find_mode(gaussians.model_fn(size), rows, np.zeros(len(rows), np.int32), **find)
    refuses(message, chain, data, 2, size=size, estimator="fixed_point", fixed_point=mode)


@pytest.mark.parametrize("step_size", [2.2 / TOTAL, pytest.param(100.0, marks=more)])
def test_a_step_beyond_two_over_the_curvature_diverges(step_size):
    with pytest.raises(Diverged, match=r"not finite, or beyond 1e\+06, after round \d+, by the server's step langevin"):
        chain(constant_rows(), 2000, start=1.0, step_size=step_size, **PLAIN)


@pytest.mark.deep(after="tests/algorithms/chains/test_chains.py")
@pytest.mark.statistical
@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 0.5},
        {"estimator": "anchored", "memory": True},
        {"compressor": ("none", "quantiser:65536", "none"), "participation": (1.0, 1.0, 1.0)},
    ],
)
def test_clients_of_unequal_size_are_padded_for_xla(options):
    """XLA draws other numbers from the same seeds, so that only what does not depend on them is the same.

    From 300 the mean over coordinates falls by a share g N a round, here 1e-3, to 0.3 less; five rows of each client
    instead of its own would take 0.45. Its standard deviation by the noise is sqrt(2 g k / 256) < 1.6e-3 after k <= 3
    rounds, of which the limit is six. Error rate: 2e-9 a mean. Two chains, since XLA takes far longer to compile one.
    """
    step = 1e-4
    process = algorithms.qlsd(gaussians.model_fn(SAME), step_size=step, **{**EXACT, **PLAIN, **options})
    start = get_weights(gaussians.model_fn(SAME, 300.0)())
    run = functools.partial(simulate_chains, process, constant_rows(), 3, num_chains=2, start=start)
    for xla in (False, True):
        means = np.float64(run(xla=xla).draws.point[0]).mean(-1)
        np.testing.assert_allclose(means, [300 * (1 - step * TOTAL) ** np.arange(1, 4)] * 2, rtol=0, atol=0.0095)
    counted = algorithms.qlsd(gaussians.model_fn(SAME), step_size=step, **{**EXACT, "count_bits": True})
    refuses("use count_bits=False", simulate_chains, counted, constant_rows(), 3, xla=True)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"prior_stddev": -1.0}, "prior_stddev is -1.0, but must be"),
        ({"weighting": "train_size"}, "no option of qlsd 'weighting'"),
        ({"robust": "median"}, "no option of qlsd 'robust'"),
        ({"thinning": Thinning(-1)}, "burn_in_rounds is -1"),
    ],
)
def test_arguments_out_of_range(given, message):
    refuses(message, algorithms.qlsd, gaussians.model_fn(2), **{"step_size": 0.1, "likelihood": "density", **given})
