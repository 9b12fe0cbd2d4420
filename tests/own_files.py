"""Python files of the repository, without those of virtual environments that programs make in hidden folders."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def is_test(path):
    return "tests" in path.relative_to(ROOT).parts


def python_files(folder):
    """Return the Python files below a folder of the repository, sorted."""
    paths = sorted((ROOT / folder).rglob("*.py"))
    return [path for path in paths if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)]
