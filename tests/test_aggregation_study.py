"""The aggregation study: its cells, how it goes on after an interruption, its tables, figures and findings."""

import csv
import itertools
import json
import shutil

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

from experiments.aggregation import findings, run, tables
from experiments.aggregation.config import CHOSEN, RATES_OF, RULES, SIZES, TABLES
from experiments.default_posterior.config import TRIALS
from tfp_bfl import rules
from tfp_bfl.app.one_run.progress import Reporter

ALL = [(size, table) for size in SIZES for table in SIZES[size]["seeds"]]


def test_rules_are_all_published_rules():
    """The library's own, the mean and precision average, is not among the rules that the study compares."""
    assert set(RULES) <= set(rules.RULES) - {"mean_precision_average"}


def trials_of(table, size):
    """Made records of all trials of a table, of which the highest rate is the best."""
    trials, score = RATES_OF.get(table, (None, None))
    return {run.cell_name(o): {score: 1 - o["learning_rate"]} for o in (run.cells(trials, size) if trials else ())}


@pytest.mark.parametrize(("size", "table"), ALL)
def test_every_cell_is_a_valid_run_with_a_name_of_its_own(size, table):
    cells = list(run.cells(table, size, trials_of(table, size)))
    assert len({run.cell_name(options) for options in cells}) == len(cells) > 0
    for options in cells:
        assert run.config_of(options).seed == options["seed"]


def test_tables_share_cells():
    names = lambda table: {run.cell_name(options) for options in run.cells(table, "fashion_mnist")}
    assert len(names("rules") & names("prior")) == 5 * 3


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


def test_the_compressed_column_has_the_decay_of_the_whole_over_the_same_share_of_its_rounds():
    (whole, *_), (short, *_) = (
        list(run.cells(table, "paper", trials_of(table, "paper"))) for table in ("column", "column_compressed")
    )
    rate = lambda o, share: np.exp(-o["learning_rate_decay"] * max(0, share * o["rounds"] - o["silent_rounds"]))
    assert short["rounds"] == round(whole["rounds"] / 3)
    for share in np.linspace(0, 1, 11):
        assert rate(short, share) == pytest.approx(rate(whole, share), rel=0.15)
    assert short["augmentation"] == whole["augmentation"] and len(TABLES["column_compressed"]) == len(TABLES["column"])


@pytest.mark.deep(after="tests/test_aggregation_study.py")
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
    assert record["seconds"] >= sum(row["seconds"] for row in rows) > 0
    (row,) = csv.DictReader((tmp_path / "results" / "paper" / "column_momentum.csv").read_text().splitlines())
    assert row["rule"] == "naive_weighted_average" and float(row["s a run"]) == round(record["seconds"])


class Fake:
    """Stands for `execute`: writes what a run leaves, and counts."""

    def __init__(self):
        self.runs, self.fails_at = [], None

    def __call__(self, config, folder, **_):
        if len(self.runs) == self.fails_at:
            folder.mkdir(parents=True)
            (folder / "half").touch()
            raise KeyboardInterrupt
        self.runs.append(folder.name)
        folder.mkdir(parents=True)
        rng = np.random.default_rng(len(self.runs))
        (folder / "config.yaml").write_text(yaml.safe_dump(config.model_dump(exclude={"output"})))
        spread = {"stddev_median": 0.003} if config.kind == "flipout" else {}
        rows = [
            {"round": i + 1, "accuracy": 0.1 + 0.8 * (i + 1) / config.rounds, "test_nll": 1.0, **spread}
            for i in range(config.rounds)
        ]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        scores = {"accuracy": 0.9 + 0.01 * config.seed, "nll": 0.3, "ece": 0.02, "brier": 0.1, "epistemic_share": 0.2}
        (folder / "summary.json").write_text(json.dumps({**scores, "seconds": 12.0}))
        probabilities = rng.dirichlet(np.ones(10), 40)
        uncertainty = {name: rng.uniform(size=40) for name in ("entropy", "aleatoric", "epistemic")}
        labels = rng.integers(0, 10, 40)
        np.savez(folder / "predictions.npz", probabilities=probabilities, labels=labels, **uncertainty)


@pytest.fixture
def fake(monkeypatch):
    fake = Fake()
    monkeypatch.setattr("tfp_bfl.app.one_run.run.execute", fake)
    return fake


def invoke(output, *arguments):
    folders = ["--output", str(output / "cells"), "--results", str(output / "results")]
    return CliRunner().invoke(run.main, [*arguments, *folders])


