"""The kernel-posterior study: its cells and datasets, its writers, and cells of each dataset from end to end."""

import collections
import csv
import io
import json
import shutil
import sys
import types

import numpy as np
import pytest
from click.testing import CliRunner

import tfp_bfl as bfl
from experiments.kernel_posterior import config, femnist, figures, models, run, tables, writers
from experiments.kernel_posterior.tables import grouped, setting
from tests.stand_ins import write_cifar100
from tfp_bfl.data.equal_partitions import GROUPS
from tfp_bfl.errors import InvalidArgument


@pytest.fixture
def digits(monkeypatch):
    """Made images in the place of MNIST and of CIFAR's."""

    def load(name, split="train"):
        rng = np.random.default_rng([3, split == "test"])
        shape, classes = ((32, 32, 3) if "cifar" in name else (28, 28, 1)), (100 if name == "cifar100" else 10)
        number = 60 if split == "test" and "cifar" in name else 4000
        features, labels = rng.integers(256, size=(number, *shape)).astype(np.uint8), np.arange(number) % classes
        return bfl.data.Source(name, split, features, labels.astype(np.int32), tuple(map(str, range(classes))))

    monkeypatch.setattr(bfl.data, "load", load)


def test_every_cell_has_a_name_of_its_own():
    for table in config.TABLES:
        for size in config.SIZES:
            cells = list(run.cells(table, size))
            assert len({run.cell_name(cell) for cell in cells}) == len(cells)


def test_writers_are_made_when_asked_for(digits, monkeypatch):
    made = []
    restyle = writers.restyle
    monkeypatch.setattr(writers, "restyle", lambda *x: made.append(1) or restyle(*x))
    clients = writers.writers(30, 0)
    assert clients.num_clients == 30 and not made
    assert clients.sizes.min() >= writers.LEAST and clients.sizes.max() <= writers.MOST
    examples = clients.examples(3)
    assert len(made) == clients.sizes[3] == len(examples.labels)
    assert examples.features.shape[1:] == (28, 28, 1) and examples.features.dtype == np.uint8


def test_a_plain_hand_changes_nothing_and_a_thick_one_adds_ink():
    image = np.zeros((28, 28), np.uint8)
    image[8:20, 12:15] = 200
    np.testing.assert_array_equal(writers.restyle(image, 0, 0, 1), image)
    assert writers.restyle(image, 0, 0.5, 1).sum() > image.sum() > writers.restyle(image, 0, -0.5, 1).sum()
    assert writers.restyle(image, 0, 0, 0.75).sum() < image.sum()


