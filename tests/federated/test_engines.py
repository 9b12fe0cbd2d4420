"""A round on TensorFlow Federated is the round of this process: one method of each type that a state has."""

import pytest
import tensorflow as tf

from tests.algorithms.methods import CLIENTS, METHODS, assert_same, mlp
from tfp_bfl import federated
from tfp_bfl.layers import sampling

tff = pytest.importorskip("tensorflow_federated")

deep = pytest.mark.deep(after="tests/algorithms/test_contract.py")
OF_EACH_TYPE = {
    "a posterior": "conflation, flipout",
    "an optimizer's state": "fed_opt, sgd with momentum",
    "a chain": "fed_sgld",
}
OF_OTHER_TYPES = {
    "points": "naive_weighted_average, mc_dropout",
    "moments of points": "fed_ag",
    "a stack of posteriors": "fed_kp, clients",
    "a stack of low-rank posteriors and BatchNorm": "fl_swag, with BatchNorm",
    "an ensemble": "fed_be",
}


@pytest.fixture(scope="module")
def worker():
    with federated.local_workers(max_concurrent_calls=1) as running:
        yield running


@pytest.mark.parametrize(
    "name", [*OF_EACH_TYPE.values(), *(pytest.param(name, marks=deep) for name in OF_OTHER_TYPES.values())]
)
def test_a_round_is_that_of_this_process(name, worker):
    process = METHODS[name]().build()
    learning_process, engine = process.learning_process, process.local
    first = engine.initialize()
    assert_same(learning_process.initialize(), first, rtol=0, atol=0)
    data = CLIENTS.shards(range(3), 2)
    on_tff, here = learning_process.next(first, data), engine.next(first, data)
    assert_same(on_tff.state, here.state, rtol=1e-5, atol=1e-6)
    assert_same(on_tff.metrics, here.metrics, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "kind", ["flipout", pytest.param("mc_dropout", marks=deep), pytest.param("deterministic", marks=deep)]
)
def test_models_of_before_still_work(kind):
    """TFF traces in a graph of TensorFlow 1, where Keras turns its classes into their old ones for all models."""
    model, features = mlp(kind)(), tf.constant(CLIENTS.source.features)
    with sampling("mean"):
        before = model(features).numpy()
        process = METHODS[f"naive_weighted_average, {kind}"]().build()
        assert isinstance(process.learning_process, tff.learning.templates.LearningProcess)
        assert (model(features).numpy() == before).all()
