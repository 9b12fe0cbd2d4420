"""A model's trainable weights as two vectors: a step on them costs a few operations, however many layers there are.

`FlatWeights` holds them in variables; with `WeightVectors` a model is a function of them, so that gradients go through
steps of training.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfp_bfl import keras
from tfp_bfl.layers.gaussian import LOG_STDDEV, VariationalWeight
from tfp_bfl.layers.noise import standard_normal
from tfp_bfl.posterior import MeanField, flatten, unflatten
from tfp_bfl.weights.functional_call import variational_call
from tfp_bfl.weights.model_weights import ModelWeights, layout

# log s of weights that a client does without: they have no noise either.
_NO_NOISE = -30.0


class Draw(NamedTuple):
    """One draw of the noise of all variational weights.

    Fields:
      stddev: s [D].
      noise: s * eps, eps ~ N(0, 1), [D]; narrower with `FlatWeights.narrowing`.
    """

    stddev: tf.Tensor
    noise: tf.Tensor


class Prior(NamedTuple):
    """A Gaussian prior N(m, t^2) on each weight.

    Fields:
      mean: m [D + P].
      precision: 1 / t^2 [D + P]; 0 for point weights, with a flat prior.
      log_stddev: log t [D].
      pull: the gradient of -log prior at m, 0 for a Gaussian: with it the prior is proportional to
        exp(-pull (w - m) - (w - m)^2 / (2 t^2)), with a mean that may lie far from m, where numbers cancel.
      hierarchical: [D] 1 for the weights with a hierarchical prior (`VariationalWeight`): `precision` and
        `log_stddev` are then of t / sqrt(mean^2 + s^2), of q itself.
      in_mean: factor of the KL's gradient in the means [D + P]: 0 where it is left out.
    """

    mean: tf.Tensor
    precision: tf.Tensor
    log_stddev: tf.Tensor
    pull: Any = 0.0
    hierarchical: Any = 0.0
    in_mean: Any = 1.0


class FlatWeights:
    """The trainable weights of a Keras model in two variables.

    `load` and `store` move whole `ModelWeights` in and out; between them the two variables are the truth, and the
    model's own follow with `update_model`. BatchNorm's statistics stay in the model.

    Attributes:
      values: means [D], then point weights [P]: [D + P]; the constraints of the model's variables hold here too.
      log_stddev: log s [D]; a constraint keeps s where its layer allows it.
      prior: the layers' own.
      leaves: the model's variables in which a step takes its gradient, in the order of `values`.
      point: those of them that are point weights.
      narrowing: the precision that draws have besides 1 / s^2, a scalar variable; None for none.
    """

    narrowing: tf.Variable | None = None

    def __init__(self, model: keras.Model):
        self._layout = layout(model)
        variational = self._layout.variational
        self._means = [w.mean for w in variational]
        self.point = self._layout.point
        self.leaves = [*self._means, *self.point]
        sizes = [v.shape.num_elements() for v in self.leaves]
        self._num_means, self._num_values = sum(sizes[: len(variational)]), sum(sizes)
        floors = [tf.fill(w.mean.shape, math.log(w.min_stddev)) for w in variational]
        # One operation, where no layer allows less than its floor does.
        self._floor = flatten(floors) if all(w.parametrization is LOG_STDDEV for w in variational) else None
        constrained = any(v.constraint for v in self.leaves)
        self.values = tf.Variable(
            lambda: tf.zeros([self._num_values]), constraint=self._constrained if constrained else None
        )
        self.log_stddev = tf.Variable(lambda: tf.zeros([self._num_means]), constraint=self._allowed)
        self.prior = self._prior(variational)

    @property
    def has_posterior(self) -> bool:
        """Whether there are variational weights."""
        return bool(self._means)

    @property
    def variables(self) -> list[tf.Variable]:
        """The variables of an optimizer's step: `values`, and `log_stddev` if there is any."""
        return [self.values, self.log_stddev] if self._means else [self.values]

    def _constrained(self, values: tf.Tensor) -> tf.Tensor:
        parts = zip(self.leaves, unflatten(values, self.leaves))
        return self.flatten([v.constraint(part) if v.constraint else part for v, part in parts])

    def _prior(self, variational: Sequence[VariationalWeight]) -> Prior:
        fill = lambda numbers: flatten([tf.fill(w.mean.shape, float(x)) for w, x in zip(variational, numbers)])
        follows = [w.prior is None for w in variational]
        variance = fill((w.prior or 1.0) ** 2 for w in variational)
        given = self.gaussian(tf.zeros_like(variance), 1 / variance)
        self._follows = any(follows)
        if not self._follows:
            return given
        in_mean = self._padded(fill(not w.detached for w in variational), 1.0)
        return given._replace(hierarchical=fill(follows), in_mean=in_mean)

    def at_present(self, prior: Prior, stddev: tf.Tensor) -> Prior:
        """Return the prior with the t that hierarchical weights have at q = N(values, stddev^2)."""
        if not self._follows:
            return prior
        own = tf.square(self.values[: self._num_means]) + tf.square(stddev)
        unit = tf.where(prior.hierarchical > 0, own, 1.0)
        return prior._replace(
            precision=prior.precision / self._padded(unit, 1.0),
            log_stddev=prior.log_stddev + 0.5 * tf.math.log(unit),
            hierarchical=0.0,
        )

    def _allowed(self, log_stddev: tf.Tensor) -> tf.Tensor:
        if self._floor is not None:
            return tf.maximum(log_stddev, self._floor)
        parts = (unflatten(x, self._means) for x in (log_stddev, self.values[: self._num_means]))
        return flatten([w.projected(*of_it) for w, *of_it in zip(self._layout.variational, *parts)])

    def load(self, weights: ModelWeights) -> None:
        """Set the variables and BatchNorm's statistics; standard deviations below the floor come up to it."""
        self.values.assign(flatten([*weights.posterior.mean, *weights.point]))
        self.log_stddev.assign(self._allowed(0.5 * tf.math.log(flatten(weights.posterior.variance))))
        self.update_model()
        statistics = [*self._layout.moving_mean, *self._layout.moving_variance]
        for variable, value in zip(statistics, [*weights.moments.mean, *weights.moments.variance]):
            variable.assign(value)

    def gaussian(self, mean: tf.Tensor, precision: tf.Tensor) -> Prior:
        """Return N(mean, 1 / precision) over the variational weights [D] as a prior."""
        return Prior(self._padded(mean), self._padded(precision), -0.5 * tf.math.log(precision))

    def factor(self, mean: tf.Tensor, precision: tf.Tensor, pull: tf.Tensor) -> Prior:
        """Return a prior proportional to exp(-pull (w - mean) - precision (w - mean)^2 / 2) [D].

        Its KL lacks a constant. A negative precision is no density's; its gradient is still that of the exponent.
        """
        positive = tf.maximum(precision, keras.backend.epsilon())
        factor = Prior(self._padded(mean), self._padded(precision), -0.5 * tf.math.log(positive))
        return factor._replace(pull=self._padded(pull))

    def _padded(self, x: tf.Tensor, value: float = 0.0) -> tf.Tensor:
        return tf.pad(x, [[0, self._num_values - self._num_means]], constant_values=value)

    def set_posterior(self, mean: tf.Tensor, precision: tf.Tensor) -> None:
        """Set means and standard deviations by m and 1 / s^2 [D]."""
        self.values.assign(tf.concat([mean, self.values[self._num_means :]], 0))
        self.set_precision(precision)

    def set_precision(self, precision: tf.Tensor) -> None:
        """Set `log_stddev` by 1 / s^2 [D]; standard deviations below the floor come up to it."""
        self.log_stddev.assign(self._allowed(-0.5 * tf.math.log(precision)))

    def update_model(self) -> None:
        """Set the model's means and point weights to `values`."""
        for variable, value in zip(self.leaves, unflatten(self.values, self.leaves)):
            variable.assign(value)

    def store(self) -> ModelWeights:
        """Return the variables and BatchNorm's statistics as `ModelWeights`; variances are exp(log s)^2."""
        values = unflatten(self.values, self.leaves)
        number = len(self._means)
        # XLA computes exp(log s) once for this and for the KL.
        variance = tf.square(tf.exp(self.log_stddev))
        posterior = MeanField(tuple(values[:number]), tuple(unflatten(variance, self._means)))
        read = lambda group: tuple(tf.convert_to_tensor(v) for v in group)
        moments = MeanField(read(self._layout.moving_mean), read(self._layout.moving_variance))
        return ModelWeights(posterior, tuple(values[number:]), moments)

    def draw(self, seed: tf.Tensor) -> Draw:
        """Return one draw for all variational weights."""
        stddev, eps = tf.exp(self.log_stddev), standard_normal(self._num_means, seed)
        if self.narrowing is None:
            return Draw(stddev, stddev * eps)
        return Draw(stddev, eps / tf.sqrt(1 / tf.square(stddev) + self.narrowing))

    def by_weight(self, noise: tf.Tensor) -> dict[Any, tf.Tensor]:
        """Return the noise [D] as `tfp_bfl.layers.sampling` takes it."""
        return {mean.ref(): part for mean, part in zip(self._means, unflatten(noise, self._means))}

    def as_prior(self, posterior: MeanField) -> Prior:
        """Return a posterior over the variational weights as the prior of the next."""
        mean, variance = (flatten(part) for part in posterior)
        return self.gaussian(mean, 1 / variance)

    def kl_divergence(self, stddev: tf.Tensor, prior: Prior) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return KL[q || prior] in nats, and its gradient in `values` and in `log_stddev`; `stddev` is exp(log_stddev).

        KL = sum_d log(t_d / s_d) + (s_d^2 + (mean_d - m_d)^2) / (2 t_d^2) - 1 / 2   for the prior N(m, t^2)
        d KL / d mean = (mean - m) / t^2,   d KL / d log s = s^2 / t^2 - 1

        Both also where the prior is hierarchical: its t is the one of the smallest KL, in which that has no gradient.
        """
        if not self.has_posterior:
            return tf.zeros([]), tf.zeros_like(self.values), tf.zeros_like(self.log_stddev)
        prior = self.at_present(prior, stddev)
        shift = self.values - prior.mean
        in_values = shift * prior.precision + prior.pull
        in_log_stddev = tf.square(stddev) * prior.precision[: self._num_means] - 1
        # Summed weight by weight: the sums of its terms are large, and cancel near the prior.
        kl = tf.reduce_sum(0.5 * in_log_stddev - (self.log_stddev - prior.log_stddev))
        kl += 0.5 * tf.reduce_sum(shift * (in_values + prior.pull))
        return kl, in_values * prior.in_mean if self._follows else in_values, in_log_stddev

    def flatten(self, leaves: Sequence[tf.Tensor]) -> tf.Tensor:
        """Return tensors shaped like `leaves` as one vector."""
        return flatten(leaves)

    def unflatten(self, flat: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Return vectors [..., D + P] as tensors shaped like `leaves`, after the same leading axes."""
        return tuple(unflatten(flat, self.leaves))