@pytest.mark.deep(after="experiments/kernel_posterior/tests/test_kernel_posterior_study.py")
def test_two_cells_from_end_to_end(digits, tmp_path, monkeypatch):
    monkeypatch.setitem(config.SIZES["tiny"]["mnist"], "rounds", 2)
    cells = [{"algorithm": name, "server": config.SGD} for name in ("FedBE", "FedKP, clustered")]
    monkeypatch.setitem(config.TABLES["alphas"], "cells", cells)
    options = ["--table", "alphas", "--size", "tiny", "--cell", "lda_0.1,", "--output", str(tmp_path)]
    options += ["--results", str(tmp_path)]
    result = CliRunner().invoke(run.main, options, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    rows = list(csv.reader((tmp_path / "tiny" / "alphas.csv").read_text().splitlines()))
    assert [row[1] for row in rows[1:]] == [f"{cell['algorithm']}, server {config.SGD}" for cell in cells]
    assert (tmp_path / "tiny" / "alphas_accuracy.md").exists()
    assert {p.name for p in (tmp_path / "tiny" / "figures").iterdir()} == {"alphas_curves.png", "alphas_bars.png"}
    again = CliRunner().invoke(run.main, options, catch_exceptions=False)
    assert again.output.count("2 of 2 are done.") == 1


def test_bars_name_what_differs_and_their_legend_is_not_cut_off():
    rounds = [{"round": 1, "accuracy": 0.5}]
    cells = [cell for table in ("popularity", "alphas") for cell in run.cells(table, "small")]
    for drawn in (cells[:18], cells[18:]):
        groups = grouped([{"options": cell, "rounds": rounds} for cell in drawn])
        settings, methods = (list(dict.fromkeys(key[i] for key in groups)) for i in (0, 1))
        figure = figures._bars(groups, settings, methods)
        figure.canvas.draw()
        (legend,) = figure.legends
        box = legend.get_window_extent()
        assert 0 <= box.x0 < box.x1 <= figure.bbox.x1
        names = [text.get_text() for text in legend.get_texts()]
        ticks = [text.get_text() for text in figure.axes[0].get_xticklabels()]
        if drawn[0] == cells[0]:
            assert names == ["FedAvg", "FedKP, clustered"]
            assert ticks == ["drawn uniformly", "popularity 1", "popularity 0.1"]
        else:
            assert names == methods and ticks[0] == "lda:0.01"


@pytest.mark.parametrize(
    ("table", "algorithm", "options", "dataset"),
    [
        ("writers", "FedKPPA", [], "mnist_writers"),
        ("pachinko", "FedAvg", ["--cifar", "cifar10"], "cifar10"),
        ("writers", "FedAvg", ["--characters", "femnist", "--seed", "0"], "femnist"),
    ],
)
@pytest.mark.deep(after="experiments/kernel_posterior/tests/test_kernel_posterior_study.py")
def test_a_cell_of_each_other_dataset(
    digits, federated_characters, tmp_path, monkeypatch, table, algorithm, options, dataset
):
    """The choice is reported: on the console, in the cell's name, its summary and the table."""
    if dataset == "mnist_writers":
        monkeypatch.setattr(femnist, "load_data", unreachable)
    # ResNet-20 takes long to trace, and modes of 1.7 million weights are tried elsewhere.
    monkeypatch.setitem(models.NETWORKS, "character_network", models.mnist_network)
    small = lambda num_classes, seed: bfl.models.lenet("deterministic", (32, 32, 3), num_classes, seed=seed)
    monkeypatch.setitem(models.NETWORKS, "image_network", small)
    unseen = writers.unseen_writers
    monkeypatch.setattr(writers, "unseen_writers", lambda number, size, seed: unseen(number, 40, seed))
    monkeypatch.setattr(bfl.data, "peek", bfl.data.load)
    size = {
        "rounds": 1,
        "cohort_size": 2,
        "clients": 4,
        "examples": 8,
        "local_epochs": 1,
        "unlabelled": 8,
        "seeds": [0],
    }
    monkeypatch.setitem(config.SIZES["tiny"], config.TABLES[table]["dataset"], size)
    monkeypatch.setitem(config.TABLES[table], "cells", [{"algorithm": algorithm, "server": "sgd 0.5"}])
    arguments = ["--table", table, "--size", "tiny", *options, "--output", str(tmp_path), "--results", str(tmp_path)]
    result = CliRunner().invoke(run.main, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert ("mnist_writers takes the place of femnist: it is not here" in result.output) is (dataset == "mnist_writers")
    (folder,) = (tmp_path / "tiny" / "cells").glob("[!.]*")
    summary = json.loads((folder / "summary.json").read_text())
    assert folder.name.startswith(f"{dataset},") and summary["options"]["dataset"] == dataset
    assert summary["rounds"][0]["num_faulty"] == 0 and 0 <= summary["rounds"][0]["cohort_accuracy"] <= 1
    assert setting(summary).startswith(f"{dataset}, {config.TABLES[table]['partitions'][0]}")


def unreachable(*arguments):
    raise InvalidArgument("it is not here.")


@pytest.mark.parametrize(
    ("table", "option", "wanted", "last"),
    [("pachinko", "--cifar", "cifar100", "cifar10"), ("writers", "--characters", "femnist", "mnist_writers")],
)
def test_what_can_not_be_had_is_replaced_and_refused_if_asked_for(table, option, wanted, last, monkeypatch, tmp_path):
    monkeypatch.setattr(bfl.data, "peek", unreachable)
    monkeypatch.setattr(femnist, "load_data", unreachable)
    arguments = ["--table", table, "--size", "tiny", "--list", "--output", str(tmp_path)]
    listed = CliRunner().invoke(run.main, arguments, catch_exceptions=False)
    assert listed.exit_code == 0
    first, *names = listed.output.splitlines()
    assert first == f"{last} takes the place of {wanted}: it is not here."
    assert names and all(name.split()[-1].startswith(f"{last},") for name in names)
    asked = CliRunner().invoke(run.main, [*arguments, option, wanted], catch_exceptions=False)
    assert asked.exit_code == 2 and asked.output.splitlines()[-1] == "Error: it is not here."
    other = CliRunner().invoke(run.main, [*arguments, option, "nothing"], catch_exceptions=False)
    assert other.exit_code == 2


def test_the_first_choice_is_taken_where_it_can_be_had(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(bfl.data, "peek", asked.append)
    monkeypatch.setattr(femnist, "load_data", asked.append)
    arguments = ["--size", "tiny", "--list", "--cache-dir", "somewhere", "--output", str(tmp_path)]
    listed = CliRunner().invoke(run.main, arguments, catch_exceptions=False).output
    assert asked == ["somewhere", "cifar100"] or asked == ["cifar100", "somewhere"]
    assert "cifar100,pachinko" in listed and "femnist,writers" in listed and "takes the place" not in listed
    asked.clear()
    CliRunner().invoke(run.main, ["--table", "alphas", "--size", "tiny", "--list"], catch_exceptions=False)
    assert asked == []


SIZES = {"ann": 7, "bob": 3, "cleo": 5, "dan": 4}


@pytest.fixture
def federated_characters(monkeypatch):
    """Made data as TFF has FEMNIST: floats, white paper, ink by writer and place."""
    tff = bfl.engines.tff.require_tff()

    def of(seed):
        rng = np.random.default_rng(seed)
        ink = {name: rng.integers(256, size=(size, 28, 28)) for name, size in SIZES.items()}
        entries = {
            name: collections.OrderedDict(
                label=np.arange(len(x), dtype=np.int32) + 55, pixels=(1 - x / 255).astype(np.float32)
            )
            for name, x in ink.items()
        }
        return ink, tff.simulation.datasets.TestClientData(entries)

    splits = [of(seed) for seed in (0, 1)]
    monkeypatch.setattr(femnist, "load_data", lambda cache_dir=None: tuple(data for _, data in splits))
    femnist.load.cache_clear()
    yield splits
    femnist.load.cache_clear()


def test_femnist_is_white_ink_in_bytes_and_a_client_a_writer(federated_characters):
    (ink, data), _ = federated_characters
    clients = femnist.clients(data, 4, 0)
    assert clients.sizes.tolist() == [*SIZES.values()] and clients.source.num_classes == 62
    for k, name in enumerate(SIZES):
        examples = clients.examples(k)
        np.testing.assert_array_equal(examples.features[..., 0], ink[name])
        assert examples.features.dtype == np.uint8 and examples.labels.dtype == np.int32
        assert [femnist.CLASS_NAMES[i] for i in examples.labels] == [*"tuvwxyz"][: SIZES[name]]
    train, test = femnist.load(2, 5)
    assert (train.num_clients, train.source.split, test.split) == (2, "train", "test")
    assert test.num_examples == train.source.num_examples  # The same two: no other pair has as many.
    with pytest.raises(InvalidArgument, match="5 writers are asked for, but FEMNIST has 4"):
        femnist.clients(data, 5, 0)


def test_femnist_that_can_not_be_downloaded_is_one_sentence_and_leaves_no_half_file(tmp_path, monkeypatch):
    def no_network(*arguments, **options):
        raise OSError("no route\nto host")

    monkeypatch.setattr(femnist.urllib.request, "urlopen", no_network)
    with pytest.raises(InvalidArgument, match=r"FEMNIST can't be read from .* \(no route to host\): bring") as caught:
        femnist.load_data(str(tmp_path / "cache"))
    assert "\n" not in str(caught.value) and not (tmp_path / "cache").exists()

    def half(only_digits, cache_dir):
        (tmp_path / "emnist_all.sqlite").write_text("half")
        raise OSError("reset")

    monkeypatch.setattr(femnist.urllib.request, "urlopen", lambda *arguments, **options: io.BytesIO())
    monkeypatch.setattr(bfl.engines.tff.require_tff().simulation.datasets.emnist, "load_data", half)
    with pytest.raises(InvalidArgument, match="reset"):
        femnist.load_data(str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_cifar100_loads_with_its_fine_labels_and_its_twenty_groups(tmp_path):
    """Made examples written as TFDS has them: the coarse label is not the one that is read."""
    pytest.importorskip("tensorflow_datasets")
    write_cifar100(tmp_path, 400)
    source = bfl.data.load("cifar100", data_dir=tmp_path)
    assert source.num_classes == 100
    np.testing.assert_array_equal(source.labels, source.features[:, 0, 0, 0])
    assert np.bincount(source.labels).tolist() == [4] * 100
    counts = source.partition(bfl.data.parse_partition("pachinko:0.001", 20), seed=0).label_counts()
    assert counts.sum(1).tolist() == [20] * 20
    groups = np.stack([counts[:, np.array(GROUPS[100]) == g].sum(1) for g in range(20)], 1)
    assert np.median(groups.max(1)) == 20  # Almost all clients have one group, those after which it is used up.


def test_groups_of_cifar100_by_the_numbers_of_its_classes():
    """In the order of their names: baby, boy, girl, man, woman; fish; trees."""
    for group, members in ((14, [2, 11, 35, 46, 98]), (1, [1, 32, 67, 73, 91]), (17, [47, 52, 56, 59, 96])):
        assert [i for i, own in enumerate(GROUPS[100]) if own == group] == members


def ran(algorithm, server, seed, accuracy, **others):
    options = {"algorithm": algorithm, "server": server, "seed": seed, "dataset": "mnist", "partition": "lda:1"}
    row = {"round": 1, "accuracy": accuracy, "cohort_accuracy": accuracy - 0.1}
    run = {"options": {**options, "local_epochs": 5, "cohort_size": 10}, "rounds": [row], "seconds": 1.0, **others}
    scores = dict.fromkeys(("test_nll", "ece", "macro_recall", "macro_precision"), 1 - accuracy)
    return {**run, "metrics": {"accuracy": accuracy, **scores, "epistemic": 0.1, "aleatoric": 0.3}}


def test_pairs_are_of_equal_seeds_against_every_fedavg():
    runs = [ran("FedAvg", server, seed, 0.7 + shift + 0.01 * seed)
            for server, shift in (("sgd 0.5", 0.0), ("none", 0.1)) for seed in range(3)]  # fmt: skip
    runs += [ran("FedKP", "none", seed, 0.9 + 0.01 * seed) for seed in (0, 2)]
    runs += [ran(config.AVERAGED, "sgd 0.5", seed, 0.85, alone=[0.1, *[0.7 + 0.01 * seed] * 10]) for seed in range(3)]
    half, whole, kp, averaged = (
        f"{name}, server {server}"
        for name, server in (
            ("FedAvg", "sgd 0.5"),
            ("FedAvg", "none"),
            ("FedKP", "none"),
            (config.AVERAGED, "sgd 0.5"),
        )
    )
    head, *rows, own = tables.pairs_table(runs)
    assert own[:5] == [
        "lda:1, 5 epochs, 10 clients",
        averaged,
        "its own rounds alone",
        "3",
        "**+14.00 [+11.52, +16.48]**",
    ]
    assert head[3:6] == ["seeds", "points, last 10", "points, each round alone"]
    mean = lambda text: float(text.strip("*").split(" ")[0])
    told = {(row[1], row[2]): (mean(row[4]), mean(row[5]), int(row[3])) for row in rows}
    assert told == {
        (half, whole): (-10.0, -10.0, 3),
        (half, averaged): (-14.0, 0.0, 3),
        (whole, half): (10.0, 10.0, 3),
        (whole, averaged): (-4.0, 10.0, 3),
        (kp, half): (20.0, 20.0, 2),
        (kp, whole): (10.0, 10.0, 2),
        (kp, averaged): (6.0, 20.0, 2),
        (averaged, half): (14.0, 0.0, 3),
        (averaged, whole): (4.0, -10.0, 3),
    }
    rounds = {(row[1], row[2]): row[head.index("rounds to 0.8")] for row in rows}
    assert rounds[whole, averaged].startswith("+0.0 [") and not rounds[whole, half]


def test_tables_outlive_the_folders_of_cells(tmp_path):
    """And a cell's long rounds are kept as their accuracies."""
    every = {run.cell_name(cell): cell for cell in run.cells("server_steps", "tiny")}
    name, cell = next(iter(every.items()))
    made = ran(cell["algorithm"], cell["server"], 0, 0.75)
    made["rounds"][0]["train_seconds"] = 3.0
    folder = tmp_path / "runs" / "tiny" / "cells" / name
    folder.mkdir(parents=True)
    options = {**cell, "cache_dir": None}
    (folder / "summary.json").write_text(json.dumps({**made, "options": options}))
    arguments = ["--table", "server_steps", "--size", "tiny", "--output", str(tmp_path / "runs")]
    arguments += ["--results", str(tmp_path / "results"), "--tables"]
    for _ in range(2):
        result = CliRunner().invoke(run.main, arguments, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        table = (tmp_path / "results" / "tiny" / "server_steps.csv").read_text()
        assert len(table.splitlines()) == 2 and "0.7500" in table
        shutil.rmtree(tmp_path / "runs", ignore_errors=True)
    (record,) = (json.loads(x) for x in (tmp_path / "results" / "tiny" / "records.jsonl").read_text().splitlines())
    assert record["options"] == cell and record["rounds"] == [{"round": 1, "accuracy": 0.75, "cohort_accuracy": 0.65}]


def test_averaged_rounds_are_those_of_sgld_without_its_noise(digits, monkeypatch):
    """And each of them alone is federated averaging's."""
    monkeypatch.setitem(config.ALGORITHMS, "SGLD", ("fed_sgld", {"step_size": 1e-15, "burn_in_share": 0.5}))
    scale = types.SimpleNamespace(sqrt=lambda _: 0.0)  # Of the noise.
    monkeypatch.setattr(sys.modules["tfp_bfl.algorithms.chains.step"], "math", scale)
    wanted = {"algorithm": "FedAvg", "server": "sgd 0.5", "partition": "lda:1", "seed": 0}
    (cell,) = (cell for cell in run.cells("server_steps", "tiny") if wanted.items() <= cell.items())
    clients, test = run.clients_and_test(cell)

    def weights_of(algorithm):
        own = {**cell, "algorithm": algorithm}
        found = bfl.simulate(run.build(own, clients), clients, rounds=4, cohort_size=2, seed=0, engine="local")
        return own, found

    _, noiseless = weights_of("SGLD")
    own, averaged = weights_of(config.AVERAGED)
    _, plain = weights_of("FedAvg")
    for a, b, last in zip(noiseless.draws.values, averaged.draws.values, plain.state.weights.point):
        assert len(a) == len(b) == 2
        np.testing.assert_allclose(
            a, b, atol=5e-6
        )  # Noise of sd 5e-8 in each of four rounds, and what training makes of it.
        np.testing.assert_array_equal(b[-1], last)
    shown = test.subset(50, seed=0)
    scored = bfl.evaluation.evaluate(plain.model, shown.features, shown.labels).metrics["accuracy"]
    assert run.alone(averaged.draws, own, shown)[-1] == scored
