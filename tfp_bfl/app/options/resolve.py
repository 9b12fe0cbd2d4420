"""Configurations with the defaults that an algorithm fills in, and the settings that a run states.

A configuration leaves open what the user did not give: rule, inference, noise, optimizer, learning rate, schedule,
temperature and KL scaling. The algorithms fill these in when they build their process. `resolved` fills in the same
values, from the same functions, so that the record of a run says what it computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl.app.options.config import RunConfig
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.faces import keras
from tfp_bfl.files.code import names_code
from tfp_bfl.options.group import fields_of
from tfp_bfl.options.methods import OWN, method_of
from tfp_bfl.options.training_groups import Inference, RoundPosterior, Tempered

# Of labels that are numbers.
LIKELIHOOD = "heteroscedastic"
GAUSSIAN, DROPOUT, POINT = "Gaussian weights", "Monte Carlo dropout", "point weights"
# Options of a posterior over weights, which a model without Gaussian weights does not use.
_OF_POSTERIOR = ("rule", *fields_of(Inference), *fields_of(Tempered), *fields_of(RoundPosterior))
_OF_GAUSSIANS = ("prior_stddev", "initial_stddev", "min_stddev", "variational_layers")
# What a summary states of the method.
_STATED = (
    *("weights", "algorithm", "rule", "inference", "noise", "optimizer", "learning_rate"),
    *("schedule", "kl", "prior_stddev", "temperature"),
)


def resolved(config: RunConfig, regression: bool, weights: str | None = None, kind: str | None = None) -> RunConfig:
    """Return the configuration with the values that its algorithm takes for options that are None.

    The result gives the same run as `config`, and is its own result. In a regression the default temperature is 1.
    Without Gaussian `weights` (`weights_of`; None has them) the options of a posterior stay as they are, since the run
    does not use them. `kind` is that of a user-supplied model, of which none was given.
    """
    if kind is not None and config.kind is None:
        config = config.model_copy(update={"kind": kind})
    if method_of(config.algorithm) is OWN:  # What it takes for options that are None only its code says.
        return config
    values: dict[str, Any] = {}
    if config.has("optimizer"):
        values["optimizer"] = config.optimizer or bfl.training.inference.default_optimizer(config.update_prior)
    if config.has("learning_rate"):
        values["learning_rate"] = config.rate()
    if config.has("schedule"):
        values["schedule"] = config.schedule_name()
    if config.has("inference"):
        settings = settings_of(config, regression)
        values |= {
            **settings._asdict(),
            "noise": config.noise or bfl.training.inference.default_noise(settings.inference),
        }
        values["rule"] = config.rule or bfl.algorithms.fixed_points.default_rule(settings.inference)
        if names_code(values["rule"]):  # Its KL scaling depends on a value that only the algorithm sees.
            del values["kl"]
    elif config.has("temperature") and config.algorithm == "default" and regression:
        values["temperature"] = config.temperature or 1.0
    values = {name: x for name, x in values.items() if config.has(name)}  # Others stay as they are.
    if weights not in (None, GAUSSIAN):
        values = {name: x for name, x in values.items() if name not in _OF_POSTERIOR}
    return config.model_copy(update=values)


def settings_of(config: RunConfig, regression: bool) -> bfl.training.inference.PosteriorSettings:
    """Return inference, temperature and KL scaling of an algorithm with Gaussian weights on clients."""
    rule = config.rule
    return bfl.training.inference.settings_for(
        config.inference or method_of(config.algorithm).inference(config),
        config.temperature,
        config.kl,
        likelihood=LIKELIHOOD if regression else "categorical",
        update_prior=config.update_prior,
        example_privacy=config.example_clip_norm is not None,
        one_shot=rule is not None and not names_code(rule) and bfl.rules.whole_model(rule).traits.one_shot,
    )


def weights_of(model: keras.Model) -> str:
    """Return what the weights of a built model are: `GAUSSIAN`, `DROPOUT` or `POINT`."""
    if bfl.weights.layout(model).variational:
        return GAUSSIAN
    return DROPOUT if bfl.evaluation.is_stochastic(model) else POINT


def stated(config: RunConfig, weights: str | None, trained: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that decide a run's result and that the run uses, as reports and exports state them.

    A run that recorded no weights states its options as they were given. `trained`, the `BayesianProcess.settings`, are
    stated where the algorithm has no such option, and in place of what was asked of a user-supplied algorithm; never in
    that of a parameter of a user's function.
    """
    recorded = config.recorded()
    if weights is None:
        return recorded
    unused = set(_unused(config, weights))
    is_own = method_of(config.algorithm) is OWN
    kept = {name for name, x in recorded.items() if (names_code(x) if is_own else x is not None)}
    recorded |= {name: x for name, x in trained.items() if name not in {*kept, *config.parameters}}
    return {"weights": weights, **{name: x for name, x in recorded.items() if name not in unused}}


