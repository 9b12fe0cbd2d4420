"""Formulas of the site, as MathML."""

import importlib.util
import pathlib

import pytest

EXTENSIONS = pathlib.Path(__file__).resolve().parents[2] / "docs" / "_extensions"
_spec = importlib.util.spec_from_file_location("mathml", EXTENSIONS / "mathml.py")
mathml = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(mathml)


@pytest.mark.parametrize(
    ("formula", "meant"),
    [(r"\frac12 x", r"\frac{1}{2} x"), (r"\tfrac 1B", r"\tfrac{1}{B}"), (r"\frac{a}{12}", r"\frac{a}{12}")],
)
def test_fractions_without_braces_are_fractions(formula, meant):
    assert mathml.braced(formula) == meant
    assert mathml.tex2mathml(mathml.braced(formula)).count("<mfrac") == 1
