"""The rows of each client as arrays, checked before any client computes."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tfp_bfl.data import Clients, Source
from tfp_bfl.data.names import canonical, value
from tfp_bfl.errors import InvalidArgument, shown
from tfp_bfl.glm.families import ORDINAL, Family

INTERCEPT = "(intercept)"
# Of all clients, for each of which weights and trials stand.
MOST_ROWS = 50_000_000
_LARGEST = 1e50  # squares of larger numbers, and their sums, leave float64
Given = Clients | Sequence[tuple[np.ndarray, np.ndarray]]


class Rows(NamedTuple):
    """The rows of a client: design [n, p], outcome [n], and offset of the predictor [n].

    For survival the outcome is (time, event) [n, 2] or (time, event, entry) [n, 3].
    """

    design: np.ndarray
    outcome: np.ndarray
    offset: np.ndarray


class Beside(NamedTuple):
    """Exposure, offset, weights and trials of rows, as of `fitting.fit`: an array [n] of each client, or None."""

    exposure: Sequence[np.ndarray] | None = None
    offset: Sequence[np.ndarray] | None = None
    weights: Sequence[np.ndarray] | None = None
    trials: Sequence[np.ndarray] | None = None

    def of_client(self, client: int, count: int) -> list[np.ndarray | None]:
        """Return the arrays of a client, checked to be numbers of so many rows."""
        found: list[np.ndarray | None] = []
        for name, own in zip(self._fields, self):
            numbers = None if own is None else floats(own[client], f"The {name} of client {client}")
            if numbers is not None and (numbers.shape != (count,) or (name == "exposure" and np.any(numbers <= 0))):
                must = f"{count} numbers" + " above 0" * (name == "exposure")
                raise InvalidArgument(f"The {name} of client {client} must be {must}.")
            found.append(numbers)
        return found

    def check(self, clients: int) -> None:
        """Raise InvalidArgument for arrays of another number of clients."""
        for name, own in zip(self._fields, self):
            if own is not None and len(own) != clients:
                raise InvalidArgument(f"{name} is of {len(own)} clients, but there are {clients}.")


NOTHING = Beside()


class DesignRows(NamedTuple):
    """The rows of all clients, and the names of the columns of the design [p], of the classes ("multinomial" and
    "ordinal") [C], and of the further parameters of the family.
    """

    clients: list[Rows]
    names: list[str]
    classes: tuple[str, ...] = ()
    further: tuple[str, ...] = ()

    @property
    def num_predictors(self) -> int:
        """The number of linear predictors of a row."""
        return 1 if self.further else max(1, len(self.classes) - 1)


def read(
    clients: Given,
    family: Family | None,
    names: Sequence[str] | None = None,
    beside: Beside = NOTHING,
    intercept: bool = True,
) -> DesignRows:
    """Read the rows of all clients.

    Args:
      clients: `data.Clients`, or (features, outcome) of each client.
      family: of the outcome; None for survival.
      names: of the features; those of the table, or x1, x2, ... if None.
      beside: exposures, offsets, weights and trials.
      intercept: whether a column of ones comes first.
    """
    pairs = _pairs(clients, family)
    if not pairs:
        raise InvalidArgument("clients is empty, but at least one client must have rows.")
    beside.check(len(pairs))
    widths = {np.shape(features)[-1] if np.ndim(features) == 2 else None for features, _ in pairs}
    if len(widths) != 1 or None in widths:
        raise InvalidArgument("The features of each client must have shape [n, p], with one p for all clients.")
    width = int(widths.pop() or 0)
    chosen = _names(clients, names, width)
    rows = []
    for k, (features, outcome) in enumerate(pairs):
        x, y = floats(features, f"The features of client {k}"), floats(outcome, f"The outcome of client {k}")
        if len(x) == 0:
            raise InvalidArgument(f"Client {k} has no rows: leave it out.")
        if y.shape[:1] != (len(x),):
            _check_outcome(y, len(x), family, k)
        exposure, offset, weights, trials = beside.of_client(k, len(x))
        places, y = expand(y, weights, trials, f"client {k}")
        x, along = x[places], np.zeros(len(places)) if offset is None else offset[places]
        along = along if exposure is None else along + np.log(exposure[places])
        _check_outcome(y, len(x), family, k)
        if family is not None and family.name == "gaussian":
            y, along = y - along, np.zeros(len(y))
        rows.append(Rows(np.column_stack([np.ones(len(x)), x]) if intercept else x, y, along))
    return DesignRows(rows, [INTERCEPT, *chosen] if intercept else chosen)


def _pairs(clients: Given, family: Family | None) -> list[tuple[np.ndarray, np.ndarray]]:
    if not isinstance(clients, Clients):
        pairs = list(clients)
        for k, pair in enumerate(pairs):
            if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                raise InvalidArgument(f"Client {k} must be a pair (features [n, p], outcome [n]), not {shown(pair)}.")
        return pairs
    source = clients.source
    features, outcome = np.asarray(source.features, np.float64), _outcome(source, family)
    if source.columns:  # In the units of the table.
        features = features * [column.scale for column in source.columns] + [column.mean for column in source.columns]
    return [(features[part], outcome[part]) for part in clients.indices]


def _outcome(source: Source, family: Family | None) -> np.ndarray:
    """Return the labels of a source in the units of the table: labels of classes are the numbers that name the classes.

    For "bernoulli" the second of two classes is the event, unless the classes are 0 and 1.
    """
    if source.target is not None:
        return np.asarray(source.labels, np.float64) * source.target.scale + source.target.mean
    if family is not None and family.name in ("multinomial", ORDINAL):
        return np.asarray(source.labels, np.float64)
    values = [value(name) for name in source.class_names]
    is_binary = family is not None and family.name == "bernoulli"
    if is_binary and {*values} != {0, 1}:
        if len(values) != 2:
            raise InvalidArgument(
                f"The labels of {source.name} are {len(values)} classes, but the family bernoulli requires two."
            )
        return np.asarray(source.labels, np.float64)
    if None in values:
        example, name = source.class_names[values.index(None)], "cox" if family is None else family.name
        raise InvalidArgument(
            f"The labels of {source.name} are classes, such as {shown(example)}, but the family {name} requires "
            "numbers: read the data with task regression, or give Source a target."
        )
    return np.array(values, np.float64)[source.labels]


def _names(clients: Given, names: Sequence[str] | None, width: int) -> list[str]:
    if names is None and isinstance(clients, Clients) and clients.source.columns:
        names = [column.name for column in clients.source.columns]
    chosen = [f"x{j + 1}" for j in range(width)] if names is None else [canonical(str(name)) for name in names]
    if len(chosen) != width:
        raise InvalidArgument(f"names has {len(chosen)} names, but there are {width} features.")
    twice = next((name for name in [INTERCEPT, *chosen] if [INTERCEPT, *chosen].count(name) > 1), None)
    if twice:
        raise InvalidArgument(f"The name {twice!r} occurs more than once, but each coefficient needs its own.")
    return chosen


def floats(values: np.ndarray, what: str) -> np.ndarray:
    """Return values as float64; those that are no finite numbers are refused by `what` they are, such as a client's."""
    try:
        numbers = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        held = values.tolist() if isinstance(values, np.ndarray) else values
        raise InvalidArgument(f"{what} must be numbers, but hold {shown(held)}.") from None
    bad = np.argwhere(~(np.abs(numbers) < _LARGEST))
    if len(bad):
        at = bad[0].tolist()
        raise InvalidArgument(
            f"{what} must be finite and below {_LARGEST:g} in size, but row {at[0]}"
            + (f", column {at[1]}" if len(at) > 1 else "")
            + f" is {numbers[tuple(bad[0])]:g}: impute, rescale or drop it."
        )
    return numbers


