"""User-supplied models in runs, from the command line and from Python; a file alone cannot run code."""

import json
import re

import pytest
import tensorflow as tf
import yaml

import tfp_bfl as bfl
from tests.kit import call, lines_of, refusal, summary_of
from tfp_bfl.app.options import own_model
from tfp_bfl.errors import InvalidArgument

pytestmark = pytest.mark.cpu_seconds(30)  # one run serves the tests of the file

CODE = """
import tfp_bfl as bfl

def build(input_shape, num_classes, prior_stddev, seed):
    return bfl.models.mlp("flipout", input_shape, num_classes, hidden=(5,), prior_stddev=prior_stddev, seed=seed)

def fixed():
    return bfl.models.mlp("flipout", (7,), 2)

def wrong():
    return 3

def precise(width=2.0):
    plain = bfl.rules.naive_weighted_average()
    def pool(total, anchor):
        (mean, variance), metrics = plain.pool(total, anchor)
        wide = bfl.posterior.MeanField(mean, tuple(width * v for v in variance))
        return bfl.rules.Pooled(wide, {"width": width})
    return plain._replace(pool=pool, name="precise", units=None, traits=bfl.rules.Traits())

def lost():
    plain = bfl.rules.naive_weighted_average()
    return plain._replace(pool=lambda total, anchor: total.nothing, name="lost")

def needs(width):
    return precise(width)

def prox(model_fn, **options):
    return bfl.algorithms.fed_prox(model_fn, proximal=0.5, **options)

def narrow(model_fn, element_spec, local_epochs):
    return bfl.algorithms.fed_opt(model_fn, element_spec=element_spec, local_epochs=local_epochs)

def broken(input_shape):
    raise RuntimeError("of two\\nlines")

TOUCHED = open(__file__ + ".touched", "w").close()
"""
OPTIONS = {
    "dataset": "breast_cancer", "partition": "iid", "clients": 3, "rounds": 3, "local_epochs": 1, "num_samples": 3,
    "engine": "local",
}  # fmt: skip
FLAGS = [part for name, value in OPTIONS.items() for part in (f"--{name.replace('_', '-')}", str(value))]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("code") / "mine.py"
    path.write_text(CODE)
    return path


@pytest.fixture(scope="module")
def run(file):
    folder = file.parent / "run"
    assert call("run", *FLAGS, "--model", f"{file}:build", "--output", folder) == 0
    return folder


def test_a_run_trains_the_model_of_a_file(run):
    info = bfl.export.read_info(run / "saved_model")
    assert info.model["num_weights"] == 2 * (30 * 5 + 5 * 2) + 7
    assert summary_of(run)["accuracy"] > 0.5
    assert str(run.parent) not in json.dumps(info._asdict())


@pytest.mark.parametrize(("role", "name"), [("model", "build"), ("rule", "precise"), ("algorithm", "prox")])
def test_a_record_alone_runs_no_code(run, tmp_path, capsys, role, name):
    config = {**yaml.safe_load((run / "config.yaml").read_text()), "model": "mlp"}
    evil = tmp_path / "evil.py"
    evil.write_text(CODE)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({**config, role: f"{evil}:{name}"}))
    for command in (["run", "--config", str(tmp_path / "config.yaml")], ["run", "--resume", str(tmp_path)]):
        assert call(*command, *(["--output", str(tmp_path / "new")] if "--config" in command else [])) == 2
        error = capsys.readouterr().err
        assert "which is run only where the command names it" in error and f"add --{role} {evil}:{name}." in error
    assert not (tmp_path / "evil.py.touched").exists() and not (tmp_path / "new").exists()


def test_it_is_reported_without_its_code(run, tmp_path):
    assert call("report", run, "--output", tmp_path / "page.html") == 0


@pytest.mark.parametrize(
    ("role", "name", "message"),
    [
        ("model", "gone.py:build", "There is no file gone.py: give --model FILE.py:FUNCTION"),
        ("model", "{}:bild", "There is no function 'bild' in .*mine.py: did you mean 'build'"),
        ("model", "{}:fixed", r"a model from \[7\] to 2 outputs, but breast_cancer has examples of shape \[30\]"),
        ("model", "mine.py", "model is the file mine.py without a function: give mine.py:FUNCTION"),
        ("model", "{}:wrong", "The model function 'wrong' returns 3, but must return a Keras model"),
        (
            "model",
            "{}:broken",
            r"The model function 'broken' fails: RuntimeError: of two lines \(mine.py:\d+, in broken\)",
        ),
        ("rule", "{}:wrong", "The rule function 'wrong' returns 3, but must return a rules.Rule or a rules.GatherRule"),
        ("rule", "{}:needs", "The rule function 'needs' requires width, which has no default: give the option width"),
        ("algorithm", "{}:fixed", "The algorithm function 'fixed' takes no local_epochs, which is given"),
    ],
)
def test_one_sentence_before_anything_is_written(file, tmp_path, capsys, role, name, message):
    folder = tmp_path / "new"
    own = [*([] if role == "model" else ["--model", "mlp"]), f"--{role}", name.format(file)]
    assert re.search(message, refusal(capsys, "run", *FLAGS, *own, "--output", folder)) and not folder.exists()


