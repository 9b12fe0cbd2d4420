"""Parameters of a user's functions as options: given, swept, tuned, recorded; and what is refused."""

import pytest
import yaml

import tfp_bfl as bfl
from tests.kit import call, lines_of, refusal, summary_of
from tfp_bfl.app.one_run import program
from tfp_bfl.app.options import own_model
from tfp_bfl.app.options.config import make_config
from tfp_bfl.bench.sweep import make_cells, parse_varied
from tfp_bfl.errors import InvalidArgument

pytestmark = pytest.mark.cpu_seconds(60)

CODE = """
from __future__ import annotations
from typing import Literal, Optional
import numpy as np
import tensorflow as tf
import tfp_bfl as bfl

def net(input_shape, num_classes, hidden: int = 4, activation: Literal["relu", "tanh"] = "relu", wide=False):
    inside = bfl.layers.DenseFlipout(hidden, activation=activation)
    return tf.keras.Sequential([tf.keras.Input(input_shape), inside, bfl.layers.DenseFlipout(num_classes)])

def plain(input_shape, num_classes, rounds=3):
    return tf.keras.Sequential([tf.keras.Input(input_shape), tf.keras.layers.Dense(num_classes)])

def listed(input_shape, num_classes, units: list[int] = (), other=None):
    return plain(input_shape, num_classes)

def prox(model_fn, element_spec, local_epochs, strength: float = 0.5, momentum: Optional[float] = None):
    return bfl.algorithms.fed_prox(model_fn, element_spec=element_spec, local_epochs=local_epochs, proximal=strength)

def odd(model_fn, epsilon: nonsense = 0.1):
    return bfl.algorithms.fed_opt(model_fn)

def wide(strength: float = 2.0):
    rule = bfl.rules.naive_weighted_average()
    def pool(total, anchor):
        (mean, variance), metrics = rule.pool(total, anchor)
        return bfl.rules.Pooled(bfl.posterior.MeanField(mean, tuple(strength * v for v in variance)), metrics)
    return rule._replace(pool=pool, name="wide", units=None, traits=bfl.rules.Traits())

def waves(noise: float = 0.1, number: int = 120):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, number)
    features = labels[:, None] + noise * rng.normal(size=(number, 3))
    return features.astype("float32"), labels, np.arange(number) % 3

def split():
    features, labels, clients = waves()
    return {"train": (features, labels), "test": (features[:30], labels[:30])}

def nothing():
    return 3
"""
COMMON = {
    "dataset": "breast_cancer", "partition": "iid", "clients": 3, "rounds": 1, "local_epochs": 1, "num_samples": 3,
    "engine": "local",
}  # fmt: skip
FLAGS = [part for name, value in COMMON.items() for part in (f"--{name.replace('_', '-')}", str(value))]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("code") / "mine.py"
    path.write_text(CODE)
    return path


def run(folder, *options, code=0):
    assert call("run", *options, "--output", folder) == code
    return code or summary_of(folder)


