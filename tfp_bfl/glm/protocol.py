"""Rules by which a client answers: the next question of a fit, and no other one.

A server that chooses coefficients freely reads single rows from sums: between two steep linear predictors that differ
by one row, the gradient changes by this row. A client therefore recomputes the fit. Each question comes with the total
of the last one, and the client takes the same step from it as the server.

    eta = X b,   |eta_i| <= 30,   max_i w_i / sum_i w_i <= 4/5,   w: weights of the information

A server can still report false totals, which a client can compare only with its own part. Only the bounds on eta and on
the weights, and the number of questions, then limit what the server learns.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tfp_bfl.errors import InvalidArgument
from tfp_bfl.glm import cox, effects
from tfp_bfl.glm.families import FAMILIES
from tfp_bfl.glm.federation import TIMES, Federation, Question, answer, answer_length
from tfp_bfl.glm.rows import INTERCEPT, Rows
from tfp_bfl.glm.sums import NO_PEARSON, Sums

logger = logging.getLogger(__name__)

# Of the linear predictor of a row, in size: probabilities and rate ratios beyond exp(30) are separation.
MOST_PREDICTOR = 30.0
# Of one row in the sum of the weights, unless it has a fifth of that share at a linear predictor of 0.
MOST_SHARE, _FEW_ROWS = 0.8, 5
# Of one fit, beside the 2 p + 1 questions of second order.
MOST_QUESTIONS = 50
# Of linear predictors between server and client, relative to the largest one.
_ROUNDING = 1e-6
# Answers with the number of rows and of events first, and those of them with an information matrix of rows.
_COUNTED, _DEFINITE = ("first", "sums", "effects", "restricted", "stratum"), ("first", "sums", "stratum")


class _Next(Exception):
    """Ends the recomputed fit at its first question without a total."""

    def __init__(self, question: Question):
        super().__init__()
        self.question = question


class _Earlier:
    """The totals of earlier questions in the place of clients (`federation.Federation`)."""

    def __init__(self, names: Sequence[str], num_clients: int, is_secure: bool, totals: Sequence[np.ndarray]):
        self.names, self.num_clients, self.is_secure, self._totals = names, num_clients, is_secure, iter(totals)

    def total(self, question: Question) -> np.ndarray:
        for total in self._totals:
            return total
        raise _Next(question)

    def event_times(self) -> np.ndarray:
        return self.total(Question(TIMES, np.zeros((1, len(self.names)))))


class Answers:
    """The answers of one client to the questions of a fit.

    Args:
      rows: of the client.
      family: name of the outcome's distribution.
      fit: asks a federation all questions of the fit, as the server does; None for a revision, which has one question.
      names: of the coefficients [p].
      num_clients: number of clients.
      is_secure: whether the server reads only the sum of all clients.
      most_questions: largest number of questions.

    Attributes:
      most_numbers: number of values in the table: rows times columns, those of all clients with secure sums.
      numbers: number of values in the answers; also of earlier fits if the caller sets it.
    """

    def __init__(
        self,
        rows: Rows,
        family: str,
        fit: Callable[[Federation], Any] | None,
        names: Sequence[str],
        num_clients: int,
        is_secure: bool,
        most_questions: int = MOST_QUESTIONS,
    ):
        self._rows, self._family, self._fit, self._most = rows, family, fit, most_questions
        self._names, self._num_clients, self._is_secure = names, num_clients, is_secure
        self._totals: list[np.ndarray] = []
        self._last: tuple[Question, np.ndarray] | None = None
        width = len(names) - (INTERCEPT in names) + (1 if rows.outcome.ndim == 1 else rows.outcome.shape[1])
        # With secure sums, the smallest client determines the number: the rows of others are not known.
        self.most_numbers, self.numbers = len(rows.design) * width * (num_clients if is_secure else 1), 0

    def answer(self, question: Question, total: np.ndarray) -> np.ndarray:
        """Answer by sums over the rows; NaN if the coefficients are out of bounds, so that the server halves its step.

        `total` is that of the last question, any array before the first one. A question that does not follow from the
        totals, or exceeds a bound, is refused.
        """
        if self._last is not None:
            check_total(*self._last, total, self._family)
            self._totals.append(total)
        self._last = None  # A question after a refusal has the same totals.
        if len(self._totals) >= self._most:
            raise InvalidArgument(f"It answers at most {self._most} questions in a fit, and this is one more.")
        check_same(question, self._next(question), self._rows, self._family)
        numbers = self.numbers + count_numbers(self._family, question, len(self._names))
        if numbers >= self.most_numbers:
            raise InvalidArgument(
                f"Its answers would hold {numbers:,} numbers, and its table has {self.most_numbers:,} (rows times "
                "columns): use fewer columns, or leave this site out."
            )
        self.numbers, broken = numbers, broken_bound(self._rows, self._family, question)
        if broken:
            logger.warning("%s The answer is no number, so that an honest server halves its step.", broken)
            own = np.full(answer_length(self._family, question, len(self._names)), np.nan)
        else:
            own = answer(self._rows, self._family, question)
        self._last = question, own
        return own

    def _next(self, question: Question) -> Question:
        if self._fit is None:
            if question.kind == "sums" and len(question.points) == 1 and not self._totals:
                return question
            raise InvalidArgument("A revision has one question, for the sums at one point, and this is another one.")
        try:
            with np.errstate(all="ignore"):
                self._fit(_Earlier(self._names, self._num_clients, self._is_secure, self._totals))
        except _Next as found:
            return found.question._replace(points=np.atleast_2d(found.question.points))
        except (InvalidArgument, ValueError):
            pass  # Without a result, such as after separation: it has no further question either.
        raise InvalidArgument("The fit ended with the last totals: it answers no question after the fit.")


def check_same(asked: Question, expected: Question, rows: Rows, family: str) -> None:
    """Refuse a question that is not the expected one, up to rounding of the linear predictors of a client's rows."""
    shape = lambda x: (x.kind, x.columns, x.nodes, x.times.tolist(), x.points.shape, x.centre.shape)
    is_same = shape(asked) == shape(expected) and np.allclose(asked.centre, expected.centre, _ROUNDING, 0)
    if is_same and all(
        np.max(np.abs(x - y), initial=0) <= _ROUNDING * (1 + np.max(np.abs(y), initial=0))
        for one, other in zip(asked.points, expected.points)
        for x, y in zip(_seen(one, asked, rows, family), _seen(other, asked, rows, family))
    ):
        return
    raise InvalidArgument(
        f"The question ({asked.kind}) does not follow from the totals of the earlier ones (by which it would be "
        f"{expected.kind}): it answers only the next step of the fit."
    )


