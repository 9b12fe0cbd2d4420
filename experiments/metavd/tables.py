"""The tables of the study: mean and sd over seeds, differences paired by seed, ours beside the published."""

from __future__ import annotations

import csv
import itertools
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from experiments.metavd.cell import RATES
from experiments.metavd.config import METHODS, PRUNED, PUBLISHED, SHORT
from experiments.metavd.figures import reliability_figure
from experiments.tables import less, mean_and_sd, write

Summary = dict[str, Any]
Row = dict[str, Any]

IDENTITY = ("size", "method", "concentration", "cohort", "seed")
OF_TRAINING = (
    *("train_seconds", "upload_bytes", "download_bytes", "sparsity", "variational_share", "faulty"),
    *RATES,
)
# Column -> clients, time and score, with test shards like the training shards.
ACCURACIES = {
    "known, before": ("known, matched", "before", "accuracy_uniform"),
    "known, after": ("known, matched", "after", "accuracy_uniform"),
    "unseen, before": ("unseen, matched", "before", "accuracy_uniform"),
    "unseen, after": ("unseen, matched", "after", "accuracy_uniform"),
    "known, weighted": ("known, matched", "after", "accuracy_weighted"),
    "known, least": ("known, matched", "after", "accuracy_least"),
    "NLL, known": ("known, matched", "after", "nll"),
    "NLL, unseen": ("unseen, matched", "after", "nll"),
}
CALIBRATION = {
    f"{name}, {who}": (f"{who}, matched", "after", key)
    for who in ("known", "unseen")
    for name, key in (
        ("ECE of classes", "all_ece_classes"),
        ("MCE of classes", "all_mce_classes"),
        ("ECE", "all_ece"),
        ("ECE of a client", "ece"),
    )
}
PARTS = {name: ACCURACIES[name] for name in ("known, before", "known, after", "unseen, after", "NLL, known")}
PARTS |= {"ECE, known": CALIBRATION["ECE, known"], "ECE, unseen": CALIBRATION["ECE, unseen"]}
# Of the tables of effects and controls.
EFFECTS = {
    **{"accuracy": "accuracy_uniform", "NLL": "nll", "ECE": "all_ece", "MCE": "all_mce"},
    **{"ECE of classes": "all_ece_classes", "ECE of a client": "ece"},
}
# Published without adaptation.
NOT_ADAPTED = ("fed_avg", "fed_prox", "fed_be", "fed_avg+metavd")


def kept(summary: Summary) -> Summary:
    """Return the record of a cell: every number, or the reason of its failure."""
    if "failed" in summary:
        return {"failed": summary["failed"]}
    row = {key: summary["training"][key] for key in OF_TRAINING if key in summary["training"]}
    for who, scores in summary["scores"].items():
        for when in ("before", "after"):
            numbers = {name: x for name, x in scores[when].items() if not isinstance(x, list)}
            row |= {f"{who}, {when}, {name}": x for name, x in numbers.items()}
    return row


def rows_of(records: Iterable[Summary]) -> list[Row]:
    """Return a row for each cell that did not fail: its options, and every number."""
    done = [record for record in records if "failed" not in record]
    rows = [{**{key: r["options"][key] for key in IDENTITY}, **r} for r in done]
    return sorted(rows, key=lambda row: (row["size"], row["method"], *(row[key] for key in IDENTITY[2:])))


def write_all(records: Sequence[Summary], summaries: list[Summary], folder: pathlib.Path) -> None:
    """Write every table of which there is something, and the figure.

    Args:
      records: records of the cells (`kept`), with their options.
      summaries: summaries of the cells with folders, for the table of clients and the figure.
      folder: of the results.
    """
    rows = rows_of(records)
    write_failures(records, folder / "failures")
    for size in dict.fromkeys(row["size"] for row in rows):
        here = [row for row in rows if row["size"] == size]
        usual = [row for row in here if (row["concentration"], row["cohort"]) == (0.5, 10)]
        compared = [row for row in usual if row["method"] not in PRUNED]
        write(table(compared, ACCURACIES), folder / f"accuracy-{size}")
        write(table(compared, CALIBRATION), folder / f"calibration-{size}")
        write(parts(usual), folder / f"parts-{size}")
        if any("dropout_rate_median" in row for row in usual):
            write(rate_table(usual), folder / f"rates-{size}")
            write(effects(usual), folder / f"effects-{size}")
        write(adaptation(compared), folder / f"adaptation-{size}")
        if any(row["method"] in PRUNED for row in usual):
            write(compression(usual), folder / f"compression-{size}")
        if any("known, independent, after, accuracy_logits" in row for row in usual) and size.startswith("cifar10"):
            write(beside_published(usual), folder / f"published-{size}")
        for key in ("concentration", "cohort"):
            if len({row[key] for row in here}) < 2:
                continue
            write(by_setting(here, key), folder / f"{key}-{size}")
    write_clients(summaries, folder / "clients.csv")
    figure = reliability_figure(summaries)
    if figure is not None:
        (folder).mkdir(parents=True, exist_ok=True)
        figure.savefig(folder / "reliability.png", dpi=130)


