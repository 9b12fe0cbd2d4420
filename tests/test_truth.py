"""Posteriors of whole processes against those that are known: conjugate regression, and logistic regression by HMC.

Regression: ten clients of 5 to 60 examples whose features lie in other places, the prior N(0, 1) on eight weights,
noise of variance 1. The mean-field posterior of all examples in one place has the exact posterior's mean and, for each
weight, the inverse of the exact precision's diagonal for its variance.
"""

import functools
from typing import NamedTuple

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
import tensorflow_probability as tfp

from tests import processes
from tfp_bfl import algorithms, models, servers
from tfp_bfl.app.options.config import RunConfig
from tfp_bfl.data import ClientExamples, Source, dirichlet, load
from tfp_bfl.layers import DenseFlipout
from tfp_bfl.training import cosine_decay, exponential_decay

SIZES = (5, 8, 10, 12, 15, 20, 25, 30, 45, 60)
EQUAL = (23,) * 10
NUM_WEIGHTS = 8
LAST = 30
SPEC = ClientExamples(
    tf.TensorSpec([None], tf.int32), tf.TensorSpec([None, NUM_WEIGHTS], tf.float32), tf.TensorSpec([None], tf.float32)
)
LOCAL = {"local_epochs": 50, "batch_size": 64, "temperature": 1.0, "likelihood": "gaussian:1.0", "element_spec": SPEC}
NATURAL = {**LOCAL, "inference": "natural", "learning_rate": 0.1, "decay": 0.97}
# The default inference, optimizer and rule, at rates that fall until the clients no longer drift apart in a round.
falling = exponential_decay
VARIATIONAL = {**LOCAL, "decay": 0.97}
ROUNDS = RunConfig().rounds
# What the data are: no options of the method.
OF_DATA = {"likelihood": "gaussian:1.0", "element_spec": SPEC}


class Row(NamedTuple):
    """A process of the table.

    Fields:
      build: model_fn -> the process.
      share: of the clients in a round.
      ratio: least and largest of the variances over the exact ones, geometric mean over weights and the last 30 rounds.
      error: largest of the means, over the same rounds, from the exact ones: root mean square, in standard deviations.
      rounds: of the process.
      last: rounds over which error and ratio are averaged.
      sizes: examples of each client.
    """

    build: functools.partial
    share: float
    ratio: tuple[float, float]
    error: float
    rounds: int = 100
    last: int = LAST
    sizes: tuple[int, ...] = SIZES


pool = functools.partial(algorithms.variational, rule="log_linear_pool")
sites = functools.partial(algorithms.partitioned_vi, damping=0.5)
admm = functools.partial(algorithms.bayesian_admm, damping=0.5)
TABLE = {
    # No option is given; the rounds are those of the command, and the last one is the model.
    "default": Row(functools.partial(algorithms.default, **OF_DATA), 1.0, (0.85, 1.2), 0.5, ROUNDS, 1),
    "variational": Row(functools.partial(algorithms.variational, **OF_DATA), 1.0, (0.5, 1.3), 2.5, ROUNDS, 1),
    "variational, falling rate, one local step": Row(
        functools.partial(
            algorithms.variational, **{**VARIATIONAL, "local_epochs": 1, "learning_rate": falling(0.05, 0.01, 200)}
        ),
        *(1.0, (0.9, 1.1), 0.14, 400, 100),
    ),
    "variational, falling rate, five local steps": Row(
        functools.partial(
            algorithms.variational, **{**VARIATIONAL, "local_epochs": 5, "learning_rate": falling(0.03, 0.012, 60)}
        ),
        *(1.0, (0.9, 1.1), 0.23, 360, 100),
    ),
    "variational, falling rate, half of the clients": Row(
        functools.partial(
            algorithms.variational,
            **{**VARIATIONAL, "local_epochs": 5, "decay": 0.99, "learning_rate": falling(0.02, 0.006, 100)},
        ),
        *(0.5, (0.9, 1.1), 0.18, 900, 300, EQUAL),
    ),
    **{
        f"variational, server Adam, {how} rate": Row(
            functools.partial(
                algorithms.variational,
                **{**VARIATIONAL, "local_epochs": 10, "learning_rate": 3e-4},
                server_optimizer=servers.server_optimizer("adam", rate),
            ),
            *(1.0, (0.9, 1.1), 0.1, 300, 1),
        )
        for how, rate in (("constant", 0.1), ("falling", cosine_decay(0.1, 300, last=0)))
    },
    "partitioned_vi": Row(functools.partial(sites, **NATURAL), 0.5, (0.9, 1.1), 0.1),
    "bayesian_admm": Row(functools.partial(admm, **NATURAL), 1.0, (0.9, 1.1), 0.2, 300),
    "log-linear pool, KL / N": Row(functools.partial(pool, kl="total", **NATURAL), 1.0, (0.9, 1.1), 2.5),
    "log-linear pool, KL / N_k": Row(functools.partial(pool, kl="client", **NATURAL), 1.0, (4.0, 11.0), 4.0),
    "log-linear pool, KL / N_k, by backprop": Row(
        functools.partial(pool, kl="client", inference="backprop", learning_rate=1e-3, **LOCAL), 1.0, (8.0, 20.0), 4.0
    ),
}


