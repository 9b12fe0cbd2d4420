"""The edges: packages of tfp_bfl that the core runs without. A tree without their folders is complete.

The core imports no edge. It asks this module, which finds each edge by name and imports its module `edge`. That module
has `COMMANDS`, commands of `tfp-bfl`, and may have `baselines(clients, test)`, further baselines of a run, and
`run_many`, which runs a configuration with several seeds.
"""

import importlib
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from tfp_bfl.errors import MissingDependency

if TYPE_CHECKING:  # So that type checkers know `bfl.glm` and `bfl.sites`.
    import tfp_bfl.glm
    import tfp_bfl.sites
    import tfp_bfl.sklearn  # noqa: F401


class Edge(NamedTuple):
    """An edge: its package, and the names of its commands, which exist without it too."""

    package: str
    commands: tuple[str, ...]


# By the name of the extra in setup.cfg that installs what the edge needs.
EDGES = {
    "bench": Edge("tfp_bfl.bench", ("sweep", "bench", "tune", "runs", "report")),
    "glm": Edge("tfp_bfl.glm", ("glm", "survival", "table-one")),
    "sites": Edge("tfp_bfl.sites", ("deploy",)),
}
# Attributes of `tfp_bfl` that are packages of an edge, or a function in one: name -> the edge, the package.
PACKAGES = {
    "glm": ("glm", "tfp_bfl.glm"),
    "report": ("bench", "tfp_bfl.bench.reports"),
    "load_runs": ("bench", "tfp_bfl.bench.runs"),
    "interop": ("sites", "tfp_bfl.sites.interop"),
    "sites": ("sites", "tfp_bfl.sites"),
    "sklearn": ("glm", "tfp_bfl.sklearn"),
}


def missing(what: str, name: str) -> MissingDependency:
    """Return the error for what needs an edge that is not there."""
    return MissingDependency(
        f"{what} needs {EDGES[name].package}, which is not installed; install it with pip install '.[{name}]' "
        "(in a clone of tfp_bfl)."
    )


def _find(module: str) -> ModuleType | None:
    """Import a module of an edge; None if its edge, or another edge that it needs, is not there."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        packages = {edge.package for edge in EDGES.values()} | {module for _, module in PACKAGES.values()}
        if not any(f"{error.name}.".startswith(f"{name}.") for name in packages):
            raise
        return None


def package(name: str) -> ModuleType:
    """Import a package of an edge by its name in `PACKAGES`.

    Raises:
      MissingDependency: the edge is not there.
    """
    edge, module = PACKAGES[name]
    found = _find(module)
    if found is None:
        raise missing(f"tfp_bfl.{name}", edge)
    return found


def parts(attribute: str) -> Iterator[Any]:
    """Yield an attribute of each edge's module `edge` that has it."""
    for edge in EDGES.values():
        found = _find(f"{edge.package}.edge")
        if hasattr(found, attribute):
            yield getattr(found, attribute)


def commands() -> Iterator[click.Command]:
    """Yield the commands of all edges; one without its edge refuses any argument with what to install."""
    found = {command.name: command for some in parts("COMMANDS") for command in some}
    for name, edge in EDGES.items():
        for command in edge.commands:
            yield found.get(command) or _Refusing(command, name)


class _Refusing(click.Command):
    """The command of an edge that is not there."""

    def __init__(self, name: str, edge: str):
        self._why_not = missing(f"tfp-bfl {name}", edge)
        super().__init__(name, add_help_option=False, short_help=f"Not installed: the edge {edge}.")

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        raise self._why_not
