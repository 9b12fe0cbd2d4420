"""Accuracy and calibration against epsilon: `python -m experiments.privacy.run`.

A cell trains with differential privacy of clients or of examples, or without, and scores the pooled model on MNIST's
test images.
"""

from __future__ import annotations

import functools
import itertools
import pathlib
from collections.abc import Iterator
from typing import Any, Optional

import click
import numpy as np
import tensorflow as tf

import tfp_bfl as bfl
from experiments.cells import Study, study_options, write_summary
from experiments.tables import mean_and_sd, write
from tfp_bfl.algorithms.variational import TEMPERATURE
from tfp_bfl.app.cells import read_cells
from tfp_bfl.privacy import Privacy, composed_epsilon, example_steps

HERE = pathlib.Path(__file__).parent
Options = dict[str, Any]
COMMON = {
    **{"dataset": "mnist", "pooled_to": 7, "examples_per_client": 60, "hidden": 16, "initial_stddev": 0.02},
    **{"rounds": 40, "local_epochs": 5, "batch_size": 16, "learning_rate": 5e-3, "delta": 1e-5},
}
# How many clients there are, and how many a round has in expectation.
FEDERATIONS = {"1,000 clients, 50 a round": (1000, 50), "100 clients, 10 a round": (100, 10)}
# Rule, kind of model, and the clipping norms: in the posterior's standard deviations, in the weights' own unit.
METHODS = {
    "naive_weighted_average": {"kind": "flipout", "clip_norm": 60.0},
    "log_linear_pool": {"kind": "flipout", "clip_norm": 60.0},
    "FedAvg": {"kind": "deterministic", "clip_norm": 1.0},
}
# Few parties who all take part hide their examples, each by itself.
PARTIES = "5 parties, examples"
FEW: Options = {
    **COMMON,
    **{"federation": PARTIES, "clients": 5, "cohort_size": None, "examples_per_client": 1200, "clip_norm": 1.0},
    **{"rounds": 20, "local_epochs": 2, "batch_size": 128},
}
# None for no privacy at all, 0 for clipping alone.
NOISES = (None, 0.0, 0.5, 1.0, 2.0, 4.0)
SEEDS = range(3)
COLUMNS = {"accuracy": "accuracy", "NLL": "test_nll", "ECE": "ece", "epistemic": "epistemic"}


def cells() -> Iterator[Options]:
    """The options of each cell."""
    for federation, (method, own), noise, seed in itertools.product(FEDERATIONS, METHODS.items(), NOISES, SEEDS):
        clients, cohort_size = FEDERATIONS[federation]
        sizes = {"clients": clients, "cohort_size": cohort_size, "seed": seed}
        yield {**COMMON, "federation": federation, "method": method, "noise": noise, **own, **sizes}
    for (method, own), noise, seed in itertools.product(METHODS.items(), NOISES, SEEDS):
        yield {**FEW, "method": method, "noise": noise, "kind": own["kind"], "seed": seed}


def cell_name(options: Options) -> str:
    noise = "none" if options["noise"] is None else f"{options['noise']:g}"
    return f"{options['clients']},{options['method']},noise={noise},seed={options['seed']}"


def pooled(source: bfl.data.Source, size: int) -> bfl.data.Source:
    """Images as tables of the means of squares: [N, size^2], so that there are fewer weights to hide."""
    number, side = source.num_examples, source.features.shape[1] // size
    means = source.features.reshape(number, size, side, size, side).mean((2, 4), dtype=np.float32).reshape(number, -1)
    table = (means / np.float32(255) - np.float32(0.13)) / np.float32(0.3)
    return bfl.data.Source(source.name, source.split, table, source.labels, source.class_names)


@functools.lru_cache(maxsize=1)
def data_of(dataset: str, size: int) -> tuple[bfl.data.Source, bfl.data.Source]:
    train, test = (pooled(bfl.data.load(dataset, split=split), size) for split in ("train", "test"))
    return train, test


def privacy_of(options: Options) -> Options:
    """What hides clients or examples; training is alike without noise."""
    if options["federation"] == PARTIES:
        hidden = {"inference": "backprop", "temperature": TEMPERATURE}
        if options["noise"] is not None:
            hidden["example_privacy"] = bfl.clients.ExamplePrivacy(options["clip_norm"], options["noise"])
        return hidden
    if options["noise"] is None:
        return {}
    return {"privacy": Privacy(options["clip_norm"], options["noise"], options["cohort_size"], options["delta"])}


