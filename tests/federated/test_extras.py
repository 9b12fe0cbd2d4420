"""Statistics beside the weights: pooled by weight, and checked, bounded and private as weights are."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.kit import assert_same, flat, refuses
from tfp_bfl import algorithms, data, federated, models, servers
from tfp_bfl.algorithms.personal.step import personal as personal_step
from tfp_bfl.algorithms.personal.variances import PERSONAL_VARIANCES
from tfp_bfl.algorithms.personal.work import meta_learning, personal
from tfp_bfl.contracts import EXTENDED, ClientWork, ServerStep
from tfp_bfl.federated import simulation
from tfp_bfl.privacy import Privacy

from . import toys

# Client k sends k + 1 in one part and (10 k, 1) in another.
SENT = {"number": np.arange(4) + 1.0, "pair": np.stack([10.0 * np.arange(4), np.ones(4)], 1)}
WEIGHTS = np.array([2, 4, 1, 5]) / 12


def work(**values):
    """Moves the bias as `toys.towards` does; `values` are what one client, number 1, sends instead."""

    def run(message, examples, seed):
        result = toys.towards(message, examples, seed)
        k = tf.reduce_max(examples.client)
        extra = {name: tf.gather(tf.constant(x, tf.float32), k) for name, x in SENT.items()}
        for name, value in values.items():
            extra[name] = tf.where(tf.equal(k, 1), tf.fill(extra[name].shape, float(value)), extra[name])
        return result._replace(extra=extra)

    zeros = lambda weights: {"number": np.float32(0), "pair": np.zeros(2, np.float32)}
    return ClientWork(lambda: run, extra=zeros)


def keep():
    """A step that takes the pool, and keeps the pooled statistics as its state."""
    zeros = lambda weights: {"number": tf.constant(0.0), "pair": tf.zeros(2)}
    step = lambda state, weights, pooled, seed, extra: (extra, pooled)
    return ServerStep(zeros, step, takes=EXTENDED, metrics=lambda *given: {"number": given[-1]["number"]}, name="keep")


def run(client_work, rounds=1, engine="local", federation=toys.UNEQUAL, step=None, **options):
    given = {"weighting": "train_size", **options}
    process = algorithms.compose(toys.model_fn, client_work, "naive_weighted_average", step or keep(), **given)
    return federated.simulate(process, federation, rounds, engine=engine, seed=3)


def assert_close(found, **wanted):
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("engine", ["local", "tff"])
@pytest.mark.parametrize(
    ("weighting", "wanted"),
    [
        ("train_size", {name: WEIGHTS @ x for name, x in SENT.items()}),
        ("equal", {name: x.mean(0) for name, x in SENT.items()}),
    ],
)
def test_a_step_gets_the_mean_by_weight(engine, weighting, wanted):
    if engine == "tff":
        pytest.importorskip("tensorflow_federated")
    result = run(work(), engine=engine, weighting=weighting)
    assert_close(result.state.step, **wanted)
    np.testing.assert_allclose(result.rounds[0]["number"], wanted["number"], rtol=1e-6)


@pytest.mark.parametrize(
    "options", [{"secure_sums": 16.0}, {"robust": "clip:1000"}, {"max_change_norm": 1e3}, {"compressor": "none"}]
)
def test_guards_that_nobody_meets_change_nothing(options):
    plain, guarded = run(work()), run(work(), **options)
    assert_close(guarded.state.step, **plain.state.step)
    np.testing.assert_allclose(guarded.state.weights.point[1], plain.state.weights.point[1], rtol=1e-5)


def test_the_median_is_that_of_each_number():
    result = run(work(number=100.0), robust="median", weighting="equal")
    # Of 1, 100, 3 and 4 the two in the middle, and of 0, 10, 20, 30.
    assert_close(result.state.step, number=3.5, pair=[15, 1])


def test_noise_hides_what_is_sent_beside_the_weights(monkeypatch):
    """Check that with clip_norm 1 all sums together move by at most 1, and that noise reaches the statistics."""
    monkeypatch.setattr(simulation, "secret_seed", lambda: np.array([1, 2], np.int32))
    private = Privacy(clip_norm=1.0, noise_multiplier=0.0, cohort_size=4)
    result = run(work(), privacy=private, weighting="equal")
    moved = flat((result.state.step, result.state.weights.point))
    assert np.linalg.norm(moved) <= 1.0 + 1e-5
    loud = private._replace(noise_multiplier=5.0)
    first, second = (run(work(), privacy=loud._replace(noise_multiplier=x), weighting="equal") for x in (5.0, 0.0))
    assert np.abs(first.state.step["pair"] - second.state.step["pair"]).min() > 0.01


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"number": np.nan}, "not finite"),
        ({"pair": np.inf}, "not finite"),
        ({"number": 2e6}, "a number beyond max_magnitude"),
        ({"pair": 9e5}, "its statistics beside the weights are more than 1000 times the median client's"),
    ],
)
def test_a_client_whose_statistics_no_honest_client_sends_is_left_out(values, reason):
    result = run(work(**values))
    assert result.rounds[0]["faulty_clients"] == {"1": reason}
    shares = np.array([2, 0, 1, 5]) / 8
    assert_close(result.state.step, **{name: shares @ x for name, x in SENT.items()})


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: run(work(), step=servers.replace()), "the server step 'replace' takes none: use the step"),
        (lambda: run(ClientWork(lambda: toys.towards)), "needs statistics beside the weights, and these clients send"),
    ],
)
def test_parts_that_do_not_fit_are_one_sentence(build, message):
    refuses(message, build)


# The algorithms that send such statistics.


def hostile(work, factor):
    """Client 0's change of means and point weights, and its extra statistics, times a factor each."""
    of_weights, of_extra = factor

    def build():
        inner = work.build()

        def run(message, examples, seed):
            result, bad = inner(message, examples, seed), tf.equal(tf.reduce_max(examples.client), 0)
            far = lambda x, start: start + tf.where(bad, of_weights, 1.0) * (x - start)
            mean, point = tf.nest.map_structure(far, *(values(w) for w in (result.weights, message.weights)))
            weights = result.weights._replace(posterior=result.weights.posterior._replace(mean=mean), point=point)
            extra = tf.nest.map_structure(lambda x: tf.where(bad, of_extra, 1.0) * x, result.extra)
            return result._replace(weights=weights, extra=extra)

        return run

    return work._replace(build=build)


