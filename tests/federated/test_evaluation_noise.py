"""Scores of clients' models with their own noise, without noise, and with that of another client; constant noise."""

import numpy as np
import pytest
import tensorflow as tf

import tfp_bfl as bfl
from tfp_bfl.algorithms.personal.evaluation import evaluate_clients
from tfp_bfl.algorithms.personal.work import meta_learning
from tfp_bfl.errors import InvalidArgument

EVERYBODY = bfl.data.load("breast_cancer").partition(bfl.data.iid(3), seed=0)
TEST = bfl.data.load("breast_cancer", split="test").partition(bfl.data.like(EVERYBODY), seed=0)
START = {"initial_rate": 0.6}


def model_fn():
    return bfl.models.mlp("variational_dropout", (30,), 2, hidden=(4,))


def run(variances="free_variances", **options):
    process = bfl.algorithms.meta_vd(
        model_fn, num_clients=3, variances=variances, variance_options=START, batch_size=16, **options
    )
    return process, bfl.simulate(process, EVERYBODY, 2, seed=0, engine="local")


@pytest.fixture(scope="module")
def trained():
    return run(logit_rate=100.0)


def probabilities(model, features, labels):
    """The mean prediction of five samples for the first example, and how far samples are apart."""
    samples = bfl.evaluation.predict(model, features, 5, seed=1)[:, 0, 0]
    return {"mean": float(samples.mean()), "stddev": float(samples.std())}


def test_without_noise_predictions_are_those_of_the_means(trained):
    work = bfl.algorithms.personal.work.meta_learning(model_fn, local_epochs=1, batch_size=8)
    scores = evaluate_clients(*trained, EVERYBODY, TEST, probabilities, adaptation=work, noise="none")
    noisy = evaluate_clients(*trained, EVERYBODY, TEST, probabilities)
    model = trained[0].model_fn()
    for k, score in enumerate(scores):
        bfl.weights.assign_weights(model, trained[0].personal_weights(trained[1].state, k))
        with bfl.layers.sampling("mean"):
            wanted = tf.nn.softmax(model(TEST.examples(k).features[:1]))[0, 0]
        np.testing.assert_allclose(score.before["mean"], wanted, rtol=1e-5)
        assert score.before["stddev"] < 1e-6 and score.after["stddev"] < 1e-6 < noisy[k].before["stddev"]
        assert score.after["mean"] != score.before["mean"]


def test_without_noise_in_bfloat16_there_is_none_either(trained):
    def spread(model, features, labels):
        samples = bfl.evaluation.predict(model, features, 5, precision="bfloat16")
        return {"stddev": float(samples.std(0).max())}

    for noise, is_silent in (("none", True), ("own", False)):
        for score in evaluate_clients(*trained, EVERYBODY, TEST, spread, noise=noise):
            assert (score.before["stddev"] < 1e-6) == is_silent


def test_neighbours_with_the_same_noise_are_counted(trained, caplog):
    """Two of three clients alike: the third still has another one's noise."""
    process, result = trained
    own = [process.personal_weights(result.state, k) for k in (0, 0, 2)]
    evaluate_clients(process, result, EVERYBODY, TEST, probabilities, weights=own, noise="another")
    assert "1 of 3 clients have the same noise as the next one" in caplog.text


def test_the_noise_of_another_client_beside_ones_own_means(trained):
    process, result = trained
    own = [process.personal_weights(result.state, k) for k in range(3)]
    swapped = [
        w._replace(posterior=w.posterior._replace(variance=own[(k + 1) % 3].posterior.variance))
        for k, w in enumerate(own)
    ]
    found = evaluate_clients(process, result, EVERYBODY, TEST, probabilities, noise="another")
    assert found == evaluate_clients(process, result, EVERYBODY, TEST, probabilities, weights=swapped)
    assert found == evaluate_clients(process, result, EVERYBODY, TEST, probabilities, weights=own, noise="another")
    assert found != evaluate_clients(process, result, EVERYBODY, TEST, probabilities)


