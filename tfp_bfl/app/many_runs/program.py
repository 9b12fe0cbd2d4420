"""A report from Python: the page or the table that the command line gives."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from tfp_bfl.app.many_runs.listing import expand
from tfp_bfl.app.many_runs.report import write
from tfp_bfl.app.many_runs.score_tables import Style
from tfp_bfl.app.one_run.program import Run
from tfp_bfl.app.options.given_data import GivenData
from tfp_bfl.app.options.own_model import names_code, trust
from tfp_bfl.errors import InvalidArgument, shown

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
    rows: Mapping[str, str] | None = None,
) -> pathlib.Path:
    """Write a page or a table about runs, as `tfp-bfl report` does, and return its path.

        found = bfl.run("my_run", dataset="digits")
        bfl.report(found, "page.html")
        bfl.report(["rules", "another_run"], "scores.tex", columns=["accuracy", "nll"], percent=True)

    Args:
      runs: a result of `run`, the folder of a run or of many runs, or a sequence of these.
      output: a new file: .html for a page; .md, .tex or .csv for a table of scores.
      dataset: data in memory of runs that are named by their folders, as `run` got them; a result of `run` has them.
        Or FILE.py:FUNCTION of these runs, which is executed.
      test_data: the test set in memory of these runs.
      ood: a dataset of out-of-distribution images for the page.
      columns: of a table, such as ["accuracy", "nll"]; None for every score.
      digits: decimals of a table; None for 4, of percentages 2.
      percent: accuracies and other shares of a table are percentages.
      rows: row -> label of a table, in this order, such as {"rule=conflation": "Conflation"}; other rows follow.

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
    named = None if dataset is None or names_code(dataset) else GivenData(dataset, test_data)
    folders: list[pathlib.Path] = []
    given: list[GivenData | None] = []
    for one in every:
        if not isinstance(one, (Run, str, os.PathLike)):
            what = f"a {type(one).__name__}" if hasattr(one, "_fields") else shown(one)
            raise InvalidArgument(f"runs holds {what}, but must hold results of bfl.run or folders of runs.")
        expanded = [one.folder] if isinstance(one, Run) else expand([pathlib.Path(one)])
        folders += expanded
        given += [one.data if isinstance(one, Run) else named] * len(expanded)
    style = Style(columns, digits, percent, rows or {})
    return write(folders, pathlib.Path(output), ood, style, given)