def test_a_table_killed_half_way_goes_on_where_it_was(tmp_path, fake):
    fake.fails_at = 3
    assert invoke(tmp_path, "rules", "--size", "digits").exit_code != 0
    assert len(fake.runs) == 3 and not (tmp_path / "results").exists()
    fake.fails_at = None
    result = invoke(tmp_path, "rules", "--size", "digits")
    assert result.exit_code == 0, result.output
    assert len(fake.runs) == len(set(fake.runs)) == 14
    assert "3 of 14 are done." in result.output
    assert not list(tmp_path.rglob("half"))
    results = tmp_path / "results" / "digits"
    rows = list(csv.reader((results / "rules.csv").read_text().splitlines()))
    assert len(rows) == 1 + len(RULES) and rows[0][0] == "rule"
    assert rows[1][rows[0].index("accuracy")] == "0.9050 +- 0.0071"
    figures = sorted(path.name for path in (results / "figures").iterdir())
    assert figures == ["rules-dirichlet_0.5-learning.png", "rules-dirichlet_0.5-retention.png"]
    assert "not measured" in (results / "findings.md").read_text()


def test_tables_are_of_records_where_the_folders_are_gone(tmp_path, fake):
    results = tmp_path / "results" / "digits"
    assert invoke(tmp_path, "rules", "--size", "digits", "--cell", "rule=conflation").exit_code == 0
    shutil.rmtree(tmp_path / "cells")
    (results / "figures" / "rules-dirichlet_0.5-retention.png").unlink()
    (results / "rules_5_epochs.md").write_text("of before there were records")
    result = invoke(tmp_path, "rules", "--size", "digits", "--cell", "rule=linear_pool")
    assert result.exit_code == 0, result.output
    rows = list(csv.reader((results / "rules.csv").read_text().splitlines()))
    assert [row[0] for row in rows] == ["rule", "linear_pool", "conflation"]
    assert len(list((results / "figures").iterdir())) == 2
    assert invoke(tmp_path, "--size", "digits", "--tables").exit_code == 0 and len(fake.runs) == 4
    assert (results / "rules_5_epochs.md").read_text() == "of before there were records"


def test_a_folder_of_another_config_is_refused_and_left_alone(tmp_path, fake):
    assert invoke(tmp_path, "rules", "--size", "digits", "--cell", "rule=conflation").exit_code == 0
    (path,) = tmp_path.glob("cells/digits/cells/*seed=0/config.yaml")
    path.write_text(path.read_text().replace("batch_size: 32", "batch_size: 64"))
    before, number = path.read_text(), len(fake.runs)
    result = invoke(tmp_path, "rules", "--size", "digits")
    assert result.exit_code == 2 and "is of other options (batch_size 64, now 32)" in result.output
    assert path.read_text() == before and len(fake.runs) == number


def test_wrong_arguments_are_refused(tmp_path, fake):
    for arguments in (["ruls"], ["rules", "--size", "small"], ["prior", "--size", "digits"], ["--cell", "rule=x"]):
        result = invoke(tmp_path, *arguments)
        assert result.exit_code == 2 and "Traceback" not in result.output
    assert fake.runs == [] and not list(tmp_path.iterdir())


def test_list_runs_nothing(tmp_path, fake):
    invoke(tmp_path, "rules", "--size", "digits", "--cell", "rule=conflation")
    number = len(fake.runs)
    lines = invoke(tmp_path, "rules", "--size", "digits", "--list").output.splitlines()
    assert len(lines) == 14 and sum(line.startswith("done") for line in lines) == 2 == number == len(fake.runs)


def made(rule, accuracy, **options):
    defaults = {"kind": "flipout", "weighting": "train_size", "update_prior": False, "pretrain_share": None}
    defaults |= {
        "initial_stddev": 0.003,
        "clients": 10,
        "rounds": 4,
        "local_epochs": 1,
        "partition": "iid",
        "seed": 0,
        "nll": 1.0,
        "inference": "backprop",
        "pretrained": False,
        "output_dropout": False,
        "optimizer": "adam",
        "learning_rate": 1e-3,
        **dict.fromkeys(tables.RETENTION, accuracy / 10),
    }
    return {**defaults, "rule": rule, "accuracy": accuracy, "per_round": rounds_of(accuracy), **options}


def rounds_of(accuracy, late=0):
    return [{"round": i + 1 + late, "accuracy": accuracy * (i + 1) / 4} for i in range(4)]


def over_seeds(rule, accuracy, **options):
    """Three seeds whose scores go up and down together, and hardly by themselves; averages are some rounds late."""
    wobble = {0: 0.0, 1: 0.03, 2: -0.02}
    own = len(rule) / 1e5 + accuracy / 1e3
    runs = [made(rule, accuracy + wobble[s] + own * (s == 1), **{**options, "seed": s}) for s in wobble]
    for one in runs if rule in findings.AVERAGES else ():
        one["nll"] += 0.001 * one["seed"]
        one["per_round"] = rounds_of(one["accuracy"], late=3 + (one["seed"] == 2))
    return runs


