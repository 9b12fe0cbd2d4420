"""A run states what it computed: defaults filled in, the posterior temperature, and what the weights are."""

import functools
import importlib
import inspect
import json
import shutil

import numpy as np
import pytest
import tensorflow as tf
import yaml

import tfp_bfl as bfl
from tests.kit import call, info_of, summary_of
from tests.units import in_units
from tfp_bfl.algorithms.factors.work import FACTORS_INFERENCE
from tfp_bfl.algorithms.fixed_points import default_rule
from tfp_bfl.app.one_run.predict import predict
from tfp_bfl.app.options import resolve
from tfp_bfl.app.options.config import fields as all_fields
from tfp_bfl.app.options.config import make_config
from tfp_bfl.bench.sweep import options_of_run, settled_options
from tfp_bfl.export.statement import in_words, statement, temperature_of
from tfp_bfl.options.methods import ALGORITHMS
from tfp_bfl.training.inference import (
    DEFAULT_INFERENCE,
    TEMPERATURES,
    default_noise,
    default_optimizer,
    default_rate,
    settings_for,
)
from tfp_bfl.training.optimizers import DEFAULT_OPTIMIZER, OPTIMIZERS

pytestmark = pytest.mark.cpu_seconds(30)  # two runs serve the tests of the file

OPTIONS = {
    "dataset": "breast_cancer", "rounds": 2, "local_epochs": 1, "clients": 3, "partition": "iid",
    "engine": "local", "num_samples": 3, "algorithm": "variational",
}  # fmt: skip
FLAGS = [part for name, value in OPTIONS.items() for part in (f"--{name.replace('_', '-')}", str(value))]
TEMPERATURE = TEMPERATURES["categorical"]
DEFAULTS = {
    **{"rule": default_rule(None), "inference": DEFAULT_INFERENCE, "noise": default_noise(DEFAULT_INFERENCE)},
    **{"optimizer": DEFAULT_OPTIMIZER, "learning_rate": default_rate(DEFAULT_INFERENCE)},
    **{"temperature": TEMPERATURE, "kl": "total", "schedule": ALGORITHMS["variational"].schedule},
}
UNUSED = ("rule", "inference", "noise", "temperature", "kl", "prior_stddev", "min_stddev")
PLAIN = """
import tensorflow as tf

def build(input_shape, num_classes):
    return tf.keras.Sequential([tf.keras.Input(input_shape), tf.keras.layers.Dense(num_classes)])
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "default"
    assert call("run", *FLAGS, "--model", "mlp", "--output", folder) == 0
    return folder


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A run of a Keras model without variational layers, with the header and warnings that it printed."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "mine.py").write_text(PLAIN)
    lines = []
    console = type("Lines", (), {"is_terminal": False, "quiet": False, "print": lambda self, x, **_: lines.append(x)})
    config = make_config(None, {**OPTIONS, "model": f"{folder / 'mine.py'}:build"})
    from tfp_bfl.app.one_run.run import execute

    execute(config, folder / "plain", console=console(), progress="lines")
    return folder / "plain", lines


def test_a_run_records_the_defaults_that_its_algorithm_fills_in(run):
    recorded = yaml.safe_load((run / "config.yaml").read_text())
    assert {name: recorded[name] for name in DEFAULTS} == DEFAULTS
    configuration, method = info_of(run)["configuration"], summary_of(run)["method"]
    assert configuration["temperature"] == TEMPERATURE
    for settings in (configuration, method):
        assert {name: settings[name] for name in DEFAULTS} == DEFAULTS
        assert settings["weights"] == "Gaussian weights" and settings["prior_stddev"] == "fan_in"


def test_report_and_card_state_method_and_temperature(run):
    words = (
        f"rule {DEFAULTS['rule']}, inference {DEFAULT_INFERENCE}, optimizer {DEFAULT_OPTIMIZER}, "
        f"learning rate {DEFAULTS['learning_rate']:g}, schedule {DEFAULTS['schedule']}, KL scaling total, "
        f"prior standard deviation fan_in; "
        f"posterior at temperature {TEMPERATURE:g}, sharper than the Bayesian one: as if each example had been seen "
        f"{1 / TEMPERATURE:g} times."
    )
    page = (run / "report.html").read_text().replace("<wbr>", "")
    card = (run / "saved_model" / "model_card.md").read_text()
    assert f"Gaussian weights by variational: {words}" in page and words in card
    assert f"<h1>flipout mlp on breast_cancer, 3 clients, {DEFAULTS['rule']}</h1>" in page
    assert f"| posterior temperature | {TEMPERATURE:g} |" in card and "| temperature |" not in card
    assert "sharpened (posterior temperature" in card and "More training data would" not in card


def test_runs_lists_the_rule_that_was_used(run, capsys):
    assert call("runs", run) == 0
    assert f"done   {DEFAULTS['rule']}" in capsys.readouterr().out


@pytest.mark.parametrize("form", ["table", "csv", "json"])
def test_predict_states_the_temperature_beside_its_answer(run, tmp_path, capsys, form):
    rows = tmp_path / "rows.csv"
    columns = [f"c{i}" for i in range(30)]
    rows.write_text("\n".join([",".join(columns), ",".join("1" for _ in columns)]) + "\n")
    info = bfl.export.read_info(run / "saved_model")
    named = info._replace(data={**info.data, "columns": [[name, 0.0, 1.0] for name in columns]})
    bfl.export.save(run, tmp_path / "model", named)
    assert call("predict", tmp_path / "model", rows, "--format", form) == 0
    out, err = capsys.readouterr()
    words = f"posterior at temperature {TEMPERATURE:g}, sharper than the Bayesian one: as if each example had been seen"
    assert (words in out, words in err) == (form == "table", form != "table")
    if form == "json":
        assert len(json.loads(out)) == 1


def test_a_model_of_point_weights_is_stated_as_such(plain):
    folder, lines = plain
    assert lines[0].startswith("mine.py:build with point weights on breast_cancer, 3 clients, federated averaging")
    page, card = (
        (folder / "report.html").read_text().replace("<wbr>", ""),
        (folder / "saved_model" / "model_card.md").read_text(),
    )
    assert "<h1>mine.py:build with point weights on breast_cancer, 3 clients, federated averaging</h1>" in page
    assert "Point weights by variational" in page and "Point weights by variational" in card
    configuration, summary = info_of(folder)["configuration"], summary_of(folder)
    assert configuration["weights"] == summary["method"]["weights"] == "point weights"
    assert [x for x in UNUSED if x in configuration or x in summary["method"]] == []
    assert configuration["kind"] == "deterministic"
    for text in (page, card, *lines, *summary["warnings"]):
        assert "flipout" not in text and DEFAULTS["rule"] not in text and "posterior at temperature" not in text
    recorded = yaml.safe_load((folder / "config.yaml").read_text())
    assert recorded["temperature"] is None and recorded["optimizer"] == DEFAULT_OPTIMIZER


@pytest.mark.parametrize("leaves_open", [False, True])
def test_a_run_goes_on_from_its_record(run, tmp_path, leaves_open):
    """Also from the record of an older version, which left the defaults open."""
    folder = tmp_path / "again"
    shutil.copytree(run, folder)
    (folder / "summary.json").unlink()
    config = yaml.safe_load((folder / "config.yaml").read_text())
    if leaves_open:
        config |= dict.fromkeys(DEFAULTS)
        (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    assert call("run", "--resume", folder) == 0
    wanted, found = summary_of(run), summary_of(folder)
    assert {name: found[name] for name in ("method", "test_nll")} == {n: wanted[n] for n in ("method", "test_nll")}


def test_a_sweep_knows_its_runs_by_the_options_that_they_were_given(run):
    given = {**OPTIONS, "model": "mlp"}
    assert settled_options(make_config(None, given)) == options_of_run(run)
    assert settled_options(make_config(None, {**given, "temperature": 1})) != options_of_run(run)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("regression", [False, True])
def test_resolved_leaves_nothing_open_that_the_algorithm_fills_in(algorithm, regression):
    config = make_config(None, {"algorithm": algorithm})
    found = resolve.resolved(config, regression)
    fields = type(config).model_fields
    names = set(DEFAULTS) & set(fields) - ({"temperature"} if algorithm == "default" else set())
    assert all(getattr(found, name) is not None for name in names)
    assert all(getattr(found, name) == getattr(config, name) for name in all_fields() if name not in fields)
    assert resolve.resolved(found, regression) == found
    assert make_config(None, found.recorded()) == found  # What is recorded is a configuration, and the same one.
    if "temperature" in fields:
        follows = algorithm == "default" and not regression
        assert found.temperature == (1.0 if regression else None if follows else TEMPERATURE)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"update_prior": True}, {"inference": "backprop", "temperature": 1.0, "kl": "client", "noise": "flipout"}),
        ({"example_clip_norm": 1.0}, {"inference": "backprop", "temperature": TEMPERATURE, "kl": "total"}),
        ({"rule": "conflation", "rounds": 1}, {"rule": "conflation", "kl": "product"}),
        ({"inference": "natural"}, {"rule": "log_linear_pool", "learning_rate": default_rate("natural")}),
        ({"optimizer": "adam"}, {"optimizer": "adam", "learning_rate": OPTIMIZERS["adam"].learning_rate}),
        ({"temperature": 0.5, "kl": "client", "noise": "flipout"}, {"temperature": 0.5, "kl": "client"}),
        ({"algorithm": "partitioned_vi"}, {"inference": FACTORS_INFERENCE, "temperature": TEMPERATURE, "kl": None}),
        ({"algorithm": "bayesian_admm"}, {"inference": FACTORS_INFERENCE, "rule": None}),
        ({"algorithm": "fed_opt"}, {"optimizer": "momentum", "momentum": 0.9, "inference": None}),
        ({"algorithm": "fed_opt", "momentum": 0.5}, {"optimizer": "momentum", "momentum": 0.5}),
    ],
)  # fmt: skip
def test_resolved_by_what_is_given(options, wanted):
    found = resolve.resolved(make_config(None, options), regression=False)
    assert {name: getattr(found, name) for name in wanted} == wanted


def test_gaussian_weights_of_algorithms_without_options_of_a_posterior_state_the_defaults():
    config = resolve.resolved(make_config(None, {"algorithm": "fed_prox", "kind": "flipout"}), regression=False)
    build = functools.partial(bfl.models.mlp, "flipout", input_shape=(3,), num_classes=2, hidden=(2,))
    trained = bfl.algorithms.fed_prox(build).settings
    found = resolve.stated(config, resolve.GAUSSIAN, trained)
    assert {name: found[name] for name in ("inference", "temperature", "kl")} == settings_for()._asdict()
    assert "temperature" not in resolve.stated(config, resolve.POINT, trained)


def test_a_user_supplied_algorithm_states_what_its_process_trained_with(tmp_path):
    code = "import tfp_bfl as bfl\n"
    code += "def mine(model_fn, **options):\n"
    code += "    settings = {'temperature': 0.3, 'optimizer': 'sgd', 'learning_rate': 0.05}\n"
    code += "    return bfl.algorithms.fed_nova(model_fn, **{**options, **settings})\n"
    (tmp_path / "mine.py").write_text(code)
    options = {"dataset": "breast_cancer", "model": "mlp", "kind": "flipout", "rounds": 1, "clients": 2}
    result = bfl.run(tmp_path / "run", algorithm=f"{tmp_path / 'mine.py'}:mine", engine="local", **options)
    wanted = {"temperature": 0.3, "inference": "curvature", "optimizer": "sgd", "learning_rate": 0.05}
    summary = summary_of(tmp_path / "run")
    info = bfl.export.read_info(bfl.export.find(tmp_path / "run"))
    for found in (summary["method"], summary["trained"], info.configuration):
        assert {name: found[name] for name in wanted} == wanted
    assert "0.05" in (tmp_path / "run" / "report.html").read_text() and result
    # The built-in table has its names: a file of its columns, in any order and in their units, is predicted.
    test = bfl.data.load("breast_cancer", split="test")
    rows = in_units(test)[:5]
    order = list(reversed(range(30)))
    lines = [[test.columns[i].name for i in order], *([repr(float(row[i])) for i in order] for row in rows)]
    (tmp_path / "rows.csv").write_text("".join(",".join(line) + "\n" for line in lines))
    answer = bfl.export.load(tmp_path / "run" / "saved_model").predict(tf.constant(rows), num_samples=20, seed=0)
    found = predict(tmp_path / "run", tmp_path / "rows.csv", num_samples=20).rows
    np.testing.assert_allclose([x.confidence for x in found], answer["probabilities"].numpy().max(1), atol=1e-4)


def test_what_weights_a_model_has_is_read_from_the_model():
    build = functools.partial(bfl.models.mlp, input_shape=(3,), num_classes=2, hidden=(2,))
    kinds = {"flipout": resolve.GAUSSIAN, "mc_dropout": resolve.DROPOUT, "deterministic": resolve.POINT}
    assert {kind: resolve.weights_of(build(kind)) for kind in kinds} == kinds
    assert resolve.weights_of(tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(2)])) == resolve.POINT


@pytest.mark.parametrize(
    ("temperature", "width", "times"),
    [
        (0.01, "0.01, sharper", "100"),
        (0.3, "0.3, sharper", "3.33"),
        (1e-4, "0.0001, sharper", "10,000"),
        (2.0, "2, wider", "0.5"),
    ],
)
def test_a_temperature_in_words(temperature, width, times):
    words = f"posterior at temperature {width} than the Bayesian one: as if each example had been seen {times} times"
    assert in_words(temperature) == words == statement({"temperature": temperature})
    assert in_words(1.0) == statement({"temperature": 1.0}) == "temperature 1: the Bayesian posterior"


@pytest.mark.parametrize("value", [None, "x", True, 0, -1.0, float("nan")])
def test_settings_that_state_no_temperature(value):
    assert temperature_of({"temperature": value}) is None and statement({"temperature": value}) == ""
    assert statement(None) == statement({}) == ""


def test_program_client_work_and_command_line_have_one_set_of_defaults(monkeypatch):
    """Without options `algorithms.variational` gives its client work what `clients.variational` fills in by itself."""
    given, own = {}, bfl.clients.variational

    @functools.wraps(own)
    def work(model_fn, **options):
        given.update(options)
        return own(model_fn, **options)

    module = importlib.import_module("tfp_bfl.algorithms.variational")
    monkeypatch.setattr(bfl.clients, "variational", work)
    monkeypatch.setattr(module, "compose", lambda model_fn, local, rule, *_, **__: given.update(rule=rule))
    bfl.algorithms.variational(lambda: bfl.models.mlp("flipout", (3,), 2, hidden=()))
    settings = settings_for()
    assert given == {**settings._asdict(), "weighting": "train_size", "rule": default_rule(settings.inference)}
    parameters = inspect.signature(own).parameters
    ours = (*settings._fields, "noise", "learning_rate", "optimizer_fn")
    assert all(parameters[name].default is None for name in ours)
    assert default_optimizer() == DEFAULTS["optimizer"]
    config = resolve.resolved(make_config(None, {"algorithm": "variational"}), regression=False)
    assert {name: getattr(config, name) for name in DEFAULTS} == DEFAULTS
    assert {name: DEFAULTS[name] for name in settings._fields} == settings._asdict() and given["rule"] == config.rule
    helps = {name: field.description for name, field in all_fields().items()}
    assert DEFAULT_INFERENCE in helps["inference"] and FACTORS_INFERENCE in helps["inference"]
    assert f"{DEFAULT_OPTIMIZER} " in helps["optimizer"]
    assert f"or is {TEMPERATURE:g}, and 1 for regression" in helps["temperature"]


def test_what_is_stated_of_a_temperature_that_follows_is_the_last_round_s():
    trained = {"algorithm": "default", "temperature": "by the loss"}
    rounds = [{"nll": 0.5, "temperature": np.float32(0.06)}, {"nll": 0.2, "temperature": np.float32(0.0123456)}]
    assert resolve.at_last(trained, []) == resolve.at_last(trained, [{"nll": 0.5}]) == trained
    found = resolve.at_last(trained, rounds)
    assert found == {**trained, "temperature": pytest.approx(0.0123456)}
    text = statement({"weights": "Gaussian weights", **found})
    assert text.endswith(
        "posterior at temperature 0.0123, sharper than the Bayesian one: as if each example had been seen 81 times"
    )
