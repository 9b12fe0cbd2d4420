"""User-supplied data on the command line: a table from its file to an exported model that predicts its rows."""

import csv
import json
import re

import numpy as np
import pyarrow
import pytest
import yaml

import tfp_bfl as bfl
from tests.kit import call, refusal, summary_of
from tfp_bfl.app.one_run import datasets
from tfp_bfl.app.options.config import make_config, names_in
from tfp_bfl.errors import InvalidArgument

pytestmark = pytest.mark.cpu_seconds(30)  # one run serves the tests of the file

RNG = np.random.default_rng(0)
ROWS = [[*RNG.normal([40 + 20 * sick, 3], [9, 1]), "yes" if sick else "no", f"site {k}"] for k in range(3)
        for sick in RNG.random(60) < 0.4]  # fmt: skip
NAMES = ["age", "dose", "sick", "site"]
TRAINING = ["--model", "mlp", "--rounds", "5", "--local-epochs", "2", "--num-samples", "5", "--engine", "local"]
OWN = ["--label", "sick", "--client-column", "site"]


def write(path, rows=ROWS, names=NAMES):
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([names, *rows])
    return str(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("own")


@pytest.fixture(scope="module")
def run(folder):
    table = write(folder / "patients.csv")
    assert call("run", "--dataset", table, *OWN, *TRAINING, "--output", folder / "run") == 0
    return folder / "run"


def test_a_run_learns_from_a_table_and_records_it(run):
    summary = summary_of(run)
    assert summary["accuracy"] > 0.8
    assert summary["data"] == bfl.data.digest(datasets.load(make_config(run / "config.yaml", {})))
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert (config["partition"], config["clients"], config["label"]) == ("given", 3, "sick")
    info = bfl.export.read_info(run / "saved_model")
    assert info.class_names == ["no", "yes"] and info.data["dataset"] == "patients"
    # Where the file was is nobody's business but this machine's.
    assert info.configuration["dataset"] == "patients" and str(run.parent) not in json.dumps(info._asdict())


def test_its_model_answers_about_rows_as_they_are(run, folder, capsys):
    asked = [["99", age, dose] for age, dose in ((30, 3), (75, 3))]
    assert call("predict", run, write(folder / "ask.csv", asked, ["id", "age", "dose"])) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines[-2:]] == ["no", "yes"] and "ask.csv[1]" in lines[-1]
    assert "row" in [line.split()[0] for line in lines if line]
    assert call("predict", run, folder / "ask.csv", "--format", "csv") == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.startswith("row,label,") and len(rows) == 2


@pytest.mark.parametrize(
    ("rows", "names", "message"),
    [
        ([[1]], ["age"], "has no column 'dose', which the model requires"),
        ([[1, "much"]], ["age", "dose"], "column 'dose' holds 'much' in row 1, which is no number"),
    ],
)
def test_rows_that_it_can_not_take(run, tmp_path, capsys, rows, names, message):
    assert call("predict", run, write(tmp_path / "ask.csv", rows, names)) == 2
    error = capsys.readouterr().err
    assert re.search(message, error) and error.count("\n") == 1
    assert "is no table, but the model takes rows of one" in refusal(capsys, "predict", run, run / "figures")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--dataset", "gone.csv"], "The table gone.csv can't be read: No such file"),
        (["--dataset", "patients.csv", "--label", "sik"], "no column 'sik' in patients.csv for --label: did you mean"),
        (["--dataset", "patients.csv", *OWN, "--only", "agee"], "no column 'agee' in patients.csv for --only: did you"),
        (["--dataset", "patients.csv", *OWN, "--date-unit", "day"], "There is no unit of dates 'day': did you mean"),
        (["--dataset", "patients.csv", "--label", "age"], "are numbers with fractions"),
        (["--dataset", "digits", "--categorical", "x"], "categorical belongs to user-supplied data, and 'digits'"),
        (["--dataset", "patients.csv", *OWN, "--clients", "9"], "clients is 9, but patients names 3"),
        (["--dataset", "patients.csv", *OWN, "--cohort-size", "4"], "cohort_size is 4"),
        (["--dataset", "patients.csv", *OWN, "--model", "lenet"], "for tables use the model mlp"),
        (["--dataset", "digits", "--label", "x"], "label belongs to user-supplied data, and 'digits' is no file"),
        (["--dataset", "digits", "--partition", "given"], "The data say nothing of clients"),
    ],
)
def test_one_sentence_before_anything_is_written(folder, run, tmp_path, monkeypatch, capsys, options, message):
    monkeypatch.chdir(folder)
    training = TRAINING if "--model" not in options else TRAINING[2:]
    assert message in refusal(capsys, "run", *options, *training, "--output", "new") and not (folder / "new").exists()


