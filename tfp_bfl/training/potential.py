"""-log p(y | x, w) of a Keras model and its gradient, as functions of one vector of all the model's point weights.

`find_mode` minimises it, for QLSD*'s control variate.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypedDict

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_bfl import keras
from tfp_bfl.data import ClientData
from tfp_bfl.errors import InvalidArgument, check_count, check_number
from tfp_bfl.layers import MCDropout, as_floats, without_autograph
from tfp_bfl.models import as_model_fn
from tfp_bfl.posterior import flatten, unflatten
from tfp_bfl.tensors import Array
from tfp_bfl.training.likelihoods import Likelihood, parse_likelihood
from tfp_bfl.weights import batch_normalized_call, functional_call, layout

# Number of examples of one gradient in a sum over all of a client's.
AT_ONCE = 512
# Of a standard deviation: so far the mean of a chain may lie off.
TOLERANCE = 0.1


class Potential:
    """The potential of a model's point weights, of which a posterior is exp(-U):

    U(w) = U_0(w) + sum_j u_j(w),   u_j = -log p(y_j | x_j, w),   U_0 = ||w||^2 / (2 t^2)   for the prior N(0, t^2 I)

    BatchNorm normalises by the batch. Dropout's masks are of the enclosing `layers.sampling`.

    Args:
      model: a Keras model without variational layers.
      likelihood: of the labels: "categorical", "gaussian:STDDEV", "heteroscedastic", "density", or a `Likelihood`.

    Attributes:
      model: as given.
      leaves: the model's point weights, in the order of `weights.layout`.
      size: D, how many they are.
    """

    def __init__(self, model: keras.Model, likelihood: str | Likelihood = "categorical"):
        places = layout(model)
        if places.variational:
            raise InvalidArgument(
                "A chain draws point weights, but the model has variational layers: use one of kind "
                "'deterministic' or 'mc_dropout'."
            )
        self.model = model
        self._likelihood = parse_likelihood(likelihood)
        self._by_batch = bool(places.moving_mean)
        self.leaves = tuple(places.point)
        self.size = sum(v.shape.num_elements() for v in self.leaves)

    def shaped(self, vectors: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Return vectors [..., D] as the weights of the model; leaves keep the leading axes."""
        return unflatten(vectors, self.leaves)

    def start(self) -> tf.Tensor:
        """Return the model's own weights [D]."""
        return flatten([tf.convert_to_tensor(v) for v in self.leaves])

    @without_autograph
    def outputs(self, vector: tf.Tensor, features: tf.Tensor) -> tf.Tensor:
        """Return the model's outputs [B, C] at weights [D]; integer features are scaled to [0, 1]."""
        call = batch_normalized_call if self._by_batch else functional_call
        found = call(self.model, self.shaped(vector), as_floats(features))
        return found[0] if self._by_batch else found

    def each(self, vector: tf.Tensor, features: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """Return u_j at weights [D], in nats [B]."""
        return self._likelihood.nll(labels, self.outputs(vector, features))

    @without_autograph
    def gradient(
        self, vector: tf.Tensor, features: tf.Tensor, labels: tf.Tensor, counts: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return sum_j counts_j u_j in nats, a scalar, and its gradient [D]; each example counts once
        without `counts` [B].
        """
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(vector)
            losses = self.each(vector, features, labels)
            value = tf.reduce_sum(losses if counts is None else tf.where(counts > 0, counts * losses, 0.0))
        return value, tape.gradient(value, vector)

    @without_autograph
    def value(self, vector: tf.Tensor, features: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """Return sum_j u_j of any number of examples, a few hundred at a time: a scalar."""
        number = int(features.shape[0])
        parts = [slice(i, i + AT_ONCE) for i in range(0, number, AT_ONCE)]
        return tf.add_n([tf.reduce_sum(self.each(vector, features[part], labels[part])) for part in parts])

    @without_autograph
    def total(
        self, vector: tf.Tensor, features: tf.Tensor, labels: tf.Tensor, counts: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return `gradient` of any number of examples, a few hundred at a time."""
        number = features.shape[0] if features.shape[0] is not None else tf.shape(features)[0]
        if isinstance(number, int) and number <= AT_ONCE:
            return self.gradient(vector, features, labels, counts)
        counts = tf.ones([number]) if counts is None else counts
        size = AT_ONCE if isinstance(number, int) else tf.minimum(number, AT_ONCE)

        def some(i: tf.Tensor, value: tf.Tensor, gradient: tf.Tensor) -> Any:
            rows = i * size + tf.range(size)
            held = tf.minimum(rows, number - 1)
            share = tf.where(rows < number, tf.gather(counts, held), 0.0)
            more = self.gradient(vector, tf.gather(features, held), tf.gather(labels, held), share)
            return i + 1, value + more[0], gradient + more[1]

        start = tf.constant(0), tf.constant(0.0), tf.zeros_like(vector)
        return tf.while_loop(lambda i, *_: i * size < number, some, start, parallel_iterations=1)[1:]


def potentials_of(
    potential: Potential, draws: Sequence[Array], features: Array, labels: Array, *, prior_stddev: float | None = 1.0
) -> np.ndarray:
    """Compute the potential of each sample of the weights over all examples.

    U(w) = sum_j u_j(w) + ||w||^2 / (2 t^2)

    R-hat, effective sample size and the HPD level of a chain are computed from it. The NLL of a round comes from
    batches, and its noise would hide that a chain hardly moves.

    Args:
      potential: of a model.
      draws: leaves [..., shape of the weight] like the model's point weights, such as `chains.Chains.draws.point`.
      features, labels: of all examples [N, ...], [N].
      prior_stddev: t; None for a flat prior.

    Returns:
      U [...], in nats.
    """
    precision = prior_precision(prior_stddev)
    shapes, expected = [np.shape(x) for x in draws], [tuple(v.shape) for v in potential.leaves]
    lead = shapes[0][: len(shapes[0]) - len(expected[0])] if shapes else ()
    if shapes != [(*lead, *shape) for shape in expected]:
        raise InvalidArgument(f"The draws have leaves {shapes}, but the model's weights are {expected}.")
    vectors = np.concatenate([np.reshape(x, (math.prod(lead), -1)) for x in draws], 1).astype(np.float32)
    given = tf.convert_to_tensor(features), tf.convert_to_tensor(labels)
    of_all = tf.function(
        lambda w: tf.map_fn(lambda x: potential.value(x, *given), w, parallel_iterations=1), autograph=False
    )
    squares = np.square(vectors, dtype=np.float64).sum(1)
    return (of_all(tf.constant(vectors)).numpy() + 0.5 * precision * squares).reshape(lead)


def prior_precision(prior_stddev: float | None) -> float:
    """Return 1 / t^2 of the prior N(0, t^2); 0 for a flat prior, t None."""
    return 0.0 if prior_stddev is None else 1 / check_number(prior_stddev, "prior_stddev") ** 2


def check_independent(model: keras.Model) -> None:
    """Make sure that what the model says of an example is a function of that example and the weights."""
    if layout(model).moving_mean:
        raise InvalidArgument(
            f"The model {model.name!r} normalises by the batch, so that -log p of one example is no function of it "
            "alone and gradients of batches are biased: build it without BatchNorm."
        )
    for layer in model._flatten_layers(include_self=False):
        if isinstance(layer, (MCDropout, keras.layers.Dropout)) and layer.rate and layer.trainable:
            raise InvalidArgument(
                f"The layer {layer.name!r} draws masks, but the potential of a Langevin chain has none: build the "
                "model with kind 'deterministic'."
            )


class Mode(NamedTuple):
    """A point near the least potential.

    Fields:
      point: w*, leaves like the model's point weights.
      error: max_d abs(grad U(w*)_d) / sqrt(sum_j (grad u_j(w*)_d)^2 + 1 / t^2): about how many standard deviations
        of the posterior a chain with its control variate there is off, in the weight where it is most.
      prior_stddev, likelihood: of U, as `find_mode` was given them.
      num_examples: of which U is.
      scale: the square roots that `error` is over [D].
    """

    point: tuple[np.ndarray, ...]
    error: float
    prior_stddev: float | None
    likelihood: str | Likelihood
    num_examples: int
    scale: np.ndarray


class ModeOptions(TypedDict, total=False):
    """Keywords of `find_mode` that functions pass on."""

    prior_stddev: float | None
    likelihood: str | Likelihood
    max_steps: int


def find_mode(
    model_fn: Callable[[], keras.Model],
    features: Array,
    labels: Array,
    *,
    prior_stddev: float | None = 1.0,
    likelihood: str | Likelihood = "categorical",
    max_steps: int = 1000,
    tolerance: float = TOLERANCE,
) -> Mode:
    """Minimise U(w) = sum_j u_j(w) + ||w||^2 / (2 t^2) by L-BFGS from the model's own weights.

    Args:
      model_fn: builds a Keras model of point weights without BatchNorm and dropout, or `models.density`.
      features, labels: of all clients [N, ...], [N].
      prior_stddev: t; None for a flat prior.
      likelihood: as of `Potential`.
      max_steps: at most.
      tolerance: the largest error of a mode, in posterior standard deviations; infinity accepts any point.
    """
    target = _Target(model_fn, features, labels, prior_stddev, likelihood)
    options = {"tolerance": 0.0, "max_iterations": check_count(max_steps, "max_steps"), "num_correction_pairs": 20}
    minimise = lambda start: tfp.optimizer.lbfgs_minimize(target.value_and_gradient, start, **options).position
    mode = target.mode(tf.function(minimise, autograph=False)(target.potential.start()))
    if not mode.error <= tolerance:
        raise InvalidArgument(
            f"No mode was found in {max_steps} steps: the last point is {mode.error:.2g} standard deviations off, and "
            f"at most {tolerance:g} serve. Use more steps, or the estimator 'anchored', which needs none."
        )
    return mode


def check_mode(mode: Mode, potential: Potential, clients: ClientData) -> None:
    """Make sure that a point is the mode of the examples of clients, within `TOLERANCE`; each is gone through once."""
    number = int(np.sum(clients.sizes))
    if number != mode.num_examples:
        raise InvalidArgument(
            f"fixed_point is the mode of {mode.num_examples:,} examples, but the clients have {number:,}: take "
            "training.find_mode(...) of theirs."
        )
    w = flatten([tf.convert_to_tensor(x, tf.float32) for x in mode.point])
    of = tf.function(lambda x, y: potential.total(w, x, y)[1], autograph=False, reduce_retracing=True)
    total = 0.0 if mode.prior_stddev is None else w.numpy().astype(np.float64) / mode.prior_stddev**2
    for k in range(clients.num_clients):
        part = clients.examples(k)
        total = total + of(tf.convert_to_tensor(part.features), tf.convert_to_tensor(part.labels)).numpy()
    off = np.max(np.divide(np.abs(total), mode.scale, out=np.zeros(potential.size), where=mode.scale > 0))
    if not off <= TOLERANCE:
        raise InvalidArgument(
            f"fixed_point is {off:.2g} standard deviations from the mode of these clients' examples, by which the "
            f"chain would be off, and at most {TOLERANCE:g} serve: take training.find_mode(...) of theirs."
        )


class _Target:
    """The potential of all examples with the prior."""

    def __init__(
        self,
        model_fn: Callable[[], keras.Model],
        features: Array,
        labels: Array,
        prior_stddev: float | None,
        likelihood: str | Likelihood,
    ):
        model = as_model_fn(model_fn)()
        check_independent(model)
        self.potential = Potential(model, likelihood)
        self._precision, self._named = prior_precision(prior_stddev), (prior_stddev, likelihood)
        self._given = tf.convert_to_tensor(features), tf.convert_to_tensor(labels)

    def value_and_gradient(self, w: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        value, gradient = self.potential.total(w, *self._given)
        return value + 0.5 * self._precision * tf.reduce_sum(tf.square(w)), gradient + self._precision * w

    def mode(self, w: tf.Tensor) -> Mode:
        scale = tf.sqrt(squared_gradients(self.potential, w, *self._given) + self._precision)
        off = tf.math.divide_no_nan(tf.abs(self.value_and_gradient(w)[1]), scale)
        point, number = tuple(x.numpy() for x in self.potential.shaped(w)), int(self._given[1].shape[0])
        return Mode(point, float(tf.reduce_max(off)), *self._named, number, scale.numpy())


def squared_gradients(potential: Potential, w: tf.Tensor, features: Array, labels: Array) -> tf.Tensor:
    """Return sum_j (grad u_j(w))^2 over all examples [D]: near the potential's curvature where the model is right."""
    features, labels = tf.convert_to_tensor(features), tf.convert_to_tensor(labels)

    def add(j: tf.Tensor, total: tf.Tensor) -> Any:
        _, gradient = potential.gradient(w, features[j : j + 1], labels[j : j + 1])
        return j + 1, total + tf.square(gradient)

    @tf.function(autograph=False)
    def over_all() -> tf.Tensor:
        number = tf.shape(features)[0]
        return tf.while_loop(lambda j, _: j < number, add, (tf.constant(0), tf.zeros_like(w)))[1]

    return over_all()
