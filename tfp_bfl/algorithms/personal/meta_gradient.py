"""Gradients through a step of adaptation: MAML, its first order, and without second derivatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

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