def test_a_parameter_decides_the_run_and_is_recorded_and_stated(file, tmp_path):
    """Also of functions for the dataset and the algorithm, by a name that is an option of other algorithms."""
    own = ["--dataset", f"{file}:waves", "--model", f"{file}:net", "--algorithm", f"{file}:prox"]
    rest = ["--rounds", "1", "--local-epochs", "1", "--num-samples", "3", "--engine", "local"]
    given = ["--noise", "0.5", "--hidden", "7", "--momentum=0.4", "--activation", "tanh", "--wide"]
    summary = run(tmp_path / "run", *own, *rest, *given)
    record = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    of_defaults = {"number": 120, "strength": 0.5}
    wanted = {"noise": 0.5, "hidden": 7, "momentum": 0.4, "activation": "tanh", "wide": True, **of_defaults}
    assert record.items() >= wanted.items()
    assert (record["partition"], record["clients"], record["kind"]) == ("given", 3, "flipout")
    assert summary["method"].items() >= {"noise": 0.5, "hidden": 7, "momentum": 0.4, **of_defaults}.items()
    # The record alone runs no code; named again, it repeats the run.
    assert run(tmp_path / "new", "--config", str(tmp_path / "run" / "config.yaml"), code=2) == 2
    again = run(tmp_path / "again", "--config", str(tmp_path / "run" / "config.yaml"), *own)
    assert again["test_nll"] == summary["test_nll"]
    page = ["report", str(tmp_path / "run"), "--output", str(tmp_path / "a.html"), "--dataset"]
    assert call(*page, f"{file}:split") == 2 and call(*page, own[1]) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "net", "hiden": 3}, "There is no option 'hiden': did you mean 'hidden'"),
        ({"model": "net", "hidden": "many"}, "hidden is 'many', but must be a whole number."),
        ({"model": "net", "hidden": True}, "hidden is True, but must be a whole number."),
        ({"model": "net", "wide": "3"}, "wide is '3', but must be true or false."),
        ({"model": "net", "activation": "elu"}, "activation is 'elu', but must be 'relu' or 'tanh'."),
        ({"model": "listed", "units": "3"}, "'listed' has the annotation 'list' for units, but an option must be"),
        ({"model": "listed", "other": "3"}, "'listed' has no annotation for other, but an option must be a bool"),
        ({"algorithm": "odd"}, "'odd' has the annotation 'nonsense' for epsilon, but an option must be a bool"),
        ({"algorithm": "odd", "epsilon": 1}, "'odd' has the annotation 'nonsense' for epsilon, but an option must be"),
        ({"model": "net", "num_classes": 3}, "There is no option 'num_classes'"),
        ({"model": "net", "strength": 1}, "There is no option 'strength'"),
        ({"algorithm": "prox", "rule": "wide", "strength": 1}, "strength is a parameter of the rule and of the algo"),
        ({"algorithm": "prox", "proximal": 1}, "proximal is an option of fed_prox, and this is"),
        ({"dataset": "waves", "noise": "0.5"}, "has the parameter noise, but that name is taken by an option of the"),
        ({"dataset": "waves", "test_data": "x.csv"}, "test_data belongs to files: let the dataset function return"),
    ],
)
def test_what_is_no_parameter_is_one_sentence(file, options, message):
    coded = {
        name: f"{file}:{x}" if name in ("model", "rule", "algorithm", "dataset") else x for name, x in options.items()
    }
    with pytest.raises(InvalidArgument) as error:
        make_config(None, coded)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "{}:plain", "--rounds", "2"], "has the parameter rounds, but that name is taken by an option of"),
        (["--model", "{}:net", "--prior-stddev", "0.1"], "'net' takes no prior_stddev, which is given: leave it out"),
        (["--model", "{}:plain", "--kind", "flipout"], "returns a model of kind deterministic, and kind flipout"),
        (["--model", "{}:net", "--kind", "variational_dropout"], "returns a model of kind flipout"),
        (["--model", "{}:net", "--kind", "deterministic", "--temperature", "0.5"], "temperature has no effect on"),
        (["--dataset", "{}:nothing", "--model", "mlp"], "dataset has the type int, but must be a Source"),
        (["--algorithm", "{}:odd", "--epsilon", "3"], "'odd' has the annotation 'nonsense' for epsilon, but an opti"),
        (["--algorithm", "{}:prox", "--optimizer", "adam", "--model", "mlp"], "takes no optimizer, which is given: le"),
        (["--model", "{}:net", "--hiden", "3"], "There is no option '--hiden': did you mean '--hidden'?"),
        (["--algorithm", "{}:prox", "--schedule", "cosine", "--model", "mlp"], "takes no schedule, which is given: le"),
    ],
)  # fmt: skip
def test_options_that_do_not_reach_a_function_are_refused(file, tmp_path, capsys, options, message):
    flags = [x for x in FLAGS if x] if "--dataset" not in options else []
    assert run(tmp_path / "new", *flags, *(x.format(file) for x in options), code=2) == 2
    error = capsys.readouterr().err
    assert message in error and error.strip().count("\n") == 0 and not (tmp_path / "new").exists()


