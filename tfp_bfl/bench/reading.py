"""Read and validate the records of a benchmark, and arrange them by setting and method."""

from __future__ import annotations

import json
import math
import numbers
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tfp_bfl import files
from tfp_bfl.errors import InvalidArgument, lookup, shown
from tfp_bfl.plots.repeats import Repeated

RECORDS = "records.jsonl"
_MOST_BYTES = 2**28
# Letters of a name in tables and figures.
_SHOWN, _END = 40, 14
_DEFAULT_REFERENCE = "fed_avg"


class Score(NamedTuple):
    """Hold how a score is read.

    Fields:
      label: its heading.
      sign: 1 if higher is better, -1 if lower is better, 0 if neither.
      hint: its unit or definition.
    """

    label: str
    sign: int
    hint: str


# In the order of tables.
SCORES = {
    "test_nll": Score("NLL", -1, "negative log-likelihood, nats per test example"),
    "accuracy": Score("Accuracy", 1, "fraction of test examples predicted correctly"),
    "least_accuracy": Score("Accuracy, lowest client", 1, "lowest accuracy of a client"),
    "rmse": Score("RMSE", -1, "root mean square error, in units of the label"),
    "mae": Score("MAE", -1, "mean absolute error, in units of the label"),
    "crps": Score("CRPS", -1, "continuous ranked probability score, in units of the label"),
    "ece": Score("ECE", -1, "expected calibration error"),
    "fitted_test_nll": Score(
        "NLL, temperature-scaled", -1, "NLL at the softmax temperature that fits held-out rows best"
    ),
    "fitted_ece": Score("ECE, temperature-scaled", -1, "ECE at the softmax temperature that fits held-out rows best"),
    "brier": Score("Brier score", -1, "mean squared error of the predicted probabilities"),
    "error_auroc": Score("Error detection (AUROC)", 1, "separation of wrong from correct predictions by entropy"),
    "ood_auroc": Score(
        "OOD detection (AUROC)", 1, "separation of out-of-distribution from test examples by epistemic uncertainty"
    ),
    "ood_auroc_entropy": Score(
        "OOD detection by entropy (AUROC)", 1, "separation of out-of-distribution from test examples by entropy"
    ),
    "coverage": Score("Coverage", 0, "fraction of labels inside the sets or intervals; nominal is best"),
    "least_coverage": Score("Coverage, lowest client", 0, "lowest coverage of a client; nominal is best"),
    "set_size": Score("Size of prediction sets", 0, "mean number of classes; smaller is better only at equal coverage"),
    "interval_width": Score("Width of intervals", 0, "in units of the label; smaller is better only at equal coverage"),
    "permuted_test_nll": Score("NLL, standard deviations permuted", 0, "compare with NLL"),
    "constant_nll": Score("NLL without features", 0, "of the class frequencies or the training mean; compare with NLL"),
    "linear_nll": Score("NLL of a linear model", 0, "of all clients' rows together; compare with NLL"),
    "hierarchical_nll": Score("NLL of a linear model with client intercepts", 0, "compare with NLL"),
}


def score_of(key: str) -> Score:
    """Return how a score is read; other keys than those of `SCORES` have no direction."""
    return SCORES.get(key) or Score(shorten(key.replace("_", " ").capitalize()), 0, "")


class BenchRecord(NamedTuple):
    """Hold one record: a method in a setting with a seed.

    Fields:
      setting, method, seed: the cell.
      about: the setting's dataset, model, numbers and heterogeneity.
      chosen: values of the options that tuning chose.
      trials: number of tuning trials.
      scores: score -> finite value; scores without one are absent.
      cost: seconds, megabytes.
      rounds: those that were evaluated, in order, with "seconds", "mb" and scores of the current model.
      failed: why there are no scores, or None.
      clients: scores of each client that the data name, worst first.
    """

    setting: str
    method: str
    seed: int
    about: Mapping[str, Any]
    chosen: Mapping[str, Any]
    trials: int
    scores: Mapping[str, float]
    cost: Mapping[str, float]
    rounds: Sequence[Mapping[str, float]]
    failed: str | None
    clients: Sequence[Mapping[str, Any]] = ()

    @property
    def is_finished(self) -> bool | None:
        """Return whether the NLL no longer falls at the last evaluation; None without evaluations between rounds."""
        values = [point["test_nll"] for point in self.rounds if "test_nll" in point]
        return None if len(values) < 2 else values[-1] >= values[-2]

    @property
    def num_rounds(self) -> int | None:
        """Return the rounds of the training; None if the record does not state them."""
        return self.about.get("rounds")


