"""The benchmark's own files: its plans, and the methods and networks that the command line has no name for."""

import pathlib

import numpy as np
import pytest

import tfp_bfl as bfl
from tfp_bfl.app.options import own_model
from tfp_bfl.bench.plan import read_plan

ROOT = pathlib.Path(__file__).parents[2]
BENCH = ROOT / "experiments" / "bench"
METHODS = BENCH / "methods.py"


@pytest.mark.parametrize("name", sorted(path.name for path in BENCH.glob("*.yaml")))
def test_the_plans_are_valid(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    plan = read_plan(BENCH / name, trust=True)
    assert plan.settings and plan.reference == "fed_avg"


def test_the_published_network_has_the_published_size():
    build = own_model.load(f"{BENCH / 'networks.py'}:four_layers")
    assert build((28, 28, 1), 10).count_params() == 582_026


@pytest.mark.parametrize("likelihood", ["categorical", "heteroscedastic"])
def test_fed_lap_learns_classes_and_numbers(likelihood):
    generator = np.random.default_rng(0)
    features = generator.normal(size=(60, 3)).astype(np.float32)
    is_of_classes = likelihood == "categorical"
    labels = (features[:, 0] > 0).astype(int) if is_of_classes else features[:, 0]
    target = None if is_of_classes else bfl.data.Column("y", 0.0, 1.0)
    clients = bfl.data.Source("made up", "train", features, labels, target=target).partition(bfl.data.iid(2), seed=0)
    model_fn = lambda: bfl.models.mlp("deterministic", input_shape=(3,), num_classes=2)
    fed_lap = own_model.load(f"{METHODS}:fed_lap", "algorithm")
    process = fed_lap(model_fn, clients.element_spec, local_epochs=2, batch_size=10, likelihood=likelihood)
    losses = [row["nll"] for row in bfl.simulate(process, clients, rounds=8, engine="local").rounds]
    constant = np.log(2) if is_of_classes else 0.5 * np.log(2 * np.pi * np.e * labels.var())
    assert losses[-1] < constant - 0.15, losses
