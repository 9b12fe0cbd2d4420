"""One cell: a training, and what the models of its clients score."""

from __future__ import annotations

import pathlib
import time
from typing import Any, Callable

import numpy as np
import tensorflow as tf

import tfp_bfl as bfl
from experiments.cells import write_summary
from experiments.metavd.config import ADAPTATION_EXAMPLES, BINS, NUM_SAMPLES
from experiments.metavd.federation import Data, adaptation_of, data_of, process_of

Options = dict[str, Any]
WHEN = ("before", "after")


def run_cell(folder: pathlib.Path, options: Options) -> None:
    """Run a cell and write its summary; of a method that fails, why."""
    write_summary(folder, options, lambda: trained_and_scored(options))


def trained_and_scored(options: Options) -> dict[str, Any]:
    """Return costs and metrics of training, and the scores of known and unseen clients on both kinds of test shards."""
    data = data_of(options)
    process = process_of(options, data)
    wall, cpu = time.perf_counter(), time.process_time()
    how = {"cohort_size": options["cohort"], "seed": options["seed"], "engine": "local"}
    result = bfl.simulate(process, data.known, rounds=options["rounds"], **how)
    training = {
        "train_seconds": time.perf_counter() - wall,
        "train_cpu_seconds": time.process_time() - cpu,
        "faulty": sum(row["num_faulty"] for row in result.rounds),
        "train_nll": [row["nll"] for row in result.rounds],
        **messages(result, data),
    }
    scores: dict[str, Any] = {}
    for shards in ("matched", "independent"):
        for number, who in enumerate(("known", "unseen")):
            test = getattr(data, shards)[number]
            scores[f"{who}, {shards}"] = of_clients(process, result, getattr(data, who), test, options, who)
    return {"training": training, "scores": scores}


def of_clients(process: Any, result: Any, train: Any, test: Any, options: Options, who: str) -> dict[str, Any]:
    """Return scores of clients before and after adaptation: over clients, and over all their examples together."""
    evaluated = Evaluated(options["seed"])
    scores = bfl.federated.evaluate_clients(
        process,
        result,
        train,
        test,
        evaluated,
        adaptation=adaptation_of(options),
        most_examples=ADAPTATION_EXAMPLES,
        first=0 if who == "known" else options["known"],
        seed=options["seed"],
    )
    found: dict[str, Any] = {}
    for number, when in enumerate(WHEN):
        of_metric = lambda name, adapted=bool(number): bfl.federated.summarise_clients(scores, name, adapted)
        found[when] = {
            **{f"accuracy_{how}": x for how, x in of_metric("accuracy").items()},
            **{name: of_metric(name)["uniform"] for name in ("nll", "ece", "ece_classes", "accuracy_logits")},
            **evaluated.together(number),
        }
    found["clients"] = [score._asdict() for score in scores]
    return found


class Evaluated:
    """Metrics of a client's model on its examples; remembers predictions, for calibration over all of them.

    Models come in pairs, before and after adaptation.
    """

    def __init__(self, seed: int):
        self._seed = seed
        self._seen: list[tuple[np.ndarray, np.ndarray]] = []

    def __call__(self, model: tf.keras.Model, features: Any, labels: Any) -> dict[str, float]:
        samples = bfl.evaluation.predict(model, features, NUM_SAMPLES, self._seed)
        mean = samples.mean(0)
        self._seen.append((mean, labels))
        return {
            "accuracy": float(bfl.evaluation.accuracy(mean, labels)),
            "nll": float(bfl.evaluation.negative_log_likelihood(mean, labels)),
            "ece": float(bfl.evaluation.expected_calibration_error(mean, labels, BINS)),
            "ece_classes": float(bfl.evaluation.expected_calibration_error(mean, labels, BINS, over="classes")),
            "accuracy_logits": float(bfl.evaluation.accuracy(mean_of_logits(samples), labels)),
        }

    def together(self, which: int) -> dict[str, Any]:
        """Return calibration over the examples of all clients, of the first or the second of their models."""
        mean, labels = (np.concatenate(x) for x in zip(*self._seen[which::2]))
        error: Callable[..., Any] = lambda f, over: float(f(mean, labels, BINS, over=over))
        expected, largest = bfl.evaluation.expected_calibration_error, bfl.evaluation.maximum_calibration_error
        bins = bfl.evaluation.reliability(mean, labels, BINS)
        return {
            "all_ece": error(expected, "top_label"),
            "all_mce": error(largest, "top_label"),
            "all_ece_classes": error(expected, "classes"),
            "all_mce_classes": error(largest, "classes"),
            "reliability": [np.nan_to_num(np.asarray(x, float), nan=-1.0).tolist() for x in bins],
        }


def mean_of_logits(samples: np.ndarray) -> np.ndarray:
    """Return softmax of the mean of S samples' logits, as published: their normalised geometric mean [N, C]."""
    mean = np.log(np.maximum(samples, np.finfo(np.float32).tiny)).mean(0)
    mean = np.exp(mean - mean.max(-1, keepdims=True))
    return mean / mean.sum(-1, keepdims=True)


def messages(result: Any, data: Data) -> dict[str, float]:
    """Return bytes of a client's message to the server and of the server's to it, and the share of weights that it
    prunes.
    """
    last, weights = result.rounds[-1], result.state.weights
    every = 4 * sum(np.asarray(x).size for x in tf.nest.flatten(weights))
    sent = {name: last.get(f"{name}_bits", 8 * every * last["num_clients"]) for name in ("upload", "download")}
    found = {f"{name}_bytes": bits / 8 / last["num_clients"] for name, bits in sent.items()}
    if "pruned_weights" in last:
        number = sum(np.asarray(x).size for x in weights.posterior.mean)
        found["sparsity"] = last["pruned_weights"] / last["num_clients"] / max(number, 1)
        found["variational_share"] = number / (number + sum(np.asarray(x).size for x in weights.point))
    return found
