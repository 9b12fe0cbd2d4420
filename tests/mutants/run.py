"""How many small faults of the arithmetic the tests notice.

    python -m tests.mutants.run --sample 200     (nox -s mutants -- --sample 200)
    python -m tests.mutants.run --sample 200 --deep    # what these do not notice, by the deep tests of the same files

Each mutant is a fork of this process, which has imported TensorFlow and nothing of the library; it takes the changed
module from a file of its own (AutoGraph reads source from there) and runs the tests of `tests_of` until one fails.
Mutants that change nothing anyone can see stand in accepted.txt, with why. Ends with 1 below `WANTED` of the others.

mutmut 3.8.1 with a fork server runs these tests too, but it makes 2,318 mutants of tfp_bfl/rules, two thirds of them a
changed argument of a call, where this makes 854; it takes no sample of them, runs every test once beforehand to map
tests to functions, and has its exceptions as comments in the code.
"""

from __future__ import annotations

import argparse
import ast
import gc
import importlib
import importlib.util
import itertools
import os
import random
import re
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.mutants.mutations import Mutant, mutants

ROOT = Path(__file__).resolve().parents[2]
FAST, DEEP = TIERS = ("not deep", "deep and not long")
# CPU seconds of a mutant's deep tests, which stop at the first that fails.
DEEP_SECONDS = 3600
NO_TESTS = 5
ACCEPTED = Path(__file__).with_name("accepted.txt")
PACKAGES = ("rules", "posterior", "training", "clients", "servers", "algorithms", "glm")
WANTED = 0.9
# What the tests import besides the library: once, instead of in each fork.
SLOW_TO_IMPORT = ("tensorflow", "tensorflow_probability", "tensorflow_federated", "sklearn.datasets", "scipy.stats")
SLOW_TO_IMPORT += ("matplotlib.pyplot", "hypothesis", "KDEpy", "pytest", "pydantic", "xdist", "pytest_timeout")

# Tests elsewhere than beside the file, and what tests it first.
ALSO = {
    "glm/effects": ["tests/glm/test_hierarchical.py"],
    "glm/report": ["tests/glm/test_command.py"],
    "rules/aggregate": ["tests/rules/test_contract.py", "tests/rules/test_arguments.py"],
    "training/batches": ["tests/federated/test_compiled.py"],
    "training/trainer": ["tests/federated/test_compiled.py"],
}
# Packages that the tests of another package cover as well.
ALSO_BY = {"training": ("clients", "algorithms"), "clients": ("algorithms",), "servers": ("algorithms",)}


class Verdict(NamedTuple):
    is_killed: bool
    by: str
    seconds: float
    tier: str = FAST


def tests_of(path: str) -> list[str]:
    """The test files of a file of the library: those of its name first, then those of its folder."""
    folder, name = path.removeprefix("tfp_bfl/").removesuffix(".py").rsplit("/", 1)
    folders = (folder, *ALSO_BY.get(folder, ()))
    files = (p for name in folders for p in sorted((ROOT / "tests" / name).glob("test_*.py")))
    beside = [str(p.relative_to(ROOT)) for p in files]
    own = [p for p in beside if Path(p).stem == f"test_{name}"]
    return list(dict.fromkeys([*own, *ALSO.get(f"{folder}/{name}", []), *beside]))


def all_mutants(files: list[str]) -> Iterator[tuple[str, ast.AST, Mutant]]:
    for path in files:
        tree = ast.parse((ROOT / path).read_text())
        yield from ((path, tree, mutant) for mutant in mutants(tree))


def accepted() -> dict[str, str]:
    """Why a change, "path: change", is no fault."""
    blocks = [block.strip() for block in ACCEPTED.read_text().split("\n\n")]
    return dict(block.split("\n    ", 1) for block in blocks if block and not block.startswith("#"))


def start(path: str, source: str | None, folder: Path, cpu_seconds: int, tier: str = FAST) -> int:
    """Forks; the child runs the file's tests on `source` instead of what is there and ends with pytest's status."""
    folder.mkdir()
    pid = os.fork()
    if pid:
        return pid
    status = 70
    try:
        log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
        signal.alarm(20 * cpu_seconds)
        if source is not None:
            (folder / Path(path).name).write_text(source)
            sys.meta_path.insert(0, _Finder(path, folder / Path(path).name))
        import pytest

        options = ["-x", "-q", "--tb=line", "-p", "no:cacheprovider", "-o", "addopts=", "-m", tier]
        status = int(pytest.main([*options, "--basetemp", str(folder / "temporary"), *tests_of(path)]))
        sys.stdout.flush()
    finally:
        os._exit(status)


class _Finder:
    """Finds one module of the library elsewhere."""

    def __init__(self, path: str, instead: Path) -> None:
        self.name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        self.instead = instead
        self.inside = [str((ROOT / path).parent)] if path.endswith("__init__.py") else None

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        if name != self.name:
            return None
        return importlib.util.spec_from_file_location(name, self.instead, submodule_search_locations=self.inside)