def epsilon_of(options: Options, last: Options) -> Optional[float]:
    if options["federation"] != PARTIES or options["noise"] is None:
        return last.get("epsilon")
    epochs = options["rounds"] * options["local_epochs"]
    steps = example_steps(options["noise"], options["examples_per_client"], options["batch_size"], epochs)
    return composed_epsilon([steps], options["delta"])


def score(options: Options) -> Options:
    """Trains, and scores on the test images."""
    train, test = data_of(options["dataset"], options["pooled_to"])
    number, seed = options["clients"], options["seed"]
    kept = train.subset(number * options["examples_per_client"], seed=seed)
    clients = kept.partition(bfl.data.iid(number), seed=seed)
    flipout = {"initial_stddev": options["initial_stddev"]} if options["kind"] == "flipout" else {}
    shape, hidden = train.element_shape, (options["hidden"],)
    process = bfl.algorithms.variational(
        lambda: bfl.models.mlp(options["kind"], shape, train.num_classes, hidden=hidden, seed=seed, **flipout),
        "naive_weighted_average" if options["method"] == "FedAvg" else options["method"],
        "equal",
        **privacy_of(options),
        **{name: options[name] for name in ("local_epochs", "batch_size", "learning_rate")},
        element_spec=clients.element_spec,
    )
    given = {"rounds": options["rounds"], "cohort_size": options["cohort_size"], "seed": seed, "engine": "local"}
    result = bfl.simulate(process, clients, **given)
    last = result.rounds[-1]
    metrics = bfl.evaluation.evaluate(result.model, test.features, test.labels, seed=seed).metrics
    weights = sum(x.size for x in tf.nest.flatten(result.state.weights))
    return {
        **{name: float(metrics[name]) for name in COLUMNS.values()},
        "epsilon": epsilon_of(options, last),
        "clipped": float(np.mean([row.get("clipped_clients", 0) / row["num_clients"] for row in result.rounds])),
        "numbers": int(weights),
    }


def run_cell(folder: pathlib.Path, options: Options) -> None:
    write_summary(folder, options, lambda: score(options))


def told(summary: dict[str, Any]) -> str:
    """A cell's result in a line."""
    if "failed" in summary:
        return summary["failed"]
    return f"accuracy {summary['accuracy']:.3f}, epsilon {summary['epsilon']} ({summary['seconds']:.0f} s)"


def table(summaries: list[dict[str, Any]], federation: str) -> list[list[str]]:
    """Each method's and noise's means and standard deviations over the seeds."""
    rows = [["method", "noise", "epsilon", *COLUMNS, "clipped", "seeds"]]
    for method, noise in itertools.product(METHODS, NOISES):
        wanted = {"federation": federation, "method": method, "noise": noise}
        same = [s for s in summaries if wanted.items() <= s["options"].items() and "failed" not in s]
        if same:
            scores = [mean_and_sd([s[key] for s in same], 3) for key in COLUMNS.values()]
            epsilon = same[0]["epsilon"]
            how = {None: "no privacy", 0.0: "clipping alone"}.get(noise, str(noise))
            # Of examples it is not told.
            clipped = "" if federation == PARTIES else f"{np.mean([s['clipped'] for s in same]):.0%}"
            rows.append([method, how, "" if epsilon is None else f"{epsilon:.2f}", *scores, clipped, str(len(same))])
    return rows


@click.command()
@study_options("privacy", HERE / "results")
def main(study: Study) -> None:
    """Runs the cells that are not done, and writes the tables."""
    every = {cell_name(options): options for options in cells()}
    study.run(every, run_cell, told)
    if not study.listed:
        summaries = read_cells(study.output)
        names = {name: f"{clients}_clients" for name, (clients, _) in FEDERATIONS.items()}
        for federation, name in {**names, PARTIES: "5_parties"}.items():
            rows = table(summaries, federation)
            if rows[1:]:  # Of others, what was written stays.
                write(rows, study.results / name)


if __name__ == "__main__":
    main()
