"""Clipped and noised gradients of examples: sensitivity, noise, batches, and what is left without both."""

import functools

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from tests.algorithms.method import CLIENTS, begin
from tests.kit import flat
from tfp_bfl import algorithms, clients, layers, models, servers
from tfp_bfl.data import ClientExamples
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.training import ExamplePrivacy
from tfp_bfl.training.example_privacy import over_drawn, private_mean

RNG = np.random.default_rng(0)
ROWS = tf.constant(RNG.normal(size=(7, 3)) * [[0.1], [1], [5], [0.3], [2], [0], [4]], tf.float32)
LABELS = tf.constant([1.0, -1, 2, 0, 1, 1, -3])
SEED = tf.constant([3, 4])


def of_one(example):
    row, label = example
    return label * row


def mean_of(rows, labels, clip_norm=1.5, noise=0.0, size=4, seed=SEED):
    return private_mean(of_one, rows, labels, ExamplePrivacy(clip_norm, noise), size, seed).numpy()


def test_the_mean_is_of_clipped_gradients():
    each = (LABELS[:, tf.newaxis] * ROWS).numpy()
    norms = np.linalg.norm(each, axis=1, keepdims=True)
    wanted = np.where(norms > 1.5, each * 1.5 / np.maximum(norms, 1e-9), each).sum(0) / 4
    np.testing.assert_allclose(mean_of(ROWS, LABELS), wanted, rtol=1e-5)
    np.testing.assert_allclose(mean_of(ROWS, LABELS, 1e6), each.sum(0) / 4, rtol=1e-5)


@pytest.mark.parametrize("left_out", range(7))
def test_an_example_moves_the_sum_by_no_more_than_the_clip(left_out):
    others = np.delete(np.arange(7), left_out)
    far = 4 * np.linalg.norm(mean_of(ROWS, LABELS) - mean_of(tf.gather(ROWS, others), tf.gather(LABELS, others)))
    assert far <= 1.5 * (1 + 1e-5)
    assert far == pytest.approx(min(1.5, float(abs(LABELS[left_out]) * tf.norm(ROWS[left_out]))), abs=1e-5)


@pytest.mark.parametrize("factor", [1e25, np.inf, np.nan, -np.inf])
def test_an_example_with_a_gradient_beyond_float32_moves_the_sum_by_no_more_than_the_clip(factor):
    """A norm that overflows must neither be NaN, which noise does not hide, nor pass the clip."""
    rows = tf.concat([ROWS[:1] * factor, ROWS[1:]], 0)
    found, others = mean_of(rows, LABELS), mean_of(ROWS[1:], LABELS[1:])
    assert np.all(np.isfinite(found))
    far = 4 * np.linalg.norm(found - others)
    assert far == pytest.approx(1.5 if np.isfinite(factor) else 0.0, rel=1e-5, abs=1e-6)


def test_batches_weights_and_dropout_have_streams_of_their_own():
    """The uniforms of one step: none of one stream is among those of another."""
    drawn, original = [], tf.random.stateless_uniform

    def noted(shape, seed, *args, **kwargs):
        drawn.append(tuple(np.asarray(seed).tolist()))
        return original(shape, seed, *args, **kwargs)

    model = tf.keras.Sequential([layers.MCDropout(0.5), layers.DenseFlipout(2)])
    model(tf.zeros([1, 3]))
    examples = ClientExamples(tf.zeros([6], tf.int32), tf.zeros([6, 3]), tf.zeros([6], tf.int32))

    def step(state, features, labels, seed):
        with layers.sampling("shared", seed, {model.layers[1].kernel_mean.ref(): tf.zeros([3, 2])}):
            layers.noise.standard_normal(6, seed)
            model(tf.zeros([1, 3]), training=True)
        return state

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tf.random, "stateless_uniform", noted)
        patch.setattr(tf, "while_loop", lambda more, body, start: body(*start))
        over_drawn(examples, SEED, 1, 6, step, ())
    assert len(drawn) >= 3 and len(set(drawn)) == len(drawn)


