"""A client's passes over its examples in a round, as keywords of client work."""

from __future__ import annotations

import functools
from collections.abc import Callable
from inspect import Parameter
from typing import TypedDict, TypeVar, Unpack

from tfp_bfl.defaults import LOCAL_EPOCHS
from tfp_bfl.errors import check_counts, lookup
from tfp_bfl.keywords import show

_Function = TypeVar("_Function", bound=Callable[..., object])


class Passes(TypedDict, total=False):
    """Keywords of client work that trains.

    Fields:
      local_epochs: passes over the client's examples, each in a new order.
      batch_size: examples in a step; the last batch of a pass may be smaller.
    """

    local_epochs: int
    batch_size: int


DEFAULTS: Passes = {"local_epochs": LOCAL_EPOCHS, "batch_size": 32}


def with_passes(**others: Unpack[Passes]) -> Callable[[_Function], _Function]:
    """Let the signature of a function that makes client work show `Passes` with their defaults, or `others`."""

    def decorate(make: _Function) -> _Function:
        keyword = functools.partial(Parameter, kind=Parameter.KEYWORD_ONLY, annotation="int")
        show(make, [keyword(name, default=x) for name, x in {**DEFAULTS, **others}.items()])
        return make

    return decorate


def checked(passes: Passes, **others: Unpack[Passes]) -> tuple[int, int]:
    """Return local epochs and batch size; `others` are defaults as of `with_passes`."""
    for name in passes:
        lookup(DEFAULTS, name, "option of client work")
    chosen: Passes = {**DEFAULTS, **others, **passes}
    check_counts(**chosen)
    return chosen["local_epochs"], chosen["batch_size"]
