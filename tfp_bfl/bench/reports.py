"""Pages and tables about one run or several, written from their folders: `tfp-bfl report` and `bfl.report`."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import tensorflow as tf

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl import files
from tfp_bfl.app.one_run import datasets
from tfp_bfl.app.one_run import records as written
from tfp_bfl.app.one_run.program import Run
from tfp_bfl.app.options.config import RunConfig
from tfp_bfl.app.options.given_data import GivenData
from tfp_bfl.app.options.own_model import names_code, trust
from tfp_bfl.app.options.resolve import title
from tfp_bfl.bench.run_tables import DEFAULT, Style, curves, named, table_text
from tfp_bfl.bench.runs import RunGroup, expand, grouped
from tfp_bfl.data.encoding import scaled
from tfp_bfl.data.series import series_columns
from tfp_bfl.errors import InvalidArgument, shown
from tfp_bfl.export.info import has_unusual
from tfp_bfl.files.tables import FORMATS
from tfp_bfl.output import command_line
from tfp_bfl.plots.style import save_all

if TYPE_CHECKING:  # What draws is imported when something is drawn.
    from tfp_bfl.plots import RunResults
_BATCH = 500
UNUSUAL = "unusual"
Path = str | os.PathLike[str]


def report(
    runs: Run | Path | Sequence[Run | Path],
    output: Path,
    *,
    dataset: object = None,
    test_data: object = None,
    ood: str | None = None,
    columns: Sequence[str] | None = None,
    digits: int | None = None,
    percent: bool = False,
    interval: bool = False,
    rows: Mapping[str, str] | None = None,
    caption: str | None = None,
    label: str | None = None,
    names: Mapping[str, str] | None = None,
    figures: Sequence[str] = (),
) -> pathlib.Path:
    """Write a page or a table about runs, as `tfp-bfl report` does, and return its path.

    Runs that differ in their seeds alone are a group: its first run is shown, its scores are mean and standard
    deviation.

        found = bfl.run("my_run", dataset="digits")
        bfl.report(found, "page.html")
        bfl.report(["rules", "another_run"], "scores.tex", columns=["accuracy", "nll"], percent=True)

    Args:
      runs: a result of `run`, the folder of a run or of many runs, or a sequence of these.
      output: a new file: .html for a page; .md, .tex or .csv for a table of scores.
      dataset: data in memory of runs that are named by their folders, as `run` got them; a result of `run` has them.
        Or FILE.py:FUNCTION of these runs, which is executed.
      test_data: the test set in memory of these runs.
      ood: out-of-distribution examples for the page: a dataset, of whose test split as many are drawn by the run's seed
        as the run's test set has at most; or a path of images, or of a table with the columns of the runs, without
        labels.
      columns: of a table, such as ["accuracy", "nll"]; None for as many scores as fit into a line.
      digits: decimals of a table; None for 4, of percentages 2.
      percent: accuracies and other shares of a table are percentages.
      interval: half the width of the 95 % interval of each mean of a table in place of the standard deviation.
      rows: row -> label of a table, in this order, such as {"rule=conflation": "Conflation"}; other rows follow.
      caption, label: of a table in LaTeX, which becomes a table environment.
      names: name -> row of tables, pages and figures, such as {"FedAvg": "algorithm=fed_opt"}.
      figures: formats, such as ["pdf", "svg"], of learning curves, and of all figures of a page about one run. Of
        page.html they are in the new folder page_figures.

    Raises:
      InvalidArgument: as the command line answers with status 2, or the data are not those of the runs. Nothing has
        been written then.
    """
    # A simulation's result is a tuple, too, but of no runs.
    is_several = isinstance(runs, Iterable) and not (isinstance(runs, (Run, str)) or hasattr(runs, "_fields"))
    every: list[Any] = list(cast(Iterable[Any], runs)) if is_several else [runs]
    if not every:
        raise InvalidArgument("runs is empty, but must be a result of bfl.run, a folder, or several of these.")
    trust({"dataset": dataset})
    in_memory = None if dataset is None or names_code(dataset) else GivenData(dataset, test_data)
    given: list[tuple[pathlib.Path, GivenData | None]] = []
    for one in every:
        if not isinstance(one, (Run, str, os.PathLike)):
            what = f"a {type(one).__name__}" if hasattr(one, "_fields") else shown(one)
            raise InvalidArgument(f"runs holds {what}, but must hold results of bfl.run or folders of runs.")
        given += [(one.folder, one.data)] if isinstance(one, Run) else [(path, in_memory) for path in expand([one])]
    path, style = pathlib.Path(output), Style(columns, digits, percent, rows or {}, interval, caption, label)
    folder = path.with_name(f"{path.stem}_figures")
    figures = files.figure_formats(",".join(figures)) if figures else ()
    if path.suffix[1:] in files.FIGURES:
        raise InvalidArgument(f"{files.name(path)} is no page or table: give --figures, and --output another suffix.")
    for new in filter(os.path.lexists, (path, folder) if figures else (path,)):
        raise InvalidArgument(f"{files.name(new)} exists already: give --output a new file, nothing is overwritten.")
    if len({folder.resolve() for folder, _ in given}) < len(given):
        raise InvalidArgument("A run is named twice: name each of them once.")
    records = [written.read_record(folder) for folder, _ in given]
    folders = [run for run, _ in given]
    groups = named(grouped(records, folders), names or {})
    if path.suffix not in FORMATS:
        if style != DEFAULT:
            raise InvalidArgument(
                f"columns, digits, percent, interval, rows, caption and label are of tables, and {files.name(path)} is "
                "a page: give --output a file that ends in .md, .tex or .csv."
            )
        return _write_page(path, given, records, groups, ood, (folder, figures))
    if ood:
        raise InvalidArgument("--ood is of pages, and a table holds the runs' own scores: leave it out.")
    text = table_text(groups, path.suffix, style)
    with _writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        if figures:
            save_all(curves(groups, folders), folder, figures)
    return path


@contextlib.contextmanager
def _writing(path: pathlib.Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InvalidArgument(f"The report {files.name(path)} can't be written: {error.strerror}.") from None


def _write_page(
    path: pathlib.Path,
    given: Sequence[tuple[pathlib.Path, GivenData | None]],
    records: Sequence[tuple[RunConfig, dict[str, Any]]],
    groups: Sequence[RunGroup],
    ood: str | None,
    saved: tuple[pathlib.Path, Sequence[str]],
) -> pathlib.Path:
    """Write the page of runs, of which each group with several seeds shows its first, and the figures to be saved."""
    every, number, repeated = [folder for folder, _ in given], len(given), any(len(group.runs) > 1 for group in groups)
    figures = curves(groups, every) if repeated or len(given) > 1 else {}
    if repeated:
        firsts = [group.runs[0] for group in groups]
        given, records = [given[i] for i in firsts], [records[i] for i in firsts]
    paths = [folder for folder, _ in given]
    short = [path.resolve().name for path in paths]  # Last names, if all are different.
    names = short if len(set(short)) == len(short) else [str(path) for path in paths]
    names = [group.repeated.name for group in groups] if repeated or any(group.is_named for group in groups) else names
    loaded = zip(records, given)
    sources = {datasets.key(config): datasets.load(config, data) for (config, _), (_, data) in loaded}
    others = _others(ood, records, sources) if ood else []
    runs = [_read_results(folder, name, *record, sources) for folder, name, record in zip(paths, names, records)]
    if others:
        runs = [
            run._replace(
                out_of_distribution=_predict(folder / "saved_model", other, config, len(run.labels)),
                unusual=_unusual(folder / "saved_model", sources[datasets.key(config)].test),
            )
            for run, folder, other, (config, _) in zip(runs, paths, others, records)
        ]
    data_names = sorted({data.train.name for data in sources.values()})
    config, summary = records[0]
    of_several = f"The runs are of different datasets, {', '.join(data_names)}: their scores do not compare."
    several = f"{number} runs on {' and '.join(data_names)}"
    figures = {**bfl.plots.run_figures(runs[0]), **figures} if len(runs) == 1 else figures
    with _writing(path):
        bfl.plots.write_report(
            path,
            runs,
            title=title(config, written.weights_in(summary)) if len(runs) == 1 else several,
            warnings=[of_several] if len(data_names) > 1 else [],
            out_of_distribution=others[0].name if others else "",
            figures=figures,
            repeated=[group.repeated for group in groups] if repeated else (),
            command=command_line() or shlex.join(["tfp-bfl", "report", *map(str, every), "--output", str(path)]),
        )
        if saved[1]:
            save_all(figures, *saved)
    return path


def _read_results(
    folder: pathlib.Path, name: str, config: RunConfig, summary: dict[str, Any], sources: Mapping[Any, Any]
) -> RunResults:
    data = sources[datasets.key(config)]
    test = data.test
    rounds = written.read_json(folder / "metrics.jsonl", "file of metrics", written.MOST_ROUNDS_BYTES)
    predictions = written.read_predictions(folder / "predictions.npz", test.num_examples, test.num_classes)
    if len(predictions["labels"]) != test.num_examples:
        raise InvalidArgument(
            f"{files.name(folder / 'predictions.npz')} is not a run's file of predictions of {test.name}'s test set."
        )
    if not np.array_equal(predictions["labels"], written.truth(test)):
        raise InvalidArgument(
            f"The predictions in {files.name(folder)} are not of the test set that {config.dataset} has here: report "
            "the run where it was made, or give it the same data."
        )
    clients = datasets.shares(config, data.train, data.clients).clients
    return written.results(name, config, summary, rounds, predictions, test, clients, folder)


def _others(ood: str, records: Sequence[tuple[RunConfig, Any]], sources: Mapping[Any, Any]) -> list[bfl.data.Source]:
    """Return the other dataset for each run: the test split of a dataset, or the examples of a path."""
    is_path = os.path.lexists(ood)
    test_sets = [sources[datasets.key(config)].test for config, _ in records]
    for source, (config, _) in zip(test_sets, records):
        in_training = (config.dataset, config.test_data or config.dataset)
        if any(os.path.exists(x) and os.path.samefile(x, ood) for x in in_training) if is_path else source.name == ood:
            raise InvalidArgument(f"--ood {ood} is what a run was trained on: name another dataset of its shape.")
    if is_path:
        return [_from_path(pathlib.Path(ood), source, x) for source, (x, _) in zip(test_sets, records)]
    other = bfl.data.load(ood, "test", records[0][0].data_dir, records[0][0].image_size)
    form = lambda source: f"{source.features.dtype} {list(source.element_shape)}"
    for source in test_sets:
        if form(other) != form(source):
            raise InvalidArgument(
                f"--ood {ood} has examples {form(other)}, but those of {source.name} are {form(source)}: name a "
                "dataset of that form."
            )
    return [other] * len(test_sets)


def _from_path(path: pathlib.Path, like: bfl.data.Source, config: RunConfig) -> bfl.data.Source:
    """Return the images of a path, or the rows of a table, in the form that a run's model accepts; without labels."""
    if like.columns:
        series = series_columns(config.series_column, config.time_column, like.element_shape[0])
        encoded = bfl.data.read_encoded(path, like.encoding, like.columns, series=series)
        features = scaled(encoded.rows, like.columns)
    elif len(like.element_shape) == 3:
        images = bfl.data.read_images(path, like.element_shape)
        if images.failures:
            raise InvalidArgument(f"The image {' '.join(images.failures[0])}: all images of --ood must be readable.")
        features = images.pixels
    else:
        raise InvalidArgument(
            f"--ood {path} is a path, and {like.name} has neither images nor columns with names: name a dataset."
        )
    labels = np.zeros(len(features), np.int32)
    return bfl.data.Source(path.stem, "test", features, labels, ("unknown",), columns=like.columns)


