"""Time federated rounds of this library and print one line of JSON.

    python benchmarks/round.py --side flipout --model lenet --clients 10 --examples 1280 --batch-size 32 --rounds 4

Fashion-MNIST for lenet, CIFAR-10 for resnet20; they must be prepared for TFDS. `ms_per_step` is the median round's wall
time over the steps of its clients, the first round (which compiles) left out; `cpu_ms_per_step` is the same of all
processes' CPU time, the last round left out too. `peak_mb` is of all processes, the driver's own among them.
"""

from __future__ import annotations

import json
import statistics
from importlib import metadata

import click
import numpy as np
from sides import SIDES
from work import DATASETS, make_clients, make_process, read_clients, simulate

import tfp_bfl as bfl

at_least_one = click.IntRange(min=1)


@click.command(help=__doc__.split("\n\n")[0])
@click.option("--model", type=click.Choice(list(DATASETS)), default="lenet", show_default=True)
@click.option("--side", "name", type=click.Choice(list(SIDES)), default="flipout", show_default=True)
@click.option("--clients", "num_clients", type=at_least_one, default=10, show_default=True)
@click.option(
    "--examples", type=at_least_one, default=1280, show_default=True, help="Number of examples of each client."
)
@click.option("--batch-size", type=at_least_one, default=32, show_default=True)
@click.option(
    "--rounds",
    type=click.IntRange(min=2),
    default=4,
    show_default=True,
    help="Number of rounds; the first is not counted.",
)
@click.option("--workers", type=at_least_one, default=1, show_default=True, help="Processes that share the clients.")
@click.option("--cohort", type=at_least_one, help="Number of clients in a round; default: all.")
@click.option("--unequal", is_flag=True, help="Give clients different sizes with the mean --examples.")
@click.option("--data", metavar="FILE.npz", help="Clients as the peers read them, in place of the prepared dataset.")
def main(model, name, num_clients, examples, batch_size, rounds, workers, cohort, unequal, data):
    side = SIDES[name]
    engine = side.engine
    if engine == "local" and workers > 1:
        raise click.UsageError("The local engine has no workers: leave --workers out.")
    if engine == "local":
        bfl.federated.share_cores(cohort or num_clients)
    try:
        clients = read_clients(data, model) if data else make_clients(model, num_clients, examples, unequal)
    except ValueError as error:  # of this library too
        raise click.UsageError(str(error)) from None
    if len(clients.sizes) != num_clients:
        raise click.UsageError(f"{data} holds {len(clients.sizes)} clients: give --clients {len(clients.sizes)}.")
    process = make_process(model, side, clients, batch_size)
    result, seen, worker_mb = simulate(process, clients, rounds, engine, workers, cohort_size=cohort)
    cpu = seen.cpu_of_a_round()
    steps = float(np.ceil(clients.sizes / batch_size).sum()) * (cohort or num_clients) / num_clients
    seconds = [row["train_seconds"] for row in result.rounds]
    typical = statistics.median(seconds[1:])
    line = {
        "peer": "tfp_bfl",
        "version": metadata.version("tfp_bfl"),
        "model": model,
        **side._asdict(),
        "clients": num_clients,
        "examples": round(float(clients.sizes.mean())),
        "batch_size": batch_size,
        "rounds": rounds,
        "workers": workers,
        "cohort": cohort,
        "unequal": len(set(clients.sizes)) > 1,
        "steps": steps,
        "ms_per_step": round(1000 * typical / steps, 3),
        "cpu_ms_per_step": cpu and round(1000 * cpu / steps, 3),
        "seconds_per_round": round(typical, 4),
        "seconds": [round(s, 4) for s in seconds],
        "peak_mb": round(seen.peak),
        "worker_mb": worker_mb and round(worker_mb),
        "final_nll": round(result.rounds[-1]["nll"], 4),
    }
    click.echo(json.dumps(line))


if __name__ == "__main__":
    main()
