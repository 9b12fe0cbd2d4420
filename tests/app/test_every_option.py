"""Every option of every algorithm and kind: another value changes what a run calls, or is refused.

The options come from their declarations, so that a new one without effect, or without a value here, fails.
"""

import functools
import itertools
import re

import numpy as np
import pytest
import tensorflow as tf

import tfp_bfl as bfl
from tests.app.test_config import NEEDS, OWN
from tfp_bfl.algorithms.chains import local_langevin
from tfp_bfl.app.one_run import build, client_scores, datasets, pipeline
from tfp_bfl.app.one_run.job import prepare
from tfp_bfl.app.options.config import RunConfig, class_of, make_config
from tfp_bfl.app.options.own_model import NO_CODE
from tfp_bfl.errors import Error, InvalidArgument, MissingDependency
from tfp_bfl.options import choices
from tfp_bfl.options.methods import ALGORITHMS, takers

pytestmark = pytest.mark.cpu_seconds(60)

BASE = {"dataset": "breast_cancer", "partition": "iid", "clients": 4, "rounds": 4, "engine": "local"}
VALUES = {**OWN, "batch_size": 16}
# Of all runs.
COMMON = {
    "algorithm": "fed_opt", "dataset": "heart_disease", "label": "target", "client_column": "hospital", "drop": "a",
    "only": "a", "categorical": "a", "date_unit": "days", "separator": ";", "task": "regression", "test_data": "a.csv",
    "model": "conv_net", "kind": "variational_dropout", "partition": "dirichlet:0.5", "clients": 5, "cohort_size": 2,
    "popularity": 0.5, "dropout": 0.2, "max_retries": 1, "rounds": 5, "average_rounds": 2, "ensemble": 2,
    "pretrain_share": 0.2, "hold_out": 0.2, "examples_per_client": 9, "evaluate_clients": True, "unseen_clients": 1,
    "initial_stddev": 0.1, "min_stddev": 1e-4,
    "dropout_rate": 0.4, "output_dropout": True, "parametrization": "log_alpha", "variational_layers": "dense",
    "width": 8, "normalization": "batch", "precision": "bfloat16", "num_samples": 7,
    "evaluation_precision": "bfloat16", "evaluate_every": 2, "evaluation_examples": 50, "checkpoint_every": 2,
    "keep_checkpoints": 2, "seed": 1, "engine": "compiled", "data_dir": "/nowhere", "tracker": "tensorboard",
    "output": "elsewhere", "freeze": "dense", "text_features": "wordllama", "image_size": "8,8",
    "backbone": "net.keras", "series_column": "a", "time_column": "b",
}  # fmt: skip


class Called(Exception):
    """Carries the arguments of a call that is not made."""


def raising(*arguments, **options):
    raise Called(arguments, options)


def plain(value):
    """Return a value in a form that can be compared: functions by their results, structures by their parts."""
    if isinstance(value, dict):
        return {name: plain(x) for name, x in sorted(value.items())}
    if isinstance(value, (np.ndarray, tf.Tensor)):
        return np.asarray(value).tolist()
    if hasattr(value, "_asdict"):
        return type(value).__name__, plain(value._asdict())
    if isinstance(value, (list, tuple)):
        return [plain(x) for x in value]
    if isinstance(value, tf.keras.optimizers.Optimizer):
        return plain(value.get_config())
    if callable(value):
        for arguments in ((), (2,)):
            try:
                made = value(*arguments)
            except Exception:  # Of other arguments: compared by what it closes over.
                continue
            return plain(np.asarray(made)) if arguments else plain(made) if made is not None else None
        name, cells = getattr(value, "__qualname__", ""), getattr(value, "__closure__", None) or ()
        return name, [plain(cell.cell_contents) for cell in cells if cell.cell_contents is not value]
    return re.sub(r" at 0x\w+", "", repr(value))


