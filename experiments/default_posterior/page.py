"""The tables of the study's page, between marks `<!-- table: NAME -->` and `<!-- /table -->`, from its records."""

from __future__ import annotations

import itertools
import pathlib
import re
from collections import defaultdict
from typing import Any

import numpy as np

from experiments.default_posterior.config import METHODS
from experiments.default_posterior.controls import KINDS, PARTS
from experiments.default_posterior.curve_tables import curves_table
from experiments.default_posterior.tables import (
    FITTED,
    REFERENCES,
    Groups,
    grouped,
    of_seeds,
    shown_of,
    temperature_table,
)
from experiments.tables import interval, paired
from tfp_bfl.files.tables import FORMATS

Record = dict[str, Any]
Lines = list[list[str]]
PAGE = pathlib.Path(__file__).parent / "README.md"
MARK = re.compile(r"<!-- table: (\w+) -->\n(.*?)<!-- /table -->", re.DOTALL)
TITLES = {
    **{"label_skew_2": "two classes per client", "dirichlet_0.5": "Dirichlet(0.5)", "iid": "IID"},
    **{"dirichlet_0.1": "Dirichlet(0.1)", "digits-label_skew_2": "digits, two classes"},
    "cifar10-dirichlet_0.5": "CIFAR-10, Dirichlet(0.5)",
}


def filled(text: str, records: dict[str, Record]) -> str:
    """Return a page's text with its marked tables as of these records.

    Args:
      text: with pairs of marks.
      records: of finished cells, by name.
    """
    done = {name: record for name, record in records.items() if "rows" in record}
    groups = grouped(done)
    made = {
        **{"results": results(groups), "differences": differences(groups), "spreads": spreads(groups)},
        **{"temperatures": temperature_table(done), "sizes": sizes(done), "detection": detection(done)},
        "curves": curves_table(done),
    }
    return MARK.sub(lambda m: f"<!-- table: {m[1]} -->\n{FORMATS['.md'](made[m[1]])}<!-- /table -->", text)


def number(value: float) -> str:
    """Return a score with three decimals, without the zero before the point; "" for NaN."""
    return "" if np.isnan(value) else re.sub(r"^0\.", ".", f"{value:.3f}")


def change(first: dict[int, float], second: dict[int, float]) -> str:
    """Return a difference paired by seed with its 95 % interval, in bold if the interval as printed leaves out 0."""
    difference = paired(first, second)
    if difference is None:
        return "".join(re.sub(r"^([+-])0\.", r"\1.", f"{first[s] - second[s]:+.3f}") for s in first.keys() & second)
    return re.sub(r"([+-])0\.", r"\1.", interval(difference, 3))


def mean_of(rows: dict[int, Record], which: str, column: str) -> str:
    """Return the mean of a score over the seeds that have it."""
    return number(float(np.mean([*of_seeds(rows, which, column).values()] or [np.nan])))


def fitted(method: str, column: str) -> str:
    """Return the column of a method: with a fitted softmax temperature for the baselines' NLL and ECE."""
    return column + ("_fitted" if method in FITTED and column in ("nll", "ece") else "")


def results(groups: Groups) -> Lines:
    """Return means over seeds of the averaged rounds, of the default of its last round."""
    columns = ("accuracy", "nll", "ece", "error_auroc", "ood_auroc_entropy", "ood_auroc_epistemic")
    titles = ("accuracy", "NLL", "ECE", "error AUROC", "OOD AUROC, entropy", "OOD AUROC, epistemic")
    lines = [["data", "method", "seeds", *titles]]
    for where, title in TITLES.items():
        for method in METHODS:
            rows = groups[where].get(method)
            if rows:
                cells = [mean_of(rows, shown_of(method), fitted(method, column)) for column in columns]
                lines.append([title, f"`{method}`", str(len(rows)), *cells])
    return lines


