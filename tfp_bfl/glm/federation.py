"""Questions of the server to all clients, and what adds up their answers: this process, or sites."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from tfp_bfl.errors import InvalidArgument
from tfp_bfl.glm import cox, effects
from tfp_bfl.glm.checks import check_resolution
from tfp_bfl.glm.families import FAMILIES
from tfp_bfl.glm.fixed_point import MOST_CLIENTS, decode, encode
from tfp_bfl.glm.rows import DesignRows, Rows
from tfp_bfl.glm.sums import Sums, client_sums, first_sums, pack

_NOTHING = np.zeros(0)
# Kind of the question for the times of events.
TIMES = "times"


class Question(NamedTuple):
    """A message of the server to all clients.

    Fields:
      kind: one of `KINDS`.
      points: coefficients, or the parameters of random effects, at which sums are asked for [m, size].
      columns: "effects" and "restricted": columns of the design whose coefficients differ between clients.
      nodes: "effects" and "restricted": of the quadrature.
      centre: "risk", "stratum" and "trend": subtracted from the columns [p].
      times: "risk": of events, of all clients.
    """

    kind: str
    points: np.ndarray
    columns: tuple[int, ...] = ()
    nodes: int = 0
    centre: np.ndarray = _NOTHING
    times: np.ndarray = _NOTHING


class Federation(Protocol):
    """Clients that answer questions; only the sum of their answers is used."""

    @property
    def names(self) -> Sequence[str]:
        """The names of the coefficients [p]."""

    @property
    def num_clients(self) -> int:
        """The number of clients."""

    @property
    def is_secure(self) -> bool:
        """Return whether answers are added in fixed point."""

    def total(self, question: Question) -> np.ndarray:
        """Return the sum of the clients' answers [n]; NaN where an answer is no number."""

    def event_times(self) -> np.ndarray:
        """Return the distinct times of events of all clients, in ascending order ("cox" with one baseline hazard)."""


def _sums(rows: Rows, family: str, question: Question) -> np.ndarray:
    return np.concatenate([pack(*client_sums(rows, point, FAMILIES[family])) for point in question.points])


def _effects(rows: Rows, family: str, question: Question) -> np.ndarray:
    layout = effects.EffectsLayout(rows.design.shape[1], question.columns, family == "gaussian")
    parts = [effects.client_sums(rows, x, FAMILIES[family], layout, question.nodes)[0] for x in question.points]
    return np.concatenate([pack(*part) for part in parts])


def _restricted(rows: Rows, family: str, question: Question) -> np.ndarray:
    layout = effects.EffectsLayout(rows.design.shape[1], question.columns, True)
    sums = _effects(rows, family, question._replace(points=question.points[:1]))
    return pack(sums, effects.precisions(rows, question.points, layout))


def _columns(rows: Rows, family: str, question: Question) -> np.ndarray:
    return np.append(np.sum(rows.design, 0), len(rows.design))


def _risk(rows: Rows, question: Question) -> cox.RiskSums:
    centred = cox.centred(rows, question.centre)
    times = question.times if question.kind == "risk" else cox.event_times(rows)
    return cox.risk_sums(centred, question.points[0], times)


# Kind of a question -> (rows, family, question) -> the answer of one client [n].
KINDS: dict[str, Callable[[Rows, str, Question], np.ndarray]] = {
    "first": lambda rows, family, question: pack(*first_sums(rows, FAMILIES[family])),
    "sums": _sums,
    "effects": _effects,
    "restricted": _restricted,
    "columns": _columns,
    TIMES: lambda rows, family, question: cox.event_times(rows),
    "risk": lambda rows, family, question: _risk(rows, question).pack(),
    "stratum": lambda rows, family, question: pack(*cox.partial_sums(_risk(rows, question))),
    "trend": lambda rows, family, question: pack(*cox.trend(_risk(rows, question))),
}


def answer(rows: Rows, family: str, question: Question) -> np.ndarray:
    """Return the answer of one client to a question: sums over its rows [n].

    Args:
      rows: of the client.
      family: the name of the outcome's distribution.
      question: of the server.
    """
    return KINDS[question.kind](rows, family, question)


def answer_length(family: str, question: Question, size: int) -> int:
    """Return the number of sums in an answer: that of one row.

    Args:
      family, question: as of `answer`.
      size: the number of columns of the design.
    """
    outcome = np.zeros((1, 2)) if family == "cox" else np.zeros(1)
    with np.errstate(all="ignore"):
        return len(answer(Rows(np.zeros((1, size)), outcome, np.zeros(1)), family, question))


def ask_sums(federation: Federation, question: Question) -> list[Sums]:
    """Return the sums of all clients at each point of a question [m]."""
    points = np.atleast_2d(question.points)
    vectors = federation.total(question._replace(points=points)).reshape(len(points), -1)
    return [Sums.unpack(vector, points.shape[1]) for vector in vectors]


def check_columns(federation: Federation, sums: Sums, precision: np.ndarray, beside: str = "") -> None:
    """Refuse columns that are too small for secure sums.

    Args:
      federation: the clients.
      sums: of all clients; those of the first message, before weights may be near 0.
      precision: of the prior [p], which determines the coefficient of a column of zeros.
      beside: what divides the columns, for the message.

    Raises:
      InvalidArgument: as of `checks.check_resolution`.
    """
    if federation.is_secure:
        columns = [f"Column {name!r}{beside}" for name in federation.names]
        squares = np.diag(sums.information)[: len(columns)]
        check_resolution(np.where(squares == 0, precision, squares), columns, federation.num_clients)


class InProcess:
    """Clients of one table in this process (`Federation`).

    Args:
      table: their rows.
      family: the name of the outcome's distribution.
      secure_sums: whether the answers are added in fixed point (`fixed_point`), as under secure aggregation.

    Raises:
      InvalidArgument: secure sums of more clients than fixed point can add.
    """

    def __init__(self, table: DesignRows, family: str, secure_sums: bool = False):
        if secure_sums and len(table.clients) > MOST_CLIENTS:
            raise InvalidArgument(f"Secure sums are of at most {MOST_CLIENTS:,} clients, not {len(table.clients):,}.")
        self._clients, self._family = table.clients, family
        self.names, self.num_clients, self.is_secure = table.names, len(table.clients), secure_sums

    def total(self, question: Question) -> np.ndarray:
        """Implement `Federation.total`."""
        answers = (answer(rows, self._family, question) for rows in self._clients)
        return (
            decode(functools.reduce(np.add, map(encode, answers)))
            if self.is_secure
            else functools.reduce(np.add, answers)
        )

    def event_times(self) -> np.ndarray:
        """Implement `Federation.event_times`."""
        if self.is_secure:
            raise InvalidArgument(
                "One baseline hazard for all clients needs the times of events of each client, which are no sum: with "
                "secure sums give stratified, a baseline hazard for each client."
            )
        return functools.reduce(np.union1d, map(cox.event_times, self._clients))
