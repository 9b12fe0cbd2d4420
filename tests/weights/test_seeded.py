"""Initial weights from a seed where initializers have none: equal, apart by seed, and without a trace."""

import random

import numpy as np
import pytest
import tensorflow as tf

import tfp_bfl as bfl

ORTHOGONAL = lambda: tf.keras.initializers.Orthogonal()
SOURCES = {
    "layers of Keras": lambda: tf.keras.layers.Dense(4, input_shape=(3,)),
    "this library's layers": lambda: bfl.layers.DenseFlipout(4, input_shape=(3,)),
    "an initializer": lambda: tf.keras.layers.Dense(4, kernel_initializer=ORTHOGONAL(), input_shape=(3,)),
    "Python": lambda: dense_of(lambda shape: np.reshape([random.gauss(0, 1) for _ in range(np.prod(shape))], shape)),
    "NumPy": lambda: dense_of(lambda shape: np.random.normal(size=shape)),
    "TensorFlow": lambda: dense_of(lambda shape: tf.random.normal(shape)),
}


def dense_of(draw):
    initializer = lambda shape, dtype=None: tf.cast(draw(tuple(shape)), dtype or tf.float32)
    return tf.keras.layers.Dense(4, kernel_initializer=initializer, input_shape=(3,))


def kernel(layer, seed=None):
    build = lambda: tf.keras.Sequential([layer()]).get_weights()[0]
    if seed is None:
        return build()
    with bfl.weights.seeded(seed):
        return build()


@pytest.mark.parametrize("source", SOURCES)
def test_equal_by_seed_and_others_by_another(source):
    """Two Gaussian or uniform kernels of 12 float32 numbers are equal by chance once in far more than 10^50."""
    first, other, again = (kernel(SOURCES[source], seed) for seed in (0, 1, 0))
    np.testing.assert_array_equal(again, first)
    assert (first != other).all()


@pytest.mark.parametrize("source", sorted(set(SOURCES) - {"TensorFlow"}))
def test_they_do_not_depend_on_the_programs_own_seeds(source):
    found = []
    for seed in (5, 6):
        tf.keras.utils.set_random_seed(seed)
        found.append(kernel(SOURCES[source], 3))
    np.testing.assert_array_equal(*found)


def test_two_layers_of_a_block_differ():
    with bfl.weights.seeded(0):
        first, second = (tf.keras.Sequential([SOURCES["layers of Keras"]()]).get_weights()[0] for _ in range(2))
    assert (first != second).all()


@pytest.mark.parametrize("build", [bfl.models.lenet, bfl.models.mlp], ids=["lenet", "mlp"])
def test_seeded_initializers_give_what_they_give_elsewhere(build):
    shape = (28, 28, 1) if build is bfl.models.lenet else (5,)
    outside = build("flipout", shape, 3, seed=4).get_weights()
    with bfl.weights.seeded(1):
        inside = build("flipout", shape, 3, seed=4).get_weights()
    for one, two in zip(outside, inside):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("program", [None, 7])
def test_operations_with_a_seed_give_what_they_give_elsewhere(program):
    layer = lambda: dense_of(lambda shape: tf.random.normal(shape, seed=9))
    tf.random.set_seed(program)
    outside = kernel(layer)
    tf.random.set_seed(program)
    np.testing.assert_array_equal(kernel(layer, 2), outside)


def draws():
    """Two numbers of each global generator."""
    of_keras = tf.keras.initializers.GlorotUniform()([2])
    return np.stack([[random.random() for _ in range(2)], np.random.uniform(size=2), tf.random.normal([2]), of_keras])


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("fails", [False, True])
def test_the_programs_generators_go_on_as_without_the_block(source, fails):
    found = []
    for inside in (False, True):
        tf.keras.utils.set_random_seed(8)
        before = draws()
        if inside and fails:
            with pytest.raises(ZeroDivisionError), bfl.weights.seeded(0):
                kernel(SOURCES[source])
                raise ZeroDivisionError
        elif inside:
            kernel(SOURCES[source], 0)
        found.append((before, draws()))
    np.testing.assert_array_equal(*found)


def test_a_program_without_a_seed_stays_without_one():
    """Once in 2^30 or so the two numbers of Keras' seeds would be equal by chance."""
    script = lambda: (kernel(SOURCES["TensorFlow"], 0), kernel(SOURCES["layers of Keras"]))[1]
    tf.random.set_seed(None)
    assert (script() != script()).any()
    assert tf.random.normal([8]).numpy().tolist() != tf.random.normal([8]).numpy().tolist()
