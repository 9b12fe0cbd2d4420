"""Engines that compute the clients' sums of a linear model: this process, TFF's workers or a Ray cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Callable

from tfp_bfl.errors import InvalidArgument, lookup
from tfp_bfl.faces import engine as package
from tfp_bfl.glm.federation import Federation, InProcess
from tfp_bfl.glm.rows import Table

# (table, family, secure_sums, runtime) -> the context of a federation of the table's clients.
MakeFederation = Callable[[Table, str, bool, Any], contextlib.AbstractContextManager[Federation]]


@contextlib.contextmanager
def _here(table: Table, family: str, secure_sums: bool, runtime: Any) -> Iterator[Federation]:
    yield InProcess(table, family, secure_sums)


def _carried(name: str) -> MakeFederation:
    return lambda *given: package(name).linear_model(*given)


LOCAL = "local"
# A new engine is one more entry here, and a function `linear_model` of its package.
ENGINES: dict[str, MakeFederation] = {LOCAL: _here, "tff": _carried("tff"), "ray": _carried("ray")}


def check_engine(name: str, runtime: Any = None) -> str:
    """Return the name of an engine of linear models.

    Args:
      name: of the engine.
      runtime: its workers, or None.

    Raises:
      InvalidArgument: there is no such engine, it is one for rounds of networks alone, or "local" has a runtime.
      MissingDependency: the package of the engine is not installed.
    """
    if name == "compiled":
        raise InvalidArgument(
            "The engine 'compiled' compiles the rounds of a network, and a linear model has none: choose 'local', "
            "'tff' or 'ray'."
        )
    lookup(ENGINES, name, "engine of linear models")
    if name != LOCAL:
        package(name).check_installed()
    elif runtime is not None:
        raise InvalidArgument("runtime holds workers of the engine tff or ray, and this is local: leave one out.")
    return name


def federation(
    table: Table, family: str, secure_sums: bool, engine: str, runtime: Any
) -> contextlib.AbstractContextManager[Federation]:
    """Return the context of clients whose answers an engine computes and adds up.

    Args:
      table: the rows of the clients.
      family: the name of the outcome's distribution.
      secure_sums: whether the answers are added in fixed point.
      engine: a name of `check_engine`.
      runtime: its workers; None to start and stop them with the context.
    """
    return ENGINES[engine](table, family, secure_sums, runtime)
