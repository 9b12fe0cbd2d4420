"""A run's model with limits that its held-out examples justify."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl import files
from tfp_bfl.app.one_run.records import HELD_OUT, PREDICTIONS, config_in, in_columns, num_samples, read_predictions
from tfp_bfl.data.partitions import generator
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.files import Path
from tfp_bfl.plots import style

BY = ("entropy", "epistemic")
# Held-out examples that are read: those of a share of the training data.
_MOST_EXAMPLES = 10_000_000


def calibrate(
    run: Path,
    output: Path,
    *,
    accuracy: float | None = None,
    coverage: float | None = None,
    confidence: float | None = None,
    by: Literal["entropy", "epistemic"] = "entropy",
    set_coverage: float = 0.9,
    set_score: str = "probability",
    each_client: bool = False,
    figure: Path | None = None,
) -> bfl.export.Calibration:
    """Write a run's model with a temperature, an abstention threshold and prediction sets, and return the calibration.

    The temperature is fitted on half of the held-out examples, drawn by chance; limit and sets are found on the other
    half at that temperature, so that what they promise holds. Where no threshold has the accuracy, the model is written
    without one, and the result states the highest accuracy that can be promised.

    Args:
      run, output: the folder of a complete run that set examples aside (hold_out), and a new one for the SavedModel.
      accuracy, coverage: one of both (`evaluation.abstention_limit`); an accuracy of 0.95 if neither is given.
      confidence: in that accuracy, and in the coverage of a client's own sets; None for 0.9.
      by: "entropy" or "epistemic", of which uncertainty the limit is.
      set_coverage, set_score: of prediction sets (`evaluation.conformal_limit`).
      each_client: also find the sets of each client that the data name (`evaluation.calibrate_clients`), and those of
        clients that were never seen.
      figure: a new .png, .pdf or .svg for `plots.risk_coverage` of the half on which the limit was found.
    """
    form = files.figure_format(figure or "figure.png")
    if by not in BY:
        raise InvalidArgument(f"by is {by!r}, but must be one of {', '.join(BY)}.")
    if confidence is not None and coverage is not None and not each_client:
        raise InvalidArgument(
            "confidence is that of an accuracy, or of each client's sets, and a coverage is given: leave it out."
        )
    confidence = 0.9 if confidence is None else confidence
    folder = pathlib.Path(run)
    model = bfl.export.find(folder)
    if not (folder / HELD_OUT).is_file():
        raise InvalidArgument(
            f"The run in {files.name(folder)} held nothing out, on which a limit could be chosen: run it with "
            "--hold-out 0.1."
        )
    info = bfl.export.read_info(model)
    if bfl.export.target_of(info) is not None:
        raise InvalidArgument(f"calibrate is for classifiers, and {files.name(folder)} predicts numbers.")
    config = config_in(folder)
    held = read_predictions(folder / HELD_OUT, _MOST_EXAMPLES, (info.model or {})["num_classes"])
    names = held.pop("client_names", None)
    if each_client and names is None:
        raise InvalidArgument(
            f"each_client is for data that name their clients, and the rows of {files.name(folder)} name none: leave "
            "it out, or run it with client_column."
        )
    for path in (output, figure):
        if path is not None and os.path.lexists(path):
            raise InvalidArgument(f"{files.name(path)} exists already: choose another name, nothing is overwritten.")
    first, second = _halves(held)
    temperature = bfl.evaluation.fit_temperature(first["probabilities"], first["labels"])
    probabilities = bfl.evaluation.at_temperature(second["probabilities"], temperature)
    uncertainty = entropy(probabilities) if by == "entropy" else second["epistemic"]
    wanted = {"accuracy": 0.95 if accuracy is None and coverage is None else accuracy, "coverage": coverage}
    threshold, promise = _threshold(probabilities, second["labels"], uncertainty, confidence=confidence, **wanted)
    set_limit = bfl.evaluation.conformal_limit(probabilities, second["labels"], set_coverage, set_score)
    of_sets = set_coverage, confidence, set_score
    sets, unseen = _sets_of_clients(probabilities, second, names, *of_sets) if each_client else ({}, None)
    calibration = bfl.export.Calibration(
        number=len(held["labels"]),
        num_samples=num_samples(config),
        temperature=temperature,
        by=by,
        limit=threshold.limit if threshold else None,
        coverage=threshold.coverage if threshold else 1.0,
        accuracy=threshold.accuracy if threshold else float(np.mean(probabilities.argmax(-1) == second["labels"])),
        at_least=wanted["accuracy"],
        confidence=confidence,
        set_coverage=set_coverage,
        set_limit=set_limit,
        best_accuracy=promise.at_least if promise else None,
        best_coverage=promise.limit.coverage if promise else None,
        set_score=set_score,
        unseen_set_limit=unseen,
    )
    tested = read_predictions(folder / PREDICTIONS, _MOST_EXAMPLES, (info.model or {})["num_classes"])
    if "client" in tested:
        calibration = calibration._replace(clients=_scores_of_clients(tested, calibration, sets))
    bfl.export.save(model, output, bfl.export.Info(calibration=calibration._asdict()))
    if figure:
        curve = bfl.evaluation.risk_coverage(probabilities, second["labels"], uncertainty)
        style.save(bfl.plots.risk_coverage(curve, by, calibration.limit), pathlib.Path(figure), form)
    return calibration


def _threshold(*scores: np.ndarray, **wanted: Any) -> tuple[Any, Any]:
    """Return the threshold of `evaluation.abstention_limit` and None, or None and the most that can be promised."""
    try:
        return bfl.evaluation.abstention_limit(*scores, **wanted), None
    except bfl.evaluation.NoThreshold as error:
        return None, error.promise


def _sets_of_clients(
    probabilities: np.ndarray,
    held: dict[str, np.ndarray],
    names: Any,
    coverage: float,
    confidence: float,
    score: str,
) -> tuple[dict[str, dict[str, float]], float | None]:
    """Return the number of held-out rows and the set limit of each client, and the limit of clients never seen."""
    histograms = {}
    for k, name in enumerate(names):
        own = held["client"] == k
        if own.any():
            histograms[str(name)] = bfl.evaluation.label_histogram(probabilities[own], held["labels"][own], score=score)
    found = bfl.evaluation.calibrate_clients(list(histograms.values()), coverage, confidence)
    limits = {name: {"held_out": int(own.sum()), "set_limit": found.limit(own)} for name, own in histograms.items()}
    return limits, None if isinstance(found.unseen, str) else found.unseen


def _scores_of_clients(
    tested: dict[str, np.ndarray], found: bfl.export.Calibration, sets: dict[str, dict[str, float]]
) -> list[dict[str, Any]]:
    """Return the scores of each client on its test rows, by its own sets where it has some."""
    names, labels = [str(x) for x in tested["client_names"]], tested["labels"]
    probabilities = bfl.evaluation.at_temperature(tested["probabilities"], found.temperature)
    limits = np.array([sets.get(name, {}).get("set_limit", found.set_limit) for name in names])[tested["client"]]
    inside = bfl.evaluation.prediction_sets(probabilities, limits, found.set_score)
    covered = inside[np.arange(len(labels)), labels]
    kept = np.ones(len(labels), bool)
    if found.limit is not None:
        kept = (entropy(probabilities) if found.by == "entropy" else tested["epistemic"]) <= found.limit
    owners, right = np.array(names, object)[tested["client"]], probabilities.argmax(-1) == labels
    rows = bfl.evaluation.client_scores(probabilities, labels, owners, covered=covered, names=[*names, *sets])
    for row in rows:
        own = kept & (owners == row["client"])
        row |= {"kept": int(own.sum()), **({"kept_accuracy": float(right[own].mean())} if own.any() else {})}
        row |= sets.get(row["client"], {})
    return rows


def clients_in_words(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows of clients as lines of a table."""
    columns = ("accuracy", "sensitivity", "specificity", "test_nll", "coverage", "kept", "kept_accuracy", "set_limit")
    used = [name for name in columns if any(name in row for row in rows)]
    heads = {
        "test_nll": "NLL",
        "coverage": "coverage of sets",
        "kept_accuracy": "accuracy of kept",
        "set_limit": "sets from",
    }
    lines = [["client", "n", *(heads.get(name, name) for name in used)]]
    lines += [[str(row["client"]), str(row["n"]), *(_in_words(row, name) for name in used)] for row in rows]
    return in_columns(lines)


def _in_words(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    if value is None or isinstance(value, int):
        return "-" if value is None else str(value)
    ends = f" [{row[f'{name}_low']:.3f}, {row[f'{name}_high']:.3f}]" if f"{name}_low" in row else ""
    return f"{value:.3f}{ends}"


def entropy(probabilities: np.ndarray) -> np.ndarray:
    """Return the entropy of distributions [B, C], divided by log C: [B]."""
    return bfl.evaluation.summarise(probabilities[np.newaxis]).entropy.numpy()


def _halves(held: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    order = generator(0, "halves").permutation(len(held["labels"]))
    parts = order[: len(order) // 2], order[len(order) // 2 :]
    if not len(parts[0]):
        raise InvalidArgument("One held-out example is too few for a limit: hold more out.")
    return tuple({name: x[part] for name, x in held.items()} for part in parts)  # type: ignore[return-value]
