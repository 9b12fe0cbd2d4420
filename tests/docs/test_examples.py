"""The examples of the documentation run as they stand there, and are short."""

import functools
import json
import pathlib
import re
import runpy

import numpy as np
import pytest
import tensorflow as tf

import tfp_bfl as bfl
from tests.docs.test_commands import PAGES
from tfp_bfl import errors
from tfp_bfl.app.cli import run_command_line

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"
EXAMPLES = sorted(path.stem for path in (DOCS / "examples").glob("*.py"))
MOST_LINES = 70


def run(name, capsys, main=True):
    found = runpy.run_path(str(DOCS / "examples" / f"{name}.py"), run_name="__main__" if main else name)
    return found, capsys.readouterr().out


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_is_short_and_on_the_page(name):
    assert len((DOCS / "examples" / f"{name}.py").read_text().splitlines()) < MOST_LINES
    pages = "".join(page.read_text() for page in DOCS.rglob("*.md"))
    assert re.search(rf"```{{literalinclude}} (\.\./)?examples/{name}\.py", pages)


def test_rule(capsys):
    # Precisions 1 and 1/2: mean (0 + 3 / 2) / (3 / 2); variance (1 + 2) / 2.
    assert run("rule", capsys)[1] == "mean 1.00, variance 1.50\n"


def test_layer_learns(capsys):
    tensors, first, last = map(float, re.findall(r"\d+\.?\d*", run("layer", capsys)[1]))
    assert tensors == 3 and last < 0.8 * first


def test_client_work_learns(capsys):
    first, last = map(float, re.findall(r"\d+\.\d+", run("client_work", capsys)[1]))
    assert last < 0.8 * first


def test_scaffold_is_that_of_the_library(capsys, tmp_path):
    """From Python, under robust aggregation and from the command line."""
    my_scaffold = run("scaffold", capsys, main=False)[0]["my_scaffold"]
    train = bfl.data.load("breast_cancer")
    model_fn = lambda: bfl.models.mlp("deterministic", train.element_shape, 2, hidden=(8,), seed=0)
    clients = train.partition(bfl.data.dirichlet(3, 0.5), seed=0)
    options = {"learning_rate": 0.1, "local_epochs": 2, "seed": 1}
    library = functools.partial(bfl.algorithms.scaffold, optimizer="sgd", rule="naive_weighted_average")
    for more in ({}, {"robust": "median"}):
        found = [
            bfl.simulate(recipe(model_fn, **options, **more), clients, 4, 2, engine="local")
            for recipe in (my_scaffold, library)
        ]
        for mine, wanted in zip(*(tf.nest.flatten(result.state.weights) for result in found), strict=True):
            np.testing.assert_allclose(mine, wanted, atol=1e-6)
    own = f"{DOCS / 'examples' / 'scaffold.py'}:my_scaffold"
    options = {"dataset": "breast_cancer", "model": "mlp", "kind": "deterministic", "clients": 3, "rounds": 3}
    found = bfl.run(tmp_path / "run", algorithm=own, partition="iid", engine="local", local_epochs=1, **options)
    assert found.summary["accuracy"] > 0.7


@pytest.mark.deep(after="tests/docs/test_examples.py")
def test_scaffold_learns_where_clients_differ(capsys):
    assert float(run("scaffold", capsys)[1].split()[-1]) > 0.9


def test_server_step_learns(capsys):
    first, last = map(float, re.findall(r"\d+\.\d+", run("server_step", capsys)[1]))
    assert last < 0.8 * first


def test_an_engine_gives_the_weights_of_the_engine_local(capsys):
    difference = run("engine", capsys)[1].splitlines()[-1]
    assert float(difference.split()[-1]) < 1e-6


def test_model_learns(capsys):
    kinds, losses = run("model", capsys)[1].splitlines()
    assert kinds == "2 Gaussian tensors, 4 point tensors"
    first, last = map(float, re.findall(r"\d+\.\d+", losses))
    assert last < first


def test_dataset(capsys):
    found, out = run("dataset", capsys)
    assert "<Source wine/train: 142 examples [13], 3 classes>" in out
    train, test = found["wine"]("train"), found["wine"]("test")
    assert train.num_examples + test.num_examples == 178
    np.testing.assert_allclose(train.features.mean(0), 0, atol=1e-5)
    with pytest.raises(errors.InvalidArgument, match="143"):
        train.subset(143, seed=0)


def test_from_tfp(capsys):
    (accuracy,) = re.findall(r"accuracy (\d\.\d+), a draw of \(30, 32\) weights", run("from_tfp", capsys)[1])
    assert float(accuracy) > 0.9


@pytest.mark.deep(after="tests/docs/test_examples.py")
def test_the_default_is_at_the_posterior_as_the_page_shows(capsys):
    shown = re.search(r"^default: .*\nvariational: .*\n", (DOCS / "maths" / "default.md").read_text(), re.M)[0]
    numbers = [[float(x) for x in re.findall(r"\d\.\d+", text)] for text in (run("default", capsys)[1], shown)]
    np.testing.assert_allclose(*numbers, atol=0.05)


@pytest.mark.long
@pytest.mark.deep(after="tests/docs/test_examples.py")
def test_from_flower(capsys, tmp_path):
    """The program and the command of the page train alike, up to the order of sums."""
    averaging, bayesian = run("from_flower", capsys)[1].splitlines()
    (command,) = PAGES["from_flower.md"]
    assert run_command_line([*command, "--engine", "local", "--output", str(tmp_path / "run")]) == 0
    accuracy = json.loads((tmp_path / "run" / "summary.json").read_text())["accuracy"]
    assert float(re.search(r"accuracy (\d\.\d+)", averaging)[1]) == pytest.approx(accuracy, abs=0.02)
    assert averaging.startswith("FedAvg: accuracy 0.") and averaging.endswith("epistemic 0.0000")
    assert float(bayesian.split()[-1]) > 0
