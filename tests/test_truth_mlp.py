"""Predictions of whole processes against Hamiltonian Monte Carlo on all data: a small network, at temperature 1.

Three classes in the plane, 120 examples shared out to five clients by Dirichlet(0.3) in each class; a network of ten
hidden units with the prior N(0, 1) on each of its 63 weights. Predictions are compared on a grid, most of which no
example is near.
"""

import functools
from typing import NamedTuple

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
import tensorflow_probability as tfp

from experiments.fl_swag import hmc
from tests import processes
from tfp_bfl import algorithms, evaluation, models
from tfp_bfl.app.options.config import RunConfig
from tfp_bfl.data import Source, dirichlet, iid
from tfp_bfl.training import Potential, exponential_decay
from tfp_bfl.weights import assign_weights

SEED = 2
ROUNDS = 60
GRID = np.float32(np.stack(np.meshgrid(*[np.linspace(-3, 3, 21)] * 2), -1).reshape(-1, 2))
POINT = functools.partial(models.mlp, "deterministic", (2,), 3, hidden=(10,))
GAUSSIAN = functools.partial(
    models.mlp, "flipout", (2,), 3, hidden=(10,), prior_stddev=1.0, variational_bias=True, initial_stddev=0.5
)
falling = functools.partial(exponential_decay, decay=0.1, silent_rounds=30)
LOCAL = {"local_epochs": 30, "batch_size": 64, "temperature": 1.0}
ADAM = {"optimizer": "adam", "learning_rate": falling(0.01)}
BACKPROP = {**LOCAL, "inference": "backprop", **ADAM}
# The default inference, optimizer and rule, at a falling rate.
CURVATURE = {**LOCAL, "learning_rate": falling(0.05), "decay": 0.97}
NATURAL = {**LOCAL, "inference": "natural", "learning_rate": falling(0.05), "decay": 0.97}
FIVE, ONE = dirichlet(num_clients=5, alpha=0.3), iid(num_clients=1)
pool = functools.partial(algorithms.variational, rule="log_linear_pool")


class Found(NamedTuple):
    """How predictions p on the grid compare with HMC's.

    Fields:
      agreement: share of the points where both hold the same class most probable.
      distance: mean total variation, (1/2) sum_c |p_c - hmc_c|.
      rank: Spearman's correlation of the epistemic parts over the points; None where there is none.
      ratio: of the mean epistemic parts.
    """

    agreement: float
    distance: float
    rank: float | None
    ratio: float


class Row(NamedTuple):
    """A process of the table."""

    model_fn: functools.partial
    build: functools.partial
    partition: object = FIVE


TABLE = {
    # No option is given: three local epochs, temperature 0.06, rates that fall to zero over the rounds.
    "default": Row(GAUSSIAN, functools.partial(algorithms.default)),
    "variational, falling rate": Row(GAUSSIAN, functools.partial(algorithms.variational, **CURVATURE)),
    "partitioned_vi": Row(
        GAUSSIAN, functools.partial(algorithms.partitioned_vi, damping=0.5, inference="curvature", **CURVATURE)
    ),
    "partitioned_vi, natural": Row(GAUSSIAN, functools.partial(algorithms.partitioned_vi, damping=0.5, **NATURAL)),
    "log-linear pool, KL / N, Adam": Row(GAUSSIAN, functools.partial(pool, kl="total", **{**CURVATURE, **ADAM})),
    "log-linear pool, KL / N, natural": Row(GAUSSIAN, functools.partial(pool, kl="total", **NATURAL)),
    "log-linear pool, KL / N_k": Row(GAUSSIAN, functools.partial(pool, kl="client", **{**CURVATURE, **ADAM})),
    "log-linear pool, KL / N_k, by backprop": Row(GAUSSIAN, functools.partial(pool, kl="client", **BACKPROP)),
    "federated averaging, Adam": Row(POINT, functools.partial(algorithms.variational, **BACKPROP)),
    "federated averaging": Row(POINT, functools.partial(algorithms.variational, **CURVATURE)),
    "one client with all data": Row(GAUSSIAN, functools.partial(algorithms.variational, **CURVATURE), ONE),
}


