"""Scores of each client of a run on its own test rows: in the summary, the report and clients.jsonl, by name."""

import re
import shutil

import numpy as np
import pytest

import tfp_bfl as bfl
from tests.kit import call, lines_of, plain, refusal, refuses, summary_of
from tfp_bfl.app.one_run.calibrate import entropy
from tfp_bfl.app.one_run.predict import Sets, predict
from tfp_bfl.export import Calibration, Info
from tfp_bfl.export.info import with_scores
from tfp_bfl.export.model_card import card as card_of

pytestmark = pytest.mark.cpu_seconds(30)  # one run serves the tests of the file

SHORT = ["--num-samples", "5", "--engine", "local"]
HEART = ["run", "--algorithm", "variational", "--dataset", "heart_disease", "--temperature", "1", "--hold-out", "0.2"]
HEART += SHORT


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "heart"
    assert call(*HEART, "--rounds", "10", "--evaluate-clients", "--output", folder) == 0
    return folder


def test_hospitals_have_the_scores_of_their_own_rows(run):
    test = bfl.data.load("heart_disease", split="test")
    with np.load(run / "predictions.npz") as arrays:
        probabilities, labels = arrays["probabilities"], arrays["labels"]
    with np.load(run / "held_out.npz") as arrays:
        limit = bfl.evaluation.conformal_limit(arrays["probabilities"], arrays["labels"], 0.9)
    inside = bfl.evaluation.prediction_sets(probabilities, limit)[np.arange(len(labels)), labels]
    rows, summary = summary_of(run)["clients"], summary_of(run)
    assert {row["client"][0]: row["n"] for row in rows} == {"C": 61, "H": 58, "S": 25, "V": 40}
    assert [row["accuracy"] for row in rows] == sorted(row["accuracy"] for row in rows)
    for row in rows:
        own = test.owners == row["client"]
        right = probabilities[own].argmax(-1) == labels[own]
        assert row["accuracy"] == right.mean() and row["coverage"] == inside[own].mean()
        assert row["sensitivity"] == right[labels[own] == 1].mean()
    assert sum(row["n"] * row["accuracy"] for row in rows) / 184 == pytest.approx(summary["accuracy"])
    # Measured on ten rounds: accuracy .550, all others together .868.
    assert rows[0]["client"] == "VA Long Beach" and 0.4 < rows[0]["accuracy"] < 0.7 < rows[1]["accuracy"]
    assert sum("VA Long Beach, accuracy" in warning for warning in summary["warnings"]) == 1
    assert "Cleveland, accuracy" not in " ".join(summary["warnings"])


def test_the_report_names_them_and_estimates_nothing(run):
    page = plain((run / "report.html").read_text())
    (first,) = [row for row in summary_of(run)["clients"] if row["client"] == "VA Long Beach"]
    cell = f"{first['accuracy']:.3f} [{first['accuracy_low']:.3f}, {first['accuracy_high']:.3f}]"
    table = page[page.index("Each client on its own test rows") :]
    assert cell in table and "Cleveland" in table and "estimate" not in page
    assert "Labels of the clients" in page


def test_the_model_card_begins_with_use_and_scores_of_classes_and_clients(run):
    card = (run / "saved_model" / "model_card.md").read_text()
    heads = re.findall("^## (.*)$", card, re.MULTILINE)
    assert heads[:4] == ["Intended use", "Scores by class", "Scores by client", "Metrics"]
    assert heads[-1] == "Appendix: options of the training"
    (first,) = [row for row in summary_of(run)["clients"] if row["client"] == "VA Long Beach"]
    assert f"| VA Long Beach | 40 | {first['accuracy']:.3f} [{first['accuracy_low']:.3f}, " in card
    info = bfl.export.read_info(run / "saved_model")
    assert "scores" not in (with_scores(Info(), {**summary_of(run), "epsilon": 1.0}).data or {})
    for damaged in (3, {"clients": [{"client": "x", "n": "many"}]}, {"classes": [{}]}, {"other": []}):
        refuses("scores of info's data", card_of, info._replace(data={**info.data, "scores": damaged}))


def test_evaluate_clients_scores_the_model_of_every_algorithm(run):
    written = lines_of(run / "clients.jsonl")
    assert [row["name"] for row in written] == ["Cleveland", "Hungary", "Switzerland", "VA Long Beach"]
    scores = {row["client"]: row for row in summary_of(run)["clients"]}
    for row in written:
        own = scores[row["name"]]
        assert row["before"] == {name: own[name] for name in ("accuracy", "test_nll")} and row["after"] is None
    means = [row["before"]["accuracy"] for row in written]
    summary = summary_of(run)
    assert summary["client_accuracy"] == pytest.approx(np.mean(means))
    assert summary["client_accuracy_least"] == min(means) and "adapted_client_accuracy" not in summary


