"""Build the model and the process that a configuration describes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl.app.one_run import backbone, datasets, trackers
from tfp_bfl.app.one_run.records import num_samples
from tfp_bfl.app.options import own_model
from tfp_bfl.app.options.config import RunConfig, class_of, names_in
from tfp_bfl.app.options.own_model import NO_CODE, OF_A_MODEL, Code, check_names, taken_by
from tfp_bfl.app.options.resolve import LIKELIHOOD, check_effect, resolved, stated, weights_of
from tfp_bfl.data.sources import Learnt
from tfp_bfl.defaults import TEMPERATURE_OF_DEFAULT
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.faces import keras
from tfp_bfl.files.code import code_name
from tfp_bfl.options import fits
from tfp_bfl.options.methods import OWN, argument_names, arguments, fitted, method_of

BATCH_NORM_EXAMPLES = 500
# Options of a user's algorithm that are part of an argument.
_PARTS = {
    **dict.fromkeys(("schedule", "learning_rate_decay", "silent_rounds"), "learning_rate"),
    "class_weight": "likelihood",
}
_PATHS = ("data_dir", "test_data", "backbone")
_OF_ANY_MODEL = ("kind", "seed", "prior_stddev", "initial_stddev", "min_stddev", "dropout_rate")
_OF_A_MODEL = ("model", "kind", "seed", "freeze", *OF_A_MODEL)


def model_fn(config: RunConfig, source: Learnt, code: Code = NO_CODE) -> Callable[[], keras.Model]:
    """Build the Keras model of a configuration for the examples of `source`; `code.model`, if given, in its place."""
    build, names = _whole_model_fn(config, source, code), names_in(config.freeze)
    return bfl.models.as_model_fn(lambda: bfl.weights.frozen.freeze_named(build(), names)) if names else build


def _whole_model_fn(config: RunConfig, source: Learnt, code: Code) -> Callable[[], keras.Model]:
    common = {name: getattr(config, name) for name in _OF_ANY_MODEL}
    if code.model is not None or own_model.names_code(config.model):
        return _user_model_fn(config, source, code.model or own_model.load(config.model), common)
    options = {name: x for name in ("normalization", "width") if (x := getattr(config, name)) is not None}
    if config.variational_initializer != "he_normal":
        options["variational_initializer"] = config.variational_initializer
    if config.output_dropout:
        options["output_dropout"] = True
    if config.variational_layers is not None:
        options["variational_layers"] = config.variational_layers.split(",")
    return bfl.models.as_model_fn(
        lambda: bfl.models.MODELS[config.model](
            input_shape=source.element_shape,
            num_classes=source.num_outputs,
            parametrization=config.parametrization,
            precision=config.precision,
            **common,
            **options,
        )
    )


def _user_model_fn(
    config: RunConfig, source: Learnt, function: object, common: dict[str, Any]
) -> Callable[[], keras.Model]:
    """Build the model of a user's function, which must take the options of models that were given."""
    method = method_of(config.algorithm)
    given = config.given(name for name in OF_A_MODEL if name not in method.of_recipe)
    default = method.defaults.get("kind", "flipout")
    return own_model.model_fn(
        function,
        source,
        {**common, "kind": config.kind or default},
        {**given, **taken_by(function, config.parameters)},
        config.kind,
    )


def check_models(configs: Iterable[tuple[str, RunConfig]]) -> None:
    """Build each model of (what an error begins with, configuration) once, and the processes of those with code."""
    built = set()
    configs = list(configs)
    for _, config in configs:
        trackers.check(config.tracker)
    for group, data in datasets.each(configs):
        first = group[0][1]
        sample = data.train if data else datasets.peek(first)
        for where, config in group:
            coded = any(own_model.names_code(getattr(config, name)) for name in own_model.OPTIONS)
            names = config.recorded() if coded else _OF_A_MODEL
            what = datasets.key(first), str({name: getattr(config, name) for name in names if name != "seed"})
            if what in built:
                continue
            built.add(what)
            try:
                config, _ = settle(datasets.with_clients(config, data) if data else config, sample)
                if coded:
                    process(config, sample, functools.partial(_unlabelled, config))
            except InvalidArgument as error:
                raise InvalidArgument(f"{where}{error}") from None


def _unlabelled(config: RunConfig) -> Any:
    """Return the examples without labels that the server holds."""
    data = datasets.load(config)
    return datasets.shares(config, data.train, data.clients).unlabelled


def prediction(config: RunConfig) -> dict[str, Any]:
    """Return the options of a prediction."""
    return {"num_samples": num_samples(config), "seed": config.seed, "precision": config.evaluation_precision}


def scorer(config: RunConfig, source: bfl.data.Source) -> Callable[..., Any]:
    """Return (model, features, labels) -> `evaluate` of such data, or `evaluate_regression` in the units of
    the labels.
    """
    options = prediction(config)
    if source.target is None:
        return functools.partial(bfl.evaluation.evaluate, **options)
    units: dict[str, Any] = {"scale": source.target.scale, "shift": source.target.mean}
    return functools.partial(bfl.evaluation.evaluate_regression, **options, **units)


