"""The federated round with arithmetic as client work, so that every number is known in advance."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.kit import assert_same
from tfp_bfl import federated, models, rules, servers
from tfp_bfl.data import Clients, Source
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.federated.round import Round
from tfp_bfl.posterior import MeanField
from tfp_bfl.weights import ClientResult, ModelWeights, TrainingMetrics, get_weights

FLOOR = 1e-3
SIZES = (4, 1, 3, 2)
FEATURES = np.arange(2 * sum(SIZES), dtype=np.float32).reshape(-1, 2)
SOURCE = Source("made", "train", FEATURES, np.zeros(len(FEATURES), np.int32), ("no", "yes"))
ENDS = np.cumsum(SIZES)
CLIENTS = Clients(SOURCE, [np.arange(end - size, end) for size, end in zip(SIZES, ENDS)])
EVERYONE = (0, 1, 2, 3)


def model_fn():
    return models.mlp("flipout", input_shape=(2,), hidden=(), min_stddev=FLOOR, initial_stddev=0.1)


def shift(message, examples, seed):
    """Adds the mean of the features to all that is a mean, and scales variances by 1 + the client's number."""
    client = tf.cast(examples.client[0], tf.float32)
    amount = tf.reduce_mean(examples.features)
    weights = message.weights
    mean = tf.nest.map_structure(lambda m: m + amount, weights.posterior.mean)
    variance = tf.nest.map_structure(lambda v: v * (1 + client), weights.posterior.variance)
    point = tf.nest.map_structure(lambda p: p + amount, weights.point)
    metrics = TrainingMetrics(amount, client, -amount - client)
    return ClientResult(
        ModelWeights(MeanField(mean, variance), point, weights.moments), tf.shape(examples.labels)[0], metrics
    )


def spoil(message, examples, seed):
    """Works like `shift`, but client 1 sends means that are not finite."""
    result = shift(message, examples, seed)
    bad = tf.equal(examples.client[0], 1)
    q = result.weights.posterior
    mean = tf.nest.map_structure(lambda x: tf.where(bad, np.float32(np.nan), x), q.mean)
    return result._replace(weights=result.weights._replace(posterior=q._replace(mean=mean)))


def by_size(local, anchor, num_examples):
    return tf.cast(num_examples, tf.float32)


def build(work=shift, weigh=by_size, rule="naive_weighted_average", step=None, **options):
    options = {"client_work": lambda: work, "server_step": step or servers.replace(), **options}
    rule = rules.whole_model(rules.parse_rule(rule)) if isinstance(rule, str) else rule
    return federated.build_process(model_fn, weigh=weigh, rule=rule, **options)


@functools.cache
def plain(rule="naive_weighted_average"):
    return build(rule=rule, seed=7)


pytestmark = pytest.mark.usefixtures("runtime")


def run_round(process, cohort=EVERYONE, state=None):
    return process.next(process.initialize() if state is None else state, [CLIENTS.dataset(k) for k in cohort])


def test_it_knows_its_model():
    process = plain()
    assert process.model_fn.__wrapped__ is model_fn
    assert process.element_spec == CLIENTS.element_spec


def test_first_state():
    state = plain().initialize()
    assert isinstance(state, federated.ServerState)
    assert (state.round, state.seed) == (0, 7)
    assert_same(state.weights, get_weights(model_fn()))


