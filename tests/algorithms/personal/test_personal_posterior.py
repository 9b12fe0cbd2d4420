"""A posterior of the client's own: each step by hand, what it keeps, and what predicts for whom."""

import numpy as np
import pytest
import tensorflow as tf

import tfp_bfl as bfl
from tests.kit import flat, refuses
from tfp_bfl.layers import sampling
from tfp_bfl.training.optimizers import AdamState, adam_step
from tfp_bfl.weights.flat import WeightVectors

SOURCE = bfl.data.load("breast_cancer")
CLIENTS = SOURCE.partition(bfl.data.iid(30), seed=0).split(3)[0]
FEW = {"local_epochs": 3, "batch_size": 8, "learning_rate": 0.02, "kl_weight": 2.0}


def model_fn(kind="flipout"):
    return bfl.models.mlp(kind, SOURCE.element_shape, 2, hidden=(3,), initial_stddev=0.05, prior_stddev=1.0)


def work_of(client, memory=None, weights=None, **options):
    work = bfl.algorithms.personal.posterior_work.personal_posterior(model_fn, **{**FEW, **options})
    weights = weights or bfl.weights.get_weights(model_fn())
    memory = memory or work.memory(weights, 0.3)
    message = bfl.weights.ServerMessage(
        weights, tf.constant(0), memory=memory, federation=bfl.weights.Population(3, 57)
    )
    examples = tf.nest.map_structure(tf.constant, CLIENTS.examples(client))
    return work.build()(message, examples, tf.constant([1, 2]))


def test_adam_as_a_function_is_keras():
    rng = np.random.default_rng(0)
    start, gradients = rng.normal(size=5).astype(np.float32), rng.normal(size=(6, 5)).astype(np.float32)
    variable, optimizer = tf.Variable(start), tf.keras.optimizers.Adam(0.05)
    values, moments = (tf.constant(start),), AdamState.of((tf.constant(start),))
    for gradient in gradients:
        optimizer.apply_gradients([(tf.constant(gradient), variable)])
        values, moments = adam_step(values, (tf.constant(gradient),), moments, 0.05)
        np.testing.assert_allclose(values[0], variable, atol=1e-6)


def test_two_steps_are_those_by_hand():
    """One batch an epoch: the noise's seeds are those of `over_batches`; the KL's gradients are in closed form."""
    size = int(CLIENTS.sizes[0])
    result = work_of(0, local_epochs=2, batch_size=size)
    weights, examples = bfl.weights.get_weights(model_fn()), CLIENTS.examples(0)
    call = WeightVectors(model_fn())
    own = shared = call.load(weights)
    number, zeta = call.num_variational, FEW["kl_weight"] / size
    variables = [tf.Variable(x) for x in (*own, *shared)]
    optimizers = [tf.keras.optimizers.Adam(FEW["learning_rate"]) for _ in range(2)]
    fold = tf.random.experimental.stateless_fold_in
    for epoch in range(2):
        epoch_seed = fold(tf.constant([1, 2]), epoch)
        order = tf.random.experimental.stateless_shuffle(tf.range(size), epoch_seed).numpy()
        own = call.load(weights)._replace(values=variables[0], scales=variables[1])
        with tf.GradientTape() as tape, sampling("flipout", fold(epoch_seed, 0)):
            logits = call.call(tf.constant(examples.features[order]), own)
            labels = examples.labels[order]
            nll = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        in_values, in_scales = tape.gradient(nll, variables[:2])
        in_values, in_scales = np.array(in_values), np.array(in_scales)
        kl = lambda: [np.asarray(x) for x in variables]
        v, log_s, w, log_t = kl()
        # d KL / d v = (v - w) / t^2,   d KL / d log s = s^2 / t^2 - 1
        in_values[:number] += zeta * (v - w)[:number] / np.exp(2 * log_t)
        in_scales += zeta * (np.exp(2 * (log_s - log_t)) - 1)
        optimizers[0].apply_gradients(zip([tf.constant(in_values), tf.constant(in_scales)], variables[:2]))
        # d KL / d w = (w - v) / t^2,   d KL / d log t = 1 - (s^2 + (v - w)^2) / t^2
        v, log_s, w, log_t = kl()
        gap = (v - w)[:number]
        of_shared = np.zeros_like(w)
        of_shared[:number] = -zeta * gap / np.exp(2 * log_t)
        of_scales = zeta * (1 - (np.exp(2 * log_s) + gap**2) / np.exp(2 * log_t))
        optimizers[1].apply_gradients(zip([tf.constant(of_shared), tf.constant(of_scales)], variables[2:]))
    v, log_s, w, log_t = (np.asarray(x) for x in variables)
    kept, sent = result.memory.posterior, result.weights.posterior
    np.testing.assert_allclose(flat(kept.mean), v[:number], atol=2e-5)
    np.testing.assert_allclose(0.5 * np.log(flat(kept.variance)), log_s, atol=2e-5)
    np.testing.assert_allclose(flat(sent.mean), w[:number], atol=2e-5)
    np.testing.assert_allclose(0.5 * np.log(flat(sent.variance)), log_t, atol=2e-5)
    np.testing.assert_allclose(flat(result.weights.point), v[number:], atol=2e-5)


