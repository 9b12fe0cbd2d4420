"""Read and validate the records of a benchmark, and arrange them by setting and method."""

import json
import math
import numbers
import pathlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import pydantic

from tfp_bfl import files
from tfp_bfl.app.options.refusals import refusal
from tfp_bfl.errors import InvalidArgument, lookup, shown
from tfp_bfl.plots.score_tables import Repeated

RECORDS = "records.jsonl"
_MOST_BYTES = 2**28
# Letters of a name in tables and figures.
_SHOWN, _END = 40, 14
_DEFAULT_REFERENCE = "fed_avg"


class Score(NamedTuple):
    """Hold a score's heading, its sign (1 if higher is better, -1 if lower, 0 if neither), and its definition."""

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
    "features_nll": Score("NLL of random features with client intercepts", 0, "compare with NLL"),
}


def score_of(key: str) -> Score:
    """Return how a score is read; other keys than those of `SCORES` have no direction."""
    return SCORES.get(key) or Score(shorten(key.replace("_", " ").capitalize()), 0, "")


def finite(value: object) -> float | None:
    """Return a value as a float, or None if it is no finite number."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _without_infinite(values: object) -> object:
    """Leave null and numbers that are not finite out of a mapping."""
    is_number = lambda x: isinstance(x, numbers.Real) and not isinstance(x, bool)
    is_kept = lambda x: x is not None and not (is_number(x) and finite(x) is None)
    return {k: x for k, x in values.items() if is_kept(x)} if isinstance(values, Mapping) else values


def _ascending(points: list[dict[str, float]]) -> list[dict[str, float]]:
    for last, point in zip([{}, *points], points):
        if "round" not in point or point["round"] <= last.get("round", -math.inf):
            raise InvalidArgument('"rounds" do not increase.')
        for key in ("seconds", "mb"):
            if key in point and point[key] < last.get(key, 0.0):
                raise InvalidArgument(f'"rounds" are such that {key} decrease or are below 0.')
    return points


def _of_client(row: dict[str, Any]) -> dict[str, Any]:
    if [name for name, x in row.items() if isinstance(x, str)] != ["client"]:
        raise InvalidArgument('"clients" have a row that is not a name as "client" and numbers.')
    return row


_Name = Annotated[str, pydantic.StringConstraints(strict=True, pattern=r"\S")]
_Number = Annotated[float, pydantic.Strict()]
_Numbers = Annotated[dict[str, _Number], pydantic.BeforeValidator(_without_infinite)]
_Cost = Annotated[float, pydantic.Strict(), pydantic.Field(ge=0)]
_Client = Annotated[
    dict[str, _Number | _Name], pydantic.BeforeValidator(_without_infinite), pydantic.AfterValidator(_of_client)
]


class BenchRecord(pydantic.BaseModel):
    """Hold one record: a method in a setting with a seed; scores without a finite value are absent.

    `about` states the setting's dataset, model, numbers and heterogeneity; `chosen` is what tuning chose; costs are
    seconds and megabytes; `rounds` are those that were evaluated, with scores of the current model; `failed` is why
    there are no scores; `clients` are the scores of each client that the data name, worst first.
    """

    setting: _Name
    method: _Name
    seed: Annotated[int, pydantic.Strict()]
    about: dict[str, Any] = {}
    chosen: dict[str, Any] = {}
    trials: Annotated[int, pydantic.Strict(), pydantic.Field(ge=0)] = 0
    scores: _Numbers = {}
    cost: Annotated[dict[str, _Cost], pydantic.BeforeValidator(_without_infinite)] = {}
    rounds: Annotated[list[_Numbers], pydantic.AfterValidator(_ascending)] = []
    failed: str | None = None
    clients: list[_Client] = []

    @pydantic.model_validator(mode="before")
    @classmethod
    def _of_line(cls, line: dict[str, Any]) -> dict[str, Any]:
        """Take the clients from the scores; a training that failed has neither scores nor rounds."""
        found = {name: x for name, x in line.items() if x is not None and name != "clients"}
        found = {"setting": None, "method": None, "seed": None, **found}
        if found.get("failed") is not None:
            return {**found, "scores": {}, "rounds": []}
        if not found.get("scores"):
            raise InvalidArgument('neither "scores" nor "failed" is there, but one of them must be.')
        if isinstance(found["scores"], dict) and found["scores"].get("clients") is not None:
            found["clients"] = found["scores"]["clients"]
            found["scores"] = {name: x for name, x in found["scores"].items() if name != "clients"}
        return found

    @property
    def is_finished(self) -> bool | None:
        """Return whether the NLL no longer falls at the last evaluation; None without evaluations between rounds."""
        values = [point["test_nll"] for point in self.rounds if "test_nll" in point]
        return None if len(values) < 2 else values[-1] >= values[-2]

    @property
    def num_rounds(self) -> int | None:
        """Return the rounds of the training; None if the record does not state them."""
        return self.about.get("rounds")


def is_finished(cell: Sequence[BenchRecord]) -> bool:
    """Return whether the NLL still falls at the end in at most half of the runs that say so."""
    known = [record.is_finished for record in cell]
    return known.count(False) <= known.count(True)


class Bench(NamedTuple):
    """Hold the records by setting and method, in the order in which they first occur.

    `cells` are the records of (setting, method) in order of seeds, and `seeds_of` the seeds that any method has in a
    setting; others are compared with the method `reference`.
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
        there = {record.seed: record.scores for record in cell if record.failed is None}
        return Repeated(method, there, setting, is_finished(cell))

    def score_keys(self, setting: str | None = None) -> list[str]:
        """Return the scores that occur in a setting, or in any, in the order of `SCORES`; others follow."""
        there = [key for r in self.records if setting in (None, r.setting) for key in r.scores]
        return [*(key for key in SCORES if key in there), *dict.fromkeys(key for key in there if key not in SCORES)]


def arrange(records: Sequence[BenchRecord], reference: str | None = None) -> Bench:
    """Arrange records, one at least, by setting and method.

    The reference is a method with records; None for "fed_avg" if it occurs, else the first method.
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
    """Read the records of a benchmark from records.jsonl in its folder, a JSON object a line; lines may be blank."""
    path = pathlib.Path(folder) / RECORDS
    lines = files.read_regular(path, "file of records", _MOST_BYTES).split(b"\n")
    records: list[BenchRecord] = []
    places: dict[tuple[str, str, int], int] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        place = f"Line {number} of {files.name(path)}"
        try:
            content = json.loads(line)
        except (ValueError, RecursionError):  # Bytes that are no text are a ValueError too.
            raise InvalidArgument(f"{place} is not JSON: remove the line and run the benchmark again.") from None
        if not isinstance(content, dict):
            raise InvalidArgument(f"{place} is {shown(content)}, but must be a JSON object.")
        try:
            record = BenchRecord(**content)
        except pydantic.ValidationError as error:
            raise InvalidArgument(f"{place}: {refusal(error)}") from None
        cell = (record.setting, record.method, record.seed)
        if cell in places:
            raise InvalidArgument(
                f"{place} repeats setting, method and seed of line {places[cell]}: remove one of the two."
            )
        places[cell] = number
        records.append(record)
    if not records:
        raise InvalidArgument(f"{files.name(path)} has no records: run the benchmark first.")
    return records


def shorten(text: object, length: int = _SHOWN) -> str:
    """Return a user's text on one line, cut in the middle to `length` letters."""
    line = "".join(letter if letter.isprintable() else "\ufffd" for letter in str(text))
    end = min(_END, length // 2)
    return line if len(line) <= length else f"{line[: length - end - 1]}\u2026{line[-end:]}"
