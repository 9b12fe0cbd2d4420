"""Measure rounds of small models by the engines local and compiled.

    python benchmarks/small.py [--repeats 5] [--jax PYTHON] [--quick]

Prints, for each federation and side, the milliseconds of a round of both engines (the mean of a run, as one call
may compute several rounds; medians of repeats that take turns), their ratio, and the seconds of the first round,
which compiles. Clients have batches of 32 examples, one each where they have equally many. With a Python of
`peers/requirements-jax.txt` it then compares `compiled` with the round by hand of `peers/jax_round.py`, in turns.
"""

from __future__ import annotations

import json
import logging
import pathlib
import statistics
import subprocess
import time
from typing import NamedTuple

import click
import numpy as np
from sides import SIDES

import tfp_bfl as bfl

EXAMPLES = 32
ENGINES = ("local", "compiled")


class Federation(NamedTuple):
    """Clients, and the perceptron that they train.

    Fields:
      hidden: sizes of its hidden layers.
      unequal: whether clients have 1 to 63 examples, 32 on average, in place of 32 each.
    """

    clients: int
    features: int
    hidden: tuple[int, ...]
    rounds: int
    unequal: bool = False


FEDERATIONS = {
    "logistic regression, 10 clients": Federation(10, 30, (), 100),
    "perceptron of 1e4 weights, 10 clients": Federation(10, 150, (64,), 50),
    "perceptron of 1e4 weights, 100 clients": Federation(100, 150, (64,), 10),
    "perceptron of 1e4 weights, 100 clients of 1 to 63 examples": Federation(100, 150, (64,), 10, unequal=True),
    "perceptron of 1e4 weights, 1,000 clients": Federation(1000, 150, (64,), 3),
    "perceptron of 1e4 weights, 1,000 clients of 1 to 63 examples": Federation(1000, 150, (64,), 3, unequal=True),
}
SIDES_HERE = ("default", "deterministic-momentum")
# Those that are compared with JAX, and measured with --quick.
BY_HAND = ("logistic regression, 10 clients", "perceptron of 1e4 weights, 1,000 clients")
JAX_ROUND = pathlib.Path(__file__).parent / "peers" / "jax_round.py"


def make(federation: Federation, name: str):
    """Return the process of a side, and its clients."""
    rng = np.random.default_rng(0)
    shape = (federation.clients * EXAMPLES, federation.features)
    features = rng.normal(size=shape).astype(np.float32)
    labels = (features[:, 0] > 0).astype(np.int32)
    source = bfl.data.Source("made", "train", features, labels)
    clients = bfl.data.Clients(source, owned(federation))
    side = SIDES[name]
    model_fn = lambda: bfl.models.mlp(side.kind, (federation.features,), 2, hidden=federation.hidden, seed=0)
    options = {"batch_size": EXAMPLES, **side.training()}
    return bfl.algorithms.variational(model_fn, side.rule, "train_size", local_epochs=1, **options), clients


def owned(federation: Federation) -> list[np.ndarray]:
    """Return the rows of each client; of unequal clients the sizes are evenly spaced."""
    sizes = np.full(federation.clients, EXAMPLES)
    if federation.unequal:
        sizes = np.linspace(1, 2 * EXAMPLES - 1, federation.clients).round().astype(int)
    return np.split(np.arange(sizes.sum()), np.cumsum(sizes)[:-1])


def seconds(process, clients, engine: str, rounds: int) -> list[float]:
    """Return the seconds of each round."""
    times = [time.perf_counter()]
    bfl.simulate(process, clients, rounds, engine=engine, on_round=lambda row: times.append(time.perf_counter()))
    return np.diff(times).tolist()


def by_hand(python: str, federation: Federation) -> dict[str, float]:
    """Return the milliseconds of a round in JAX by `scan` and by `vmap`."""
    sizes = map(str, (federation.features, *federation.hidden, 2))
    command = [python, str(JAX_ROUND), "--clients", str(federation.clients), "--sizes", *sizes]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


def beside_jax(python: str, repeats: int) -> None:
    """Print the rounds of `compiled` beside those of JAX."""
    click.echo("\n| federation | side | compiled, ms a round | JAX, scan | JAX, vmap | compiled / scan |")
    click.echo("|---|---|---|---|---|---|")
    for name in BY_HAND:
        federation = FEDERATIONS[name]
        made = {side: make(federation, side) for side in SIDES_HERE}
        taken: dict[str, list[float]] = {side: [] for side in (*SIDES_HERE, "scan", "vmap")}
        for process, clients in made.values():
            seconds(process, clients, "compiled", 1)
        for _ in range(repeats):
            jax = by_hand(python, federation)
            for side in ("scan", "vmap"):
                taken[side].append(jax[side])
            for side, job in made.items():
                times = seconds(*job, "compiled", federation.rounds + 1)[1:]
                taken[side].append(1000 * statistics.mean(times))
        ms = {side: statistics.median(values) for side, values in taken.items()}
        for side in SIDES_HERE:
            cells = *(f"{ms[x]:.2f}" for x in (side, "scan", "vmap")), f"{ms[side] / ms['scan']:.2f}"
            click.echo(f"| {name} | {side} | {' | '.join(cells)} |")


@click.command(help=__doc__.split("\n\n")[0])
@click.option("--repeats", default=5, show_default=True)
@click.option("--jax", metavar="PYTHON", help="A Python with JAX: compare with rounds by hand.")
@click.option("--quick", is_flag=True, help="The smallest and the largest federation alone, twice.")
def main(repeats: int, jax: str | None, quick: bool) -> None:
    logging.getLogger("tfp_bfl").setLevel(logging.ERROR)  # Rounds this few are not trained.
    bfl.federated.share_cores(max(federation.clients for federation in FEDERATIONS.values()))
    repeats = min(repeats, 2) if quick else repeats
    click.echo("| federation | side | local, ms a round | compiled, ms a round | ratio | first rounds, s |")
    click.echo("|---|---|---|---|---|---|")
    for name in BY_HAND if quick else FEDERATIONS:
        federation = FEDERATIONS[name]
        for side in SIDES_HERE:
            process, clients = make(federation, side)
            first = [seconds(process, clients, engine, 1)[0] for engine in ENGINES]
            taken: dict[str, list[float]] = {engine: [] for engine in ENGINES}
            for _ in range(repeats):
                for engine in ENGINES:
                    # The first round of a call begins with its checks.
                    taken[engine].append(statistics.mean(seconds(process, clients, engine, federation.rounds + 1)[1:]))
            local, compiled = (1000 * statistics.median(taken[engine]) for engine in ENGINES)
            starts = " / ".join(f"{x:.1f}" for x in first)
            click.echo(f"| {name} | {side} | {local:.2f} | {compiled:.2f} | {compiled / local:.2f} | {starts} |")
    if jax:
        beside_jax(jax, repeats)


if __name__ == "__main__":
    main()
