"""What a package uses of packages that import it, imported by name when it is first used."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Callable


def exported_later(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package.

    Args:
      package: its name.
      homes: exported name -> the module that defines it.
    """

    def find(name: str) -> Any:
        if name in homes:
            return getattr(importlib.import_module(homes[name]), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find


def engine(name: str) -> Any:
    """Return the package `tfp_bfl.engines.NAME`: the driver knows the engines by name, and they import the driver.

    Each has `check_installed() -> None`, which raises MissingDependency, and `running(process, runtime)`, a context
    manager that yields a `federated.engines.Engine`.
    """
    return importlib.import_module(f"tfp_bfl.engines.{name}")