def table(rows: list[Row], columns: dict[str, tuple[str, str, str]], digits: int = 4) -> list[list[str]]:
    """Return mean and sd over seeds by method, and seconds of training."""
    lines = [["", *columns, "seconds", "seeds"]]
    for name, same in by_method(rows).items():
        cells = [cell(same, ", ".join(which), digits) for which in columns.values()]
        lines.append([name, *cells, f"{np.mean([row['train_seconds'] for row in same]):.0f}", str(len(same))])
    return lines


def parts(rows: list[Row]) -> list[list[str]]:
    """Return each method of a family minus the family's baseline of the same seed, with 95 % intervals."""
    lines = [["", *PARTS, "seeds"]]
    for family in ("fed_avg", "reptile", "maml", "per_fed_avg"):
        base = [row for row in rows if row["method"] == family]
        for name, same in by_method(rows).items():
            common = {row["seed"] for row in same} & {row["seed"] for row in base}
            if name.startswith(f"{family}+") and common:
                cells = [less(by_seed(same, which), by_seed(base, which)) for which in PARTS.values()]
                lines.append([f"{name} minus {family}", *cells, str(len(common))])
    return lines


def adaptation(rows: list[Row]) -> list[list[str]]:
    """Return the accuracy after one step of adaptation minus that before it, with 95 % intervals."""
    lines = [["", "known", "unseen", "seeds"]]
    for name, same in by_method(rows).items():
        after, before = ([ACCURACIES[f"{who}, {when}"] for who in ("known", "unseen")] for when in ("after", "before"))
        gains = [less(by_seed(same, first), by_seed(same, second)) for first, second in zip(after, before)]
        lines.append([name, *gains, str(len(same))])
    return lines


def by_seed(rows: list[Row], which: tuple[str, str, str]) -> dict[int, float]:
    """Return the values of a column by seed, of the rows that have it."""
    return {row["seed"]: row[", ".join(which)] for row in rows if ", ".join(which) in row}


def cell(rows: list[Row], key: str, digits: int = 4) -> str:
    """Return mean and sd of a column over the rows that have it; empty for none."""
    values = [row[key] for row in rows if key in row]
    return mean_and_sd(values, digits) if values else ""


def rate_table(rows: list[Row]) -> list[list[str]]:
    """Return the dropout rates of clients after training, by method."""
    lines = [["", *RATES, "seeds"]]
    for name, same in by_method(rows).items():
        if any("dropout_rate_median" in row for row in same):
            lines.append([name, *(cell(same, key) for key in RATES), str(len(same))])
    return lines


def effects(rows: list[Row]) -> list[list[str]]:
    """Return what noise is worth, with 95 % intervals: minus the baseline, minus constant noise of the same start,
    minus the same models without noise, and minus those with another client's noise; known and unseen, before and
    after.
    """
    lines = [["", "clients", "adaptation", *EFFECTS, "seeds"]]
    methods = by_method(rows)
    for name, same in methods.items():
        family, _, part = name.partition("+")
        compared = [(family, methods.get(family, []), "")] if part else []
        if part == "metavd_rate":
            compared += [
                (other, methods[other], "") for other in methods if other.startswith(f"{family}+constant_rate")
            ]
        compared += [(f"{noise} noise", same, f", {noise}") for noise in ("none", "another")]
        for (other, theirs, suffix), who, when in itertools.product(compared, ("known", "unseen"), ("before", "after")):
            pairs = [
                [by_seed(r, (f"{who}, matched{end}", when, key)) for r, end in ((same, ""), (theirs, suffix))]
                for key in EFFECTS.values()
            ]
            common = pairs[0][0].keys() & pairs[0][1].keys()
            if common:
                label = f"{name} minus {other}".replace("none noise", "no noise").replace("another noise", "another's")
                lines.append([label, who, when, *(less(*pair) for pair in pairs), str(len(common))])
    return lines


