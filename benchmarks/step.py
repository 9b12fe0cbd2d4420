"""Measure one client's training step beside PyTorch, or the library's inferences or Keras 3 beside each other: ratios.

    python benchmarks/step.py
    python benchmarks/step.py --beside inferences
    python benchmarks/step.py --beside keras

Makes the peers' virtual environment under benchmarks/.peers on first use (`pip install torch==2.13.0` takes a CPU build
where the index has one). Each side is a process; they compute a block of steps in turn: 10 LeNet blocks of 40 steps, 7
ResNet-20 blocks of 4. A ratio is the median over the blocks of one side's time over that of ours in the same turn.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile

import click
import numpy as np
import sides
from kept import commit
from peers.arguments import COMPUTED
from sides import legend
from table import HERE, RESULTS, interpreter
from work import make_clients

# The first side is what the others are compared with.
SIDES = {
    "torch": ("ours flipout", "torch", "torch --channels-last", "torch --library"),
    "inferences": tuple(
        f"ours {name}"
        for name in (
            *("deterministic-momentum", "deterministic", "default", "curvature-adam", "natural", "ivon"),
            *("curvature-flipout", "flipout"),
        )
    ),
    "keras": ("ours flipout", "ours flipout --keras 3"),
}
NOTES = {
    "torch": "`torch` is PyTorch 2.13 with Flipout by hand, `--library` bayesian-torch 0.5.",
    "inferences": "`default` is the default of `variational`.",
    "keras": "`--keras 3` is the same model of Keras 3; it requires Python 3.12 or 3.13.",
}
BLOCKS = {"lenet": (40, 10), "resnet20": (4, 7)}  # steps of a block, blocks


class Side:
    """A running side, which computes a block when it is asked."""

    def __init__(self, stack: contextlib.ExitStack, side: str, *options: str):
        name, *flags = shlex.split(side)
        if name == "ours":
            program, flags = [sys.executable, str(HERE / "step_ours.py")], ["--side", *flags]
        else:
            program = [interpreter("torch"), str(HERE / "peers" / "torch_step.py")]
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
        self._process = stack.enter_context(
            subprocess.Popen(
                [*program, *flags, *options], env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        )
        stack.callback(self._process.stdin.close)
        self._read()  # ready

    def block(self) -> dict:
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self):
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("A side has ended; its error is above.")
        return json.loads(line)


def measure(model: str, threads: int, names: tuple[str, ...]) -> dict[str, list[dict]]:
    """Return the lines of the blocks of each side."""
    steps, blocks = BLOCKS[model]
    client = make_clients(model, 1, 32 * steps).examples(0)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        data = str(pathlib.Path(folder) / "client.npz")
        np.savez(data, features=client.features, labels=client.labels)
        options = ("--model", model, "--threads", str(threads), "--data", data)
        running = {side: Side(stack, side, *options) for side in names}
        turns = [{side: running[side].block() for side in names} for _ in range(blocks)]
    return {side: [turn[side] for turn in turns] for side in names}


def computed(side: str) -> dict:
    """Return what a side computes: no side runs a round, so that none has a rule or an engine."""
    name, *flags = shlex.split(side)
    what = sides.SIDES[flags[0]]._asdict() if name == "ours" else {"kind": "flipout", **COMPUTED}
    return {**what, "rule": None, "engine": "none"}


def rows(model: str, lines: dict[str, list[dict]]) -> list[str]:
    text, first = [], next(iter(lines.values()))
    for side, mine in lines.items():
        cells = []
        for key in ("ms", "cpu_ms"):
            times, ours = (np.array([line[key] for line in x]) for x in (mine, first))
            cells += [f"{np.median(times):.2f} ({times.min():.2f})", f"{np.median(times / ours):.2f}"]
        text.append(f"| {model} | {side} | {' | '.join(cells)} |")
    return text


@click.command(help=__doc__.split("\n\n")[0])
@click.option("--model", "models", type=click.Choice(list(BLOCKS)), multiple=True, default=list(BLOCKS))
@click.option("--beside", type=click.Choice(list(SIDES)), default="torch", show_default=True)
@click.option(
    "--threads", type=click.IntRange(min=1), default=1, show_default=True, help="Number of threads of each side."
)
def main(models, beside, threads):
    text = [
        f"# A client's step: {beside}",
        "",
        f"Batches of 32, closed-form KL; threads of a side: {threads}; the sides in turn; medians, the lowest in "
        f"brackets. {NOTES[beside]} Commit {commit()}.",
        "",
        *legend({side: computed(side) for side in SIDES[beside]}),
        "",
        "| model | side | ms a step | its over the first's | CPU-ms a step | its over the first's |",
        "|---|---|---|---|---|---|",
    ]
    for model in models:
        text += rows(model, measure(model, threads, SIDES[beside]))
        click.echo("\n".join(text))
    (RESULTS / f"step_{beside}.md").write_text("\n".join([*text, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
