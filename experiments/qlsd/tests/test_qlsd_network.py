"""The study of QLSD on a network: its clients, its measures and its table, on invented images."""

import dataclasses
import json

import click
import numpy as np
import pytest

import tfp_bfl as bfl
from experiments.qlsd import network, run, tables

MORE = {"examples": 60, "test_examples": 30, "clients": 2, "hidden": 3, "batch_size": 8}
CHAIN = {"rounds": 12, "burn_in": 4, "every": 2, "runs": 2}


def source(number, seed):
    """Images [N, 28, 28, 1] with one bright row, that of the label; the last ten rows are black."""
    labels = np.arange(number, dtype=np.int32) % 10
    images = np.zeros((number, 28, 28, 1), np.uint8)
    images[np.arange(number), labels] = 200 + np.random.default_rng(seed).integers(0, 55, (number, 1, 1))
    return bfl.data.Source("rows", "train", images, labels, tuple(map(str, range(10))))


@pytest.fixture
def data(monkeypatch):
    given = network.Data(source(60, 0), source(20, 1).features, source(30, 2), source(30, 3).features[:, ::-1])
    monkeypatch.setattr(network, "data_of", lambda options: given)
    return given


def cell(method, **more):
    named = {options["method"]: options for options in run.cells("reduced") if options["study"] == "network"}
    return {**named[method], **MORE, **more}


def test_clients_have_a_dominant_label_and_sgld_has_one_client():
    train = source(2_000, 0)
    parts = network.federation({**cell("QLSD"), "clients": 20}, train)
    shares = [np.bincount(train.labels[rows]).max() / len(rows) for rows in parts.indices]
    assert parts.num_clients == 20 and sum(parts.sizes) == 2_000 and min(shares) > 0.6 and max(shares) < 0.8
    assert network.federation(cell("SGLD, one client"), train).sizes.tolist() == [2_000]


def test_unlit_weights_are_those_that_no_example_reaches(data):
    options = cell("QLSD")
    model = network.model_of(options, 0)
    here = network.unlit(data.train.features, model)
    assert here.sum() == 18 * 28 * MORE["hidden"]
    potential = bfl.training.Potential(model)
    _, gradient = potential.gradient(potential.start(), data.train.features, data.train.labels)
    assert np.all(gradient.numpy()[here] == 0) and np.mean(gradient.numpy()[~here] != 0) > 0.5


def test_exact_draws_of_the_prior_have_its_width():
    draws = np.random.default_rng(0).normal(0, 0.5, (2, 400, 50))
    found = network.moved(np.ones(50), draws, 0.5, np.arange(50) < 25)
    assert found["unlit_spread"] == pytest.approx(1, abs=0.02) and found["unlit_rms"] == pytest.approx(1, abs=0.02)
    assert found["travelled"] == pytest.approx(np.linalg.norm(draws[0, -1] - 1) / 50**0.5)
    still = network.moved(np.ones(50), np.ones((1, 5, 50)), 0.5, np.zeros(50, bool))
    assert still == {"travelled": 0.0, "spread": 0.0}


def test_predictions_are_means_over_draws(data):
    potential = bfl.training.Potential(network.model_of(cell("QLSD"), 0))
    draws = np.random.default_rng(0).normal(0, 1, (2, potential.size)).astype(np.float32)
    one, two, both = (network.predict(potential, x, data.test.features) for x in (draws[:1], draws[1:], draws))
    assert both == pytest.approx((one + two) / 2, abs=1e-6) and np.abs(one - two).max() > 0.1
    told = network.scores(np.eye(10, dtype=np.float32)[data.test.labels], data.test.labels, np.full((9, 10), 0.1))
    assert (told["accuracy"], told["brier"], told["auroc"]) == (1, 0, 1)


def test_a_cell_needs_hmcs_predictions(data, tmp_path):
    with pytest.raises(click.UsageError, match=r"run the cell network,HMC first"):
        run.run_cell(tmp_path / "cell", cell("QLSD"))