def answers(runs):
    """Finding -> what is answered, in whatever places."""
    return {name: {answer.answer()[0] for answer in ask(runs)} for name, ask in findings.FINDINGS.items()}


GOOD = dict(zip(findings.PRODUCTS + findings.AVERAGES, (0.9, 0.91, 0.92, 0.6, 0.5)))


def as_published():
    start = dict(zip(tables.OF_STARTS, (3, 0.6, 1.0)))
    runs = []
    learnt, wide, many = {"inference": "curvature"}, {"initial_stddev": 0.05}, findings.MANY
    for (rule, a), begun, partition in itertools.product(GOOD.items(), ({}, wide, learnt), ("iid", "label_skew:2")):
        where = {**begun, "partition": partition}
        runs += over_seeds(rule, a, nll=1.0 + (rule in findings.AVERAGES), **where)
    for epochs, rounds, begun in (
        (5, 4, {}),
        (5, 4, wide),
        (5, many[5], wide),
        (1, many[1], wide),
        (5, many[5], learnt),
    ):
        for i, rule in enumerate(GOOD):
            more = {"nll": 1.0 + (rule in findings.PRODUCTS), "local_epochs": epochs, "rounds": rounds}
            runs += over_seeds(rule, 0.9 + 0.001 * i, **begun, **more)
    for rule in ("conflation", "weighted_conflation"):
        runs += over_seeds(rule, 0.95, weighting="equal", **wide)
    weightings = ("max_discrepancy", "max_discrepancy_farthest", "distance", "equal")
    for (i, weighting), epochs in itertools.product(enumerate(weightings), (1, 5)):
        runs += over_seeds("weighted_sum", 0.95 + 0.01 * i, weighting=weighting, local_epochs=epochs, **wide)
    for partition in ("iid", "label_skew:2"):
        once = {"partition": partition, "rounds": 1}
        runs += over_seeds(findings.DWC, 0.1, **once) + over_seeds("weighted_sum", 0.7, **once)
        for rule in (findings.DWC, "weighted_sum"):
            for updated in (False, True):
                runs += over_seeds(rule, 0.95, pretrain_share=0.1, update_prior=updated, **once, **start)
    runs += over_seeds("linear_pool", 0.4, update_prior=True)
    for kind, of_logits, accuracy in (
        ("mc_dropout", False, 0.6),
        ("mc_dropout", True, 0.7),
        ("deterministic", False, 0.5),
    ):
        for optimizer, more in (("adam", 0.0), ("momentum", 0.1)):
            own = {"kind": kind, "output_dropout": of_logits, "optimizer": optimizer}
            runs += over_seeds("naive_weighted_average", accuracy + more, **own)
    for (rule, a), begun in itertools.product(GOOD.items(), ({}, wide)):
        own = {"nll": 1.0 + (rule in findings.AVERAGES), "optimizer": "momentum", "learning_rate": 0.05}
        runs += over_seeds(rule, a + 0.05, **own, **begun)
    return runs


def test_findings_are_supported_or_have_too_few_seeds():
    runs = as_published()
    assert set(map(frozenset, answers(runs).values())) == {frozenset({findings.SUPPORTED})}
    alone = answers([run for run in runs if run["seed"] == 0])
    assert set(map(frozenset, alone.values())) == {frozenset({findings.FEW})}
    assert set(map(frozenset, answers([]).values())) == {frozenset()}


def test_findings_are_contradicted_by_the_opposite():
    turned = [{**run, "accuracy": 1 - run["accuracy"], "nll": -run["nll"]} for run in as_published()]
    for one in turned:
        one |= dict.fromkeys(tables.RETENTION, one["accuracy"])
        late = (3 + (one["seed"] == 2)) * (one["rule"] in findings.PRODUCTS)
        one["per_round"] = rounds_of(one["accuracy"], late)
    got = answers(turned)
    level = {name for name in got if "level" in name or name == "WC with equal weights is conflation"}
    assert all(found == {findings.CONTRADICTED} for name, found in got.items() if name not in level)


def test_seeds_that_disagree_are_inconclusive():
    first, second = {0: 0.5, 1: 0.6, 2: 0.7}, {0: 0.6, 1: 0.5, 2: 0.6}
    assert findings.Compared("iid", first, second).answer()[0] == findings.INCONCLUSIVE
    assert findings.Compared("iid", first, second, level=True).answer()[0] == findings.INCONCLUSIVE
    assert findings.Compared("rounds", {0: 3.0, 1: 4.0}, {0: 2.0, 1: 3.0}).answer()[0] == findings.INCONCLUSIVE
    near = {seed: score + 0.001 * seed for seed, score in first.items()}
    assert findings.Compared("iid", near, first, level=True).answer()[0] == findings.SUPPORTED
    far = {seed: score + 0.1 + 0.001 * seed for seed, score in first.items()}
    assert findings.Compared("iid", far, first, level=True).answer()[0] == findings.CONTRADICTED


