"""Time `tfp-bfl run` from the call to the start and to the end of its first round, which traces: JSON lines.

python benchmarks/startup.py

The side is `default` on each engine.
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
from sides import DEFAULT
from work import DATASETS


def once(model: str, engine: str, folder: str) -> tuple[float, float]:
    """Return the seconds until the first round starts, and until its metrics are available."""
    output = pathlib.Path(folder) / "run"
    metrics = output / "metrics.jsonl"
    small = ["--rounds", "1", "--examples-per-client", "32", "--num-samples", "1", "--evaluation-examples", "10"]
    side = DEFAULT._replace(engine=engine)
    arguments = ["run", "--dataset", DATASETS[model], "--model", model, "--output", str(output), *small, *side.flags()]
    started = time.time()
    process = subprocess.Popen([sys.executable, "-m", "tfp_bfl", *arguments], stderr=subprocess.PIPE)
    try:
        while not (metrics.exists() and metrics.stat().st_size):
            if process.poll() is not None:
                raise SystemExit(process.stderr.read().decode())
            time.sleep(0.01)
        ended = metrics.stat().st_mtime - started
        return ended - json.loads(metrics.read_text())["seconds"], ended
    finally:
        process.terminate()
        process.wait()


@click.command(help=__doc__.split("\n\n")[0])
@click.option("--repeats", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--model", "models", type=click.Choice(list(DATASETS)), multiple=True, default=list(DATASETS))
def main(repeats, models):
    for model in models:
        taken = {"tff": [], "local": []}
        for _ in range(repeats + 1):  # the first also fills the disk's cache
            for engine, seconds in taken.items():
                with tempfile.TemporaryDirectory() as folder:
                    seconds.append(once(model, engine, folder))
        for engine, seconds in taken.items():
            before, ended = (round(statistics.median(x), 2) for x in zip(*seconds[1:]))
            line = {"model": model, **DEFAULT._asdict(), "engine": engine}
            click.echo(json.dumps({**line, "before_round_1": before, "after_round_1": ended}))


if __name__ == "__main__":
    main()