class Bench(NamedTuple):
    """Hold the records by setting and method, in the order in which they first occur.

    Fields:
      records: all.
      settings, methods: names.
      cells: (setting, method) -> its records, in order of seeds.
      seeds_of: setting -> the seeds that any method has, in order.
      reference: the method that others are compared with.
    """

    records: Sequence[BenchRecord]
    settings: Sequence[str]
    methods: Sequence[str]
    cells: Mapping[tuple[str, str], Sequence[BenchRecord]]
    seeds_of: Mapping[str, Sequence[int]]
    reference: str

    def scores(self, setting: str, method: str) -> Repeated:
        """Return the scores of a method in a setting, by seed; those of failed cells are absent."""
        cell = self.cells.get((setting, method), ())
        return Repeated(method, {record.seed: record.scores for record in cell if record.failed is None}, setting)

    def score_keys(self, setting: str | None = None) -> list[str]:
        """Return the scores that occur in a setting, or in any, in the order of `SCORES`; others follow."""
        there = [key for r in self.records if setting in (None, r.setting) for key in r.scores]
        return [*(key for key in SCORES if key in there), *dict.fromkeys(key for key in there if key not in SCORES)]


def arrange(records: Sequence[BenchRecord], reference: str | None = None) -> Bench:
    """Arrange records by setting and method.

    Args:
      records: at least one.
      reference: a method; None for "fed_avg" if it occurs, else the first method.

    Raises:
      InvalidArgument: no record has the reference method.
    """
    settings = list(dict.fromkeys(record.setting for record in records))
    methods = list(dict.fromkeys(record.method for record in records))
    if reference is None:
        reference = _DEFAULT_REFERENCE if _DEFAULT_REFERENCE in methods else methods[0]
    lookup(dict.fromkeys(methods, True), reference, "method", "in the records")
    cells: dict[tuple[str, str], list[BenchRecord]] = {}
    for record in sorted(records, key=lambda r: r.seed):
        cells.setdefault((record.setting, record.method), []).append(record)
    seeds = {s: sorted({r.seed for r in records if r.setting == s}) for s in settings}
    return Bench(records, settings, methods, cells, seeds, reference)


def read(folder: pathlib.Path) -> list[BenchRecord]:
    """Read the records of a benchmark from its folder.

    A score that is null, NaN or infinite is absent from its record.

    Args:
      folder: with records.jsonl, a JSON object a line; blank lines are skipped.

    Raises:
      InvalidArgument: the file is missing or empty, or a line is damaged; the message has the line's number.
    """
    path = pathlib.Path(folder) / RECORDS
    lines = files.read_regular(path, "file of records", _MOST_BYTES).split(b"\n")
    records: list[BenchRecord] = []
    places: dict[tuple[str, str, int], int] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        record = _record(line, f"Line {number} of {files.name(path)}")
        cell = (record.setting, record.method, record.seed)
        if cell in places:
            raise InvalidArgument(
                f"Line {number} of {files.name(path)} repeats setting, method and seed of line {places[cell]}: "
                "remove one of the two."
            )
        places[cell] = number
        records.append(record)
    if not records:
        raise InvalidArgument(f"{files.name(path)} has no records: run the benchmark first.")
    return records


