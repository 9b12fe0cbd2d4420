"""What the server learns of each client's variances: pooled, pulled back, stepped, and refused."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.federated.toys import no_metrics
from tests.kit import refuses
from tfp_bfl import algorithms, models, rules, servers
from tfp_bfl.algorithms.personal.step import Learning
from tfp_bfl.algorithms.personal.step import personal as personal_step
from tfp_bfl.algorithms.personal.variances import PERSONAL_VARIANCES, Parameters
from tfp_bfl.algorithms.personal.work import personal
from tfp_bfl.contracts import ClientWork
from tfp_bfl.data import ClientExamples
from tfp_bfl.federated import memory
from tfp_bfl.posterior import MeanField
from tfp_bfl.weights import ClientResult, ModelWeights, ServerMessage

NOTHING = MeanField((), ())
THETA = np.array([0.5, -0.5], np.float32)
ANCHOR = ModelWeights(MeanField((tf.constant(THETA),), (tf.fill([2], 0.01),)), (), NOTHING)
# A hypernetwork of one linear layer, two clients, and what their training changed; the source is a hand-worked example.
SOURCES = PERSONAL_VARIANCES
LINEAR = SOURCES["hypernetwork"](2, embedding_size=2, hidden=())
PARAMETERS = Parameters(
    (np.array([[1, 0.5], [0, -1]], np.float32), np.array([0, 0.1], np.float32)),
    np.array([[1, 2], [-1, 0.5]], np.float32),
)
CHANGE = np.array([[0.2, -0.1], [0.0, 0.4]], np.float32)
LOGITS = [[-7.504588, -9.887476], [-9.495412, -9.396652]]
GRADIENT = Parameters(
    (np.array([[0.049314, -0.320996], [0.098629, 0.099663]]), np.array([0.049314, 0.272328])),
    np.array([[0.037147, 0.024334], [0.148331, -0.296662]]),
)
SIZES = np.array([25, 75])


def sending(posterior_of):
    """Work that sends the posterior that a function makes of the server's and of a client's number."""

    def build():
        def work(message, examples, seed):
            del seed
            q = posterior_of(message.weights.posterior, examples.client[0])
            return ClientResult(message.weights._replace(posterior=q), tf.size(examples.labels), no_metrics())

        return work

    return ClientWork(build)


def by_change(moved=0.0):
    """Work whose training moves the logits by what the example says, and the means by `moved`."""
    logits = lambda q, client: tf.math.log(q.variance[0]) - tf.gather(CHANGE, client)
    return sending(lambda q, client: MeanField((q.mean[0] + moved,), (tf.exp(logits(q, client)),)))


def results(work, told=PARAMETERS, anchor=ANCHOR):
    run, found = work(), []
    for k, size in enumerate(SIZES):
        labels = np.zeros(size, np.int32)
        examples = ClientExamples(np.full(size, k, np.int32), labels[:, np.newaxis].astype(np.float32), labels)
        message = ServerMessage(anchor, tf.constant(0), tf.nest.map_structure(tf.constant, told))
        found.append(run(tf.nest.map_structure(tf.convert_to_tensor, message), examples, tf.constant([0, k])))
    return found


def pooled(work, found, rule="log_linear_pool", anchor=ANCHOR, sizes=SIZES):
    """The pooled weights and extra statistics."""
    whole, start = rules.whole_model(rule), memory.anchored(work, anchor)
    weights = [tf.constant(float(n)) for n in sizes]
    parts = [whole.summarise(memory.joined(work, x.weights, x.extra), start, w) for x, w in zip(found, weights)]
    return memory.parted(work, whole.pool(functools.reduce(whole.merge, parts), start).weights)


def of_round(inner=None, source=None, **options):
    """The pool of a round of both clients."""
    work = personal(inner or by_change(), source or LINEAR)
    return pooled(work, results(work, **options))


def test_a_round_tells_how_far_logits_moved():
    _, extra = of_round()
    squares = np.sum(np.square(CHANGE), 1)
    wanted = np.sqrt(np.average(squares, weights=SIZES))
    step = personal_step(LINEAR)
    state = step.initialize(ANCHOR)
    np.testing.assert_allclose(step.metrics(state, ANCHOR, extra)["logit_change"], wanted, rtol=1e-5)
    assert step.metrics(state, ANCHOR, tf.nest.map_structure(tf.zeros_like, extra))["logit_change"] == 0


def all_close(found, expected, **options):
    tf.nest.map_structure(lambda x, y: np.testing.assert_allclose(x, y, **options), found, expected)


def test_logits_and_what_is_pulled_back_through_the_hypernetwork_by_hand():
    for client, expected in enumerate(LOGITS):
        np.testing.assert_allclose(LINEAR.of_client(PARAMETERS, client, THETA), np.exp(expected), rtol=2e-6)
    _, extra = of_round()
    all_close((extra.shared, extra.rows), tuple(GRADIENT)[:2], rtol=3e-5)
    np.testing.assert_allclose(tf.linalg.global_norm(tf.nest.flatten(tuple(GRADIENT))), 0.560095, rtol=1e-5)
    np.testing.assert_allclose(extra.present, [0.25, 0.75], rtol=1e-6)


def test_pull_back_is_the_derivative_by_finite_differences():
    """Of sum_m b_m Delta_m l_m in every parameter, of a hypernetwork with a hidden layer."""
    source = SOURCES["hypernetwork"](2, embedding_size=3, hidden=(4,))
    parameters = tf.nest.map_structure(lambda x: x.astype(np.float64), source.initialize(2, 5))

    def total(leaves):
        of = tf.nest.pack_sequence_as(parameters, leaves)
        logits = [source.logits(of.shared, source.row(of, k)) for k in range(2)]
        return float(sum(b * np.sum(CHANGE[k] * logits[k]) for k, b in enumerate(SIZES / SIZES.sum())))

    _, extra = of_round(source=source, told=source.initialize(2, 5))
    leaves = tf.nest.flatten(parameters)
    for i, found in enumerate(tf.nest.flatten((extra.shared, extra.rows))):
        expected = np.zeros(found.shape)
        for place in np.ndindex(*found.shape):
            values = [[x.copy() for x in leaves] for _ in range(2)]
            values[0][i][place] += 1e-5
            values[1][i][place] -= 1e-5
            expected[place] = (total(values[0]) - total(values[1])) / 2e-5
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=2e-6)


def test_means_are_pooled_by_the_clients_own_precisions_by_hand():
    mean = np.array([[0.5, -0.2], [0.4, 0.1], [0.6, -0.3]], np.float32)
    variance = np.array([[0.0625, 0.04], [0.16, 0.005], [0.036, 0.36]], np.float32)
    stacked = MeanField((mean,), (variance,))
    found = rules.aggregate(rules.log_linear_pool(), stacked, [0.2, 0.3, 0.5])
    np.testing.assert_allclose(found.mean[0], [0.563351, 0.069038], rtol=1e-5)
    found = rules.aggregate(rules.naive_weighted_average(), stacked, [0.2, 0.3, 0.5])
    np.testing.assert_allclose(found.mean[0], [0.52, -0.16], rtol=1e-5)


def test_a_step_by_hand():
    """theta by SGD of rate 2; v = momentum v + g + decay x, x = x - rate v, twice."""
    how = Learning(0.5, 0.25, 0.01)
    step = personal_step(LINEAR, servers.server_optimizer("sgd", 2.0), shared=how, rows=how, capped=False)
    state = step.initialize(ANCHOR)._replace(parameters=PARAMETERS)
    pool, extra = of_round(by_change(moved=0.1))
    x, v = tuple(PARAMETERS), tf.nest.map_structure(np.zeros_like, tuple(PARAMETERS))
    for _ in range(2):
        state, weights = step.next(state, ANCHOR, pool, [0, 0], extra)
        v = tf.nest.map_structure(lambda x, v, g: 0.25 * v + g + 0.01 * x, x, v, tuple(GRADIENT))
        x = tf.nest.map_structure(lambda x, v: x - 0.5 * v, x, v)
        all_close(tuple(state.parameters), x, rtol=1e-4)
    np.testing.assert_allclose(weights.posterior.mean[0], THETA + 0.2, rtol=1e-5)
    unseen = LINEAR.logits(state.parameters.shared, np.mean(state.parameters.rows, 0))
    np.testing.assert_allclose(weights.posterior.variance[0], np.exp(unseen), rtol=1e-5)


def test_all_gradients_are_clipped_together():
    """The change of theta has the norm .1 sqrt(2), the pulled back .560095."""
    how = Learning(1.0, 0.0, 0.0)
    pool, extra = of_round(by_change(moved=0.1))
    norm = np.hypot(0.1 * np.sqrt(2), 0.560095)
    step = personal_step(LINEAR, shared=how, rows=how, capped=False, clip_norm=0.5 * norm)
    state, weights = step.next(step.initialize(ANCHOR)._replace(parameters=PARAMETERS), ANCHOR, pool, [0, 0], extra)
    np.testing.assert_allclose(weights.posterior.mean[0], THETA + 0.05, rtol=1e-5)
    all_close(state.parameters.rows, PARAMETERS.rows - 0.5 * GRADIENT.rows, rtol=1e-4)


def test_logits_move_no_further_than_those_of_the_clients():
    """Of one client and a source whose derivative is 1 the capped step is exactly the client's change; of a
    hypernetwork with a hidden layer, whose gain is far above 1 here, about as far."""
    how = Learning(1e3, 0.0, 0.0)
    single = SOURCES["free_variances"](2, ranged="clamped")

    def logits_after(source):
        told, work = source.initialize(2, 3), personal(by_change(), source)
        pool, extra = pooled(work, results(work, told)[:1])
        step = personal_step(source, shared=how, rows=how)
        state, _ = step.next(step.initialize(ANCHOR)._replace(parameters=told), ANCHOR, pool, [0, 0], extra)
        before = source.logits(told.shared, source.row(told, 0))
        return source.logits(state.parameters.shared, source.row(state.parameters, 0)) - before

    np.testing.assert_allclose(logits_after(single), -CHANGE[0], rtol=1e-3)
    moved = logits_after(SOURCES["hypernetwork"](2, 3, hidden=(200, 200)))
    assert 0.3 < np.linalg.norm(moved) / np.linalg.norm(CHANGE[0]) < 1.1


def test_a_clip_makes_no_capped_step_longer():
    pool, extra = of_round(by_change(moved=0.1))
    moves = []
    for clip_norm in (100.0, 0.1):
        how = Learning(1e3, 0.0, 0.0)
        step = personal_step(LINEAR, shared=how, rows=how, clip_norm=clip_norm)
        state, _ = step.next(step.initialize(ANCHOR)._replace(parameters=PARAMETERS), ANCHOR, pool, [0, 0], extra)
        moves.append(np.linalg.norm(state.parameters.rows - PARAMETERS.rows))
    assert moves[1] < 0.5 * moves[0]


def test_a_sum_that_noise_made_negative_moves_no_parameter_upwards():
    """With differential privacy the pooled ||l - l'||^2 may be below zero: the capped rate is then 0."""
    pool, extra = of_round(by_change(moved=0.1))
    how = Learning(1e3, 0.0, 0.0)
    step = personal_step(LINEAR, shared=how, rows=how)
    before = step.initialize(ANCHOR)._replace(parameters=PARAMETERS)
    state, _ = step.next(before, ANCHOR, pool, [0, 0], extra._replace(moved=tf.constant(-1.0)))
    all_close(state.parameters, PARAMETERS, rtol=1e-7)
    assert np.isfinite(step.metrics(state, ANCHOR, extra._replace(moved=tf.constant(-1.0)))["logit_change"])


