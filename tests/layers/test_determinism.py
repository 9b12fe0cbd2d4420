"""Models where TensorFlow's determinism is enabled and the program has set no seed."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import config

import tfp_bfl as bfl

KINDS = [kind for kind in bfl.models.KINDS if kind != "deterministic"]
ROWS = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)


@pytest.fixture(autouse=True)
def determinism():
    """As TF_DETERMINISTIC_OPS=1 does; `tests/seeds.py` has set a seed, which the test takes away."""
    config.enable_op_determinism()
    yield
    config.disable_op_determinism()


def make(kind):
    context.set_global_seed(None)
    return bfl.models.mlp(kind=kind, input_shape=(3,), num_classes=2)


def test_operations_without_a_seed_are_refused():
    context.set_global_seed(None)
    with pytest.raises(RuntimeError, match="seed"):
        tf.random.uniform([2])


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_is_built_and_each_call_draws_anew(kind):
    model = make(kind)
    draws = [model(ROWS, training=True).numpy() for _ in range(2)]
    assert np.isfinite(draws).all() and (draws[0] != draws[1]).any()


@pytest.mark.parametrize("kind", KINDS)
def test_calls_of_a_graph_and_its_layers_draw_anew(kind):
    model = make(kind)
    call = tf.function(lambda x: [model(x, training=True), model(x, training=True)])
    draws = [x.numpy() for _ in range(2) for x in call(ROWS)]
    assert len({x.tobytes() for x in draws}) == 4


def test_a_seed_of_the_program_counts():
    model = make("flipout")
    tf.random.set_seed(3)
    first = model(ROWS).numpy()
    tf.random.set_seed(3)
    np.testing.assert_array_equal(model(ROWS), first)


def test_an_ensemble_draws_a_member():
    model = make("deterministic")
    weights = bfl.weights.get_weights(model)
    members = [weights._replace(point=tuple(w + 10.0 * m for w in weights.point)) for m in range(3)]
    together = bfl.weights.ensemble_model(model, members)
    context.set_global_seed(None)
    answers = {together(ROWS).numpy().tobytes() for _ in range(40)}
    assert len(answers) == 3
