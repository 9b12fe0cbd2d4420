"""Questions of the server to all clients, what adds up their answers (this process, or sites), and what a fit asks."""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from tfp_bfl.errors import InvalidArgument
from tfp_bfl.glm import cox, effects
from tfp_bfl.glm.checks import check_resolution, check_theta
from tfp_bfl.glm.families import FAMILIES, NEGATIVE_BINOMIAL, Family
from tfp_bfl.glm.rows import DesignRows, Rows
from tfp_bfl.glm.sums import MOST_CLIENTS, Sums, client_sums, decode, encode, first_sums, pack, row_scores

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
      centre: "risk", "stratum", "trend" and "scores": subtracted from the columns [p].
      times: "risk" and "scores": of events, of all clients; none for a baseline hazard of each client.
      unit: "scores": what each score is of, rows or clients.
      risk: "scores" of "cox": the sums over risk sets of all clients; none for a baseline hazard of each client.
    """

    kind: str
    points: np.ndarray
    columns: tuple[int, ...] = ()
    nodes: int = 0
    centre: np.ndarray = _NOTHING
    times: np.ndarray = _NOTHING
    unit: str = ""
    risk: np.ndarray = _NOTHING


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


def _first(rows: Rows, family: str, question: Question) -> np.ndarray:
    return pack(*first_sums(rows, FAMILIES[family], question.points.shape[1]))


def _sums(rows: Rows, family: str, question: Question) -> np.ndarray:
    of = FAMILIES[family], question.kind == "expected"
    return np.concatenate([pack(*client_sums(rows, point, *of)) for point in question.points])


def _effects(rows: Rows, family: str, question: Question) -> np.ndarray:
    size, width, of = question.points.shape[1], rows.design.shape[1], (question.columns, family == "gaussian")
    layout = effects.EffectsLayout.of_points(size, width, *of)
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


def _scores(rows: Rows, family: str, question: Question) -> np.ndarray:
    """Compute the sum of g g' over rows or for the client, g the score of one of them, with a dispersion of 1."""
    (point,) = question.points
    if family == "cox":
        rows = cox.centred(rows, question.centre)
        if len(question.risk):
            times, of_all = question.times, cox.RiskSums.unpack(question.risk, len(question.times), len(point))
        else:
            times, of_all = (own := cox.event_times(rows)), cox.risk_sums(rows, point, own)
        scores = cox.row_scores(rows, point, times, of_all)
    else:
        scores = row_scores(rows, point, FAMILIES[family])
    scores = np.sum(scores, 0, keepdims=True) if question.unit == "clients" else scores
    return np.ravel(scores.T @ scores)


# Kind of a question -> (rows, family, question) -> the answer of one client [n].
KINDS: dict[str, Callable[[Rows, str, Question], np.ndarray]] = {
    "first": _first,
    "sums": _sums,
    "expected": _sums,
    "effects": _effects,
    "restricted": _restricted,
    "columns": _columns,
    TIMES: lambda rows, family, question: cox.event_times(rows),
    "risk": lambda rows, family, question: _risk(rows, question).pack(),
    "stratum": lambda rows, family, question: pack(*cox.partial_sums(_risk(rows, question))),
    "scores": _scores,
    "trend": lambda rows, family, question: pack(*cox.trend(_risk(rows, question))),
}


def answer(rows: Rows, family: str, question: Question) -> np.ndarray:
    """Compute the answer of one client to a question: sums over its rows [n]."""
    return KINDS[question.kind](rows, family, question)


def answer_length(family: str, question: Question, size: int) -> int:
    """Return the number of sums in an answer, by that of one row, for `size` columns of the design."""
    outcome = np.zeros((1, 2)) if family == "cox" else np.zeros(1)
    with np.errstate(all="ignore"):
        return len(answer(Rows(np.zeros((1, size)), outcome, np.zeros(1)), family, question))


def ask_sums(federation: Federation, question: Question) -> list[Sums]:
    """Ask for the sums of all clients at each point of a question [m]."""
    points = np.atleast_2d(question.points)
    vectors = federation.total(question._replace(points=points)).reshape(len(points), -1)
    return [Sums.unpack(vector, points.shape[1]) for vector in vectors]


def check_columns(federation: Federation, sums: Sums, precision: np.ndarray, beside: str = "") -> None:
    """Refuse columns that are too small for secure sums (`checks.check_resolution`).

    `sums` are those of the first message, before weights may be near 0; the precision of the prior [p] determines the
    coefficient of a column of zeros; `beside` is what divides the columns, in words.
    """
    if federation.is_secure:
        columns = [f"Column {name!r}{beside}" for name in federation.names]
        squares = np.diag(sums.information)[: len(columns)]
        check_resolution(np.where(squares == 0, precision, squares), columns, federation.num_clients)


