"""Times federated rounds of this library and prints one line of JSON.

    python benchmarks/round.py --model lenet --kind flipout --clients 10 --examples 1280 --batch-size 32 --rounds 4

Fashion-MNIST for lenet, CIFAR-10 for resnet20; they must be prepared for TFDS. `ms_per_step` is the median round's wall
time over clients x steps of a client, the first round (which compiles) left out.
"""

from __future__ import annotations

import json
import statistics
from importlib import metadata

import click
from work import DATASETS, make_clients, make_process

import tfp_bfl as bfl

at_least_one = click.IntRange(min=1)


@click.command(help=__doc__.split("\n\n")[0])
@click.option("--model", type=click.Choice(list(DATASETS)), default="lenet", show_default=True)
@click.option("--kind", type=click.Choice(list(bfl.models.KINDS)), default="flipout", show_default=True)
@click.option("--clients", "num_clients", type=at_least_one, default=10, show_default=True)
@click.option("--examples", type=at_least_one, default=1280, show_default=True, help="Of each client.")
@click.option("--batch-size", type=at_least_one, default=32, show_default=True)
@click.option("--rounds", type=click.IntRange(min=2), default=4, show_default=True, help="The first is not counted.")
@click.option("--precision", type=click.Choice(list(bfl.models.PRECISIONS)), default="float32", show_default=True)
@click.option("--workers", type=at_least_one, default=1, show_default=True, help="Processes that share the clients.")
def main(model, kind, num_clients, examples, batch_size, rounds, precision, workers):
    try:
        clients = make_clients(model, num_clients, examples)
    except bfl.errors.InvalidArgument as error:
        raise click.UsageError(str(error)) from None
    process = make_process(model, kind, clients, batch_size, precision)
    with bfl.federated.local_workers(workers) as runtime:
        result = bfl.simulate(process, clients, rounds=rounds, runtime=runtime)
        worker_mb = sum(worker.peak_memory_bytes() for worker in runtime.workers) / 1e6
    seconds = [row["train_seconds"] for row in result.rounds]
    typical = statistics.median(seconds[1:])
    line = {
        "peer": "tfp_bfl",
        "version": metadata.version("tfp_bfl"),
        "model": model,
        "kind": kind,
        "precision": precision,
        "clients": num_clients,
        "examples": examples,
        "batch_size": batch_size,
        "rounds": rounds,
        "workers": workers,
        "ms_per_step": round(1000 * typical / (num_clients * -(-examples // batch_size)), 3),
        "seconds_per_round": round(typical, 4),
        "seconds": [round(s, 4) for s in seconds],
        "worker_mb": round(worker_mb),
        "final_nll": round(result.rounds[-1]["nll"], 4),
    }
    click.echo(json.dumps(line))


if __name__ == "__main__":
    main()
