"""Federated deep ensembles: members, their common model, resuming to the bit, export, and what is refused."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.kit import refuses
from tests.lite import lite_interpreter
from tfp_bfl import algorithms, evaluation, export, federated, models, privacy, rules, servers, weighting
from tfp_bfl.contracts import ClientWork
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.federated import member_seed, simulate
from tfp_bfl.layers import sampling
from tfp_bfl.posterior import MeanField
from tfp_bfl.weights import ModelWeights, assign_weights, ensemble_model, get_weights

from . import toys
from .toys import CLIENTS

MEMBERS, ROUNDS = 3, 2


def linear(seed):
    kernel = tf.keras.initializers.GlorotUniform(seed=seed)
    return tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(2, kernel_initializer=kernel)], "linear")


def make_process(seed):
    return federated.build_process(
        functools.partial(linear, seed),
        client_work=ClientWork(lambda: toys.towards),
        weigh=weighting.equal,
        rule=rules.whole_model(rules.naive_weighted_average()),
        server_step=servers.replace(),
    )


@functools.cache
def ensemble():
    return algorithms.ensemble(make_process, MEMBERS, seed=7)


def run(process=None, folder=None, **options):
    process = process or ensemble()
    return simulate(process, CLIENTS, ROUNDS, cohort_size=2, seed=7, engine="local", checkpoint_dir=folder, **options)


@functools.cache
def whole():
    return run()


def predictions_of_members(result, num_samples=1):
    every = [evaluation.predict(x.model, toys.FEATURES, num_samples) for x in result.ensemble.results]
    return np.stack([x.mean(0) for x in every])


def test_seeds_of_members_differ_and_begin_with_that_of_the_run():
    seeds = [member_seed(seed, m) for seed in range(3) for m in range(4)]
    assert len(set(seeds)) == 12 and all(0 <= seed < 2**31 for seed in seeds)
    assert [member_seed(seed, 0) for seed in range(3)] == [0, 1, 2]


def test_members_differ_and_the_first_is_the_run_alone():
    result = whole()
    assert len(result.ensemble.results) == MEMBERS
    points = [x.state.weights.point for x in result.ensemble.results]
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert np.abs(points[a][0] - points[b][0]).max() > 0.01  # other kernels at the start
        assert np.abs(points[a][1] - points[b][1]).max() > 0.01  # other cohorts
    tf.nest.map_structure(np.testing.assert_array_equal, result.ensemble.results[0].state, run(make_process(7)).state)
    assert [(row["member"], row["round"]) for row in result.rounds] == [(m, r) for m in range(3) for r in (1, 2)]


def test_the_second_number_of_a_seed_counts_the_samples():
    """By this number a sample belongs to a member; TensorFlow's fold_in gives it so."""
    assert evaluation.sample_seeds(5, 4).numpy()[:, 1].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("num_samples", [3, 6])
def test_the_model_predicts_the_mean_of_the_members(num_samples):
    members = predictions_of_members(whole())
    sampled = evaluation.predict(whole().model, toys.FEATURES, num_samples, seed=5)
    np.testing.assert_allclose(sampled.mean(0), members.mean(0), rtol=0, atol=1e-6)
    for s, each in enumerate(sampled):
        np.testing.assert_allclose(each, members[s % 3], rtol=0, atol=1e-6)
    assert np.abs(members - members[0]).max() > 0.02
    rounded = evaluation.predict(whole().model, toys.FEATURES, 3, precision="bfloat16")
    np.testing.assert_allclose(rounded, members, rtol=0, atol=0.1)


def flipout(seed):
    return models.mlp("flipout", (2,), 2, hidden=(3,), seed=seed)


def gaussians(variance):
    starts = [get_weights(flipout(seed)) for seed in (1, 2)]
    wide = lambda w: w._replace(posterior=MeanField(w.posterior.mean, tuple(v * 0 + variance for v in w[0].variance)))
    return tuple(wide(w) for w in starts)


