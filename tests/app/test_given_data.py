"""Runs of data in memory: the same to the bit as of a file, resumed and reported with the same data only."""

import json
import re

import numpy as np
import pyarrow
import pytest
import yaml

import tfp_bfl as bfl
from tests.kit import refusal
from tfp_bfl.errors import InvalidArgument

pytestmark = pytest.mark.cpu_seconds(40)  # three runs serve the tests of the file

RNG = np.random.default_rng(0)
FEATURES = np.round(RNG.normal([40, 3], [9, 1], (90, 2)), 3)
LABELS = np.where(FEATURES[:, 0] + RNG.normal(0, 3, 90) > 40, "yes", "no")
SITES = np.array([f"site {k % 3}" for k in range(90)])
TABLE = pyarrow.table({"age": FEATURES[:, 0], "dose": FEATURES[:, 1], "sick": LABELS, "site": SITES})
OPTIONS = {"model": "mlp", "rounds": 2, "local_epochs": 1, "num_samples": 3, "engine": "local"}
NAMES = {"label": "sick", "client_column": "site"}


def write_csv(path):
    lines = [f"{age},{dose},{sick},{site}" for age, dose, sick, site in zip(*FEATURES.T.tolist(), LABELS, SITES)]
    path.write_text("\n".join(["age,dose,sick,site", *lines, ""]))
    return path


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("given")
    return {
        "file": bfl.run(folder / "file", dataset=write_csv(folder / "patients.csv"), **NAMES, **OPTIONS),
        "table": bfl.run(folder / "table", dataset=TABLE, **NAMES, **OPTIONS),
        "arrays": bfl.run(folder / "arrays", dataset=(FEATURES, LABELS, SITES), **OPTIONS),
    }


def config_of(run):
    return yaml.safe_load((run.folder / "config.yaml").read_text())


def scores_of(run):
    return {name: x for name, x in run.summary.items() if name in ("accuracy", "test_nll", "ece", "brier")}


def test_one_table_as_a_file_in_memory_and_as_arrays_is_one_run(runs):
    wanted = dict(np.load(runs["file"].folder / "predictions.npz"))
    for name in ("table", "arrays"):
        assert scores_of(runs[name]) == scores_of(runs["file"])
        for key, values in np.load(runs[name].folder / "predictions.npz").items():
            np.testing.assert_array_equal(values, wanted[key])


def test_the_record_says_kind_shape_clients_and_digest(runs):
    table, arrays = config_of(runs["table"]), config_of(runs["arrays"])
    found = re.fullmatch(r"given: Table \[90, 2\], 3 clients, sha256 ([0-9a-f]{64})", table["dataset"])
    assert found and arrays["dataset"] == f"given: arrays [90, 2], 3 clients, sha256 {found[1]}"
    assert (table["partition"], table["clients"], table["label"]) == ("given", 3, "sick")
    info = bfl.export.read_info(runs["table"].folder / "saved_model")
    assert info.data["dataset"] == "data" and [column[0] for column in info.data["columns"]] == ["age", "dose"]


def broken(run, folder):
    again = bfl.run(folder, dataset=TABLE, **NAMES, **{**OPTIONS, "rounds": 1})
    (folder / "summary.json").unlink()
    config = config_of(again)
    (folder / "config.yaml").write_text(yaml.safe_dump({**config, "rounds": 2}, sort_keys=False))
    return folder


def test_a_run_resumes_with_the_same_data_only(runs, tmp_path, capsys):
    folder = broken(runs["table"], tmp_path / "broken")
    with pytest.raises(InvalidArgument, match=r"Table \[90, 2\], 3 clients, were given in Python: give them again, by"):
        bfl.run(resume=folder)
    assert "bfl.run(resume=..., dataset=...)" in refusal(capsys, "run", "--resume", folder)
    other = np.vstack([FEATURES[:-1], FEATURES[:1]])
    words = r"The data, arrays \[90, 2\], 3 clients, have another SHA-256 sum than those of the run, Table \[90, 2\]"
    with pytest.raises(InvalidArgument, match=words):
        bfl.run(resume=folder, dataset=(other, LABELS, SITES))
    with pytest.raises(InvalidArgument, match="give only its model"):
        bfl.run(resume=folder, dataset="patients.csv")
    # The same numbers in another form are the same data.
    assert scores_of(bfl.run(resume=folder, dataset=(FEATURES, LABELS, SITES))) == scores_of(runs["file"])


def test_a_run_of_named_data_takes_no_others(runs, tmp_path):
    folder = tmp_path / "named"
    folder.mkdir()
    (folder / "config.yaml").write_text((runs["file"].folder / "config.yaml").read_text())
    with pytest.raises(InvalidArgument, match=r"data of this run are .*patients.csv, which it reads: leave"):
        bfl.run(resume=folder, dataset=TABLE)


