"""Local training by plain or meta-learned gradients, and from personal variances that the server learns."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Unpack

import numpy as np
import tensorflow as tf

from tfp_bfl import keras
from tfp_bfl.algorithms.personal.variances import LogitGradient, PersonalVariances, kept_weights
from tfp_bfl.contracts import WEIGHTS, ClientWork, Work
from tfp_bfl.data import ClientExamples
from tfp_bfl.errors import InvalidArgument, check_numbers, lookup
from tfp_bfl.layers import sampling
from tfp_bfl.layers.variational_dropout import MIN_VARIANCE
from tfp_bfl.models import as_model_fn
from tfp_bfl.posterior import MeanField, flatten, unflatten
from tfp_bfl.training.batches import Passes, checked, over_batches, with_passes, without_initial_values
from tfp_bfl.training.inference import stated_training, stating
from tfp_bfl.training.likelihoods import Likelihood, parse_likelihood
from tfp_bfl.training.updates import Schedule, check_schedules, rate_of
from tfp_bfl.weights import ClientResult, ModelWeights, Pruned, ServerMessage, TrainingMetrics, layout
from tfp_bfl.weights.flat import Vectors, WeightVectors

# Batches that a step of each learner takes: one, one to adapt to and two to judge by, one for each loss.
BATCHES = {"plain": 1, "maml": 3, "first_order_maml": 3, "hessian_free_maml": 3}
RATES = {"plain": 0.02, "maml": 0.1, "first_order_maml": 0.1, "hessian_free_maml": 0.1}
KL_REDUCTIONS = ("sum", "mean")


class _TaskSums(NamedTuple):
    nll: tf.Tensor
    steps: tf.Tensor


@stating
@with_passes(batch_size=64)
def meta_learning(
    model_fn: Callable[[], keras.Model],
    *,
    learner: str = "plain",
    learning_rate: Schedule | None = None,
    logit_rate: Schedule | None = None,
    inner_rate: float = 0.02,
    clip_norm: float = 5.0,
    difference: float = 1e-4,
    kl_reduction: str = "sum",
    kl_weight: Schedule = 1.0,
    likelihood: str | Likelihood = "categorical",
    **passes: Unpack[Passes],
) -> ClientWork:
    """Return client work by stochastic gradient descent on point weights, means and logits of variances, together.

    loss = mean over the batch of -log p(y | x, w) + beta KL / N_k,   w ~ q
    w    = w - b g                                                    g by the learner (`meta_gradient`)

    Adaptation is by the likelihood alone. A step of "maml", "first_order_maml" and "hessian_free_maml" takes three
    batches; an epoch has ceil(batches / 3) of them. Standard deviations are projected to the layers' range.

    Args:
      model_fn: builds a Keras model without BatchNorm; or such a model. With kind "variational_dropout" the KL is
        sum 0.5 log(1 + mean^2 / s^2); deterministic models have none.
      learner: one of `LEARNERS`.
      local_epochs, batch_size: of the client's training.
      learning_rate: b, a number or a function of the rounds done so far; None for 0.02, and 0.1 with adaptation.
      logit_rate: in the place of b for what layers hold of the spread, the logits of variational dropout; 0 to leave
        them. Their gradient is then clipped apart from that of the weights, each to `clip_norm`. None for b, clipped
        together.
      inner_rate: a of the step of adaptation.
      clip_norm: the largest norm of a gradient, over all weights together.
      difference: of "hessian_free_maml".
      kl_reduction: "sum" for the ELBO; "mean" for beta times the mean over the weights, as published with beta = 10.
      kl_weight: beta, a number or a function of the rounds done so far.
      likelihood: of the labels.

    Source: Jeon et al. 2023 (arXiv:2510.20225), algorithm 1; rates and norms by the authors' program.
    """
    model_fn, density = as_model_fn(model_fn), parse_likelihood(likelihood)
    _check(learner, kl_reduction, model_fn(), logit_rate)
    local_epochs, batch_size = checked(passes, batch_size=64)
    check_numbers(inner_rate=inner_rate, clip_norm=clip_norm, difference=difference)
    check_schedules(learning_rate=learning_rate, logit_rate=logit_rate, kl_weight=kl_weight)
    learning_rate = RATES[learner] if learning_rate is None else learning_rate

    def build() -> Work:
        with tf.variable_creator_scope(without_initial_values):
            weights = WeightVectors(model_fn())

        @tf.function(autograph=False)
        def work(message: ServerMessage, examples: ClientExamples, seed: tf.Tensor) -> ClientResult:
            count = tf.shape(examples.labels)[0]
            size = tf.cast(count, tf.float32)
            unpruned = message.extra.kept if isinstance(message.extra, Pruned) else None
            divisor = size if kl_reduction == "sum" else float(max(weights.num_variational, 1))
            scale, rate = rate_of(kl_weight, message.round) / divisor, rate_of(learning_rate, message.round)
            rates = rate, rate if logit_rate is None else rate_of(logit_rate, message.round)
            kl = lambda vectors: weights.kl_divergence(Vectors(*vectors), unpruned)

            def nll(features: tf.Tensor, labels: tf.Tensor, noise: tf.Tensor) -> Callable[..., tf.Tensor]:
                def of(vectors: Sequence[tf.Tensor]) -> tf.Tensor:
                    with sampling("flipout", noise):
                        outputs = weights.call(features, Vectors(*vectors), unpruned)
                    return tf.reduce_mean(density.nll(labels, outputs))

                return of

            def step(
                carried: tuple[_TaskSums, Vectors], features: tf.Tensor, labels: tf.Tensor, step_seed: tf.Tensor
            ) -> tuple[_TaskSums, Vectors]:
                sums, vectors = carried
                noises = (tf.random.experimental.stateless_fold_in(step_seed, i) for i in range(3))
                shares = _shares(tf.shape(labels)[0], learner)
                losses = [nll(features[a:b], labels[a:b], noise) for (a, b), noise in zip(shares, noises)]
                penalty = lambda vectors: scale * kl(vectors)
                loss, gradient = meta_gradient(
                    learner, losses, vectors, inner_rate, clip_norm, difference, penalty, logit_rate is not None
                )
                moved = Vectors(*(x - r * g for x, r, g in zip(vectors, rates, gradient)))
                return _TaskSums(sums.nll + loss, sums.steps + 1), weights.projected(moved)

            begin = _TaskSums(tf.constant(0.0), tf.constant(0)), weights.load(message.weights)
            sums, vectors = over_batches(examples, seed, local_epochs, batch_size * BATCHES[learner], step, begin)
            mean_nll, divergence = sums.nll / tf.cast(sums.steps, tf.float32), kl(vectors)
            metrics = TrainingMetrics(mean_nll, divergence, -(mean_nll + divergence / size))
            return ClientResult(weights.store(vectors, message.weights.moments), count, metrics)

        return work

    return ClientWork(build, settings=tuple(stated_training(learning_rate, "sgd").items()))


def _check(learner: str, kl_reduction: str, model: keras.Model, logit_rate: Schedule | None) -> None:
    lookup(LEARNERS, learner, "learner")
    if kl_reduction not in KL_REDUCTIONS:
        raise InvalidArgument(f"kl_reduction is {kl_reduction!r}, but must be 'sum' or 'mean'.")
    parts = layout(model)
    if logit_rate is not None and not parts.variational:
        raise InvalidArgument("logit_rate is of variational layers, and the model has none: leave it out.")
    if parts.moving_mean:
        raise InvalidArgument(
            "Meta-learned gradients require a function of the weights, and BatchNorm depends on the batch too: use "
            "normalization='group', or none."
        )


def _shares(number: tf.Tensor, learner: str) -> list[tuple[Any, Any]]:
    """Return rows of a step's examples for each of its losses; one example serves all."""
    if learner == "plain":
        return [(0, number)] * 3
    one = tf.maximum(number // 3, 1)
    if learner == "hessian_free_maml":
        second = tf.minimum(one, number - 1)
        return [(0, one), (second, second + one), (tf.maximum(number - one, 0), number)]
    return [(0, one), (tf.minimum(one, number - 1), number), (0, 1)]


LEARNERS = {
    "plain": "the gradient of the loss: FedAvg and Reptile",
    "maml": "through a step of adaptation, second derivatives included",
    "first_order_maml": "that of the adapted weights, in the place of it",
    "hessian_free_maml": "second derivatives by differences of gradients (PerFedAvg)",
}
Loss = Callable[[Sequence[tf.Tensor]], tf.Tensor]


def meta_gradient(
    learner: str,
    losses: Sequence[Loss],
    weights: Sequence[tf.Tensor],
    inner_rate: float,
    clip_norm: float = float("inf"),
    difference: float = 1e-4,
    penalty: Loss | None = None,
    apart: bool = False,
) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Return L_2 where the learner judges it, and the gradient by which it steps.

    w' = w - a c grad L_1(w),   c = min(1, clip_norm / ||grad L_1(w)||)     of the first of the weights, others held
    "plain":              grad L_2(w)
    "maml":               d L_2(w') / d w, through c too
    "first_order_maml":   grad L_2(w')
    "hessian_free_maml":  clip(g) - a clip(d),   g = grad L_2(w'),   d = [grad L_3(w + h g) - grad L_3(w - h g)] / (2 h)

    The first three are clipped as a whole.

    Args:
      learner: one of `LEARNERS`.
      losses: L_1, L_2 and L_3 of the weights; L_3 must have the same noise whenever it is asked.
      weights: tensors, of which the first is adapted.
      inner_rate: a.
      clip_norm: the largest norm of a gradient, over all weights together.
      difference: h.
      apart: clip the gradient of each tensor to `clip_norm`, in place of all together.
      penalty: of the weights, such as a KL: what is added to L_2 in the gradient.

    Source: Finn et al. 2017 (arXiv:1703.03400); Fallah et al. 2020 (arXiv:2002.07948), algorithm 1 and section 5.
    """
    inner, outer, third = losses
    clip = (lambda g: [_clipped([x], clip_norm)[0] for x in g]) if apart else (lambda g: _clipped(g, clip_norm))
    if learner == "plain":
        loss, gradient = _gradient(outer, weights, penalty)
        return loss, clip(gradient)
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(list(weights))
        with tf.GradientTape(watch_accessed_variables=False) as of_inner:
            of_inner.watch(weights[0])
            at_start = inner(weights)
        (step,) = _clipped([of_inner.gradient(at_start, weights[0])], clip_norm)
        if learner != "maml":
            step = tf.stop_gradient(step)
        adapted = [weights[0] - inner_rate * step, *weights[1:]]
        loss = outer(adapted)
        penalised = loss if penalty is None else loss + penalty(adapted)
    gradients = tape.gradient(penalised, list(weights), unconnected_gradients=tf.UnconnectedGradients.ZERO)
    if learner != "hessian_free_maml":
        return loss, clip(gradients)
    ahead, behind = (
        _gradient(third, [weights[0] + sign * difference * gradients[0], *weights[1:]])[1] for sign in (1.0, -1.0)
    )
    curved = clip([(x - y) / (2 * difference) for x, y in zip(ahead, behind)])
    return loss, [g - inner_rate * d for g, d in zip(clip(gradients), curved)]


def _gradient(
    loss: Loss, weights: Sequence[tf.Tensor], penalty: Loss | None = None
) -> tuple[tf.Tensor, list[tf.Tensor]]:
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(list(weights))
        value = loss(weights)
        penalised = value if penalty is None else value + penalty(weights)
    return value, tape.gradient(penalised, list(weights), unconnected_gradients=tf.UnconnectedGradients.ZERO)


def _clipped(gradient: Sequence[tf.Tensor], clip_norm: float) -> list[tf.Tensor]:
    """Return the gradient, scaled to a norm of `clip_norm` at most over all its tensors; differentiable, at
    zero too.
    """
    if clip_norm == float("inf"):
        return list(gradient)
    square = tf.add_n([tf.reduce_sum(tf.square(x)) for x in gradient])
    safe = tf.maximum(square, tf.cast(clip_norm, square.dtype) ** 2)
    return [clip_norm * tf.math.rsqrt(safe) * x for x in gradient]


# Of weights that a client does without: no precision, to float32, and finite.
NO_PRECISION = 1e10
_BITS = ("upload_bits", "download_bits")


def personal(work: ClientWork, variances: PersonalVariances, threshold: float | None = None) -> ClientWork:
    """Return the same work from the client's own variances, of logits l = h(e_m), and what it learns of h and e_m.

    sends: theta, sigma^2 as trained,   (d l / d psi)^T (l - l'),   (d l / d e_m)^T (l - l')

    with l' the logits after training: what the server subtracts from h's weights psi and the client's row e_m. The two
    products are extra statistics beside the weights, a `personal.variances.LogitGradient`, of which the server gets the
    mean. A federation would compute l and the products on the server, and send theta and l alone; so bits are counted.

    Args:
      work: that sends `WEIGHTS` and keeps nothing, such as `personal.work.meta_learning`.
      variances: of `personal.variances.PERSONAL_VARIANCES`.
      threshold: weights with a dropout rate p = alpha / (1 + alpha), alpha = sigma^2 / theta^2, is above it are 0 for
        the client, which neither trains nor sends them; None for none.

    Returns:
      Client work for a rule such as "log_linear_pool" and for `personal.step.personal`. It reports `pruned_weights`,
      `upload_bits` and `download_bits`.

    Source: Jeon et al. 2023 (arXiv:2510.20225), algorithm 1.
    """
    if work.sends != WEIGHTS or work.memory is not None:
        raise InvalidArgument(
            "Personal variances are of client work that sends a model's weights and keeps nothing, such as "
            "personal.work.meta_learning(model_fn)."
        )
    variances.check_threshold(threshold)

    def build() -> Work:
        inner = work.build()

        @tf.function(autograph=False)
        def run(message: ServerMessage, examples: ClientExamples, seed: tf.Tensor) -> ClientResult:
            before, posterior = message.weights, message.weights.posterior
            theta = flatten(posterior.mean)
            client = tf.reduce_max(tf.concat([[-1], examples.client], 0))
            given = message.extra.shared, variances.row(message.extra, tf.maximum(client, 0))
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(given)
                logits = variances.logits(*given, message.extra.middle)
            start = variances.variance(logits, theta)
            mask = kept_weights(theta, start, threshold)
            as_posterior = lambda x: unflatten(x, posterior.mean)
            first = posterior._replace(mean=as_posterior(mask * theta), variance=as_posterior(start))
            sent = () if threshold is None else Pruned(mask)
            result = inner(message._replace(weights=before._replace(posterior=first), extra=sent), examples, seed)
            mean, variance = (flatten(x) for x in result.weights.posterior)
            change = mask * variances.change((start, theta), (variance, mean))
            shared, row = tape.gradient(logits, given, change, unconnected_gradients=tf.UnconnectedGradients.ZERO)
            mean = tf.where(mask > 0, mean, theta)
            variance = tf.where(mask > 0, variance, NO_PRECISION)
            pooled = result.weights.posterior._replace(mean=as_posterior(mean), variance=as_posterior(variance))
            mine = tf.one_hot(client, variances.num_clients)
            rows = tf.nest.map_structure(lambda x: tf.tensordot(mine, x, 0), row)
            extra = LogitGradient(shared, rows, mine, tf.reduce_sum(tf.square(change)))
            bits = _bits(result.weights, mask, threshold, 64.0 if variances.learned else 32.0)
            counts = {**result.counts, "pruned_weights": tf.cast(tf.reduce_sum(1 - mask), tf.int32)}
            weights, counts = result.weights._replace(posterior=pooled), {**counts, **dict.fromkeys(_BITS, bits)}
            return result._replace(weights=weights, counts=counts, extra=extra)

        return run

    def extra(weights: ModelWeights) -> LogitGradient:
        number = sum(int(np.prod(x.shape)) for x in weights.posterior.mean)
        shared, rows, _ = tf.nest.map_structure(np.zeros_like, variances.initialize(number, 0))
        return LogitGradient(shared, rows, np.zeros(variances.num_clients, np.float32), np.float32(0))

    def of_client(message: ServerMessage, client: int) -> ModelWeights:
        q = message.weights.posterior
        theta = flatten(q.mean)
        variance = variances.of_client(message.extra, client, theta)
        mask = kept_weights(theta, variance, threshold)
        own = mask * theta, tf.where(mask > 0, variance, MIN_VARIANCE)
        return message.weights._replace(posterior=MeanField(*(unflatten(x, q.mean) for x in own)))

    return ClientWork(build, personal=of_client, extra=extra, settings=work.settings, needs=work.needs)


def _bits(weights: ModelWeights, mask: tf.Tensor, threshold: float | None, of_each: float) -> tf.Tensor:
    """Return the bits of the unpruned weights, theta and l in float32 or theta alone, of all others, and of one mask
    bit for each weight.
    """
    others = sum(x.shape.num_elements() for x in tf.nest.flatten((weights.point, weights.moments)))
    return of_each * tf.reduce_sum(mask) + float(32 * others + (0 if threshold is None else mask.shape[0]))
