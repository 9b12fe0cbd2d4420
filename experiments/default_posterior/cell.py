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

Options = dict[str, Any]
HALF_ROUNDS = 100  # The library's own.
FIT = 1 / 3  # Of the server's images: a softmax temperature is fitted on them where the others choose a trial.


def run_cell(folder: pathlib.Path, options: Options) -> None:
    """Run a cell and write its summary; of a method that fails, why."""
    write_summary(folder, options, lambda: controlled(options) if options.get("control") else trained(options))


def process_of(options: Options, clients: Any, seed: int) -> bfl.BayesianProcess:
    """Return the process of a cell's method, with the initial weights of a seed."""
    method, source = options["settings"], clients.source
    of_model = {name: method[name] for name in ("dropout_rate",) if name in method}
    of_work = {name: method[name] for name in ("inference", "temperature", "rule") if name in method}

    def model_fn() -> Any:
        build = bfl.models.MODELS[options["model"]]
        shape = {"input_shape": source.element_shape, "num_classes": source.num_classes}
        return build(kind=method["kind"], seed=seed, **shape, **of_model)

    rate = rate_of(method, options["rounds"])
    training = {"local_epochs": options.get("local_epochs", COMMON["local_epochs"]), "batch_size": COMMON["batch_size"]}
    return bfl.algorithms.variational(
        model_fn,
        optimizer=method["optimizer"],
        learning_rate=rate,
        element_spec=clients.element_spec,
        **of_work,
        **training,
    )


def rate_of(method: Options, rounds: int) -> Any:
    """Return the learning rate of a method by its schedule."""
    schedule, rate = method["schedule"], method["rate"]
    if schedule == "inverse":
        return bfl.clients.inverse_decay(rate, method.get("half_rounds", HALF_ROUNDS))
    return bfl.clients.cosine_decay(rate, rounds) if schedule == "cosine" else rate


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
            model = bfl.models.predictive_model(process.model_fn(), own)
            predicted.setdefault(name, []).append(
                [bfl.evaluation.predict(model, x, options["num_samples"], seed) for x in parts]
            )
        row = spread_scores(weights["averaged"], bfl.models.prior(model)) if own.posterior.variance else {}
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
