"""Times `tfp-bfl run` from the call to the start of its first round, and prints a line of JSON for each model.

python benchmarks/startup.py
"""

from __future__ import annotations

import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import click
from work import DATASETS


def once(model: str, folder: str) -> float:
    """Seconds until the first round starts: until its metrics are there, less what it took by its own account."""
    output = pathlib.Path(folder) / "run"
    metrics = output / "metrics.jsonl"
    small = ["--rounds", "1", "--examples-per-client", "32", "--num-samples", "1", "--evaluation-examples", "10"]
    arguments = ["run", "--dataset", DATASETS[model], "--model", model, "--output", str(output), *small]
    started = time.time()
    process = subprocess.Popen([sys.executable, "-m", "tfp_bfl", *arguments], stderr=subprocess.PIPE)
    try:
        while not (metrics.exists() and metrics.stat().st_size):
            if process.poll() is not None:
                raise SystemExit(process.stderr.read().decode())
            time.sleep(0.01)
        return metrics.stat().st_mtime - started - json.loads(metrics.read_text())["seconds"]
    finally:
        process.terminate()
        process.wait()


@click.command(help=__doc__.split("\n\n")[0])
@click.option("--repeats", type=click.IntRange(min=1), default=5, show_default=True)
def main(repeats):
    for model in DATASETS:
        seconds = []
        for _ in range(repeats + 1):
            with tempfile.TemporaryDirectory() as folder:
                seconds.append(once(model, folder))
        kept = seconds[1:]  # the first one also fills the disk's cache
        line = {"model": model, "seconds": round(statistics.median(kept), 2), "all": [round(s, 2) for s in kept]}
        click.echo(json.dumps(line))


if __name__ == "__main__":
    main()
