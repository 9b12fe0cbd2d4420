"""The errors that the library raises itself: one sentence that says what is wrong and what would be right."""

import difflib
import math
import numbers
import reprlib
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard


class Error(Exception):
    """Base of every error that the library raises on purpose."""


class InvalidArgument(Error, ValueError):
    """A value from the caller that can't be used; raised before any work starts."""


class MissingDependency(Error, ImportError):
    """A package that this call needs is absent or does not fit this Python."""


class WorkerError(Error, RuntimeError):
    """A worker process did not start, did not answer or died."""


class ComputationError(Error, RuntimeError):
    """A computation failed at a worker that continues: one of its operations raised."""


_brief = reprlib.Repr()
_brief.maxstring = _brief.maxother = _brief.maxlong = 80


def shown(value: object) -> str:
    """Return a value as errors show it: its `repr` on one line, cut in the middle if it is long."""
    try:
        return _brief.repr(value)
    except Exception:  # Of what a file made, such as a number with too many digits to print.
        return f"a value of type {type(value).__name__}"


def counted(number: float, noun: str) -> str:
    """Return a number with its noun in singular or plural: "1 round", "2,000 rounds"."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def shown_apart(*names: str) -> list[str]:
    """Return names as errors show them, with code points in place of letters if two names look alike."""
    alike = any(_look_alike(x, y) for i, x in enumerate(names) for y in names[:i])
    return [shown(x).encode("ascii", "backslashreplace").decode() if alike else shown(x) for x in names]


def _look_alike(first: str, second: str) -> bool:
    """Return whether two names differ in the form of Unicode, or in characters of two scripts, alone."""
    a, b = (unicodedata.normalize("NFC", x) for x in (first, second))
    script = lambda x: unicodedata.name(x, "").partition(" ")[0]
    alike = (x == y or not ((x + y).isascii() or script(x) == script(y)) for x, y in zip(a, b))
    return first != second and len(a) == len(b) and all(alike)


# More names than these an error does not list.
MOST_NAMES = 25


def lookup(table: Mapping[str, Any], name: str, what: str, where: str = "") -> Any:
    """Return `table[name]`.

    Args:
      table: names -> values.
      name: of the value.
      what: the kind of value, in errors.
      where: follows the name in errors, such as "in patients.csv".

    Raises:
      InvalidArgument: there is no such name; the message gives the near ones, or all of them if none is near (of many
        the five least far).
    """
    if isinstance(name, str) and name in table:
        return table[name]
    near = [known for known in table if name == "".join(word[:1] for word in known.split("_"))]
    near = near or difflib.get_close_matches(str(name), table, n=3, cutoff=0.5)
    wrong = shown(name)
    if near and isinstance(name, str):
        wrong, *right = shown_apart(name, *near)
        advice = f"did you mean {' or '.join(right)}?"
    elif len(table) <= MOST_NAMES:
        advice = "choose one of " + ", ".join(repr(n) for n in sorted(table)) + "."
    else:
        some = difflib.get_close_matches(str(name), table, n=5, cutoff=0.0)
        advice = f"choose one of the {len(table)} that there are, such as {', '.join(map(repr, some))}."
    place = f" {where}" if where else ""
    raise InvalidArgument(f"There is no {what} {wrong}{place}: {advice}")


def check_count(value: object, name: str, least: int = 1) -> int:
    """Return `value` as an int.

    Raises:
      InvalidArgument: it is not an integer of at least `least`.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise InvalidArgument(f"{name} is {shown(value)}, but must be an integer of at least {least}.")
    return int(value)


def check_counts(least: int = 1, **values: object) -> None:
    """Raise InvalidArgument unless each of the named values is an integer of at least `least`."""
    for name, value in values.items():
        check_count(value, name, least)


# The range of numbers that are arguments: their squares, and products of two, are finite float32 numbers above 0.
SMALLEST, LARGEST = 1e-15, 1e15
# The range of standard deviations that can be pooled.
_RANGES = {
    **dict.fromkeys(("prior_stddev", "min_stddev"), (1e-12, 1e6)),
    "initial_stddev": (1e-12, 10.0),
    "temperature": (1e-6, 1.0),
}
# Of a softmax temperature; "temperature" is otherwise a posterior's.
SOFTMAX_TEMPERATURES = (1e-6, 1e6)
_REASONS = {
    "initial_stddev": "from larger noise of the weights training diverges",
    "temperature": "below, each example counts more than a million times, and above, less than once",
}