def _record(line: bytes, place: str) -> BenchRecord:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):  # Bytes that are no text are a ValueError too.
        raise InvalidArgument(f"{place} is not JSON: remove the line and run the benchmark again.") from None
    if not isinstance(content, Mapping):
        raise InvalidArgument(f"{place} is {shown(content)}, but must be a JSON object.")
    for key in ("setting", "method"):
        if not isinstance(content.get(key), str) or not content[key].strip():
            raise InvalidArgument(f'{place} has {shown(content.get(key))} as "{key}", but must have a name.')
    for key, least in (("seed", None), ("trials", 0)):
        value = content.get(key, None if key == "seed" else 0)
        if isinstance(value, bool) or not isinstance(value, int) or (least is not None and value < least):
            raise InvalidArgument(f'{place} has {shown(value)} as "{key}", but must have an integer.')
    failed = content.get("failed")
    if failed is not None and not isinstance(failed, str):
        raise InvalidArgument(f'{place} has {shown(failed)} as "failed", but must have a sentence.')
    if failed is None and not content.get("scores"):
        raise InvalidArgument(f'{place} has neither "scores" nor "failed", but must have one of them.')
    mapping = {key: _mapping(content.get(key), key, place) for key in ("about", "chosen", "scores", "cost")}
    return BenchRecord(
        setting=content["setting"],
        method=content["method"],
        seed=content["seed"],
        about=mapping["about"],
        chosen=mapping["chosen"],
        trials=content.get("trials", 0),
        scores={} if failed is not None else _numbers(mapping["scores"], "scores", place, without=("clients",)),
        cost=_numbers(mapping["cost"], "cost", place, least=0.0),
        # Points of a training that failed later are no scores of the method.
        rounds=_rounds(content.get("rounds"), place) if failed is None else [],
        failed=failed,
        clients=_clients(mapping["scores"].get("clients"), place),
    )


def _clients(rows: object, place: str) -> list[dict[str, Any]]:
    if rows is not None and not isinstance(rows, list):
        raise InvalidArgument(f'{place} has {shown(rows)} as "clients", but must have a list.')
    found = []
    for row in rows or []:
        values = dict(_mapping(row, "clients", place))
        name = values.pop("client", None)
        if not isinstance(name, str):
            raise InvalidArgument(f'{place} has {shown(row)} among "clients", but a client must have a name.')
        found.append({"client": name, **_numbers(values, "clients", place)})
    return found


def _mapping(value: object, name: str, place: str) -> Mapping[str, Any]:
    if value is not None and not isinstance(value, Mapping):
        raise InvalidArgument(f'{place} has {shown(value)} as "{name}", but must have a JSON object.')
    return value or {}


def _numbers(
    values: Mapping[str, Any], name: str, place: str, least: float = -math.inf, without: Sequence[str] = ()
) -> dict[str, float]:
    """Return the finite numbers of a mapping; null and numbers that are not finite are left out."""
    found = {}
    for key, value in values.items():
        if key in without:
            continue
        number = finite(value)
        is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
        if (value is not None and not is_number) or (number is not None and number < least):
            raise InvalidArgument(
                f'{place} has {shown(value)} as {shown(key)} of "{name}", but must have a number'
                f"{'' if least == -math.inf else f' of at least {least:g}'}."
            )
        if number is not None:
            found[str(key)] = number
    return found


def _rounds(points: object, place: str) -> list[dict[str, float]]:
    if points is not None and not isinstance(points, list):
        raise InvalidArgument(f'{place} has {shown(points)} as "rounds", but must have a list.')
    found: list[dict[str, float]] = []
    for point in points or []:
        values = _numbers(_mapping(point, "rounds", place), "rounds", place)
        last = found[-1] if found else {}
        if "round" not in values or values["round"] <= last.get("round", -math.inf):
            raise InvalidArgument(f'{place} has "rounds" that do not increase.')
        for key in ("seconds", "mb"):
            if key in values and values[key] < last.get(key, 0.0):
                raise InvalidArgument(f'{place} has "rounds" in which {key} decrease or are below 0.')
        found.append(values)
    return found


def finite(value: object) -> float | None:
    """Return a value as a float, or None if it is no finite number."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def shorten(text: object, length: int = _SHOWN) -> str:
    """Return a user's text on one line, cut in the middle to `length` letters."""
    line = "".join(letter if letter.isprintable() else "\ufffd" for letter in str(text))
    end = min(_END, length // 2)
    return line if len(line) <= length else f"{line[: length - end - 1]}\u2026{line[-end:]}"