def _predict(model: pathlib.Path, other: bfl.data.Source, config: RunConfig, most: int) -> dict[str, np.ndarray]:
    """Return the uncertainties of a run's model, by the weight samples of its own predictions, and `unusual`."""
    loaded = bfl.export.load(model)  # Whose variables live as long as it does.
    parts = []
    for images in _batches(other.subset(min(most, other.num_examples), seed=config.seed)):
        samples = loaded.sample(images, num_samples=config.num_samples, seed=config.seed)
        if "probabilities" not in samples:
            parts.append(loaded.predict(images, num_samples=config.num_samples, seed=config.seed))
            continue
        probabilities, mean = samples["probabilities"], loaded.mean(images)
        summary, entropies = bfl.evaluation.summarise(probabilities), bfl.evaluation.decompose_entropy(probabilities)
        scores = {name: x for name, x in mean.items() if name == UNUSUAL}
        parts.append({**summary._asdict(), **entropies._asdict(), **scores})
    wanted = [key for key in (*written.UNCERTAINTIES, "stddev", UNUSUAL) if key in parts[0]]
    return {key: np.concatenate([part[key].numpy() for part in parts]) for key in wanted}


def _unusual(model: pathlib.Path, test: bfl.data.Source) -> np.ndarray | None:
    """Return the scores of unusual examples [N]; None for a model without this output."""
    if not has_unusual(bfl.export.read_info(model)):
        return None
    loaded = bfl.export.load(model)
    return np.concatenate([loaded.mean(images)[UNUSUAL].numpy() for images in _batches(test)])


def _as_exported(source: bfl.data.Source) -> np.ndarray:
    """Return examples as an exported model accepts them: it standardises the columns of a table itself."""
    if not source.columns:
        return source.features
    means, scales = (np.array([getattr(column, name) for column in source.columns]) for name in ("mean", "scale"))
    exact: np.ndarray = source.features.astype(np.float64) * scales + means
    return exact


def _batches(source: bfl.data.Source) -> Iterator[tf.Tensor]:
    features = _as_exported(source)
    return (tf.constant(features[start : start + _BATCH]) for start in range(0, len(features), _BATCH))
