"""The files of the published tables are whole, their options are those of the programs, and rehearsals run."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

import tfp_bfl as bfl
from experiments.published import page, programs
from experiments.published.__main__ import main, runs_of
from experiments.published.tables import HERE, names, read

TABLES = names()
WITH_PROGRAM = [name for name in TABLES if read(name).study]


def run(*arguments):
    return CliRunner().invoke(main, list(map(str, arguments)))


def test_each_published_table_has_a_file():
    expected = {
        *(f"aggregation_{n}" for n in range(1, 6)),
        *(
            "kernel_5_1",
            "kernel_5_2",
            "metavd_cifar10",
            "metavd_cifar100_5",
            "metavd_cifar100_0.5",
            "metavd_compression",
        ),
        *("metavd_femnist", "qlsd_3", "qlsd_4", "qlsd_s1", "qlsd_s2", "swag_7_1", "swag_8_3", "swag_8_3_calibration"),
    }
    assert set(TABLES) == expected
    assert sum(len(read(name).cells) for name in TABLES) == 340


# Read in the sources, here independently of the files.
KNOWN = [
    ("aggregation_1", "MC dropout", {"accuracy": 90.91}),
    ("aggregation_2", "WS, Max Disc, Dir 0.5", {"accuracy": 84.17, "NLL": 0.487}),
    ("aggregation_3", "Conflation, 2-class", {"accuracy": 52.47, "NLL": 1.39}),
    ("aggregation_4", "DWC, pre-trained, Dir 5.0", {"accuracy": 65.87, "NLL": 0.972}),
    ("aggregation_5", "LP, Train Size", {"accuracy": 46.14, "NLL": 1.46}),
    ("kernel_5_1", "FedKP cm, alpha .1", {"accuracy after 600 rounds": 0.850, "accuracy": 0.858}),
    ("kernel_5_2", "FedPA, alpha .01", {"accuracy after 600 rounds": 0.213, "accuracy": 0.010}),
    ("metavd_cifar10", "Reptile + MetaVD", {"accuracy": 76.51, "accuracy of new clients": 82.07}),
    ("metavd_femnist", "FedAvg, 0.1 of the clients in a round", {"accuracy": 88.13, "accuracy of new clients": 84.70}),
    ("qlsd_3", "QLSD++ 16 bits", {"HPD error": 6.9e-4, "times fewer bits": 3.1}),
    ("qlsd_s2", "QLSD PP", {"accuracy": 98.3, "ECE": 1.57, "Brier": 2.23, "NLL": 4.82}),
    ("swag_7_1", "wBayAvg, Fashion-MNIST", {"accuracy": 83.61}),
    ("swag_8_3", "client 3, CIFAR-10", {"accuracy": 69.73}),
]


@pytest.mark.parametrize(("table", "cell", "numbers"), KNOWN, ids=[f"{x[0]}, {x[1]}" for x in KNOWN])
def test_published_numbers_are_those_of_the_source(table, cell, numbers):
    (found,) = [x for x in read(table).cells if x.name == cell]
    assert found.published == numbers


@pytest.mark.parametrize("name", WITH_PROGRAM)
def test_the_programs_take_the_options(name):
    """Cells of one table share a run only where they are scores of it; run options are resolved without a refusal."""
    table = read(name)
    every, _ = runs_of(table, table.cells, 1.0, HERE)
    methods = {cell.method for cell in table.cells} if table.study == "fl_swag" else {""}
    distinct = {json.dumps([cell.options, cell.method], sort_keys=True) for cell in table.cells}
    assert len(distinct) == len(table.cells)
    assert len(every) * len(methods) == len(table.cells) * max(1, len(table.seeds))


def test_records_of_a_study_with_the_same_options_count(monkeypatch):
    table = read("swag_7_1")
    found = page.found_of(table)
    cell = next(x for x in table.cells if x.name == "FedAvg, MNIST")
    records = found[cell.name].records
    assert len(records) == 3
    values = page.values_of(table, cell, table.scores["accuracy"], records)
    assert all(90 < x < 93 for x in values)
    changed = table._replace(cells=(cell._replace(options={**cell.options, "learning_rate": 0.3}),))
    assert page.found_of(changed)[cell.name].records == []


def test_scores_relative_to_another_row():
    table = read("qlsd_3")
    numbers = {"LSD++": (200.0, 640.0), "QLSD++ 4 bits": (201.0, 80.0)}
    record = lambda row: {"quantile": numbers[row][0], "bits_bound": numbers[row][1]}
    found = {row: page.Found([record(row)] if row in numbers else [], 1) for row in (x.row for x in table.cells)}
    rows = page.beside(table, found)
    assert rows[1:] == [["LSD++", "", "", "", "", "1 of 1"], ["QLSD++ 4 bits", "0.0061", "0.005", "7.6", "8", "1 of 1"]]


def test_the_page_follows_from_the_files_and_the_records():
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.filled(text) == text


REFUSED = {
    ("aggregation_9",): "There is no table 'aggregation_9'; near are aggregation_",
    (
        "aggregation_2",
        "--only",
        "WS, Train Sise",
    ): "No cell of aggregation_2 holds 'WS, Train Sise' in its name: one",
    ("aggregation_2", "--scale", 0): "--scale is 0, but must be above 0 and at most 1.",
    ("aggregation_2", "--scale", 2): "--scale is 2, but must be above 0 and at most 1.",
    ("aggregation_2", "--scale", 1e-4): "--scale 0.0001 leaves none of the 400 rounds of aggregation_2: give more than",
    ("metavd_femnist",): "metavd_femnist has no program yet: the study of MetaVD has no loader of FEMNIST by writers",
}


@pytest.mark.parametrize("arguments", REFUSED, ids=lambda x: " ".join(map(str, x)))
def test_bad_input_is_refused(arguments, tmp_path):
    done = run(*arguments, "--output", tmp_path)
    assert done.exit_code == 2 and REFUSED[arguments] in " ".join(done.output.split())
    assert list(tmp_path.iterdir()) == []


def test_the_list_has_all_tables():
    done = run()
    assert done.exit_code == 0
    assert all(f"`{name}`" in done.output for name in TABLES)


def test_data_at_scale(monkeypatch):
    def load(name, split="train"):
        if name != "digits":
            raise bfl.errors.InvalidArgument("It is not prepared.")
        return whole

    whole = bfl.data.load("digits")
    monkeypatch.setattr(bfl.data, "load", load)
    with programs.data_at_scale(0.1, least=50) as stood_for:
        some, test = bfl.data.load("digits"), bfl.data.load("cifar100", split="test")
        few = programs.noise("mnist", "train", 0.001, 70)
        with pytest.raises(bfl.errors.InvalidArgument, match="It is not prepared"):
            bfl.data.load("another")
    assert bfl.data.load is load
    assert some.num_examples == 144 and few.num_examples == 70
    assert stood_for == ["cifar100"] and (test.num_examples, test.num_classes) == (1000, 100)
    assert test.element_shape == (32, 32, 3)
    with programs.data_at_scale(1e-4), pytest.raises(bfl.errors.InvalidArgument, match="leaves none of the 1,438 rows"):
        bfl.data.load("digits")


def rehearse(name, folder, *more):
    """Run in a process of its own: the studies remember the data that they have loaded."""
    command = [sys.executable, "-m", "experiments.published", name, "--scale", "0.01", "--output", str(folder), *more]
    done = subprocess.run(command, cwd=HERE.parent.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.deep
def test_a_rehearsal_is_not_run_again(tmp_path):
    output = rehearse("qlsd_3", tmp_path, "--only", "QLSD++ 4 bits")
    assert "2/2 logistic_emnist,QLSD++_4_bits" in output and "A rehearsal's scores are no results" in output
    assert "2 of 2 are done" in rehearse("qlsd_3", tmp_path, "--only", "QLSD++ 4 bits")


@pytest.mark.deep
@pytest.mark.parametrize("name", [x for x in WITH_PROGRAM if x != "qlsd_3"])
def test_every_table_is_rehearsed(name, tmp_path):
    """Three cells of each table; those of CIFAR-10 and MNIST on noise where these are not prepared."""
    assert "A rehearsal's scores are no results" in rehearse(name, tmp_path)
