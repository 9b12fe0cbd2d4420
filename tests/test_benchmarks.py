"""The sides of the benchmarks state all that they compute: no default of the library decides what a row is of."""

import ast
import importlib
import itertools
import pathlib
import re
import sys

import numpy as np
import pytest

import tfp_bfl as bfl
from tests.own_files import python_files
from tfp_bfl.training import inference

BENCHMARKS = pathlib.Path(__file__).parent.parent / "benchmarks"
NAMES = ("kept", "peers.arguments", "ratios", "sides", "step", "table", "work")
STATED = ("inference", "optimizer_fn", "kl")


@pytest.fixture(scope="module", autouse=True)
def modules():
    """The benchmarks' modules by name, which no other test sees."""
    before = set(sys.modules)
    sys.path.insert(0, str(BENCHMARKS))
    yield {name: importlib.import_module(name) for name in NAMES}
    sys.path.remove(str(BENCHMARKS))
    for name in {*sys.modules} - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(BENCHMARKS)):
            del sys.modules[name]


@pytest.fixture
def sides(modules):
    return modules["sides"]


def described(modules, side):
    clients = bfl.data.load("digits").subset(40, seed=0).partition(bfl.data.iid(2), seed=0)
    return modules["work"].make_process("lenet", side, clients).description


def test_every_side_states_every_option(sides):
    choices = {
        "kind": bfl.models.KINDS,
        "inference": bfl.training.INFERENCES,
        "noise": inference.NOISES,
        "optimizer": bfl.training.OPTIMIZERS,
        "schedule": ("constant", "inverse"),
        "kl": ("total", "client", "product"),
        "rule": bfl.rules.RULES,
        "precision": bfl.models.PRECISIONS,
        "engine": ("tff", "local"),
    }
    for name, side in sides.SIDES.items():
        assert all(getattr(side, field) in values for field, values in choices.items()), name
        assert side.learning_rate > 0 and side.temperature > 0
    assert len(set(sides.SIDES.values())) == len(sides.SIDES)


@pytest.mark.parametrize("name", ["flipout", "default", "deterministic", "natural", "ivon", "curvature-flipout"])
def test_a_side_computes_what_it_states_whatever_the_defaults_are(modules, sides, name, monkeypatch):
    side = sides.SIDES[name]
    before = described(modules, side)
    monkeypatch.setattr(inference, "DEFAULT_INFERENCE", "natural" if side.inference == "ivon" else "ivon")
    monkeypatch.setattr(inference, "DEFAULT_OPTIMIZER", "rmsprop")
    monkeypatch.setattr(inference, "TEMPERATURES", {"categorical": 0.5})
    assert described(modules, side) == before
    stated = [repr(getattr(side, field)) for field in ("inference", "optimizer", "kl")]
    assert [before[field] for field in STATED] == stated and before["rule"] == side.rule
    assert float(before["temperature"]) == side.temperature and side.noise in before["noise"]
    assert float(before["learning_rate"]) == side.learning_rate
    assert ("half_rounds" in before) is (side.schedule == "inverse")


def test_the_default_of_one_epoch_is_a_side(modules, sides):
    clients = bfl.data.load("digits").subset(40, seed=0).partition(bfl.data.iid(2), seed=0)
    model_fn = lambda: bfl.models.lenet(input_shape=clients.source.element_shape)
    default = bfl.algorithms.variational(model_fn, local_epochs=1, element_spec=clients.element_spec).description
    stated = described(modules, sides.DEFAULT)
    assert {**stated, "noise": ""} == {**default, "noise": ""}
    assert sides.DEFAULT.noise == inference.default_noise(sides.DEFAULT.inference)


def test_the_flags_of_a_side_are_a_runs_options(sides):
    from tfp_bfl.app.options.config import make_config

    flags = sides.DEFAULT.flags()
    options = {name.removeprefix("--").replace("-", "_"): value for name, value in zip(flags[::2], flags[1::2])}
    assert make_config(None, {"engine": "local", **options}).inference == sides.DEFAULT.inference


