"""Sums of Gauss-Newton terms against dense Jacobians, over likelihoods, models and partitions."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from scipy import special

from tests.kit import flat, refuses
from tfp_bfl import models
from tfp_bfl.algorithms.laplace.work import STRUCTURES, laplace, layers_of
from tfp_bfl.data import ClientExamples
from tfp_bfl.training.likelihoods import Likelihood, parse_likelihood
from tfp_bfl.weights import ServerMessage, get_weights, layout

N = 23
BATCHES = 5, 64
DENSE = tf.keras.layers.Dense


def mlp(num_outputs=3):
    glorot = lambda seed: tf.keras.initializers.GlorotUniform(seed=seed)
    inputs = tf.keras.Input((4,))
    x = DENSE(3, "relu", kernel_initializer=glorot(1))(inputs)
    return tf.keras.Model(inputs, DENSE(num_outputs, kernel_initializer=glorot(2))(x))


def conv():
    glorot = lambda seed: tf.keras.initializers.GlorotUniform(seed=seed)
    inputs = tf.keras.Input((6, 6, 1))
    x = tf.keras.layers.Conv2D(3, 3, activation="tanh", kernel_initializer=glorot(1))(inputs)
    x = tf.keras.layers.BatchNormalization()(tf.keras.layers.AveragePooling2D()(x))
    x = DENSE(4, "relu", kernel_initializer=glorot(2))(tf.keras.layers.Flatten()(x))
    return tf.keras.Model(inputs, DENSE(3, kernel_initializer=glorot(3))(x))


# likelihood -> builds a model for it; integer labels where there are classes
CASES = {
    "categorical": functools.partial(mlp, 3),
    "categorical, images": conv,
    "gaussian:0.5": functools.partial(mlp, 1),
    "heteroscedastic": functools.partial(mlp, 2),
}


def examples(name, number=N, seed=0):
    rng = np.random.default_rng(seed)
    shape = CASES[name]().input_shape[1:]
    is_image = len(shape) == 3
    features = rng.integers(0, 256, (number, *shape), np.uint8) if is_image else rng.normal(size=(number, *shape))
    labels = rng.integers(0, 3, number) if "categorical" in name else rng.normal(size=number)
    dtypes = np.uint8 if is_image else np.float32, np.int32 if "categorical" in name else np.float32
    return ClientExamples(np.zeros(number, np.int32), features.astype(dtypes[0]), labels.astype(dtypes[1]))


def likelihood_of(name):
    return name.partition(",")[0]


@functools.cache
def built(name, structure, batch_size):
    """Traced once for any number of examples."""
    options = {"structure": structure, "likelihood": likelihood_of(name), "batch_size": batch_size}
    work = laplace(CASES[name], **options)()
    message = ServerMessage(get_weights(CASES[name]()), tf.constant(0))
    specs = [tf.TensorSpec([None, *x.shape[1:]], x.dtype) for x in examples(name)]
    run = lambda *given: work(message, ClientExamples(*given), tf.constant([1, 0])).weights
    return tf.function(run, input_signature=specs, autograph=False)


def sums(name, structure, given, batch_size):
    return built(name, structure, batch_size)(*given)


@functools.cache
def dense(name):
    """J [N, C, D] and what the likelihood asks of the outputs, from the whole Jacobian at once."""
    model, given = CASES[name](), examples(name)
    leaves = layout(model).point
    features = tf.image.convert_image_dtype(given.features, tf.float32)
    with tf.GradientTape(persistent=True) as tape:
        outputs = model(features, training=False)
        nll = tf.reduce_sum(parse_likelihood(likelihood_of(name)).nll(tf.constant(given.labels), outputs))
    jacobian = [np.float64(tape.jacobian(outputs, v)).reshape(N, outputs.shape[1], -1) for v in leaves]
    gradient = [np.float64(x) for x in tape.gradient(nll, leaves)]
    return np.concatenate(jacobian, 2), np.float64(outputs), gradient, float(nll)


def fisher(name, outputs):
    """The information that a label has of the outputs, in closed form [N, C, C]."""
    if name == "gaussian:0.5":
        return np.full((N, 1, 1), 4.0)
    if name == "heteroscedastic":
        return np.stack([np.diag([np.exp(-b), 0.5]) for _, b in outputs])
    return np.stack([np.diag(p) - np.outer(p, p) for p in special.softmax(outputs, 1)])


@pytest.mark.parametrize("batch_size", BATCHES)
@pytest.mark.parametrize("name", CASES)
def test_sums_are_those_of_the_dense_jacobian(name, batch_size):
    jacobian, outputs, gradient, nll = dense(name)
    whole = np.einsum("nad,nab,nbe->de", jacobian, fisher(name, outputs), jacobian)
    found = sums(name, "diagonal", examples(name), batch_size)
    np.testing.assert_allclose(flat(found.curvature), np.diag(whole), rtol=1e-4, atol=1e-5 * np.diag(whole).max())
    np.testing.assert_allclose(flat(found.gradient), flat(gradient), rtol=1e-4, atol=1e-4)
    assert float(found.nll) == pytest.approx(nll, rel=1e-5) and int(found.num_examples) == N
    last = sums(name, "last_layer", examples(name), batch_size)
    size = len(flat(last.gradient))
    np.testing.assert_allclose(
        last.curvature, whole[-size:, -size:], rtol=1e-4, atol=1e-5 * np.abs(whole[-size:, -size:]).max()
    )
    np.testing.assert_allclose(flat(last.gradient), flat(gradient)[-size:], rtol=1e-4, atol=1e-4)
    assert float(last.nll) == pytest.approx(nll, rel=1e-5)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("name", CASES)
def test_clients_sums_are_those_of_all_examples_in_one_place(name, structure):
    given, batch_size = examples(name), BATCHES[0]
    central = sums(name, structure, given, BATCHES[1])
    by_label = np.array_split(np.argsort(given.labels, kind="stable"), 3)
    for parts in ([range(1), range(1, N)], np.array_split(np.arange(N), 6), by_label):
        each = [sums(name, structure, tf.nest.map_structure(lambda x, p=p: x[p], given), batch_size) for p in parts]
        for field in ("curvature", "gradient", "nll"):
            total = np.sum([flat(getattr(x, field)) for x in each], 0, np.float64)
            wanted = flat(getattr(central, field))
            np.testing.assert_allclose(total, wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("name", ["categorical", "gaussian:0.5", "heteroscedastic"])
def test_fisher_root_is_the_expectation_over_labels(name):
    """Compare with the expected outer product of gradients, over all classes or 40 Gauss-Hermite nodes."""
    likelihood = parse_likelihood(name)
    outputs = tf.constant(
        np.random.default_rng(2).normal(size=(4, {"categorical": 3, "gaussian:0.5": 1}.get(name, 2))), tf.float32
    )

    def outer(labels):
        with tf.GradientTape() as tape:
            tape.watch(outputs)
            nll = likelihood.nll(labels, outputs)
        g = tape.gradient(nll, outputs).numpy()
        return g[:, :, None] * g[:, None, :]

    if name == "categorical":
        p = tf.nn.softmax(outputs).numpy()
        wanted = sum(p[:, c, None, None] * outer(tf.fill([4], c)) for c in range(3))
    else:
        nodes, weights = np.polynomial.hermite_e.hermegauss(40)
        stddev = 0.5 if name == "gaussian:0.5" else np.exp(0.5 * outputs[:, 1])
        at = lambda z: tf.constant(outputs[:, 0] + stddev * z, tf.float32)
        wanted = sum(a * outer(at(z)) for z, a in zip(nodes, weights / weights.sum()))
    root = likelihood.fisher_root(outputs)
    np.testing.assert_allclose(tf.matmul(root, root, transpose_b=True), wanted, rtol=1e-4, atol=1e-5)


def test_a_log_variance_beyond_its_bound_has_no_curvature():
    root = parse_likelihood("heteroscedastic").fisher_root(tf.constant([[0.0, 20.0], [0.0, 13.0]])).numpy()
    assert root[0, 1, 1] == 0 and root[1, 1, 1] > 0


def test_layers_have_their_numbers():
    assert layers_of(conv(), "diagonal") == (0, 0, 1, 1, 2, 2, 3, 3)
    assert layers_of(conv()) == (0, 0)


def headless(last):
    inputs = tf.keras.Input((4,))
    return tf.keras.Model(inputs, last(DENSE(3, "relu")(inputs)))


REFUSED = {
    "variational": (lambda: models.mlp("flipout", input_shape=(4,)), "has variational layers"),
    "dropout": (lambda: models.mlp("mc_dropout", input_shape=(4,)), "draws masks at prediction"),
    "no bias": (lambda: headless(DENSE(3, use_bias=False)), "with bias and without activation"),
    "activation": (lambda: headless(DENSE(3, "tanh")), "with bias and without activation"),
    "no dense": (lambda: headless(tf.keras.layers.LayerNormalization()), "must be a keras.layers.Dense"),
    "chain": (lambda: headless(lambda x: tf.keras.layers.ReLU()(DENSE(3)(x))), "with bias and without activation"),
    "large": (lambda: headless(lambda x: DENSE(10)(DENSE(500)(x))), "has 5,010 weights"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_models_that_do_not_fit_are_refused(name):
    model_fn, words = REFUSED[name]
    refuses(words, laplace(model_fn, structure="last_layer"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"structure": "kron"}, "structure 'kron'"),
        ({"batch_size": 0}, "batch_size"),
        ({"likelihood": "density"}, "has no fisher_root"),
        ({"likelihood": Likelihood(lambda y, f: y, lambda f, seed: f)}, "has no fisher_root"),
    ],
)
def test_options_out_of_range_are_refused(options, words):
    error = refuses(words, laplace, mlp, **options)
    assert "object at 0x" not in error and len(error) < 400
