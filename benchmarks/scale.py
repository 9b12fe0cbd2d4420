"""Measure rounds of many clients and of many weights in this process: what docs/planning.md plans with.

    python benchmarks/scale.py
    python benchmarks/scale.py --only passes

The side is `curvature-adam-local`: precisions by curvature, one draw of the weights a batch, Adam, engine "local". The
passes, in which every client takes part, state their own side and engine; their examples are rows of a mapped file.
Writes benchmarks/results/scale.json. Some 20 minutes and 21 GB of memory; nothing else should run meanwhile.
"""

from __future__ import annotations

import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import click
import numpy as np
from sides import SIDES

import tfp_bfl as bfl

RESULTS = pathlib.Path(__file__).parent / "results" / "scale.json"
# Number of clients, cohort size and variational weights; a client has one example, or a batch of 32.
CASES = {
    "clients": [(100, 100, 1e4), (1_000, 1_000, 1e4), (10_000, 10_000, 1e4), (1_000_000, 1_000, 1e4)],
    # Rows of a source, clients that the data name, and files; a user's own list of rows is the first.
    "populations": [(n, 1_000, 1e4, kind) for n in (100_000, 1_000_000) for kind in ("rows", "named", "files")],
    "weights": [(2, 2, 1e6), (2, 2, 1e7), (2, 2, 3e7), (2, 2, 1e8)],
}
ROUNDS = 3
# Passes over every client: number of clients, hidden units of a perceptron on 150 inputs, side, engine and cores.
MAPPED_ROWS, INPUTS, EXAMPLES = 200_000, 150, 32
_POINT, _DEFAULT = "deterministic-momentum", "default"
PASSES = [
    *((1_000_000, (64,), side, "compiled", 2) for side in (_POINT, _DEFAULT)),
    *((100_000, (64,), side, "compiled", 1) for side in (_POINT, _DEFAULT)),
    *((100_000, (), side, "compiled", 2) for side in (_POINT, _DEFAULT)),
    *((100_000, (64,), side, "local", 2) for side in (_POINT, _DEFAULT)),
]
SIDE = SIDES["curvature-adam-local"]


def measure(everyone: int, cohort: int, weights: float, kind: str = "rows") -> dict[str, Any]:
    """Return seconds of a round, the first left out, of what came before it, and the process's peak memory."""
    started, examples = time.perf_counter(), 32 if everyone == cohort else 1
    size, hidden = everyone * examples, round(weights / 794)
    # One image for all examples: what is in them costs nothing more.
    image = np.broadcast_to(np.float32(0.5), (size, 784))
    owners = np.repeat([f"client {k}" for k in range(everyone)], examples) if kind == "named" else None
    source = bfl.data.Source("same", "train", image, np.arange(size, dtype=np.int32) % 10, owners=owners)
    rows = list(np.arange(size).reshape(everyone, examples))
    clients: Any = source.clients if kind == "named" else bfl.data.Clients(source, rows)
    if kind == "files":
        clients = bfl.data.write_clients(clients, tempfile.mkdtemp())
    process = bfl.algorithms.variational(
        lambda: bfl.models.mlp(SIDE.kind, (784,), 10, hidden=(hidden,), seed=0),
        SIDE.rule,
        local_epochs=1,
        element_spec=clients.element_spec,
        **SIDE.training(),
    )
    made = time.perf_counter() - started
    result = bfl.simulate(process, clients, ROUNDS, cohort_size=cohort, engine=SIDE.engine)
    seconds = [row["train_seconds"] for row in result.rounds]
    return {
        **{"clients": everyone, "kind": kind, "cohort": cohort, "weights": hidden * 794, "made_seconds": made},
        **{"seconds": statistics.median(seconds[1:]), "first_seconds": seconds[0]},
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10,
    }


def mapped(folder: str, number: int) -> bfl.data.Clients:
    """Return clients of 32 rows each of a file that is mapped into memory; several clients share a row."""
    path = os.path.join(folder, "rows.npy")
    np.save(path, np.random.default_rng(0).normal(size=(MAPPED_ROWS, INPUTS)).astype(np.float32))
    labels = np.arange(MAPPED_ROWS, dtype=np.int32) % 2
    source = bfl.data.Source("mapped", "train", np.load(path, mmap_mode="r"), labels)
    return bfl.data.Clients(source, list((np.arange(number * EXAMPLES) % MAPPED_ROWS).reshape(number, EXAMPLES)))


def measure_pass(number: int, hidden: list[int], name: str, engine: str, cores: int) -> dict[str, Any]:
    """Return seconds of a pass over all clients, one step each, and the process's peak memory."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    bfl.federated.share_cores(number)
    side = SIDES[name]
    model_fn = lambda: bfl.models.mlp(side.kind, (INPUTS,), 2, hidden=tuple(hidden), seed=0)
    options = {"local_epochs": 1, "batch_size": EXAMPLES, **side.training()}
    process = bfl.algorithms.variational(model_fn, side.rule, "train_size", **options)
    with tempfile.TemporaryDirectory() as folder:
        result = bfl.simulate(process, mapped(folder, number), ROUNDS, engine=engine)
    seconds = statistics.median(row["train_seconds"] for row in result.rounds[1:])
    return {
        **{"clients": number, "weights": model_fn().count_params(), "side": name, "engine": engine, "cores": cores},
        **{"seconds": seconds, "clients_per_second": number / seconds},
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10,
    }


@click.command(help=__doc__.split("\n\n")[0])
@click.option("--only", type=click.Choice([*CASES, "passes"]), multiple=True, help="Measure this part again.")
@click.option("--case", help="Measure this case alone, a list in JSON, and print it.")
def main(only: tuple[str, ...], case: str | None) -> None:
    if case:
        kind, *given = json.loads(case)
        click.echo(json.dumps((measure_pass if kind == "passes" else measure)(*given)))
        return
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if only else {}
    for name, cases in {**CASES, "passes": PASSES}.items():
        if only and name not in only:
            continue
        results[name] = []
        for one in cases:
            command = [sys.executable, __file__, "--case", json.dumps([name, *one])]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            results[name].append(json.loads(done.stdout.splitlines()[-1]))
            click.echo(results[name][-1])
    RESULTS.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
