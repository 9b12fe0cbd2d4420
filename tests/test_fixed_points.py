"""Where the rounds of each client step under each rule are stationary: conjugate regression, at the exact posterior.

The problems are those of `tests/test_truth.py`: ten clients whose features lie in other places. All clients start at
the exact posterior. There each of them moves towards the optimum of its own data, and the pooled mean stays only under
a rule that weights their displacements rightly.
"""

import functools
import re
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from tests.test_truth import SIZES, exact, model_fn, problem, rms
from tfp_bfl import clients, rules
from tfp_bfl.algorithms.fixed_points import DEFAULT_RULE, default_rule, fixed_point_warning
from tfp_bfl.data import ClientExamples
from tfp_bfl.posterior import MeanField
from tfp_bfl.weights import Population, ServerMessage, get_weights

# One batch an epoch: equally many steps of all clients. At these rates a client moves along its gradient.
LOCAL = {"local_epochs": 16, "batch_size": 64, "temperature": 1.0, "likelihood": "gaussian:1.0", "decay": 0.3}
STEPS = {
    "curvature, momentum": {"inference": "curvature", "optimizer_fn": "momentum", "learning_rate": 1e-5},
    "curvature, sgd": {"inference": "curvature", "optimizer_fn": "sgd", "learning_rate": 1e-4},
    "curvature, adam": {"inference": "curvature", "optimizer_fn": "adam", "learning_rate": 1e-4},
    # Each step divides by the precision of that moment: long rounds, so that it is mostly the one that is sent.
    "natural": {"inference": "natural", "learning_rate": 2e-5, "local_epochs": 480, "decay": 0.9},
}
RULES = ("mean_precision_average", "naive_weighted_average", "linear_pool", "log_linear_pool")
EPOCHS = 640


class Moved(NamedTuple):
    """Posteriors of the clients after one round from the exact posterior, over several seeds.

    Fields:
      stacked: leaves [R, K, D].
      start: leaves [D].
    """

    stacked: MeanField
    start: MeanField


@functools.cache
def moved(step, seed):
    options = {**LOCAL, **STEPS[step]}
    work, weights = clients.variational(model_fn, **options)(), get_weights(model_fn())
    repeats = EPOCHS // options["local_epochs"] * (1 + 2 * (step == "natural"))
    mean, variance = exact(seed)
    like = weights.posterior.mean[0].shape
    start = MeanField(*((tf.constant(np.reshape(x, like), tf.float32),) for x in (mean, variance)))
    message = ServerMessage(weights._replace(posterior=start), tf.constant(0))
    message = message._replace(federation=Population(tf.constant(len(SIZES)), tf.constant(sum(SIZES))))
    rows = []
    for repeat in range(repeats):
        for k, (x, y) in enumerate(zip(*problem(seed))):
            examples = ClientExamples(tf.fill([len(y)], k), tf.constant(x), tf.constant(y))
            result = work(message, examples, tf.constant([repeat, k]))
            rows.append([np.ravel(np.float64(part[0])) for part in result.weights.posterior])
    stacked = np.reshape(np.transpose(rows, (1, 0, 2)), (2, repeats, len(SIZES), -1))
    return Moved(MeanField(*stacked), MeanField(mean, variance))


def drift(step, rule, seed):
    """Return the mean displacement of the pooled mean over that of a client, both rms in standard deviations."""
    found = moved(step, seed)
    pool = lambda q: rules.aggregate(rules.parse_rule(rule), q, np.float64(SIZES), found.start).mean.numpy()
    pooled = [pool(MeanField(*(part[r] for part in found.stacked))) for r in range(len(found.stacked.mean))]
    stddev = np.sqrt(found.start.variance)
    alone = (found.stacked.mean.mean(0) - found.start.mean) / stddev
    return rms((np.mean(pooled, 0) - found.start.mean) / stddev) / np.sqrt(
        np.average(rms_of(alone) ** 2, weights=SIZES)
    )


def rms_of(rows):
    return np.sqrt(np.mean(np.square(rows), -1))


def is_right(step, rule):
    inference, _, optimizer = step.partition(", ")
    return fixed_point_warning(rule, optimizer or "momentum", inference) is None


@pytest.mark.statistical
@pytest.mark.cpu_seconds(20)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("step", STEPS)
def test_a_pair_is_stationary_at_the_posterior_if_it_has_no_warning(step, rule):
    """Drift of the pooled mean as a share of a client's displacement, on problems 0 and 1; seeds of training are fixed.

    step                   plain means    log-linear pool
    curvature, momentum    .035 .031      .417 .302
    curvature, sgd         .026 .047      .414 .282
    curvature, adam        .277 .146      .068 .108
    natural                .231 .143      .053 .038

    Adam under the log-linear pool is stationary elsewhere too, by its first steps, which are signs: it has no exact
    weights, and its drift is only small on these problems.
    """
    found = drift(step, rule, 0)
    if is_right(step, rule):
        assert found < 0.08
    elif (step, rule) != ("curvature, adam", "log_linear_pool"):
        assert found > 0.12


@pytest.mark.parametrize("step", ["curvature, momentum", "natural"])
def test_the_default_rule_of_an_inference_is_right(step):
    rule = default_rule(step.partition(",")[0])
    assert is_right(step, rule) and rule in RULES
    assert default_rule(None) == DEFAULT_RULE


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("mean_precision_average", "adam", "curvature"), "The optimizer 'adam' divides .* use optimizer 'momentum'"),
        (("naive_weighted_average", "adam", None), "The optimizer 'adam' divides"),
        (("naive_weighted_average", tf.keras.optimizers.RMSprop, None), "The optimizer RMSprop divides"),
        (("log_linear_pool", "sgd", "curvature"), "'log_linear_pool' weights means by precision, .* or inference 'nat"),
        (("distributed_weight_consolidation", "sgd", "backprop"), "weights means by precision"),
        (("linear_pool", "sgd", "natural"), "by the client's own precision, .* use rule 'log_linear_pool'"),
    ],
)
def test_warnings_name_the_remedy(given, message):
    assert re.search(message, fixed_point_warning(*given))


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "nesterov", tf.keras.optimizers.SGD])
@pytest.mark.parametrize("rule", ["mean_precision_average", "linear_pool", "a custom rule"])
def test_right_pairs_have_no_warning(optimizer, rule):
    assert fixed_point_warning(rule, optimizer, "curvature") is None
    assert fixed_point_warning(rule, optimizer) is None


if __name__ == "__main__":  # The table.
    for step in STEPS:
        for rule in RULES:
            print(f"{step:22s} {rule:26s}", *(f"{drift(step, rule, seed):.3f}" for seed in (0, 1)), flush=True)