def test_samples_of_gaussian_members_are_shared_equally():
    """Standard deviations of 0.001: each sample lies within 0.02 of its own member's mean prediction."""
    members = gaussians(1e-6)
    model = ensemble_model(flipout(0), members)
    sampled = evaluation.predict(model, toys.FEATURES, 8, seed=3)
    means = []
    for weights in members:
        alone = flipout(0)
        assign_weights(alone, weights)
        with sampling("mean"):
            means.append(tf.nn.softmax(alone(toys.FEATURES)).numpy())
    assert np.abs(means[0] - means[1]).max() > 0.2
    for s in range(8):
        assert np.abs(sampled[s] - means[s % 2]).max() < 0.02
        assert s < 2 or np.abs(sampled[s] - sampled[s - 2]).max() > 1e-6
    with sampling("mean"):
        np.testing.assert_allclose(tf.nn.softmax(model(toys.FEATURES)), np.mean(means, 0), rtol=1e-5)


def test_batch_norm_statistics_belong_to_the_member():
    last = tf.keras.layers.Dense(2, kernel_initializer=tf.constant_initializer([[1.0, -1.0], [0.5, 0.2]]))
    layers = [tf.keras.Input((2,)), tf.keras.layers.BatchNormalization(), last]
    model_fn = lambda: tf.keras.Sequential(layers)
    start = tf.nest.map_structure(np.asarray, get_weights(model_fn()))
    members = []
    for mean in (0.0, 8.0):
        moments = MeanField((np.full(2, mean, np.float32),), (np.full(2, 1 + mean, np.float32),))
        members.append(start._replace(moments=moments))
    sampled = evaluation.predict(ensemble_model(model_fn(), members), toys.FEATURES, 2)
    for weights, each in zip(members, sampled):
        alone = model_fn()
        assign_weights(alone, weights)
        np.testing.assert_allclose(each, tf.nn.softmax(alone(toys.FEATURES)), rtol=1e-5, atol=1e-7)
    assert np.abs(sampled[0] - sampled[1]).max() > 0.1


def test_the_mean_of_regressions_is_their_mixture():
    """Members predict N(0, 1) and N(4, 3): mean 2, variance (1 + 3) / 2 + 4 = 6."""
    point = lambda mean, variance: (np.zeros([2, 2], np.float32), np.array([mean, np.log(variance)], np.float32))
    none = MeanField((), ())
    members = [ModelWeights(none, point(*x), none) for x in ((0, 1), (4, 3))]
    model = ensemble_model(toys.model_fn(), members, regression=True)
    with sampling("mean"):
        np.testing.assert_allclose(model(toys.FEATURES[:1]), [[2.0, np.log(6.0)]], rtol=1e-6)


