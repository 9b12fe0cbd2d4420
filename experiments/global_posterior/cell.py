"""One cell: a training, and the rows of scores that it gives."""

from __future__ import annotations

import pathlib
import time
from typing import Any

import numpy as np
import tensorflow as tf

import tfp_bfl as bfl
from experiments.cells import write_summary
from experiments.global_posterior.config import ENSEMBLE, FED_BE, FITTED
from experiments.global_posterior.federation import Data, data_of, process_of
from experiments.global_posterior.scores import (
    fitted_scores,
    scores,
    spread_scores,
    without_spread,
)
from experiments.records import Record
from tfp_bfl.bench.cells import read_summary

Options = dict[str, Any]

IN_CURVES = ("round", "accuracy", "test_nll", "ece", "brier", "error_auroc", "ood_auroc_entropy", "ood_auroc_epistemic")
IN_CURVES += (
    "ood_auroc_mutual_information",
    "retention_area",
    "epistemic",
    "epistemic_share",
    "stddev_q05",
    "stddev_median",
    "stddev_q95",
)
IN_CURVES += ("fitted_temperature", "nll_fitted", "ece_fitted", "train_cpu_seconds")


def read_cell(folder: pathlib.Path) -> Record:
    """Read the record of a cell: everything except the training loss of each round."""
    summary = read_summary(folder)
    training = {name: x for name, x in summary.get("training", {}).items() if name != "train_nll"}
    return {**summary, **({"training": training} if training else {})}


def run_cell(folder: pathlib.Path, options: Options) -> None:
    """Run a cell and write its summary; of a method that fails, why."""
    long = "evaluate_every" in options
    write_summary(folder, options, lambda: curve(options) if long else trained_and_scored(options, data_of(options)))


def trained_and_scored(options: Options, data: Data) -> dict[str, Any]:
    """Return the rows of a cell: scores by row, and what the training took."""
    process = process_of(options, data.clients, data.held_out)
    wall, cpu = time.perf_counter(), time.process_time()
    result = bfl.simulate(process, data.clients, rounds=options["rounds"], seed=options["seed"], engine="local")
    training = {
        "train_seconds": time.perf_counter() - wall,
        "train_cpu_seconds": time.process_time() - cpu,
        "bytes_a_round": bytes_a_round(result.state.weights, data.clients.num_clients),
        "faulty": sum(row["num_faulty"] for row in result.rounds),
        "collapsed_in_round": result.collapsed,
        "train_nll": [row["nll"] for row in result.rounds],
    }
    parts = (data.test.features, data.held_out.features, data.elsewhere)
    predicted = [bfl.evaluation.predict(result.model, x, options["num_samples"], options["seed"]) for x in parts]
    rows = {options["method"]: scored(predicted, data)}
    weights = result.state.weights
    if weights.posterior.variance:
        predict = {name: options[name] for name in ("num_samples", "seed", "permutations")}
        lost = without_spread(result.model, weights, data.test.features, data.test.labels, **predict)
        rows[options["method"]] |= {**spread_scores(weights, bfl.weights.prior(result.model)), **lost}
    elif options["method"] == "fed_avg":
        temperature = rows["fed_avg"]["fitted_temperature"]
        rows[FITTED] = scored([bfl.evaluation.at_temperature(part, temperature) for part in predicted], data)
        own = local_models(process, weights, data.clients, options["seed"])
        rows[ENSEMBLE] = scored(together(result.model, own, parts), data)
        rows[FED_BE] = scored(together(result.model, own + drawn(own, options["seed"]), parts), data)
    return {"training": training, "rows": rows}


def scored(predicted: list[np.ndarray], data: Data) -> dict[str, Any]:
    """Return the scores of sampled predictions of test, held-out and out-of-distribution examples."""
    test, held_out, elsewhere = predicted
    fitted = fitted_scores(test.mean(0), data.test.labels, held_out.mean(0), data.held_out.labels)
    return {**scores(test, data.test.labels, elsewhere), **fitted}


def local_models(process: bfl.federated.BayesianProcess, weights: Any, clients: Any, seed: int) -> list[Any]:
    """Return each client's weights after the next round's training."""
    alone = [bfl.data.Clients(clients.source, [indices]) for indices in clients.indices]
    simulate = lambda own: bfl.simulate(process, own, rounds=1, seed=seed, start=weights, engine="local")
    return [simulate(own).state.weights for own in alone]


def drawn(members: list[Any], seed: int, number: int = 10) -> list[Any]:
    """Return the mean of point weights, and draws from N(mean, their variance) of each weight: FedBE's."""
    rng = np.random.default_rng(seed)
    columns = [np.stack(x) for x in zip(*(weights.point for weights in members))]
    mean = [x.mean(0) for x in columns]
    draw = lambda: [m + x.std(0) * rng.standard_normal(m.shape, np.float32) for m, x in zip(mean, columns)]
    return [members[0]._replace(point=tuple(point)) for point in (mean, *(draw() for _ in range(number)))]


def together(model: tf.keras.Model, members: list[Any], parts: Any) -> list[np.ndarray]:
    """Return the predictions of models of point weights as samples, [M, N, C] for each part of the data."""
    predictions: list[list[np.ndarray]] = [[] for _ in parts]
    for weights in members:
        bfl.weights.assign_weights(model, weights)
        for own, features in zip(predictions, parts):
            own.append(bfl.evaluation.predict(model, features, 1)[0])
    return [np.stack(own) for own in predictions]


def bytes_a_round(weights: Any, num_clients: int) -> int:
    """Return the bytes of a round, to all clients and back."""
    return 2 * num_clients * sum(np.asarray(x).nbytes for x in tf.nest.flatten(weights))


def curve(options: Options) -> dict[str, Any]:
    """Return scores every so many rounds of a long training, and the CPU seconds of training up to there."""
    data = data_of(options)
    parts = [part for part in (data.test, data.held_out) if part is not None]
    evaluating, started = 0.0, time.process_time()

    def evaluate(model: tf.keras.Model) -> dict[str, float]:
        nonlocal evaluating
        before = time.process_time()
        trained = before - started - evaluating
        predict = lambda x: bfl.evaluation.predict(model, x, options["num_samples"], options["seed"])
        own = [predict(part.features) for part in parts]
        found = scores(own[0], data.test.labels, None if data.elsewhere is None else predict(data.elsewhere))
        if data.held_out is not None:
            found |= fitted_scores(own[0].mean(0), data.test.labels, own[1].mean(0), data.held_out.labels)
        evaluating += time.process_time() - before
        found["test_nll"] = found.pop("nll")  # A round's own is that of training.
        return {name: x for name, x in found.items() if x is not None} | {"train_cpu_seconds": trained}

    result = bfl.simulate(
        process_of(options, data.clients, data.held_out),
        data.clients,
        rounds=options["rounds"],
        seed=options["seed"],
        evaluate=evaluate,
        evaluate_every=options["evaluate_every"],
        engine="local",
    )
    rows = [row for row in result.rounds if "test_nll" in row]
    return {"curve": [{name: row[name] for name in IN_CURVES if name in row} for row in rows]}