def add_answers(answers: Iterable[np.ndarray], is_secure: bool) -> np.ndarray:
    """Add the answers of all clients [n], in fixed point where the sums are secure (`sums`)."""
    if is_secure:
        return decode(functools.reduce(np.add, map(encode, answers)))
    return functools.reduce(np.add, answers)


class InProcess:
    """Clients of one table in this process (`Federation`); `secure_sums` adds their answers in fixed point (`sums`)."""

    def __init__(self, table: DesignRows, family: str, secure_sums: bool = False):
        if secure_sums and len(table.clients) > MOST_CLIENTS:
            raise InvalidArgument(f"Secure sums are of at most {MOST_CLIENTS:,} clients, not {len(table.clients):,}.")
        self._clients, self._family = table.clients, family
        # Of the coefficients: a column of classes has one for each of their predictors. Further parameters are last.
        self.names = [name for name in table.names for _ in range(table.num_predictors)] + [*table.further]
        self.num_clients, self.is_secure = len(table.clients), secure_sums

    def total(self, question: Question) -> np.ndarray:
        """Implement `Federation.total`."""
        return add_answers((answer(rows, self._family, question) for rows in self._clients), self.is_secure)

    def event_times(self) -> np.ndarray:
        """Implement `Federation.event_times`."""
        if self.is_secure:
            raise InvalidArgument(
                "One baseline hazard for all clients needs the times of events of each client, which are no sum: with "
                "secure sums give stratified, a baseline hazard for each client."
            )
        return functools.reduce(np.union1d, map(cox.event_times, self._clients))


class Work(NamedTuple):
    """The messages that the server can send to all clients.

    Fields:
      family: of the outcome.
      ask: coefficients [p] -> the sums of all clients there; one message. A second argument "expected" asks a family
        of `families` for the expected information.
      first: sums whose weighted least squares are the first step.
      messages: how many messages `first` took.
      warnings: coefficients at the maximum -> sentences on what may be wrong.
      scores: coefficients at the maximum, and rows or clients -> the sum of their g g' [p, p], g a score; one message.
    """

    family: Family
    ask: Callable[..., Sums]
    first: Sums
    scores: Callable[[np.ndarray, str], np.ndarray]
    messages: int = 1
    warnings: Callable[[np.ndarray], list[str]] = lambda coefficients: []


def of_family(federation: Federation, family: str) -> Work:
    """Return the messages for a family with a link; the first sums are those of working outcomes."""

    def ask(coefficients: np.ndarray, kind: str = "sums") -> Sums:
        sums = ask_sums(federation, Question(kind, coefficients))[0]
        if family == NEGATIVE_BINOMIAL:
            check_theta(sums, coefficients[-1])
            try:
                np.linalg.cholesky(sums.information)
            except np.linalg.LinAlgError:  # A step must ascend also where the likelihood is not concave in log theta.
                own = sums.information[-1, -1]
                sums.information[-1] = sums.information[:, -1] = 0.0
                sums.information[-1, -1] = abs(own)
        return sums

    scores = functools.partial(ask_scores, federation)
    return Work(FAMILIES[family], ask, ask(np.zeros(len(federation.names)), "first"), scores)


def ask_scores(
    federation: Federation, coefficients: np.ndarray, unit: str, question: Question | None = None
) -> np.ndarray:
    """Ask for the sum of g g' over the scores g of rows or clients [p, p]."""
    of = question or Question("scores", _NOTHING)
    at = of._replace(kind="scores", points=coefficients[np.newaxis], unit=unit)
    return federation.total(at).reshape(len(coefficients), -1)


def of_cox(federation: Federation, stratified: bool) -> Work:
    """Return the messages for proportional hazards.

    A message first collects sums of the columns, by which clients subtract their means: the coefficients stay, and
    exp(x' b) stays within its range. With one baseline hazard it collects the times too. The first sums are at 0.
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
        at = question._replace(kind="trend", points=coefficients[np.newaxis])
        sums = cox.Trend.unpack(federation.total(at), size) if stratified else cox.trend(risk(coefficients))
        strata = federation.num_clients if stratified else 1
        return [*cox.poor_strata(sums, strata), *cox.not_proportional(sums, federation.names)]

    def scores(coefficients: np.ndarray, unit: str) -> np.ndarray:
        of_all = _NOTHING if stratified else risk(coefficients).pack()
        return ask_scores(federation, coefficients, unit, question._replace(risk=of_all))

    first = ask(start[0])
    if not first.num_events:
        raise InvalidArgument("No row has an event: the outcome (time, event) must hold at least one event of 1.")
    # Events limit the number of coefficients, as for counts.
    return Work(FAMILIES["poisson"]._replace(name="cox"), ask, first, scores, 2, warnings)