def model_fn():
    inputs = tf.keras.Input((NUM_WEIGHTS,))
    options = {"use_bias": False, "prior_stddev": 1.0, "initial_stddev": 0.05, "kernel_initializer": "zeros"}
    return tf.keras.Model(inputs, DenseFlipout(1, **options)(inputs))


def problem(seed, sizes=SIZES):
    rng = np.random.default_rng(seed)
    mix = np.linalg.qr(rng.normal(size=[NUM_WEIGHTS] * 2))[0] * np.linspace(0.5, 1.5, NUM_WEIGHTS)
    weights = rng.normal(size=NUM_WEIGHTS)
    place = lambda: 2 * rng.normal(size=NUM_WEIGHTS)
    features = [np.float32(rng.normal(size=(n, NUM_WEIGHTS)) @ mix + place()) for n in sizes]
    return features, [np.float32(x @ weights + rng.normal(size=len(x))) for x in features]


def exact(seed, sizes=SIZES):
    """Mean and mean-field variance of the posterior of all examples."""
    x, y = (np.concatenate(part).astype(np.float64) for part in problem(seed, sizes))
    precision = np.eye(NUM_WEIGHTS) + x.T @ x
    return np.linalg.solve(precision, x.T @ y), 1 / np.diag(precision)


@functools.cache
def course(name, seed):
    """Errors of the means in standard deviations [R, D], and variances over the exact ones [R]."""
    row, rng = TABLE[name], np.random.default_rng(seed)
    datasets = [
        tf.data.Dataset.from_tensors(ClientExamples(np.full(len(y), k, np.int32), x, y))
        for k, (x, y) in enumerate(zip(*problem(seed, row.sizes)))
    ]
    mean, variance = exact(seed, row.sizes)
    with processes.in_this_process():
        process = row.build(model_fn)
        state = process.with_clients(process.initialize(), range(len(row.sizes)), row.sizes, row.rounds)
        errors, ratios = [], []
        for _ in range(row.rounds):
            cohort = rng.choice(len(row.sizes), round(row.share * len(row.sizes)), replace=False)
            state = process.next(state, [datasets[k] for k in sorted(cohort)]).state
            m, v = (np.ravel(x) for x in state.weights.posterior)
            errors.append((m - mean) / np.sqrt(variance))
            ratios.append(np.exp(np.mean(np.log(v / variance))))
    return np.stack(errors), np.stack(ratios)


def found(name, seed):
    """The error and the ratio of a `Row`."""
    (errors, ratios), last = course(name, seed), TABLE[name].last
    return rms(errors[-last:].mean(0)), np.exp(np.log(ratios[-last:]).mean())


def rms(x):
    return np.sqrt(np.mean(np.square(x)))


def assert_in_table(name, seed):
    (error, ratio), row = found(name, seed), TABLE[name]
    said = f"{name}, seed {seed}: variances {ratio:.3g} times the exact ones, means {error:.3g} standard deviations off"
    assert row.ratio[0] < ratio < row.ratio[1] and error < row.error, said