def _seen(point: np.ndarray, question: Question, rows: Rows, family: str) -> list[np.ndarray]:
    """Return what a point means for the rows: linear predictors, those of each column of L, and log s."""
    size = rows.design.shape[1]
    found = [rows.design @ point[:size]]
    if question.kind in ("effects", "restricted"):
        layout = effects.EffectsLayout(size, question.columns, family == "gaussian")
        found += [rows.design[:, question.columns] @ layout.factor(point), point[layout.size - layout.has_dispersion :]]
    return found


def broken_bound(rows: Rows, family: str, question: Question) -> str:
    """Return a sentence on the bound that a question exceeds at a client's rows, or "".

    Gaussian answers follow from one of them at any coefficients, and those to "risk" hold single rows anyway.
    """
    if family == "gaussian" or question.kind not in ("sums", "effects", "stratum", "trend"):
        return ""
    if family == "cox":
        rows = cox.centred(rows, question.centre)
    shares = np.ones(len(rows.design)) if family == "cox" else np.exp(rows.offset - np.max(rows.offset, initial=0.0))
    most_share = max(MOST_SHARE, _FEW_ROWS * float(np.max(shares) / np.sum(shares)))
    for point in question.points:
        eta, *of_effects = _seen(point, question, rows, family)
        size = np.abs(eta)
        if of_effects:  # One standard deviation of the effect.
            size = size + np.sqrt(np.sum(of_effects[0] ** 2, 1))
        if not np.max(size, initial=0.0) <= MOST_PREDICTOR:
            return f"A linear predictor is {np.max(size):.3g} in size, and the bound is {MOST_PREDICTOR:g}."
        if of_effects:
            layout = effects.EffectsLayout(rows.design.shape[1], question.columns, False)
            effect = effects.client_sums(rows, point, FAMILIES[family], layout, question.nodes)[1]
            eta = eta + rows.design[:, question.columns] @ effect.mean
        of_rows = lambda x: FAMILIES[family].terms((x + rows.offset)[:, np.newaxis], rows.outcome).weight[:, 0, 0]
        weight = np.exp(eta) if family == "cox" else of_rows(eta)
        if not np.max(weight, initial=0.0) <= most_share * np.sum(weight):
            return f"One row has more than {most_share:.0%} of the weights of all rows of this site."
    return ""


def check_total(question: Question, own: np.ndarray, total: np.ndarray, family: str) -> None:
    """Refuse a total of all clients that can't hold the answer of one: more rows, events and information."""
    wrong = InvalidArgument(f"The total of the last question ({question.kind}) can't hold the sums of this site.")
    if question.kind in (TIMES, "risk"):
        return
    if total.shape != own.shape:
        raise wrong
    if not np.all(np.isfinite(total)) or not np.all(np.isfinite(own)):
        return  # The next step is a half of this one.
    tolerance = 1e-9 * (1 + np.abs(own))
    if question.kind in _COUNTED and np.any((total < own - tolerance)[:2]):
        raise wrong
    if question.kind in _DEFINITE:
        size = question.points.shape[1]
        of_all, of_one = Sums.unpack(total, size), Sums.unpack(own, size)
        scale = 1 / np.sqrt(np.maximum(np.diag(of_all.information), 1e-300))
        others = (of_all.information - of_one.information) * np.outer(scale, scale)
        is_discrete = family != "gaussian" and question.kind != "first"
        if np.linalg.eigvalsh((others + others.T) / 2)[0] < -1e-6 or (
            is_discrete and of_all.log_likelihood > of_one.log_likelihood + tolerance[2]
        ):
            raise wrong


def count_numbers(family: str, question: Question, size: int) -> int:
    """Return how many different numbers an answer adds to what the server has; a symmetric matrix counts its half.

    All Gaussian answers follow from that at 0. Those to "risk" are not counted: they hold single rows.
    """
    of_sums = lambda p: 1 + p + p * (p + 1) // 2 + len(NO_PEARSON) * (family == "poisson")
    if question.kind in ("risk", TIMES) or (family == "gaussian" and question.kind != "sums"):
        return 0
    if question.kind == "columns":
        return size
    if question.kind == "trend":
        return 3 * of_sums(size)
    return len(question.points) * of_sums(question.points.shape[1])
