"""The messages with which the server fits a model to a federation."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tfp_bfl.errors import InvalidArgument
from tfp_bfl.glm import cox
from tfp_bfl.glm.families import FAMILIES, Family
from tfp_bfl.glm.federation import Federation, Question, ask_sums
from tfp_bfl.glm.sums import Sums


class Work(NamedTuple):
    """The messages that the server can send to all clients.

    Fields:
      family: of the outcome.
      ask: coefficients [p] -> the sums of all clients there; one message.
      first: sums whose weighted least squares are the first step.
      messages: how many messages `first` took.
      warnings: coefficients at the maximum -> sentences on what may be wrong.
    """

    family: Family
    ask: Callable[[np.ndarray], Sums]
    first: Sums
    messages: int = 1
    warnings: Callable[[np.ndarray], list[str]] = lambda coefficients: []


def of_family(federation: Federation, family: str) -> Work:
    """Return the messages for a family with a link; the first sums are those of working outcomes."""
    ask = lambda coefficients, kind="sums": ask_sums(federation, Question(kind, coefficients))[0]
    return Work(FAMILIES[family], ask, ask(np.zeros(len(federation.names)), "first"))


def of_cox(federation: Federation, stratified: bool) -> Work:
    """Return the messages for proportional hazards.

    A message first collects sums of the columns, by which clients subtract their means: the coefficients stay, and
    exp(x' b) stays within its range. With one baseline hazard it collects the times too. The first sums are at 0.

    Raises:
      InvalidArgument: no client has an event.
    """
    size = len(federation.names)
    start = np.zeros((1, size))
    columns = federation.total(Question("columns", start))
    times = np.zeros(0) if stratified else federation.event_times()
    question = Question("stratum" if stratified else "risk", start, centre=columns[:-1] / columns[-1], times=times)

    def risk(coefficients: np.ndarray) -> cox.RiskSums:
        total = federation.total(question._replace(points=coefficients[np.newaxis]))
        return cox.RiskSums.unpack(total, len(times), size)

    def ask(coefficients: np.ndarray) -> Sums:
        if not stratified:
            return cox.partial_sums(risk(coefficients))
        return ask_sums(federation, question._replace(points=coefficients))[0]

    def warnings(coefficients: np.ndarray) -> list[str]:
        if not stratified:
            return cox.not_proportional(cox.trend(risk(coefficients)), federation.names)
        at = question._replace(kind="trend", points=coefficients[np.newaxis])
        return cox.not_proportional(cox.Trend.unpack(federation.total(at), size), federation.names)

    first = ask(start[0])
    if not first.num_events:
        raise InvalidArgument("No row has an event: the outcome (time, event) must hold at least one event of 1.")
    # Events limit the number of coefficients, as for counts.
    return Work(FAMILIES["poisson"]._replace(name="cox"), ask, first, 2, warnings)