@pytest.mark.cpu_seconds(20)
@pytest.mark.statistical
@pytest.mark.deep(after="tests/algorithms/factors/test_factor_work.py")
def test_partitioned_inference_is_the_posterior():
    """With half of the clients in a round. After a single round means are .05 to .14 off, by the noise of training."""
    assert_in_table("partitioned_vi", 0)


@pytest.mark.deep(after="tests/test_truth.py")
@pytest.mark.statistical
@pytest.mark.parametrize(
    ("name", "seed"),
    [
        ("log-linear pool, KL / N", 0),
        ("variational, falling rate, five local steps", 0),
        *(
            pytest.param(f"variational, falling rate, {how}", problem_seed, marks=pytest.mark.long)
            for how in ("one local step", "five local steps", "half of the clients")
            for problem_seed in range(8)
            if (how, problem_seed) != ("five local steps", 0)
        ),
        *(
            pytest.param(name, 0, marks=pytest.mark.long)
            for name in ("log-linear pool, KL / N_k", "log-linear pool, KL / N_k, by backprop", "bayesian_admm")
        ),
        ("partitioned_vi", 1),
    ],
)
def test_the_table(name, seed):
    """Variances over the exact ones, and errors of means in standard deviations, as measured over problems from 0 on:

    variational, falling rate, one local step        1.00 to 1.06   0.04 to 0.09   eight problems
    variational, falling rate, five local steps      1.02 to 1.06   0.06 to 0.15   eight
    variational, falling rate, half of the clients   1.00 to 1.04   0.05 to 0.12   eight; clients of 23 examples each
    partitioned_vi                                   0.99 to 1.04   0.02 to 0.06   eight problems
    bayesian_admm                                    1.01           0.09           one; after 100 rounds 1.00 and 2.0
    log-linear pool, KL / N                          0.98 to 1.00   0.88 to 1.7    five
    log-linear pool, KL / N_k                        6.0 to 7.2     1.4 to 2.4     three
    log-linear pool, KL / N_k, by backprop           12             2.4            one

    No limit is nearer than half as far again as what was seen, but those of variances, which move by 4 % between
    problems: 0.1 is 2.5 times that.
    """
    assert_in_table(name, seed)


@pytest.mark.deep(after="tests/servers/test_optimizers.py")
@pytest.mark.statistical
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
def test_a_server_optimizer_ends_at_the_posterior_if_its_rate_falls_to_zero(seed):
    """Means after the last round are .030, .060 and .048 standard deviations off on problems 0 to 2, and variances
    1.01, 1.00 and .98 times the exact ones; at a constant rate means are .23, .20 and .13 off in the last 30 rounds.
    The setting is the sixth that was tried, chosen on problem 0; the others ended .08 to .88 off.
    """
    assert_in_table("variational, server Adam, falling rate", seed)
    errors, _ = course("variational, server Adam, constant rate", seed)
    assert np.mean([rms(error) for error in errors[-LAST:]]) > 0.1


def test_the_row_named_default_has_no_option():
    """Its arguments are of the data alone. All other rows have options, and so another name."""
    assert TABLE["default"].build.keywords == OF_DATA and TABLE["default"].build.func is algorithms.default
    assert TABLE["default"][1:] == (1.0, (0.85, 1.2), 0.5, 60, 1, SIZES)
    others = {name: row for name, row in TABLE.items() if name not in ("default", "variational")}
    assert all(row.build.keywords.keys() - OF_DATA.keys() and "default" not in name for name, row in others.items())


@pytest.mark.deep(after="tests/test_truth.py")
@pytest.mark.statistical
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 5))])
def test_variational_without_options(seed):
    """Measure `variational` without options: means 1.18, 1.08, 1.44, 1.45 and 1.68 standard deviations off on problems
    0 to 4, and variances .73, .74, .78, 1.01 and .85 times the exact ones: clients drift, and its rate hardly falls.
    """
    error, ratio = found("variational", seed)
    assert 0.7 < error < 2.5 and 0.5 < ratio < 1.3, f"means {error:.3g} standard deviations off, variances {ratio:.3g}"


