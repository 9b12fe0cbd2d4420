"""The operations on the list are those that the exports of every model and kind are made of."""

import numpy as np
import pytest
import tensorflow as tf

from tfp_bfl import models
from tfp_bfl.export.operations import ARITHMETIC, EXPORTED, SAVING
from tfp_bfl.export.signatures import make_functions, make_signatures
from tfp_bfl.posterior import LowRank, Samples
from tfp_bfl.weights import get_weights, predictive_model

SHAPES = {"lenet": (8, 8, 1), "resnet20": (8, 8, 3), "mlp": (8, 8, 1), "conv_net": (8, 8, 1)}
CASES = [(name, kind, {}) for name in models.MODELS for kind in models.KINDS]
CASES += [("lenet", "flipout", {"normalization": "group"}), ("lenet", "deterministic", {"precision": "bfloat16"})]
# Of the graph around the functions, in which variables are made and saved.
AROUND = {"Select", "VarHandleOp"}


each = tf.nest.map_structure


def used_by(model):
    signatures = make_signatures(make_functions(model), model.input_shape[1:])
    return set().union(*map(operations, signatures.values()))


def operations(function):
    graph = function.graph.as_graph_def()
    nodes = [*graph.node, *(node for f in graph.library.function for node in f.node_def)]
    return {node.op for node in nodes}


def test_a_small_model_s_export_uses_none_that_is_not_on_the_list():
    used = used_by(models.mlp("flipout", SHAPES["mlp"], 3))
    assert "MatMul" in used and used <= EXPORTED


@pytest.mark.long
@pytest.mark.deep(after="tests/export/test_operations.py")
def test_the_list_is_what_exports_use():
    found = set()
    for name, kind, options in CASES:
        model = models.MODELS[name](kind=kind, input_shape=SHAPES[name], num_classes=3, **options)
        found |= used_by(model)
    # Draws from a posterior beside the model, with BatchNorm's statistics computed anew for each.
    weights = get_weights(model := models.resnet20("deterministic", (8, 8, 3)))
    for q in (
        LowRank(weights.point, each(tf.ones_like, weights.point), each(lambda x: x[None], weights.point)),
        Samples(each(lambda x: x[None], weights.point)),
    ):
        beside = weights._replace(posterior=q, point=())
        found |= used_by(predictive_model(model, beside, np.ones([4, 8, 8, 3], np.float32)))
    assert found <= EXPORTED
    assert EXPORTED - found == AROUND


def test_the_lists_have_nothing_in_common():
    assert not EXPORTED & ARITHMETIC and not EXPORTED & SAVING and not ARITHMETIC & SAVING
