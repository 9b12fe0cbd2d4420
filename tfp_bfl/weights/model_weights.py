"""The mapping between a Keras model's variables and what a federated round carries."""

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfp_bfl import keras
from tfp_bfl.display import shows
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.layers.gaussian import VariationalWeight
from tfp_bfl.posterior import MeanField, marginals
from tfp_bfl.tensors import size_of
from tfp_bfl.weights.frozen import frozen_layers, frozen_variables


def is_keras_3(model: object) -> bool:
    """Return whether this is a model of Keras 3; False where Keras 3 has not been imported."""
    keras: Any = sys.modules.get("keras")
    version = str(getattr(keras, "__version__", "0")).partition(".")[0]
    return version.isdigit() and int(version) >= 3 and isinstance(model, keras.Model)


def check_keras_2(model: Any) -> None:
    """Check that this is no model of Keras 3.

    Raises:
      InvalidArgument: it is one.
    """
    if is_keras_3(model):
        raise InvalidArgument(
            f"The model {model.name!r} is a model of Keras 3: give bfl.models.from_keras_3(model), or what simulate "
            "returned for it."
        )


def _facts(weights: "ModelWeights") -> dict[str, object]:
    posterior, point, moments = map(size_of, weights)
    return {
        "posterior": f"{type(weights.posterior).__name__} of {posterior or 'no'} numbers",
        **{"point weights": point, "moments of BatchNorm": moments},
    }


@shows(_facts)
class ModelWeights(NamedTuple):
    """All trained parameters of a model, as tuples of tensors in the order of the model's layers.

    Fields:
      posterior: a `MeanField` of the variational weights. For a model without variational layers it may also be a
        `LowRank` or `Samples`, over the last of the point weights: all of them, or those of the last layer.
      point: the trainable weights without a posterior: biases, BatchNorm's scale and shift, every weight of a
        deterministic model.
      moments: BatchNorm's moving means and variances; a `MeanField` because they are pooled as moments.
    """

    posterior: Any
    point: tuple[Any, ...]
    moments: MeanField


class Layout(NamedTuple):
    """A model's variables in the places that their values have in `ModelWeights`; those of frozen layers have none."""

    variational: list[VariationalWeight]
    point: list[tf.Variable]
    moving_mean: list[tf.Variable]
    moving_variance: list[tf.Variable]


def layout(model: keras.Model) -> Layout:
    """Sort a model's variables.

    Raises:
      InvalidArgument: it is a model of Keras 3, or has a state that no rule can pool (neither trained nor BatchNorm's).
    """
    check_keras_2(model)
    still = {id(layer) for layer in frozen_layers(model)}
    layers = [x for x in model._flatten_layers(include_self=False) if x.built and id(x) not in still]
    variational = [weight for layer in layers for weight in getattr(layer, "variational_weights", [])]
    normalizations = [layer for layer in layers if isinstance(layer, keras.layers.BatchNormalization)]
    means = [layer.moving_mean for layer in normalizations]
    variances = [layer.moving_variance for layer in normalizations]
    taken = {id(v) for weight in variational for v in (weight.mean, weight.scale)} | {id(v) for v in means + variances}
    point = [v for v in model.trainable_variables if id(v) not in taken]
    taken |= {id(v) for v in frozen_variables(model)}
    strange = [v.name for v in model.non_trainable_variables if id(v) not in taken]
    if strange:
        raise InvalidArgument(
            f"The model's variables {strange} are neither trained nor BatchNorm's statistics, so that no rule can pool "
            "them: use layers without a state of their own, or freeze theirs by trainable=False."
        )
    return Layout(variational, point, means, variances)


