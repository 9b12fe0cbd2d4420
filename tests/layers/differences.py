"""Gradients of a layer against central differences."""

import itertools

import numpy as np
import tensorflow as tf

from tfp_bfl.layers import sampling

STEP = 1e-5


def check_gradients(layer, inputs, variables, mode, places=24):
    """Those of a sum of the outputs, each with a slope of its own, in float64 and at some places of each variable."""
    inputs = tf.Variable(inputs)

    @tf.function
    def loss():
        with sampling(mode, seed=[3, 5]):
            outputs = layer(inputs)
        slopes = tf.cos(tf.cast(tf.range(tf.size(outputs)), tf.float64))
        return tf.reduce_sum(tf.reshape(outputs, [-1]) * slopes)

    variables = [*variables, inputs]
    with tf.GradientTape() as tape:
        value = loss()
    gradients = tape.gradient(value, variables, unconnected_gradients="zero")
    for variable, gradient in zip(variables, gradients):
        start = variable.numpy()
        for place in list(itertools.product(*map(range, start.shape)))[:places]:
            ends = []
            for sign in (1, -1):
                moved = start.copy()
                moved[place] += sign * STEP
                variable.assign(moved)
                ends.append(loss().numpy())
            variable.assign(start)
            np.testing.assert_allclose(gradient.numpy()[place], (ends[0] - ends[1]) / (2 * STEP), rtol=1e-6, atol=1e-7)
