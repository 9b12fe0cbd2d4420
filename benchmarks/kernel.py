"""Time the kernel posterior's mode of every weight, and print its peak memory beside that of the inputs.

python benchmarks/kernel.py --clients 100 --weights 1000000
"""

from __future__ import annotations

import json
import multiprocessing
import resource
import time

import click
import tensorflow as tf

import tfp_bfl as bfl
from tfp_bfl.algorithms.kernel import rule

at_least_one = click.IntRange(min=1)


@click.command(help=__doc__.split("\n\n")[0])
@click.option("--clients", "num_clients", type=at_least_one, default=100, show_default=True)
@click.option("--weights", "num_weights", type=at_least_one, default=1_000_000, show_default=True)
@click.option("--start", "starts", type=click.Choice(rule.STARTS), multiple=True, default=rule.STARTS)
@click.option("--kernel", "kernels", type=click.Choice(rule.KERNELS), multiple=True, default=rule.KERNELS)
@click.option("--bandwidth", "bandwidths", type=click.Choice(rule.BANDWIDTHS), multiple=True, default=rule.BANDWIDTHS)
def main(num_clients, num_weights, starts, kernels, bandwidths):
    # A process for each, so that each has its own peak.
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for options in [(s, k, b) for s in starts for k in kernels for b in bandwidths]:
            click.echo(json.dumps(pool.apply(measure, (num_clients, num_weights, options))))


def measure(num_clients, num_weights, options):
    values = 0.5 + 0.01 * tf.random.stateless_normal([num_clients, num_weights], [0, 0])
    bfl.algorithms.kernel.kernel_mode(values[:, :10], *options)
    before = peak_mb()
    started = time.perf_counter()
    bfl.algorithms.kernel.kernel_mode(values, *options)
    return {
        **dict(zip(("start", "kernel", "bandwidth"), options)),
        "seconds": round(time.perf_counter() - started, 1),
        "inputs_mb": round(before),
        "peak_mb": round(peak_mb()),
    }


def peak_mb():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
