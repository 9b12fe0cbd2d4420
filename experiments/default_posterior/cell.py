"""One cell: a training, or a trial of one, and the rows of scores that it gives."""

from __future__ import annotations

import pathlib
import time
from typing import Any

import numpy as np

import tfp_bfl as bfl
from experiments.cells import write_summary
from experiments.default_posterior.config import COMMON
from experiments.default_posterior.controls import control_scores, shuffled_labels
from experiments.global_posterior.federation import data_of
from experiments.global_posterior.scores import constant_spread, fitted_scores, permuted, scores, spread_scores
from tfp_bfl.app.one_run import build
from tfp_bfl.app.options.config import RunConfig, make_config
from tfp_bfl.app.options.resolve import GAUSSIAN, method, resolved, stated

Options = dict[str, Any]
HALF_ROUNDS = 100  # The library's own.
FIT = 1 / 3  # Of the server's images: a softmax temperature is fitted on them where the others choose a trial.


def run_cell(folder: pathlib.Path, options: Options) -> None:
    """Run a cell and write its summary; of a method that fails, why."""
    work = controlled if options.get("control") else trained if options["settings"] else as_shipped
    write_summary(folder, options, lambda: work(options))


def shipped() -> RunConfig:
    """Return the options of `tfp-bfl run` on images of which no one is given, filled in by the command itself."""
    return resolved(make_config(None, {}), regression=False, weights=GAUSSIAN)


def as_shipped(options: Options) -> dict[str, Any]:
    """Return the row of the last round of a run without options, and the options that the command filled in."""
    data, seed, wall = data_of(options), options["seed"], time.perf_counter()
    config = shipped().model_copy(update={"seed": seed})
    process = build.process(config, data.clients.source, lambda: None)
    result = bfl.simulate(process, data.clients, rounds=config.rounds, seed=seed, engine="local")
    model = bfl.weights.predictive_model(process.model_fn(), result.state.weights)
    parts = [data.held_out.features, data.test.features, *([] if data.elsewhere is None else [data.elsewhere])]
    predicted = [bfl.evaluation.predict(model, x, config.num_samples, seed) for x in parts]
    training = {"seconds": time.perf_counter() - wall, "shipped": method_of(config)}
    training |= spread_scores(result.state.weights, bfl.weights.prior(model))
    return {"training": training, "rows": {"last": on_test(predicted, data)}}


def method_of(config: RunConfig) -> Options:
    """Return the options of a run that decide what it computes, data and seed apart."""
    names = ("model", "kind", "algorithm", "rounds", "average_rounds", "num_samples", "local_epochs", "batch_size")
    return {**{name: getattr(config, name) for name in names}, **method(stated(config, GAUSSIAN, {}))}


def process_of(options: Options, clients: Any, seed: int) -> bfl.federated.BayesianProcess:
    """Return the process of a cell's method, with the initial weights of a seed."""
    settings, source = options["settings"], clients.source
    of_model = {name: settings[name] for name in ("dropout_rate",) if name in settings}
    of_work = {name: settings[name] for name in ("inference", "temperature", "rule") if name in settings}

    def model_fn() -> Any:
        builder = bfl.models.MODELS[options["model"]]
        shape = {"input_shape": source.element_shape, "num_classes": source.num_classes}
        return builder(kind=settings["kind"], seed=seed, **shape, **of_model)

    rate = rate_of(settings, options["rounds"])
    training = {"local_epochs": options.get("local_epochs", COMMON["local_epochs"]), "batch_size": COMMON["batch_size"]}
    return bfl.algorithms.variational(
        model_fn,
        optimizer=settings["optimizer"],
        learning_rate=rate,
        element_spec=clients.element_spec,
        **of_work,
        **training,
    )


def rate_of(settings: Options, rounds: int) -> Any:
    """Return the learning rate of a method by its schedule."""
    schedule, rate = settings["schedule"], settings["rate"]
    if schedule == "inverse":
        return bfl.training.inverse_decay(rate, settings.get("half_rounds", HALF_ROUNDS))
    return bfl.training.cosine_decay(rate, rounds) if schedule == "cosine" else rate


def trained(options: Options) -> dict[str, Any]:
    """Return the rows of a cell: scores by row, and what the training took.

    Controls of the average, where it has standard deviations: "permuted" within each layer, and "constant", all at
    their geometric mean.
    """
    data, seed, wall = data_of(options), options["seed"], time.perf_counter()
    parts = [data.held_out.features]
    if not options.get("trial"):
        parts += [data.test.features, *([] if data.elsewhere is None else [data.elsewhere])]
    predicted: dict[str, list[list[np.ndarray]]] = {}
    row: dict[str, Any] = {}
    for member in range(options["settings"].get("members", 1)):
        process = process_of(options, data.clients, 1000 * member + seed)
        run = {
            "rounds": options["rounds"],
            "seed": 1000 * member + seed,
            "engine": "local",
            "average_rounds": options["average"],
        }
        result = bfl.simulate(process, data.clients, **run)
        weights = {"last": result.state.weights, "averaged": result.averaged.weights}
        if weights["averaged"].posterior.variance and not options.get("trial"):
            weights["permuted"] = permuted(weights["averaged"], (seed, 0))
            weights["constant"] = constant_spread(weights["averaged"])
        for name, own in weights.items():
            model = bfl.weights.predictive_model(process.model_fn(), own)
            predicted.setdefault(name, []).append(
                [bfl.evaluation.predict(model, x, options["num_samples"], seed) for x in parts]
            )
        row = spread_scores(weights["averaged"], bfl.weights.prior(model)) if own.posterior.variance else {}
    seconds = time.perf_counter() - wall
    together = {name: [np.concatenate(samples) for samples in zip(*members)] for name, members in predicted.items()}
    score = on_held_out if options.get("trial") else on_test
    return {"training": {"seconds": seconds, **row}, "rows": {name: score(x, data) for name, x in together.items()}}


def controlled(options: Options) -> dict[str, Any]:
    """Return the rows of a control: the default's average of rounds, plain and with equal standard deviations."""
    data, seed = data_of(options), options["seed"]
    if options["shuffled"]:
        data = shuffled_labels(data, seed)
    process, wall = process_of(options, data.clients, seed), time.perf_counter()
    run = {name: options[name] for name in ("rounds", "seed")}
    result = bfl.simulate(process, data.clients, engine="local", average_rounds=options["average"], **run)
    rows = control_scores(process.model_fn, result.averaged.weights, data, options)
    return {"training": {"seconds": time.perf_counter() - wall}, "rows": rows}


def on_held_out(predicted: list[np.ndarray], data: Any) -> dict[str, Any]:
    """Return scores of images that the server has set aside, of which the share `FIT` fits the softmax temperature."""
    (samples,), labels = predicted, data.held_out.labels
    number = round(FIT * len(labels))
    rest = samples[:, number:]
    fitted = fitted_scores(rest.mean(0), labels[number:], samples[:, :number].mean(0), labels[:number])
    return {**scores(rest, labels[number:], None), **fitted}


def on_test(predicted: list[np.ndarray], data: Any) -> dict[str, Any]:
    """Return scores of test images and of images from elsewhere."""
    held_out, test, *elsewhere = predicted
    fitted = fitted_scores(test.mean(0), data.test.labels, held_out.mean(0), data.held_out.labels)
    return {**scores(test, data.test.labels, elsewhere[0] if elsewhere else None), **fitted}
