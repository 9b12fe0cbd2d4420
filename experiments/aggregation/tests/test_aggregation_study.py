"""The aggregation study: its cells, its resumption, its tables, figures and findings."""

import csv
import itertools
import shutil

import numpy as np
import pytest

from experiments.aggregation import findings, run, tables
from experiments.aggregation.config import RULES, SIZES
from experiments.aggregation.tests.aggregation_runs import invoke, stand_in, trials_of
from tfp_bfl import rules

ALL = [(size, table) for size in SIZES for table in SIZES[size]["seeds"]]


@pytest.fixture
def fake(monkeypatch):
    return stand_in(monkeypatch)


def test_rules_are_all_published_rules():
    """The library's own, the mean and precision average, is not among the rules that the study compares."""
    assert set(RULES) <= set(rules.RULES) - {"mean_precision_average"}


@pytest.mark.parametrize(("size", "table"), ALL)
def test_every_cell_is_a_valid_run_with_a_name_of_its_own(size, table):
    cells = list(run.cells(table, size, trials_of(table, size)))
    assert len({run.cell_name(options) for options in cells}) == len(cells) > 0
    for options in cells:
        assert run.config_of(options).seed == options["seed"]


def test_tables_share_cells():
    names = lambda table: {run.cell_name(options) for options in run.cells(table, "fashion_mnist")}
    assert len(names("rules") & names("prior")) == 5 * 3


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


def test_the_opposite_is_inconclusive_without_the_published_size():
    turned = [{**run, "accuracy": 1 - run["accuracy"], "nll": -run["nll"]} for run in as_published()]
    for one in turned:
        one |= dict.fromkeys(tables.RETENTION, one["accuracy"])
        late = (3 + (one["seed"] == 2)) * (one["rule"] in findings.PRODUCTS)
        one["per_round"] = rounds_of(one["accuracy"], late)
    got = answers(turned)
    level = {name for name in got if "level" in name or name == "WC with equal weights is conflation"}
    assert all(found == {findings.OTHER_SIDE} for name, found in got.items() if name not in level)


def test_seeds_that_disagree_are_inconclusive():
    first, second = {0: 0.5, 1: 0.6, 2: 0.7}, {0: 0.6, 1: 0.5, 2: 0.6}
    assert findings.Compared("iid", first, second).answer()[0] == findings.INCONCLUSIVE
    assert findings.Compared("iid", first, second, level=True).answer()[0] == findings.INCONCLUSIVE
    assert findings.Compared("rounds", {0: 3.0, 1: 4.0}, {0: 2.0, 1: 3.0}).answer()[0] == findings.INCONCLUSIVE
    near = {seed: score + 0.001 * seed for seed, score in first.items()}
    assert findings.Compared("iid", near, first, level=True).answer()[0] == findings.SUPPORTED
    far = {seed: score + 0.1 + 0.001 * seed for seed, score in first.items()}
    assert findings.Compared("iid", far, first, level=True).answer()[0] == findings.OTHER_SIDE


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
