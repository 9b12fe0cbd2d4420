"""Builds the tables and figures of the studies from their records: `nox -s tables`.

A study is built if its records, its program or the library's tables and plots have changed since it was built last, or
if a file that it wrote is missing. `make docs` does the same before it reads the pages.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import io
import json
import pathlib
import tempfile
import time
from collections.abc import Iterable, Sequence

from experiments import claims
from experiments.bench import page
from experiments.published import page as published

ROOT = pathlib.Path(__file__).parent.parent
HERE = ROOT / "experiments"
STAMPS = ROOT / "build" / "tables"
# Written by `tfp-bfl bench`, which has no command of its own in `experiments`.
BENCH = "bench"
# Study -> the calls of its command that make all of them: the folder in `results` and the arguments of each.
WHOLE = (("", ()),)
STUDIES: dict[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    "aggregation": (("", ("--size", "fashion_mnist")), ("", ("--size", "paper"))),
    BENCH: (("natural", ()), ("images", ()), ("longer", ()), ("published", ())),
    "client_heads": WHOLE,
    "default_posterior": WHOLE,
    "fl_swag": (("", ("--size", "full")),),
    "global_posterior": WHOLE,
    # Named, so that the command looks for no other dataset.
    "kernel_posterior": (
        ("", ("--table", "server_steps", "--table", "popularity_of_writers", "--characters", "mnist_writers")),
        ("", ("--table", "rate_trials", "--table", "chosen_rates")),
    ),
    "heads": WHOLE,
    "limits": WHOLE,
    "metavd": WHOLE,
    "privacy": WHOLE,
    "qlsd": (*WHOLE, ("full", ("--size", "full"))),
    "robustness": WHOLE,
}
LIBRARY = ("tfp_bfl/bench", "tfp_bfl/evaluation", "tfp_bfl/files", "tfp_bfl/plots")


def results_of(study: str) -> pathlib.Path:
    return HERE / study / "results"


def sources(study: str) -> list[pathlib.Path]:
    """Return the files that decide what the tables and figures of a study are."""
    programs = [*HERE.glob("*.py"), *(HERE / study).glob("*.py")]
    for folder in LIBRARY:
        programs += (ROOT / folder).rglob("*.py")
    return sorted([*programs, *results_of(study).rglob("records.jsonl")])


def digest(paths: Iterable[pathlib.Path]) -> str:
    """Return a hash of the names and the contents of files."""
    found = hashlib.sha256()
    for path in paths:
        found.update(f"{path.relative_to(ROOT)}\0{path.stat().st_size}\0".encode())
        found.update(path.read_bytes())
    return found.hexdigest()


def is_built(study: str) -> bool:
    """Return whether the files of a study are there and follow from its sources as they are now."""
    try:
        stamp = json.loads((STAMPS / f"{study}.json").read_text())
    except (OSError, ValueError):
        return False
    return stamp["sources"] == digest(sources(study)) and all((ROOT / name).is_file() for name in stamp["files"])


def build(study: str, arguments: Sequence[str], results: pathlib.Path) -> None:
    """Write the tables and figures that one call of a study's command makes of records.

    Args:
      study: its package in `experiments`.
      arguments: of its command; none for the benchmark.
      results: the folder of its results, which has the records.
    """
    if study == BENCH:
        from tfp_bfl.bench.page import write_tables

        write_tables(results)
        return
    command = importlib.import_module(f"experiments.{study}.run").main
    with tempfile.TemporaryDirectory() as empty, contextlib.redirect_stdout(io.StringIO()):
        folders = ("--output", empty, "--results", str(results))  # No cells: runs of the user change no records here.
        command.main([*arguments, *folders, "--tables"], prog_name=study, standalone_mode=False)


def build_study(study: str) -> None:
    """Write all tables and figures of a study, and note what they were made of."""
    before = digest(sources(study))
    for folder, arguments in STUDIES[study]:
        build(study, arguments, results_of(study) / folder)
    files = sorted(str(path.relative_to(ROOT)) for path in results_of(study).rglob("*") if path.is_file())
    STAMPS.mkdir(parents=True, exist_ok=True)
    (STAMPS / f"{study}.json").write_text(json.dumps({"sources": before, "files": files}))


def main() -> None:
    """Build what is not built, the claims of the front page, the benchmark's tables and the published ones."""
    for study in STUDIES:
        if not is_built(study):
            started = time.perf_counter()
            build_study(study)
            print(f"{study}: tables and figures built in {time.perf_counter() - started:.1f} s", flush=True)
    claims.fill_page()
    page.fill_page()
    published.fill_page()


if __name__ == "__main__":
    main()
