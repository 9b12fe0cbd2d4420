"""The mutants of a made module: each kind of change, and what is left alone."""

import ast

import pytest

from tests.mutants import run
from tests.mutants.mutations import mutants

MODULE = '''
"""Adds 1 + 1."""
from typing import Optional

def f(x: Optional[int], y=2.0, z=True):
    """Adds 1 + 1."""
    if x is None or not z:
        raise ValueError(f"x is {x + 1}")
    x = x - y
    g(x, y, axis=0)
    return -x < y
'''
CHANGES = [
    "f: 2.0 -> 4.0",
    "f: True -> False",
    "f: x is None or not z -> True",
    "f: x is None or not z -> False",
    "f: x is None or not z -> x is None and (not z)",
    "f: x is None -> x is not None",
    "f: not z -> z",
    "f: x = x - y -> pass",
    "f: x - y -> x + y",
    "f: g(x, y, axis=0) -> pass",
    "f: g(x, y, axis=0) -> g(x, y)",
    "f: g(x, y, axis=0) -> g(y, x, axis=0)",
    "f: 0 -> 1",
    "f: -x < y -> -x <= y",
    "f: -x < y -> -x >= y",
    "f: -x -> x",
]


def test_a_change_of_each_kind():
    assert [mutant.change for mutant in mutants(ast.parse(MODULE))] == CHANGES


def test_a_mutant_differs_in_one_place_and_leaves_the_tree_as_it_was():
    tree = ast.parse(MODULE)
    before = ast.unparse(tree)
    for mutant in mutants(tree):
        source = mutant.source(tree)
        pairs = zip(before.splitlines(), source.splitlines(), strict=True)
        assert sum(a != b for a, b in pairs) == 1
        assert ast.unparse(tree) == before


@pytest.mark.parametrize("package", run.PACKAGES)
def test_each_file_of_the_arithmetic_has_tests_and_its_own_come_first(package):
    for path in sorted((run.ROOT / "tfp_bfl" / package).glob("*.py")):
        tests = run.tests_of(str(path.relative_to(run.ROOT)))
        assert tests and all((run.ROOT / test).is_file() for test in tests)
        own = f"tests/{package}/test_{path.stem}.py"
        assert tests[0] == own or not (run.ROOT / own).is_file()


def test_what_is_accepted_is_there_and_says_why():
    files = sorted({entry.split(": ")[0] for entry in run.accepted()})
    found = {f"{path}: {mutant.change}" for path, _, mutant in run.all_mutants(files)}
    assert {change for change in run.accepted() if change not in found} == set()
    assert all(len(why) > 20 for why in run.accepted().values())