@functools.cache
def data():
    train = bfl.data.load("breast_cancer")
    return train, bfl.data.load("breast_cancer", split="test")


def called(options, monkeypatch):
    """Return the arguments by which a configuration calls its recipe and its model; None where it is refused."""
    try:
        config = make_config(None, options)
        train, test = data()
        shares = datasets.shares(config, train)
        with monkeypatch.context() as patched:
            patched.setattr(bfl.algorithms, config.algorithm, raising)
            patched.setattr(local_langevin, "fit_surrogates", lambda model_fn, clients, **given: given)
            patched.setattr(bfl.models, "MODELS", dict.fromkeys(bfl.models.MODELS, raising))
            patched.setattr(bfl.models, "as_model_fn", lambda function: function)
            unlabelled = lambda: shares.unlabelled
            with pytest.raises(Called) as recipe:
                build.process(config, train, unlabelled, clients=lambda: shares.clients)
            (build_model, *_), arguments = recipe.value.args
            with pytest.raises(Called) as model:
                build_model()
            _, of_model = model.value.args
        everybody = client_scores.everybody(shares.clients, shares.unseen)
        scored = client_scores.shards(config, test, everybody)
        arguments = {name: x for name, x in arguments.items() if name != "element_spec"}
        sizes = [
            shares.clients.sizes.tolist(),
            None if scored is None else [[len(rows) for rows in scored.rows], config.client_noise],
        ]
        return plain([arguments, of_model, sizes, config.algorithm])
    except (InvalidArgument, MissingDependency):
        return None


@functools.cache
def of_algorithms():
    """Return (algorithm, option) of all options that are not common to all runs."""
    return [
        (algorithm, name)
        for algorithm in ALGORITHMS
        for name in class_of(algorithm).model_fields
        if name not in RunConfig.model_fields
    ]


def other(name, algorithm):
    value, field = VALUES[name], class_of(algorithm).model_fields[name]
    default = ALGORITHMS[algorithm].defaults.get(name, field.default)
    if value != default:
        return value
    return {"rule": "linear_pool", "optimizer": "adam", "estimator": "plain", "learner": "plain"}.get(name, 0.7)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_each_option_of_an_algorithm_reaches_it_or_is_refused(algorithm, monkeypatch):
    names = [name for of, name in of_algorithms() if of == algorithm]
    assert names and not [name for name in names if name not in VALUES]
    start = {**BASE, "algorithm": algorithm, "model": "mlp"}
    without_effect = []
    for name in names:
        needs = {x: value for x, value in NEEDS.get(name, {}).items() if algorithm in (takers(x) or (algorithm,))}
        before = called({**start, **needs}, monkeypatch)
        after = called({**start, **needs, name: other(name, algorithm)}, monkeypatch)
        if after is not None and after == before:
            without_effect.append(name)
    assert without_effect == []


def simulated(options, monkeypatch, tmp_path):
    """Return what a run hands to `simulate`, and how it predicts and writes; None where it is refused."""
    with monkeypatch.context() as patched:
        patched.setattr(bfl.federated, "simulate", raising)
        try:
            config = make_config(None, options)
            user_data = datasets.load(config) if datasets.is_own(config) else None
            config = datasets.with_clients(config, user_data) if user_data else config
            job = prepare(config, user_data, NO_CODE)
            with pytest.raises(Called) as error:
                pipeline.train(job, bfl.federated.Monitor(job.evaluate, config.evaluate_every), folder=tmp_path)
        except (InvalidArgument, MissingDependency):
            return None
    given = {name: x for name, x in error.value.args[1].items() if name not in ("monitor", "checkpoints")}
    monitor, checkpoints = error.value.args[1]["monitor"], error.value.args[1]["checkpoints"]
    model = job.process.model_fn()
    with bfl.layers.sampling("mean"):
        outputs = np.asarray(tf.cast(model(job.shown.features[:3]), tf.float32))
    stddevs = [np.asarray(w.scale).mean() for layer in model.layers for w in getattr(layer, "variational_weights", ())]
    floors = [w.min_stddev for layer in model.layers for w in getattr(layer, "variational_weights", ())]
    rates = [x.rate for x in model.layers if isinstance(x, bfl.layers.MCDropout)]
    kinds = [(type(x).__name__, str(x.compute_dtype)) for x in model.layers]
    written = [config.output, config.tracker, len(model.trainable_variables)]
    tested = [len(rows) for rows in job.shards.rows] if job.shards else None
    parts = [
        share.sizes.tolist() if share else None for share in (job.clients, job.shares.server, job.shares.calibration)
    ]
    digests = job.train.sha256(), job.test.num_examples, job.shown.num_examples, job.prediction
    return plain(
        [
            *(given, monitor.every, checkpoints.every, checkpoints.keep, outputs, stddevs, floors, rates, kinds),
            *(written, parts, tested, digests, job.config.algorithm),
        ]
    )


