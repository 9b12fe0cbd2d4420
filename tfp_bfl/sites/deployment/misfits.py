"""Sites whose data do not fit those of the other sites: they are left out, and the others continue."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from tfp_bfl.errors import InvalidArgument

T = TypeVar("T")
# Sets of sites that are tried.
_MOST_SETS = 2000


def without_misfits(
    described: Mapping[str, Any], agree: Callable[[Mapping[str, Any]], T], least: int
) -> tuple[T, dict[str, str]]:
    """Return what the sites agree on, and the reasons of the sites that are left out since they do not fit.

    The smallest set of sites without which the others fit is left out, if there is one such set, and it has fewer than
    half of the sites.

    Args:
      described: site -> the valid description of its data.
      agree: descriptions -> the common result; raises `InvalidArgument` where they do not fit.
      least: the smallest number of sites.

    Raises:
      InvalidArgument: of `agree`, if no or several such sets exist.
    """
    try:
        return agree(described), {}
    except InvalidArgument as error:
        first = error
    for number in range(1, min((len(described) - 1) // 2, len(described) - least) + 1):
        if math.comb(len(described), number) > _MOST_SETS:
            break
        found: list[tuple[tuple[str, ...], T]] = []
        for left in itertools.combinations(described, number):
            with contextlib.suppress(InvalidArgument):
                found.append((left, agree({site: x for site, x in described.items() if site not in left})))
        if len(found) > 1:
            break
        if found:
            left, result = found[0]
            return result, dict.fromkeys(left, f"Its data do not fit those of the other sites. {first}")
    raise first
