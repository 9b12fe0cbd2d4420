"""Sampled predictions: shapes, seeds, metrics of the plain functions, and permuted standard deviations."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.kit import assert_same, refuses
from tfp_bfl import evaluation, models
from tfp_bfl.weights import assign_weights, get_weights, layout

RNG = np.random.default_rng(0)
FEATURES = RNG.normal(size=[11, 3]).astype(np.float32)
LABELS = RNG.integers(4, size=11)
OPTIONS = {"input_shape": (3,), "num_classes": 4, "hidden": (5,), "initial_stddev": 0.5, "dropout_rate": 0.5}
every_kind = pytest.mark.parametrize("kind", models.KINDS)
every_stochastic_kind = pytest.mark.parametrize("kind", ["flipout", "mc_dropout", "variational_dropout"])


@functools.cache
def build(kind):
    return models.mlp(kind, **OPTIONS)


def predict(kind, **options):
    return evaluation.predict(build(kind), FEATURES, **{"num_samples": 6, **options})


def spread_over_samples(probabilities):
    return np.abs(probabilities - probabilities[:1]).max()


@every_kind
def test_predictions_are_distributions(kind):
    probabilities = predict(kind)
    assert probabilities.shape == (6, 11, 4) and probabilities.dtype == np.float32
    assert probabilities.min() >= 0
    np.testing.assert_allclose(probabilities.sum(-1), np.ones([6, 11]), rtol=1e-5)


@every_stochastic_kind
def test_seed_decides_the_samples(kind):
    np.testing.assert_array_equal(predict(kind, seed=3), predict(kind, seed=3))
    assert np.abs(predict(kind, seed=3) - predict(kind, seed=4)).max() > 0.01
    assert spread_over_samples(predict(kind)) > 0.01
    # More samples begin with the same ones.
    np.testing.assert_allclose(predict(kind, num_samples=2), predict(kind)[:2], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("seed", [0, 7, 2**31 - 1])
def test_seeds_of_samples_are_their_numbers_folded_into_the_seed(seed):
    wanted = [tf.random.experimental.stateless_fold_in([seed, 0], number) for number in range(5)]
    np.testing.assert_array_equal(evaluation.sample_seeds(seed, 5), wanted)


def test_a_deterministic_model_has_one_prediction():
    probabilities = predict("deterministic")
    assert spread_over_samples(probabilities) == 0
    assert [kind for kind in models.KINDS if not evaluation.is_stochastic(build(kind))] == ["deterministic"]
    wanted = tf.nn.softmax(build("deterministic")(FEATURES))
    np.testing.assert_allclose(probabilities[3], wanted, rtol=1e-5)


@every_kind
@pytest.mark.parametrize("batch_size", [1, 4, 11, 500])
def test_batches_do_not_matter(kind, batch_size):
    np.testing.assert_allclose(predict(kind, batch_size=batch_size), predict(kind), rtol=1e-5, atol=1e-6)


def test_flipout_samples_are_of_one_weight_draw_for_all_examples():
    """Copies of one example get the same prediction in a sample, and another in the next sample."""
    probabilities = evaluation.predict(build("flipout"), np.repeat(FEATURES[:1], 5, 0), num_samples=3)
    np.testing.assert_allclose(probabilities, np.repeat(probabilities[:, :1], 5, 1), rtol=1e-5)
    assert spread_over_samples(probabilities) > 0.01


@every_kind
@pytest.mark.parametrize("batch_size", [500, 4])
def test_metrics_are_those_of_the_plain_functions(kind, batch_size):
    options = {"num_samples": 6, "seed": 2, "batch_size": batch_size}
    result = evaluation.evaluate(build(kind), FEATURES, LABELS, **options)
    uncertainty = evaluation.decompose(np.array(predict(kind, seed=2, batch_size=batch_size)))
    aleatoric, epistemic = evaluation.scalars(uncertainty)
    mean = uncertainty.mean
    information = evaluation.decompose_entropy(np.array(predict(kind, seed=2, batch_size=batch_size)))[2]
    wanted = {
        "accuracy": np.mean(np.argmax(mean, 1) == LABELS),
        "test_nll": -np.mean(np.log(mean.numpy()[np.arange(11), LABELS])),
        "ece": evaluation.expected_calibration_error(mean, LABELS),
        "mce": evaluation.maximum_calibration_error(mean, LABELS),
        "brier": np.mean(np.sum((mean - np.eye(4)[LABELS]) ** 2, 1)),
        "macro_recall": evaluation.macro_recall(mean, LABELS),
        "macro_precision": evaluation.macro_precision(mean, LABELS),
        "auroc": evaluation.auroc(mean, LABELS),
        "entropy": np.mean(uncertainty.entropy),
        "aleatoric": np.mean(aleatoric),
        "epistemic": np.mean(epistemic),
        "mutual_information": np.mean(information),
    }
    assert set(result.metrics) == set(wanted)
    for name, value in wanted.items():
        assert type(result.metrics[name]) is float
        np.testing.assert_allclose(result.metrics[name], value, rtol=1e-4, atol=1e-6, err_msg=name)
    values = (mean, uncertainty.entropy, aleatoric, epistemic, information)
    assert_same(result[1:], values, rtol=1e-4, atol=1e-6)
    assert (result.metrics["epistemic"] > 1e-3) is (kind != "deterministic")
    assert (result.metrics["mutual_information"] > 1e-3) is (kind != "deterministic")


def test_evaluator_is_evaluate_with_the_data_filled_in():
    metrics = evaluation.evaluator(FEATURES, LABELS, num_samples=3, seed=5)(build("flipout"))
    assert metrics == evaluation.evaluate(build("flipout"), FEATURES, LABELS, num_samples=3, seed=5).metrics


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_new_weights_of_the_model_count(precision):
    """The traced function is kept between calls: it must read the variables, not their values when traced."""
    model = models.mlp("deterministic", **OPTIONS)
    before = evaluation.predict(model, FEATURES, num_samples=1, precision=precision)
    assign_weights(model, get_weights(models.mlp("deterministic", **OPTIONS, seed=9)))
    after = evaluation.predict(model, FEATURES, num_samples=1, precision=precision)
    assert np.abs(after - before).max() > 0.05
    np.testing.assert_allclose(after, evaluation.predict(model, FEATURES, num_samples=1), atol=0.03)


@every_kind
def test_bfloat16_changes_the_third_digit_and_no_sample(kind):
    wanted, found = predict(kind), predict(kind, precision="bfloat16")
    assert found.dtype == np.float32
    np.testing.assert_allclose(found.sum(-1), np.ones([6, 11]), rtol=1e-5)
    assert 0 < np.abs(found - wanted).max() < 0.03
    options = {"num_samples": 6, "precision": "bfloat16"}
    metrics = evaluation.evaluator(FEATURES, LABELS, **options)(build(kind))
    losses = -np.log(found.mean(0)[np.arange(11), LABELS], dtype=np.float64)
    assert metrics["test_nll"] == pytest.approx(losses.mean(), rel=1e-4)


@pytest.mark.parametrize(
    ("features", "options", "message"),
    [
        *[(FEATURES, {"num_samples": n}, f"num_samples is {n}, but must be an integer of at least 1") for n in (0, -1)],
        (FEATURES, {"precision": "bfloat"}, "bfloat16"),
        (FEATURES[:0], {}, "no examples"),
    ],
)
def test_refused(features, options, message):
    refuses(message, evaluation.predict, build("flipout"), features, **options)
    refuses(message, evaluation.evaluate, build("flipout"), features, LABELS[: len(features)], **options)


@pytest.mark.parametrize("labels", [LABELS[:5], LABELS + 4, LABELS.astype(np.float32)])
def test_labels_that_do_not_fit(labels):
    refuses("labels", evaluation.evaluate, build("deterministic"), FEATURES, labels, num_samples=1)


@pytest.mark.parametrize("shape", [(3, 8, 8), (3, 9, 9, 1), (3, 64)])
def test_examples_of_another_shape_are_refused(shape):
    model = models.lenet("deterministic", input_shape=(8, 8, 1))
    evaluation.predict(model, np.zeros([3, 8, 8, 1], np.float32), 1)
    refuses(r"takes examples of shape \[8, 8, 1\]", evaluation.predict, model, np.zeros(shape, np.float32), 1)


NOISE = np.random.default_rng(0)
COLUMNS = np.float32(NOISE.normal(size=[40, 6]))
SIGNS = np.int32(COLUMNS[:, 0] > 0)


def model_of(stddevs):
    """Logistic regression that knows its first column alone: the weights of the others are 0."""
    model = models.mlp("flipout", (6,), 2, hidden=())
    (weight,) = layout(model).variational
    weight.mean.assign(np.float32([[-6, 6]] + 5 * [[0, 0]]))
    weight.log_stddev.assign(np.log(np.float32(stddevs)))
    return model


INFORMED = np.array([[0.01, 0.01]] + 4 * [[0.02, 0.01]] + [[20.0, 20.0]])


def stddevs(model):
    return np.exp(layout(model).variational[0].log_stddev.numpy())


def test_the_same_numbers_stand_elsewhere_and_then_where_they_were_after_an_error_too():
    model = model_of(INFORMED)
    with pytest.raises(ZeroDivisionError), evaluation.permuted_stddevs(model, seed=3):
        inside = stddevs(model)
        raise ZeroDivisionError
    np.testing.assert_allclose(np.sort(inside, None), np.sort(INFORMED, None), rtol=1e-5)
    assert not np.allclose(inside, INFORMED)
    np.testing.assert_allclose(stddevs(model), INFORMED, rtol=1e-6)


def test_equal_ones_score_the_same():
    model = model_of(np.full([6, 2], 0.3))
    options = {"num_samples": 8, "seed": 1}
    own = evaluation.evaluate(model, COLUMNS, SIGNS, **options).metrics
    assert evaluation.evaluate_permuted(model, COLUMNS, SIGNS, **options) == own


def test_those_that_say_which_weight_matters_lose():
    """A column of zeros may have any weight: the wide ones are its. On another column they drown the answer."""
    features = COLUMNS * np.float32([1, 1, 1, 1, 1, 0])
    model, options = model_of(INFORMED), {"num_samples": 20, "seed": 1}
    own = evaluation.evaluate(model, features, SIGNS, **options).metrics["test_nll"]
    permuted = [evaluation.evaluate_permuted(model, features, SIGNS, seed, **options)["test_nll"] for seed in range(3)]
    assert own < 0.15 and np.mean(permuted) > 2 * own


def test_point_weights_are_refused():
    model = models.mlp("deterministic", (6,), 2, hidden=())
    refuses("has no variational weights", evaluation.evaluate_permuted, model, COLUMNS, SIGNS)
