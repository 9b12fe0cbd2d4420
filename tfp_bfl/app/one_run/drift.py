"""A comparison of users' files with what a run saw in training: its histograms, and the scores of its model."""

from __future__ import annotations

import bisect
import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl.app.one_run.predict import answers, read_examples
from tfp_bfl.app.one_run.records import HELD_OUT, PREDICTIONS, config_in, is_private, num_samples, read_predictions
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.files import Path, name
from tfp_bfl.files.arrays import read_arrays, write_arrays

HISTOGRAMS = "training_histograms.npz"
_MOST_BYTES = 2**26
_MOST_EXAMPLES = 10_000_000
# Clients with examples that are counted together.
_AT_ONCE = 1000
# Of a prediction that is compared; the classes are compared by their shares.
_OF_CLASSES, _OF_NUMBERS = ("entropy",), ("mean", "stddev")
# Bins of a score between common quantiles, where the chi-square test needs ten examples in each, and of few examples.
_BINS, _BINS_OF_FEW = 10, 34
# The largest number of examples that is tried to find one that would do.
_MOST_NEEDED = 10**6


class DriftReport(NamedTuple):
    """The result of `drift`: rows of features and scores, numbers of examples, and the images that could not be read.

    `reference` says with which examples' scores the new ones are compared. `needed` is the number of examples with
    which every row could have drift; None where no number would do for some.
    """

    rows: Sequence[bfl.evaluation.Drift]
    number: int
    of_training: int
    reference: str
    failures: Sequence[tuple[str, str]] = ()
    level: float = 0.01
    needed: int | None = 1

    @property
    def found(self) -> bool:
        """Whether there is any drift."""
        return any(row.found for row in self.rows)


class Drifted(NamedTuple):
    """A feature or a score of two samples: distance and p-value for the p-value that matters, as of
    `evaluation.homogeneity`, and the smallest p-value of a number of new examples.
    """

    name: str
    test: Callable[[float], tuple[float, float]]
    least: Callable[[int], float]


def record(folder: pathlib.Path, clients: bfl.data.ClientData, train: bfl.data.Source) -> None:
    """Write the histograms of all clients' examples, added, to a run's folder.

    There are none of sequences without names of columns, and of a backbone's features.
    """
    if (len(train.element_shape) not in (1, 3) and not train.columns) or train.image_shape:
        return
    names = [column.name for column in train.columns or ()]
    held = np.flatnonzero(clients.sizes).tolist()
    each = [
        bfl.evaluation.feature_histograms(np.concatenate([clients.examples(k).features for k in part]), names)
        for part in (held[i : i + _AT_ONCE] for i in range(0, len(held), _AT_ONCE))
    ]
    total = bfl.evaluation.drift.coarsen(bfl.evaluation.add_histograms(*each))
    arrays = {
        "names": np.array(total.names, np.str_),
        "bins": np.array([len(x.lower) for x in total.counts]),
        **{key: np.concatenate([getattr(x, key) for x in total.counts]) for key in ("lower", "counts")},
    }
    write_arrays(folder / HISTOGRAMS, arrays, compressed=True)


def drift(run: Path, paths: Path | Sequence[Path], *, level: float = 0.01, separator: Any = None) -> DriftReport:
    """Compare the examples of files, as of `predict`, with those of a complete run's training.

    Features are compared with the histograms of all clients' training examples. The model's scores are compared with
    its scores of held-out examples, or of the test set where none were held out: on training examples they would be too
    confident. The share of unusual examples is compared with the rate of false alarms of that output. `level` is the
    probability that drift is found in any row though both samples have one distribution, at most; so few examples that
    no result could reach it are refused.
    """
    bfl.evaluation.drifts([], level)
    folder = pathlib.Path(run)
    model = bfl.export.find(folder)
    if not (folder / HISTOGRAMS).is_file():
        if (folder / "config.yaml").is_file() and is_private(config_in(folder)):
            raise InvalidArgument(
                f"{name(run)} is a run with differential privacy, which records no {HISTOGRAMS}: counts of its "
                "examples are not covered by epsilon."
            )
        if (folder / "config.yaml").is_file() and config_in(folder).backbone:
            raise InvalidArgument(
                f"{name(run)} is a run with a backbone, which records no {HISTOGRAMS}: look at the output unusual of "
                "`tfp-bfl predict` instead."
            )
        raise InvalidArgument(
            f"{name(run)} has no {HISTOGRAMS}, with which new examples are compared: give the folder of a run that "
            "`tfp-bfl run` wrote with this version."
        )
    training = _read(folder / HISTOGRAMS)
    info = bfl.export.read_info(model)
    examples = read_examples(info, paths, separator)
    columns = bfl.export.columns_of(info)
    features = examples.pixels
    if columns:
        means, stddevs = (np.array([column[i] for column in columns]) for i in (1, 2))
        features = ((features - means) / stddevs).astype(np.float32)
    try:
        new = bfl.evaluation.feature_histograms(features, [column[0] for column in columns], training)
    except InvalidArgument:
        message = f"{name(folder / HISTOGRAMS)} is of other features than the model of the run."
        raise InvalidArgument(message) from None
    held_out = (folder / HELD_OUT).is_file()
    reference = read_predictions(
        folder / (HELD_OUT if held_out else PREDICTIONS), _MOST_EXAMPLES, int((info.model or {})["num_classes"])
    )
    config = config_in(folder)
    drawn = {"num_samples": num_samples(config), "seed": config.seed}
    new_scores = answers(bfl.export.load(model).predict, examples.pixels, **drawn)
    compared = [
        *compare_features(training, new),
        *compare_scores(reference, new_scores, (info.data or {}).get("unusual")),
    ]
    rows, needed = rows_of(compared, len(features), level)
    which = f"{'held-out' if held_out else 'test'} examples"
    return DriftReport(
        rows, len(features), int(training.counts[0].counts.sum()), which, examples.failures, level=level, needed=needed
    )


