"""Single hot functions, timed by pytest-benchmark; run by hand, with results stored in benchmarks/results/pieces:

python -m pytest benchmarks/pieces --benchmark-autosave --benchmark-compare
"""

import numpy as np
import pytest
import tensorflow as tf
from sides import FLIPOUT
from work import make_clients

import tfp_bfl as bfl
from tfp_bfl.layers import noise

BATCH = 32


@pytest.mark.parametrize("kind", bfl.models.KINDS)
@pytest.mark.parametrize(("model", "steps"), [("lenet", 20), ("resnet20", 2)])
def test_local_training(benchmark, model, steps, kind):
    """Time the work of one client, a number of steps, without TFF."""
    shape = (28, 28, 1) if model == "lenet" else (32, 32, 3)
    model_fn = lambda: bfl.models.MODELS[model](kind=kind, input_shape=shape, precision=FLIPOUT.precision)
    message = bfl.weights.ServerMessage(bfl.weights.get_weights(model_fn()), tf.constant(0))
    examples = tf.nest.map_structure(tf.constant, make_clients(model, 1, steps * BATCH).examples(0))
    work = bfl.clients.variational(model_fn, local_epochs=1, batch_size=BATCH, **FLIPOUT.training())()
    benchmark.extra_info.update(steps=steps, **FLIPOUT._replace(kind=kind)._asdict())
    benchmark(lambda: work(message, examples, tf.constant([0, 1])).metrics.nll.numpy())


@pytest.mark.parametrize("draw", ["box_muller", "stateless_normal"])
def test_noise_of_a_resnet(benchmark, draw):
    size = 270_896
    functions = {
        "box_muller": lambda seed: noise.standard_normal(size, seed),
        "stateless_normal": lambda seed: tf.random.stateless_normal([size], seed),
    }
    function = tf.function(functions[draw])
    benchmark(lambda: function(tf.constant([0, 1])).numpy())


@pytest.mark.parametrize("rule", bfl.rules.RULES)
@pytest.mark.parametrize("num_weights", [100_000, 10_000_000])
def test_pooling_of_ten_clients(benchmark, rule, num_weights):
    rng = np.random.default_rng(0)
    mean, variance = (rng.uniform(0.5, 1, (10, num_weights)).astype(np.float32) for _ in range(2))
    stacked = bfl.posterior.MeanField(tf.constant(mean), tf.constant(variance))
    anchor = bfl.posterior.MeanField(tf.zeros([num_weights]), tf.ones([num_weights]))
    benchmark(lambda: bfl.rules.aggregate(bfl.rules.RULES[rule](), stacked, anchor=anchor).mean.numpy())


def test_product_of_ten_low_rank_posteriors(benchmark):
    rng = np.random.default_rng(0)
    draw = lambda *shape: tf.constant(rng.uniform(0.5, 1, shape).astype(np.float32))
    clients = [bfl.posterior.LowRank(draw(100_000), draw(100_000), draw(20, 100_000)) for _ in range(10)]
    benchmark(lambda: bfl.algorithms.swag.product.gaussian_product(clients).mean.numpy())


@pytest.mark.parametrize("num_samples", [1, 20])
def test_prediction_of_500_images(benchmark, num_samples):
    images = make_clients("lenet", 1, 500).examples(0).features
    model = bfl.models.lenet("flipout")
    benchmark(lambda: bfl.evaluation.predict(model, images, num_samples=num_samples))


@pytest.mark.parametrize("num_clients", [2, 20])
def test_fixed_cost_of_a_round(benchmark, num_clients):
    """Time clients of one batch on a model of 330 weights: nearly all of the time is the overhead of the loop."""
    clients = make_clients("lenet", num_clients, BATCH)
    model_fn = lambda: bfl.models.mlp("flipout", input_shape=(28, 28, 1), num_classes=10, hidden=())
    options = {"local_epochs": 1, "element_spec": clients.element_spec, **FLIPOUT.training()}
    process = bfl.algorithms.variational(model_fn, "log_linear_pool", **options)
    benchmark.extra_info.update(FLIPOUT._asdict(), rule="log_linear_pool")
    with bfl.engines.tff.local_workers() as runtime:
        state = process.initialize()
        datasets = clients.shards(range(num_clients), runtime.concurrent_calls)
        benchmark(lambda: process.next(state, datasets))


@pytest.mark.parametrize("way", ["encode", "decode"])
@pytest.mark.parametrize("levels", [4, 16, 256, 1024, 4096, 65_536])
def test_coding_of_a_million_coordinates(benchmark, levels, way):
    compressor, size = bfl.compression.quantiser(levels), 1_000_000
    message = compressor.compress(tf.random.stateless_normal([size], [0, 1]), [0, 2])
    code = compressor.encode(message)
    benchmark(lambda: compressor.encode(message) if way == "encode" else compressor.decode(code, size))
