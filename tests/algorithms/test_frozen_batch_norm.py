"""FL-SWAG of the last layer above frozen BatchNorm: the server's statistics stay."""

import numpy as np
import pytest
import tensorflow as tf

import tfp_bfl as bfl


def model_fn():
    return bfl.models.lenet("deterministic", (8, 8, 1), normalization="batch", seed=3)


@pytest.mark.deep(after="tests/weights/test_head.py")
def test_the_last_layer_above_frozen_batch_norm():
    clients = bfl.data.load("digits").subset(60, 0).partition(bfl.data.iid(2), 0)
    start = bfl.weights.get_weights(model_fn())
    # Statistics that no training of this model would leave.
    moments = tf.nest.map_structure(lambda x: tf.fill(x.shape, 0.7), start.moments)
    process = bfl.algorithms.fl_swag(model_fn, last_layer=True, local_epochs=4)
    result = bfl.simulate(process, clients, 1, start=start._replace(moments=moments))
    assert not tf.nest.flatten(result.state.step.moments)
    pooled = process.predictive_weights(result.state)
    for value in tf.nest.flatten(pooled.moments):
        np.testing.assert_array_equal(value, np.full(value.shape, 0.7, np.float32))
    for mine, server in zip(pooled.point, start.point):
        np.testing.assert_array_equal(mine, server)
    assert len(pooled.point) == len(start.point) - 2