@pytest.mark.deep(after="tests/app/test_own_data.py")
def test_a_table_as_it_is(tmp_path, capsys):
    """Text, empty cells and a column that counts the rows: encoded in the run, and inside its model."""
    names = ["id", *NAMES, "grade", "smokes"]
    rows = [[k, *row, "I" if k % 3 else "II", "" if k % 5 == 0 else k % 2 == 0] for k, row in enumerate(ROWS)]
    table, output = write(tmp_path / "patients.csv", rows, names), tmp_path / "run"
    options = [*OWN, *TRAINING, "--only", "age,dose,grade,smokes"]
    assert call("run", "--dataset", table, *options, "--output", output) == 0
    note = "4 columns of the table (1 of text, 1 with empty cells) become 5 columns of numbers."
    assert note in capsys.readouterr().err and summary_of(output)["notes"] == [note]
    assert yaml.safe_load((output / "config.yaml").read_text())["only"] == "age,dose,grade,smokes"
    asked = write(tmp_path / "ask.csv", [["30", 3, "III", ""], ["75", 3, "I", "True"]], names=names[1:3] + names[5:])
    assert call("predict", output, asked, "--format", "csv") == 0
    out, error = capsys.readouterr()
    assert [line.split(",")[1] for line in out.splitlines()] == ["label", "no", "yes"]
    assert "ask.csv: 1 row with 'III' in 'grade', new or rare in training: treated as an empty cell." in error
    model = bfl.export.load(output / "saved_model")
    cells = {"age": [30.0, 75.0], "dose": [3.0, 3.0], "grade": ["III", "I"], "smokes": [float("nan"), 1.0]}
    found = model.predict_rows(
        {name: np.array(x, np.float32 if name != "grade" else object) for name, x in cells.items()}
    )
    wanted = [float(line.split(",")[2]) for line in out.splitlines()[1:]]
    np.testing.assert_allclose(found["probabilities"].numpy().max(1), wanted, rtol=1e-5)


@pytest.mark.parametrize(
    ("dataset", "model", "partition"),
    [
        ("heart_disease", "mlp", "given"),
        ("breast_cancer", "mlp", "dirichlet:0.5"),
        ("PATIENTS.CSV", "mlp", "dirichlet:0.5"),
        ("digits", "lenet", "dirichlet:0.5"),
        (f"given: DataFrame [60, 3], 2 clients, sha256 {'0' * 64}", "mlp", "given"),
        (f"given: arrays [60, 8, 8, 1], sha256 {'0' * 64}", "lenet", "dirichlet:0.5"),
    ],
)
def test_the_defaults_of_a_dataset(dataset, model, partition):
    config = make_config(None, {"dataset": dataset})
    assert (config.model, config.partition) == (model, partition)
    assert make_config(None, {"dataset": dataset, "model": "conv_net"}).model == "conv_net"


@pytest.mark.deep(after="tests/app/test_own_data.py")
def test_a_folder_of_images(tmp_path):
    from PIL import Image

    for k in range(40):
        place = tmp_path / "scans" / f"hospital {k % 2}" / ("bright" if k % 4 > 1 else "dark")
        place.mkdir(parents=True, exist_ok=True)
        size = RNG.integers(8, 13, 2)
        pixels = RNG.integers(128, 255, size, np.uint8) if k % 4 > 1 else RNG.integers(0, 128, size, np.uint8)
        Image.fromarray(pixels).save(place / f"{k}.png")
    out, sized = tmp_path / "run", ["--image-size", "8,10"]
    assert call("run", "--dataset", tmp_path / "scans", *TRAINING, *sized, "--output", out) == 0
    config = yaml.safe_load((out / "config.yaml").read_text())
    assert (config["partition"], config["clients"], config["image_size"]) == ("given", 2, "8,10")
    assert bfl.export.read_info(out / "saved_model").model["input_shape"] == [8, 10, 1]
    assert "antialias=True" in (out / "saved_model" / "model_card.md").read_text()
    assert bfl.export.read_info(out / "saved_model").class_names == ["bright", "dark"]
    assert call("predict", out, tmp_path / "scans" / "hospital 0" / "dark") == 0


def test_columns_are_dropped_and_separated_as_asked(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [[f"P {k}", *(str(x).replace(".", ",") for x in row[:2]), *row[2:], "a, b"] for k, row in enumerate(ROWS)]
    lines = [["id", "age", "dose", "sick", "site", "notes, more"], *rows]
    (tmp_path / "german.csv").write_text("\n".join(";".join(line) for line in lines), encoding="utf-8")
    options = ["--dataset", "german.csv", *OWN, *TRAINING, "--rounds", "1", "--output"]
    assert "column 'id' holds 180 texts, such as 'P 0' in row 1" in refusal(capsys, "run", *options, "run")
    assert call("run", *options, "run", "--drop", 'id,"notes, more"', "--separator", ";") == 0
    columns = [name for name, *_ in bfl.export.read_info(tmp_path / "run" / "saved_model").data["columns"]]
    assert columns == ["age", "dose"]
    again = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert (again["drop"], again["separator"]) == ('id,"notes, more"', ";")
    assert call("predict", "run", "german.csv", "--separator", ";") == 0
    from_lists = make_config(None, {"dataset": "german.csv", "drop": ["id", "notes, more"]})
    assert names_in(from_lists.drop) == ("id", "notes, more")


@pytest.mark.parametrize("name", ["table.xlsx", "table.csv.gz", "table.txt"])
def test_files_of_other_types_are_named(tmp_path, capsys, name):
    (tmp_path / name).write_bytes(b"PK")
    message = "is of a type that can't be read: give a .csv, .tsv, .parquet or .npz file"
    assert message in refusal(capsys, "run", "--dataset", tmp_path / name, "--label", "sick")


def test_columns_of_data_in_memory_are_not_dropped(tmp_path):
    table = pyarrow.table({"a": [1.0, 2.0], "b": [1.0, 2.0], "label": ["x", "y"]})
    with pytest.raises(InvalidArgument, match="drop belongs to files: leave columns out of the data"):
        bfl.run(tmp_path / "run", dataset=table, drop="b")