def compare_features(training: bfl.evaluation.Histograms, new: bfl.evaluation.Histograms) -> list[Drifted]:
    """Return the comparison of each feature."""
    return [_of_counts(name, x.counts, y.counts) for name, x, y in zip(new.names, training.counts, new.counts)]


def compare_scores(
    reference: Mapping[str, np.ndarray], new: Mapping[str, np.ndarray], unusual: Mapping[str, Any] | None
) -> list[Drifted]:
    """Return the comparison of each score of a model; `unusual` states the output of this name, None without it."""
    found = []
    for key in _OF_CLASSES if "probabilities" in new else _OF_NUMBERS:
        bins = _BINS_OF_FEW if min(len(reference[key]), len(new[key])) < bfl.evaluation.drift.FEW else _BINS
        found.append(_of_counts(f"score: {key}", *bfl.evaluation.count_between(reference[key], new[key], bins)))
    if "probabilities" in new:
        count = lambda labels: np.bincount(labels, minlength=new["probabilities"].shape[1])
        predicted = count(reference["probabilities"].argmax(1)), count(new["label"])
        found.append(_of_counts("score: predicted classes", *predicted, ordered=False))
    # Of one held-out example the rate is 1: any example may be above.
    if unusual is not None and "unusual" in new and unusual["rate"] < 1:
        found.append(_of_unusual(unusual, new["unusual"]))
    return found


def _of_counts(name: str, reference: np.ndarray, new: np.ndarray, ordered: bool = True) -> Drifted:
    return Drifted(
        name,
        lambda resolution: bfl.evaluation.homogeneity(reference, new, ordered=ordered, resolution=resolution),
        lambda number: bfl.evaluation.least_p_value(reference, number),
    )


def _of_unusual(stated: Mapping[str, Any], scores: np.ndarray) -> Drifted:
    """Return the comparison of the share of unusual examples with the rate of false alarms.

    The threshold is an order statistic of n held-out scores: the rate r of one model is Beta(r (n + 1), ...) with mean
    r, and the number above it is beta-binomial.
    """
    from scipy import stats

    rate, held, above = stated["rate"], stated["number"] + 1, int(np.sum(~(scores <= 1)))
    law = lambda number: stats.betabinom(number, rate * held, (1 - rate) * held)
    share = above / len(scores)
    p_value = float(law(len(scores)).sf(above - 1)) if above else 1.0
    return Drifted(
        "score: unusual examples",
        lambda _: (max(0.0, share - rate), p_value),
        lambda number: float(law(number).sf(number - 1)),
    )


def rows_of(compared: Sequence[Drifted], number: int, level: float) -> tuple[list[bfl.evaluation.Drift], int | None]:
    """Return the rows of a report, and the number of examples with which every row could have drift; None for none."""
    resolution = level / len(compared)

    enough = lambda row, size: row.least(size) < resolution
    sizes = range(1, _MOST_NEEDED)
    possible = [row for row in compared if enough(row, _MOST_NEEDED)]
    if not possible:
        least = len(compared) * min(row.least(_MOST_NEEDED) for row in compared)
        raise InvalidArgument(
            f"No number of examples could reach the level {level:g} over {len(compared)} rows: the examples with which "
            f"they are compared are too few; give a level above {least:.2g}."
        )
    needed = [1 + bisect.bisect_left(sizes, True, key=functools.partial(enough, row)) for row in possible]
    if not any(enough(row, number) for row in compared):
        examples = "1 example is" if number == 1 else f"{number:,} examples are"
        raise InvalidArgument(
            f"{examples} too few to find drift: no result could reach the level {level:g} over {len(compared)} rows; "
            f"give at least {min(needed):,} ({max(needed):,} for all rows)."
        )
    tests = [(row.name, *row.test(resolution)) for row in compared]
    most = max(needed) if len(possible) == len(compared) else None
    return bfl.evaluation.drifts(tests, level, [row.least(number) for row in compared]), most


def _read(path: pathlib.Path) -> bfl.evaluation.Histograms:
    arrays = read_arrays(path, "file of histograms", _MOST_BYTES, compressed=True)
    names, bins, lower, counts = (arrays.get(key, np.zeros(0)) for key in ("names", "bins", "lower", "counts"))
    well = names.dtype.kind == "U" and names.ndim == bins.ndim == lower.ndim == counts.ndim == 1 and len(names) > 0
    well = well and bins.dtype.kind == counts.dtype.kind == "i" and lower.dtype.kind == "f"
    well = well and bool(np.all(bins >= 1)) and bool(np.all(counts >= 0)) and len(names) == len(bins)
    if not (well and len(lower) == len(counts) == bins.sum()):
        raise InvalidArgument(f"{name(path)} is not a run's file of histograms.")
    ends = np.cumsum(bins)[:-1]
    parts = zip(np.split(lower, ends), np.split(counts, ends))
    return bfl.evaluation.Histograms(tuple(names.tolist()), tuple(bfl.evaluation.drift.Counts(*x) for x in parts))
