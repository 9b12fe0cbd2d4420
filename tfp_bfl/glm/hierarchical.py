"""Coefficients that differ between clients: small clients borrow strength from all others."""

import dataclasses
import pathlib
from collections.abc import Collection, Sequence

import numpy as np

from tfp_bfl.data.names import canonical
from tfp_bfl.errors import InvalidArgument, check_count, check_number, lookup
from tfp_bfl.glm.checks import few_events
from tfp_bfl.glm.contrasts import spread
from tfp_bfl.glm.effects import Effect, EffectsLayout, client_sums
from tfp_bfl.glm.families import FAMILIES
from tfp_bfl.glm.federation import Federation, Question, ask_sums, check_columns
from tfp_bfl.glm.newton import expand, inverse, maximise
from tfp_bfl.glm.posterior import Model, Posterior, Satterthwaite
from tfp_bfl.glm.quadrature import MOST_DIMENSIONS
from tfp_bfl.glm.random_features import Features, RandomFeatures
from tfp_bfl.glm.restricted import DIFFERENCE, Restricted, Scaled, is_flat, units_of
from tfp_bfl.glm.rows import INTERCEPT, Rows

_MOST_RANDOM = 3
_NODES = {1: 15, 2: 9, 3: 5}
# The integrands of Gaussian outcomes are polynomials of degree 4 at most, for which three nodes are exact.
_GAUSSIAN_NODES = 3
# Of the random effects' standard deviations, as a share of the coefficient's own scale, where the steps begin.
_START = 0.5
_FEW_CLIENTS = 6