def wait(started: dict[int, object], folders: dict[int, Path]) -> tuple[int, Verdict]:
    while True:
        pid, status, usage = os.wait4(-1, 0)
        if pid in started:
            break
    log = (folders[pid] / "log").read_text(errors="replace")
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", log, re.MULTILINE)
    code = os.waitstatus_to_exitcode(status)
    if code == NO_TESTS:
        return pid, Verdict(False, "no tests", usage.ru_utime + usage.ru_stime)
    if code in (4, 70):
        raise SystemExit(f"The tests could not be run:\n{log}")
    by = failed[0] if failed else "its limit of time" if code < 0 else f"status {code}"
    return pid, Verdict(code != 0, by, usage.ru_utime + usage.ru_stime)


def run(
    chosen: list[tuple[str, ast.AST, Mutant]], jobs: int, cpu_seconds: int, table: Path, tiers: Sequence[str]
) -> list[tuple[str, Mutant, Verdict]]:
    """Each set of tests on what is there first, for how long they take; not if `cpu_seconds` says it."""
    rows, started, folders, numbers, limits = [], {}, {}, itertools.count(), {}
    with tempfile.TemporaryDirectory() as base, table.open("w") as out:
        for path in sorted({path for path, _, _ in chosen}):
            tests = frozenset(tests_of(path))
            if tests in limits or cpu_seconds:
                limits[tests] = limits.get(tests, cpu_seconds)
                continue
            folder = Path(base, f"{next(numbers)}")
            pid = start(path, None, folder, 3600)
            _, verdict = wait({pid: None}, {pid: folder})
            if verdict.is_killed:
                raise SystemExit(f"The tests of {path} fail without a change: {verdict.by}")
            limits[tests] = 20 + int(4 * verdict.seconds)
            print(f"{path}: {verdict.seconds:.0f} CPU seconds", flush=True)
        left = [(row, tiers) for row in reversed(chosen)]
        while left or started:
            while left and len(started) < jobs:
                (path, tree, mutant), (tier, *_) = row = left.pop()
                folder = Path(base, f"{next(numbers)}")
                limit = limits[frozenset(tests_of(path))] if tier == FAST else DEEP_SECONDS
                pid = start(path, mutant.source(tree), folder, limit, tier)
                started[pid], folders[pid] = row, folder
            pid, verdict = wait(started, folders)
            (path, tree, mutant), (tier, *later) = started.pop(pid)
            word = "killed  " if verdict.is_killed else "survived"
            print(
                f"{word} {path}:{mutant.line} {mutant.change} [{tier}: {verdict.by}; {verdict.seconds:.0f} s]",
                file=out,
                flush=True,
            )
            if later and not verdict.is_killed:
                left.append(((path, tree, mutant), later))
            else:
                rows.append((path, mutant, verdict._replace(tier=tier)))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="*", help="of the library; without any all of " + ", ".join(PACKAGES))
    parser.add_argument("--sample", type=int, default=0, help="this many of the mutants; 0 takes all of them")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--cpu-seconds", type=int, default=0, help="of a mutant; 0 for four times those of its tests")
    parser.add_argument("--deep", action="store_true", help="run the deep tests on what the fast ones do not notice")
    parser.add_argument("--table", type=Path, default=ROOT / "build" / "mutants.txt")
    args = parser.parse_args()
    files = args.files or [
        str(p.relative_to(ROOT)) for name in PACKAGES for p in sorted((ROOT / "tfp_bfl" / name).rglob("*.py"))
    ]
    everything, known = list(all_mutants(files)), accepted()
    asked = [row for row in everything if f"{row[0]}: {row[2].change}" not in known]
    sample = args.sample or len(asked)
    chosen = random.Random(args.seed).sample(asked, min(sample, len(asked)))
    os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", TF_NUM_INTRAOP_THREADS="1", TF_NUM_INTEROP_THREADS="1")
    for name in SLOW_TO_IMPORT:
        importlib.import_module(name)
    gc.freeze()
    args.table.parent.mkdir(parents=True, exist_ok=True)
    begin = time.time()
    rows = run(chosen, args.jobs, args.cpu_seconds, args.table, TIERS if args.deep else TIERS[:1])
    survivors = [(path, mutant) for path, mutant, verdict in rows if not verdict.is_killed]
    share = 1 - len(survivors) / max(len(rows), 1)
    for path, mutant in sorted(survivors, key=lambda row: (row[0], row[1].line)):
        print(f"survived: {path}:{mutant.line}\n{path}: {mutant.change}")
    deep = sum(verdict.is_killed and verdict.tier == DEEP for _, _, verdict in rows)
    print(
        f"{len(rows) - len(survivors)} of {len(rows)} mutants killed ({100 * share:.1f} %), "
        f"{deep} of these by deep tests alone, of {len(everything)}, "
        f"{len(everything) - len(asked)} of them accepted; {time.time() - begin:.0f} s: {args.table}"
    )
    return int(share < WANTED)


if __name__ == "__main__":
    sys.exit(main())
