"""A comparison of users' files with what a run saw in training: its histograms, and the scores of its model."""

from __future__ import annotations

import functools
import os
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Union

import numpy as np

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl.app.one_run.predict import BATCH_SIZE, read_examples
from tfp_bfl.app.one_run.records import HELD_OUT, PREDICTIONS, read_predictions
from tfp_bfl.app.options.config import make_config
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.faces import Later
from tfp_bfl.files import name
from tfp_bfl.files.arrays import read_arrays, write_arrays

if TYPE_CHECKING:
    import tensorflow as tf
else:
    tf = Later("tensorflow")

HISTOGRAMS = "training_histograms.npz"
_MOST_BYTES = 2**26
_MOST_EXAMPLES = 10_000_000
# Of a prediction that is compared; the classes are compared by their shares.
_OF_CLASSES, _OF_NUMBERS = ("entropy",), ("mean", "stddev")


class Report(NamedTuple):
    """The result of `drift`.

    Fields:
      rows: of features and scores.
      number: of new examples.
      of_training: the number of training examples.
      reference: the examples with whose scores the new ones are compared, in words.
      failures: (name, reason) of each image that could not be read.
    """

    rows: Sequence[bfl.evaluation.Drift]
    number: int
    of_training: int
    reference: str
    failures: Sequence[tuple[str, str]] = ()

    @property
    def found(self) -> bool:
        """Whether there is any drift."""
        return any(row.found for row in self.rows)


def record(folder: pathlib.Path, clients: bfl.data.ClientData, train: bfl.data.Source) -> None:
    """Write the histograms of all clients' examples, added, to a run's folder; of sequences there are none."""
    if len(train.element_shape) not in (1, 3):
        return
    names = [column.name for column in train.columns or ()]
    each = (
        bfl.evaluation.feature_histograms(clients.examples(k).features, names)
        for k in range(clients.num_clients)
        if clients.sizes[k]
    )
    total = functools.reduce(bfl.evaluation.add_histograms, each)
    arrays = {"names": np.array(total.names, np.str_), "edges": total.edges, "counts": total.counts}
    write_arrays(folder / HISTOGRAMS, arrays, compressed=True)


def drift(
    run: Union[str, os.PathLike],
    paths: Union[str, os.PathLike, Sequence[Union[str, os.PathLike]]],
    *,
    level: float = 0.01,
    separator: Any = None,
) -> Report:
    """Compare the examples of files with those of a run's training.

    Features are compared with the histograms of all clients' training examples. The model's scores are compared with
    its scores of held-out examples, or of the test set where none were held out: on training examples they would be too
    confident. The share of unusual examples is compared with the rate of false alarms of that output.

    Args:
      run: the folder of a complete run.
      paths: as of `predict`.
      level: the probability that drift is found though both samples have one distribution, at most.
      separator: column separator of .csv files.

    Raises:
      InvalidArgument: no folder of a run with histograms, nothing can be read, or a level out of its range.
    """
    bfl.evaluation.drifts([], level)
    folder = pathlib.Path(run)
    model = bfl.export.find(folder)
    if not (folder / HISTOGRAMS).is_file():
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
        features = (features - means) / stddevs
    new = bfl.evaluation.feature_histograms(features, [column[0] for column in columns])
    if new.names != training.names or new.counts.shape != training.counts.shape:
        raise InvalidArgument(f"{name(folder / HISTOGRAMS)} is of other features than the model of the run.")
    tests = [(key, *bfl.evaluation.homogeneity(a, b)) for key, a, b in zip(new.names, training.counts, new.counts)]
    held_out = (folder / HELD_OUT).is_file()
    of_scores = _scores(folder / (HELD_OUT if held_out else PREDICTIONS), model, info, examples.pixels, folder)
    rows = bfl.evaluation.drifts([*tests, *of_scores], level)
    reference = f"{'held-out' if held_out else 'test'} examples"
    return Report(rows, len(features), int(training.counts[0].sum()), reference, examples.failures)


def _scores(
    path: pathlib.Path, model: pathlib.Path, info: bfl.export.Info, examples: Any, folder: pathlib.Path
) -> list[tuple[str, float, float]]:
    """Return the tests of the model's scores against the predictions in a file."""
    from scipy import stats

    num_classes = int((info.model or {})["num_classes"])
    reference = read_predictions(path, _MOST_EXAMPLES, num_classes)
    config = make_config(folder / "config.yaml", {}, runs_code=False)
    loaded = bfl.export.load(model)
    parts = []
    for start in range(0, len(examples), BATCH_SIZE):
        batch = tf.constant(examples[start : start + BATCH_SIZE])
        answer = loaded.predict(batch, num_samples=config.num_samples, seed=config.seed)
        parts.append({key: value.numpy() for key, value in answer.items()})
    new = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    compared = _OF_CLASSES if num_classes else _OF_NUMBERS
    found = [
        (f"score: {key}", *bfl.evaluation.homogeneity(*bfl.evaluation.count_between(reference[key], new[key])))
        for key in compared
    ]
    if num_classes:
        count = lambda labels: np.bincount(labels, minlength=num_classes)
        predicted = count(reference["probabilities"].argmax(1)), count(new["label"])
        found.append(("score: predicted classes", *bfl.evaluation.homogeneity(*predicted)))
    if "unusual" in new:
        stated, number = (info.data or {})["unusual"], len(new["unusual"])
        rate, above = stated["rate"], int(np.sum(~(new["unusual"] <= 1)))
        # The threshold is an order statistic of n held-out scores: the rate of one model is Beta, with this mean.
        held = stated["number"] + 1
        law = stats.betabinom(number, rate * held, max((1 - rate) * held, 1e-9))
        p_value = float(law.sf(above - 1)) if above else 1.0
        found.append(("score: unusual examples", max(0.0, above / number - rate), p_value))
    return found


def _read(path: pathlib.Path) -> bfl.evaluation.Histograms:
    arrays = read_arrays(path, "file of histograms", _MOST_BYTES, compressed=True)
    names, edges, counts = (arrays.get(key, np.zeros(0)) for key in ("names", "edges", "counts"))
    well = names.dtype.kind == "U" and names.ndim == 1 and counts.dtype.kind == "i" and edges.dtype.kind == "f"
    if not well or counts.shape != (len(names), len(edges) + 1) or not len(names) or np.any(counts < 0):
        raise InvalidArgument(f"{name(path)} is not a run's file of histograms.")
    return bfl.evaluation.Histograms(tuple(names.tolist()), edges, counts)
