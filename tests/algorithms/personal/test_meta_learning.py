"""Local training by plain and meta-learned gradients: steps by hand, noise, the KL, what is pruned, and bad input."""

import numpy as np
import pytest
import tensorflow as tf

import tfp_bfl as bfl
from tfp_bfl.algorithms.personal.work import LEARNERS, meta_gradient
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.weights import Pruned, ServerMessage

ROWS = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)
LABELS = (ROWS[:, 0] > 0).astype(np.int32)


def linear():
    return bfl.models.mlp("deterministic", [3], 2, hidden=(), seed=0)


def dropped():
    return bfl.models.mlp("variational_dropout", [3], 2, hidden=(4,), seed=0)


def message_of(model_fn, told=()):
    tensors = tf.nest.map_structure(tf.convert_to_tensor, bfl.weights.get_weights(model_fn()))
    return ServerMessage(tensors, tf.constant(0), told)


def trained(model_fn, rows=12, told=(), seed=(3, 4), **options):
    work = bfl.algorithms.personal.work.meta_learning(
        model_fn, **{"local_epochs": 1, "batch_size": 12, **options}
    ).build()
    examples = bfl.data.ClientExamples(np.zeros(rows, np.int32), ROWS[:rows], LABELS[:rows])
    return work(message_of(model_fn, told), tf.nest.map_structure(tf.constant, examples), tf.constant(seed))


def flat(leaves):
    return np.concatenate([np.ravel(x) for x in tf.nest.flatten(leaves)])


