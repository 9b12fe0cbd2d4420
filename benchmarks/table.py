"""Measure the table: this library against its peers, and pairs within it, on this machine.

    python benchmarks/table.py

The program makes a virtual environment for each peer under benchmarks/.peers on first use, runs the sides in turn in
separate processes, and writes benchmarks/results/table.md and table.jsonl. It takes about 45 minutes, and requires an
otherwise idle machine.
"""

from __future__ import annotations

import json
import os
import pathlib
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib import metadata
from typing import NamedTuple

import click
import numpy as np
from kept import commit
from ratios import SAMPLES
from sides import legend
from work import make_clients

import tfp_bfl as bfl

HERE = pathlib.Path(__file__).resolve().parent
PEERS, RESULTS = HERE / ".peers", HERE / "results"
PACKAGES = ("tfp_bfl", "tensorflow", "tensorflow_probability", "tensorflow_federated")


class Setting(NamedTuple):
    """Hold the settings of all sides; the first one is Flipout by this library in float32."""

    model: str
    clients: int
    examples: int
    rounds: int
    repetitions: int
    sides: tuple[str, ...]
    cohort: int | None = None
    unequal: bool = False

    @property
    def size(self) -> str:
        cohort = f"{self.cohort} of " if self.cohort else ""
        return f"{cohort}{self.clients} x {self.examples}{', unequal' if self.unequal else ''}"


# Ours are of `sides.SIDES`.
OURS, PLAIN = "ours flipout", "ours deterministic"
DEFAULT, DEFAULT_LOCAL = "ours default", "ours default-local"
NOISE, HALF = "ours flipout-bfloat16_noise", "ours flipout-bfloat16"
PFL, PFL_2, FLOWER, FLOWER_REUSED = "pfl", "pfl --workers 2", "flower", "flower --reuse-model"
PFL_PLAIN = "pfl --kind deterministic"
BY_DEFAULT = (DEFAULT, DEFAULT_LOCAL, PFL_PLAIN)
SETTINGS = (
    Setting("lenet", 10, 1280, 5, 3, (OURS, PFL, PFL_2, PLAIN, *BY_DEFAULT)),
    Setting("lenet", 10, 1280, 4, 1, (OURS, FLOWER_REUSED, FLOWER)),
    Setting("lenet", 100, 1280, 5, 3, (OURS, PFL, PFL_2), cohort=10),
    Setting("lenet", 10, 1280, 5, 3, (OURS, PFL, PFL_2), unequal=True),
    Setting("lenet", 10, 32, 12, 3, (OURS, PFL, PFL_2, *BY_DEFAULT)),
    Setting("lenet", 1000, 32, 4, 1, (OURS, PFL, PFL_2)),
    Setting("resnet20", 10, 640, 3, 1, (OURS, PFL, PFL_2, PLAIN, NOISE, HALF, *BY_DEFAULT)),
    Setting("resnet20", 10, 640, 2, 1, (OURS, FLOWER_REUSED, FLOWER)),
    Setting("resnet20", 10, 32, 5, 1, (OURS, PFL, PFL_2)),
)
# ratio of (ours, a reference): goal
GOALS = {
    ("lenet", 10, 1280, OURS, PFL): 0.30,
    ("resnet20", 10, 640, OURS, PFL): 0.55,
    ("lenet", 10, 32, OURS, PFL): 0.35,
    ("lenet", 10, 1280, DEFAULT, PFL_PLAIN): 0.45,
    ("resnet20", 10, 640, DEFAULT, PFL_PLAIN): 0.65,
    ("lenet", 10, 32, DEFAULT, PFL_PLAIN): 0.50,
    ("lenet", 10, 1280, OURS, PLAIN): 1.8,
    ("resnet20", 10, 640, OURS, PLAIN): 1.7,
    ("resnet20", 10, 640, HALF, PFL): 0.60,
    ("lenet", 1000, 32, OURS, PFL): 0.45,
    ("resnet20", 10, 32, OURS, PFL): 0.75,
    ("lenet", 10, 1280, OURS, FLOWER): 0.15,
    ("resnet20", 10, 640, OURS, FLOWER): 0.25,
}