def test_a_run_resumes_to_the_bit(tmp_path):
    """Interrupted in the second member's second round: the first is not run again."""
    calls, seen = iter(range(1, 99)), []

    def until_the_fourth(model):
        assert next(calls) < 4, "this is expected"
        return {}

    with pytest.raises(AssertionError, match="this is expected"):
        run(folder=tmp_path, evaluate=until_the_fourth, keep_checkpoints=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["member_0", "member_1"]
    keep = lambda row: seen.append((row["member"], row["round"]))
    resumed = run(folder=tmp_path, keep_checkpoints=1, on_round=keep)
    assert seen == [(1, 2), (2, 1), (2, 2)]
    for a, b in zip(resumed.ensemble.results, whole().ensemble.results):
        tf.nest.map_structure(np.testing.assert_array_equal, a.state.weights, b.state.weights)
    for a, b in zip(resumed.model.variables, whole().model.variables, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_scores_of_the_ensemble_and_of_members():
    score = lambda model: {"accuracy": float(evaluation.predict(model, toys.FEATURES, 3).mean(0)[0, 0])}
    result = run(evaluate=score)
    members = predictions_of_members(result)[:, 0, 0]
    found = [x.rounds[-1]["accuracy"] for x in result.ensemble.results]
    np.testing.assert_allclose(found, members, rtol=1e-6)
    np.testing.assert_allclose(result.ensemble.metrics["accuracy"], members.mean(), rtol=1e-6)


def test_members_can_be_averages_of_rounds():
    result = run(average_rounds=2)
    assert result.averaged is None and all(x.averaged.rounds == 2 for x in result.ensemble.results)
    sampled = evaluation.predict(result.model, toys.FEATURES, MEMBERS)
    np.testing.assert_allclose(sampled, predictions_of_members(result), rtol=0, atol=1e-6)
    assert np.abs(sampled - evaluation.predict(whole().model, toys.FEATURES, MEMBERS)).max() > 1e-3


def test_export(tmp_path):
    """The SavedModel and the file for TensorFlow Lite predict what the Python model does."""
    wanted = predictions_of_members(whole()).mean(0)
    export.save(whole(), tmp_path / "saved")
    loaded = export.load(tmp_path / "saved")
    features = toys.FEATURES
    assert export.read_info(tmp_path / "saved").model["members"] == MEMBERS
    for found in (loaded.predict(features, num_samples=3, seed=1), loaded.mean(features)):
        np.testing.assert_allclose(found["probabilities"], wanted, rtol=0, atol=1e-6)
    assert np.max(loaded.predict(features, num_samples=3, seed=1)["epistemic"]) > 1e-4
    export.save_tflite(tmp_path / "saved", tmp_path / "model.tflite", num_samples=3)
    runner = lite_interpreter(tmp_path / "model.tflite").get_signature_runner("predict")
    np.testing.assert_allclose(runner(images=features)["probabilities"], wanted, rtol=0, atol=1e-6)
    with pytest.raises(InvalidArgument, match="num_samples is 2, but the ensemble has 3 members"):
        export.save_tflite(tmp_path / "saved", tmp_path / "other.tflite", num_samples=2)


OPTIONS = {"local_epochs": 2, "batch_size": 2, "learning_rate": 0.1}
RECIPES = {
    "variational": lambda seed: algorithms.variational(functools.partial(flipout, seed), "linear_pool", **OPTIONS),
    "fed_ag": lambda seed: algorithms.fed_ag(functools.partial(linear, seed), **OPTIONS),
    "fed_sgld": lambda seed: algorithms.fed_sgld(
        functools.partial(linear, seed), step_size=1e-4, max_samples=2, **OPTIONS
    ),
    "fl_swag": lambda seed: algorithms.fl_swag(
        functools.partial(linear, seed), min_examples=2, **{**OPTIONS, "local_epochs": 4}
    ),
}


@pytest.mark.deep(after="tests/federated/test_ensemble.py")
@pytest.mark.statistical
@pytest.mark.parametrize("name", RECIPES)
def test_posteriors_of_members_stay(name):
    """The mean of 2 x 200 samples lies within 0.1 of the mean of the two members' own 200.

    Error rate: a probability's standard deviation over samples is at most 0.5, that of the difference of the two means
    0.5 sqrt(2 / 400) = 0.035 at most, and of these models about a third of it: 0.1 is 8 standard deviations off.
    """
    process = algorithms.ensemble(RECIPES[name], members=2)
    result = simulate(process, CLIENTS, 1 if name == "fl_swag" else 2, seed=1, engine="local")
    sampled = evaluation.predict(result.model, toys.FEATURES, 400, seed=2)
    members = predictions_of_members(result, 200)
    for m in (0, 1):
        assert np.abs(sampled[m::2].mean(0) - members[m]).max() < 0.1
        assert sampled[m::2].std(0).max() > 1e-6


def test_what_is_refused():
    refuses("members is 1, but must be an integer of at least 2", algorithms.ensemble, make_process, members=1)
    with pytest.raises(InvalidArgument, match="Members 0 and 1 of the ensemble have the same initial weights"):
        algorithms.ensemble(lambda seed: toys.process(), members=2)
    with pytest.raises(InvalidArgument, match="trains a model for each client"):
        algorithms.ensemble(lambda seed: toys.langevin_like(step=toys.descend(0.1)), members=2)
    hidden = privacy.Privacy(1.0, 1.0, 2, 1e-5)
    shared = {**OPTIONS, "privacy": hidden, "weighting": "equal"}
    private = lambda seed: algorithms.fed_opt(functools.partial(linear, seed), **shared)
    refuses("epsilon of differential privacy is that of one run", algorithms.ensemble, private, members=2)
    refuses("start is the same for all members", run, start=whole().state.weights)
    refuses("num_samples is 2, but the ensemble has 3 members", evaluation.predict, whole().model, toys.FEATURES, 2)
    refuses("There are 1 members", ensemble_model, linear(0), [whole().state.weights])