@pytest.mark.parametrize("clip", [5.0, 0.1])
def test_a_plain_step_by_hand(clip):
    """w - b c grad of the mean cross-entropy, c = min(1, clip / norm)."""
    result = trained(linear, learning_rate=0.5, clip_norm=clip)
    kernel, bias = message_of(linear).weights.point
    probabilities = tf.nn.softmax(ROWS @ kernel + bias).numpy()
    wrong = probabilities - np.eye(2)[LABELS]
    gradient = [ROWS.T @ wrong / 12, wrong.mean(0)]
    scale = min(1.0, clip / np.linalg.norm(flat(gradient)))
    for found, before, g in zip(result.weights.point, (kernel, bias), gradient):
        np.testing.assert_allclose(found, before - 0.5 * scale * g, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(result.metrics.nll, -np.mean(np.log(probabilities[np.arange(12), LABELS])), rtol=1e-5)


@pytest.mark.parametrize("learner", ["plain", "maml", "hessian_free_maml"])
def test_a_rate_for_the_logits_moves_them_alone(learner):
    """A step of logits is proportional to logit_rate, and the means move as without it: nothing is clipped here."""
    run = lambda **options: trained(dropped, learner=learner, learning_rate=0.1, clip_norm=50.0, **options).weights
    before, usual, still = message_of(dropped).weights, run(), run(logit_rate=0.0)
    logits = lambda weights: np.log(flat(weights.posterior.variance))
    np.testing.assert_array_equal(flat(still.posterior.variance), flat(before.posterior.variance))
    moved = logits(usual) - logits(before)
    assert np.abs(moved).max() > 1e-4
    for factor in (1, 20):
        found = run(logit_rate=0.1 * factor)
        np.testing.assert_allclose(logits(found) - logits(before), factor * moved, rtol=1e-2, atol=1e-5)
        for part in (found, still):
            np.testing.assert_allclose(flat(part.posterior.mean), flat(usual.posterior.mean), rtol=1e-5, atol=1e-6)


def test_with_a_rate_of_their_own_logits_are_clipped_apart():
    """Clipped to a small norm, the steps of means and logits each have that norm times their rate."""
    options = {"learning_rate": 1.0, "clip_norm": 1e-4, "logit_rate": 1.0}
    weights, before = trained(dropped, **options).weights, message_of(dropped).weights
    of_points = lambda w: np.concatenate([flat(w.posterior.mean), flat(w.point)]).astype(np.float64)
    np.testing.assert_allclose(np.linalg.norm(of_points(weights) - of_points(before)), 1e-4, rtol=5e-3)
    moved = np.log(flat(weights.posterior.variance)) - np.log(flat(before.posterior.variance))
    np.testing.assert_allclose(np.linalg.norm(moved), 1e-4, rtol=5e-2)


@pytest.mark.parametrize(
    ("learner", "rows"), [("plain", 1), ("maml", 1), ("hessian_free_maml", 1), ("maml", 2), ("hessian_free_maml", 3)]
)
def test_few_examples_serve_all_losses(learner, rows):
    result = trained(dropped, rows, learner=learner, batch_size=4)
    assert np.all(np.isfinite(flat(result.weights))) and int(result.num_examples) == rows
    assert np.abs(flat(result.weights.point) - flat(message_of(dropped).weights.point)).max() > 0


def test_the_same_batches_and_seed_give_the_same_weights_and_another_seed_others():
    same, again, other = (flat(trained(dropped, seed=seed).weights) for seed in ((3, 4), (3, 4), (3, 5)))
    np.testing.assert_array_equal(same, again)
    assert np.abs(same - other).max() > 0


def test_differences_of_gradients_have_the_same_noise():
    """Other noise at the two points would be divided by twice the step: 10 times as much for a tenth of it."""
    found = [
        flat(trained(dropped, learner="hessian_free_maml", difference=h, learning_rate=1.0).weights)
        for h in (1e-2, 1e-3)
    ]
    moved = np.abs(found[0] - flat(message_of(dropped).weights)).max()
    assert np.abs(found[0] - found[1]).max() < 0.02 * moved


def test_the_mean_of_the_kl_is_its_sum_with_another_weight():
    number = flat(message_of(dropped).weights.posterior.mean).size
    by_sum = trained(dropped, learning_rate=0.5, kl_weight=2.0)
    by_mean = trained(dropped, learning_rate=0.5, kl_reduction="mean", kl_weight=2.0 * number / 12)
    np.testing.assert_allclose(flat(by_mean.weights), flat(by_sum.weights), rtol=1e-5)


def test_the_kl_pushes_noise_up_and_is_reported():
    """d KL / d l = -0.5 theta^2 / (theta^2 + s^2) of each weight, l = log s^2; its means have no gradient from it."""
    with_kl, without = (trained(dropped, learning_rate=0.1, clip_norm=1e9, kl_weight=beta) for beta in (1.2, 1e-12))
    q = message_of(dropped).weights.posterior
    mean, variance = flat(q.mean), flat(q.variance)
    gained = np.log(flat(with_kl.weights.posterior.variance) / flat(without.weights.posterior.variance))
    np.testing.assert_allclose(gained, 0.1 * 1.2 / 12 * 0.5 * mean**2 / (mean**2 + variance), rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(flat(with_kl.weights.posterior.mean), flat(without.weights.posterior.mean), rtol=1e-6)
    after = with_kl.weights.posterior
    expected = np.sum(0.5 * np.log1p(flat(after.mean) ** 2 / flat(after.variance)))
    np.testing.assert_allclose(with_kl.metrics.kl, expected, rtol=1e-5)
    np.testing.assert_allclose(with_kl.metrics.tempered_elbo, -(with_kl.metrics.nll + expected / 12), rtol=1e-5)


def test_a_detached_kl_has_no_gradient_in_the_means_by_log_alpha_either():
    """There s follows the mean, through which the KL must not reach it.

    -d KL / d log alpha = 0.5 / (1 + alpha) for every mean whose s is above its floor, 1e-4: |mean| > 0.007 here.
    """
    means = tf.keras.initializers.RandomUniform(0.1, 1.0, seed=0)
    layer = lambda: bfl.layers.DenseVariationalDropout(
        2, parametrization="log_alpha", kernel_initializer=means, input_shape=(3,)
    )
    model_fn = lambda: tf.keras.Sequential([layer()])
    options = {"local_epochs": 1, "learning_rate": 0.02, "clip_norm": 1e9}
    work = [bfl.algorithms.personal.work.meta_learning(model_fn, kl_weight=beta, **options) for beta in (9.0, 1e-12)]
    message = message_of(model_fn)
    examples = bfl.data.ClientExamples(*map(tf.constant, (np.zeros(12, np.int32), ROWS, LABELS)))
    with_kl, without = (x.build()(message, examples, tf.constant([3, 4])).weights.posterior for x in work)
    np.testing.assert_allclose(flat(with_kl.mean), flat(without.mean), rtol=1e-6)
    alpha = flat(message.weights.posterior.variance) / flat(message.weights.posterior.mean) ** 2
    gained = np.log(flat(with_kl.variance) / flat(without.variance))
    np.testing.assert_allclose(gained, 0.02 * 9.0 / 12 * 0.5 / (1 + alpha), rtol=2e-3)


def test_weights_keep_to_the_layers_range():
    variance = flat(trained(dropped, learning_rate=1e4, clip_norm=1e4, kl_weight=1e3).weights.posterior.variance)
    assert variance.max() == pytest.approx(1.0) and variance.min() >= np.exp(-17) * (1 - 1e-5)


def test_rates_and_weights_may_follow_the_round():
    scheduled = trained(dropped, learning_rate=lambda r: 0.5 + tf.cast(r, tf.float32), kl_weight=lambda r: 2.0)
    np.testing.assert_array_equal(
        flat(scheduled.weights), flat(trained(dropped, learning_rate=0.5, kl_weight=2.0).weights)
    )


def test_pruned_weights_are_not_touched_and_have_no_noise():
    number = flat(message_of(dropped).weights.posterior.mean).size
    kept = np.zeros(number, np.float32)
    q = message_of(dropped).weights.posterior
    nothing = trained(dropped, told=Pruned(tf.constant(kept)), learner="maml", kl_weight=5.0)
    np.testing.assert_array_equal(flat(nothing.weights.posterior.mean), flat(q.mean))
    np.testing.assert_allclose(flat(nothing.weights.posterior.variance), flat(q.variance), rtol=1e-5)
    assert float(nothing.metrics.kl) == 0
    other = trained(dropped, told=Pruned(tf.constant(kept)), learner="plain", seed=(8, 9))
    one = trained(dropped, told=Pruned(tf.constant(kept)), learner="plain")
    np.testing.assert_allclose(flat(other.weights.point), flat(one.weights.point), atol=1e-6)
    kept[[0, 12, 13]] = 1  # Of kernels [3, 4] and [4, 2]: from a feature through a hidden unit to both logits.
    some = trained(dropped, told=Pruned(tf.constant(kept)), learner="maml")
    changed = flat(some.weights.posterior.mean) != flat(q.mean)
    np.testing.assert_array_equal(changed, kept > 0)


@pytest.mark.parametrize("clip", [5.0, 0.1])
def test_pruned_weights_do_not_move_in_a_step_of_adaptation_either(clip):
    """Without any variational weight the logits are the last bias b, whatever the hidden units have, and
    b' = b - a c (softmax(b) - y), b <- b - rate c' (softmax(b') - y), c and c' by the norms of these alone."""
    weights = message_of(dropped).weights
    mean = tf.nest.map_structure(tf.zeros_like, weights.posterior.mean)
    hidden, last = tf.fill([4], 2.0), tf.constant([0.3, -0.2])
    number = flat(mean).size
    message = message_of(dropped, Pruned(tf.zeros([number])))
    message = message._replace(
        weights=weights._replace(posterior=weights.posterior._replace(mean=mean), point=(hidden, last))
    )
    rows = bfl.data.ClientExamples(np.zeros(12, np.int32), np.ones([12, 3], np.float32), np.ones(12, np.int32))
    given = {"learner": "first_order_maml", "local_epochs": 1, "batch_size": 4, "inner_rate": 0.7, "learning_rate": 0.5}
    work = bfl.algorithms.personal.work.meta_learning(dropped, clip_norm=clip, **given).build()
    found = work(message, tf.nest.map_structure(tf.constant, rows), tf.constant([3, 4])).weights
    gradient = lambda b: tf.nn.softmax(b).numpy() - [0, 1]
    clipped = lambda g: g * min(1, clip / np.linalg.norm(g))
    adapted = last - 0.7 * clipped(gradient(last))
    np.testing.assert_allclose(found.point[1], last - 0.5 * clipped(gradient(adapted)), atol=1e-5)
    np.testing.assert_array_equal(found.point[0], hidden)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"learner": "reptile"}, "learner"),
        ({"local_epochs": 0}, "local_epochs"),
        ({"inner_rate": 0.0}, "inner_rate"),
        ({"clip_norm": -1.0}, "clip_norm"),
        ({"difference": 0.0}, "difference"),
        ({"logit_rate": 1.0}, "logit_rate is of variational layers, and the model has none"),
        ({"kl_reduction": "total"}, "must be 'sum' or 'mean'"),
    ],
)
def test_bad_numbers_are_one_sentence(options, message):
    with pytest.raises(InvalidArgument, match=message):
        bfl.algorithms.personal.work.meta_learning(linear, **options)