def calibrated(folder, output, *options):
    assert call("calibrate", folder, output, "--accuracy", "0.8", *options) == 0
    return bfl.export.calibration_of(bfl.export.read_info(output))


def test_calibrate_scores_the_test_rows_of_each_client(run, tmp_path, capsys):
    found = calibrated(run, tmp_path / "model")
    printed = capsys.readouterr().out.splitlines()
    assert printed[-4].startswith("VA Long Beach  40  0.") and len(found.clients) == 4
    test = bfl.data.load("heart_disease", split="test")
    with np.load(run / "predictions.npz") as arrays:
        probabilities = bfl.evaluation.at_temperature(arrays["probabilities"], found.temperature)
        assert [str(arrays["client_names"][k]) for k in arrays["client"]] == test.owners.tolist()
    inside = bfl.evaluation.prediction_sets(probabilities, found.set_limit)[np.arange(184), test.labels]
    kept, right = entropy(probabilities) <= found.limit, probabilities.argmax(-1) == test.labels
    for row in found.clients:
        own = test.owners == row["client"]
        assert (row["coverage"], row["kept"]) == (inside[own].mean(), kept[own].sum())
        assert row["kept_accuracy"] == right[own & kept].mean() and "set_limit" not in row
    assert "| VA Long Beach | 40 |" in (tmp_path / "model" / "model_card.md").read_text()


def test_each_client_has_sets_and_new_ones_only_with_enough_clients(run, tmp_path, capsys):
    found = calibrated(run, tmp_path / "model", "--each-client")
    printed = capsys.readouterr().out
    assert "clients never seen: too few clients for a bound" in printed and "sets from" in printed
    assert found.unseen_set_limit is None and sum(row["held_out"] for row in found.clients) == 74
    assert all(0 <= row["set_limit"] < 1 for row in found.clients)
    wider = calibrated(run, tmp_path / "wider", "--each-client", "--confidence", "0.5")
    assert 0 <= wider.unseen_set_limit < 1
    limits = {row["client"]: row["set_limit"] for row in found.clients}
    assert all(row["set_limit"] >= limits[row["client"]] for row in wider.clients)
    assert max(row["set_limit"] - limits[row["client"]] for row in wider.clients) > 0


def test_images_have_the_sets_of_the_client_whose_name_their_folder_has():
    found = Calibration(9, 5, 1.0, "entropy", None, 1.0, 0.5, 0.9, 0.9, 0.9, 0.3, unseen_set_limit=0.1)
    found = found._replace(
        clients=[{"client": name, "set_limit": limit} for name, limit in (("K\xf6ln", 0.2), ("1", 0.4))]
    )
    notes, info = [], bfl.export.Info(model={"input_shape": [8, 8, 1]})
    of = lambda *names: Sets.of(found, info, "new", names, None, notes)
    sets = of("new/Ko\u0308ln/sick/1.png", "new/1/2.png", "new/Ulm/3.png", "4.png")
    assert (sets.clients.tolist(), sets.limits.tolist()) == (["K\xf6ln", "1", "Ulm", ""], [0.2, 0.4, 0.1, 0.1])
    assert notes == ["2 rows are of clients without own prediction sets, and have those of clients never seen."]
    assert of("new/Ulm/3.png", "4.png") is None


def test_sets_of_each_client_without_names_are_one_sentence(run, tmp_path, capsys):
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    with np.load(run / "held_out.npz") as arrays:
        np.savez_compressed(copy / "held_out.npz", **{x: arrays[x] for x in arrays.files if "client" not in x})
    assert "copy name none: leave it out" in refusal(capsys, "calibrate", copy, tmp_path / "model", "--each-client")
    assert not (tmp_path / "model").exists()


def table_of(path, clients, numeric=False):
    rng = np.random.default_rng(0)
    rows = ["age,site,label"]
    for client, number in clients.items():
        for age in rng.normal(50, 10, number):
            label = f"{age + rng.normal():.3f}" if numeric else ("ill" if age + rng.normal(0, 5) > 50 else "well")
            rows.append(f"{age:.3f},{client},{label}")
    path.write_text("\n".join(rows) + "\n")
    return ["run", "--dataset", str(path), "--client-column", "site", "--rounds", "2", *SHORT]


def test_a_client_without_test_rows_is_named_with_none(tmp_path):
    arguments = table_of(tmp_path / "t.csv", {"Ulm": 60, "Bonn": 60, "Aachen": 1})
    assert call(*arguments, "--evaluate-clients", "--output", tmp_path / "run") == 0
    rows = summary_of(tmp_path / "run")["clients"]
    assert rows[-1] == {"client": "Aachen", "n": 0} and {row["client"] for row in rows[:2]} == {"Ulm", "Bonn"}
    assert [row["name"] for row in lines_of(tmp_path / "run" / "clients.jsonl")] == ["Bonn", "Ulm"]