def test_weights_without_a_seed_follow_from_the_runs_seed():
    """Two of 60 float32 numbers from a continuous distribution are equal by chance about once in 10^5 runs."""
    source = bfl.data.load("breast_cancer")

    def unseeded(input_shape, num_classes):
        return tf.keras.Sequential([tf.keras.Input(input_shape), tf.keras.layers.Dense(num_classes)])

    kernel = lambda seed: own_model.model_fn(unseeded, source, {"seed": seed})().get_weights()[0]
    first = kernel(3)
    tf.keras.utils.set_random_seed(9)
    assert (kernel(3) == first).all() and (kernel(4) != first).all()


def test_code_that_fails(tmp_path):
    (tmp_path / "bad.py").write_text("import nothing_of_this_name")
    with pytest.raises(InvalidArgument, match=r"The code of .*bad.py fails: ModuleNotFoundError: No module named"):
        own_model.load(f"{tmp_path / 'bad.py'}:build")


@pytest.mark.deep(after="tests/app/test_own_model.py")
def test_a_run_from_python_is_that_of_the_command_line(run, file, tmp_path):
    named = bfl.run(tmp_path / "named", model=f"{file}:build", **OPTIONS)
    built = []

    def build(input_shape, num_classes, prior_stddev, seed):
        built.append(input_shape)
        return bfl.models.mlp("flipout", input_shape, num_classes, hidden=(5,), prior_stddev=prior_stddev, seed=seed)

    given = bfl.run(tmp_path / "given", model=build, **OPTIONS)
    wanted = summary_of(run)
    assert built and named.summary["test_nll"] == given.summary["test_nll"] == wanted["test_nll"]
    assert sorted(p.name for p in given.folder.iterdir()) == sorted(p.name for p in run.iterdir())
    assert yaml.safe_load((given.folder / "config.yaml").read_text())["model"] == "given"


@pytest.mark.deep(after="tests/app/test_own_model.py")
def test_a_run_from_python_goes_on(tmp_path):
    def build(input_shape, num_classes):
        return tf.keras.Sequential(
            [tf.keras.Input(input_shape), tf.keras.layers.Dense(num_classes, kernel_initializer="zeros")]
        )

    options = {**OPTIONS, "algorithm": "fedavg"}
    whole = bfl.run(tmp_path / "whole", model=build, **options)
    broken = bfl.run(tmp_path / "broken", model=build, **{**options, "rounds": 2})
    (broken.folder / "summary.json").unlink()
    config = yaml.safe_load((broken.folder / "config.yaml").read_text())
    (broken.folder / "config.yaml").write_text(yaml.safe_dump({**config, "rounds": 3}, sort_keys=False))
    with pytest.raises(InvalidArgument, match=r"was given in Python: use bfl\.run"):
        bfl.run(resume=broken.folder)
    assert bfl.run(resume=broken.folder, model=build).summary["test_nll"] == whole.summary["test_nll"]
    with pytest.raises(InvalidArgument, match="give only its model, rule, algorithm and data in memory"):
        bfl.run(resume=broken.folder, rounds=4)
    with pytest.raises(InvalidArgument, match="There is no option 'ruel'"):
        bfl.run(tmp_path / "new", ruel="x")


# Rules.


@pytest.fixture(scope="module")
def run_of_rule(file):
    folder = file.parent / "of_rule"
    own = ["--model", "mlp", "--rule", f"{file}:precise"]
    assert call("run", *FLAGS, *own, "--output", folder) == 0
    return folder


def test_a_run_pools_by_the_rule_of_a_file(run_of_rule, file):
    rows = lines_of(run_of_rule / "metrics.jsonl")
    assert [row["width"] for row in rows] == [2.0] * 3
    info = bfl.export.read_info(run_of_rule / "saved_model")
    assert info.configuration["rule"] == "mine.py:precise" and str(file.parent) not in json.dumps(info._asdict())
    assert yaml.safe_load((run_of_rule / "config.yaml").read_text())["rule"] == f"{file}:precise"