def test_batch_statistics_are_refused():
    model_fn = lambda: bfl.models.resnet20("deterministic", (8, 8, 3), 2)
    with pytest.raises(InvalidArgument, match="BatchNorm depends on the batch too: use normalization"):
        bfl.algorithms.personal.work.meta_learning(model_fn)


CURVATURES = [np.diag([1.0, 2.0]), np.array([[2.0, 0.5], [0.5, 1.0]]), np.array([[1.0, 0.2], [0.2, 3.0]])]
CENTRES = [np.array([1.0, 0.0]), np.array([0.0, 1.0]), np.array([-3.0, 2.0])]
START = np.array([0.5, -0.5])
RATE = 0.1


def quadratic(curvature, centre):
    def loss(weights):
        shift = weights[0] - centre
        return 0.5 * tf.tensordot(shift, tf.linalg.matvec(tf.constant(curvature), shift), 1)

    return loss


LOSSES = [quadratic(*pair) for pair in zip(CURVATURES, CENTRES)]


def gradient_of(learner, **options):
    return meta_gradient(learner, LOSSES, [tf.constant(START)], RATE, **options)


@pytest.mark.parametrize(
    ("learner", "expected"),
    [
        ("plain", [0.25, -1.25]),
        ("first_order_maml", [0.4, -1.125]),
        ("maml", [0.36, -0.9]),
        ("hessian_free_maml", [0.3825, -0.7955]),
    ],
)
def test_gradients_by_hand(learner, expected):
    loss, (found,) = gradient_of(learner)
    np.testing.assert_allclose(found, expected, rtol=1e-7)
    adapted = START if learner == "plain" else np.array([0.55, -0.4])
    shift = adapted - CENTRES[1]
    np.testing.assert_allclose(loss, shift @ CURVATURES[1] @ shift / 2, rtol=1e-12)