@pytest.mark.deep(after="tests/test_truth.py")
@pytest.mark.statistical
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 5))])
@pytest.mark.parametrize("sizes", [SIZES, pytest.param(EQUAL, marks=pytest.mark.long)], ids=["unequal", "equal"])
def test_the_default_without_options(sizes, seed):
    """Measure means .10, .14 and .08 standard deviations off on problems 0 to 2, and variances 1.08, 1.00 and 1.10
    times the exact ones; with clients of 23 examples each .10, .10 and .12, and 1.06, 1.04 and 1.08. Before the server
    carried momentum from round to round they were .36, .38 and .52, and .27, .16 and .50.
    """
    TABLE[name := f"default, {len(set(sizes))} sizes"] = TABLE["default"]._replace(sizes=sizes)
    (error, ratio), row = found(name, seed), TABLE.pop(name)
    assert error < row.error and row.ratio[0] < ratio < row.ratio[1], f"means {error:.3g} off, variances {ratio:.3g}"


# Local epochs, batch size, share of the clients, sizes and rounds -> the largest error.
ELSEWHERE = {
    "batches of 8": (3, 8, 1.0, SIZES, 60, 0.25),
    "one epoch": (1, 32, 1.0, SIZES, 60, 1.0),
    "one epoch, 300 rounds": (1, 32, 1.0, SIZES, 300, 0.25),
    "one epoch, batches of 8": (1, 8, 1.0, SIZES, 60, 0.3),
    "half of the clients": (3, 32, 0.5, SIZES, 60, 0.7),
    "half of the clients, 300 rounds": (3, 32, 0.5, SIZES, 300, 0.35),
    "half of the clients, batches of 8": (3, 8, 0.5, EQUAL, 60, 0.7),
}


@pytest.mark.deep(after="tests/test_truth.py")
@pytest.mark.statistical
@pytest.mark.parametrize(
    "how", ["batches of 8", *(pytest.param(x, marks=pytest.mark.long) for x in list(ELSEWHERE)[1:])]
)
def test_the_default_of_other_epochs_batches_and_cohorts(how):
    """Errors of means and ratios of variances after 60 rounds, on problem 0; 1:

    epochs  batches  clients  equal sizes              unequal sizes
    3       32       all      .10 1.06;  .10 1.04      .10 1.08;  .14 1.00
    3       8        all      .05 1.01;  .09 1.04      .10 1.03;  .10 1.02
    5       32       all      .11 1.06;  .08 1.04      .11 1.01;  .13 1.00
    1       32       all      .14 1.06;  .15 1.04      .55 1.08;  .55 1.00
    1       8        all      .10 .98;   .14 1.02      .13 1.02;  .09 .93
    3       32       half     .38 1.01;  .24 1.10      .26 1.17;  .24 .98

    One epoch in one batch is a step of each client a round, of which 60 are too few.
    """
    epochs, batch_size, share, sizes, rounds, most = ELSEWHERE[how]
    build = functools.partial(algorithms.default, local_epochs=epochs, batch_size=batch_size, **OF_DATA)
    TABLE[how] = Row(build, share, (0.8, 1.3), most, rounds, 1, sizes)
    (error, ratio), row = found(how, 0), TABLE.pop(how)
    assert error < most and row.ratio[0] < ratio < row.ratio[1], f"means {error:.3g} off, variances {ratio:.3g}"


@pytest.mark.deep(after="tests/compression/test_variances.py")
@pytest.mark.statistical
@pytest.mark.parametrize(
    "name", ["default", pytest.param("variational, falling rate, five local steps", marks=pytest.mark.long)]
)
def test_8_bit_variances_keep_the_fixed_point(name):
    """Compare with 32 bits under equal seeds: variances, geometric mean over weights, .0005 and .0006 apart at most,
    and means .0001 and .00003 standard deviations.
    """
    row = TABLE[name]
    both = {
        f"{bits} bits, {name}": row._replace(build=functools.partial(row.build, variance_bits=bits)) for bits in (32, 8)
    }
    TABLE.update(both)
    (fine, fine_ratio), (coarse, coarse_ratio) = (course(x, 0) for x in both)
    assert np.abs(np.log(coarse_ratio / fine_ratio))[5:].max() < 0.005
    assert np.abs(coarse - fine)[-row.last :].mean(0).max() < 0.005


