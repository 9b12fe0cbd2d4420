"""Prediction sets on clients who were never in training: `python -m experiments.limits.run`.

A cell trains on some clients, chooses thresholds of the sets on what those held out and on labelled examples of other
clients, and counts how often the sets contain the label of these clients' other examples.
"""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import click
import numpy as np

import tfp_bfl as bfl
from experiments.cells import Study, study_options, write_summary
from experiments.tables import mean_and_sd, write

HERE = pathlib.Path(__file__).parent
Options = dict[str, Any]
COMMON = {
    **{"dataset": "fashion_mnist", "clients": 60, "unseen": 20, "examples_per_client": 200, "hold_out": 0.2},
    **{"rounds": 20, "local_epochs": 2, "coverage": 0.9, "confidence": 0.9, "num_samples": 20},
    # Labelled examples of a client, and of one that has many; examples on which sets are counted, at least.
    **{"few": 50, "many": 1000, "counted": 150},
}
PARTITIONS = ("iid", "dirichlet:0.5", "dirichlet:0.1")
SEEDS = range(5)
# Column of the table -> key of a summary.
COLUMNS = {
    "accuracy, held out": "held_out_accuracy",
    "accuracy, unseen clients": "accuracy",
    "coverage, held out": "held_out_coverage",
    "coverage, unseen clients": "unseen_coverage",
    "of the worst unseen client": "least_coverage",
    "sizes of its sets": "size",
}
# Threshold -> the prefix of its keys in a summary.
THRESHOLDS = {
    "of the federation": "",
    "adapted, 50 labelled examples": "adapted_",
    "own, 50 labelled examples": "few_",
    "own, up to 1,000 labelled examples": "many_",
}
OF_THRESHOLDS = {"mean coverage": "unseen_coverage", "worst client": "least_coverage", "classes in a set": "size"}
KNOWN = "known_least_coverage"


def cells() -> Iterator[Options]:
    """Return the options of each cell."""
    for partition, seed in itertools.product(PARTITIONS, SEEDS):
        yield {**COMMON, "partition": partition, "seed": seed}


def cell_name(options: Options) -> str:
    return f"{options['partition']},seed={options['seed']}".replace(":", "_")


Pair = tuple[np.ndarray, np.ndarray]


Predicted = tuple[list[Pair | None], list[Pair | None], list[Pair]]


def score(options: Options) -> Options:
    """Train, calibrate, and count."""
    of_held_out, of_known, of_unseen = predictions(options)
    return {
        **_accuracies([pair for pair in of_held_out if pair], of_unseen),
        **counts(of_held_out, of_known, of_unseen, options),
    }


def predictions(options: Options) -> Predicted:
    """Train, and return predictions and labels of each client, as `counts` takes them."""
    seed = options["seed"]
    source = bfl.data.load(options["dataset"])
    every = source.partition(bfl.data.parse_partition(options["partition"], options["clients"]), seed=seed)
    known, unseen = every.split(options["clients"] - options["unseen"])
    clients = known.limit(options["examples_per_client"], seed=seed)
    held_out, trained = _hold_out(clients, options["hold_out"], seed)
    process = bfl.algorithms.variational(
        lambda: bfl.models.lenet("flipout", source.element_shape, source.num_classes, prior_stddev="fan_in", seed=seed),
        local_epochs=options["local_epochs"],
        element_spec=clients.element_spec,
    )
    result = bfl.simulate(process, trained, rounds=options["rounds"], seed=seed, engine="local")

    def predicted(indices: np.ndarray) -> Pair:
        samples = bfl.evaluation.predict(result.model, source.features[indices], options["num_samples"], seed)
        return samples.mean(0), source.labels[indices]

    of_held_out = [predicted(indices) if len(indices) else None for indices in held_out]
    rng = np.random.default_rng(seed)
    rest = [np.setdiff1d(known.indices[k], clients.indices[k]) for k in range(known.num_clients)]
    of_known = [predicted(rng.permutation(part)[:500]) if len(part) else None for part in rest]
    of_unseen = [predicted(rng.permutation(part)[: options["many"] + 1000]) for part in unseen.indices]
    return of_held_out, of_known, of_unseen


def _hold_out(clients: bfl.data.Clients, share: float, seed: int) -> tuple[list[np.ndarray], bfl.data.Clients]:
    """Return indices of each client's held-out examples, and the clients with the rest."""
    rng = np.random.default_rng(seed)
    orders = [rng.permutation(part) for part in clients.indices]
    numbers = [max(1, round(share * len(order))) if len(order) > 1 else 0 for order in orders]
    rest = [np.sort(order[number:]) for order, number in zip(orders, numbers)]
    return [order[:number] for order, number in zip(orders, numbers)], bfl.data.Clients(clients.source, rest)


def _accuracies(of_held_out: Sequence[Pair], of_unseen: Sequence[Pair]) -> Options:
    right = lambda pairs: float(np.mean(np.concatenate([p.argmax(-1) == y for p, y in pairs])))
    return {"held_out_accuracy": right(of_held_out), "accuracy": right(of_unseen)}