@pytest.mark.deep(after="tests/app/test_given_data.py")
def test_a_report_is_the_page_that_the_run_wrote(runs, tmp_path):
    page = bfl.report(runs["table"], tmp_path / "page.html")
    assert page.read_text() == (runs["table"].folder / "report.html").read_text()
    named = bfl.report(runs["arrays"].folder, tmp_path / "named.html", dataset=(FEATURES, LABELS, SITES))
    assert named.read_text() == (runs["arrays"].folder / "report.html").read_text()
    assert "<h1>3 runs on" in bfl.report(list(runs.values()), tmp_path / "all.html").read_text()


def test_a_table_of_runs_needs_no_data(runs, tmp_path):
    style = {"columns": ["accuracy"], "digits": 2, "percent": True}
    folders = [run.folder for run in runs.values()]
    text = bfl.report(
        folders, tmp_path / "scores.md", rows={"partition=given,label=label": "Arrays"}, **style
    ).read_text()
    accuracy = f"{100 * runs['file'].summary['accuracy']:.2f}"
    assert text.startswith(f"|  | Accuracy (%) |\n|---|---|\n| Arrays | {accuracy} |\n| ") and text.count(accuracy) == 3


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ([], "runs is empty"),
        ([3], "runs holds 3, but must hold results of bfl.run or folders of runs"),
        (3, "runs holds 3, but must hold"),
        (bfl.federated.SimulationResult(*range(len(bfl.federated.SimulationResult._fields))), "runs holds a Sim"),
    ],
)
def test_what_is_no_run(tmp_path, runs, message):
    with pytest.raises(InvalidArgument, match=message):
        bfl.report(runs, tmp_path / "page.html")


def test_a_report_without_the_data_is_one_sentence(runs, tmp_path, capsys):
    refused = refusal(capsys, "report", runs["table"].folder, "--output", tmp_path / "page.html")
    assert "were given in Python" in refused and not list(tmp_path.iterdir())


@pytest.mark.deep(after="tests/app/test_given_data.py")
def test_sources_and_clients_say_their_name_and_task(tmp_path):
    source = bfl.data.load("diabetes")
    clients = bfl.data.Clients(source, [np.arange(0, 100), np.arange(100, 350)])
    found = [bfl.run(tmp_path / str(i), dataset=x, clients=2, **OPTIONS) for i, x in enumerate((source, clients))]
    records = [config_of(run) for run in found]
    assert [record["task"] for record in records] == ["regression"] * 2
    assert records[0]["dataset"].startswith("given: Source diabetes [354, 10], sha256 ")
    assert records[1]["dataset"].startswith("given: Clients diabetes [350, 10], 2 clients, sha256 ")
    assert [record["partition"] for record in records] == ["dirichlet:0.5", "given"]
    assert all("rmse" in run.summary for run in found)
    (line,) = [x for x in (found[1].folder / "report.html").read_text().splitlines() if "<h1>" in x]
    assert "mlp on diabetes, 2 clients" in line


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataset": (FEATURES, LABELS), "test_data": "test.csv"}, "One of dataset and test_data is in memory"),
        ({"dataset": "train.csv", "test_data": (FEATURES, LABELS)}, "One of dataset and test_data is in memory"),
        ({"dataset": 7}, "dataset has the type int, but must be a Source"),
        ({"dataset": (FEATURES, LABELS), "label": 3}, "label is 3, but must be text"),
        ({"dataset": TABLE, "label": "sik"}, "There is no column 'sik' in dataset for --label: did you mean 'sick'"),
        (
            {"dataset": TABLE.append_column("town", [[f"a{k}" for k in range(90)]]), **NAMES},
            "In dataset the column 'town' holds 90 texts, such as 'a0' in row 1",
        ),
        ({"dataset": (FEATURES, LABELS, SITES), "clients": 7}, "clients is 7, but data names 3"),
    ],
)
def test_one_sentence_before_anything_is_written(tmp_path, options, message):
    with pytest.raises(InvalidArgument, match=message):
        bfl.run(tmp_path / "new", **{**OPTIONS, **options})
    assert not (tmp_path / "new").exists()


def test_names_and_digests_tell_given_data_apart():
    from tfp_bfl.app.options.config import make_config
    from tfp_bfl.bench.runs import grouped

    records = []
    for letter in "ab":
        config = make_config(None, {"dataset": f"given: arrays [9, 2], sha256 {letter * 64}"})
        records.append((config, {"accuracy": 0.5}))
    first, second = grouped(records)
    assert (first.repeated.name, second.repeated.name) == ("dataset=data aaaaaaaa", "dataset=data bbbbbbbb")
    assert first.repeated.data != second.repeated.data
    assert json.dumps(first.options)