# HMC: breast cancer, 120 examples of seven columns that are not all alike, at scales that are not: a column of small
# numbers says little of its weight.
COLUMNS, SCALES = [0, 1, 4, 8, 9, 11, 14], np.geomspace(0.25, 4, 7)[[3, 0, 5, 1, 6, 2, 4]]
CLASSIFIER = functools.partial(
    models.mlp, "flipout", (7,), 2, hidden=(), prior_stddev=1.0, variational_bias=True, initial_stddev=0.5
)
CLASSIFICATION = {
    **{"local_epochs": 30, "batch_size": 64, "temperature": 1.0},
    **{"inference": "natural", "learning_rate": 0.05, "decay": 0.97},
}
OF_CLASSES = {
    "partitioned_vi": functools.partial(sites, **CLASSIFICATION),
    "log-linear pool, KL / N": functools.partial(pool, kl="total", **CLASSIFICATION),
    "log-linear pool, KL / N_k": functools.partial(pool, kl="client", **CLASSIFICATION),
}


def cancer():
    source = load("breast_cancer")
    features = np.float32(source.features[:120, COLUMNS] * SCALES)
    return Source("breast_cancer", "train", features, source.labels[:120], source.class_names)


@functools.cache
def by_hmc():
    """Draws [R, chains, 8, 2] of kernel and bias from the posterior of all examples, and their largest R-hat."""
    source = cancer()
    features = tf.constant(np.concatenate([source.features, np.ones([120, 1])], 1), tf.float32)

    def log_prob(weights):
        logits = tf.einsum("nd,mdc->mnc", features, weights)
        likelihood = tf.reduce_sum(tf.nn.log_softmax(logits) * tf.one_hot(source.labels, 2), [1, 2])
        return likelihood - 0.5 * tf.reduce_sum(tf.square(weights), [1, 2])

    kernel = tfp.mcmc.DualAveragingStepSizeAdaptation(tfp.mcmc.HamiltonianMonteCarlo(log_prob, 0.05, 15), 400, 0.8)
    sample = tf.function(
        lambda: tfp.mcmc.sample_chain(
            1500, tf.zeros([8, 8, 2]), kernel=kernel, num_burnin_steps=500, trace_fn=None, seed=tf.constant([0, 0])
        )
    )
    draws = sample()
    return draws.numpy(), np.max(tfp.mcmc.potential_scale_reduction(draws, split_chains=True))


@functools.cache
def of_classes(name):
    """Standard deviations of kernel and bias, [8, 2], after 40 rounds of four clients."""
    parts = cancer().partition(dirichlet(num_clients=4, alpha=1.0), seed=1)
    kernel, bias = processes.weights_after(40, OF_CLASSES[name](CLASSIFIER), parts).posterior.variance
    return np.sqrt(np.concatenate([kernel, bias[np.newaxis]]))


@pytest.mark.deep(after="tests/test_truth.py")
@pytest.mark.statistical
@pytest.mark.parametrize(
    ("name", "ratio"),
    [
        ("partitioned_vi", (0.9, 1.1)),
        ("log-linear pool, KL / N", (0.9, 1.1)),
        ("log-linear pool, KL / N_k", (1.3, 2.0)),
    ],
)
def test_standard_deviations_are_those_of_hmc(name, ratio):
    """Rank correlation with the draws' standard deviations, and widths as the best mean-field posterior's.

    That has the inverse of the precision's diagonal for its variances, here of the precision of the draws. Measured:
    rank correlations .91, .93 and .92, and with the best mean-field posterior .99, 1.00 and .99; widths 1.00, 1.05 and
    1.51 times its own. Ranks alone do not tell that the prior was counted four times.
    """
    draws, largest = by_hmc()
    assert largest < 1.02
    draws, own = draws.reshape(-1, 16), of_classes(name).ravel()
    mean_field = np.diag(np.linalg.inv(np.cov(draws.T))) ** -0.5
    assert scipy.stats.spearmanr(own, draws.std(0))[0] >= 0.9
    assert scipy.stats.spearmanr(own, mean_field)[0] >= 0.95
    assert ratio[0] < np.exp(np.mean(np.log(own / mean_field))) < ratio[1]
