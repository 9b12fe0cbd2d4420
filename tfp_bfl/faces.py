"""Modules and names that are imported when they are first used, as what they need takes seconds.

`tf` and `keras` are TensorFlow and `tfp_bfl.keras`, so that refusals come without them; `pandas`, `pyarrow`, `compute`
and `types` read tables.
"""

import ast
import importlib
import pathlib
import sys
from typing import TYPE_CHECKING, Any


def export_later(package: str) -> None:
    """Give a package a `__getattr__` for the names that it imports for type checkers alone (`if TYPE_CHECKING`).

    Type checkers do not see it, and so refuse all other names. It reads the source of the package, which must be there.
    """
    module = sys.modules[package]
    tree = ast.parse(pathlib.Path(str(module.__file__)).read_text(encoding="utf-8"))
    late = [
        node for x in tree.body if isinstance(x, ast.If) and ast.unparse(x.test) == "TYPE_CHECKING" for node in x.body
    ]
    homes = {
        x.name: node.module for node in late if isinstance(node, ast.ImportFrom) and node.module for x in node.names
    }

    def find(name: str) -> Any:
        if name in homes:
            return getattr(importlib.import_module(homes[name]), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    vars(module)["__getattr__"] = find


class Later:
    """A module that is imported when an attribute of it is first asked for.

    Args:
      name: of the module.
    """

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)


if TYPE_CHECKING:
    import tensorflow as tf

    from tfp_bfl import keras
else:
    tf, keras = Later("tensorflow"), Later("tfp_bfl.keras")
pandas, pyarrow, compute, types = map(Later, ("pandas", "pyarrow", "pyarrow.compute", "pyarrow.types"))


def engine(name: str) -> Any:
    """Return the package `tfp_bfl.engines.NAME`: the driver knows the engines by name, and they import the driver.

    Each has `check_installed() -> None`, which raises MissingDependency, and `running(process, runtime)`, a context
    manager that yields a `federated.engines.Engine`.
    """
    return importlib.import_module(f"tfp_bfl.engines.{name}")