def batch_norm_examples(config: RunConfig, server: bfl.data.Clients | None) -> Any:
    """Return examples of the server's on which BatchNorm's statistics are computed for each draw of all
    weights; or None.
    """
    if server is None or config.last_layer:
        return None
    return server.limit(BATCH_NORM_EXAMPLES, seed=config.seed).examples(0).features


def export_info(
    config: RunConfig,
    train: bfl.data.Source,
    metrics: dict[str, Any],
    weights: str | None = None,
    trained: Mapping[str, Any] = {},
    more: Mapping[str, Any] = {},
) -> bfl.export.Info:
    """Return what travels with the exported model of a run; paths of this machine stay here.

    `weights` and `trained` are as of `resolve.stated`; settings of `more` are stated besides, or in place of others.
    """
    names = {"dataset": train.name, "model": config.model_name}
    settings = {**stated(config, weights, trained), **more}
    own = {name: settings.get(name) for name in ("rule", "algorithm")}
    names.update({name: code_name(x) for name, x in own.items() if x and own_model.names_code(x)})
    return bfl.export.Info(
        class_names=[name if name.isprintable() else ascii(name) for name in train.class_names] or None,
        configuration={**{name: x for name, x in settings.items() if name not in _PATHS}, **names},
        metrics=metrics,
        data={
            "dataset": train.name,
            "split": train.split,
            "num_examples": train.num_examples,
            "sha256": train.sha256(),
            "metrics_on": "test",
            **backbone.stated(config, train.image_shape),
            **({"columns": [list(column) for column in train.columns]} if train.columns else {}),
            **({"encoding": [x._asdict() for x in train.encoding]} if train.encoding else {}),
            **({"target": list(train.target)} if train.target else {}),
        },
    )


def settle(config: RunConfig, source: Learnt, code: Code = NO_CODE) -> tuple[RunConfig, str]:
    """Return the configuration with all defaults filled in, and what the model's weights are (`app.resolve`)."""
    model = model_fn(config, source, code)()
    weights = weights_of(model)
    check_effect(config, weights)
    if functions := own_model.functions_of(config.recorded(), code):
        check_names(functions, config.given(type(config).model_fields))
    kind = bfl.models.kind_of(model) if own_model.names_code(config.model) else None
    return resolved(config, source.target is not None, weights, kind), weights


def process(
    config: RunConfig,
    source: Learnt,
    unlabelled: Callable[[], Any],
    code: Code = NO_CODE,
    secure_sums: float | None = None,
    clients: Callable[[], bfl.data.Clients | None] = lambda: None,
) -> bfl.federated.BayesianProcess:
    """Return the federated process of a configuration.

    `unlabelled` gives those of `Shares`, if they are asked for, and `clients` those of the training, to recipes that
    fit something to their data beforehand; `secure_sums` is as of `algorithms.compose`.
    """
    shared = {} if secure_sums is None else {"secure_sums": secure_sums}
    return _recipe(config, config, source, unlabelled, code, clients, **shared)


def pretraining(config: RunConfig, source: bfl.data.Source, code: Code = NO_CODE) -> bfl.federated.BayesianProcess:
    """Return the process of one client, the server: its rounds are epochs of ordinary training of the model."""
    options: dict[str, Any] = {"local_epochs": 1, "batch_size": config.batch_size, "learning_rate": None}
    if config.algorithm in ("default", "variational"):  # Its rounds then start from a posterior of the same kind.
        config = resolved(config, source.target is not None)
        names = ("learning_rate", "optimizer", "inference", "temperature")
        options.update({name: getattr(config, name) for name in names if config.has(name)})
        if options["temperature"] is None:
            options["temperature"] = TEMPERATURE_OF_DEFAULT
    common = {name: getattr(config, name) for name in RunConfig.model_fields}
    options |= {"algorithm": "variational", "rule": "naive_weighted_average", "weighting": "equal"}
    alone = class_of("variational").model_construct(**{**common, **options})
    return _recipe(alone, config, source, code=code._replace(rule=None))


def _recipe(
    of: RunConfig,
    config: RunConfig,
    source: Learnt,
    unlabelled: Callable[[], Any] = lambda: None,
    code: Code = NO_CODE,
    clients: Callable[[], bfl.data.Clients | None] = lambda: None,
    **shared: object,
) -> bfl.federated.BayesianProcess:
    given = arguments(of, unlabelled)
    rule = given.get("rule")
    if code.rule is not None or own_model.names_code(rule):
        given["rule"] = own_model.rule_of(code.rule, rule, config.parameters)
    if source.target is not None:
        fits.check_numbers(of, f"{source.name} has numbers for labels")
        given["likelihood"] = LIKELIHOOD
    built, given = model_fn(config, source, code), {"element_spec": source.element_spec, **given, **shared}
    given |= fitted(of, built, clients, {k: x for k, x in given.items() if k == "likelihood"})
    method = method_of(of.algorithm)
    if method is not OWN:
        return method.make(built, **given)
    function = code.algorithm or own_model.load(config.algorithm, "algorithm")
    # A record holds all options: those with another value than the default were chosen.
    places = {**argument_names(OWN), **_PARTS}
    asked = {places[name]: name for name in config.given(places)}
    chosen = {name: x for name, x in given.items() if name in asked or name in shared}
    chosen |= taken_by(function, config.parameters)
    return own_model.process_of(function, built, chosen, {k: x for k, x in given.items() if k not in chosen}, asked)
