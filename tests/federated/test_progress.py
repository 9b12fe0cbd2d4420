"""The bar of a simulation: in a terminal, and in a notebook with a real kernel."""

import nbformat
import pytest
from nbclient import NotebookClient

import tfp_bfl as bfl
from tfp_bfl.federated.progress import bar, in_html

CELL = """
import tfp_bfl as bfl
train = bfl.data.load("breast_cancer")
clients = train.partition(bfl.data.iid(num_clients=2), seed=0)
model_fn = lambda: bfl.models.mlp("deterministic", input_shape=train.element_shape, num_classes=2)
result = bfl.simulate(bfl.algorithms.fed_opt(model_fn), clients, rounds=2, seed=0, engine="local", progress=True)
"""


def test_a_terminal_shows_rounds_and_scores_on_the_standard_error(capsys):
    train = bfl.data.load("breast_cancer")
    clients = train.partition(bfl.data.iid(num_clients=2), seed=0)
    model_fn = lambda: bfl.models.mlp("deterministic", input_shape=train.element_shape, num_classes=2)
    process = bfl.algorithms.fed_opt(model_fn)
    runs = [bfl.simulate(process, clients, rounds=2, seed=0, engine="local", progress=x) for x in (True, False)]
    said = capsys.readouterr()
    assert "2/2" in said.err and f"{runs[0].rounds[-1]['nll']:.3f}" in said.err and said.out == ""
    assert runs[0].rounds[-1]["nll"] == runs[1].rounds[-1]["nll"]


def test_a_resumed_run_begins_where_it_was(capsys):
    with bar(4, 3) as shown:
        shown({"round": 4})
    assert "4/4" in capsys.readouterr().err


def test_words_are_escaped():
    assert "&lt;b&gt;" in in_html(2, 1, "<b>") and '<progress value="1" max="2"' in in_html(2, 1, "")


@pytest.mark.deep(after="tests/federated/test_progress.py")
def test_a_notebook_shows_one_bar_that_is_replaced():
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    shown = [x for x in notebook.cells[0].outputs if x.output_type == "display_data"]
    (bar_output,) = [x.data["text/html"] for x in shown if "<progress" in x.data.get("text/html", "")]
    assert 'value="2" max="2"' in bar_output and "round 2/2 Training NLL" in bar_output
