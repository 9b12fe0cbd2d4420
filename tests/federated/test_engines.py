"""A round on TensorFlow Federated, in this process, or in a graph of many is the same round, for every method."""

import functools

import pytest
import tensorflow as tf

from tests.algorithms.method import CLIENTS, begin, mlp
from tests.algorithms.methods import METHODS, assert_same
from tests.algorithms.test_contract import ALIKE, TRIED
from tfp_bfl import federated
from tfp_bfl.algorithms.chains.driver import simulate_chains
from tfp_bfl.engines.tff import local_workers
from tfp_bfl.layers import sampling

tff = pytest.importorskip("tensorflow_federated")

deep = pytest.mark.deep(after="tests/algorithms/test_contract.py")
# What differs in one part alone is one method to an engine, but for dropout's noise, an optimizer's state, and clients
# that keep what the server has the sum of.
TELLING = "conflation, flipout"
APART = ("naive_weighted_average, mc_dropout", "fed_opt, sgd with momentum", "qlsd", "qlsd, by client")
OTHERS = [name for name in TRIED if name not in ALIKE or name in APART]
every_method = pytest.mark.parametrize("name", [TELLING, *(pytest.param(name, marks=deep) for name in OTHERS)])


@functools.cache
def process_of(name):
    return METHODS[name]().build()


@pytest.fixture(scope="module")
def worker():
    with local_workers(max_concurrent_calls=1) as running:
        yield running


@every_method
def test_a_round_is_that_of_this_process(name, worker):
    process = process_of(name)
    learning_process, engine = process.learning_process, process.local
    first = engine.initialize()
    assert_same(learning_process.initialize(), first, rtol=0, atol=0)
    first, data = begin(process), CLIENTS.shards(range(3), 2)
    on_tff, here = learning_process.next(first, data), engine.next(first, data)
    assert_same(on_tff.state, here.state, rtol=1e-5, atol=1e-6)
    assert_same(on_tff.metrics, here.metrics, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("engines", [("local", "tff"), pytest.param(("tff", "local"), marks=deep)])
def test_a_run_is_resumed_by_the_other_engine(engines, worker, tmp_path):
    process = process_of(TELLING)
    runtime = {"tff": {"runtime": worker}, "local": {}}
    run = lambda engine, rounds, folder: federated.simulate(
        process, CLIENTS, rounds, cohort_size=2, engine=engine, checkpoint_dir=folder, **runtime[engine]
    )
    whole = run("local", 3, None)
    run(engines[0], 2, tmp_path)
    resumed = run(engines[1], 3, tmp_path)
    assert_same(resumed.state, whole.state, rtol=1e-5, atol=1e-6)
    assert [row["num_examples"] for row in resumed.rounds] == [row["num_examples"] for row in whole.rounds]


# What a stack of posteriors or models grows by is no loop's.
LOOPS = [name for name in OTHERS if not name.startswith(("fl_swag", "laplace", "last_layer", "private"))]


@pytest.mark.parametrize("name", [TELLING, *(pytest.param(name, marks=deep) for name in LOOPS)])
def test_rounds_in_one_graph_are_those_of_this_process(name):
    process = process_of(name)
    wanted = federated.simulate(process, CLIENTS, 3, cohort_size=2, engine="local").state
    chains = simulate_chains(process, CLIENTS, 3, cohort_size=2)
    assert_same(tf.nest.map_structure(lambda x: x[0], chains.state), wanted, rtol=1e-4, atol=1e-5)


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