def test_a_sweep_varies_a_parameter(file):
    varied = parse_varied([f"model={file}:net hidden=3,5"])
    cells = make_cells(None, COMMON, varied, [0])
    assert [config.parameters["hidden"] for config in cells.values()] == [3, 5]
    with pytest.raises(InvalidArgument, match=r"net,hiden=3,seed=0: There is no option 'hiden'"):
        make_cells(None, COMMON, parse_varied([f"model={file}:net hiden=3,5"]), [0])


def test_help_names_the_parameters(file, capsys):
    assert call("run", "--model", f"{file}:net", "--help") == 0
    text = capsys.readouterr().out
    assert "Options of user-supplied functions" in text and "--hidden INTEGER" in text
    assert "--activation relu|tanh" in text and "--wide " in text


def test_a_configuration_names_code_of_which_the_parameters_are(file, tmp_path, capsys):
    """The command must name the code again; where it names other code, the recorded parameters fall away."""
    config = tmp_path / "config.yaml"
    config.write_text(f"model: {file}:net\nhidden: 6\n")
    for command in (["run", "--hidden", "3"], ["sweep", "--vary", "hidden=3,5", "--list"]):
        error = refusal(capsys, *command, "--config", config, "--output", tmp_path / "new")
        assert f"add --model {file}:net." in error
    assert make_config(config, {"model": "mlp"}).parameters == {}
    assert make_config(config, {"model": f"{file}:net"}).parameters["hidden"] == 6


def test_functions_of_one_file_have_names_of_their_own(file):
    config = make_config(None, {"dataset": f"{file}:waves", "model": f"{file}:net", "rule": f"{file}:wide"})
    assert [config.data_name, config.model_name, config.method] == ["mine.py:waves", "mine.py:net", "mine.py:wide"]


def test_parameters_of_a_dataset_function_given_in_python(file, monkeypatch):
    found = []
    monkeypatch.setattr(program, "execute", lambda config, *_, **given: found.append(config) or file.parent)
    (file.parent / "summary.json").write_text("{}")
    waves = own_model.load(f"{file}:waves", "dataset")
    bfl.run(dataset=waves, number=60)
    assert found[0].parameters == {"number": 60, "noise": 0.1} and found[0].dataset.startswith("given: arrays [60, 3]")
    with pytest.raises(InvalidArgument, match="There is no option 'numbr'"):
        bfl.run(dataset=waves, numbr=60)
    with pytest.raises(InvalidArgument, match="test_data belongs to files: let the dataset function return"):
        bfl.run(dataset=waves, test_data="x.csv")


def test_a_test_set_of_the_function(file):
    config = make_config(None, {"dataset": f"{file}:split", "task": "classification"})
    assert (config.model, config.partition) == ("mlp", "dirichlet:0.5")
    from tfp_bfl.app.one_run import datasets

    assert datasets.load(config).test.num_examples == 30


@pytest.mark.deep(after="tests/app/test_parameters.py")
def test_sweep_and_tune(file, tmp_path):
    common = ["--dataset", f"{file}:waves", "--rounds", "1", "--local-epochs", "1", "--engine", "local"]
    sweep = [
        "sweep", *common, "--vary", f"model={file}:net hidden=3,5 or model={file}:net kind=deterministic",
        "--output", str(tmp_path / "sweep"),
    ]  # fmt: skip
    assert call(*sweep) == 0 and call(*sweep) == 0  # The second resumes.
    table = (tmp_path / "sweep" / "results.md").read_text()
    assert "hidden=3" in table and "kind=deterministic" in table
    tune = ["tune", *common, "--model", f"{file}:net", "--space", "hidden=3,9", "--trials", "2"]
    assert call(*tune, "--output", tmp_path / "tuned") == 0
    assert str(lines_of(tmp_path / "tuned" / "trials.jsonl")[1]["values"]["hidden"]) in ("3", "9")