def test_a_rule_given_in_python_is_that_of_the_file(run_of_rule, file, tmp_path):
    wide = own_model.load(f"{file}:precise")
    found = [bfl.run(tmp_path / name, model="mlp", rule=rule, **OPTIONS) for name, rule in (("a", wide), ("b", wide()))]
    wanted = summary_of(run_of_rule)["test_nll"]
    assert [run.summary["test_nll"] for run in found] == [wanted] * 2
    assert yaml.safe_load((found[0].folder / "config.yaml").read_text())["rule"] == "given"


def test_code_that_fails_in_a_round_is_one_sentence(file, tmp_path, capsys):
    own = ["--model", "mlp", "--rule", f"{file}:lost"]
    assert call("run", *FLAGS, *own, "--progress", "none", "--output", tmp_path / "new") == 1
    assert re.fullmatch(
        r"tfp-bfl: User-supplied code fails: AttributeError: 'MixturePart' object has no attribute 'nothing' "
        r"\(mine.py:\d+, in <lambda>\).",
        capsys.readouterr().err.strip(),
    )


# Algorithms.


@pytest.fixture(scope="module")
def run_of_algorithm(file):
    folder = file.parent / "of_algorithm"
    own = ["--model", "mlp", "--kind", "deterministic", "--algorithm", f"{file}:prox"]
    assert call("run", *FLAGS, *own, "--output", folder) == 0
    return folder


def test_a_run_by_the_algorithm_of_a_file_is_that_of_the_same_recipe(run_of_algorithm, file, tmp_path):
    options = {**OPTIONS, "model": "mlp", "kind": "deterministic"}
    same = bfl.run(tmp_path / "same", algorithm="fed_prox", proximal=0.5, **options)
    found = summary_of(run_of_algorithm)
    assert found["test_nll"] == same.summary["test_nll"]
    info = bfl.export.read_info(run_of_algorithm / "saved_model")
    assert info.configuration["algorithm"] == "mine.py:prox" and str(file.parent) not in json.dumps(info._asdict())


def test_an_algorithm_gets_the_options_that_it_takes(run_of_algorithm, file, tmp_path):
    options = {**OPTIONS, "model": "mlp", "kind": "deterministic"}
    narrow = own_model.load(f"{file}:narrow")
    first = bfl.run(tmp_path / "narrow", algorithm=narrow, **options)
    assert first.summary["accuracy"] > 0.5
    again = bfl.run(tmp_path / "again", config=first.folder / "config.yaml", algorithm=narrow)
    assert again.summary["test_nll"] == first.summary["test_nll"]
    with pytest.raises(InvalidArgument, match="'narrow' takes no robust, which is given: leave it out, or let it take"):
        bfl.run(tmp_path / "new", algorithm=narrow, robust="median", **options)
    with pytest.raises(InvalidArgument, match="proximal is an option of fed_prox, and this is given"):
        bfl.run(tmp_path / "new", algorithm=narrow, proximal=0.3, **options)


def test_commands_on_a_run_that_names_code_take_it_again(run_of_algorithm, file, tmp_path, capsys):
    """One round of Laplace's approximation, and a client that leaves it."""
    code = ["--algorithm", f"{file}:prox"]
    posterior, fewer = str(tmp_path / "posterior"), str(tmp_path / "fewer")
    for command in (["laplace", str(run_of_algorithm)], ["clients", "remove", posterior, "1"]):
        output = ["--output", posterior if command[0] == "laplace" else fewer]
        assert f"add --algorithm {file}:prox." in refusal(capsys, *command, *output)
        refused = refusal(capsys, *command, *output, "--rule", f"{file}:precise", *code)
        assert "is None, and no code: leave --rule out." in refused
        assert call(*command, *output, *code) == 0
    assert summary_of(tmp_path / "fewer")["clients"] == ["0", "2"]


def test_an_algorithm_that_returns_no_process(file, tmp_path):
    options = {name: x for name, x in OPTIONS.items() if name != "local_epochs"}
    with pytest.raises(InvalidArgument, match=r"returns 3, but must return a process, such as algorithms.compose"):
        bfl.run(tmp_path / "new", model="mlp", algorithm=lambda model_fn: 3, **options)
    with pytest.raises(InvalidArgument, match="fails: ZeroDivisionError: division by zero"):
        bfl.run(tmp_path / "new", model="mlp", algorithm=lambda model_fn: 1 / 0, **options)
    assert not (tmp_path / "new").exists()
