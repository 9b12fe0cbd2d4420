"""What a weight sample costs and how it is distributed."""

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from tfp_bfl import evaluation, layers, models
from tfp_bfl.export.signatures import make_functions, make_signatures

# Per comparison; eight of them are made.
ERROR_RATE = 1e-4


@pytest.mark.deep(after="tests/layers/test_flipout.py")
@pytest.mark.parametrize(("name", "convolutions"), [("lenet", 2), ("resnet20", 19)])
def test_a_sample_costs_one_convolution_a_layer(name, convolutions):
    model = models.MODELS[name]("flipout", input_shape=(8, 8, 3), num_classes=3)
    functions = make_functions(model)
    signature = make_signatures(functions, (8, 8, 3))["predict"]
    graph = signature.graph.as_graph_def()
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    # The loop over samples has the model once, in whichever function.
    bodies = {f.signature.name: [node.op for node in f.node_def].count("Conv2D") for f in graph.library.function}
    assert max(bodies.values()) == convolutions
    assert sum(node.op in ("While", "StatelessWhile") for node in nodes) >= 1


@pytest.mark.deep(after="tests/layers/test_distribution.py")
@pytest.mark.statistical
def test_one_draw_for_the_batch_is_distributed_as_a_draw_of_each_example_s_own():
    """Kolmogorov-Smirnov between the two ways of prediction, Flipout's and one weight sample for a batch, for each of 4
    examples and 2 classes: by chance one of the 8 fails in 8e-4 of all cases."""
    model = models.mlp("flipout", input_shape=(3,), num_classes=3, hidden=(5,), initial_stddev=0.5)
    features = np.random.default_rng(0).normal(size=[4, 3]).astype(np.float32)
    functions = make_functions(model)
    ours = functions.sample(features, 2000, 1)["probabilities"].numpy()

    @tf.function
    def alone(example, seeds):
        """Flipout's own noise for one example, in a batch and with seeds of its own: [S, C]."""

        def one(seed):
            with layers.sampling("flipout", seed):
                return tf.nn.softmax(model(example, training=False))[0]

        return tf.map_fn(one, seeds, fn_output_signature=tf.float32)

    seeds = evaluation.sample_seeds(2, 2000)
    theirs = np.stack([alone(features[b : b + 1], seeds + b) for b in range(4)], 1)
    for b in range(4):
        for c in range(2):
            assert stats.ks_2samp(ours[:, b, c], theirs[:, b, c]).pvalue > ERROR_RATE
            # It would see a shift by a quarter of the spread.
            shifted = ours[:, b, c] + 0.25 * ours[:, b, c].std()
            assert stats.ks_2samp(shifted, theirs[:, b, c]).pvalue < ERROR_RATE


def test_summaries_are_the_traces_of_the_decomposition():
    probabilities = np.random.default_rng(0).dirichlet([0.3] * 4, [6, 5]).astype(np.float32)
    probabilities[:, 0] = [1, 0, 0, 0]
    wanted = evaluation.decompose(probabilities)
    summary = evaluation.summarise(probabilities)
    np.testing.assert_array_equal(summary.mean, wanted.mean)
    np.testing.assert_array_equal(summary.entropy, wanted.entropy)
    traces = evaluation.scalars(wanted)
    np.testing.assert_allclose(summary.aleatoric, traces.aleatoric_trace, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(summary.epistemic, traces.epistemic_trace, rtol=1e-5, atol=1e-7)
    assert summary.entropy[0] == 0 and summary.epistemic[0] == 0
