"""Measure whether a long run grows: the memory of the driver and of its worker after each round, and what is traced.

    python benchmarks/long_run.py

300 rounds of LeNet on digits, of 1 to 20 clients each: every client answers with probability 1/2. They compute the side
`flipout` under the log-linear pool. Writes docs/images/long_run.png and benchmarks/results/long_run.json. About a
minute; needs no dataset.
"""

from __future__ import annotations

import json
import pathlib

import click
import psutil
from sides import FLIPOUT

import tfp_bfl as bfl
from tfp_bfl.plots import style

ROOT = pathlib.Path(__file__).resolve().parents[1]


def measure(model: str, rounds: int, checkpoint_dir: str | None = None) -> dict:
    """Return resident megabytes after each round, the size of its cohort, and how many models were built after the
    first.
    """
    source = bfl.data.load("digits")
    clients = source.partition(bfl.data.dirichlet(num_clients=20, alpha=5.0), seed=0).limit(32, seed=0)
    built = []

    def model_fn():
        built.append(1)
        options = {"kind": FLIPOUT.kind, "precision": FLIPOUT.precision}
        return bfl.models.MODELS[model](input_shape=source.element_shape, num_classes=10, **options)

    options = {"local_epochs": 1, "element_spec": clients.element_spec, **FLIPOUT.training()}
    process = bfl.algorithms.variational(model_fn, "log_linear_pool", **options)
    result: dict = {"rounds": rounds, "driver_mb": [], "worker_mb": [], "clients": []}
    with bfl.engines.tff.local_workers() as runtime:

        def on_round(row):
            result["driver_mb"].append(psutil.Process().memory_info().rss / 1e6)
            result["worker_mb"].append(runtime.workers[0].memory_bytes() / 1e6)
            result["clients"].append(row["num_clients"])
            if row["round"] == 1:
                built.clear()

        options = {"dropout": 0.5, "on_round": on_round, "checkpoint_dir": checkpoint_dir}
        bfl.simulate(process, clients, rounds, runtime=runtime, **options)
    result["models_built_later"] = len(built) - 1  # One is the result.
    for side in ("driver", "worker"):
        memory = result[f"{side}_mb"]
        result[f"{side}_growth"] = memory[-1] / memory[min(49, rounds - 1)] - 1
    return result


def draw(result: dict, path: pathlib.Path) -> None:
    figure = style.new_figure(height=3.2, width=8)
    axes = figure.subplots()
    numbers = range(1, result["rounds"] + 1)
    for i, side in enumerate(("driver", "worker")):
        label = f"{side}: {result[f'{side}_growth']:+.1%} from round 50"
        axes.plot(numbers, result[f"{side}_mb"], color=f"C{i}", label=label)
    style.tidy(axes, "Memory of a long run", x="round", y="resident megabytes")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, loc="center right")
    figure.savefig(path, dpi=110)


@click.command(help=__doc__.split("\n\n")[0])
@click.option("--model", default="lenet", show_default=True)
@click.option("--rounds", default=300, show_default=True)
@click.option("--checkpoints", type=click.Path(), help="Folder for a checkpoint of each round.")
@click.option(
    "--output",
    type=click.Path(path_type=pathlib.Path),
    help="Write the figures' numbers to this file, and nothing else.",
)
def main(model, rounds, checkpoints, output):
    result = measure(model, rounds, checkpoints)
    path = output or ROOT / "benchmarks" / "results" / "long_run.json"
    path.write_text(json.dumps(result) + "\n", encoding="utf-8")
    if output is None:
        draw(result, ROOT / "docs" / "images" / "long_run.png")
    sizes = f"{min(result['clients'])} to {max(result['clients'])}"
    click.echo(
        f"{rounds} rounds of {sizes} clients: driver {result['driver_growth']:+.1%}, "
        f"worker {result['worker_growth']:+.1%} from round 50 on; models built after the first round: "
        f"{result['models_built_later']}"
    )


if __name__ == "__main__":
    main()
