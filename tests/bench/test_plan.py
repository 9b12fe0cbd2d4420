"""The file of a benchmark: what it says, what is refused, and which options a run gets."""

import datetime
import re

import pytest
import yaml

from tests.kit import refuses
from tfp_bfl.bench.plan import read_plan
from tfp_bfl.bench.sweep import Space, parse_space

SMALL = {
    "seeds": "0..1",
    "trials": 3,
    "options": {"engine": "local", "local_epochs": 2},
    "settings": {"heart": {"dataset": "heart_disease", "rounds": 4}},
    "methods": {
        "fed_avg": {"algorithm": "fed_opt", "tuned": {"learning_rate": "0.01..0.1 log"}},
        "chain": {"algorithm": "qlsd", "without": "local_epochs", "rounds": 100},
        "laplace": {
            "algorithm": "laplace",
            "start": {"algorithm": "fed_opt", "kind": "deterministic"},
            "tuned": {"laplace.temperature": [0.1, 1.0]},
        },
    },
}


def after(algorithm, start=(), **options):
    """A change of the methods: a posterior after a training of point weights."""
    start = {"algorithm": "fed_opt", "kind": "deterministic", **dict(start)}
    return {"methods": {"m": {"algorithm": algorithm, "start": start, **options}}}


def write(tmp_path, **changes):
    path = tmp_path / "bench.yaml"
    path.write_text(yaml.safe_dump({**SMALL, **changes}, sort_keys=False))
    return path


@pytest.mark.parametrize(
    ("text", "space"),
    [
        ("0.001..0.3 log", Space(0.001, 0.3, True)),
        ("1..5", Space(1, 5)),
        ("1..0.5e1", Space(1.0, 5.0)),
        (["adam", "sgd"], Space(values=("adam", "sgd"))),
        ([None, 2], Space(values=(None, 2))),
    ],
)
def test_a_space(text, space):
    found = parse_space(text, "x")
    assert found == space and type(found.low) is type(space.low)
    assert str(text).strip("[]").replace("'", "") == str(found) or parse_space(str(found), "x") == found


@pytest.mark.parametrize(
    "text", ["", "1", "5..1", "1..1", "0..1 log", "-1..1 log", "a..b", "1..2 lin", [], [1, 1], [[1]], None, 3, "1..inf"]
)
def test_what_is_no_space(text):
    refuses("The search space of learning_rate is", parse_space, text, "learning_rate")


def test_options_of_a_run(tmp_path):
    plan = read_plan(write(tmp_path))
    config = plan.config("heart", "fed_avg", 1, {"learning_rate": 0.05})
    assert (config.rounds, config.local_epochs, config.learning_rate, config.seed) == (4, 2, 0.05, 1)
    # A method's options win, and it names those of settings that its algorithm does not have.
    chain = plan.config("heart", "chain", 0)
    assert (chain.rounds, chain.algorithm) == (100, "qlsd") and "local_epochs" not in chain.recorded()
    assert plan.then_options("heart", "laplace", {"laplace.temperature": 0.1}) == {"temperature": 0.1}
    assert plan.reference == "fed_avg" and list(plan.seeds) == [0, 1]
    options = {"algorithm": "fed_opt", "kind": "deterministic", "server_optimizer": "adam"}
    chain = {"algorithm": "qlsd", "without": ["server_optimizer"]}
    plan = read_plan(write(tmp_path, options=options, methods={"m": {}, "chain": chain}))
    assert plan.config("heart", "m", 0).server_optimizer == "adam"
    assert "server_optimizer" not in plan.config("heart", "chain", 0).recorded()


@pytest.mark.parametrize(("given", "share"), [(0.25, 0.25), ("2e-1", 0.2)])
def test_a_share_may_be_a_text_of_a_number(tmp_path, given, share):
    """YAML reads 2e-1 as text, and options such as the learning rate take it."""
    assert read_plan(write(tmp_path, hold_out=given)).hold_out == share


