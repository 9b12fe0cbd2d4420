"""Models with a posterior beside them: what they draw, and that evaluation and export take them like any other."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.kit import refuses
from tfp_bfl import evaluation, export, models, posterior
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.layers import sampling
from tfp_bfl.posterior import LowRank, MeanField, Samples
from tfp_bfl.sites import from_arrays, to_arrays
from tfp_bfl.weights import (
    WeightSampling,
    batch_moments,
    functional_call,
    get_weights,
    predictive_model,
    predictive_spec,
    predictive_weights,
)

RNG = np.random.default_rng(0)
IMAGES = RNG.uniform(size=[7, 8, 8, 1]).astype(np.float32)
ROWS = RNG.normal(size=[7, 3]).astype(np.float32)
mlp = functools.partial(models.mlp, "deterministic", (3,), 3, hidden=(4,))
linear = functools.partial(models.mlp, "deterministic", (3,), 3, hidden=())
lenet = functools.partial(models.lenet, "deterministic", (8, 8, 1), 3, normalization="batch")
each = tf.nest.map_structure


def draw(shape, low=-0.5, high=0.5):
    return tf.constant(RNG.uniform(low, high, shape), tf.float32)


def low_rank(point, scale=1.0):
    diagonal = each(lambda x: scale * draw(x.shape, 0.02, 0.1), point)
    return LowRank(point, diagonal, each(lambda x: scale**0.5 * draw([2, *x.shape]), point))


POSTERIORS = {
    "low rank": low_rank,
    "mean field": lambda point: MeanField(point, each(lambda x: draw(x.shape, 0.02, 0.2), point)),
    "samples": lambda point: Samples(each(lambda x: x + draw([40, *x.shape]), point)),
}
every_posterior = pytest.mark.parametrize("make", POSTERIORS.values(), ids=POSTERIORS)


def beside(model_fn, make, last=None):
    """Weights with a posterior of the kind `make` over all point weights, or over the last ones."""
    weights = get_weights(model_fn())
    first = 0 if last is None else len(weights.point) - last
    return weights._replace(posterior=make(weights.point[first:]), point=weights.point[:first])


def sampled(model, x, seed):
    with sampling("shared", seed):
        return model(x, training=False)


@every_posterior
def test_a_prediction_is_the_model_s_with_a_draw_from_the_posterior(make):
    weights = beside(mlp, make)
    model = predictive_model(mlp(), weights)
    for seed in ([3, 4], [3, 5]):
        wanted = functional_call(mlp(), posterior.sample(weights.posterior, seed), ROWS)
        np.testing.assert_allclose(sampled(model, ROWS, seed), wanted, rtol=1e-6)
    assert np.abs(sampled(model, ROWS, [3, 4]) - sampled(model, ROWS, [3, 5])).max() > 1e-2
    np.testing.assert_array_equal(sampled(model, ROWS, [3, 4]), sampled(model, ROWS, tf.constant([3, 4])))
    with sampling("flipout", [3, 4]):  # one draw for the batch, as in every mode but "mean"
        np.testing.assert_array_equal(model(ROWS), sampled(model, ROWS, [3, 4]))


@every_posterior
def test_the_mean_mode_is_the_model_at_the_mean(make):
    weights = beside(mlp, make)
    mean = posterior.marginals(weights.posterior).mean
    with sampling("mean"):
        outputs = predictive_model(mlp(), weights)(ROWS)
    np.testing.assert_allclose(outputs, functional_call(mlp(), mean, ROWS), rtol=1e-6)


def test_a_tiny_covariance_is_the_mean_model():
    weights = beside(mlp, functools.partial(low_rank, scale=1e-14))
    wanted = functional_call(mlp(), weights.posterior.mean, ROWS)
    np.testing.assert_allclose(sampled(predictive_model(mlp(), weights), ROWS, [1, 2]), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.statistical
@pytest.mark.deep(after="tests/weights/test_posterior_model.py")
def test_logits_of_a_linear_model_have_the_covariance_of_the_weights():
    """Mean x^T m and covariance x^T Sigma x over inputs and classes: 4,000 draws, within 5 standard errors: 1e-3 for
    all 252 together."""
    weights = beside(linear, low_rank)
    model, number = predictive_model(linear(), weights), 4000
    draws = tf.function(lambda seeds: tf.map_fn(lambda seed: sampled(model, ROWS, seed), seeds, tf.float32))
    logits = draws(evaluation.sample_seeds(0, number)).numpy().reshape(number, -1)
    design = np.concatenate([np.kron(ROWS, np.eye(3)), np.tile(np.eye(3), [7, 1])], 1)
    mean = design @ np.concatenate([m.numpy().ravel() for m in weights.posterior.mean])
    covariance = design @ posterior.covariance(weights.posterior).numpy() @ design.T
    variance = np.diag(covariance)
    assert (np.abs(logits.mean(0) - mean) < 5 * np.sqrt(variance / number)).all()
    error = np.sqrt((np.outer(variance, variance) + covariance**2) / number)
    assert (np.abs(np.cov(logits.T) - covariance) < 5 * error).all()
    assert (0.2 * variance > 5 * np.diag(error)).all()  # so that a factor of 1 / 2 or a missing root would be seen


@pytest.mark.statistical
@pytest.mark.deep(after="tests/weights/test_posterior_model.py")
def test_predictions_of_samples_are_those_of_the_draws():
    """Each of four as often: within 5 standard errors in 2,000 predictions, below 1e-5."""
    weights = beside(mlp, lambda point: Samples(each(lambda x: x + draw([4, *x.shape]), point)))
    of_draws = [functional_call(mlp(), [v[i] for v in weights.posterior.values], ROWS) for i in range(4)]
    wanted = tf.nn.softmax(tf.stack(of_draws))
    found = evaluation.predict(predictive_model(mlp(), weights), ROWS, num_samples=2000)
    distance = np.abs(found[:, None] - wanted[None]).max((2, 3))
    assert (distance.min(1) < 1e-5).all() and (np.sort(distance, 1)[:, 1] > 1e-2).all()
    counts = np.bincount(distance.argmin(1), minlength=4)
    assert (np.abs(counts - 500) < 5 * np.sqrt(2000 * 3 / 16)).all()


@every_posterior
def test_a_posterior_of_the_last_layer_leaves_the_others(make):
    weights = beside(mlp, make, last=2)
    model = predictive_model(mlp(), weights)
    wanted = functional_call(mlp(), [*weights.point, *posterior.sample(weights.posterior, [3, 4])], ROWS)
    np.testing.assert_allclose(sampled(model, ROWS, [3, 4]), wanted, rtol=1e-6)


@every_posterior
def test_posteriors_may_be_numpy_arrays(make):
    weights = beside(mlp, make)
    model = predictive_model(mlp(), each(lambda x: x.numpy(), weights))
    np.testing.assert_array_equal(sampled(model, ROWS, [1, 2]), sampled(predictive_model(mlp(), weights), ROWS, [1, 2]))


def test_batch_norm_s_statistics_are_those_of_the_examples_at_each_draw():
    weights = beside(lenet, low_rank)
    examples = RNG.integers(256, size=[20, 8, 8, 1]).astype(np.uint8)
    model = predictive_model(lenet(), weights, examples)
    plain, again = lenet(), predictive_model(lenet(), weights, np.float32(examples / 255))
    for seed in ([3, 4], [3, 5]):
        point = posterior.sample(weights.posterior, seed)
        moments = batch_moments(plain, point, tf.constant(examples / 255, tf.float32))
        wanted = functional_call(plain, point, IMAGES, moments)
        np.testing.assert_allclose(sampled(model, IMAGES, seed), wanted, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(sampled(again, IMAGES, seed), wanted, rtol=1e-4, atol=1e-4)
        assert np.abs(functional_call(plain, point, IMAGES) - wanted).max() > 1e-2
    with sampling("mean"):
        moments = batch_moments(plain, weights.posterior.mean, tf.constant(examples / 255, tf.float32))
        wanted = functional_call(plain, weights.posterior.mean, IMAGES, moments)
        np.testing.assert_allclose(model(IMAGES), wanted, rtol=1e-4, atol=1e-4)


def test_without_examples_the_statistics_are_those_of_the_weights():
    weights = beside(lenet, low_rank)
    weights = weights._replace(moments=each(lambda x: x + 0.5, weights.moments))
    wanted = functional_call(lenet(), posterior.sample(weights.posterior, [3, 4]), IMAGES, weights.moments)
    found = sampled(predictive_model(lenet(), weights), IMAGES, [3, 4])
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_examples_are_not_kept_for_a_model_without_batch_normalization():
    model = predictive_model(mlp(), beside(mlp, low_rank), ROWS)
    assert not [v for v in model.variables if v.shape == ROWS.shape]


def test_dropout_s_masks_are_drawn_beside_the_weights():
    dropping = functools.partial(models.mlp, "mc_dropout", (3,), 3, hidden=(4,), dropout_rate=0.5)
    model = predictive_model(dropping(), beside(dropping, functools.partial(low_rank, scale=1e-14)))
    outputs = np.array([sampled(model, ROWS, [0, i]) for i in range(8)])
    assert len(np.unique(outputs[:, 0, 0].round(4))) > 2
    np.testing.assert_array_equal(outputs[3], sampled(model, ROWS, [0, 3]))


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(
            make,
            id=name,
            marks=[] if name == "samples" else pytest.mark.deep(after="tests/weights/test_posterior_model.py"),
        )
        for name, make in {**POSTERIORS, "low rank, batch norm": None}.items()
    ],
)
def test_evaluation_and_export_take_it_like_any_other(make, tmp_path):
    model_fn, x = (mlp, ROWS) if make else (lenet, IMAGES)
    weights = beside(model_fn, make or low_rank)
    model = predictive_model(model_fn(), weights, None if make else IMAGES)
    assert evaluation.is_stochastic(model)
    found = evaluation.evaluate(model, x, np.arange(7) % 3, num_samples=6, seed=2, batch_size=4)
    plain, expected = model_fn(), []
    for seed in evaluation.sample_seeds(2, 6):
        point = posterior.sample(weights.posterior, seed)
        moments = None if make else batch_moments(plain, point, tf.constant(IMAGES))
        expected.append(tf.nn.softmax(functional_call(plain, point, x, moments)))
    np.testing.assert_allclose(found.probabilities, np.mean(expected, 0), rtol=1e-4, atol=1e-5)
    assert found.metrics["epistemic"] > 1e-3
    again = evaluation.evaluate(model, x, np.arange(7) % 3, num_samples=6, seed=2)
    np.testing.assert_allclose(again.probabilities, found.probabilities, rtol=1e-5)
    export.save(model, tmp_path / "saved")
    loaded = export.load(tmp_path / "saved")
    outputs = loaded.predict(x, num_samples=6, seed=2)
    for name in ("probabilities", "entropy", "aleatoric", "epistemic"):
        np.testing.assert_allclose(outputs[name], getattr(found, name), rtol=1e-4, atol=1e-5)


def test_models_with_variational_layers_or_without_a_posterior_stay_as_they_are():
    flipout = functools.partial(models.mlp, "flipout", (3,), 3, hidden=(4,))
    for model_fn in (flipout, mlp):
        weights = get_weights(model_fn(seed=5))
        model = predictive_model(model_fn(), weights)
        assert not any(isinstance(layer, WeightSampling) for layer in model._flatten_layers())
        each(functools.partial(np.testing.assert_allclose, rtol=2e-6), get_weights(model), weights)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w._replace(point=w.posterior.mean[:1]), "4 point weights, but there are 5 values"),
        (lambda w: w._replace(posterior=LowRank(*(part[1:] for part in w.posterior))), "but there are 3 values"),
        (lambda w: w._replace(posterior=LowRank(*(part[::-1] for part in w.posterior))), "but its value"),
        (lambda w: w._replace(posterior=w.posterior._replace(diagonal=w.posterior.mean)), "diagonal .* must be finite"),
        (lambda w: w._replace(posterior=w.posterior.mean), "must be a LowRank or a MeanField"),
        (lambda w: w._replace(posterior=Samples((tf.zeros([3, 3, 4]), tf.zeros([2, 4])))), "with one L"),
    ],
    ids=["too many", "too few", "shapes", "diagonal", "no posterior", "samples"],
)
def test_weights_that_do_not_fit_are_refused(change, message):
    refuses(message, predictive_model, mlp(), change(beside(mlp, low_rank)))


def test_a_low_rank_posterior_over_variational_weights_is_refused():
    flipout = functools.partial(models.mlp, "flipout", (3,), 3, hidden=(4,))
    weights = get_weights(flipout())
    with pytest.raises(InvalidArgument, match="must be a MeanField, not LowRank"):
        predictive_model(flipout(), weights._replace(posterior=low_rank(weights.posterior.mean)))


@every_posterior
@pytest.mark.parametrize("number", [2, 4], ids=["last layer", "all weights"])
def test_what_a_model_predicts_with_can_be_had_back_and_goes_through_named_arrays(make, number):
    own = get_weights(mlp())
    weights = own._replace(posterior=make(own.point[-number:]), point=own.point[: len(own.point) - number])
    back = predictive_weights(predictive_model(mlp(), weights))
    tf.nest.map_structure(np.testing.assert_array_equal, back, weights)
    arrays = to_arrays(back)
    again = from_arrays(arrays, predictive_spec(mlp(), arrays))
    tf.nest.map_structure(np.testing.assert_array_equal, again, weights)
    few = {name: x for name, x in arrays.items() if name != f"posterior/{back.posterior._fields[0]}/0"}
    for wrong in (few, {**arrays, "posterior/mean/99": np.zeros(3, np.float32)}, {**arrays, "point/9": np.zeros(3)}):
        refuses(r"misses|has no place for", from_arrays, wrong, predictive_spec(mlp(), wrong))


@pytest.mark.parametrize("kind", ["deterministic", "flipout"])
def test_without_a_posterior_beside_it_a_model_predicts_with_its_own_weights(kind):
    model = models.mlp(kind, (3,), 3, hidden=(4,))
    arrays = to_arrays(predictive_weights(model))
    found = from_arrays(arrays, predictive_spec(model, arrays))
    tf.nest.map_structure(np.testing.assert_array_equal, found, get_weights(model))