def test_what_is_sent_follows_the_clients_own():
    start = flat(bfl.weights.get_weights(model_fn()).posterior.mean)
    result = work_of(0, local_epochs=3)
    own, sent = flat(result.memory.posterior.mean), flat(result.weights.posterior.mean)
    # Adam's steps have one length, so that it follows closely however weak the pull.
    assert 0 < np.linalg.norm(own - sent) < 0.5 * np.linalg.norm(own - start)


def test_a_stronger_pull_keeps_the_clients_own_nearer():
    kls = [float(work_of(0, local_epochs=20, kl_weight=zeta).metrics.kl) for zeta in (0.1, 1.0, 100.0)]
    assert kls[0] > 1.5 * kls[1] > 2 * kls[2] > 0


def test_the_clients_own_goes_on_and_the_first_round_begins_at_the_servers():
    first = work_of(0)
    assert int(first.memory.rounds) == 1
    stray = tf.nest.map_structure(lambda x: x + 0.3, first.memory.posterior)
    never = bfl.algorithms.personal.posterior_work.personal_posterior(model_fn).memory(
        bfl.weights.get_weights(model_fn()), 0.3
    )
    again = work_of(0, memory=never._replace(posterior=stray))
    np.testing.assert_array_equal(flat(again.memory.posterior.mean), flat(first.memory.posterior.mean))
    on = work_of(0, memory=first.memory._replace(posterior=stray))
    assert np.linalg.norm(flat(on.memory.posterior.mean) - flat(stray.mean)) < 0.3 * np.sqrt(flat(stray.mean).size)
    assert np.abs(flat(on.memory.posterior.mean) - flat(first.memory.posterior.mean)).max() > 0.1


def test_each_client_predicts_with_its_own_and_others_with_the_servers():
    process = bfl.algorithms.p_fed_bayes(model_fn, **FEW)
    result = bfl.simulate(process, CLIENTS, rounds=1, cohort_size=2, engine="local")
    kept = result.state.memory
    were_in = set(np.asarray(kept.client)[np.asarray(kept.rows.rounds) == 1])
    assert len(were_in) == 2
    server = flat(process.predictive_weights(result.state).posterior.mean)
    for client in range(5):
        own = flat(process.personal_weights(result.state, client).posterior.mean)
        assert np.array_equal(own, server) == (client not in were_in)
    scores = bfl.algorithms.personal.evaluate_clients(
        process, result, CLIENTS, CLIENTS, lambda *x: bfl.evaluation.evaluate(*x).metrics
    )
    assert len(scores) == 3 and process.is_personal


@pytest.mark.parametrize(
    "options, message",
    [
        ({"kl_weight": 0.0}, "kl_weight is 0"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"model_fn": lambda: model_fn("deterministic")}, "has point weights only: build it with kind 'flipout'"),
        (
            {"model_fn": lambda: bfl.models.lenet("flipout", (16, 16, 1), 2, normalization="batch")},
            "has BatchNorm's statistics",
        ),
    ],
)
def test_what_is_refused(options, message):
    refuses(message, bfl.algorithms.personal.posterior_work.personal_posterior, **{"model_fn": model_fn, **options})
