"""The kernel study's trials of the clients' learning rate, on held-out training images."""

import numpy as np
import pytest
from click.testing import CliRunner

import tfp_bfl as bfl
from experiments.kernel_posterior import config, figures, run, tables


def records_of(best, size="tiny"):
    """Return made records of all trials: (algorithm, partition) -> the rate of the lowest NLL."""
    nll = lambda cell: abs(np.log(cell["learning_rate"] / best(cell)))
    return {run.cell_name(cell): {"metrics": {"test_nll": nll(cell)}} for cell in run.cells("rate_trials", size)}


def chosen(records):
    found = run.cells("chosen_rates", "tiny", {}, records)
    return {(cell["algorithm"], cell["partition"]): cell["learning_rate"] for cell in found}


def test_a_rate_is_that_of_the_best_trial_of_the_algorithm_once_all_have_records():
    best = {("FedAvg", "lda:0.1"): 1e-2, ("FedAvg", "lda:1"): 3e-3, ("FedKP, clustered", "lda:0.1"): 1e-3}
    records = records_of(lambda cell: best.get((cell["algorithm"], cell["partition"]), 5e-2))
    wanted = {
        (name, where): best.get((name, config.TRIED_ON[where]), 5e-2)
        for name in config.TUNED
        for where in config.TRIED_ON
    }
    assert chosen(records) == wanted
    names = [run.cell_name(cell) for cell in run.cells("chosen_rates", "tiny", {}, records)]
    assert len(set(names)) == len(names) == 2 * 3 * 3
    del records[next(name for name in records if "FedAvg" in name and "lda_1," in name)]
    assert chosen(records) == {place: rate for place, rate in wanted.items() if place != ("FedAvg", "lda:1")}
    trials = [(cell["algorithm"], cell["partition"]) for cell in run.cells("rate_trials", "tiny")]
    assert {trials.count(method) for method in trials} == {5}


def test_a_trial_is_scored_on_training_images_of_no_client(monkeypatch):
    """Give each image one grey value; the test set is not read."""

    def load(name, split="train"):
        assert split == "train"
        images = np.zeros((2000, 28, 28, 1), np.uint8) + np.arange(2000).reshape(-1, 1, 1, 1).astype(np.uint8)
        images[:, 0, 0, 0], images[:, 0, 1, 0] = np.arange(2000) // 256, np.arange(2000) % 256
        return bfl.data.Source(name, split, images, (np.arange(2000) % 10).astype(np.int32), tuple("0123456789"))

    monkeypatch.setattr(bfl.data, "load", load)
    cell = next(run.cells("rate_trials", "tiny"))
    clients, held_out = run.clients_and_test({**cell, "clients": 20})
    numbers = lambda images: [256 * int(x[0, 0, 0]) + int(x[0, 1, 0]) for x in images]
    trained = {n for k in range(20) for n in numbers(clients.examples(k).features)}
    apart = numbers(held_out.features)
    assert len(set(apart)) == held_out.num_examples == round(0.15 * (len(trained) + held_out.num_examples))
    assert not trained & set(apart) and [n % 10 for n in apart] == held_out.labels.tolist()
    assert np.mean(clients.sizes) == pytest.approx(cell["examples"], rel=0.05)


def test_rows_name_a_rate_that_is_not_the_published_one():
    options = {"algorithm": "FedAvg", "server": "none", "dataset": "mnist", "learning_rate": 1e-3}
    published, own = ({"options": {**options, "learning_rate": rate}} for rate in (1e-3, 0.02))
    assert tables.method(published) == "FedAvg, server none"
    assert tables.method(own) == "FedAvg, server none, clients' rate 0.02"
    assert figures._look(tables.method(own)) == figures._look(tables.method(published))


def test_chosen_rates_without_trials_say_which_to_run(tmp_path):
    arguments = ["--table", "chosen_rates", "--size", "tiny", "--output", str(tmp_path), "--results", str(tmp_path)]
    result = CliRunner().invoke(run.main, arguments)
    assert result.exit_code == 2 and "run rate_trials first." in result.output
