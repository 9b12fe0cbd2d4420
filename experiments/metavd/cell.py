"""One cell: a training, and what the models of its clients score."""

from __future__ import annotations

import pathlib
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import tfp_bfl as bfl
from experiments.cells import write_summary
from experiments.metavd.config import ADAPTATION_EXAMPLES, BINS, NUM_SAMPLES
from experiments.metavd.federation import Data, adaptation_of, data_of, noises_of, process_of

Options = dict[str, Any]
WHEN = ("before", "after")
RATES = (*bfl.algorithms.personal.step.DropoutRates._fields, "logit_change")


def run_cell(folder: pathlib.Path, options: Options) -> None:
    """Run a cell and write its summary; of a method that fails, why."""
    write_summary(folder, options, lambda: trained_and_scored(options))


def trained_and_scored(options: Options) -> dict[str, Any]:
    """Return costs and metrics of training, and the scores of known and unseen clients on both kinds of test shards."""
    data = data_of(options)
    process = process_of(options, data)
    wall, cpu = time.perf_counter(), time.process_time()
    how = {"cohort_size": options["cohort"], "seed": options["seed"], "engine": "local"}
    if "last_rounds" in options:
        result, scores, seconds = scored_rounds(process, data, options, how)
        wall, cpu = wall + seconds[0], cpu + seconds[1]
    else:
        result = bfl.simulate(process, data.known, rounds=options["rounds"], **how)
    training = {
        "train_seconds": time.perf_counter() - wall,
        "train_cpu_seconds": time.process_time() - cpu,
        "faulty": sum(row["num_faulty"] for row in result.rounds),
        "train_nll": [row["nll"] for row in result.rounds],
        **messages(result, data),
        **rates(result, options),
    }
    if "last_rounds" not in options:
        scores = {}
        for shards in ("matched", "independent"):
            for number, who in enumerate(("known", "unseen")):
                test = getattr(data, shards)[number]
                scores[f"{who}, {shards}"] = of_clients(process, result, getattr(data, who), test, options, who)
    return {"training": training, "scores": scores}


def scored_rounds(process: Any, data: Data, options: Options, how: Options) -> tuple[Any, Options, tuple[float, float]]:
    """Train, and score each of the last rounds.

    Returns:
      The result, the mean scores by group of clients and noise, and the wall and CPU seconds of the scoring.
    """
    rounds, number = options["rounds"], min(options["last_rounds"], options["rounds"])
    wall = cpu = 0.0
    found = []
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = {"checkpoint_dir": folder, "checkpoint_every": rounds, "keep_checkpoints": 1}
        for last in range(rounds - number + 1, rounds + 1):
            result = bfl.simulate(process, data.known, rounds=last, **how, **checkpoints)
            started = time.perf_counter(), time.process_time()
            found.append(of_noises(process, result, data, options))
            wall, cpu = wall + time.perf_counter() - started[0], cpu + time.process_time() - started[1]
    return result, {name: mean_scores([scores[name] for scores in found]) for name in found[0]}, (wall, cpu)


def of_noises(process: Any, result: Any, data: Data, options: Options) -> Options:
    """Score clients with their own noise, without noise, and the known ones with another client's."""
    scores = {}
    for noise in ("own", *noises_of(options["method"])):
        for number, who in enumerate(("known", "unseen")):
            if noise == "another" and who == "unseen":
                continue  # They have the same noise.
            name = f"{who}, matched" + ("" if noise == "own" else f", {noise}")
            given = getattr(data, who), data.matched[number], options, who, noise
            scores[name] = of_clients(process, result, *given)
    return scores


def mean_scores(found: list[Options]) -> Options:
    """Average all numbers over rounds; single clients and reliability are the last round's."""
    numbers = lambda when: [name for name, x in found[0][when].items() if not isinstance(x, list)]
    means = {when: {name: float(np.mean([f[when][name] for f in found])) for name in numbers(when)} for when in WHEN}
    return {**found[-1], **{when: {**found[-1][when], **means[when]} for when in WHEN}}


def rates(result: Any, options: Options) -> dict[str, float]:
    """Return dropout rates of clients, averaged over the last rounds; empty for a method without personal noise."""
    rows = result.rounds[-options.get("last_rounds", 1) :]
    return {name: float(np.mean([row[name] for row in rows])) for name in RATES if name in rows[0]}


def of_clients(
    process: Any, result: Any, train: Any, test: Any, options: Options, who: str, noise: str = "own"
) -> dict[str, Any]:
    """Return scores of clients before and after adaptation: over clients, and over all their examples together."""
    evaluated = Evaluated(options["seed"])
    scores = bfl.algorithms.personal.evaluate_clients(
        process,
        result,
        train,
        test,
        evaluated,
        adaptation=adaptation_of(options),
        most_examples=ADAPTATION_EXAMPLES,
        first=0 if who == "known" else options["known"],
        seed=options["seed"],
        noise=noise,
    )
    found: dict[str, Any] = {}
    for number, when in enumerate(WHEN):
        of_metric = lambda name, adapted=bool(number): bfl.algorithms.personal.summarise_clients(scores, name, adapted)
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
