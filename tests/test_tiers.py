"""Each test of the second tier names the file of the first that fails for the common fault, so that a fault is not
known only half an hour later."""

import ast
import re
from pathlib import Path

import pytest

from tests.plugin import LONG, SLOW, is_in_part

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = (ROOT / "tests", ROOT / "experiments")


def marks(source):
    """(line, what `after` says or None) of each `deep` of a file."""
    nodes = list(ast.walk(ast.parse(source)))
    said = {
        (call.func.lineno, call.func.col_offset): ast.literal_eval(keyword.value)
        for call in nodes
        if isinstance(call, ast.Call)
        for keyword in call.keywords
        if keyword.arg == "after"
    }
    for node in nodes:
        if isinstance(node, ast.Attribute) and ast.unparse(node).endswith("mark.deep"):
            yield node.lineno, said.get((node.lineno, node.col_offset))


def is_fast(path):
    """Has tests, and is not deep as a whole."""
    source = path.read_text()
    return "def test_" in source and not re.search(r"^pytestmark = .*\bdeep\(", source, re.MULTILINE)


def unheralded(source, folder=ROOT):
    """The lines at which something is deep without a fast file that is there: of the root's path, or the folder's."""
    found = lambda after: next((p for p in (ROOT / after, folder / after) if p.is_file()), None)
    return [line for line, after in marks(source) if after is None or not found(after) or not is_fast(found(after))]


def test_each_deep_test_names_a_fast_one():
    tests = sorted(path for folder in FOLDERS for path in folder.rglob("test_*.py"))
    assert (
        tests
        and {str(p.relative_to(ROOT)): found for p in tests if (found := unheralded(p.read_text(), p.parent))} == {}
    )


@pytest.mark.parametrize("path", [SLOW, LONG], ids=lambda path: path.name)
def test_what_is_listed_as_slow_is_there(path):
    """A test that was renamed would be fast again by mistake."""
    listed = [line.partition("[")[0].split("::") for line in path.read_text().splitlines()]
    gone = {f"{file}::{name}" for file, name in listed if f"def {name}(" not in (ROOT / file).read_text()}
    assert listed and gone == set()


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ('@pytest.mark.deep(after="tests/test_tiers.py")\ndef f(): ...', []),
        ('@pytest.mark.deep(after="tests/test_nothing.py")\ndef f(): ...', [1]),
        ('@pytest.mark.deep(after="test_tiers.py")\ndef f(): ...', [1]),
        ("@pytest.mark.deep\ndef f(): ...", [1]),
        ("x = 1\npytestmark = pytest.mark.deep()", [2]),
        ('pytestmark = [pytest.mark.deep(after="tests/plugin.py")]', [1]),
    ],
)
def test_what_names_none_is_found(source, lines):
    assert unheralded(source) == lines


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_each_test_file_is_in_one_part(parts):
    files = [str(path.relative_to(ROOT)) for folder in FOLDERS for path in folder.rglob("test_*.py")]
    of_each = [sum(is_in_part(file, (number, parts)) for file in files) for number in range(1, parts + 1)]
    assert sum(of_each) == len(files)
    assert min(of_each) > len(files) / parts / 2


@pytest.mark.parametrize("part", ["0/2", "3/2", "2", "a/b", "1/"])
def test_a_part_that_is_none_is_refused(part, capfd):
    assert pytest.main(["--part", part, "--collect-only", "-q", str(ROOT / "tests" / "test_tiers.py")]) == 4
    assert "is not K/N with K from 1 to N, such as 1/2" in capfd.readouterr().err