def values(weights):
    return weights.posterior.mean, weights.point


@functools.cache
def digits():
    return data.load("digits").partition(data.iid(5), seed=0).limit(60, seed=0)


@pytest.mark.parametrize("factor", [(3e4, 1.0), (1.0, 3e4)])
def test_a_client_that_moves_too_far_does_not_spoil_meta_vd(factor):
    """Compare with rounds of the four other clients."""
    model_fn = lambda: models.mlp("variational_dropout", (8, 8, 1), 10, hidden=(8,))
    source = PERSONAL_VARIANCES["hypernetwork"](5, hidden=(4,))
    honest = personal(meta_learning(model_fn, learner="plain", learning_rate=0.1), source)
    build = lambda work: algorithms.compose(model_fn, work, "log_linear_pool", personal_step(source))
    result = federated.simulate(build(hostile(honest, factor)), digits(), 2, engine="local", seed=3)
    what = "its weights moved" if factor[0] > 1 else "its statistics beside the weights are"
    assert all(row["faulty_clients"]["0"].startswith(what) for row in result.rounds)
    process = build(honest)
    state = process.with_clients(process.local.initialize()._replace(seed=np.int32(3)), range(5), digits().sizes)
    for _ in range(2):
        state = process.local.next(state, [digits().dataset(k) for k in range(1, 5)]).state
    assert_same(result.state.weights, state.weights, rtol=1e-5, atol=1e-7)