def test_a_group_lacks_a_seed_where_one_of_its_rules_does_and_says_which_rule_is_missing():
    runs = [run for rule in ("weighted_sum", "conflation", "linear_pool") for run in over_seeds(rule, 0.5)]
    assert set(findings.of_group(runs[:5], ("weighted_sum", "conflation"))) == {0, 1}
    (found,) = findings.groups_apart(runs)
    assert found.where == "iid, without weighted_conflation, naive_weighted_average"
    assert len(found.first) == 3


def test_steps_of_equal_tables_have_equal_rates():
    """The sum of the learning rates of all steps, of E = 1 and E = 5."""
    mass = {}
    for options in run.cells("equal_steps", "fashion_mnist"):
        rounds = np.arange(options["rounds"])
        rates = np.exp(-options["learning_rate_decay"] * np.maximum(0, rounds - options["silent_rounds"]))
        mass.setdefault(options["local_epochs"], set()).add(round(options["local_epochs"] * rates.sum(), 6))
    ((short,), (long,)) = mass[1], mass[5]
    assert short == pytest.approx(long, rel=0.01) and short < 295


def test_mean_and_sd_are_over_seeds_only():
    rows = tables.scores_table(
        [
            {**made(rule, a), "seed": s, "ece": 0.1, "brier": 0.2, "epistemic_share": 0.3, "seconds": 9.0}
            for rule, s, a in (("conflation", 0, 0.5), ("conflation", 1, 0.7), ("weighted_sum", 0, 0.2))
        ]
    )
    assert [row[:2] for row in rows] == [
        ["rule", "accuracy"],
        ["conflation", "0.6000 +- 0.1414"],
        ["weighted_sum", "0.2000"],
    ]


def test_retention_is_what_the_surest_examples_gain(tmp_path):
    """Half of the answers are right: the best order, none at all, and a random one."""
    rng = np.random.default_rng(0)
    right = np.arange(1000) % 2
    probabilities = np.stack([0.4 + 0.2 * right, 0.6 - 0.2 * right], 1)
    told = {"entropy": 1.0 - right, "aleatoric": np.ones(1000), "epistemic": rng.uniform(size=1000)}
    np.savez(tmp_path / "predictions.npz", probabilities=probabilities, labels=np.zeros(1000, np.int64), **told)
    (tmp_path / "summary.json").write_text('{"test_nll": 1.5, "accuracy": 0.5, "seconds": 1.0}')
    (tmp_path / "metrics.jsonl").write_text('{"round": 1, "stddev_median": 0.1}\n{"round": 2}\n')
    kept = tables.read_cell(tmp_path)
    found = [kept[name] for name in tables.RETENTION]
    exact = np.mean([min(1, 0.5 / share) for share in np.arange(1, 21) / 20]) - 0.5
    assert found[0] == pytest.approx(exact, abs=1e-6)
    assert found[1] == pytest.approx(0, abs=1e-6) and abs(found[2]) < 0.05
    (tmp_path / "metrics.jsonl").write_text('{"round": 1, "nll": 2.0, "seconds": 3.0}\n{"round": 2, "nll": 1.0}\n')
    np.savez(tmp_path / "held_out.npz", probabilities=np.full((5, 2), 0.5), labels=np.arange(5) % 2)
    again = tables.read_cell(tmp_path)
    assert (again["train_nll"], again["seconds"]) == (1.0, 3.0) and "held_out_nll" not in kept
    assert again["held_out_nll"] == pytest.approx(np.log(2))
    assert kept["nll"] == 1.5 and kept["per_round"] == [{"round": 1, "stddev_median": 0.1}]


def test_figures_of_tables_that_no_page_shows_are_drawn_where_they_are_named(tmp_path, fake, monkeypatch):
    monkeypatch.setattr(run, "FIGURES", ())
    figures = tmp_path / "results" / "digits" / "figures"
    named = ("rules", "--size", "digits", "--cell", "rule=conflation")
    assert invoke(tmp_path, *named).exit_code == 0 and list(figures.iterdir())
    shutil.rmtree(figures)
    assert invoke(tmp_path, *named[1:], "--tables").exit_code == 0 and not figures.exists()
    assert (tmp_path / "results" / "digits" / "rules.csv").exists()
