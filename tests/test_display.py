"""Results, processes and posteriors show themselves in five lines, and as a table in a notebook."""

import pathlib

import numpy as np
import pytest
import tensorflow as tf

import tfp_bfl as bfl
from tfp_bfl.app.one_run.program import Run
from tfp_bfl.display import shows
from tfp_bfl.posterior import MeanField


def objects():
    model_fn = lambda: bfl.models.mlp("flipout", input_shape=(3,), num_classes=2, seed=0)
    process = bfl.algorithms.default(model_fn)
    state = process.local.initialize()
    rounds = [{"round": 1, "nll": 0.5, "num_clients": 4, "faulty_clients": {}}]
    summary = {"accuracy": 0.9, "test_nll": 0.25, "ece": 0.02, "epistemic_share": 0.1, "seconds": 3.0}
    yield process, "mlp_flipout", "mean_precision_average", "by the loss"
    yield bfl.federated.SimulationResult(model_fn(), state, rounds, None), "nll 0.5", "num clients 4"
    yield state.weights, "MeanField of", "point weights"
    yield Run(pathlib.Path("my_run"), summary), "my_run", "NLL 0.2500"
    mean = np.zeros(101, np.float32)
    yield MeanField((mean,), (np.linspace(1, 2, 101, dtype=np.float32) ** 2,)), "101", "5 % 1.05, 50 % 1.5, 95 % 1.95"


@pytest.mark.parametrize("number", range(5))
def test_objects_show_what_they_are_in_few_lines(number):
    shown, *parts = list(objects())[number]
    lines = repr(shown).splitlines()
    assert lines[0] == type(shown).__name__ and 2 <= len(lines) <= 6 and str(shown) == repr(shown)
    assert all(part in repr(shown) and part in shown._repr_html_() for part in parts)
    assert f"{shown!r}".count("array") == 0


def test_a_posterior_in_a_graph_shows_its_size_without_new_operations():
    with tf.Graph().as_default() as graph:
        q = MeanField(tf.zeros([3, 2]), tf.ones([3, 2]))
        before = len(graph.get_operations())
        assert repr(q) == "MeanField\n  weights  6" and len(graph.get_operations()) == before


def test_a_posterior_of_unknown_shapes_or_of_no_tensors_shows_itself():
    with tf.Graph().as_default():
        unknown = tf.compat.v1.placeholder(tf.float32, [None, 2])
        assert repr(MeanField(unknown, unknown)) == "MeanField"
    assert repr(MeanField("mean", None)) == "MeanField" and repr(MeanField((), ())) == "MeanField\n  weights  0"


def test_texts_are_escaped_in_notebooks_and_facts_without_text_are_left_out():
    @shows(lambda x: {"a name": "<b>", "nothing": None, "empty": "", "none of them": 0})
    class Own: ...

    assert repr(Own()) == "Own\n  a name        <b>\n  none of them  0"
    assert "&lt;b&gt;" in Own()._repr_html_() and "nothing" not in Own()._repr_html_()