def differences(groups: Groups) -> Lines:
    """Return each of `REFERENCES` minus each method, paired by seed."""
    lines = [["data", "method", "minus", "seeds", "accuracy", "NLL", "ECE"]]
    for (where, title), reference in itertools.product(TITLES.items(), REFERENCES):
        own = groups[where].get(reference, {})
        for method in METHODS:
            rows = groups[where].get(method, {})
            common = len(own.keys() & rows.keys())
            if common and method not in (reference, REFERENCES[0]):
                of = lambda column: change(
                    of_seeds(own, shown_of(reference), column),  # noqa: B023
                    of_seeds(rows, shown_of(method), fitted(method, column)),  # noqa: B023
                )
                cells = [title, f"`{reference}`", f"`{method}`", str(common)]
                lines.append([*cells, *map(of, ("accuracy", "nll", "ece"))])
    return lines


def spreads(groups: Groups) -> Lines:
    """Return scores of the learned standard deviations, and differences to them of permuted and of equal ones."""
    titles = ("NLL, learned", "permuted", "one number", "OOD AUROC, epistemic, learned", "permuted", "one number")
    lines = [["data", "seeds", *titles]]
    for where, title in TITLES.items():
        rows = groups[where].get("variational_inverse", {})
        cells: list[str] = []
        for column in ("nll", "ood_auroc_epistemic"):
            learned = of_seeds(rows, "averaged", column)
            cells.append(mean_of(rows, "averaged", column))
            cells += [change(of_seeds(rows, which, column), learned) for which in ("permuted", "constant")]
        if rows:
            lines.append([title, str(len(rows)), *cells])
    return lines


def controls(done: dict[str, Record]) -> dict[tuple[str, int, str], dict[int, Record]]:
    """Return (data, examples of a client, labels) -> seed -> rows of a control."""
    groups: dict[tuple[str, int, str], dict[int, Record]] = defaultdict(dict)
    for name, record in done.items():
        if name.startswith("control,"):
            data, *rest = name.split(",")[1:]
            examples, labels, seed = (part.partition("=")[2] for part in rest)
            groups[data, int(examples), labels][int(seed)] = record["rows"]
    return dict(sorted(groups.items(), key=lambda x: (x[0][0] == "digits", x[0][2] == "shuffled", x[0][1])))


SPREADS = {"averaged": "learned", "constant": "one number"}


def sizes(done: dict[str, Record]) -> Lines:
    """Return the mean epistemic part by number of examples, labels and kind of image."""
    kinds = ("test", *KINDS)
    lines = [["data", "examples per client", "labels", "standard deviations", "seeds", "accuracy", "NLL", *kinds]]
    for ((data, examples, labels), rows), (which, text) in itertools.product(controls(done).items(), SPREADS.items()):
        cells = [mean_of(rows, which, column) for column in ("accuracy", "nll")]
        cells += [f"{np.mean([*of_seeds(rows, which, f'epistemic_{kind}').values()]):.4f}" for kind in kinds]
        lines.append([data, str(examples), labels, text, str(len(rows)), *cells])
    return lines


def detection(done: dict[str, Record]) -> Lines:
    """Return the AUROC of each part of the uncertainty for errors and each kind of image, with all examples."""
    groups = {key: rows for key, rows in controls(done).items() if key[2] == "true"}
    largest = {data: max(key[1] for key in groups if key[0] == data) for data, _, _ in groups}
    recorded = [rows[which] for of_seed in groups.values() for rows in of_seed.values() for which in SPREADS]
    parts = [part for part in PARTS if any(f"error_auroc_{part}" in row for row in recorded)]
    lines = [["data", "detected", "standard deviations", "seeds", *parts, "epistemic minus entropy"]]
    for data, what, (which, text) in itertools.product(largest, ("error", *KINDS), SPREADS.items()):
        rows = groups[data, largest[data], "true"]
        of = {part: of_seeds(rows, which, f"{what}_auroc_{part}") for part in parts}
        cells = [number(float(np.mean([*of[part].values()]))) if of[part] else "" for part in parts]
        lines.append([data, what, text, str(len(rows)), *cells, change(of["epistemic"], of["entropy"])])
    return lines


def fill_page(records: dict[str, Record]) -> None:
    """Write the tables of these records into the study's page."""
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), records), encoding="utf-8")
