"""Kinds of user-supplied models: the kind that was trained is recorded, and conversions to another kind."""

import json

import pytest
import tensorflow as tf
import yaml

import tfp_bfl as bfl
from tests.app.test_own_model import OPTIONS
from tests.kit import call
from tfp_bfl.app.one_run.job import prepare
from tfp_bfl.app.options import own_model, resolve
from tfp_bfl.app.options.config import make_config
from tfp_bfl.errors import InvalidArgument

pytestmark = pytest.mark.cpu_seconds(30)  # as in test_own_model.py

KINDS = """
import tensorflow as tf
import tfp_bfl as bfl

def bayesian(input_shape, num_classes):
    inside = bfl.layers.DenseFlipout(4, activation="relu")
    return tf.keras.Sequential([tf.keras.Input(input_shape), inside, bfl.layers.DenseFlipout(num_classes)])

def points(input_shape, num_classes):
    dense = tf.keras.layers.Dense
    return tf.keras.Sequential([tf.keras.Input(input_shape), dense(4, activation="relu"), dense(num_classes)])

def masked(input_shape, num_classes):
    dense = tf.keras.layers.Dense
    inside = [dense(4, activation="relu"), bfl.layers.MCDropout(0.7)]
    return tf.keras.Sequential([tf.keras.Input(input_shape), *inside, dense(num_classes)])
"""


@pytest.fixture(scope="module")
def kinds(tmp_path_factory):
    path = tmp_path_factory.mktemp("kinds") / "kinds.py"
    path.write_text(KINDS)
    return path


def job_of(path, name, **options):
    config = make_config(None, {**OPTIONS, "model": f"{path}:{name}", **options})
    return prepare(config, None, own_model.NO_CODE)


@pytest.mark.parametrize(
    ("name", "options", "kind", "tensors"),
    [
        ("bayesian", {}, "flipout", 2),
        ("bayesian", {"algorithm": "fed_opt"}, "flipout", 2),
        ("bayesian", {"kind": "flipout"}, "flipout", 2),
        ("bayesian", {"kind": "deterministic"}, "deterministic", 0),
        ("bayesian", {"algorithm": "fed_ag", "kind": "deterministic"}, "deterministic", 0),
        ("bayesian", {"kind": "mc_dropout", "dropout_rate": 0.7}, "mc_dropout", 0),
        ("points", {}, "deterministic", 0),
        ("points", {"kind": "deterministic"}, "deterministic", 0),
        ("points", {"kind": "mc_dropout", "dropout_rate": 0.7}, "mc_dropout", 0),
    ],
)
def test_the_kind_that_was_trained_is_recorded(kinds, name, options, kind, tensors):
    job = job_of(kinds, name, **options)
    model = job.process.model_fn()
    assert job.config.kind == kind == bfl.models.kind_of(model)
    assert len(bfl.weights.get_weights(model).posterior.mean) == tensors
    rates = [layer.rate for layer in model.layers if isinstance(layer, bfl.layers.MCDropout)]
    assert rates == ([0.7] if kind == "mc_dropout" else [])
    # The record gives the same model.
    again = make_config(None, job.config.recorded())
    assert again == job.config and job_of(kinds, name, **job.config.recorded()).config == job.config
    assert bool(job.warnings) is (options == {"algorithm": "fed_opt"})


@pytest.mark.parametrize(
    ("name", "options", "wanted"),
    [
        ("points", {"kind": "mc_dropout"}, {"dropout_rate": 0.2}),
        ("points", {"kind": "mc_dropout", "dropout_rate": 0.7}, {"dropout_rate": 0.7}),
        ("bayesian", {}, {"prior_stddev": 1.0, "initial_stddev": 0.003}),
        ("points", {}, {}),
    ],
)
def test_the_options_of_the_model_that_trained_are_stated(kinds, name, options, wanted):
    job = job_of(kinds, name, **options)
    found = resolve.stated(job.config, job.weights, job.process.settings)
    names = ("dropout_rate", "prior_stddev", "initial_stddev", "min_stddev")
    assert {x: found[x] for x in names if x in found} == wanted


@pytest.mark.parametrize(("options", "rate"), [({}, 0.7), ({"kind": "mc_dropout", "dropout_rate": 0.2}, 0.2)])
def test_an_option_with_the_value_of_a_default_is_given_too(kinds, options, rate, tmp_path):
    """The record holds what was given, so that it gives the same model again."""
    rates = lambda job: {x.rate for x in job.process.model_fn().layers if isinstance(x, bfl.layers.MCDropout)}
    job = job_of(kinds, "masked", **options)
    assert rates(job) == {rate}
    assert job.config.recorded().get("dropout_rate") == options.get("dropout_rate")
    (tmp_path / "config.yaml").write_text(job.config.record())
    model = {"model": f"{kinds}:masked"}
    again = prepare(make_config(tmp_path / "config.yaml", model), None, own_model.NO_CODE)
    assert rates(again) == {rate} and again.config.record() == job.config.record()


def test_a_model_in_place_of_a_function(kinds):
    model = tf.keras.Sequential([tf.keras.Input((30,)), bfl.layers.DenseFlipout(2)])
    config = make_config(None, {**OPTIONS, "model": own_model.GIVEN, "kind": "deterministic"})
    job = prepare(config, None, own_model.Code(model=model))
    kernel = job.process.model_fn().get_weights()[0]
    assert (kernel == model.layers[0].kernel_mean.numpy()).all()
    with pytest.raises(InvalidArgument, match="takes no prior_stddev, which is given"):
        config = make_config(None, {**OPTIONS, "model": own_model.GIVEN, "prior_stddev": 0.1})
        prepare(config, None, own_model.Code(model=model))


@pytest.mark.deep(after="tests/app/test_own_kinds.py")
def test_rows_of_a_benchmark_are_other_models(kinds, tmp_path):
    """Federated averaging sends half the bytes of the posterior over the same kernels."""
    plan = {
        "seeds": "0",
        "options": {"engine": "local", "local_epochs": 1, "model": f"{kinds}:bayesian", "num_samples": 3},
        "settings": {"cancer": {"dataset": "breast_cancer", "clients": 3, "partition": "iid", "rounds": 1}},
        "methods": {
            "posterior": {"algorithm": "variational"},
            "fed_avg": {"algorithm": "fed_opt", "kind": "deterministic"},
            "dropout": {"kind": "mc_dropout"},
        },
    }
    (tmp_path / "bench.yaml").write_text(yaml.safe_dump(plan, sort_keys=False))
    command = ["bench", str(tmp_path / "bench.yaml"), "--trust-code", "--output", str(tmp_path / "bench")]
    assert call(*command) == 0
    lines = (tmp_path / "bench" / "records.jsonl").read_text().splitlines()
    found = {x["method"]: x for x in map(json.loads, lines)}
    kernels, biases = 30 * 4 + 4 * 2, 4 + 2
    ratio = (kernels + biases) / (2 * kernels + biases)
    for name in ("fed_avg", "dropout"):
        assert found[name]["cost"]["upload_mb"] / found["posterior"]["cost"]["upload_mb"] == pytest.approx(
            ratio, rel=0.05
        )
    assert len({x["scores"]["test_nll"] for x in found.values()}) == 3