@pytest.mark.parametrize("absent_decay", [False, True])
def test_rows_of_absent_clients_stay_unless_they_decay(absent_decay):
    step = personal_step(LINEAR, rows=Learning(0.5, 0.0, 0.1), capped=False, absent_decay=absent_decay)
    work = personal(by_change(), LINEAR)
    pool, extra = pooled(work, results(work)[:1])
    state, _ = step.next(step.initialize(ANCHOR)._replace(parameters=PARAMETERS), ANCHOR, pool, [0, 0], extra)
    factor = 0.95 if absent_decay else 1.0
    np.testing.assert_allclose(state.parameters.rows[1], factor * PARAMETERS.rows[1], rtol=1e-6)
    assert np.abs(state.parameters.rows[0] - 0.95 * PARAMETERS.rows[0]).max() > 0.01


def test_a_client_never_seen_has_the_mean_embedding_and_known_ones_their_own():
    of_client = personal(by_change(), LINEAR).personal
    for client, row in (
        (0, PARAMETERS.rows[0]),
        (1, PARAMETERS.rows[1]),
        (2, PARAMETERS.rows.mean(0)),
        (9, PARAMETERS.rows.mean(0)),
    ):
        expected = np.exp(LINEAR.logits(PARAMETERS.shared, row))
        own = of_client(ServerMessage(ANCHOR, 0, PARAMETERS), client)
        np.testing.assert_allclose(own.posterior.variance[0], expected, rtol=1e-6)


