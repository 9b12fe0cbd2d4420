"""Time the server's product of low-rank Gaussians, and print its peak memory beside that of the inputs.

python benchmarks/product.py --clients 10 --weights 1000000 --columns 20
"""

from __future__ import annotations

import json
import resource
import statistics
import time

import click
import tensorflow as tf

import tfp_bfl as bfl

at_least_one = click.IntRange(min=1)


@click.command(help=__doc__.split("\n\n")[0])
@click.option("--clients", "num_clients", type=at_least_one, default=10, show_default=True)
@click.option("--weights", "num_weights", type=at_least_one, default=1_000_000, show_default=True)
@click.option(
    "--columns", type=click.IntRange(min=2), default=20, show_default=True, help="Number of deviations of each client."
)
@click.option("--repeats", type=at_least_one, default=3, show_default=True, help="Repetitions of the median.")
def main(num_clients, num_weights, columns, repeats):
    posteriors = [posterior(k, num_weights, columns) for k in range(num_clients)]
    before = peak_mb()
    for diagonal_only in (True, False):
        seconds = []
        for _ in range(repeats):
            started = time.perf_counter()
            pooled = bfl.algorithms.swag.product.gaussian_product(posteriors, diagonal_only=diagonal_only)
            seconds.append(time.perf_counter() - started)
            rank = pooled.deviations.shape[0]
            del pooled
        row = {"diagonal_only": diagonal_only, "rank": rank, "seconds": round(statistics.median(seconds), 2)}
        click.echo(json.dumps({**row, "inputs_mb": round(before), "peak_mb": round(peak_mb())}))


def posterior(client, num_weights, columns):
    """Return a posterior of the scale of a client's SWAG posterior, in float32."""
    mean, diagonal, deviations = (
        tf.random.stateless_normal(shape, [client, i])
        for i, shape in enumerate(([num_weights], [num_weights], [columns, num_weights]))
    )
    return bfl.posterior.LowRank(0.1 * mean, 1e-6 + tf.square(1e-2 * diagonal), 1e-2 * deviations)


def peak_mb():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
