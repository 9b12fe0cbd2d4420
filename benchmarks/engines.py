"""Seconds and bytes of a round on each engine, and in a federation of processes with TLS, of the same work.

    python benchmarks/engines.py --python ray=.venvs/clusters/bin/python --python flare=.venvs/deployment/bin/python

Three clients with a third of the breast cancer data each, a perceptron, one epoch. Seconds are the median of a round's
after the first two, in turns; bytes are what the machine's loopback carries in so many rounds more, over their number:
all that is said between processes over sockets, the engines' own talk included. Nothing else should run meanwhile. An
engine's row holds the machine and the time too; those of engines that are not measured now stay. `python
docs/measure.py write` puts the rows on the page.
"""

from __future__ import annotations

import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

import click
import psutil
from kept import machine, merge
from sides import SIDES

RESULTS = pathlib.Path(__file__).parent / "results" / "engines.json"
ENGINES = ("local", "tff", "ray", "flare")
RUN = ("run", "--dataset", "breast_cancer", "--model", "mlp", "--clients", "3", "--partition", "iid")
# What the federation of processes computes too: it has the defaults of `tfp-bfl run`, which each row states.
SIDE = SIDES["default"]
STATED = ("rule", "inference", "noise", "optimizer", "learning_rate", "schedule", "kl", "temperature")
FEW, MANY = 5, 35


def rounds_of(engine: str, python: str, rounds: int) -> tuple[list[float], int]:
    """Return the seconds of the rounds after the second, and the loopback's bytes in all."""
    with tempfile.TemporaryDirectory() as folder:
        output = pathlib.Path(folder) / "run"
        last = ("--rounds", str(rounds), "--output", str(output))
        options = (*RUN, *SIDE._replace(engine=engine).flags(), "--evaluate-every", "1000")
        how = ("deploy", "demo") if engine == "flare" else options
        before = psutil.net_io_counters(pernic=True)["lo"].bytes_sent
        subprocess.run([python, "-m", "tfp_bfl", *how, *last], check=True, capture_output=True)
        sent = psutil.net_io_counters(pernic=True)["lo"].bytes_sent - before
        folder_of_run = output / "run" if engine == "flare" else output
        rows = [json.loads(line) for line in (folder_of_run / "metrics.jsonl").read_text().splitlines()]
        check(engine, json.loads((folder_of_run / "summary.json").read_text())["method"])
    return [row["train_seconds"] for row in rows[2:]], sent


def check(engine: str, method: Mapping[str, Any]) -> None:
    """Refuse a run that computed another side than the one that rows state."""
    for name in STATED:
        if method[name] != getattr(SIDE, name):
            raise click.ClickException(
                f"The run of {engine} has {name} {method[name]!r}, but the side that is measured has "
                f"{getattr(SIDE, name)!r}: state the new default in benchmarks/sides.py."
            )


@click.command()
@click.option("--python", "others", multiple=True, metavar="ENGINE=PATH", help="Python interpreter of an engine.")
@click.option("--only", type=click.Choice(ENGINES), multiple=True, help="Engine to measure; default: all.")
@click.option("--turns", default=2, show_default=True)
def main(others: tuple[str, ...], only: tuple[str, ...], turns: int) -> None:
    """Measure the engines in turns and merge them into benchmarks/results/engines.json."""
    pythons, where = dict(one.split("=", 1) for one in others), machine()
    seconds: dict[str, list[float]] = {engine: [] for engine in only or ENGINES}
    carried: dict[str, list[float]] = {engine: [] for engine in seconds}
    for _ in range(turns):
        for engine in seconds:
            sent = {}
            for rounds in (FEW, MANY):
                found, sent[rounds] = rounds_of(engine, pythons.get(engine, sys.executable), rounds)
                seconds[engine] += found
            carried[engine].append((sent[MANY] - sent[FEW]) / (MANY - FEW))
            click.echo(
                f"{engine}: {statistics.median(seconds[engine]):.3f} s, {carried[engine][-1] / 1000:.1f} kB a round"
            )
    found = {
        engine: {
            "seconds": statistics.median(seconds[engine]),
            "bytes": statistics.median(carried[engine]),
            **SIDE._replace(engine=engine)._asdict(),
        }
        for engine in seconds
    }
    merge(RESULTS, found, where)


if __name__ == "__main__":
    main()
