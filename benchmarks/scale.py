"""Measure rounds of many clients and of many weights in this process: what docs/planning.md plans with.

    python benchmarks/scale.py

The side is `curvature-adam-local`: precisions by curvature, one draw of the weights a batch, Adam, engine "local".
Writes benchmarks/results/scale.json. Some 5 minutes and 21 GB of memory; nothing else should run meanwhile.
"""

from __future__ import annotations

import json
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


@click.command(help=__doc__.split("\n\n")[0])
@click.option("--case", nargs=4, type=(int, int, float, str), help="Measure this case alone, and print it.")
def main(case: tuple[int, int, float, str] | None) -> None:
    if case:
        click.echo(json.dumps(measure(*case)))
        return
    results = {}
    for name, cases in CASES.items():
        results[name] = []
        for one in cases:
            command = [sys.executable, __file__, "--case", *map(str, one), *["rows"][: 4 - len(one)]]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            results[name].append(json.loads(done.stdout.splitlines()[-1]))
            click.echo(results[name][-1])
    RESULTS.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
