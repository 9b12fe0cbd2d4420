"""A client's part of Laplace's approximation: sums of Gauss-Newton terms at weights that all clients share."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tfp_bfl import keras
from tfp_bfl.algorithms.laplace.shared import SharedCurvature
from tfp_bfl.contracts import CURVATURE, ClientWork, Work
from tfp_bfl.data import ClientExamples
from tfp_bfl.errors import InvalidArgument, check_count, lookup
from tfp_bfl.layers import MCDropout, sampling, without_autograph
from tfp_bfl.models import as_model_fn, deterministic, kind_of
from tfp_bfl.posterior import flatten, unflatten
from tfp_bfl.posterior.kronecker import upper
from tfp_bfl.training.batches import over_batches, without_initial_values
from tfp_bfl.training.likelihoods import Likelihood, parse_likelihood
from tfp_bfl.weights import (
    ClientCurvature,
    ClientResult,
    ServerMessage,
    TrainingMetrics,
    assign_weights,
    layout,
    split_head,
)

STRUCTURES = {
    "last_layer": "the full matrix, of the last layer",
    "kronecker": "two matrices that rows and columns share, of the last layer",
    "diagonal": "the diagonal, of all weights",
}
# The server inverts a matrix of so many weights in about a minute, in 200 MB.
MOST_LAST_WEIGHTS = 5000
# The most features and classes where only these have matrices, of "kronecker" and of heads.
MOST_FEATURES, MOST_CLASSES = 4096, 1000


class LaplaceSums(NamedTuple):
    """Sums over a client's examples.

    Fields:
      curvature: the Gauss-Newton diagonal [D], the matrix [D, D], or a `SharedCurvature` with rows [F + 1, F + 1].
      gradient: of the negative log likelihood [D].
      nll: in nats, a scalar.
    """

    curvature: Any
    gradient: tf.Tensor
    nll: tf.Tensor


def laplace(
    model_fn: Callable[[], keras.Model],
    *,
    structure: str = "last_layer",
    likelihood: str | Likelihood = "categorical",
    batch_size: int = 32,
    dtype: tf.DType = tf.float32,
) -> ClientWork[ClientCurvature]:
    """Build client work that sums Gauss-Newton terms, gradients and losses at the server's weights, without training.

    H = sum_i J_i^T S_i S_i^T J_i,   S_i S_i^T = E_y[(d nll / d f) (d nll / d f)^T]

    J_i [C, D] is the Jacobian of the outputs f of example i in the weights. The expectation over the model's own
    labels is exact: S_i S_i^T = diag(p) - p p^T for classes. So sums of clients are those of all examples in one place.

    The diagonal needs for each example C forward and backward passes, and batch_size x D numbers of memory. The matrix
    of the last layer needs one forward pass for each example, and D_last^2 numbers; "kronecker" (F + 1)^2 + C^2.

    Args:
      model_fn: builds a Keras model without variational layers that returns outputs [B, C]; or such a model. BatchNorm
        normalises by its moving statistics.
      structure: "last_layer" for the full H over the last layer, "kronecker" for a `SharedCurvature` there, "diagonal"
        for its diagonal over all weights.
      likelihood: of the labels: "categorical", "gaussian:STDDEV" or "heteroscedastic".
      batch_size: examples at once. It changes rounding alone.
      dtype: of the sums; float64 for those of a last layer alone.

    Returns:
      Client work that sends a `ClientCurvature`. Its nll is the mean at the server's weights; its kl is 0.

    Source: Martens 2020 (arXiv:1412.1193), section 9.2; Daxberger et al. 2021 (arXiv:2106.14806).
    """
    lookup(STRUCTURES, structure, "structure")
    model_fn, density, shared = as_model_fn(model_fn), parse_likelihood(likelihood), structure == "kronecker"
    check_count(batch_size, "batch_size")
    check_fisher(density)
    add_batch = add_diagonal if structure == "diagonal" else functools.partial(_add_layer, dtype=dtype, shared=shared)

    def build() -> Work[ClientCurvature]:
        with tf.variable_creator_scope(without_initial_values):
            model = model_fn()
        leaves = laplace_weights(model, structure)
        size = sum(v.shape.num_elements() for v in leaves)
        width, classes = size // leaves[-1].shape[-1], leaves[-1].shape[-1]
        zeros = lambda *shape: tf.zeros(shape, dtype)
        add = add_batch(model, leaves, density)

        @tf.function(autograph=False)
        def work(message: ServerMessage, examples: ClientExamples, seed: tf.Tensor) -> ClientResult[ClientCurvature]:
            assign_weights(model, message.weights)
            if shared:
                empty: Any = SharedCurvature(zeros(width, width), zeros(classes, classes))
            else:
                empty = zeros(size) if structure == "diagonal" else zeros(size, size)
            start = LaplaceSums(empty, zeros(size), zeros())
            with sampling("mean"):
                sums = over_batches(examples, seed, 1, batch_size, add, start)
            number = tf.shape(examples.labels)[0]
            client = tf.reduce_max(tf.concat([[-1], examples.client], 0))  # -1: it has no examples.
            curvature = sums.curvature
            if structure == "diagonal":
                curvature = unflatten(curvature, tuple(leaves))
            elif shared:
                curvature = curvature._replace(rows=upper(curvature.rows))
            local = ClientCurvature(client, number, curvature, unflatten(sums.gradient, tuple(leaves)), sums.nll)
            nll = tf.cast(sums.nll, tf.float32) / tf.cast(number, tf.float32)
            return ClientResult(local, number, TrainingMetrics(nll, tf.zeros([]), -nll))

        return work

    return ClientWork(build, sends=CURVATURE)


def check_fisher(likelihood: Likelihood) -> None:
    """Raise InvalidArgument for a likelihood without Fisher's information of the outputs."""
    if likelihood.fisher_root is None:
        raise InvalidArgument(
            "The likelihood has no fisher_root, of which the curvature is made: use 'categorical', 'gaussian:STDDEV' "
            "or 'heteroscedastic'."
        )