def test_the_noise_has_its_standard_deviation_with_and_without_examples():
    """2,000 draws of three numbers: a chi-square bound that errs once in 10,000."""
    for rows, labels in ((ROWS, LABELS), (ROWS[:0], LABELS[:0])):
        of = functools.partial(private_mean, of_one, rows, labels, ExamplePrivacy(1.5, 0.8), 4)
        drawn = tf.function(lambda i, of=of: of(tf.stack([i, 1])), autograph=False)
        still = mean_of(rows, labels)
        z = np.array([drawn(tf.constant(i)).numpy() - still for i in range(2000)]) * 4 / (1.5 * 0.8)
        low, high = scipy.stats.chi2.ppf([5e-5, 1 - 5e-5], z.size)
        assert low < np.sum(z**2) < high


def test_each_example_is_drawn_for_itself():
    """Batches of an expected 3 of 12: their sizes are binomial; bounds of 4.5 standard errors."""
    number, size, passes = 12, 3, 500
    examples = ClientExamples(tf.zeros([number], tf.int32), tf.reshape(tf.range(12.0), [12, 1]), tf.range(12))

    def step(state, features, labels, seed):
        del features, seed
        seen, first, second = state
        drawn = tf.cast(tf.shape(labels)[0], tf.float32)
        return seen + tf.math.bincount(labels, minlength=12, maxlength=12), first + drawn, second + drawn**2

    zero = tf.zeros([12], tf.int32), tf.constant(0.0), tf.constant(0.0)
    run = tf.function(lambda: over_drawn(examples, SEED, passes, size, step, zero), autograph=False)
    seen, first, second = (x.numpy() for x in run())
    steps, share = passes * number / size, size / number
    error = np.sqrt(share * (1 - share) / steps)
    assert np.all(np.abs(seen / steps - share) < 4.5 * error)
    variance = second / steps - (first / steps) ** 2
    assert variance == pytest.approx(number * share * (1 - share), rel=4.5 * np.sqrt(2 / steps))


@functools.cache
def mlp(kind):
    return functools.partial(models.mlp, kind, (30,), 2, hidden=(4,), seed=0)


@pytest.mark.parametrize(("kind", "batch_size"), [("deterministic", 21), ("deterministic", 64), ("flipout", 21)])
def test_without_noise_and_clipping_it_is_training_on_all_examples(kind, batch_size):
    """A batch that expects all examples, or more than there are, has them all."""
    shared = {"batch_size": batch_size, "inference": "backprop", "noise": "shared", "learning_rate": 0.1}
    shared |= {"optimizer_fn": tf.keras.optimizers.SGD, "kl": "client", "local_epochs": 1}
    results = []
    for hidden in (None, ExamplePrivacy(1e9, 0.0)):
        process = algorithms.compose(
            mlp(kind),
            clients.variational(mlp(kind), **shared, example_privacy=hidden),
            "naive_weighted_average",
            servers.replace(),
            element_spec=CLIENTS.element_spec,
        )
        results.append(process.local.next(begin(process), [CLIENTS.dataset(1)]))
    moved = lambda result: flat(result.state.weights)
    first = flat(begin(process).weights)
    if kind == "deterministic":
        np.testing.assert_allclose(moved(results[1]), moved(results[0]), rtol=1e-5, atol=1e-6)
    # With another draw of the weights, steps are alike and not the same.
    assert np.corrcoef(moved(results[1]) - first, moved(results[0]) - first)[0, 1] > 0.5
    assert not {"nll", "tempered_elbo"} & results[1].metrics.keys()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"example_privacy": (1.0, 1.0)}, r"example_privacy is \(1\.0, 1\.0\), but must be a training\.ExamplePrivacy"),
        ({"example_privacy": ExamplePrivacy(0.0, 1.0)}, "clip_norm is 0"),
        ({"example_privacy": ExamplePrivacy(1.0, -1.0)}, "noise_multiplier is -1"),
        ({"example_privacy": ExamplePrivacy(1.0, 1.0), "inference": "ivon"}, "'ivon' asks the examples for curvature"),
    ],
)
def test_bad_settings(options, message):
    with pytest.raises(InvalidArgument, match=message):
        clients.variational(mlp("flipout"), **options)


def test_batch_norm_is_refused():
    model = lambda: models.resnet20("deterministic", (8, 8, 3), 2)
    with pytest.raises(
        InvalidArgument, match=r"normalises by the batch.*build it with normalization 'group' or 'none'"
    ):
        clients.variational(model, example_privacy=ExamplePrivacy(1.0, 1.0))