@dataclasses.dataclass(frozen=True)
class Hierarchical:
    """The posterior of a model with random effects.

    Methods take features [n, p], without a column for the intercept, and the number of a client of the fit, or None for
    a new client, with u ~ N(0, between). Of classes, `between` belongs to the difference of any two.

    Attributes:
      posterior: of the coefficients of a typical client [p].
      random: the names of the coefficients that differ between clients [d].
      between: their covariance between clients, L L' [d, d].
      effects: the difference of each client's coefficients from those of the typical client, given the parameters; ()
        of sites, which keep them.
      parameters: theta = (b, L, log s) at the maximum.
      covariance: of theta.
      features: the function from given columns to those of the coefficients; None if they are the same.
      prior_stddevs: of the prior on coefficients of the given columns, and of further features, for columns with a
        standard deviation of 1, where they were fitted; otherwise ().
      log_evidence: the marginal likelihood at them, from which models of the same rows are compared; otherwise None.
    """

    posterior: Posterior
    random: Sequence[str]
    between: np.ndarray
    effects: Sequence[Effect]
    parameters: np.ndarray
    covariance: np.ndarray
    features: Features | None = None
    prior_stddevs: Sequence[float] = ()
    log_evidence: float | None = None

    @property
    def between_stddev(self) -> np.ndarray:
        """Standard deviations of the coefficients between clients [d]."""
        return np.sqrt(np.diag(self.between))

    @property
    def num_features(self) -> int:
        """The number of random features, the coefficients of which are the last ones."""
        return len(self.features.shifts) if isinstance(self.features, RandomFeatures) else 0

    @property
    def new_effect(self) -> Effect:
        """The distribution of the effect of a client that is not of the fit."""
        q = self.posterior.num_predictors
        between = np.kron(self.between, 0.5 * (np.eye(q) + 1))  # Of classes, as `multinomial` has it.
        return Effect(np.zeros(len(between)), between, np.zeros((len(between), len(self.posterior.names))))

    def linear_predictor(self, features: np.ndarray, client: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Compute mean and standard deviation of x' b + z' u for each row, [n] and [n]; of classes [n, C - 1] each.

            variance = a' covariance a + z' Cov(u | b) z,   a = x + (du / db)' z

        An interval is mean +- q stddev, q the quantile of Student's t with `degrees_at`, or of the normal for None.
        """
        return self.posterior.without_axis(*self._law(features, client))

    def _law(self, features: np.ndarray, client: int | None) -> tuple[np.ndarray, np.ndarray]:
        """Compute mean [n, q] and covariance [n, q, q] of the linear predictors."""
        design, z, effect = self._parts(features, client)
        q = self.posterior.num_predictors
        random = spread(z, q)
        _, covariance = self.posterior.law(spread(design, q) + random @ effect.slope)
        own = random @ effect.covariance @ np.swapaxes(random, 1, 2)
        return design @ self.posterior.mean.reshape(-1, q) + random @ effect.mean, covariance + own

    def degrees_at(self, features: np.ndarray, client: int | None = None) -> np.ndarray | None:
        """Return the degrees of freedom of Student's t for x' b + z' u of each row [n]; None for normal intervals.

        For a new client they count that the variance between clients is estimated; for one of the fit they are those of
        a' b in `linear_predictor`, without its Cov(u | b).
        """
        design, z, effect = self._parts(features, client)
        of_variances, size = self.posterior.satterthwaite, len(self.posterior.names)
        if of_variances is None:
            return None
        if client is not None:
            return of_variances.degrees(design + z @ effect.slope)
        layout = EffectsLayout(size, tuple(map(list(self.posterior.names).index, self.random)), True)
        of_factor = z @ layout.factor(self.parameters)
        # z' L L' z by each entry of L, and by log s.
        slopes = np.array([*(2 * z[:, a] * of_factor[:, b] for a, b in layout.pairs), np.zeros(len(z))])
        root = np.linalg.cholesky(self.covariance[size:, size:])
        return of_variances.degrees(design, np.sum(of_factor**2, 1), root.T @ slopes)

    def _parts(self, features: np.ndarray, client: int | None) -> tuple[np.ndarray, np.ndarray, Effect]:
        """Return the design [n, p], its random columns [n, d], and the effect of the client."""
        if client is not None and not self.effects:
            raise InvalidArgument("The effects of the clients are at the clients alone: predict for a new client.")
        if client is not None and not 0 <= check_count(client, "client", least=0) < len(self.effects):
            raise InvalidArgument(f"There is no client {client}: give one of 0 to {len(self.effects) - 1}, or None.")
        columns = features if self.features is None else self.features(features)
        design, names = self.posterior.design(columns), self.posterior.columns
        # The effect of a known client depends on b, by its slope: a larger b leaves a smaller effect.
        effect = self.new_effect if client is None else self.effects[client]
        return design, design[:, [names.index(name) for name in self.random]], effect

    def predict(self, features: np.ndarray, client: int | None = None) -> np.ndarray:
        """Compute the mean of the outcome for each row [n]; the probabilities of classes [n, C]."""
        return self.posterior.mean_at(*self._law(features, client))

    def save(
        self, path: str | pathlib.Path, client_names: Sequence[str] | None = None, leave_out: Collection[str] = ()
    ) -> None:
        """Write a SavedModel in which the client is an input; it requires TensorFlow alone to load.

            predict(features [B, d] float64, client [B] string) -> mean, stddev, epistemic, linear_predictor,
                linear_predictor_stddev [B], all of float64

        `mean` and `linear_predictor` are those of `predict` and `linear_predictor` here. `stddev` is that of an
        outcome; `epistemic` is the variance of the outcome's mean, which for a new client includes the variance between
        clients. A client is new if its name is "unknown", or not one of the export.

        Args:
          path: of a new folder; content.json there has the names of columns and clients.
          client_names: of the clients, in the order of the fit; their numbers if None.
          leave_out: clients of which the export holds no effect: they are new there, and their own effects stay with
            them (`Effect` of this result).
        """
        from tfp_bfl.glm.served import save  # It imports TensorFlow.

        if not self.effects:
            raise InvalidArgument("The effects of the clients are at the clients alone: there is none to save.")
        save(self, path, client_names or [str(k) for k in range(len(self.effects))], leave_out)


def layout_of(federation: Federation, model: Model) -> EffectsLayout:
    """Check the options of a model with random effects, and return what its parameters are."""
    family, random = model.family, model.random
    lookup(FAMILIES, family, "family of a hierarchical model")
    if model.between_stddev is not None:
        check_number(model.between_stddev, "between_stddev")
    if model.restricted and family != "gaussian":
        raise InvalidArgument(f"restricted is for the family 'gaussian', but the family is {family!r}.")
    if model.restricted and model.second_order:
        raise InvalidArgument("second_order integrates the coefficients out already: leave restricted out.")
    if federation.num_clients < 2:
        raise InvalidArgument("There is one client, but effects that differ between clients need at least two.")
    if isinstance(random, str) or not 1 <= len(random) <= _MOST_RANDOM or len(set(random)) < len(random):
        raise InvalidArgument(
            f"random must be a list of one to {_MOST_RANDOM} different names, such as ['{INTERCEPT}']."
        )
    places = {name: number for number, name in enumerate(dict.fromkeys(federation.names))}
    columns = tuple(lookup(places, canonical(name), "coefficient") for name in random)
    q = len(federation.names) // len(places)
    if len(columns) * q > MOST_DIMENSIONS:
        raise InvalidArgument(
            f"{len(columns)} random coefficients of {q + 1} classes are {len(columns) * q} numbers of each client, but "
            f"at most {MOST_DIMENSIONS} can be integrated out: use fewer names in random, or fewer classes."
        )
    return EffectsLayout(len(federation.names), columns, family == "gaussian", q)


def add_effects(federation: Federation, pooled: Posterior, model: Model, layout: EffectsLayout) -> Hierarchical:
    """Fit random effects to clients that answer questions; the result is without the clients' own effects."""
    names, family, units = federation.names, model.family, units_of(pooled)
    scaled, start = Scaled(federation, units, layout), _start(pooled, layout, units)
    factors, size, prior = scaled.factors, layout.num_coefficients, model.between_stddev
    diagonal = [0.0 if prior is None else float(a == b) / prior**2 for a, b in layout.pairs]
    precision = np.concatenate([pooled.precision, diagonal, np.zeros(int(layout.has_dispersion))]) / factors**2
    question = Question("effects", start, layout.columns, nodes_of(family, layout))
    likelihood = Restricted(scaled, question, precision[:size], difference_steps(start, layout))
    of_all = lambda parameters: ask_sums(scaled, question._replace(points=parameters))[0]
    ask = likelihood.sums if model.is_restricted else of_all
    first = ask(start)
    given = first._replace(information=first.information * np.outer(factors, factors))
    beside = " divided by the outcome's residual sd" if family == "gaussian" else ""
    check_columns(federation, given, pooled.precision, beside)
    try:
        maximum = maximise(ask, first, precision, names, pooled.messages, start)
        covariance = inverse(maximum.information)
        if model.is_restricted and is_flat(maximum.information):
            raise np.linalg.LinAlgError
    except (np.linalg.LinAlgError, InvalidArgument):
        raise InvalidArgument(
            "The rows do not determine how coefficients differ between clients: use fewer names in random, centre "
            "their columns, or give between_stddev, a prior on the standard deviations between clients."
        ) from None
    parameters, messages, of_variances = maximum.coefficients, maximum.messages, None
    mean, skewed, value = parameters, [], maximum.sums.log_likelihood
    if model.second_order:
        moments = expand(ask, parameters, maximum.information)
        mean, covariance, messages = moments.mean, moments.covariance, messages + moments.messages
        skewed = moments.warnings
    elif model.is_restricted:
        of_variances, messages = likelihood.satterthwaite(parameters, covariance), messages + 1
        # Without the determinant.
        value += 0.5 * float(np.linalg.slogdet(maximum.sums.information[:size, :size] + np.diag(precision[:size]))[1])
    # In the units of the columns.
    mean, parameters, covariance = mean / factors, parameters / factors, covariance / np.outer(factors, factors)
    if of_variances is not None:
        of_variances = Satterthwaite(*(x / np.outer(units, units) for x in of_variances))
    factor, random = layout.factor(parameters), [names[j * layout.num_predictors] for j in layout.columns]
    posterior = dataclasses.replace(
        pooled,
        mean=mean[:size],
        covariance=covariance[:size, :size],
        messages=messages,
        log_likelihood=value,
        dispersion=float(np.exp(2 * layout.log_stddev(parameters))),
        sums=None,
        sums_at=None,
        degrees_of_freedom=of_variances and of_variances.degrees(np.eye(size)),
        satterthwaite=of_variances,
        warnings=[
            *few_events(maximum.sums, FAMILIES[family], layout.size),
            *skewed,
            *_doubts(federation.num_clients, factor, pooled.stddev[layout.places], random),
        ],
    )
    return Hierarchical(posterior, random, factor @ factor.T, (), parameters, covariance)


def own_effect(
    rows: Rows, family: str, names: Sequence[str], random: Sequence[str], parameters: np.ndarray, mean: np.ndarray
) -> Effect:
    """Return the difference of one client's coefficients from those of the typical client."""
    of = tuple(map(list(names).index, random)), family == "gaussian"
    layout = EffectsLayout(len(mean), *of, len(mean) // len(names))
    effect = client_sums(rows, parameters, FAMILIES[family], layout, nodes_of(family, layout))[1]
    return effect._replace(mean=effect.mean + effect.slope @ (mean - parameters[: len(mean)]))


def nodes_of(family: str, layout: EffectsLayout) -> int:
    """Return the number of nodes of the quadrature along each dimension."""
    return _GAUSSIAN_NODES if family == "gaussian" else _NODES.get(len(layout.places), 0)


def difference_steps(start: np.ndarray, layout: EffectsLayout) -> np.ndarray:
    """Return the steps of differences for each entry of L, and for log s, on the scale of their first values [v]."""
    scale = np.diag(layout.factor(start))
    entries = [np.sqrt(scale[a] * scale[b]) for a, b in layout.pairs]
    return DIFFERENCE * np.array([*entries, *[1.0] * layout.has_dispersion])


def _start(pooled: Posterior, layout: EffectsLayout, units: np.ndarray) -> np.ndarray:
    """Return parameters to begin with: those of the fit without random effects, and a diagonal L."""
    # The weight of a row is 1 / (2 C) for equal classes, and 1 / 4 for two.
    scale = np.sqrt(pooled.dispersion if layout.has_dispersion else 2 / (layout.num_predictors + 1))
    sizes = pooled.stddev * units * np.sqrt(pooled.count) / scale
    of = _START * scale * sizes[layout.places[:: layout.num_predictors]] / max(sizes)
    factor = [of[a] if a == b else 0.0 for a, b in layout.pairs]
    residual = [np.log(scale)] if layout.has_dispersion else []
    return np.concatenate([pooled.mean * units, factor, residual])


def _doubts(num_clients: int, factor: np.ndarray, scales: np.ndarray, names: Sequence[str]) -> list[str]:
    stddev, found = np.sqrt(np.sum(factor**2, 1)), list[str]()
    if num_clients < _FEW_CLIENTS:
        poorly = "determine the variance between clients poorly: its standard deviation may be far from the true one."
        found.append(f"{num_clients} clients {poorly}")
    if none := [repr(name) for name, value, scale in zip(names, stddev, scales) if value < 1e-3 * scale]:
        found.append(
            f"The estimated standard deviation of {' and '.join(none)} between clients is 0: the rows show no "
            "difference between clients beyond chance, all clients have the same coefficients, and intervals may be "
            "too narrow."
        )
    return found
