"""Measure how cost grows and draw it: with clients, weights, weight samples and workers.

    python benchmarks/growth.py

Rounds are of the side `flipout`: Flipout by backpropagation, Adam, float32, engine "tff".

Writes docs/images/growth.png and benchmarks/results/growth.json. About 2 minutes; nothing else should run meanwhile.
"""

from __future__ import annotations

import json
import pathlib
import statistics
import time

import click
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
from sides import FLIPOUT
from work import make_clients, make_process, simulate

import tfp_bfl as bfl

ROOT = pathlib.Path(__file__).resolve().parents[1]
CLIENTS, WEIGHTS, SAMPLES, WORKERS = (10, 30, 100, 300, 1000), (1e5, 3e5, 1e6, 3e6, 1e7), (1, 3, 10, 30, 100), (1, 2)


def rounds(process, clients, workers=1, number=3):
    """Return medians over all rounds but the first: seconds, CPU seconds, peak memory of workers and of all in MB."""
    result, seen, worker_mb = simulate(process, clients, number, FLIPOUT.engine, workers)
    seconds = statistics.median(row["train_seconds"] for row in result.rounds[1:])
    return {"seconds": seconds, "cpu_seconds": seen.cpu_of_a_round(), "worker_mb": worker_mb, "peak_mb": seen.peak}


def by_clients():
    """Measure LeNet with one batch for each client, by the number of clients."""
    result = []
    for number in CLIENTS:
        clients = make_clients("lenet", number, 32)
        result.append({"clients": number, **rounds(make_process("lenet", FLIPOUT, clients), clients)})
    return result


def by_weights():
    """Measure one hidden layer with two clients of one batch, by the number of variational weights."""
    clients = make_clients("lenet", 2, 32)
    result = []
    for number in WEIGHTS:
        hidden = round(number / (784 + 10))

        def model_fn(hidden=hidden):
            return bfl.models.mlp("flipout", input_shape=(28, 28, 1), num_classes=10, hidden=(hidden,))

        options = {"local_epochs": 1, "element_spec": clients.element_spec, **FLIPOUT.training()}
        process = bfl.algorithms.variational(model_fn, FLIPOUT.rule, **options)
        result.append({"weights": hidden * 794, **rounds(process, clients)})
    return result


def by_samples():
    """Measure predictions of LeNet for 500 images, by the number of samples."""
    images = make_clients("lenet", 1, 500).examples(0).features
    model = bfl.models.lenet("flipout")
    result = []
    for number in SAMPLES:
        seconds = []
        for _ in range(6):
            start = time.perf_counter()
            bfl.evaluation.predict(model, tf.constant(images), num_samples=number)
            seconds.append(time.perf_counter() - start)
        result.append({"samples": number, "seconds": statistics.median(seconds[1:])})
    return result


def by_workers():
    """Measure LeNet with 10 clients of 1,280 examples, by the number of workers."""
    clients = make_clients("lenet", 10, 1280)
    process = make_process("lenet", FLIPOUT, clients)
    result = []
    for number in WORKERS:
        result.append({"workers": number, **rounds(process, clients, workers=number)})
    return result


def draw(results, path):
    figure, axes = plt.subplots(1, 4, figsize=(13, 3.2), layout="constrained")
    panels = (("clients", "clients of one batch"), ("weights", "variational weights"), ("samples", "weight samples S"))
    for axis, (key, label) in zip(axes, panels):
        rows = results[key]
        x, seconds = (np.array([row[name] for row in rows]) for name in (key, "seconds"))
        axis.loglog(x, seconds, "o-", label="measured")
        axis.loglog(x, seconds[-1] * x / x[-1], "--", color="0.6", label="in proportion")
        axis.set(xlabel=label, ylabel="seconds a round" if key != "samples" else "seconds for 500 images")
        axis.legend(loc="upper left", frameon=False)
        if "worker_mb" in rows[0]:
            memory = axis.twinx()
            memory.semilogx(x, [row["worker_mb"] for row in rows], "s:", color="C1")
            memory.set_ylabel("worker's peak memory, MB", color="C1")
            memory.set_ylim(bottom=0)
    rows = results["workers"]
    axes[3].bar([str(row["workers"]) for row in rows], [row["seconds"] for row in rows], width=0.5)
    axes[3].set(xlabel="workers on this machine", ylabel="seconds a round")
    for axis in axes:
        axis.spines["top"].set_visible(False)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=110)


PANELS = {"clients": by_clients, "weights": by_weights, "samples": by_samples, "workers": by_workers}


@click.command(help=__doc__.split("\n\n")[0])
@click.option("--only", type=click.Choice(list(PANELS)), help="Measure this alone; the other results stay.")
def main(only):
    path = ROOT / "benchmarks" / "results" / "growth.json"
    results = json.loads(path.read_text()) if only else {}
    for name, measure in PANELS.items():
        if only in (None, name):
            results[name] = measure()
            click.echo(json.dumps({name: results[name]}))
    path.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    draw(results, ROOT / "docs" / "images" / "growth.png")


if __name__ == "__main__":
    main()