def network_of(model_fn: object) -> Callable[[], keras.Model]:
    """Return the function that builds the one network whose last weights get a posterior.

    A model with Monte Carlo dropout becomes that without masks: its features are those at the mean of the masks.
    """
    build = as_model_fn(model_fn)
    return (lambda: deterministic(build())) if kind_of(build()) == "mc_dropout" else build


def laplace_weights(model: keras.Model, structure: str = "last_layer") -> list[tf.Variable]:
    """Return the variables that Laplace's approximation is over: the last point weights of a model of `network_of`."""
    _check_one_network(model)
    if structure == "diagonal":
        return layout(model).point
    if structure == "kronecker":
        return check_size(model, "The structure 'kronecker'").trainable_weights
    weights = last_dense(model).trainable_weights
    size = sum(v.shape.num_elements() for v in weights)
    if size > MOST_LAST_WEIGHTS:
        raise InvalidArgument(
            f"The last layer of {model.name!r} has {size:,} weights, and the structure 'last_layer' inverts a matrix "
            f"of at most {MOST_LAST_WEIGHTS:,}: use the structure 'kronecker', or algorithms.head."
        )
    return weights


def _check_one_network(model: keras.Model, what: str = "Laplace's approximation") -> None:
    if layout(model).variational:
        raise InvalidArgument(
            f"{what} finds a posterior over point weights, and {model.name!r} has variational layers: "
            "build the model with kind 'deterministic'."
        )
    masks = [x for x in model._flatten_layers() if isinstance(x, MCDropout) and x.rate and x.trainable]
    dropout = [x.name for x in masks if x.at_prediction]
    if dropout:
        raise InvalidArgument(
            f"{what} is of one network, and the layer {dropout[0]!r} draws masks at "
            "prediction too: build the model with kind 'deterministic', or convert it by models.deterministic."
        )


def last_dense(
    model: keras.Model, what: str = "The structure 'last_layer'", otherwise: str = "use the structure 'diagonal'"
) -> keras.layers.Dense:
    """Return the last layer of a model of `network_of`, which must be dense, with bias and without activation."""
    _check_one_network(model, what)
    last = split_head(model).head.layers[-1]
    linear = keras.activations.linear
    if not isinstance(last, keras.layers.Dense) or not last.use_bias or last.activation is not linear:
        raise InvalidArgument(
            f"{what} requires a keras.layers.Dense with bias and without activation at the end, "
            f"but {model.name!r} ends with {last.name!r}: change that layer, or {otherwise}."
        )
    return last


def check_size(model: keras.Model, what: str, otherwise: str = "use another algorithm") -> keras.layers.Dense:
    """Return `last_dense`, for the features and the classes of which the server inverts a matrix each."""
    last = last_dense(model, what, otherwise)
    width, classes = last.kernel.shape
    if width > MOST_FEATURES or classes > MOST_CLASSES:
        memory = 8 * (3 * width**2 + 2 * (width + 1) * classes) / 2**30
        raise InvalidArgument(
            f"The last layer of {model.name!r} has {width:,} features and {classes:,} classes, for which the matrices "
            f"of the server alone take {memory:.1f} GiB. {what} has at most {MOST_FEATURES:,} and {MOST_CLASSES:,}: "
            "put a dense layer with fewer units before it."
        )
    return last


