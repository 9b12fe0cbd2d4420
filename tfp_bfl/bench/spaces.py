"""Search spaces of options: an interval of numbers, on a linear or a logarithmic scale, or a list of values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from tfp_bfl.errors import InvalidArgument, shown

Value = str | int | float | bool | None
# Option -> value.
Values = Mapping[str, Value]
DEFAULTS: Values = MappingProxyType({})


class Space(NamedTuple):
    """The values among which trials choose: an interval, of which the logarithm is drawn where `log` is, or a list."""

    low: Any = None
    high: Any = None
    log: bool = False
    values: tuple[Value, ...] = ()

    @property
    def edges(self) -> tuple[Value, ...]:
        """Both ends, or all values of a list: what a check of the space has to try."""
        return self.values or (self.low, self.high)

    def suggest(self, trial: Any, name: str) -> Any:
        """Return the value of an `optuna` trial."""
        if self.values:
            return trial.suggest_categorical(name, self.values)
        if isinstance(self.low, int):
            return trial.suggest_int(name, self.low, self.high, log=self.log)
        return trial.suggest_float(name, self.low, self.high, log=self.log)

    def __str__(self) -> str:
        """Return the form that `parse_space` reads."""
        if self.values:
            return ", ".join(map(str, self.values))
        return f"{self.low}..{self.high}{' log' if self.log else ''}"


def parse_space(text: object, what: str) -> Space:
    """Read "0.001..0.3 log" or "1..5", whole numbers between whole ends, or a list of values, of the option `what`.

    Example:
      >>> parse_space("0.001..0.3 log", "learning_rate")
      Space(low=0.001, high=0.3, log=True, values=())
    """
    form = f"The search space of {what} is {shown(text)}, but must be such as '0.001..0.3 log', '1..5' or [adam, sgd]."
    if isinstance(text, (list, tuple)):
        plain = all(x is None or isinstance(x, (str, int, float, bool)) for x in text)
        if not plain or not text or len(set(map(str, text))) < len(text):
            raise InvalidArgument(form)
        return Space(values=tuple(text))
    if not isinstance(text, str):
        raise InvalidArgument(form)
    interval, _, scale = text.strip().partition(" ")
    first, dots, last = interval.partition("..")
    if scale.strip() not in ("", "log") or not dots:
        raise InvalidArgument(form)
    try:
        low, high = _number(first), _number(last)
    except ValueError:
        raise InvalidArgument(form) from None
    if isinstance(low, float) or isinstance(high, float):
        low, high = float(low), float(high)
    log = bool(scale.strip())
    if not (math.isfinite(low) and math.isfinite(high)) or low >= high or (log and low <= 0):
        above = " above 0" if log else ""
        raise InvalidArgument(f"The search space of {what} is {shown(text)}, but must go up from a number{above}.")
    return Space(low, high, log)


def _number(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        return float(text)