def test_the_tables_have_sides_that_are_stated_and_the_default_among_them(modules, sides):
    rows = {side for setting in modules["table"].SETTINGS for side in setting.sides}
    rows |= {side for beside in modules["step"].SIDES.values() for side in beside}
    ours = {side.split()[1] for side in rows if side.startswith("ours ")}
    assert ours <= {*sides.SIDES} and {"default", "flipout", "deterministic"} <= ours
    assert {side.split()[0] for side in rows} == {"ours", "pfl", "flower", "torch"}
    reference = {modules["step"].SIDES[beside][0] for beside in modules["step"].SIDES}
    assert {setting.sides[0] for setting in modules["table"].SETTINGS} == {"ours flipout"}
    assert reference == {"ours flipout", "ours deterministic-momentum"}


def test_peers_state_what_flipout_computes(modules, sides):
    computed = modules["peers.arguments"].COMPUTED
    assert computed == {name: getattr(sides.FLIPOUT, name) for name in computed}
    assert {*computed} == {*sides.Side._fields} - {"kind", "engine"}


def test_a_legend_states_a_row_for_each_side(sides):
    lines = {"ours default": sides.DEFAULT._asdict(), "plain": {"kind": "deterministic", "optimizer": "adam"}}
    head, _, default, plain = sides.legend(lines)
    assert head.startswith("| side | kind | inference | noise | optimizer | learning rate |")
    assert default.startswith("| ours default | flipout | curvature | shared | momentum | 0.03 | mean_precision")
    assert plain == "| plain | deterministic | none | none | adam |  |  |  |  |"


@pytest.mark.parametrize("page", ["table.md", "step_inferences.md", "step_torch.md"])
def test_a_page_of_results_states_what_its_sides_compute(page):
    rows = [re.split(r" *\| *", line) for line in (BENCHMARKS / "results" / page).read_text().splitlines()]
    heads = [i for i, row in enumerate(rows) if "side" in row]
    tables = [(rows[i], list(itertools.takewhile(lambda row: len(row) > 1, rows[i + 2 :]))) for i in heads]
    (head, legend), *measured = tables
    assert head[1:5] == ["side", "kind", "inference", "noise"]
    named = {row[head.index("side")] for head, table in measured for row in table}
    assert named and named == {row[1] for row in legend}


def test_no_call_leaves_the_inference_to_a_default():
    calls = 0
    for path in python_files(BENCHMARKS):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "variational":
                calls += 1
                assert any(keyword.arg is None for keyword in node.keywords), f"{path.name}:{node.lineno}"
    assert calls >= 8


def test_every_side_of_the_table_reads_the_same_clients(modules, tmp_path, monkeypatch):
    table, work = modules["table"], modules["work"]
    rows = np.arange(240 * 784)
    source = bfl.data.Source("made up", "train", rows.reshape(240, 28, 28, 1) % 251, rows[:240] % 10)
    monkeypatch.setattr(bfl.data, "load", lambda name, split: source)
    setting = table.Setting("lenet", 3, 80, 2, 1, ("ours default", "pfl"), unequal=True)
    path = table.save_clients(str(tmp_path), setting)
    monkeypatch.setattr(table, "interpreter", lambda peer: peer)
    for side in setting.sides:
        arguments = table.command(side, setting, path)
        assert arguments[arguments.index("--data") + 1] == str(path)
    ours, peers = work.read_clients(str(path), "lenet"), modules["peers.arguments"].read(str(path), "lenet")
    assert list(ours.sizes) == list(peers.sizes) and len(set(peers.sizes)) > 1
    for client in range(3):
        features, labels = peers.examples(client)
        mine = ours.examples(client)
        np.testing.assert_array_equal(mine.features / np.float32(255), features)
        np.testing.assert_array_equal(mine.labels, labels)
