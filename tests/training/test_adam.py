"""Adam by TensorFlow's kernel: the trajectory of Keras's own."""

import numpy as np
import pytest
import tensorflow as tf

from tfp_bfl.training.optimizers import Adam

STEPS = 20
RNG = np.random.default_rng(0)
START = [RNG.normal(size=n).astype(np.float32) for n in (50, 7)]
# Of several sizes, among them 0 and ones that underflow when squared.
GRADIENTS = [
    [(RNG.normal(size=w.shape) * 10.0 ** RNG.integers(-6, 3, w.shape)).astype(np.float32) for w in START]
    for _ in range(STEPS)
]
for gradients in GRADIENTS:
    gradients[0][:3] = 0, 1e-25, -1e-30


def trajectory(optimizer, dtype=np.float32, wrap=lambda f: f, rates=None):
    """The variables, the optimizer's first moments and its second ones after each step."""
    variables = [tf.Variable(w.astype(dtype)) for w in START]
    optimizer.build(variables)
    step = wrap(lambda values: optimizer.apply_gradients(zip(values, variables)))
    seen = []
    for number, values in enumerate(GRADIENTS):
        if rates is not None:
            optimizer.learning_rate.assign(rates[number])
        step([tf.convert_to_tensor(g.astype(dtype)) for g in values])
        groups = variables, optimizer._momentums, optimizer._velocities
        seen.append([np.concatenate([v.numpy() for v in group]) for group in groups])
    return seen


def assert_same(ours, keras, rate=1e-3):
    """Weights within 1e-6 and the 1e-5th of the way that they went.

    The kernel takes 1 - beta_2 of beta_2 in float32, where 0.001 has a relative error of 1.3e-5; Keras in float64.
    """
    for number, ((w, *moments), (keras_w, *keras_moments)) in enumerate(zip(ours, keras, strict=True), 1):
        np.testing.assert_allclose(w, keras_w, rtol=1e-6, atol=1e-7 + 1e-5 * rate * number)
        for a, b in zip(moments, keras_moments, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-9)


OPTIONS = {
    "default": {},
    "rate": {"learning_rate": 0.05},
    "betas": {"beta_1": 0.5, "beta_2": 0.9},
    "no momentum": {"beta_1": 0.0},
    "epsilon": {"epsilon": 0.1},
    "amsgrad": {"amsgrad": True, "learning_rate": 0.05},
    "global_clipnorm": {"global_clipnorm": 0.5},
    "clipvalue": {"clipvalue": 0.01},
    "weight_decay": {"weight_decay": 0.1, "learning_rate": 0.05},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "function"])
def test_same_trajectory_as_keras(options, wrap):
    ours = trajectory(Adam(**options), wrap=wrap)
    keras = trajectory(tf.keras.optimizers.Adam(**options))
    assert_same(ours, keras, options.get("learning_rate", 1e-3))
    assert np.abs(ours[-1][0] - np.concatenate(START)).max() > 5e-3


def test_float64():
    ours, keras = (trajectory(kind(), np.float64) for kind in (Adam, tf.keras.optimizers.Adam))
    assert ours[-1][0].dtype == np.float64
    assert_same(ours, keras)


def test_equation_by_hand():
    """Kingma & Ba 2015, algorithm 1, in Keras's form of epsilon."""
    beta_1, beta_2, epsilon, rate = 0.7, 0.95, 1e-3, 0.02
    seen = trajectory(Adam(rate, beta_1=beta_1, beta_2=beta_2, epsilon=epsilon))
    w, m, v = np.float64(np.concatenate(START)), 0.0, 0.0
    for t, gradients in enumerate(GRADIENTS, 1):
        g = np.float64(np.concatenate(gradients))
        m, v = beta_1 * m + (1 - beta_1) * g, beta_2 * v + (1 - beta_2) * g**2
        w = w - rate * np.sqrt(1 - beta_2**t) / (1 - beta_1**t) * m / (np.sqrt(v) + epsilon)
        np.testing.assert_allclose(seen[t - 1][0], w, rtol=1e-5, atol=1e-6)


def test_learning_rate_may_change_between_the_steps():
    rates = np.linspace(0.1, 0.0, STEPS, dtype=np.float32)
    ours, keras = (trajectory(kind(), rates=rates) for kind in (Adam, tf.keras.optimizers.Adam))
    assert_same(ours, keras, rate=0.1)
    np.testing.assert_array_equal(ours[-1][0], ours[-2][0])  # the last rate is 0
    assert np.abs(ours[-2][0] - trajectory(Adam())[-2][0]).max() > 0.1


def test_schedule_is_followed():
    make = lambda kind: kind(tf.keras.optimizers.schedules.ExponentialDecay(0.1, 5, 0.5))
    assert_same(trajectory(make(Adam)), trajectory(make(tf.keras.optimizers.Adam)), rate=0.1)


def test_constraint_holds_after_each_step():
    for wrap in (lambda f: f, tf.function):
        variable = tf.Variable([0.05, 1.0], constraint=lambda w: tf.maximum(w, 0.04))
        optimizer = Adam(0.1)
        optimizer.build([variable])
        wrap(lambda v=variable, o=optimizer: o.apply_gradients([(tf.ones([2]), v)]))()
        np.testing.assert_allclose(variable, [0.04, 0.9], rtol=1e-6)


def test_sparse_gradients_go_keras_way():
    def run(optimizer):
        variable = tf.Variable(START[0])
        optimizer.build([variable])
        for number in range(5):
            indices = [number, 7, number]
            optimizer.apply_gradients([(tf.IndexedSlices(tf.constant([1.0, -2.0, 3.0]), indices, [50]), variable)])
        return variable.numpy()

    np.testing.assert_array_equal(run(Adam(0.1)), run(tf.keras.optimizers.Adam(0.1)))
    assert (run(Adam(0.1)) != START[0]).sum() == 6


def test_one_operation_a_variable():
    variables = [tf.Variable(w) for w in START]
    optimizer = Adam()
    optimizer.build(variables)
    step = tf.function(lambda values: optimizer.apply_gradients(zip(values, variables)))
    types = [op.type for op in step.get_concrete_function([tf.constant(w) for w in START]).graph.get_operations()]
    assert types.count("ResourceApplyAdam") == 2
    assert not [t for t in types if t in ("Sqrt", "Square", "RealDiv", "AssignSubVariableOp")]


def test_configuration_round_trip():
    first = Adam(0.02, beta_1=0.8, epsilon=1e-3)
    again = Adam.from_config(first.get_config())
    assert type(again) is Adam
    np.testing.assert_array_equal(trajectory(again), trajectory(first))
