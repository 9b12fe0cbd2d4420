"""Natural-gradient steps: variances that the curvature of the likelihood determines."""

import tensorflow as tf

from tfp_bfl.tensors import is_traced_for_xla
from tfp_bfl.training.optimizers import Optimizer, optimizer_rate
from tfp_bfl.training.updates import Batch, Schedule, Target, bounded, rate_of, resettable
from tfp_bfl.weights import FlatWeights

MOMENTUM = 0.9
# Steps from one estimate of the curvature by drawn labels to the next, which costs a backward pass.
DRAW_EVERY = 8
# The share of a precision that stays from one estimate to the next.
DECAY = 0.9


def share_of_estimates(round: tf.Tensor, steps: tf.Tensor, rate_share: tf.Tensor) -> tf.Tensor:
    """Return the share of the precision after so many steps of a round that is of their estimates; `first_stddev` only.

    1 - prod_j (1 - max(1 / (j + 1), (1 - b) f_r)),   j from r on, once for each estimate

    Args:
      round: r.
      steps: of the client in this round.
      rate_share: f_r.
    """
    before, number, gain = tf.cast(round, tf.float32), tf.math.ceil(steps / DRAW_EVERY), (1 - DECAY) * rate_share
    if not is_traced_for_xla():
        return 1 - tf.reduce_prod(1 - tf.maximum(1 / (before + tf.range(number) + 1), gain))
    # XLA would have to know the length of the range. The factors j / (j + 1) come first: their product is r / (r + m).
    # Elsewhere the product stays: another rounding would change the digits of every seeded run.
    of_mean = tf.clip_by_value(tf.floor(1 / gain) - before, 0.0, number)
    left = tf.where(of_mean > 0, before / tf.maximum(before + of_mean, 1.0), 1.0)
    return 1 - left * tf.pow(1 - gain, number - of_mean)


