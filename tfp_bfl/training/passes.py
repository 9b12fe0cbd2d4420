"""A client's passes over its examples in a round, as keywords of client work."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypedDict, TypeVar

from tfp_bfl.defaults import LOCAL_EPOCHS
from tfp_bfl.errors import check_counts
from tfp_bfl.keywords import with_keywords

_Function = TypeVar("_Function", bound=Callable[..., object])


class Passes(TypedDict, total=False):
    """Keywords of client work that trains.

    Fields:
      local_epochs: passes over the client's examples, each in a new order.
      batch_size: examples in a step; the last batch of a pass may be smaller.
    """

    local_epochs: int
    batch_size: int


def checked(passes: Passes) -> tuple[int, int]:
    """Return local epochs and batch size.

    Raises:
      InvalidArgument: one of them is below 1.
    """
    check_counts(**passes)
    return passes["local_epochs"], passes["batch_size"]


def with_passes(batch_size: int = 32) -> Callable[[_Function], _Function]:
    """Give client work the keywords `Passes`, with their defaults."""
    return with_keywords(Passes, local_epochs=LOCAL_EPOCHS, batch_size=batch_size)
