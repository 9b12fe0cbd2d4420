"""The options of a fit, and its result: a normal posterior over coefficients, and its table."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from tfp_bfl.errors import InvalidArgument, check_delta, check_number, lookup, shown
from tfp_bfl.glm.contrasts import spread, wald, weights_of
from tfp_bfl.glm.families import CANONICAL, FAMILIES, NEGATIVE_BINOMIAL, ORDINAL
from tfp_bfl.glm.quadrature import predictive_grid, regular
from tfp_bfl.glm.rows import INTERCEPT
from tfp_bfl.glm.sums import Sums

_MOST_DEGREES = 1e6
# What the scores of a robust variance are of.
ROWS, CLIENTS = "rows", "clients"
# The name of the outcome among bounds.
OUTCOME = "outcome"


class Model(NamedTuple):
    """The options of a fit, as of `fit`, and with names in `random` as of `fit_hierarchical`."""

    family: str
    prior_stddev: float | None = None
    intercept_stddev: float | None = None
    dispersion: float | None = None
    stratified: bool = False
    second_order: bool = False
    random: Sequence[str] = ()
    between_stddev: float | None = None
    restricted: bool | None = None
    robust: str | None = None

    def check(self, exposure: object = None) -> None:
        """Raise InvalidArgument for an option that is not valid, or of another family."""
        lookup({**FAMILIES, "cox": None}, self.family, "family")
        if self.robust is not None:
            lookup(dict.fromkeys((ROWS, CLIENTS)), self.robust, "unit of a robust variance")
            if self.second_order:
                raise InvalidArgument("robust and second_order are two covariances: give one of them.")
        stddevs = ("prior_stddev", self.prior_stddev), ("intercept_stddev", self.intercept_stddev)
        for name, stddev in (*stddevs, ("dispersion", self.dispersion)):
            if stddev is not None and (stddev != math.inf or name == "dispersion"):
                check_number(stddev, name)
        given: dict[str, tuple[bool, tuple[str, ...]]] = {
            "dispersion": (self.dispersion is not None, ("gaussian", "gamma")),
            "stratified": (self.stratified, ("cox",)),
            "exposure": (exposure is not None, ("poisson", NEGATIVE_BINOMIAL)),
            "second_order": (self.second_order, (*CANONICAL, "cox")),
        }
        for name, (is_given, families) in given.items():
            if is_given and self.family not in families:
                of = f"family {families[0]!r}" if len(families) == 1 else f"families {', '.join(families)}"
                raise InvalidArgument(f"{name} is for the {of}, but the family is {self.family!r}.")
        if self.family == ORDINAL and self.intercept_stddev is not None:
            raise InvalidArgument(
                "An ordinal model has cutpoints in place of an intercept, which have a flat prior: leave "
                "intercept_stddev out."
            )

    @property
    def is_restricted(self) -> bool:
        """Return whether variances have the maximum of the restricted likelihood."""
        by_default = self.family == "gaussian" and not self.second_order
        return by_default if self.restricted is None else self.restricted

    def precision(self, names: Sequence[str]) -> np.ndarray:
        """Return 1 / s^2 of each coefficient [p]; 0 for a flat prior."""
        of = lambda stddev: 0.0 if stddev is None else 1 / stddev**2
        first = self.prior_stddev if self.intercept_stddev is None else self.intercept_stddev
        return np.array([of(first) if name == INTERCEPT else of(self.prior_stddev) for name in names])


class RowPrivacy(NamedTuple):
    """Differential privacy of each row.

    Fields:
      epsilon, delta: P(S~ | with a row) <= exp(epsilon) P(S~ | without) + delta, and the reverse.
      bounds: column -> the least and the largest value, "outcome" for the outcome; rows are cut there. They must be
        known without the rows.
    """

    epsilon: float
    delta: float
    bounds: Mapping[str, tuple[float, float]]

    def check(self, family: str, names: list[str]) -> None:
        """Raise InvalidArgument for a family or a number that does not fit, and for columns without bounds."""
        if family != "gaussian":
            raise InvalidArgument(f"epsilon is for the family 'gaussian', but the family is {shown(family)}.")
        check_number(self.epsilon, "epsilon")
        check_delta(self.delta)
        wanted = [*names, OUTCOME]
        without, unknown = ([x for x in a if x not in b] for a, b in ((wanted, self.bounds), (self.bounds, wanted)))
        if without or unknown:
            said = f"bounds lacks {', '.join(without)}" if without else f"bounds names {shown(unknown[0])}"
            raise InvalidArgument(f"{said}: give the least and the largest value of {', '.join(wanted)}.")
        for name, (low, high) in self.bounds.items():
            if not (math.isfinite(low) and math.isfinite(high) and low < high):
                raise InvalidArgument(
                    f"The bounds of {name} are {low:g} and {high:g}, but must be two numbers in ascending order."
                )


class Coefficients(list[dict[str, Any]]):
    """Rows of a table of coefficients; printed as aligned text."""

    def __str__(self) -> str:
        if not self:
            return ""
        cells = [list(self[0]), *([as_text(value) for value in row.values()] for row in self)]
        widths = [max(map(len, column)) for column in zip(*cells)]
        lines = [[row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:]))] for row in cells]
        return "\n".join("  ".join(line).rstrip() for line in lines)


def as_text(value: object) -> str:
    """Format a number with four digits."""
    return value if isinstance(value, str) else f"{value:.4g}"


class Satterthwaite(NamedTuple):
    """The covariance of coefficients where variances are estimated, from which degrees of freedom follow.

    Fields:
      covariance: of the coefficients given the variances, H^-1 [p, p].
      slopes: its derivatives along independent directions of the variances, a standard deviation each [v, p, p].
    """

    covariance: np.ndarray
    slopes: np.ndarray

    def degrees(self, rows: np.ndarray, variance: object = 0.0, slopes: object = 0.0) -> np.ndarray:
        """Return the degrees of freedom of Student's t for each x' b + e, by Satterthwaite's approximation [n].

            2 v^2 / Var(v),   v = x' H^-1 x + Var(e)

        e, with variance [n] and its derivatives `slopes` along the same directions [v, n], is independent of b.

        Source: Satterthwaite 1946; Kuznetsova et al. 2017.
        """
        of_rows = np.einsum("ij,jk,ik->i", rows, self.covariance, rows) + variance
        change = np.einsum("ij,vjk,ik->vi", rows, self.slopes, rows) + slopes
        return np.clip(2 * of_rows**2 / np.maximum(np.sum(change**2, 0), 1e-300), 1.0, _MOST_DEGREES)


@dataclasses.dataclass(frozen=True)
class Posterior:
    """A normal posterior N(mean, covariance) over the coefficients of a generalised linear model.

    Methods take features [n, p], without a column for the intercept. Of C classes, each column has q = C - 1
    coefficients, differences from the first class: those of the first column, then of the second, and so on.

    Attributes:
      names: of the coefficients, and after them of further parameters [p].
      mean: the maximum of the posterior [p].
      covariance: the inverse of the information there [p, p].
      family: the name of the outcome's distribution.
      count, events: the number of rows, and of events among them.
      num_clients: the number of clients.
      messages: the number of messages that each client received.
      log_likelihood: at the mean.
      dispersion: the variance of a Gaussian outcome, or of a gamma outcome over its squared mean; 1 for others.
      precision: of the prior [p].
      warnings: sentences on what may be wrong with the fit.
      sums: of all clients at the coefficients `sums_at`, by which clients join and leave (`revise`); None for "cox".
      sums_at: [p].
      given_dispersion: the dispersion that `fit` was given; None where it was estimated.
      degrees_of_freedom: of Student's t, a number or one for each coefficient [p]; None for normal intervals.
      satterthwaite: from which those of `degrees_at` follow, with restricted maximum likelihood; otherwise None.
      classes: the names of the classes ("multinomial", "ordinal") [C].
      privacy: differential privacy of each row; None without.
      robust: what the scores of a robust covariance are of, "rows" or "clients"; None for the inverse information.
    """

    names: Sequence[str]
    mean: np.ndarray
    covariance: np.ndarray
    family: str
    count: int
    events: int
    num_clients: int
    messages: int
    log_likelihood: float
    precision: np.ndarray
    dispersion: float = 1.0
    warnings: Sequence[str] = ()
    sums: Sums | None = None
    sums_at: np.ndarray | None = None
    given_dispersion: float | None = None
    degrees_of_freedom: float | np.ndarray | None = None
    satterthwaite: Satterthwaite | None = None
    classes: Sequence[str] = ()
    privacy: RowPrivacy | None = None
    robust: str | None = None

    @property
    def num_predictors(self) -> int:
        """The number q of linear predictors of a row: 1, or one less than the classes."""
        return 1 if self.further else max(1, len(self.classes) - 1)

    @property
    def further(self) -> tuple[str, ...]:
        """The names of the last parameters, which are no coefficients: log theta, or cutpoints."""
        names = FAMILIES[self.family].further if self.family in FAMILIES else None
        return names(self.classes) if names else ()

    @property
    def columns(self) -> list[str]:
        """The names of the columns of the design, the intercept first if there is one."""
        suffix = f": {self.classes[1]}" if self.classes and not self.further else ""
        names = self.names[: len(self.names) - len(self.further) : self.num_predictors]
        return [name.removesuffix(suffix) for name in names]

    @property
    def stddev(self) -> np.ndarray:
        """Posterior standard deviations [p]."""
        return np.sqrt(np.diag(self.covariance))

    @property
    def ratio(self) -> str | None:
        """The name of exp(coefficient): odds ratio, rate ratio or hazard ratio; None for Gaussian outcomes."""
        return FAMILIES[self.family].ratio if self.family in FAMILIES else "hazard ratio"

    def interval(self, level: float = 0.95) -> np.ndarray:
        """Return the central interval of each coefficient [p, 2], which contains it with probability `level`.

        For Gaussian outcomes with an estimated dispersion it is that of Student's t, by `degrees_of_freedom`, otherwise
        of the normal.
        """
        half = quantile(level, self.degrees_of_freedom) * self.stddev
        return np.stack([self.mean - half, self.mean + half], axis=1)

    def table(self, level: float = 0.95) -> Coefficients:
        """Return a row for each coefficient: mean, standard deviation, interval, and its ratio with an interval.

        `str` of the table is aligned text. The ratio is exp(coefficient); the intercept has none. The last column,
        df, has the degrees of freedom of Student's t, where intervals are of it.
        """
        percent, rows = f"{100 * level:g} %", Coefficients()
        has_t = self.degrees_of_freedom is not None
        degrees = np.broadcast_to(np.array(self.degrees_of_freedom if has_t else np.nan), len(self.names))
        of_each = zip(self.names, self.mean, self.stddev, self.interval(level), degrees)
        for name, mean, stddev, (low, high), df in of_each:
            row = {
                "coefficient": name,
                "mean": mean,
                "robust sd" if self.robust else "sd": stddev,
                f"{percent} from": low,
                "to": high,
            }
            if self.ratio:
                has_none = self._has_no_ratio(name)
                of = lambda x, has_none=has_none: "" if has_none else float(np.exp(x))
                row |= {self.ratio: of(mean), f"{self.ratio}, {percent} from": of(low), f"{self.ratio}, to": of(high)}
            rows.append(row | ({"df": df} if has_t else {}))
        return rows

    def contrast(self, weights: Mapping[str, float] | np.ndarray, level: float = 0.95) -> dict[str, Any]:
        """Estimate a sum of coefficients: a dict with mean, sd, low, high; with `ratio`, also its ratio and interval.

            c' b,   c' b ~ N(c' mean, c' covariance c), or Student's t as in `interval`

        The ratio exp(c' b) is None where c has the intercept: that is no ratio.

        Args:
          weights: c, as coefficient -> weight, 0 for all others; or [p].
          level: probability of the interval.

        Example:
          >>> import numpy as np
          >>> import tfp_bfl as bfl
          >>> x, y = np.array([[0.0], [1.0], [2.0], [3.0]]), np.array([1.0, 3.0, 5.0, 7.2])
          >>> round(bfl.glm.fit([(x, y)], names=["dose"]).contrast({"dose": 10})["mean"], 2)
          20.6
        """
        row = weights_of(self.names, weights)
        mean, stddev = float(row @ self.mean), float(np.sqrt(row @ self.covariance @ row))
        half = float(quantile(level, self._degrees(row)) * stddev)
        found = {"mean": mean, "sd": stddev, "low": mean - half, "high": mean + half}
        if not self.ratio:
            return found
        has_none = any(w and self._has_no_ratio(name) for name, w in zip(self.names, row))
        of = lambda x: None if has_none else float(np.exp(x))
        ends = {f"{self.ratio}, {end}": of(found[end]) for end in ("low", "high")}
        return {**found, self.ratio: of(mean), **ends}

    def wald_test(self, names: Sequence[str]) -> dict[str, float]:
        """Test whether all named coefficients are 0: a dict with statistic, df, df_residual and p.

            F = b' V^-1 b / m,   with the m named coefficients b and their covariance V

        F(m, df_residual) for Gaussian outcomes with an estimated dispersion, else m F against chi^2(m), for which
        df_residual is infinite and the statistic is m F. With restricted maximum likelihood one name is possible alone.
        """
        if isinstance(names, str) or not names or len({*names}) < len(names):
            raise InvalidArgument(f"names must be a list of different coefficients, not {shown(names)}.")
        rows = np.stack([weights_of(self.names, {name: 1.0}) for name in names])
        if self.satterthwaite is not None and len(rows) > 1:
            raise InvalidArgument(
                "A joint test of a restricted fit is not available: give one name, or fit another way."
            )
        return wald(rows @ self.mean, rows @ self.covariance @ rows.T, self._degrees(rows[0]))

    def _has_no_ratio(self, name: str) -> bool:
        return name.partition(":")[0] == INTERCEPT or name in self.further

    def _degrees(self, row: np.ndarray) -> float | None:
        """Return the degrees of freedom of Student's t for c' b; None for the normal distribution."""
        if self.satterthwaite is not None:
            return float(self.satterthwaite.degrees(row[np.newaxis])[0])
        return None if self.degrees_of_freedom is None else float(self.degrees_of_freedom)

    def design(self, features: np.ndarray) -> np.ndarray:
        """Return rows with a column of ones first, if there is an intercept [n, p]."""
        x, columns = np.asarray(features, np.float64), self.columns
        has_intercept = INTERCEPT in columns
        if x.ndim != 2 or x.shape[1] != len(columns) - has_intercept:
            raise InvalidArgument(
                f"features have shape {x.shape}, but must have [n, {len(columns) - has_intercept}]: "
                f"{', '.join(columns[has_intercept:])}."
            )
        return np.column_stack([np.ones(len(x)), x]) if has_intercept else x

    def linear_predictor(self, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Compute mean and standard deviation of x' b for each row, [n] and [n]; of classes [n, C - 1] each.

        An interval is mean +- q stddev, q the quantile of Student's t with `degrees_at`, or of the normal for None.
        """
        return self.without_axis(*self.law(self._along(features)))

    def _along(self, features: np.ndarray) -> np.ndarray:
        """Return the A_i by which all parameters become the linear predictors of each row [n, q, p]."""
        along = spread(self.design(features), self.num_predictors)
        return np.pad(along, ((0, 0), (0, 0), (0, len(self.further))))

    def law(self, along: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Compute mean [n, q] and covariance [n, q, q] of A_i b, for the A_i of each row [n, q, p q]."""
        return along @ self.mean, along @ self.covariance @ np.swapaxes(along, 1, 2)

    def without_axis(self, centre: np.ndarray, covariance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and standard deviation of linear predictors [n, q], or [n] if a row has one and no classes."""
        stddev = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2))
        return (centre, stddev) if self.classes and not self.further else (centre[:, 0], stddev[:, 0])

    def mean_at(self, centre: np.ndarray, covariance: np.ndarray) -> np.ndarray:
        """Compute the mean of the outcome [n], or the probabilities of classes [n, C], by those of the predictors."""
        if not self.classes:
            return mean_outcome(self.family, *self.without_axis(centre, covariance))
        points, weights = predictive_grid(centre.shape[1])
        values = centre[:, np.newaxis] + points @ np.swapaxes(np.linalg.cholesky(regular(covariance)), 1, 2)
        found: np.ndarray = np.einsum("q,iqc->ic", weights, mean_of(self.family)(values))
        return found

    def degrees_at(self, features: np.ndarray) -> np.ndarray | None:
        """Return the degrees of freedom of Student's t for x' b of each row [n]; None for normal intervals."""
        design = self.design(features)
        if self.satterthwaite is not None:
            return self.satterthwaite.degrees(design)
        return None if self.degrees_of_freedom is None else np.full(len(design), self.degrees_of_freedom)

    def predict(self, features: np.ndarray) -> np.ndarray:
        """Compute the mean of the outcome for each row under the posterior [n]; the probabilities of classes [n, C].

        For survival it is the hazard relative to a row of zeros; for counts with an exposure, the mean for one unit.

            E[g^-1(x' b)],   b ~ N(mean, covariance),   by Gauss-Hermite quadrature of 40 nodes
        """
        along = self._along(features)
        if not self.classes or not self.further:
            return self.mean_at(*self.law(along))
        # The logits of y <= k.
        centre, covariance = self.law(np.eye(len(self.mean))[-len(self.further) :] - along)
        below = mean_outcome("bernoulli", centre, np.sqrt(np.diagonal(covariance, axis1=1, axis2=2)))
        return np.diff(below, axis=1, prepend=0.0, append=1.0)


def quantile(level: float, degrees_of_freedom: float | np.ndarray | None = None) -> Any:
    """Compute the half width of a central interval, in standard deviations; None stands for the normal distribution."""
    if not 0 < check_number(level, "level") < 1:
        raise InvalidArgument(f"level is {level:g}, but must be above 0 and below 1, such as 0.95.")
    law = stats.norm if degrees_of_freedom is None else stats.t(degrees_of_freedom)
    return law.ppf(0.5 + level / 2)


def mean_of(family: str) -> Callable[[np.ndarray], np.ndarray]:
    """Return linear predictor -> mean of the outcome; for "cox" the hazard relative to a row of zeros."""
    return FAMILIES[family].mean if family in FAMILIES else np.exp


def mean_outcome(family: str, centre: np.ndarray, stddev: np.ndarray) -> np.ndarray:
    """Compute the mean of the outcome where the linear predictor is N(centre, stddev^2), elementwise."""
    nodes, weights = predictive_grid(1)
    values: np.ndarray = mean_of(family)(centre[..., np.newaxis] + stddev[..., np.newaxis] * nodes[:, 0])
    return values @ weights
