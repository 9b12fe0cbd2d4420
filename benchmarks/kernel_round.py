"""Time whole rounds of FedKP beside federated averaging, and print the worker's peak memory.

python benchmarks/kernel_round.py --clients 100 --hidden 1258

Every client takes one step on 16 examples, so that what differs is what the server does with their weights.
"""

from __future__ import annotations

import json
import statistics

import click
import numpy as np

import tfp_bfl as bfl

at_least_one = click.IntRange(min=1)
# Of point weights in float32, on the engine "tff".
TRAINING = {"optimizer_fn": "momentum", "learning_rate": 1e-2, "local_epochs": 1, "batch_size": 16}
KERNEL = {"kernel": "epanechnikov", "bandwidth": "silverman"}
METHODS = {
    "FedAvg": (bfl.algorithms.fed_opt, {}),
    "FedKP": (bfl.algorithms.fed_kp, {"start": "mean", "kernel_options": KERNEL}),
    "FedKP, clustered": (bfl.algorithms.fed_kp, {"start": "clients", "kernel_options": KERNEL}),
}


@click.command(help=__doc__.split("\n\n")[0])
@click.option("--clients", "num_clients", type=at_least_one, default=100, show_default=True)
@click.option(
    "--hidden", type=at_least_one, default=1258, show_default=True, help="Number of units: 1258 give a million weights."
)
@click.option("--method", "methods", type=click.Choice(list(METHODS)), multiple=True, default=list(METHODS))
@click.option(
    "--repeats", type=at_least_one, default=3, show_default=True, help="Repetitions of the median, after one more."
)
def main(num_clients, hidden, methods, repeats):
    rng = np.random.default_rng(0)
    images = rng.integers(256, size=(16 * num_clients, 28, 28, 1)).astype(np.uint8)
    source = bfl.data.Source(
        "noise", "train", images, (np.arange(len(images)) % 10).astype(np.int32), tuple("0123456789")
    )
    clients = source.partition(bfl.data.iid(num_clients), seed=0)
    model_fn = lambda: bfl.models.mlp("deterministic", (28, 28, 1), 10, hidden=(hidden,), precision="float32")
    for method in methods:
        recipe, options = METHODS[method]
        process = recipe(model_fn, element_spec=clients.element_spec, **TRAINING, **options)
        # A worker for each, so that each has its own peak.
        with bfl.engines.tff.local_workers() as runtime:
            result = bfl.simulate(process, clients, rounds=1 + repeats, runtime=runtime)
            peak = sum(worker.peak_memory_bytes() for worker in runtime.workers)
        seconds = statistics.median(row["train_seconds"] for row in result.rounds[1:])
        row = {"method": method, **TRAINING, **options, "seconds": round(seconds, 1), "worker_peak_mb": peak >> 20}
        click.echo(json.dumps(row))


if __name__ == "__main__":
    main()