def test_logits_by_rate_go_round_and_their_middle_stays():
    """The pulled back change of free logits that start apart by layer is that of the clients."""
    source = SOURCES["free_variances"](2, initial_rate=0.5)
    step = personal_step(source, rows=Learning(0.5, 0.0, 0.0), capped=False)
    anchor = ModelWeights(MeanField((THETA[:1], 0.1 * THETA[1:]), (THETA[:1], THETA[:1])), (), NOTHING)
    anchor = tf.nest.map_structure(tf.convert_to_tensor, anchor)
    state = step.initialize(anchor)
    np.testing.assert_allclose(state.parameters.middle, np.log([0.25, 0.0025]), rtol=1e-5)
    work = personal(sending(lambda q, _: q._replace(variance=tuple(x * tf.exp(0.1) for x in q.variance))), source)
    pool, extra = pooled(work, results(work, state.parameters, anchor), anchor=anchor)
    after, _ = step.next(state, anchor, pool, [0, 0], extra)
    np.testing.assert_allclose(after.parameters.rows, 0.5 * 0.1 * np.array([[0.25] * 2, [0.75] * 2]), rtol=1e-4)
    np.testing.assert_array_equal(after.parameters.middle, state.parameters.middle)
    assert after.momenta.middle == ()


def test_the_start_is_relative_to_the_weights_that_a_run_starts_from():
    """Three times the weights have nine times the variance; so has the server's own posterior of the first round."""
    model_fn = lambda: models.mlp("variational_dropout", (3,), 2, hidden=(), seed=0)
    options = {"initial_rate": 0.1, "ranged": "clamped"}
    process = algorithms.meta_vd(model_fn, num_clients=2, variances="free_variances", variance_options=options)
    first = process.local.initialize()
    (mean,), (variance,) = first.weights.posterior
    np.testing.assert_allclose(variance, np.full_like(mean, np.mean(mean**2) / 9), rtol=1e-4)
    larger = first.weights._replace(posterior=first.weights.posterior._replace(mean=(3 * mean,)))
    state = process.set_model_weights(first, larger)
    np.testing.assert_allclose(state.weights.posterior.variance[0], 9 * variance, rtol=1e-4)
    np.testing.assert_allclose(process.personal_weights(state, 1).posterior.variance[0], 9 * variance, rtol=1e-4)
    np.testing.assert_array_equal(state.weights.posterior.mean[0], 3 * mean)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: SOURCES["hypernetwork"](0), "num_clients"),
        (lambda: SOURCES["hypernetwork"](2, middle=-17.0), "middle is -17, but must be above -17"),
        (lambda: SOURCES["free_variances"](2, ranged="hard"), "range of variances"),
        (lambda: SOURCES["common_variances"](2, parametrization="alpha"), "log_alpha"),
        (lambda: SOURCES["free_variances"](2, initial_rate=1.0), "initial_rate is 1, but must be above 0 and below 1"),
        (lambda: SOURCES["free_variances"](2, initial_rate="0.3"), "initial_rate is '0.3', but must be a finite"),
        (lambda: SOURCES["free_variances"](2, initial_rate=0.3, middle=-1.0), "initial_rate and middle both say"),
        (
            lambda: SOURCES["free_variances"](2, initial_rate=0.999, parametrization="log_alpha"),
            "The start of initial_rate 0.999 is 6.9",
        ),
        (
            lambda: SOURCES["free_variances"](2, initial_rate=0.5).start((tf.zeros([3]), tf.ones([2])), 0),
            "start at logits from -inf to 0, outside the range from -17 to 0",
        ),
        (lambda: SOURCES["free_variances"](2, logit_range=(0.0, -1.0)), "logit_range must be two finite numbers"),
        (
            lambda: SOURCES["free_variances"](2, middle=1.0, parametrization="log_alpha", logit_range=(0, 1)),
            "middle is 1",
        ),
        (
            lambda: personal(by_change(), SOURCES["free_variances"](2, parametrization="log_alpha"), 0.99),
            "threshold is 0.99, but log alpha up to 4 gives dropout rates up to 0.982",
        ),
        (
            lambda: personal(by_change(), SOURCES["common_variances"](2, parametrization="log_alpha"), 0.05),
            "threshold is 0.05, but weights start at dropout rates from 0.119 on, so that all would be pruned",
        ),
        (
            lambda: personal(by_change(), SOURCES["hypernetwork"](2, parametrization="log_alpha"), 0.01),
            "threshold is 0.01, but weights start at dropout rates from",
        ),
        (
            lambda: personal(by_change(), SOURCES["free_variances"](2, logit_range=(-6.0, 0.0)), 0.8),
            "The range of log variances begins at -6, with which pruned weights would have noise",
        ),
        (
            lambda: algorithms.meta_vd(
                lambda: models.mlp("variational_dropout", (3,), 2, parametrization="log_alpha"), num_clients=2
            ),
            "are log_alpha from -8 to 4, and the clients' variances are log_variance from -17 to 0",
        ),
        (
            lambda: algorithms.meta_vd(lambda: models.mlp("deterministic", (3,), 2), num_clients=2),
            "The model has point weights, .* kind 'variational_dropout'",
        ),
        (lambda: personal(by_change(), LINEAR, 1.0), "threshold is 1, but must be above 0 and below 1"),
        (lambda: personal(by_change(), LINEAR, 0.0), "threshold"),
        (lambda: personal(by_change()._replace(sends="gradient"), LINEAR), "sends a model's weights"),
        (lambda: personal_step(LINEAR, clip_norm=0.0), "clip_norm"),
        (lambda: SOURCES["constant_variances"](2, ranged="clamped"), "ranged restricts learned logits"),
        (lambda: personal_step(SOURCES["constant_variances"](2), capped=False), r"capped=False \(--uncapped\) needs"),
        (lambda: personal_step(SOURCES["common_variances"](2), absent_decay=True), "common_variances has none"),
    ],
)
def test_bad_input_is_one_sentence(call, message):
    refuses(message, call)