def _check_outcome(outcome: np.ndarray, count: int, family: Family | None, client: int) -> None:
    shapes = [(count,)] if family else [(count, 2), (count, 3)]
    if outcome.shape not in shapes:
        must = " or ".join(map(str, shapes))
        raise InvalidArgument(f"The outcome of client {client} has shape {outcome.shape}, but must have {must}.")
    if family:
        valid, requirement, values = family.is_valid(outcome), family.requirement, outcome
    else:
        valid = (outcome[:, 0] > 0) & ((outcome[:, 1] == 0) | (outcome[:, 1] == 1))
        requirement, values = "a time above 0 and an event of 0 or 1", outcome
        if outcome.shape[1] == 3 and np.all(valid):
            valid, requirement = outcome[:, 2] < outcome[:, 0], "a time, an event and an entry before the time"
    wrong = np.flatnonzero(~valid)
    if len(wrong):
        name = family.name if family else "survival"
        raise InvalidArgument(
            f"Each {name} outcome must be {requirement}, but row {wrong[0]} of client {client} has "
            f"{', '.join(f'{x:g}' for x in np.atleast_1d(values[wrong[0]]))}."
        )


def expand(
    outcome: np.ndarray, weights: np.ndarray | None, trials: np.ndarray | None, where: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return the place [m] and the outcome [m] of each of the rows for which rows with weights or trials [n] stand.

    A row with weight w is w equal rows; one with t trials, of which y are events, is y rows of 1 and t - y of 0.
    """
    places = np.arange(len(outcome))
    for name, numbers, least in (("weight", weights, 0), ("number of trials", trials, 1)):
        if numbers is None:
            continue
        wrong = np.flatnonzero(~((numbers >= least) & (numbers == np.round(numbers))))
        if len(wrong):
            beside = " (weights of a survey are not supported)" if name == "weight" else ""
            raise InvalidArgument(
                f"Each {name} must be a whole number of at least {least}{beside}, but one of {where} is "
                f"{numbers[wrong[0]]:g}."
            )
        if np.sum(numbers) > MOST_ROWS:
            raise InvalidArgument(f"The rows of {where} stand for {np.sum(numbers):,.0f}, but at most {MOST_ROWS:,}.")
    if trials is not None:
        wrong = np.flatnonzero(~((outcome >= 0) & (outcome <= trials) & (outcome == np.round(outcome))))
        if len(wrong):
            raise InvalidArgument(
                f"With trials the outcome is their number of events, but one of {where} is {outcome[wrong[0]]:g} of "
                f"{trials[wrong[0]]:g}."
            )
        number = trials.astype(np.int64)
        places = np.repeat(places, number)
        within = np.arange(len(places)) - np.repeat(np.cumsum(number) - number, number)
        outcome = (within < outcome[places]).astype(np.float64)
    if weights is not None:
        number = weights[places].astype(np.int64)
        places, outcome = np.repeat(places, number), np.repeat(outcome, number, 0)
    return places, outcome
