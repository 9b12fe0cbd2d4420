"""Examples in docstrings run and print what they show."""

import contextlib
import doctest
import importlib
import inspect
import io
import pathlib
import re

import numpy as np
import pytest

import tfp_bfl as bfl
from tfp_bfl.options.methods import ALGORITHMS

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"
LISTED = re.findall(r"^   tfp_bfl\.([\w.]+)$", (DOCS / "api.md").read_text(), re.MULTILINE)
FEWEST = 60


def examples(package):
    """The doctests of the functions and classes that a package exports, by name."""
    module = importlib.import_module(f"tfp_bfl.{package}")
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = {}
    for name in getattr(module, "__all__", ()) or vars(module):
        thing = getattr(module, name)
        home = getattr(thing, "__module__", None) or ""
        if (inspect.isfunction(thing) or inspect.isclass(thing)) and home.startswith("tfp_bfl"):
            tests = finder.find(thing, f"{package}.{name}", module=False, globs={"bfl": bfl, "np": np})
            found |= {test.name: test for test in tests if test.examples}
    return found


@pytest.mark.parametrize("package", LISTED)
def test_examples_print_what_they_show(package, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    said = io.StringIO()
    for test in examples(package).values():
        with contextlib.redirect_stderr(io.StringIO()):
            runner.run(test, out=said.write)
    assert not runner.failures, said.getvalue()


def test_what_people_use_most_has_an_example():
    shown = set().union(*map(examples, LISTED))
    assert len(shown) >= FEWEST
    programs = [DOCS.parent / "README.md", DOCS / "quickstart.md"]
    text = "".join(block for page in programs for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.S))
    used = set(re.findall(r"\bbfl\.(\w+\.\w+)\(", text)) | {"federated.simulate", "data.Source.partition"}
    used |= {f"algorithms.{name}" for name in ALGORITHMS}
    assert used <= shown, f"without an example: {', '.join(sorted(used - shown))}"