def test_pruned_weights_have_one_mask(trained):
    """A weight that either client pruned keeps the first client's noise."""
    process, result = trained
    own = [process.personal_weights(result.state, k) for k in range(3)]
    each = tf.nest.map_structure
    prune = lambda means, cut: each(lambda m: tf.where(m < cut, 0.0, m), means)
    pruned = [
        w._replace(posterior=w.posterior._replace(mean=prune(w.posterior.mean, cut)))
        for w, cut in zip(own, (-0.2, 0.0, 0.2))
    ]
    wanted = []
    for k, w in enumerate(pruned):
        choose = lambda m, v, n, u: tf.where((m == 0) | (n == 0), v, u)
        variance = each(choose, *w.posterior, *pruned[(k + 1) % 3].posterior)
        wanted.append(w._replace(posterior=w.posterior._replace(variance=variance)))
    found = evaluate_clients(process, result, EVERYBODY, TEST, probabilities, weights=pruned, noise="another")
    assert found == evaluate_clients(process, result, EVERYBODY, TEST, probabilities, weights=wanted)


@pytest.mark.parametrize("work", [meta_learning, bfl.clients.variational])
def test_adaptation_leaves_pruned_weights_at_zero(work, trained):
    process, result = trained
    pruned = process.personal_weights(result.state, 0)
    mean = tf.nest.map_structure(lambda m: tf.where(m < 0, 0.0, m), pruned.posterior.mean)
    pruned = pruned._replace(posterior=pruned.posterior._replace(mean=mean))
    found = []

    def keep(model, features, labels):
        found.append(bfl.weights.get_weights(model).posterior)
        return {}

    step = work(model_fn, local_epochs=1, batch_size=8)
    evaluate_clients(process, result, EVERYBODY, TEST, keep, adaptation=step, weights=[pruned] * 3)
    before, after = found[0], found[1]
    for x, y, variance, other in zip(before.mean, after.mean, before.variance, after.variance):
        assert np.any(x != y)
        np.testing.assert_array_equal(x == 0, y == 0)
        np.testing.assert_array_equal(np.where(x == 0, variance, 0), np.where(x == 0, other, 0))


def test_the_work_of_the_training_adapts_too(trained):
    process, _ = trained
    for score in evaluate_clients(*trained, EVERYBODY, TEST, probabilities, adaptation=process.client_work):
        assert np.isfinite(score.after["mean"]) and score.after != score.before


def test_the_same_noise_of_all_clients_is_refused():
    process, result = run("common_variances")
    with pytest.raises(InvalidArgument, match="but all clients here have the same"):
        evaluate_clients(process, result, EVERYBODY, TEST, probabilities, noise="another")


def test_constant_noise_has_no_rate_of_logits():
    with pytest.raises(InvalidArgument, match=r"logit_rate is 20.0, but the noise of 'constant_variances' does not"):
        run("constant_variances", logit_rate=20.0)


def test_a_start_outside_the_range_is_refused_before_any_engine_starts():
    with pytest.raises(InvalidArgument, match="would start at logits from"):
        bfl.algorithms.meta_vd(
            lambda: bfl.models.mlp("variational_dropout", (30,), 2, hidden=(4,), seed=0),
            num_clients=3,
            variance_options={"initial_rate": 0.9999999},
        )


def test_constant_noise_stays_and_is_not_sent():
    process, result = run("constant_variances")
    first = process.local.initialize()
    for k in (0, 2, 5):
        for v, before in zip(
            process.personal_weights(result.state, k).posterior.variance, first.weights.posterior.mean
        ):
            np.testing.assert_allclose(v, 1.5 * np.mean(np.square(before)), rtol=1e-4)
    number = sum(np.size(x) for x in tf.nest.flatten((first.weights.posterior.mean, first.weights.point)))
    assert result.rounds[-1]["upload_bits"] == 3 * 32 * number and result.rounds[-1]["logit_change"] < 1e-3
    assert result.rounds[-1]["logit_stddev"] < 1e-5


@pytest.mark.parametrize(
    ("recipe", "noise", "message"),
    [
        ("fed_opt", "another", "evaluate at least two clients of an algorithm that gives each its own"),
        ("fed_opt", "non", "There is no noise of evaluation 'non': did you mean 'none'"),
    ],
)
def test_what_has_no_noise_of_its_own_is_refused(recipe, noise, message):
    process = getattr(bfl.algorithms, recipe)(model_fn)
    with pytest.raises(InvalidArgument, match=message):
        evaluate_clients(process, None, EVERYBODY, TEST, probabilities, noise=noise)
