"""The API pages hold every public name: Sphinx takes those with a docstring of the packages that docs/api.md lists."""

import importlib
import inspect
import pathlib
import re
import types

import pytest

import tfp_bfl as bfl

PAGE = (pathlib.Path(__file__).resolve().parents[2] / "docs" / "api.md").read_text()
LISTED = re.findall(r"^   (tfp_bfl\.[\w.]+)$", PAGE, re.MULTILINE)


def public_names(module):
    own = (name for name in vars(module) if not name.startswith("_"))
    return getattr(module, "__all__", None) or [n for n in own if _is_defined_in(getattr(module, n), module)]


def _is_defined_in(thing, module):
    return getattr(thing, "__module__", None) == module.__name__


def test_every_package_is_listed():
    named = (getattr(bfl, name) for name in bfl.__all__)
    assert {thing.__name__ for thing in named if isinstance(thing, types.ModuleType)} <= set(LISTED)


@pytest.mark.parametrize("name", LISTED)
def test_every_public_name_is_described(name):
    module = importlib.import_module(name)
    for public in public_names(module):
        thing = getattr(module, public)
        if isinstance(thing, types.ModuleType):
            assert thing.__name__ in LISTED
        elif callable(thing):
            assert inspect.getdoc(thing), f"{name}.{public} has no docstring"
        elif _is_defined_in(thing, module) or hasattr(module, "__all__"):
            assert f"`{name.removeprefix('tfp_')}.{public}`" in PAGE, f"{name}.{public} is on no page"
