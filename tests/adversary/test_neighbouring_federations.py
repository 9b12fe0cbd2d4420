"""Two private runs that differ by one client: by the page, epsilon covers no number of their folders that differs."""

import json
import pathlib
import re

import numpy as np
import pyarrow
import pytest

import tfp_bfl as bfl
from tfp_bfl.federated import simulation

pytest.importorskip("dp_accounting")
pytestmark = pytest.mark.deep(after="tests/federated/test_privacy.py")

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "differential_privacy.md"
# Beginning of the path of a number -> words of the row of the page that says it is not covered.
OUTSIDE = {
    "columns": "means and standard deviations of columns",
    "encoding": "names and fractions of the categories",
    "baselines": "baselines in `summary.json`",
    "data": "checksum of the training data",
    "clients": "scores of clients",
    "client_scores": "scores of clients",
    "scores": "scores on test data",
    "sizes": "numbers of clients and of examples",
    "rounds": "metrics and logs",
    "label_counts": "label counts of clients",
}
# Of a whole path: what is measured on test data or in training, and times.
SCORES = re.compile(
    r"accuracy|nll|ece|mce|brier|entropy|aleatoric|epistemic|auroc|auprc|recall|precision|area|tempered_elbo|kl|stddev|"
    r"mutual|confusion|calibration|retention|warnings|baseline|classes|unusual|specificity|sensitivity|coverage|f1|fraction"
)
TIMES = re.compile(r"seconds|_mb|ms_per|time|date|version|megabytes|worker|memory|machine|digest|sha|created")
COUNTS = re.compile(r"num_|clipped|clients|examples|epsilon")


def table(without=None):
    rng = np.random.default_rng(0)
    site = np.repeat([f"c{k:02}" for k in range(20)], 12)
    x = rng.normal(size=(240, 2))
    label = np.where(x[:, 0] + rng.normal(size=240) > 0, "yes", "no")
    keep = site != without
    return pyarrow.table({"site": site[keep], "a": x[keep, 0], "b": x[keep, 1], "label": label[keep]})


def numbers(value, path=""):
    """Path -> each number or text of a JSON value."""
    if isinstance(value, dict):
        return {k: x for name, y in value.items() for k, x in numbers(y, f"{path}/{name}").items()}
    if isinstance(value, list):
        return {k: x for i, y in enumerate(value) for k, x in numbers(y, f"{path}/{i}").items()}
    return {path: value}


def rows_of_card(text):
    """Name of each row of the tables of a card -> its value; the report has the same rows and those of the summary."""
    names = re.findall(r"^\| ([^|]+) \| (.*) \|$", text.replace("Standard deviations", "stddev"), re.MULTILINE)
    return {f"/{name.lower()}": value for name, value in names}


@pytest.fixture
def folders(tmp_path, monkeypatch):
    monkeypatch.setattr(simulation, "secret_seed", lambda: np.int32([3, 4]))
    options = {"client_column": "site", "rounds": 2, "weighting": "equal", "cohort_size": 5, "engine": "local"}
    options |= {"privacy_clip_norm": 5.0, "privacy_noise": 1.0, "rule": "naive_weighted_average", "model": "mlp"}
    for name, without in (("with", None), ("without", "c07")):
        bfl.run(tmp_path / name, dataset=table(without), **options)
    return tmp_path / "with", tmp_path / "without"


def test_each_number_that_differs_is_named_on_the_page(folders):
    page, unnamed = PAGE.read_text(), []
    for file in ("summary.json", "saved_model/assets/info.json", "saved_model/model_card.md"):
        texts = [(folder / file).read_text() for folder in folders]
        read = (lambda x: numbers(json.loads(x))) if file.endswith("json") else rows_of_card
        one, other = map(read, texts)
        differing = [path for path in {*one, *other} if one.get(path) != other.get(path)]
        assert any("column" in path for path in differing) or "info" not in file  # The comparison can see something.
        unnamed += [
            f"{file}{path}"
            for path in differing
            if path.split("/")[1] not in OUTSIDE and not any(x.search(path) for x in (SCORES, TIMES, COUNTS))
        ]
    assert not unnamed
    for words in OUTSIDE.values():
        assert re.search(rf"\| [^|]*{re.escape(words)}[^|]*\| no", page), words
    epsilons = [json.loads((folder / "summary.json").read_text())["epsilon"] for folder in folders]
    assert epsilons[0] < epsilons[1]  # By the public number of clients, 20 and 19.