def check_number(value: object, name: str, zero: bool = False, within: tuple[float, float] | None = None) -> float:
    """Return `value` as a float.

    Raises:
      InvalidArgument: it is not a finite number above 0, or, with `zero`, of at least 0; or it is neither 0 nor
        `within` its range, None for that of `check_range`.
    """
    try:
        number = float(value) if isinstance(value, numbers.Real) and not isinstance(value, bool) else math.nan
    except OverflowError:  # An integer or a fraction beyond all floats.
        number = math.inf
    if not (number >= 0 if zero else number > 0) or number == math.inf:
        raise InvalidArgument(
            f"{name} is {shown(value)}, but must be a finite number {'of at least' if zero else 'above'} 0."
        )
    return check_range(number, name, within)


def check_range(number: float, name: str, within: tuple[float, float] | None = None) -> float:
    """Return a number that is 0 or within a range, None for that of numbers of this name.

    Raises:
      InvalidArgument: it is another number.
    """
    least, most = within or _RANGES.get(name, (SMALLEST, LARGEST))
    if number and not least <= number <= most:
        reason = f": {_REASONS[name]}" if name in _REASONS else ""
        raise InvalidArgument(f"{name} is {number}, but must lie between {least:g} and {most:g}{reason}.")
    return number


def check_numbers(**values: object) -> None:
    """Raise InvalidArgument unless each of the named values is a finite number above 0."""
    for name, value in values.items():
        check_number(value, name)


def check_share(value: object, name: str, zero: bool = False, one: bool = False) -> float:
    """Return `value` as a float.

    Raises:
      InvalidArgument: it is not a number between 0 and 1, the ends included if `zero` or `one` says so.
    """
    number = float(value) if isinstance(value, numbers.Real) and not isinstance(value, bool) else math.nan
    if not 0 <= number <= 1 or (number == 0 and not zero) or (number == 1 and not one):
        least, most = ("at least 0" if zero else "above 0"), ("at most 1" if one else "below 1")
        raise InvalidArgument(f"{name} is {shown(value)}, but must be {least} and {most}.")
    return number


# Of noise multipliers: what the accountant of differential privacy can bear.
MIN_NOISE, MAX_NOISE = 0.01, 1000.0


def is_by_client(value: object) -> TypeGuard[Sequence[Any]]:
    """Return whether an argument is a sequence with one entry for each client, and not one value for all clients."""
    several = not isinstance(value, (str, bytes)) and hasattr(value, "__len__") and hasattr(value, "__getitem__")
    return several and not hasattr(value, "_fields")


def check_probabilities(value: Any, name: str) -> Any:
    """Return a probability as a float, or a sequence with one for each client as a tuple.

    Raises:
      InvalidArgument: a probability is not above 0 and at most 1.
    """
    if is_by_client(value):
        return tuple(check_probabilities(p, f"{name} of client {k}") for k, p in enumerate(value))
    if check_number(value, name) > 1:
        raise InvalidArgument(f"{name} is {value:g}, but must be at most 1: it is a probability.")
    return float(value)


def check_noise(value: object, name: str = "noise_multiplier") -> float:
    """Return a noise multiplier of differential privacy as a float; 0 is no noise.

    Raises:
      InvalidArgument: it is neither 0 nor a number from `MIN_NOISE` to `MAX_NOISE`.
    """
    return check_number(value, name, zero=True, within=(MIN_NOISE, MAX_NOISE))


# Below it, truncated tails of privacy losses are no longer small beside delta.
MIN_DELTA = 1e-10


def check_delta(value: object, name: str = "delta") -> float:
    """Return the delta of differential privacy as a float.

    Raises:
      InvalidArgument: it is below `MIN_DELTA`, or not below 1.
    """
    number = check_number(value, name, within=(0.0, LARGEST))
    if not MIN_DELTA <= number < 1:
        raise InvalidArgument(f"{name} is {shown(value)}, but must be at least {MIN_DELTA:g} and below 1.")
    return number


class Diverged(Error, ArithmeticError):
    """The server's weights are not finite after its step, or a chain's client sends what is faulty.

    Attributes:
      state: before that step.
    """

    def __init__(self, message: str, state: object):
        super().__init__(message)
        self.state = state


INSTALL_COMMAND = "pip install . (in a clone of tfp_bfl)"
INSTALL_TFF_COMMAND = (
    "python3.11 -m venv .venv && .venv/bin/pip install --no-deps -r requirements/py311.lock && "
    ".venv/bin/pip install --no-deps . (in a clone of tfp_bfl)"
)


def missing_package(name: object) -> MissingDependency:
    """Return the error for a package that is not installed."""
    if name == "tensorflow_federated":
        return MissingDependency(
            "The engine 'tff' needs TensorFlow Federated, which is not installed: take the engine 'local', or, with "
            f"Python 3.11, install with: {INSTALL_TFF_COMMAND}"
        )
    return MissingDependency(f"The package {name!r} is not installed; install with: {INSTALL_COMMAND}")