@pytest.mark.parametrize(
    "kind",
    [
        "flipout",
        *(
            pytest.param(kind, marks=pytest.mark.deep(after="tests/app/test_every_option.py"))
            for kind in choices.KINDS.entries
            if kind != "flipout"
        ),
    ],
)
def test_each_common_option_reaches_the_run_or_is_refused(kind, monkeypatch, tmp_path):
    names = list(RunConfig.model_fields)
    assert not [name for name in names if name not in COMMON]
    start = {**BASE, "model": "mlp", "kind": kind, "num_samples": 3}
    found = functools.cache(lambda needs: simulated({**start, **dict(needs)}, monkeypatch, tmp_path))
    assert found(()) is not None
    without_effect = []
    for name in names:
        value = COMMON[name] if name != "kind" or kind != "variational_dropout" else "flipout"
        needs = tuple(NEEDS.get(name, {}).items())
        after = simulated({**start, **dict(needs), name: value}, monkeypatch, tmp_path)
        if after is not None and after == found(needs):
            without_effect.append(name)
    assert without_effect == []


@pytest.mark.deep(after="tests/app/test_every_option.py")
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *itertools.product(["flipout"], [name for of, name in of_algorithms() if of == "variational"]),
        *(("flipout", x) for x in ("initial_stddev", "min_stddev", "cohort_size", "examples_per_client", "seed")),
        *(("mc_dropout", x) for x in ("dropout_rate", "output_dropout", "batch_size", "local_epochs", "learning_rate")),
        *(("variational_dropout", x) for x in ("parametrization", "initial_stddev", "kl", "temperature")),
    ],
)
def test_an_option_changes_the_weights_or_is_refused(kind, name):
    """Weights after two rounds differ in at least one bit, or the metrics of a round do."""
    values = {"min_stddev": 0.01, "max_change_norm": 1e-3, "server_optimizer": "adam"}
    value = {**COMMON, **VALUES, **values, "compressor": "quantiser:4", "variance_bits": 32}[name]
    start = {**BASE, "model": "mlp", "kind": kind, "rounds": 2, "num_samples": 3, **NEEDS.get(name, {})}
    if name == "augmentation":  # Of images.
        start |= {"dataset": "digits", "examples_per_client": 20}

    def trained(options):
        job = prepare(make_config(None, options), None, NO_CODE)
        cohorts = bfl.federated.Cohorts(job.config.cohort_size)
        result = bfl.simulate(job.process, job.clients, rounds=2, seed=job.config.seed, engine="local", cohorts=cohorts)
        rows = [{k: x for k, x in row.items() if "second" not in k} for row in result.rounds]
        return [np.asarray(x).tolist() for x in tf.nest.flatten(result.state.weights)], rows

    try:
        found = trained({**start, name: value})
    except Error:  # Refused, or all clients are beyond max_change_norm.
        return
    assert repr(found) != repr(trained(start))