def test_a_separate_test_file_scores_each_client_that_it_names(tmp_path, capsys):
    arguments = table_of(tmp_path / "t.csv", {"Ulm": 60, "Bonn": 60})
    table_of(tmp_path / "test.csv", {"Ulm": 20, "Bonn": 30, "Kiel": 10})
    arguments += ["--test-data", str(tmp_path / "test.csv"), "--output", str(tmp_path / "run"), "--hold-out", "0.2"]
    assert "'Kiel' of the test data has" in refusal(
        capsys, *arguments, "--evaluate-clients", "--algorithm", "meta_learning"
    )
    assert call(*arguments, "--evaluate-clients") == 0
    rows = summary_of(tmp_path / "run")["clients"]
    assert {row["client"]: row["n"] for row in rows} == {"Ulm": 20, "Bonn": 30, "Kiel": 10}
    assert [row["name"] for row in lines_of(tmp_path / "run" / "clients.jsonl")] == ["Bonn", "Ulm"]
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Kiel" in page[page.index("Each client on its own test rows") :]
    found = calibrated(tmp_path / "run", tmp_path / "model", "--each-client", "--confidence", "0.5")
    assert {row["client"]: row["n"] for row in found.clients} == {"Ulm": 20, "Bonn": 30, "Kiel": 10}
    rows_have_the_sets_of_their_client(tmp_path / "model", tmp_path / "test.csv", found)


def rows_have_the_sets_of_their_client(model, table, found):
    own = {row["client"]: row["set_limit"] for row in found.clients if "set_limit" in row}
    # Limits far apart, so that the sets differ.
    limits = dict(zip(own, (0.0, 0.9999)))
    clients = [row | ({"set_limit": limits[row["client"]]} if row["client"] in own else {}) for row in found.clients]
    changed = found._replace(clients=clients, unseen_set_limit=None)._asdict()
    bfl.export.save(model, changed_model := model.with_name("changed"), bfl.export.Info(calibration=changed))
    predictions, whole = predict(changed_model, table), next(iter(limits))
    assert [row.client for row in predictions.rows] == ["Ulm"] * 20 + ["Bonn"] * 30 + ["Kiel"] * 10
    assert all((row.set == "ill|well") == (row.client == whole) for row in predictions.rows if row.client in own)
    assert "10 rows are of clients without own prediction sets" in predictions.notes[0]
    without = table.with_name("rows.csv")
    without.write_text("".join(line.split(",")[0] + "\n" for line in table.read_text().splitlines()))
    assert all(row.client is None for row in predict(changed_model, without).rows)


def test_numbers_have_an_rmse_for_each_client(tmp_path):
    arguments = table_of(tmp_path / "t.csv", {"Ulm": 40, "Bonn": 60}, numeric=True)
    assert call(*arguments, "--task", "regression", "--output", tmp_path / "run") == 0
    summary = summary_of(tmp_path / "run")
    total = sum(row["n"] * row["rmse"] ** 2 for row in summary["clients"]) / sum(row["n"] for row in summary["clients"])
    assert total**0.5 == pytest.approx(summary["rmse"])
    nll = sum(row["n"] * row["test_nll"] for row in summary["clients"]) / sum(row["n"] for row in summary["clients"])
    assert nll == pytest.approx(summary["test_nll"]) and all("coverage" in row for row in summary["clients"])


@pytest.mark.deep(after="tests/app/test_client_scores.py")
@pytest.mark.parametrize("clients", [None, 3])
def test_artificial_clients_are_scored_on_request_alone(clients, tmp_path):
    small = ["run", "--dataset", "breast_cancer", "--model", "mlp", "--clients", "3", "--rounds", "1", *SHORT]
    asked = ["--evaluate-clients", "--unseen-clients", "1"] if clients else []
    assert call(*small, *asked, "--output", tmp_path / "run") == 0
    summary = summary_of(tmp_path / "run")
    assert ("clients" in summary) == bool(clients)
    if clients:
        assert {row["client"] for row in summary["clients"]} == {"0", "1", "2", "3"}
        assert "unseen_client_accuracy" in summary
    assert ("no scores of single clients" in (tmp_path / "run" / "report.html").read_text()) == (not clients)


def test_a_test_set_that_names_no_clients_is_one_sentence(tmp_path, capsys):
    arguments = table_of(tmp_path / "t.csv", {"Ulm": 40, "Bonn": 40})
    test = tmp_path / "test.csv"
    test.write_text("age,label\n" + "".join(f"{40 + k},{'ill' if k > 10 else 'well'}\n" for k in range(20)))
    extra = ["--test-data", str(test), "--output", str(tmp_path / "run")]
    assert "the test data of t do not name the clients" in refusal(capsys, *arguments, "--evaluate-clients", *extra)
    assert not (tmp_path / "run").exists()