def get_weights(model: keras.Model) -> ModelWeights:
    """Return the model's weights; variances are exp(2 log_stddev).

    Example:
      >>> weights = bfl.weights.get_weights(bfl.models.mlp("flipout", input_shape=(4,), num_classes=2, hidden=()))
      >>> [x.shape.as_list() for x in weights.posterior.mean]
      [[4, 2]]
    """
    variables = layout(model)
    read = lambda group: tuple(tf.convert_to_tensor(v) for v in group)
    return ModelWeights(
        MeanField(
            read(w.mean for w in variables.variational),
            tuple(tf.exp(2 * tf.convert_to_tensor(w.log_stddev)) for w in variables.variational),
        ),
        read(variables.point),
        MeanField(read(variables.moving_mean), read(variables.moving_variance)),
    )


def assign_weights(model: keras.Model, weights: ModelWeights) -> None:
    """Set the model's variables; standard deviations that a layer does not allow become the nearest that it does.

    The posterior of a model without variational layers is over the last of its point weights, which get its mean.

    Raises:
      InvalidArgument: there are more or fewer weights than the model has, or of other shapes or types; a posterior over
        variational weights that is no `MeanField`. Then nothing is set.
    """
    variables = layout(model)
    point, variational = weights.point, variables.variational
    if variational:
        if not isinstance(weights.posterior, MeanField):
            raise InvalidArgument(
                "The posterior of a model with variational layers must be a MeanField, not "
                f"{type(weights.posterior).__name__}: for another use a deterministic model."
            )
        means, variances = weights.posterior
    else:
        point, means, variances = (*point, *tf.nest.flatten(marginals(weights.posterior).mean)), (), ()
    groups = {
        "means of variational weights": ([w.mean for w in variational], means),
        "variances of variational weights": ([w.scale for w in variational], variances),
        "point weights": (variables.point, point),
        "means of BatchNorm": (variables.moving_mean, weights.moments.mean),
        "variances of BatchNorm": (variables.moving_variance, weights.moments.variance),
    }
    tensors = {name: _checked(name, *pair) for name, pair in groups.items()}
    variational_of = {id(w.scale): w for w in variational}
    for name, (group, _) in groups.items():
        for variable, value in zip(group, tensors[name]):
            if id(variable) in variational_of:  # its mean is set by now
                variational_of[id(variable)].assign_log_stddev(0.5 * tf.math.log(value))
            else:
                variable.assign(value)


def _checked(name: str, variables: Sequence[tf.Variable], values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Return the values as tensors, if they fit the variables."""
    if len(variables) != len(values):
        raise InvalidArgument(f"The model has {len(variables)} {name}, but there are {len(values)} values.")
    return [checked_value(variable, tf.convert_to_tensor(value)) for variable, value in zip(variables, values)]


def checked_value(variable: tf.Variable, value: tf.Tensor) -> tf.Tensor:
    """Return the value, if it has the shape and the type of the variable."""
    if not variable.shape.is_compatible_with(value.shape) or variable.dtype != value.dtype:
        raise InvalidArgument(
            f"The weight {variable.name} is {variable.shape} {variable.dtype.name}, but its value {value.shape} "
            f"{value.dtype.name}."
        )
    return value


def prior(model: keras.Model) -> MeanField:
    """Return the prior N(0, t^2) of the model's variational weights, shaped like its posterior.

    t is the layer's prior_stddev; where its prior is hierarchical, t^2 = mean^2 + s^2 of the present posterior.
    """
    weights = layout(model).variational
    means = tuple(tf.zeros(w.mean.shape, w.mean.dtype) for w in weights)
    return MeanField(means, tuple(map(_prior_variance, weights)))


def _prior_variance(weight: VariationalWeight) -> tf.Tensor:
    mean = tf.convert_to_tensor(weight.mean)
    if weight.prior is None:
        return tf.square(mean) + tf.exp(2 * tf.convert_to_tensor(weight.log_stddev))
    return tf.fill(mean.shape, tf.cast(weight.prior**2, mean.dtype))


def min_stddev(model: keras.Model) -> float:
    """Return the lowest floor of the model's standard deviations; 0 for a model without variational weights."""
    return min((w.min_stddev for w in layout(model).variational), default=0.0)