def at_last(trained: Mapping[str, Any], rounds: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return `BayesianProcess.settings` with the posterior temperature of the last round, where one followed."""
    found = rounds[-1].get("temperature") if rounds else None
    return trained if found is None else {**trained, "temperature": float(found)}


def _unused(config: RunConfig, weights: str) -> list[str]:
    """Return the options that a model with such weights does not use."""
    unused = [] if weights == GAUSSIAN else [*_OF_POSTERIOR, *_OF_GAUSSIANS]
    if weights != DROPOUT:
        unused.append("dropout_rate")  # output_dropout is refused.
    unused += ["prior_stddev", "min_stddev"] if config.kind == "variational_dropout" else ["parametrization"]
    return [name for name in unused if name not in method_of(config.algorithm).of_recipe]


def check_effect(config: RunConfig, weights: str) -> None:
    """Check that options that were given have an effect on such weights."""
    names = _unused(config, weights)
    if names_code(config.model):  # Its function takes those of the model.
        names = [name for name in names if name in _OF_POSTERIOR]
    given = config.given(dict.fromkeys(names))
    if weights != GAUSSIAN and given.get("rule") == "naive_weighted_average":
        del given["rule"]
    if given:
        *most, last = given
        options = f"{', '.join(most)} and {last} have" if most else f"{last} has"
        where = f"a model of kind {config.kind} with {weights}" if config.kind else f"a model with {weights}"
        raise InvalidArgument(f"{options} no effect on {where}: leave {'them' if most else 'it'} out.")


def of_gaussians(config: RunConfig, weights: str) -> tuple[str, ...]:
    """Return a warning where an algorithm of point weights trains Gaussian ones; () elsewhere."""
    if weights != GAUSSIAN or method_of(config.algorithm).defaults.get("kind") != "deterministic":
        return ()
    return (
        f"{config.algorithm} trains Gaussian weights here, and sends a mean and a standard deviation of each: for "
        "point weights, as published, give --kind deterministic.",
    )


def method(settings: dict[str, Any]) -> dict[str, Any]:
    """Return those of the `stated` settings that say by which method the weights were found."""
    return {name: settings[name] for name in _STATED if settings.get(name) is not None}


def title(config: RunConfig, weights: str | None = None) -> str:
    """Return the heading of a run: model, data, clients and method."""
    model = f"{config.model_name} with {weights}"
    if config.kind and (weights is None or (weights == GAUSSIAN and not names_code(config.model))):
        model = f"{config.kind} {config.model_name}"
    # What distinguishes a run: the rule; or the algorithm, where no rule can be chosen or none is used.
    is_plain = config.algorithm == "variational" and weights not in (None, GAUSSIAN)
    name = "federated averaging" if is_plain else config.method
    members = f"{config.ensemble} members of {name}" if config.ensemble else name
    return f"{model} on {config.data_name}, {config.clients} clients, {members}"