def layers_of(model: keras.Model, structure: str = "last_layer") -> tuple[int, ...]:
    """Return the number of the layer, from 0 on, for each variable of `laplace_weights`."""
    layers = list(model._flatten_layers(include_self=False))
    holders: list[int] = []
    for variable in laplace_weights(model, structure):
        # The innermost of the layers that hold it has the fewest weights.
        holding = [x for x in layers if any(v is variable for v in x.trainable_weights)]
        holders.append(id(min(holding, key=lambda x: len(x.trainable_weights))))
    order = list(dict.fromkeys(holders))
    return tuple(order.index(holder) for holder in holders)


Add = Callable[[LaplaceSums, tf.Tensor, tf.Tensor, tf.Tensor], LaplaceSums]


def add_diagonal(model: keras.Model, leaves: list[tf.Variable], likelihood: Likelihood) -> Add:
    """Build the function that adds a batch to sums with the diagonal [D] as their curvature."""
    fisher_root: Any = likelihood.fisher_root
    zero = tf.UnconnectedGradients.ZERO

    @without_autograph
    def add(sums: LaplaceSums, features: tf.Tensor, labels: tf.Tensor, seed: tf.Tensor) -> LaplaceSums:
        del seed
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(leaves)
            outputs = model(features, training=False)
            nll = tf.reduce_sum(likelihood.nll(labels, outputs))
        gradient = flatten(tape.gradient(nll, leaves, unconnected_gradients=zero))
        roots = fisher_root(outputs)

        @without_autograph
        def of_one(example: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
            feature, root = example
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(leaves)
                along = tf.tensordot(model(feature[tf.newaxis], training=False)[0], root, 1)
            return flatten(tape.gradient(along, leaves, unconnected_gradients=zero))

        def column(r: tf.Tensor, total: tf.Tensor) -> Any:
            each = tf.vectorized_map(of_one, (features, roots[:, :, r]), warn=False)
            return r + 1, total + tf.reduce_sum(tf.square(each), 0)

        number, start = tf.shape(roots)[2], (tf.constant(0), sums.curvature)
        curvature = tf.while_loop(lambda r, _: r < number, column, start, parallel_iterations=1)[1]
        return LaplaceSums(curvature, sums.gradient + gradient, sums.nll + nll)

    return add


def _add_layer(
    model: keras.Model, leaves: list[tf.Variable], likelihood: Likelihood, dtype: tf.DType, shared: bool
) -> Add:
    """Build the function that adds a batch to sums with the matrix [D, D] of the last layer, or a `SharedCurvature`.

    The layer's weights, kernel [F, C] and bias [C], are the rows of one matrix [F + 1, C] on inputs with a 1 behind:
    H = sum_i (x_i x_i^T) (x) (S_i S_i^T).
    """
    parts = split_head(model)
    fisher_root: Any = likelihood.fisher_root

    def curvature(x: tf.Tensor, outputs: tf.Tensor) -> Any:
        width, classes = x.shape[1], outputs.shape[1]
        if shared and likelihood.fisher_sum is not None:
            return SharedCurvature(tf.matmul(x, x, transpose_a=True), likelihood.fisher_sum(outputs))
        roots = fisher_root(outputs)
        fisher = tf.matmul(roots, roots, transpose_b=True)
        if shared:
            return SharedCurvature(tf.matmul(x, x, transpose_a=True), tf.reduce_sum(fisher, 0))
        pairs = tf.reshape(x[:, :, tf.newaxis] * x[:, tf.newaxis, :], [-1, width * width])
        both = tf.matmul(pairs, tf.reshape(fisher, [-1, classes * classes]), transpose_a=True)
        both = tf.transpose(tf.reshape(both, [width, width, classes, classes]), [0, 2, 1, 3])
        return tf.reshape(both, [width * classes] * 2)

    @without_autograph
    def add(sums: LaplaceSums, features: tf.Tensor, labels: tf.Tensor, seed: tf.Tensor) -> LaplaceSums:
        del seed
        inputs = parts.features(features, training=False)
        x = tf.pad(tf.cast(inputs, dtype), [[0, 0], [0, 1]], constant_values=tf.ones([], dtype))
        if dtype == tf.float32:
            outputs = parts.head(inputs, training=False)
        else:  # Kernel and bias are the rows of one matrix.
            outputs = tf.matmul(x, tf.cast(tf.concat([leaves[0], leaves[1][tf.newaxis]], 0), dtype))
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(outputs)
            nll = tf.reduce_sum(likelihood.nll(labels, outputs))
        slopes = tape.gradient(nll, outputs)
        gradient = tf.reshape(tf.matmul(x, tf.cast(slopes, dtype), transpose_a=True), [-1])
        total = tf.nest.map_structure(tf.add, sums.curvature, curvature(x, outputs))
        return LaplaceSums(total, sums.gradient + gradient, sums.nll + nll)

    return add
