"""One page about one run or several side by side, in a single file that opens from disk."""

import os
import pathlib
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from tfp_bfl.errors import InvalidArgument
from tfp_bfl.files import Path
from tfp_bfl.plots import tables
from tfp_bfl.plots.page import About, page_text, write_page
from tfp_bfl.plots.results import RunResults
from tfp_bfl.plots.score_tables import Repeated
from tfp_bfl.plots.sections import sections


def write_report(
    path: Path,
    runs: Sequence[RunResults],
    *,
    title: str | None = None,
    warnings: Sequence[str] = (),
    out_of_distribution: str = "",
    figures: Mapping[str, Figure] | None = None,
    repeated: Sequence[Repeated] = (),
    command: str = "",
) -> pathlib.Path:
    """Write a self-contained HTML page: pictures and style inline, no script, nothing loaded from elsewhere.

    Several runs stand side by side: what differs between their settings, their learning and retention curves in one
    picture, all else next to each other.

    Args:
      path: the file to write, such as "run/report.html"; missing folders are made, an old file is replaced.
      runs: their names all different.
      title: the heading; the runs' names if None.
      warnings: whole sentences, shown above everything else, with those of the runs.
      out_of_distribution: where the runs' `out_of_distribution` examples come from, such as "mnist".
      figures: of a single run, those of `run_figures`, of several "learning_curve", which get the page's size; what is
        missing is drawn anew.
      repeated: the runs' scores over seeds, whose tables take the place of the runs' own.
      command: of several runs, the command that repeats them or the page.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise InvalidArgument(f"path comes first: the file to write, and here is a {type(path).__name__}.")
    path = pathlib.Path(path)
    if path.is_dir():
        raise InvalidArgument(f"The report's path must be a file, but {str(path)!r} is a folder.")
    if isinstance(warnings, str) or any(isinstance(run.warnings, str) for run in runs):
        raise InvalidArgument("The warnings must be a list of sentences, not one string.")
    names = [run.name for run in runs]
    if not names or len(set(names)) < len(names):
        raise InvalidArgument(f"A report needs at least one run, and a name of its own for each, not {names}.")
    single = len(runs) == 1
    of = lambda run, sentence: sentence if single else f"{run.name}: {sentence}"
    stated = About(*("; ".join(dict.fromkeys(filter(None, part))) for part in zip(*(run.about for run in runs))))
    page = page_text(
        title or " and ".join(filter(None, [", ".join(names[:-1]), names[-1]])),
        stated if single else stated._replace(command=command),
        [*sections(runs, out_of_distribution, figures, repeated)],
        statements=[of(run, f"{run.statement}.") for run in runs if run.statement],
        warnings=[*warnings, *(of(run, warning) for run in runs for warning in run.warnings)],
        headlines=tables.headlines(runs[0]) if single and not repeated else [],
    )
    return write_page(path, page)
