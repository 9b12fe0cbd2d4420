"""Empirical audits of both mechanisms of differential privacy, by canaries: a lower bound of epsilon below the claim.

Each bound is above the mechanism's epsilon for one in 1,000 of the seeds at most. Without noise the same audits find
more than 1, and with a hundredth of the claimed noise more than the claim: they can fail.
"""

import functools

import numpy as np
import pytest
import tensorflow as tf

import tfp_bfl as bfl
from tests.audit import bound_of_one_run, bound_of_runs
from tfp_bfl.contracts import ClientWork
from tfp_bfl.data import ClientExamples
from tfp_bfl.data.cohorts import each_drawn
from tfp_bfl.federated import simulation
from tfp_bfl.posterior import MeanField
from tfp_bfl.privacy import Privacy, composed_epsilon, epsilon, example_steps
from tfp_bfl.training import ExamplePrivacy
from tfp_bfl.training.example_privacy import over_drawn, private_mean
from tfp_bfl.weights import ClientResult, ModelWeights, TrainingMetrics

pytest.importorskip("dp_accounting")
pytestmark = pytest.mark.statistical
DELTA, ERROR = 1e-5, 1e-3
NOTHING = MeanField((), ())
# Of examples: batches of half of them in expectation, 8 steps. Of clients: half of them, 8 rounds.
EPOCHS = ROUNDS = 4 * 2
CANARIES, RUNS = 400, 400
# Far beyond the clip: what is clipped is what is seen.
FAR = 100.0


def told_of_examples(rows, noise, size):
    """seeds -> the sum over all steps of the private mean gradients [D]; an example's gradient is its features."""
    examples = ClientExamples(tf.zeros(len(rows), tf.int32), tf.constant(rows, tf.float32), tf.zeros(len(rows)))
    settings = ExamplePrivacy(1.0, noise)

    def step(total, features, labels, seed):
        return total + private_mean(lambda example: example[0], features, labels, settings, size, seed)

    def run(seed):
        return over_drawn(examples, seed, EPOCHS // 2, size, step, tf.zeros(rows.shape[1]))

    return tf.function(run, input_signature=[tf.TensorSpec([2], tf.int32)], autograph=False)


def examples_in_many_runs(noise):
    others = np.eye(5, dtype=np.float32)[1:]
    canary = np.float32([[FAR, 0, 0, 0, 0]])
    # Absent, it has no gradient: as many examples, so that steps and shares are the same.
    scores = []
    for i, first in enumerate((canary, 0 * canary)):
        run = told_of_examples(np.concatenate([first, others, others, others[:3]]), noise, 6)
        scores.append(np.array([run(tf.constant([i, r])).numpy()[0] for r in range(RUNS)]))
    return bound_of_runs(*scores, DELTA, ERROR)


def examples_in_one_run(noise):
    included = np.random.default_rng(3).random(CANARIES) < 0.5
    rows = FAR * np.eye(CANARIES, dtype=np.float32) * included[:, np.newaxis]
    scores = told_of_examples(rows, noise, CANARIES // 2)(tf.constant([5, 6])).numpy()
    return bound_of_one_run(scores, included, CANARIES // 2, DELTA, ERROR)


def clients_in_many_runs(noise):
    """The canary is client 0 of 8, of whom 4 are drawn; the others send the anchor, which adds nothing."""
    rule = bfl.rules.private("naive_weighted_average", clip_norm=1.0, noise_multiplier=noise, cohort_size=4)
    weights = lambda x: ModelWeights(NOTHING, (tf.constant([x, 0.0, 0.0]),), NOTHING)
    anchor = weights(0.0)
    sums = [rule.summarise(weights(x), anchor, tf.constant(1.0)) for x in (0.0, FAR)]

    @tf.function(autograph=False)
    def pooled(there, seed):
        total = tf.nest.map_structure(lambda a, b: tf.where(there, b, a), *sums)
        return rule.pool(rule.randomise(total, seed), anchor).weights.point[0][0]

    def score(canary, r):
        drawn = [bool(canary) and 0 in each_drawn(8, 4, number, seed=r) for number in range(ROUNDS)]
        return sum(float(pooled(tf.constant(x), tf.constant([r, t]))) for t, x in enumerate(drawn))

    scores = [np.array([score(canary, 2 * r + canary) for r in range(RUNS)]) for canary in (1, 0)]
    return bound_of_runs(*scores, DELTA, ERROR)


def clients_in_one_run(noise):
    """A whole simulation: each client sends the anchor, or far from it in the direction that is its own."""
    included = np.random.default_rng(4).random(CANARIES) < 0.5
    rows = bfl.data.Source("canaries", "train", np.eye(CANARIES, dtype=np.float32), np.int32(included))
    clients = rows.partition(bfl.data.iid(CANARIES), seed=0)

    def model():
        return tf.keras.Sequential([tf.keras.Input([CANARIES]), tf.keras.layers.Dense(2, kernel_initializer="zeros")])

    def work():
        def send(message, examples, seed):
            del seed
            kernel, bias = message.weights.point
            where = tf.reduce_sum(examples.features * tf.cast(examples.labels, tf.float32)[:, tf.newaxis], 0)
            point = kernel + FAR * tf.stack([where, tf.zeros_like(where)], 1), bias
            metrics = TrainingMetrics(*[tf.constant(0.0)] * 3)
            return ClientResult(message.weights._replace(point=point), tf.shape(examples.labels)[0], metrics)

        return send

    process = bfl.algorithms.compose(
        model,
        ClientWork(work),
        "naive_weighted_average",
        bfl.servers.replace(),
        weighting="equal",
        privacy=Privacy(1.0, noise, CANARIES // 2),
        element_spec=rows.element_spec,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "secret_seed", lambda: np.int32([7, 8]))
        result = bfl.simulate(process, clients, ROUNDS, engine="local")
    return bound_of_one_run(result.state.weights.point[0][:, 0], included, CANARIES // 2, DELTA, ERROR)


def claim_of_examples(noise, number, size):
    return composed_epsilon([example_steps(noise, number, size, EPOCHS // 2)], DELTA)


AUDITS = {
    "examples, many runs": (examples_in_many_runs, lambda noise: claim_of_examples(noise, 12, 6)),
    "examples, one run": (examples_in_one_run, lambda noise: claim_of_examples(noise, CANARIES, CANARIES // 2)),
    "clients, many runs": (clients_in_many_runs, lambda noise: epsilon(noise, 8, 4, ROUNDS)),
    "clients, one run": (clients_in_one_run, lambda noise: epsilon(noise, CANARIES, CANARIES // 2, ROUNDS)),
}


@functools.cache
def bound(name, noise):
    return AUDITS[name][0](noise)


@pytest.mark.parametrize("name", AUDITS)
def test_the_audit_finds_less_than_is_claimed_and_something(name):
    found, claimed = bound(name, 0.5), AUDITS[name][1](0.5)
    print(f"{name}: at least {found:.2f} of {claimed:.2f} claimed")
    assert 0 < found < claimed


@pytest.mark.parametrize("name", AUDITS)
def test_the_audit_finds_what_is_not_hidden(name):
    assert bound(name, 0.0) > 1


@pytest.mark.deep(after="tests/test_privacy_audit.py")
@pytest.mark.parametrize("name", AUDITS)
def test_the_audit_finds_a_claim_that_is_false(name):
    """Noise of 0.01 is claimed to be 5."""
    assert bound(name, 0.01) > AUDITS[name][1](5.0)
