"""Modules and names that are imported when they are first used, as what they need takes seconds."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import Any


def export_later(package: str, homes: Mapping[str, str]) -> None:
    """Give a package a `__getattr__` for names of its own modules that are imported late.

    Type checkers do not see it, and so refuse all other names.

    Args:
      package: its name.
      homes: exported name -> the module that defines it.
    """

    def find(name: str) -> Any:
        if name in homes:
            return getattr(importlib.import_module(homes[name]), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    vars(sys.modules[package])["__getattr__"] = find


class Later:
    """A module that is imported when an attribute of it is first asked for, so that refusals come without TensorFlow.

    Args:
      name: of the module.
    """

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)


def engine(name: str) -> Any:
    """Return the package `tfp_bfl.engines.NAME`: the driver knows the engines by name, and they import the driver.

    Each has `check_installed() -> None`, which raises MissingDependency, and `running(process, runtime)`, a context
    manager that yields a `federated.engines.Engine`.
    """
    return importlib.import_module(f"tfp_bfl.engines.{name}")
