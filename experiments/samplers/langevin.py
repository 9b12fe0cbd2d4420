"""Stochastic-gradient Langevin dynamics: steps as pure functions, and chains of them over a Keras model's weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tfp_bfl import keras, posterior
from tfp_bfl.errors import Diverged, InvalidArgument, check_counts, check_number, shown
from tfp_bfl.layers import sampling, without_autograph
from tfp_bfl.models import as_model_fn
from tfp_bfl.posterior import MeanField, Samples
from tfp_bfl.training.batches import steps_per_epoch
from tfp_bfl.training.likelihoods import Likelihood
from tfp_bfl.training.potential import Potential
from tfp_bfl.weights import check_form, check_layers

Schedule = float | Callable[[tf.Tensor], tf.Tensor]
DECAY, STABILIZER = 0.99, 1e-5


def sgld_step(weights: object, gradient: object, step_size: object, seed: tf.Tensor) -> Any:
    """Compute one step of stochastic-gradient Langevin dynamics (SGLD).

    w' = w + (step_size / 2) gradient + sqrt(step_size) e,   e ~ N(0, I)

    On N(m, s^2) with its exact gradient the chain is stationary at the variance 1 / (1 / s^2 - step_size / (4 s^4)),
    above s^2; from step_size = 4 s^2 on it diverges.

    Args:
      weights: w, a structure of float tensors [...].
      gradient: of log p(w | data) or an unbiased estimate of it, a structure like `weights`.
      step_size: a positive scalar.
      seed: [2], integers; the same seed, the same noise.

    Returns:
      w', a structure like `weights`.

    Source: Welling & Teh 2011, "Bayesian learning via stochastic gradient Langevin dynamics", eq. 4.
    """
    return _step(weights, gradient, tf.nest.map_structure(tf.ones_like, weights), step_size, seed)


def psgld_step(
    weights: object,
    second_moment: object,
    gradient: object,
    mean_gradient: object,
    step_size: object,
    seed: tf.Tensor,
    decay: float = DECAY,
    stabilizer: float = STABILIZER,
) -> tuple[Any, Any]:
    """Compute one step of SGLD with RMSprop's preconditioner (pSGLD), with noise from the first step on.

    v' = decay v + (1 - decay) mean_gradient^2,   P = 1 / (stabilizer + sqrt(v'))
    w' = w + (step_size / 2) P gradient + sqrt(step_size P) e,   e ~ N(0, I)

    The term (step_size / 2) dP / dw of their eq. 6 is left out, as Li et al. do: it has the factor 1 - decay.

    Args:
      weights: w, a structure of float tensors [...].
      second_moment: v, a structure like `weights`; zeros before the first step.
      gradient: of log p(w | data) or an unbiased estimate of it, a structure like `weights`.
      mean_gradient: of the log likelihood per example, the mean over the batch, without the prior; likewise.
      step_size: a positive scalar. Where the likelihood has no gradient (behind a dead ReLU), P is 1 / stabilizer, and
        under a prior N(0, t^2) the weight diverges from step_size = 4 stabilizer t^2 on.
      seed: [2], integers; the same seed, the same noise.
      decay: at least 0 and at most 1.
      stabilizer: above 0.

    Returns:
      w' and v', structures like `weights`.

    Source: Li et al. 2016 (arXiv:1512.07666), algorithm 1.
    """
    each = tf.nest.map_structure
    second_moment = each(lambda v, g: decay * v + (1 - decay) * tf.square(g), second_moment, mean_gradient)
    preconditioner = each(lambda v: 1 / (stabilizer + tf.sqrt(v)), second_moment)
    return _step(weights, gradient, preconditioner, step_size, seed), second_moment


def _step(weights: object, gradient: object, preconditioner: object, step_size: object, seed: tf.Tensor) -> Any:
    """Return a draw from N(w + (step_size / 2) P gradient, step_size P)."""
    each = tf.nest.map_structure
    step = lambda like: tf.cast(step_size, like.dtype)
    mean = each(lambda w, g, p: w + 0.5 * step(w) * p * g, weights, gradient, preconditioner)
    return posterior.sample(MeanField(mean, each(lambda p: step(p) * p, preconditioner)), seed)


class _Chain(NamedTuple):
    steps: tf.Tensor
    weights: tf.Tensor
    second_moment: tf.Tensor
    order: tf.Tensor


class _Steps(NamedTuple):
    """The steps of a chain on N examples, until its weights are not finite.

    Fields:
      potential: of the model.
      features, labels: of the examples [N, ...], [N].
      batch_size: at most N.
      precision: of the prior.
      step_size: a number, or a function from the steps done so far.
      second_moments: decay and stabilizer of `psgld_step`; None for `sgld_step`.
    """

    potential: Potential
    features: tf.Tensor
    labels: tf.Tensor
    batch_size: int
    precision: float
    step_size: Schedule
    second_moments: tuple[float, float] | None

    def size(self, steps: tf.Tensor) -> Any:
        """Return the step size after so many steps."""
        return self.step_size(steps) if callable(self.step_size) else self.step_size

    @without_autograph
    def some(self, chain: _Chain, goes_on: tf.Tensor, number: int, key: tf.Tensor) -> tuple[_Chain, tf.Tensor]:
        """Return the chain after at most `number` more steps, and whether its weights are still finite."""
        more = lambda i, chain, goes_on: (i < number) & goes_on
        a_step = lambda i, chain, goes_on: (i + 1, *self._advance(chain, key))
        return tf.while_loop(more, a_step, (tf.constant(0), chain, goes_on), parallel_iterations=1)[1:]

    @without_autograph
    def _advance(self, chain: _Chain, key: tf.Tensor) -> tuple[_Chain, tf.Tensor]:
        before, num_examples = chain, self.labels.shape[0]
        steps, weights, second_moment, order = chain
        orders, noises = tf.unstack(tf.random.experimental.stateless_split(key))
        steps_a_pass = steps_per_epoch(num_examples, self.batch_size)
        of_pass = tf.random.experimental.stateless_fold_in(orders, steps // steps_a_pass)
        position = steps % steps_a_pass
        shuffle = lambda: tf.random.experimental.stateless_shuffle(tf.range(num_examples), of_pass)
        order = tf.cond(tf.equal(position, 0), shuffle, lambda: order)
        rows = order[position * self.batch_size : (position + 1) * self.batch_size]
        of_step = tf.random.experimental.stateless_fold_in(noises, steps)
        masks, noise = tf.unstack(tf.random.experimental.stateless_split(of_step))
        likelihood = self._mean_gradient(weights, rows, masks)
        gradient = num_examples * likelihood - self.precision * weights
        step = self.size(steps)
        if self.second_moments:
            moved = psgld_step(weights, second_moment, gradient, likelihood, step, noise, *self.second_moments)
            weights, second_moment = moved
        else:
            weights = sgld_step(weights, gradient, step, noise)
        goes_on = tf.reduce_all(tf.math.is_finite(weights))
        after = _Chain(steps + 1, weights, second_moment, order)
        return tf.nest.map_structure(lambda x, y: tf.where(goes_on, x, y), after, before), goes_on

    def _mean_gradient(self, weights: tf.Tensor, rows: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        with sampling("flipout", seed):
            batch = tf.gather(self.features, rows), tf.gather(self.labels, rows)
            _, gradient = self.potential.gradient(weights, *batch)
        return -gradient / tf.cast(tf.shape(rows)[0], tf.float32)


def langevin_chain(
    model_fn: Callable[[], keras.Model],
    features: Any,
    labels: Any,
    *,
    step_size: Schedule,
    num_steps: int,
    burn_in: int = 0,
    thin: int = 1,
    batch_size: int = 32,
    prior_stddev: float | None = 1.0,
    likelihood: str | Likelihood = "categorical",
    preconditioned: bool = False,
    decay: float = DECAY,
    stabilizer: float = STABILIZER,
    seed: int = 0,
) -> Samples:
    """Draw from the posterior of a model's weights by SGLD or, preconditioned, by pSGLD.

    log p(w | data) = (N / B) sum_b log p(y_b | x_b, w) + log N(w; 0, prior_stddev^2) + const.

    Batches come in passes over the examples, each in a new order; the last of a pass may be smaller, and N / B follows
    it. The chain starts from the model's weights as `model_fn` leaves them. A longer chain of the same seed begins with
    the shorter one's draws.

    BatchNorm normalises by the batch; the draws have no statistics of their own (`weights.predictive_model` computes
    them for each from `batch_norm_examples`). Monte Carlo dropout draws its masks anew for each step.

        draws = langevin_chain(model_fn, features, labels, step_size=1e-4, num_steps=10_000, burn_in=5_000)
        weights = bfl.weights.get_weights(model_fn())._replace(posterior=draws, point=())
        model = bfl.weights.predictive_model(model_fn(), weights)

    Args:
      model_fn: builds a Keras model without variational layers that returns logits [B, C].
      features: [N, ...]; integers are scaled to [0, 1].
      labels: [N], integers in [0, C), or numbers where the likelihood is of such.
      step_size: a positive number, or a function from the steps done so far (scalar int32) to a scalar.
      num_steps: of the chain, those of the burn-in included.
      burn_in: steps before the first that counts.
      thin: a draw is kept after every so many steps: L = (num_steps - burn_in) // thin draws.
      batch_size: B; more than N count as N.
      prior_stddev: of every weight, biases and BatchNorm's scale and shift among them; None for a flat prior.
      likelihood: "categorical", "gaussian:STDDEV", "heteroscedastic" or "density".
      preconditioned: `psgld_step` instead of `sgld_step`.
      decay, stabilizer: as of `psgld_step`; for a network with ReLUs the stabilizer must be above
        step_size / (4 prior_stddev^2).
      seed: of orders, noise and masks: the same seed, the same draws.

    Returns:
      `Samples` of all point weights, a tuple of leaves [L, ...] in the order of `weights.layout(model).point`.

    Raises:
      InvalidArgument: arguments outside their ranges, features and labels that do not fit, a model with variational
        layers, or with layers that have losses or noise that a step would miss.
      Diverged: the weights are not finite after a step, where the chain stops; the error has the `state` before.

    Source: Welling & Teh 2011; Li et al. 2016 (arXiv:1512.07666), algorithm 1. Departures: batches without replacement,
    and a step size that may stay constant.
    """
    _check_counts(num_steps, burn_in, thin, batch_size, seed)
    _check_numbers(step_size, prior_stddev, decay, stabilizer)
    features, labels = _examples(features, labels, likelihood == "categorical")
    model = as_model_fn(model_fn)()
    check_form(model)
    check_layers(model)
    potential = Potential(model, likelihood)
    precision = 0.0 if prior_stddev is None else 1 / prior_stddev**2
    num_examples, batch_size = labels.shape[0], min(batch_size, labels.shape[0])
    second_moments = (decay, stabilizer) if preconditioned else None
    steps = _Steps(potential, features, labels, batch_size, precision, step_size, second_moments)

    @tf.function
    def run(start: tf.Tensor, key: tf.Tensor) -> tuple[tf.Tensor, _Chain, tf.Tensor]:
        chain = _Chain(tf.constant(0), start, tf.zeros_like(start), tf.range(num_examples))
        chain, goes_on = steps.some(chain, tf.constant(True), burn_in, key)
        number = (num_steps - burn_in) // thin
        draws = tf.TensorArray(start.dtype, number, element_shape=start.shape)
        for i in tf.range(number):
            chain, goes_on = steps.some(chain, goes_on, thin, key)
            draws = draws.write(i, chain.weights)
        return draws.stack(), chain, goes_on

    draws, last, goes_on = run(potential.start(), tf.constant([seed, 0]))
    if not goes_on:
        done, step = int(last.steps), float(steps.size(last.steps))
        raise Diverged(
            f"The weights are not finite after step {done + 1}, of the step size {step:g}: take a smaller "
            f"step_size; the state after step {done} is kept.",
            tuple(x.numpy() for x in potential.shaped(last.weights)),
        )
    return Samples(potential.shaped(draws))


def _examples(features: Any, labels: Any, of_classes: bool) -> tuple[tf.Tensor, tf.Tensor]:
    features, labels = tf.convert_to_tensor(features), tf.convert_to_tensor(labels)
    wrong = of_classes and not labels.dtype.is_integer
    if wrong or labels.shape.rank != 1 or features.shape[:1] != labels.shape or not len(labels):
        raise InvalidArgument(
            f"langevin_chain needs features [N, ...] and {'integer ' * of_classes}labels [N] of one N of at least 1, "
            f"but has features {features.shape} and {labels.dtype.name} labels {labels.shape}."
        )
    return features, labels


def _check_counts(num_steps: Any, burn_in: Any, thin: Any, batch_size: Any, seed: tf.Tensor) -> None:
    check_counts(num_steps=num_steps, thin=thin, batch_size=batch_size)
    check_counts(0, burn_in=burn_in, seed=seed)
    if burn_in + thin > num_steps:
        raise InvalidArgument(
            f"burn_in + thin is {burn_in + thin}, but must be at most num_steps, {num_steps}, for the chain to have a "
            "draw."
        )


def _check_numbers(step_size: object, prior_stddev: object, decay: object, stabilizer: object) -> None:
    for name, value in (("step_size", step_size), ("prior_stddev", prior_stddev), ("stabilizer", stabilizer)):
        if (name == "step_size" and callable(value)) or (name == "prior_stddev" and value is None):
            continue
        check_number(value, name)
    if check_number(decay, "decay", zero=True) > 1:
        raise InvalidArgument(f"decay is {shown(decay)}, but must be a number from 0 to 1.")