class ByCurvature:
    """Precisions follow the curvature of the likelihood; means by a Keras optimizer, or by natural gradients too.

    precision = 1 / s^2 <- b precision + (1 - b) (1 / t^2 + n h)

    With `first_stddev` s_0 the precisions follow the data from the first estimate on, and the noise of training is at
    first no wider than s_0: in round r, with j the sum of r and the estimates that the client has made in this round,

    precision <- precision + max(1 / (j + 1), (1 - b) f_r) (1 / t^2 + n h - precision)
    noise ~ N(0, 1 / (precision + f_r^2 / s_0^2))

    The precision is the mean of the estimates in the first round, and takes less of each as f_r, the share of the first
    learning rate that is left, falls. The narrowing of the noise falls with it, and is no part of what is sent.

    h [D] estimates the second derivative of the mean negative log likelihood in each weight:

    h = B g^2, g its gradient for labels drawn from the model's own prediction: the diagonal of the Gauss-Newton
        matrix, which is positive, estimated every `DRAW_EVERY` steps; or
    h = (d NLL / d noise) eps / s, by Price's theorem (IVON): unbiased of any sign, its noise some sqrt(n / B) of h.
        The precision then has (1 - b)^2 (precision - 1 / t^2 - n h)^2 / (2 precision) besides, by which it stays
        positive.

    Natural gradients of means:

    mean <- mean - rate (n g_t + (mean - m) / t^2) / (precision + damping n)

    with g_t the mean of all gradients so far, the last counting most. Damping bounds the step where the precision is
    far below the curvature; the precision that is sent has none.

    Both are stationary at the q that minimises the loss: where E_q[h] n + 1 / t^2 is the precision and the loss has no
    gradient in the mean. Training starts from the precision that the server has sent, and continues over
    rounds.

    Args:
      weights: of the model.
      optimizer_fn: of point weights, and of means unless `natural_means`.
      learning_rate: of means, and of point weights unless `natural_means`.
      draw_labels: h by drawn labels, instead of by Price's theorem.
      decay: b, at least 0 and below 1.
      natural_means: by natural gradients at `learning_rate`; point weights then by the optimizer at its default rate.
      damping: of natural gradients, a share of n.
      noise: "shared", one draw for a batch, or "flipout".
      first_stddev: s_0; None for precisions that leave those of the start by the decay.

    Source: Khan et al. 2018 (arXiv:1806.04854), eqs. 6 and 7; Shen et al. 2024 (arXiv:2402.17641), algorithm 1 (IVON);
    Martens 2020 (arXiv:1412.1193), section 9.2, for drawn labels.
    """

    def __init__(
        self,
        weights: FlatWeights,
        optimizer_fn: Optimizer,
        learning_rate: Schedule,
        *,
        draw_labels: bool = True,
        decay: float = DECAY,
        natural_means: bool = False,
        damping: float = 0.0,
        noise: str = "shared",
        first_stddev: float | None = None,
    ):
        self.noise = noise
        self.draws_labels = draw_labels
        self._weights = weights
        self._decay = decay
        self._damping = damping
        self._learning_rate = learning_rate
        self._optimizer, self._reset = resettable(optimizer_fn, [weights.values])
        self._point_rate = optimizer_rate(optimizer_fn)
        self._first_stddev = first_stddev
        if first_stddev is not None:
            self._done, self._gain, self._narrowing = (tf.Variable(0.0) for _ in range(3))
            weights.narrowing = self._narrowing
        self._rate: tf.Variable | None = None
        if natural_means:
            self._rate = tf.Variable(0.0)
            self._momentum = tf.Variable(lambda: tf.zeros_like(weights.log_stddev))
            self._steps_before = tf.Variable(0)

    def start(self, round: tf.Tensor, rounds: tf.Tensor | int = 0) -> None:
        self._reset()
        rate = rate_of(self._learning_rate, round, rounds)
        if self._first_stddev is not None:
            share = rate / rate_of(self._learning_rate, tf.constant(0), rounds)
            self._done.assign(tf.cast(round, tf.float32))
            self._gain.assign((1 - self._decay) * share)
            self._narrowing.assign(tf.square(share / self._first_stddev))
        if self._rate is None:
            self._optimizer.learning_rate.assign(rate)
        else:
            self._optimizer.learning_rate.assign(self._point_rate)
            self._rate.assign(rate)
            self._momentum.assign(tf.zeros_like(self._momentum))
            self._steps_before.assign(0)

    def step(self, batch: Batch, target: Target) -> None:
        size, number = target.size, tf.size(batch.in_noise)
        in_values = batch.in_values + batch.kl_in_values / size
        if self._rate is None:
            bounded_values = bounded(in_values, self._optimizer, batch.max_norm)
            self._optimizer.apply_gradients([(bounded_values, self._weights.values)])
            self._follow_curvature(batch, target, size)
            return
        precision = self._follow_curvature(batch, target, size)
        self._momentum.assign(MOMENTUM * self._momentum + (1 - MOMENTUM) * batch.in_values[:number])
        steps = tf.cast(self._steps_before + batch.number + 1, tf.float32)
        unbiased = self._momentum / (1 - tf.pow(MOMENTUM, steps))
        change = self._rate * (size * unbiased + batch.kl_in_values[:number]) / (precision + self._damping * size)
        of_points = bounded(in_values[number:], self._optimizer, batch.max_norm)
        points = tf.concat([tf.zeros_like(change), of_points], 0)
        self._optimizer.apply_gradients([(points, self._weights.values)])
        self._weights.values.assign_sub(tf.concat([change, tf.zeros_like(in_values[number:])], 0))

    def resume(self, momentum: tf.Tensor, steps: tf.Tensor) -> None:
        """Go on from the momentum [D] that so many steps of earlier rounds have left; natural gradients only."""
        self._momentum.assign(momentum)
        self._steps_before.assign(steps)

    def momentum_after(self, steps: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return what `resume` takes, after so many steps of this round."""
        return tf.identity(self._momentum), self._steps_before + steps

    def _follow_curvature(self, batch: Batch, target: Target, size: tf.Tensor) -> tf.Tensor:
        """Set the precision of the weights, and return it."""
        share, prior_precision = 1 - self._decay, target.prior.precision[: tf.size(batch.in_noise)]
        present = lambda: tf.math.reciprocal(tf.square(batch.draw.stddev))

        def by_price() -> tf.Tensor:
            before = present()
            gap = prior_precision + size * batch.in_noise * batch.draw.noise * before - before
            return self._set(before + share * gap + 0.5 * tf.square(share * gap) / before, target.least_precision)

        def by_drawn_labels() -> tf.Tensor:
            before, curvature = present(), batch.size * tf.square(batch.in_noise_of_drawn_labels())
            found = prior_precision + size * curvature
            if self._first_stddev is None:
                return self._set(before + share * (found - before), target.least_precision)
            estimates = self._done + tf.cast(batch.number // DRAW_EVERY, tf.float32)
            gain = tf.maximum(1 / (estimates + 1), self._gain)
            return self._set(before + gain * (found - before), target.least_precision)

        if not self.draws_labels:
            return by_price()
        return tf.cond(tf.equal(batch.number % DRAW_EVERY, 0), by_drawn_labels, present)

    def _set(self, precision: tf.Tensor, least: tf.Tensor) -> tf.Tensor:
        precision = tf.maximum(precision, least)
        self._weights.set_precision(precision)
        return precision