@pytest.mark.deep(after="experiments/qlsd/tests/test_qlsd_network.py")
@pytest.mark.parametrize("study", ["lenet", pytest.param("resnet", marks=pytest.mark.long)])
def test_the_same_on_other_networks(study, data, monkeypatch, tmp_path):
    """ResNet-20 begins at one trained start, and has no images from elsewhere."""
    if study == "resnet":
        to_32 = lambda x: np.repeat(np.pad(x, ((0, 0), (2, 2), (2, 2), (0, 0))), 3, -1)
        of = lambda s: dataclasses.replace(s, features=to_32(s.features))
        given = network.Data(of(data.train), to_32(data.unlabelled), of(data.test), None)
        monkeypatch.setattr(network, "data_of", lambda options: given)
    named = {options["method"]: options for options in run.cells("reduced") if options["study"] == study}
    small = {**MORE, **({"warm_epochs": 1} if study == "resnet" else {})}
    of_hmc = {"num_draws": 2, "burn_in": 10, "num_leapfrog_steps": 1, "runs": 2}
    run.run_cell(tmp_path / f"{study},HMC", {**named["HMC"], **small, **of_hmc})
    chain = {**CHAIN, "rounds": 3, "burn_in": 1, "every": 1, "runs": 1, "cohort_size": 1}
    run.run_cell(tmp_path / "cell", {**named["QLSD++, 5 of 20"], **small, **chain})
    found = json.loads((tmp_path / "cell" / "summary.json").read_text())
    assert "failed" not in found and found["draws"] == 2 and ("auroc" in found) == (study == "lenet")
    assert 0 < found["travelled"][0] < 1 and 0 <= found["total_variation"][0] < 1


@pytest.mark.long
@pytest.mark.deep(after="experiments/qlsd/tests/test_qlsd_network.py")
def test_cells_of_a_network_run(data, tmp_path):
    of_hmc = {"num_draws": 4, "burn_in": 10, "num_leapfrog_steps": 2}
    run.run_cell(tmp_path / network.REFERENCE.format(study="network"), cell("HMC", **of_hmc))
    for method, more in (
        ("SGLD, ten times as long", CHAIN),
        ("QLSD++", CHAIN),
        ("QLSD, 5 of 20", {**CHAIN, "cohort_size": 1}),
        ("FedAvg", {"rounds": 1, "local_epochs": 1, "runs": 2}),
        ("FedBE, Gaussian", {"rounds": 1, "local_epochs": 1, "runs": 2}),
    ):
        run.run_cell(tmp_path / method, cell(method, **more))
        found = json.loads((tmp_path / method / "summary.json").read_text())
        assert "failed" not in found and found["draws"] == (4 if more.get("burn_in") else 1), (method, found)
        assert len(found["travelled"]) == 2 and 0 < min(found["travelled"]) < 2, (method, found)
        assert 0 < min(found["total_variation"]) < max(found["total_variation"]) < 1, (method, found)


def test_tables_have_a_row_for_each_method():
    names = ("accuracy", "ece", "brier", "nll", "auroc", "agreement", "total_variation", "travelled", "spread")
    made = lambda method, *values: {
        "options": cell(method),
        **{key: list(values) for key in names},
        "draws": 50,
        "seconds": 1.0,
    }
    given = [made("QLSD++", 0.25, 0.75), made("HMC", 0.5)]
    _, exact, ours = tables.network_table(given)
    assert exact[:2] == ["HMC", "0.5"] and ours[:2] == ["QLSD++", "0.5 +- 0.2"] and ours[10] == "2"
    of_lenet = [{**s, "options": {**s["options"], "study": "lenet"}} for s in given]
    head, exact, ours = tables.network_table(of_lenet)
    beside = dict(zip(head, ours))
    assert (beside["published accuracy"], beside["published nll"], exact[-1]) == ("0.988", "0.0411", "")
    _, exact, ours = tables.movement_table(given)
    assert (exact[5], ours[5], ours[3]) == ("", "0.0001", "")