def covered(pair: Pair, limit: float) -> tuple[float, float]:
    """Return the coverage of a client's sets, and their mean number of classes."""
    sets = bfl.evaluation.prediction_sets(pair[0], limit)
    return float(np.mean(sets[np.arange(len(sets)), pair[1]])), float(np.mean(sets.sum(-1)))


def counts(
    of_held_out: Sequence[Pair | None],
    of_known: Sequence[Pair | None],
    of_unseen: Sequence[Pair],
    options: Options,
) -> Options:
    """Return coverage and size of the sets of each threshold.

    Clients with too few examples to count on are left out: unseen ones after the labelled examples, known ones at all.

    Args:
      of_held_out: probabilities and labels of each training client's held-out examples; None for one without any.
      of_known: of other examples of the same clients; None likewise.
      of_unseen: of clients that never trained, in random order.
      options: of the cell.
    """
    own_pairs = [pair for pair in of_held_out if pair]
    together = np.concatenate([p for p, _ in own_pairs]), np.concatenate([y for _, y in own_pairs])
    coverage, few, counted = options["coverage"], options["few"], options["counted"]
    halves = np.array_split(np.random.default_rng(options["seed"]).permutation(len(together[1])), 2)
    first, second = ((together[0][half], together[1][half]) for half in halves)
    limit = bfl.evaluation.conformal_limit(*first, coverage)
    histogram = bfl.evaluation.label_histogram
    calibration = bfl.evaluation.calibrate_clients(
        [histogram(*pair) for pair in own_pairs], coverage, options["confidence"]
    )
    found: dict[str, list[tuple[float, float]]] = {prefix: [] for prefix in THRESHOLDS.values()}
    for p, y in of_unseen:
        if len(y) < few + counted:
            continue
        many = min(options["many"], len(y) - counted)
        own, test = (p[:few], y[:few]), (p[many:], y[many:])
        limits = {
            "": limit,
            "adapted_": calibration.limit(histogram(*own)),
            "few_": bfl.evaluation.conformal_limit(*own, coverage),
            "many_": bfl.evaluation.conformal_limit(p[:many], y[:many], coverage),
        }
        for prefix, threshold in limits.items():
            found[prefix].append(covered(test, threshold))
    known = [
        covered(pair, calibration.limit(histogram(*own) if own else None))[0]
        for pair, own in zip(of_known, of_held_out)
        if pair and len(pair[1]) >= counted
    ]
    result = {"held_out_coverage": covered(second, limit)[0], "concentration": calibration.concentration}
    for prefix, pairs in found.items():
        inside, size = np.transpose(pairs)
        result |= {f"{prefix}unseen_coverage": float(inside.mean()), f"{prefix}least_coverage": float(inside.min())}
        result[f"{prefix}size"] = float(size.mean())
    return {**result, KNOWN: float(min(known)), "known": len(known), "counted_unseen": len(found[""])}


def run_cell(folder: pathlib.Path, options: Options) -> None:
    write_summary(folder, options, lambda: score(options))


def describe(summary: dict[str, Any]) -> str:
    """Return a cell's result in a line."""
    if "failed" in summary:
        return summary["failed"]
    return f"coverage of unseen clients {summary['unseen_coverage']:.3f} ({summary['seconds']:.0f} s)"


def table(summaries: list[dict[str, Any]]) -> list[list[str]]:
    """Return each partition's means and standard deviations over the seeds."""
    rows = [["partition", *COLUMNS, "seeds"]]
    for partition in PARTITIONS:
        same = [s for s in summaries if s["options"]["partition"] == partition and "failed" not in s]
        if same:
            scores = [mean_and_sd([s[key] for s in same], 3) for key in COLUMNS.values()]
            rows.append([partition, *scores, str(len(same))])
    return rows


def adapted_table(summaries: list[dict[str, Any]]) -> list[list[str]]:
    """Return mean coverage, worst client and size of the sets of each threshold, by partition."""
    rows = [["partition", "threshold", *OF_THRESHOLDS, "seeds"]]
    for partition in PARTITIONS:
        same = [s for s in summaries if s["options"]["partition"] == partition and "failed" not in s]
        for name, prefix in THRESHOLDS.items():
            scores = [mean_and_sd([s[prefix + key] for s in same], 3) for key in OF_THRESHOLDS.values()] if same else []
            rows += [[partition, name, *scores, str(len(same))]] if same else []
    return rows


@click.command()
@study_options("limits", HERE / "results")
def main(study: Study) -> None:
    """Run the cells that are not done, and write the table."""
    every = {cell_name(options): options for options in cells()}
    study.run(every, run_cell, describe)
    if not study.listed:
        records = list(study.records(every).values())
        if records:
            write(table(records), study.results / "sets")
            write(adapted_table(records), study.results / "adapted")


if __name__ == "__main__":
    main()
