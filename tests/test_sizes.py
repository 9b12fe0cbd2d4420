"""Sizes of files and functions."""

import ast

import pytest

from tests.own_files import ROOT, python_files

FOLDERS = ("tfp_bfl", "tests", "experiments", "benchmarks", "docs")
MAX_LINES_OF_A_FILE = 400
MAX_LINES_OF_A_FUNCTION = 100  # docstring and all


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_file_is_too_long(folder):
    lengths = {str(p.relative_to(ROOT)): len(p.read_text().splitlines()) for p in python_files(folder)}
    assert lengths and {p: n for p, n in lengths.items() if n > MAX_LINES_OF_A_FILE} == {}


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_function_is_too_long(folder):
    lengths = {}
    for path in python_files(folder):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                lengths[f"{path.relative_to(ROOT)}: {node.name}"] = node.end_lineno - node.lineno + 1
    assert lengths and {name: n for name, n in lengths.items() if n > MAX_LINES_OF_A_FUNCTION} == {}
