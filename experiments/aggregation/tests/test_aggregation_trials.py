"""The aggregation study's rates by trials, and its cells at full size that are run in pieces."""

import csv
import json

import numpy as np
import pytest

from experiments.aggregation import figures, run, tables
from experiments.aggregation.config import CHOSEN, RATES_OF, SIZES, TABLES
from experiments.aggregation.tests.aggregation_runs import invoke, stand_in, trials_of
from experiments.default_posterior.config import TRIALS
from tfp_bfl import errors
from tfp_bfl.app.one_run.run_folder import Reporter


@pytest.fixture
def fake(monkeypatch):
    return stand_in(monkeypatch)


@pytest.mark.parametrize("table", list(RATES_OF))
def test_a_rate_is_that_of_the_best_trial_of_the_method_once_all_have_records(table):
    size = next(size for size in SIZES if table in SIZES[size]["seeds"])
    trials, score = RATES_OF[table]
    tried = list(run.cells(trials, size))
    records = trials_of(table, size)
    chosen = lambda: [o for o in run.cells(table, size, records) if o["optimizer"] == "momentum" and own(o)]
    own = lambda o: o["kind"] == tried[0]["kind"] and o["rule"] == tried[0]["rule"]
    assert {o["learning_rate"] for o in chosen()} == {0.1} and CHOSEN not in {o["learning_rate"] for o in chosen()}
    # Trials of another kind of partition have no say, and a score that is not a number is the worst.
    here = [
        o
        for o in tried
        if own(o) and (o["partition"], o["initial_stddev"]) == (tried[0]["partition"], chosen()[0]["initial_stddev"])
    ]
    *_, best = sorted(here, key=lambda o: o["learning_rate"])
    records[run.cell_name(best)][score] = float("nan")
    second = sorted({o["learning_rate"] for o in here})[-2]
    assert {o["learning_rate"] for o in chosen() if o["partition"] == best["partition"]} == {second}
    assert {o["learning_rate"] for o in chosen() if o["partition"] != best["partition"]} <= {0.1}
    del records[run.cell_name(best)]
    assert best["partition"] not in {o["partition"] for o in chosen()}


def test_rules_have_as_many_trials_as_baselines_and_none_sees_a_row_s_seed():
    tried = list(run.cells("momentum_trials", "fashion_mnist"))
    methods = {(o["rule"], o["initial_stddev"], o["partition"]): set() for o in tried}
    for o in tried:
        methods[o["rule"], o["initial_stddev"], o["partition"]].add(o["learning_rate"])
    assert {len(rates) for rates in methods.values()} == {len(TRIALS["fed_avg_momentum"])} == {5}
    assert all(o["hold_out"] and o["seed"] not in SIZES["fashion_mnist"]["seeds"]["momentum_rules"] for o in tried)
    # As many images train as without those that are held out.
    trained = {round(o["examples_per_client"] * (1 - o["hold_out"])) for o in tried}
    assert trained == {SIZES["fashion_mnist"]["options"]["examples_per_client"]}


def test_a_table_whose_trials_lack_records_says_which_to_run(tmp_path, fake):
    result = invoke(tmp_path, "column_compressed", "--size", "paper")
    assert result.exit_code == 2 and "run column_momentum first." in result.output and fake.runs == []
    listed = invoke(tmp_path, "momentum_rules", "--size", "fashion_mnist", "--list").output.splitlines()
    assert len(listed) == 2 * 4 * 3 and all("learning_rate=" in line for line in listed)  # The baselines'.


def test_a_figure_has_a_line_for_each_rate_of_an_arm():
    seconds = {"seconds": 1.0, "per_round": []}
    runs = [tables.run_of({"options": o, **seconds}) for o in run.cells("column_momentum", "paper")]
    lines = figures._lines(runs)
    assert len(lines) == len(runs) == 6 and "deterministic, naive weighted average, rate 0.1" in lines
    keys, settings = tables.labelled(runs)
    assert len(settings) == 6 and {"kind", "learning_rate"} <= set(keys)


def test_the_compressed_column_has_the_decay_of_the_whole_over_the_same_share_of_its_rounds():
    (whole, *_), (short, *_) = (
        list(run.cells(table, "paper", trials_of(table, "paper"))) for table in ("column", "column_compressed")
    )
    rate = lambda o, share: np.exp(-o["learning_rate_decay"] * max(0, share * o["rounds"] - o["silent_rounds"]))
    assert short["rounds"] == round(whole["rounds"] / 3)
    for share in np.linspace(0, 1, 11):
        assert rate(short, share) == pytest.approx(rate(whole, share), rel=0.15)
    assert short["augmentation"] == whole["augmentation"] and len(TABLES["column_compressed"]) == len(TABLES["column"])


@pytest.mark.deep(after="experiments/aggregation/tests/test_aggregation_trials.py")
def test_a_full_size_cell_goes_on_in_its_middle_and_its_record_has_the_seconds_of_all_pieces(tmp_path, monkeypatch):
    small = {"dataset": "digits", "model": "lenet", "evaluate_every": 1, "num_samples": 2, "engine": "local"}
    monkeypatch.setitem(SIZES["paper"], "options", small)
    monkeypatch.setitem(SIZES["paper"]["lengths"], "column_begun", (2, 1))
    one = "kind=deterministic,rule=naive_weighted_average,weighting=train_size,partition=iid,clients=10,local_epochs=1"
    command = (
        "column_momentum",
        "--size",
        "paper",
        "--cell",
        f"{one},rounds=2,seed=0,optimizer=momentum,learning_rate=0.1",
    )
    report = Reporter.round
    trained = []

    def stopped(self, row):
        report(self, row)
        trained.append(row["round"])
        if trained == [1]:
            raise KeyboardInterrupt

    monkeypatch.setattr(Reporter, "round", stopped)
    assert invoke(tmp_path, *command).exit_code != 0 and trained == [1]
    result = invoke(tmp_path, *command)
    assert result.exit_code == 0 and trained == [1, 2], result.output
    (record,) = map(json.loads, (tmp_path / "results" / "paper" / "records.jsonl").read_text().splitlines())
    (rounds,) = tmp_path.glob("cells/paper/cells/*/metrics.jsonl")
    rows = [json.loads(line) for line in rounds.read_text().splitlines()]
    assert [row["round"] for row in rows] == [1, 2] and record["train_nll"] == pytest.approx(rows[1]["nll"])
    assert record["seconds"] >= sum(row["seconds"] for row in rows) - 1e-6 > 0  # Seconds of rows are rounded.
    (row,) = csv.DictReader((tmp_path / "results" / "paper" / "column_momentum.csv").read_text().splitlines())
    assert row["rule"] == "naive_weighted_average" and float(row["s a run"]) == round(record["seconds"])


def test_a_trial_that_diverges_has_this_as_its_result(tmp_path, monkeypatch):
    """Its rate is not chosen, and the other trials run; a row that diverges is an error."""

    def diverge(folder, options):
        raise errors.Error("No training succeeded in round 2")

    monkeypatch.setattr(run, "run_or_resume", diverge)
    run.run_cell(tmp_path, {"seed": 100, "hold_out": 0.15})
    found = tables.read_cell(tmp_path)
    assert found == {"failed": "Error: No training succeeded in round 2"}
    assert run.describe(found) == "failed, Error: No training succeeded in round 2"
    with pytest.raises(errors.Error, match="in round 2"):
        run.run_cell(tmp_path, {"seed": 0})