def compression(rows: list[Row]) -> list[list[str]]:
    """Return bytes of real messages and sparsity beside accuracy, with the same learner and server."""
    lines = [["", "sparsity of the layer", "of the model", "bytes up", "bytes down", *list(PARTS)[1:3], "seeds"]]
    for name, same in by_method(rows).items():
        if name not in (*PRUNED, "reptile", "reptile+metavd", "reptile+metavd_rate"):
            continue
        columns = ("sparsity", "variational_share", "upload_bytes", "download_bytes")
        sparsity, share, up, down = (np.mean([row.get(column, 0.0) for row in same]) for column in columns)
        cells = [f"{sparsity:.3f}", f"{sparsity * share:.3f}", f"{up:.0f}", f"{down:.0f}"]
        accuracy = [cell(same, ", ".join(w)) for w in list(PARTS.values())[1:3]]
        lines.append([name, *cells, *accuracy, str(len(same))])
    return lines


def beside_published(rows: list[Row]) -> list[list[str]]:
    """Return accuracy in per cent as published: independent test shards, logits averaged, adapted where they were."""
    lines = [["", "ours, known", "ours, unseen", *(f"published, {name}" for name in PUBLISHED), "seeds"]]
    for name, same in by_method(rows).items():
        when = "before" if name in NOT_ADAPTED else "after"
        published = [column.get(name, "") for column in PUBLISHED.values()]
        if not any(published):
            continue
        keys = [f"{who}, independent, {when}, accuracy_logits" for who in ("known", "unseen")]
        ours = [cell([{key: 100 * row[key]} for row in same if key in row], key, 2) for key in keys]
        lines.append([name, *ours, *published, str(len(same))])
    return lines


def by_setting(rows: list[Row], key: str) -> list[list[str]]:
    """Return accuracy of known and unseen clients after adaptation for each value of a setting, all else as usual."""
    other, usual = ("cohort", 10) if key == "concentration" else ("concentration", 0.5)
    here = [row for row in rows if row[other] == usual]
    values = sorted({row[key] for row in here})
    names = [f"{who}, {key} {value:g}" for value in values for who in ("known", "unseen")]
    lines = [["", *names]]
    for name in SHORT:
        cells = []
        for value in values:
            same = [row for row in here if row["method"] == name and row[key] == value]
            columns = [ACCURACIES[f"{who}, after"] for who in ("known", "unseen")]
            cells += [cell(same, ", ".join(w)) for w in columns]
        lines.append([name, *cells])
    return lines


def by_method(rows: list[Row]) -> dict[str, list[Row]]:
    """Return the rows of each method, in the order of the config."""
    groups: dict[str, list[Row]] = {name: [] for name in METHODS}
    for row in sorted(rows, key=lambda row: row["seed"]):
        groups[row["method"]].append(row)
    return {name: same for name, same in groups.items() if same}


def write_clients(summaries: list[Summary], path: pathlib.Path) -> None:
    """Write every client of the first seed in the methods of `SHORT`, with test shards like its own."""
    rows = []
    for summary in summaries:
        options = summary["options"]
        usual = (options["concentration"], options["cohort"], options["seed"]) == (0.5, 10, 0)
        if "failed" in summary or options["method"] not in SHORT or not usual:
            continue
        for who in ("known", "unseen"):
            for client in summary["scores"][f"{who}, matched"]["clients"]:
                start = {key: options[key] for key in ("size", "method")} | {"who": who}
                own = {key: client[key] for key in ("client", "num_examples")}
                scores = {f"{when}_{n}": round(x, 4) for when in ("before", "after") for n, x in client[when].items()}
                rows.append({**start, **own, **scores})
    if rows:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "w", newline="") as file:
            writer = csv.DictWriter(
                file, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n"
            )
            writer.writeheader()
            writer.writerows(rows)


def write_failures(records: Iterable[Summary], path: pathlib.Path) -> None:
    """Write the failures with their messages."""
    lines = [["size", "method", "seed", "what happened"]]
    for record in records:
        same = [str(record["options"][key]) for key in ("size", "method", "seed")]
        lines += [[*same, record["failed"].replace("\n", " ").replace("|", "/")]] if "failed" in record else []
    write(lines, path)