def examples(seed):
    """Three arms that overlap: [120, 2] and [120]."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(3), 40)
    angle, along = 2 * np.pi * labels / 3, 0.9 * rng.normal(size=120)
    out, across = (np.stack(x, 1) for x in ([np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]))
    features = 1.2 * out + along[:, np.newaxis] * across + 0.5 * rng.normal(size=(120, 2))
    return Source("arms", "train", np.float32(features), np.int32(labels), ("a", "b", "c"))


@functools.cache
def by_hmc(seed):
    """Predictions of draws from the posterior of all examples, [R, 441, 3], and their largest R-hat."""
    source, weights = examples(seed), Potential(POINT())
    draws = hmc.sample(
        POINT,
        source.features,
        source.labels,
        num_chains=4,
        num_results=1000,
        num_burnin=500,
        seed=seed,
        prior_stddev=1.0,
        num_leapfrog_steps=20,
    ).draws
    predict = lambda flat: tf.nn.softmax(weights.outputs(flat, tf.constant(GRID)))
    rows = tf.function(lambda flat: tf.map_fn(predict, flat))(tf.reshape(draws, [-1, draws.shape[-1]])).numpy()
    chains = rows.reshape(*draws.shape[:2], *rows.shape[1:])
    return rows, np.max(tfp.mcmc.potential_scale_reduction(chains, independent_chain_ndims=1, split_chains=True))


@functools.cache
def found(name, seed):
    """A `Found` of the process after its rounds."""
    row, (truth, _) = TABLE[name], by_hmc(seed)
    model = row.model_fn()
    parts = examples(seed).partition(row.partition, seed)
    assign_weights(model, processes.weights_after(ROUNDS, row.build(row.model_fn), parts))
    own = evaluation.summarise(evaluation.predict(model, GRID, num_samples=1000))
    true = evaluation.summarise(truth)
    return Found(
        np.mean(np.argmax(own.mean, 1) == np.argmax(true.mean, 1)),
        0.5 * np.mean(np.sum(np.abs(own.mean - true.mean), 1)),
        scipy.stats.spearmanr(own.epistemic, true.epistemic)[0] if evaluation.is_stochastic(model) else None,
        np.mean(own.epistemic) / np.mean(true.epistemic),
    )


@pytest.mark.deep(after="tests/test_truth.py")
@pytest.mark.statistical
@pytest.mark.parametrize(
    ("name", "distance", "rank"),
    [
        ("variational, falling rate", (0.0, 0.045), (0.8, 1.0)),
        pytest.param("partitioned_vi", (0.0, 0.055), (0.8, 1.0), marks=pytest.mark.long),
        pytest.param("partitioned_vi, natural", (0.0, 0.045), (0.8, 1.0), marks=pytest.mark.long),
        pytest.param("log-linear pool, KL / N, Adam", (0.07, 0.2), (0.4, 0.8), marks=pytest.mark.long),
        pytest.param("log-linear pool, KL / N, natural", (0.0, 0.05), (0.8, 1.0), marks=pytest.mark.long),
        pytest.param("log-linear pool, KL / N_k", (0.13, 0.35), (-1.0, 0.6), marks=pytest.mark.long),
        pytest.param("log-linear pool, KL / N_k, by backprop", (0.13, 0.35), (-1.0, 0.6), marks=pytest.mark.long),
        pytest.param("federated averaging, Adam", (0.12, 0.28), None, marks=pytest.mark.long),
        pytest.param("federated averaging", (0.035, 0.11), None, marks=pytest.mark.long),
        ("one client with all data", (0.0, 0.045), (0.8, 1.0)),
    ],
)
def test_predictions_are_those_of_hmc(name, distance, rank):
    """On the problem that tells the rows apart best. Measured there, and over problems 0 to 4 (docs/validation.md):

                                             agreement   distance               rank   ratio
    variational, falling rate                .991        .028                   .93    2.3
    partitioned_vi, curvature by momentum    .977        .034                   .92    2.2
    partitioned_vi, natural                  .986        .023 (.023 to .038)    .94    2.3
    log-linear pool, KL / N, Adam            .864        .129 (.042 to .129)    .65    3.2
    log-linear pool, KL / N, natural         .991        .030 (.030 to .045)    .90    2.5
    log-linear pool, KL / N_k                .918        .212 (.074 to .214)    .30    7.1
    log-linear pool, KL / N_k, by backprop   .882        .210 (.092 to .232)    .23    7.9
    federated averaging, Adam                .821        .186 (.050 to .186)
    federated averaging, momentum            .918        .071
    one client with all data                 .975        .032                   .93    2.0

    Two chains against the other two: .991, .003, .995 and .98. Distances have half as much again to their limits; the
    epistemic parts, three times and more what they should be where the prior is counted five times, a factor of 1.4.
    """
    assert by_hmc(SEED)[1] < 1.03, "chains do not agree; R-hat was 1.011 to 1.014 over five problems"
    own = found(name, SEED)
    assert distance[0] < own.distance < distance[1], own
    if rank is None:
        return
    assert rank[0] < own.rank <= rank[1], own
    assert (own.ratio > 5) == ("N_k" in name), own
    if distance[0] == 0:
        assert own.agreement > 0.965, own


def test_the_row_named_default_has_no_option():
    """All other rows have options, and so another name."""
    assert TABLE["default"] == Row(GAUSSIAN, TABLE["default"].build) and not TABLE["default"].build.keywords
    assert TABLE["default"].build.func is algorithms.default and RunConfig().rounds == ROUNDS
    assert all(row.build.keywords for name, row in TABLE.items() if name != "default")
    assert [name for name in TABLE if "default" in name] == ["default"]


@pytest.mark.deep(after="tests/test_truth.py")
@pytest.mark.statistical
@pytest.mark.parametrize("seed", [SEED, *(pytest.param(seed, marks=pytest.mark.long) for seed in (0, 1))])
def test_the_default_without_options(seed):
    """Measure the default without options: agreement .986, .982, .977, distance .035, .042, .042, rank .84, .81, .67
    and ratio .32, .31, .31 on problems 2, 0 and 1.

    Its temperature is 0.06, and that of the exact posterior 1: the epistemic part is a third of the exact one. The
    bounds state what is measured today, and no goal.
    """
    own = found("default", seed)
    assert own.agreement > 0.93 and 0.02 < own.distance < 0.07 and 0.5 < own.rank < 0.9, own
    assert 0.2 < own.ratio < 0.5, own