class Vectors(NamedTuple):
    """The trained vectors.

    Fields:
      values: means of the variational weights, then point weights: [D + P].
      scales: what the layers hold of the standard deviations (`VariationalWeight.scale`): [D].
    """

    values: tf.Tensor
    scales: tf.Tensor


class WeightVectors:
    """The functions of a model's weights as two vectors; the model's own variables are neither read nor written.

    Args:
      model: a Keras model without BatchNorm.
    """

    def __init__(self, model: keras.Model):
        self._model = model
        self._variational = layout(model).variational
        self._point = layout(model).point
        self._means = [w.mean for w in self._variational]

    @property
    def num_variational(self) -> int:
        """D."""
        return sum(v.shape.num_elements() for v in self._means)

    def load(self, weights: ModelWeights) -> Vectors:
        """Return the vectors of weights, with standard deviations that the layers allow."""
        logs = [0.5 * tf.math.log(v) for v in weights.posterior.variance]
        own = zip(self._variational, logs, weights.posterior.mean)
        scales = [w.parametrization.inverse(log_stddev, mean) for w, log_stddev, mean in own]
        return self.projected(Vectors(flatten((weights.posterior.mean, weights.point)), flatten(tuple(scales))))

    def store(self, vectors: Vectors, moments: MeanField) -> ModelWeights:
        """Return the weights of the vectors; variances are exp(2 log s)."""
        means, scales, point = self._parts(vectors)
        own = zip(self._variational, means, scales)
        variances = [tf.exp(2 * w.parametrization.log_stddev(x, m)) for w, m, x in own]
        return ModelWeights(MeanField(tuple(means), tuple(variances)), tuple(point), moments)

    def gaussian(self, vectors: Vectors) -> tuple[tf.Tensor, tf.Tensor]:
        """Return means [D] and logarithms of the standard deviations [D]."""
        means, scales, _ = self._parts(vectors)
        log_stddevs = [w.parametrization.log_stddev(x, m) for w, m, x in zip(self._variational, means, scales)]
        return flatten(tuple(means)), flatten(tuple(log_stddevs))

    def call(self, features: tf.Tensor, vectors: Vectors, mask: tf.Tensor | None = None) -> tf.Tensor:
        """Return logits [B, C]; weights with `mask` [D] 0 are 0 without noise, and get no gradient."""
        if mask is not None:
            kept = tf.concat([mask, tf.ones_like(vectors.values[self.num_variational :])], 0)
            vectors = Vectors(kept * vectors.values, tf.where(mask > 0, vectors.scales, _NO_NOISE))
        means, scales, point = self._parts(vectors)
        return variational_call(self._model, means, scales, point, features)

    def kl_divergence(self, vectors: Vectors, mask: tf.Tensor | None = None) -> tf.Tensor:
        """Return KL[q || prior] in nats, of the weights with `mask` [D] 1."""
        means, scales, _ = self._parts(vectors)
        each = flatten([w.kl_divergences(m, x) for w, m, x in zip(self._variational, means, scales)])
        return tf.reduce_sum(each if mask is None else mask * each)

    def projected(self, vectors: Vectors) -> Vectors:
        """Return the nearest vectors that the layers allow."""
        _, scales, _ = self._parts(vectors)
        allowed = [w.scale.constraint(x) for w, x in zip(self._variational, scales)]
        return vectors._replace(scales=flatten(tuple(allowed))) if allowed else vectors

    def _parts(self, vectors: Vectors) -> tuple[list[tf.Tensor], list[tf.Tensor], list[tf.Tensor]]:
        """Return means, scales and point weights in their shapes."""
        values = unflatten(vectors.values, [*self._means, *self._point])
        number = len(self._means)
        return values[:number], unflatten(vectors.scales, self._means), values[number:]