@pytest.mark.parametrize("cohort", [EVERYONE, (1,), (2, 0)])
def test_a_round_by_hand(cohort):
    state = plain().initialize()
    output = run_round(plain(), cohort)
    amounts = np.array([CLIENTS.examples(k).features.mean() for k in cohort], np.float64)
    share = np.array([SIZES[k] for k in cohort], np.float64)
    share /= share.sum()
    moved = lambda x: np.float64(x) + share @ amounts
    assert_same(output.state.weights.posterior.mean, [moved(m) for m in state.weights.posterior.mean], rtol=1e-6)
    assert_same(output.state.weights.point, [moved(p) for p in state.weights.point], rtol=1e-6)
    growth = share @ (1 + np.float64(cohort))
    wanted = [v * growth for v in state.weights.posterior.variance]
    assert_same(output.state.weights.posterior.variance, wanted, rtol=1e-5)
    assert (output.state.round, output.state.seed) == (1, 7)
    np.testing.assert_allclose(output.metrics["nll"], share @ amounts, rtol=1e-6)
    np.testing.assert_allclose(output.metrics["kl"], share @ np.float64(cohort), rtol=1e-6)
    assert output.metrics["clients"]["client"].tolist() == sorted(cohort)
    assert output.metrics["num_examples"] == sum(SIZES[k] for k in cohort)


def test_weights_round_trip():
    process = plain()
    first, second = process.initialize(), run_round(plain()).state
    weights = process.get_model_weights(second)
    assert isinstance(weights, ModelWeights)
    assert_same(weights, second.weights)
    changed = process.set_model_weights(first, weights)
    assert_same(process.get_model_weights(changed), weights)
    assert (changed.round, changed.seed) == (0, 7)
    assert_same(
        run_round(process, state=changed._replace(round=np.int32(1))).state, run_round(process, state=second).state
    )


def test_tffs_own_loop_drives_it(tff_runtime):
    tff = pytest.importorskip("tensorflow_federated")
    process = plain().learning_process
    assert isinstance(process, tff.learning.templates.LearningProcess)
    select = lambda number: [CLIENTS.dataset(k) for k in (EVERYONE if number % 2 else (0, 2))]
    state = tff.simulation.run_training_process(process, select, total_rounds=3)
    by_hand = None
    for number in (1, 2, 3):
        by_hand = run_round(plain(), EVERYONE if number % 2 else (0, 2), by_hand).state
    assert_same(state, by_hand, rtol=1e-6)


def test_standard_deviations_stop_at_the_floor():
    def narrow(message, examples, seed):
        result = shift(message, examples, seed)
        q = result.weights.posterior
        q = q._replace(variance=tf.nest.map_structure(lambda v: 0.5 * FLOOR**2 * v / v, q.variance))
        return result._replace(weights=result.weights._replace(posterior=q))

    output = run_round(build(narrow))
    assert_same(output.state.weights.posterior.variance, [np.full([2, 2], FLOOR**2)], rtol=1e-6)
    assert output.metrics["share_at_floor"] == 1
    assert run_round(plain()).metrics["share_at_floor"] == 0


def test_server_step_has_a_state_and_the_last_word():
    def step(count, weights, pooled, seed):
        return count + 1, tf.nest.map_structure(lambda w, p: (w + p) / 2, weights, pooled)

    process = build(step=servers.ServerStep(lambda weights: tf.constant(10), step))
    start, pooled = process.initialize(), run_round(plain()).state.weights
    state = run_round(process).state
    assert (start.step, state.step) == (10, 11)
    assert_same(state.weights, [(a + b) / 2 for a, b in zip(*map(tf.nest.flatten, (start.weights, pooled)))], rtol=1e-5)


def test_client_work_gets_the_round_and_a_seed_of_its_own():
    def work(message, examples, seed):
        result = shift(message, examples, seed)
        number = tf.cast(message.round, tf.float32)
        return result._replace(metrics=TrainingMetrics(number, tf.random.stateless_uniform([], seed), 0.0 * number))

    process = build(work)
    first = run_round(process)
    second = run_round(process, state=first.state)
    assert first.metrics["clients"]["nll"].tolist() == [0] * 4
    assert second.metrics["clients"]["nll"].tolist() == [1] * 4
    draws = [*first.metrics["clients"]["kl"], *second.metrics["clients"]["kl"]]
    other_seed = run_round(process, state=process.initialize()._replace(seed=np.int32(1)))
    draws += list(other_seed.metrics["clients"]["kl"])
    assert len(set(draws)) == 12
    assert run_round(process, (3,)).metrics["clients"]["kl"][0] == first.metrics["clients"]["kl"][3]