@pytest.mark.parametrize(
    ("changes", "options"),
    [
        (after("laplace", structure="diagonal"), {"structure": "diagonal"}),
        (after("last_layer", {"kind": "mc_dropout"}), {}),
        (after("last_layer", temperature=0.2), {"temperature": 0.2}),
        ({"options": {"last_layer.temperature": 0.3}, **after("last_layer")}, {"temperature": 0.3}),
        ({"options": {"last_layer.temperature": 0.3}, **after("last_layer", temperature=0.2)}, {"temperature": 0.2}),
    ],
)
def test_options_of_a_step_after_the_training(tmp_path, changes, options):
    plan = read_plan(write(tmp_path, **changes))
    assert plan.methods["m"].then in ("laplace", "last_layer") and plan.then_options("heart", "m") == options
    assert not [name for name in plan.values("heart", "m") if "." in name]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 1}, "There is no key of a benchmark 'seed': did you mean 'seeds'"),
        ({"methods": {}}, "has no methods: name at least one"),
        ({"settings": None}, "has no settings"),
        ({"settings": {"a/b": {}}}, "settings has the name 'a/b', but names are of at most 60 letters"),
        ({"settings": {"a": {"datset": "digits"}}}, "There is no option 'datset' in a: did you mean 'dataset'"),
        ({"settings": {"a": {"dataset": "digits", "seed": 1}}}, "seed of a is the benchmark's own"),
        ({"trials": 0}, "trials is 0, but must be at least 1"),
        ({"trials": True}, "trials is True"),
        # YAML reads no and 1 as a truth value and a number.
        ({"methods": {False: {}}}, "methods has the name False, but names must be text: put it in quotes"),
        ({"settings": {1: {}}}, "settings has the name 1, but names must be text"),
        ({"hold_out": "x"}, "hold_out is 'x', but must be a number"),
        # What says which federation it is belongs to the settings, so that methods are compared on the same data.
        ({"methods": {"m": {"dataset": "digits"}}}, "dataset of the method 'm' belongs to the settings"),
        ({"methods": {"m": {"tuned": {"clients": "2..3"}}}}, "clients of the method 'm' belongs to the settings"),
        ({"hold_out": 1.0}, "hold_out is 1.0, but must be below 1"),
        ({"score": "acc"}, "score is 'acc', but must be 'nll', 'accuracy' or 'rmse'"),
        ({"seeds": "4..0"}, "seeds is '4..0'"),
        ({"reference": "fedavg"}, "There is no method 'fedavg': did you mean 'fed_avg'"),
        ({"methods": {"m": {"algorithm": "fed_avgg"}}}, "The method 'm' in the setting 'heart': There is no algorithm"),
        ({"methods": {"m": {"tuned": {"learning_rte": "1..2"}}}}, "no option 'learning_rte' in the method 'm'"),
        ({"methods": {"m": {"tuned": {"laplace.temperature": "1..2"}}}}, "is of methods with 'algorithm: laplace'"),
        (after("laplace", temp=1), "There is no option of laplace 'temp'"),
        (after("laplace", tuned={"last_layer.temperature": [0.1, 1]}), "is of methods with 'algorithm: last_layer'"),
        ({"methods": {"m": {"algorithm": "laplace"}}}, "laplace of the method 'm' follows a training: give its"),
        ({"methods": {"m": {"algorithm": "laplace", "start": "run"}}}, "start of the method 'm' is 'run', but must be"),
        ({"methods": {"m": ["variational"]}}, "The method 'm' is ['variational'], but must be a mapping"),
        # An end of a search space that no run can have.
        ({"methods": {"m": {"tuned": {"momentum": "0.5..1.5"}, "algorithm": "fed_opt"}}}, "with momentum 1.5: mom"),
        ({"methods": {"m": {"rule": "x.py:f"}}}, "runs the code x.py:f: read it, and add --trust-code"),
        ({"methods": {"m": {"tuned": {"model": ["mlp", "x.py:f"]}}}}, "runs the code x.py:f: read it, and add"),
        ({"options": {"algorithm": "x.py:f"}}, "runs the code x.py:f: read it, and add --trust-code"),
        ({"methods": {"m": {"tuned": {"algorithm": ["fed_opt", "scaffold"]}}}}, "algorithm of the method 'm' is the"),
        # Each value of a list, not only the first and the last.
        ({"methods": {"m": {"tuned": {"optimizer": ["adam", "banana", "sgd"]}}}}, "with optimizer banana: There is no"),
        (after("laplace", {"algorithm": "variational", "kind": "flipout"}), "laplace follows a training of point"),
        (after("laplace", structure="banana"), "There is no structure 'banana'"),
        (after("laplace", temperature=-1), "temperature of laplace is -1, but must be above 0"),
        (after("laplace", temperature=datetime.date(2020, 1, 1)), "but must be a number"),
        (after("last_layer", tuned={"last_layer.temperature": [0.1, "x"]}), "of last_layer is 'x'"),
        (after("laplace", {"class_weight": "balanced"}), "likelihood without class weights"),
        # What predicts would be the ensemble, the draws or the personal models, and not what follows the training.
        (after("laplace", {"ensemble": 2}), "An ensemble ends with more than one network, and laplace is at"),
        (after("last_layer", tuned={"ensemble": [2, 3]}), "with ensemble 2: An ensemble ends with more"),
        ({"methods": {"m": {"algorithm": "qlsd"}}}, "local_epochs of the settings is no option of qlsd: add 'without"),
        ({"methods": {"m": {"without": "momentum"}}}, "without names momentum, which is no option of settings"),
        ({"methods": {"m": {"without": 3}}}, "without of the method 'm' is 3, but must be a list of options"),
        ({"options": {"ood": "mnist"}}, "ood of options belongs to settings with images: name it in each of these."),
        ({"methods": {"m": {"ood": "mnist"}}}, "ood of the method 'm' belongs to settings with images"),
        ({"options": {"last_layer.temperature": 0.1}}, "last_layer.temperature of options is of methods with"),
        (after("laplace", temperature=1, tuned={"laplace.temperature": [1, 2]}), "has two values"),
        (
            {"methods": {"m": {"algorithm": "laplace", "start": {"algorithm": "qlsd"}, "without": "local_epochs"}}},
            "qlsd ends",
        ),
        ({"methods": {"m": {"algorithm": "qlsd", "without": "server_momentum"}}}, "without names server_momentum"),
        (after("laplace", tuned={"laplace.temp": [1, 2]}), "There is no option of laplace 'temp'"),
        ({"methods": {"m": {"algorithm": "last_layer", "start": {"algorithm": "fed_sgld"}}}}, "fed_sgld ends with mor"),
        (
            {"methods": {"m": {"algorithm": "laplace", "start": {"algorithm": "meta_learning"}}}},
            "meta_learning predict",
        ),
        (after("laplace", {"privacy_clip_norm": 1.0, "cohort_size": 2}), "which epsilon does not cover"),
    ],
)
def test_refusals(tmp_path, changes, message):
    refuses(re.escape(message), read_plan, write(tmp_path, **changes))


@pytest.mark.parametrize(
    "text", ["methods: {a: {}, a: {}}\nsettings: {h: {}}\n", "methods: {a: {rounds: 1, rounds: 2}}\n"]
)
def test_a_name_stands_once(tmp_path, text):
    """YAML's own loader drops the first of two methods of the same name."""
    path = tmp_path / "bench.yaml"
    path.write_text(text)
    refuses(r"bench\.yaml names '(a|rounds)' twice, the second time in line 1", read_plan, path)
