"""Measure exact heads of many clients.

    python benchmarks/heads.py

The features are synthetic: Gaussian classes. The engine is "local". Writes benchmarks/results/heads.json. One process
after another; nothing else should run meanwhile. `cpu_seconds` of both cores are stated beside the seconds.
"""

from __future__ import annotations

import json
import pathlib
import resource
import subprocess
import sys
import time
from typing import Any

import click
import numpy as np

import tfp_bfl as bfl

RESULTS = pathlib.Path(__file__).parent / "results" / "heads.json"
# Head, number of clients, rows of each, features, classes, rounds.
CASES = (
    ("gaussian", 1_000, 20, 1280, 10, 2),
    ("softmax", 1_000, 20, 1280, 10, 6),
    ("gaussian", 4, 2_500, 4096, 1_000, 2),
)
NUM_TESTED, NUM_SAMPLES = 1_000, 10


def cpu_seconds() -> float:
    return sum(resource.getrusage(resource.RUSAGE_SELF)[:2])


def measure(head: str, num_clients: int, rows: int, width: int, num_classes: int, rounds: int) -> dict[str, Any]:
    """Return seconds of the rounds, of the run with its posterior and of predictions, the process's peak memory,
    megabytes (10^6 bytes) that each client sends, and scores.
    """
    rng, number = np.random.default_rng(0), num_clients * rows
    labels = rng.integers(num_classes, size=number + NUM_TESTED, dtype=np.int32)
    centres = 0.1 * rng.standard_normal((num_classes, width), np.float32)
    features = rng.standard_normal((len(labels), width), np.float32) + centres[labels]
    test = features[number:], labels[number:]
    features, labels = features[:number], labels[:number]
    source = bfl.data.Source("synthetic", "train", features, labels, tuple(map(str, range(num_classes))))
    started, cpu = time.perf_counter(), cpu_seconds()
    clients = bfl.data.Clients(source, list(np.arange(number).reshape(num_clients, rows)))
    network = bfl.models.linear("deterministic", input_shape=(width,), num_classes=num_classes)
    process = bfl.algorithms.head(network, head=head, element_spec=clients.element_spec)
    result = bfl.simulate(process, clients, rounds, engine="local")
    ran, cpu = time.perf_counter() - started, cpu_seconds() - cpu
    scores = bfl.evaluation.evaluate(result.model, *test, num_samples=NUM_SAMPLES).metrics
    return {
        **{"head": head, "clients": num_clients, "rows": rows, "features": width, "classes": num_classes},
        "round_seconds": [row["train_seconds"] for row in result.rounds],
        "seconds": ran,
        "cpu_seconds": cpu,
        "predict_seconds": time.perf_counter() - started - ran,
        "mb_up": [float(row["upload_bits"]) / num_clients / 8e6 for row in result.rounds],
        "scores": {name: float(scores[name]) for name in ("accuracy", "test_nll", "ece")},
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10,
    }


@click.command(help=__doc__.split("\n\n")[0])
@click.option("--case", type=click.IntRange(0, len(CASES) - 1), help="Measure this case alone, and print it.")
def main(case: int | None) -> None:
    if case is not None:
        click.echo(json.dumps(measure(*CASES[case])))
        return
    results = []
    for k in range(len(CASES)):
        done = subprocess.run([sys.executable, __file__, "--case", str(k)], capture_output=True, text=True, check=True)
        results.append(json.loads(done.stdout.splitlines()[-1]))
        click.echo(results[-1])
    RESULTS.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