@pytest.mark.parametrize("part", ["client work", "server step", "rule made_up"])
def test_parts_that_draw_noise_without_the_seed_are_refused(part):
    """Also inside of a function that they call; stateless noise passes, as above."""
    draw = tf.function(lambda x: x + tf.random.normal(tf.shape(x)), autograph=False)
    noisy = lambda weights: tf.nest.map_structure(draw, weights)
    plain = rules.whole_model(rules.parse_rule("naive_weighted_average"))
    options = {
        "client work": {"client_work": lambda: lambda *given: shift(*given)._replace(weights=noisy(given[0].weights))},
        "server step": {"step": servers.ServerStep(lambda weights: (), lambda state, old, new, seed: ((), noisy(new)))},
        "rule made_up": {
            "rule": plain._replace(name="made_up", pool=lambda *given: rules.Pooled(noisy(plain.pool(*given)[0]), {}))
        },
    }
    process = build(**options[part])
    with pytest.raises(InvalidArgument, match=f"The {part} draws noise that the run's seed does not reach"):
        process.local.next(process.initialize(), [CLIENTS.dataset(0)])


def test_metrics_of_a_faulty_client_do_not_reach_the_means():
    def work(message, examples, seed):
        result = spoil(message, examples, seed)
        bad = tf.equal(examples.client[0], 1)
        spoiled = tf.nest.map_structure(lambda x: tf.where(bad, np.float32(np.nan), x), result.metrics)
        return result._replace(metrics=spoiled)

    metrics = run_round(build(work)).metrics
    assert np.isnan(metrics["clients"]["nll"]).tolist() == [False, True, False, False]
    wanted = run_round(plain(), (0, 2, 3)).metrics
    for name in ("nll", "kl", "tempered_elbo"):
        np.testing.assert_allclose(metrics[name], wanted[name], rtol=1e-6)


def test_a_round_of_faulty_clients_alone_changes_nothing_but_its_number():
    step = servers.ServerStep(lambda weights: tf.constant(10), lambda count, weights, pooled, seed: (count + 1, pooled))
    process = build(spoil, step=step)
    state = process.initialize()
    output = run_round(process, (1,))
    assert_same(output.state.weights, state.weights)
    assert (output.state.round, output.state.step) == (1, 10)
    assert (output.metrics["num_faulty"], output.metrics["num_clients"]) == (1, 1)


COUNTS = (1_500_000_000, 1_500_000_000, 2**31 - 1, 7)


def reported(message, count):
    zero, counts = tf.constant(0.0), {"weights_at_floor": count}
    return ClientResult(message.weights, count, TrainingMetrics(zero, zero, zero), counts=counts)


@pytest.fixture(scope="module")
def process():
    def work(message, examples, seed):
        return reported(message, tf.shape(examples.labels)[0])

    return federated.build_process(
        lambda: models.mlp("flipout", input_shape=(2,), hidden=(), initial_stddev=0.1),
        client_work=lambda: work,
        weigh=lambda local, anchor, num_examples: tf.constant(1.0),
        rule=rules.whole_model(rules.parse_rule("naive_weighted_average")),
        server_step=servers.replace(),
    )


def concluded(process):
    moments: Round = process.round
    state = moments.initialize()
    message, total = moments.broadcast(state).message, None
    for k, count in enumerate(map(tf.constant, COUNTS)):
        one = moments.take(message, reported(message, count), tf.constant(k), count)
        total = one if total is None else moments.add(total, one)
    return moments.conclude(state, total)


def test_sums_of_counts_are_exact(process):
    state, metrics = concluded(process)
    assert int(metrics["num_faulty"]) == 0
    assert int(metrics["num_examples"]) == int(metrics["weights_at_floor"]) == sum(COUNTS)
    assert int(state.federation.num_examples) == sum(COUNTS)
    assert process.with_clients(process.initialize(), range(4), COUNTS).federation.num_examples == sum(COUNTS)