@pytest.mark.parametrize("difference", [1e-5, 1e-2, 10.0])
def test_differences_are_exact_of_a_quadratic(difference):
    np.testing.assert_allclose(
        gradient_of("hessian_free_maml", difference=difference)[1][0], [0.3825, -0.7955], rtol=1e-6
    )


@pytest.mark.parametrize("learner", ["maml", "plain"])
def test_maml_is_the_gradient_of_the_adapted_loss_by_finite_differences(learner):
    """Through the clip of the adaptation too, which is active here, as far as the outer one is not."""
    clip = 0.5

    def adapted_loss(w):
        step = CURVATURES[0] @ (w - CENTRES[0])
        after = w if learner == "plain" else w - RATE * step * min(1.0, clip / np.linalg.norm(step))
        return (after - CENTRES[1]) @ CURVATURES[1] @ (after - CENTRES[1]) / 2

    expected = np.array([(adapted_loss(START + h) - adapted_loss(START - h)) / 2e-6 for h in 1e-6 * np.eye(2)])
    (found,) = gradient_of(learner, clip_norm=clip)[1]
    np.testing.assert_allclose(found, expected * min(1.0, clip / np.linalg.norm(expected)), rtol=1e-6)


def test_only_the_first_of_the_weights_is_adapted_and_all_have_a_gradient():
    """w' = w - a s w,   L = s w'^2: d L / d s = w'^2 - 2 s w' a w."""
    w, s = tf.constant(2.0, tf.float64), tf.constant(3.0, tf.float64)
    inner, outer = (lambda x: x[1] * x[0] ** 2 / 2), (lambda x: x[1] * x[0] ** 2)
    _, (in_w, in_s) = meta_gradient("maml", [inner, outer, outer], [w, s], RATE)
    np.testing.assert_allclose([in_w, in_s], [2 * 3 * 1.4 * 0.7, 1.4**2 - 2 * 3 * 1.4 * RATE * 2], rtol=1e-12)
    _, (in_w, in_s) = meta_gradient("first_order_maml", [inner, outer, outer], [w, s], RATE)
    np.testing.assert_allclose([in_w, in_s], [2 * 3 * 1.4, 1.4**2], rtol=1e-12)


@pytest.mark.parametrize("learner", LEARNERS)
def test_a_penalty_counts_in_the_gradient_and_not_in_the_loss(learner):
    penalty = lambda weights: tf.reduce_sum(weights[0])
    loss, (found,) = gradient_of(learner, penalty=penalty)
    without_loss, (without,) = gradient_of(learner)
    np.testing.assert_allclose(loss, without_loss)
    shift = {"maml": np.diag(np.eye(2) - RATE * CURVATURES[0])}.get(learner, 1.0)
    if learner != "hessian_free_maml":  # whose differences are taken along the gradient with the penalty
        np.testing.assert_allclose(found - without, shift * np.ones(2), rtol=1e-9)
    else:
        np.testing.assert_allclose(found - without, np.ones(2) - RATE * CURVATURES[2].sum(1), rtol=1e-6)


@pytest.mark.parametrize("learner", ["plain", "maml", "first_order_maml"])
def test_gradients_are_no_longer_than_the_clip_and_of_length_zero_where_there_is_none(learner):
    assert np.linalg.norm(gradient_of(learner, clip_norm=1e-3)[1][0]) == pytest.approx(1e-3)
    flat = lambda weights: 0.0 * tf.reduce_sum(weights[0])
    (found,) = meta_gradient(learner, [flat] * 3, [tf.constant(START)], RATE, clip_norm=1.0)[1]
    np.testing.assert_array_equal(found, [0.0, 0.0])