def interpreter(peer: str) -> str:
    """Return the Python of the peer's virtual environment, which is made if it is not there."""
    folder = PEERS / peer
    done = folder / ".installed"
    if not done.exists():
        click.echo(f"making {folder}", err=True)
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        requirements = HERE / "peers" / f"requirements-{peer}.txt"
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "-r", str(requirements)], check=True)
        done.touch()
    return str(folder / "bin" / "python")


def command(side: str, setting: Setting, data: pathlib.Path) -> list[str]:
    name, *flags = shlex.split(side)
    flags += ["--model", setting.model, "--rounds", str(setting.rounds)]
    if setting.cohort:
        flags += ["--cohort", str(setting.cohort)]
    flags += ["--data", str(data)]
    if name != "ours":
        return [interpreter(name), str(HERE / "peers" / f"{name}_round.py"), *flags]
    flags = ["--side", *flags, "--clients", str(setting.clients), "--examples", str(setting.examples)]
    return [sys.executable, str(HERE / "round.py"), *flags, *(["--unequal"] if setting.unequal else [])]


def run(arguments: list[str]) -> list[dict]:
    """Return the lines of JSON that a script prints."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(arguments, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(f"{shlex.join(arguments)} failed:\n{done.stderr[-2000:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def save_clients(folder: str, setting: Setting) -> pathlib.Path:
    """Write the clients to a file that the peers read."""
    clients = make_clients(setting.model, setting.clients, setting.examples, setting.unequal)
    rows, path = np.concatenate(clients.indices), pathlib.Path(folder) / "clients.npz"
    source = clients.source
    np.savez(path, features=source.features[rows], labels=source.labels[rows], sizes=clients.sizes)
    return path


def measure(log, known: list[dict], settings: Sequence[Setting]) -> list[tuple]:
    """Return, for each setting and side, both names, the lines of its repetitions, and the lines of the first side.

    `known` are lines of an interrupted run, in its order, which are not measured again.
    """
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for setting in settings:
            data = save_clients(folder, setting)
            lines: dict[str, list[dict]] = {side: [] for side in setting.sides}
            for _ in range(setting.repetitions):
                for side in setting.sides:  # in turn
                    started = time.perf_counter()
                    if known:
                        line = known.pop(0)
                    else:
                        (line,) = run(command(side, setting, data))
                    lines[side].append(line)
                    log.write(json.dumps({**line, "side": side}) + "\n")
                    log.flush()
                    click.echo(f"{setting.model} {setting.size} {side}: {line['ms_per_step']} ms a client step "
                               f"({time.perf_counter() - started:.0f} s)", err=True)  # fmt: skip
            rows += [(setting, side, lines[side], lines[setting.sides[0]]) for side in setting.sides]
    return rows


def milliseconds(lines: list[dict]) -> np.ndarray:
    """Return the milliseconds of a client step in every round but the first of each repetition."""
    return np.concatenate([1000 * np.array(line["seconds"][1:]) / line["steps"] for line in lines])


def cpu_milliseconds(lines: list[dict]) -> float:
    """Return the CPU milliseconds of a client step of all processes: the median, or NaN with too few rounds."""
    return float(np.median([line["cpu_ms_per_step"] or np.nan for line in lines]))


def shown(number: float) -> str:
    return "" if np.isnan(number) else f"{number:.2f}"


def table_of_rounds(rows) -> list[str]:
    text = [
        "| model | clients x examples | side | ms a client step, median (lowest to highest) "
        "| s a round | our Flipout / it | CPU-ms a client step | our Flipout's CPU / its "
        "| memory of all processes, MB |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for setting, side, lines, ours in rows:
        times, mine = milliseconds(lines), milliseconds(ours)
        typical, cpu, mine_cpu = np.median(times), cpu_milliseconds(lines), cpu_milliseconds(ours)
        seconds = typical * lines[0]["steps"] / 1000
        spread = f"{typical:.2f} ({times.min():.2f} to {times.max():.2f})"
        text.append(
            f"| {setting.model} | {setting.size} | {side} | {spread} | {seconds:.2f} | {np.median(mine) / typical:.2f} "
            f"| {shown(cpu)} | {shown(mine_cpu / cpu)} | {max(line['peak_mb'] for line in lines)} |"
        )
    return text


def table_of_goals(rows) -> list[str]:
    text = ["| ratio | measured | goal |", "|---|---|---|"]
    for (model, num_clients, examples, mine, reference), goal in GOALS.items():
        medians = {}
        for setting, side, lines, _ in rows:
            same = setting.size == f"{num_clients} x {examples}" and setting.model == model
            if same and side in (mine, reference):
                # A side that is in two settings of one size: the one that ran beside the other.
                medians.setdefault(side, []).append(np.median(milliseconds(lines)))
        if len(medians) < 2:
            continue
        ratio = (medians[mine][-1] if "flower" in reference else medians[mine][0]) / medians[reference][0]
        text.append(f"| {mine} / {reference}, {model}, {num_clients} x {examples} | {ratio:.2f} | {goal:.2f} |")
    return text


def spread(line: dict) -> str:
    return f"{line['lowest']:.2f} to {line['highest']:.2f}"


@click.command(help=__doc__.split("\n\n")[0])
@click.option("--resume", is_flag=True, help="Resume after the last line of an interrupted run.")
@click.option(
    "--only", help="Beginning of the settings to run, such as 'lenet 10 x 1280', without pairs within a process."
)
@click.option("--peers", default="pfl,flower", show_default=True, help="Peers to compare with, separated by commas.")
@click.option("--output", type=click.Path(file_okay=False, path_type=pathlib.Path), default=RESULTS)
def main(resume, only, peers, output):
    settings = [
        setting._replace(sides=tuple(s for s in setting.sides if s.split()[0] in ("ours", *peers.split(","))))
        for setting in SETTINGS
        if f"{setting.model} {setting.size}".startswith(only or "")
    ]
    settings = [setting for setting in settings if len(setting.sides) > 1]
    if output == RESULTS and (only or peers != "pfl,flower"):
        raise click.UsageError("A part of the table would replace the whole one: give --output another folder.")
    output.mkdir(exist_ok=True)
    left = output / "table.jsonl"
    known = [json.loads(line) for line in left.read_text().splitlines()] if resume and left.exists() else []
    started, at = time.perf_counter(), commit()
    for peer in filter(None, peers.split(",")):
        interpreter(peer)
    with open(left, "w", encoding="utf-8") as log:
        rows = measure(log, known, settings)
        pairs = [] if only else run([sys.executable, str(HERE / "ratios.py")])
        log.writelines(json.dumps(line) + "\n" for line in pairs)
    peers = {line["peer"].split(",")[0]: line["version"] for _, _, lines, _ in rows for line in lines[:1]}
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in PACKAGES)
    others = ", ".join(f"{name} {version}" for name, version in peers.items() if name != "tfp_bfl")
    text = [
        "# Rounds beside the peers",
        "",
        f"{len(os.sched_getaffinity(0))} cores ({platform.machine()}), Python {platform.python_version()}; {versions}; "
        f"peers: {others}; commit {at}.",
        "The sides ran in turn, each in a separate process; the first round of each is left out. "
        + ("In several sittings." if resume else f"{(time.perf_counter() - started) / 60:.0f} minutes in all."),
        "",
        *legend({side: lines[0] for _, side, lines, _ in rows}),
        "",
        *table_of_rounds(rows),
        "",
        "## Against the goals",
        "",
        *table_of_goals(rows),
        "",
        f"## Within one process: {SAMPLES} samples, and pooling",
        "",
        "| pair | ms | reference, ms | ratio, median (lowest to highest) |",
        "|---|---|---|---|",
        *(f"| {p['what']} | {p['ms']} | {p['reference_ms']} | {p['ratio']:.2f} ({spread(p)}) |" for p in pairs),
        "",
    ]
    (output / "table.md").write_text("\n".join(text), encoding="utf-8")
    click.echo("\n".join(text))


if __name__ == "__main__":
    try:
        main()
    except bfl.errors.Error as error:
        raise SystemExit(str(error)) from None
