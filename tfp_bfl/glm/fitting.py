"""The posterior of a generalised linear model from sums of clients: equal to that of all rows in one place."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tfp_bfl.errors import InvalidArgument, lookup, shown
from tfp_bfl.glm.estimation import estimate
from tfp_bfl.glm.families import CANONICAL, FAMILIES, ORDINAL
from tfp_bfl.glm.federation import Federation, InProcess
from tfp_bfl.glm.hierarchical import Hierarchical, add_effects, layout_of, own_effect
from tfp_bfl.glm.multinomial import check_size, effects_in_classes, in_classes, with_classes
from tfp_bfl.glm.newton import inverse, solve
from tfp_bfl.glm.noisy_sums import fit_private
from tfp_bfl.glm.posterior import CLIENTS, Model, Posterior, RowPrivacy
from tfp_bfl.glm.priors import FITTED, FLAT, ask_columns, fit_priors
from tfp_bfl.glm.random_features import Features, check_features, draw_features, expand_rows
from tfp_bfl.glm.rows import INTERCEPT, Beside, DesignRows, Given, read


def fit(
    clients: Given,
    family: str = "gaussian",
    *,
    prior_stddev: float | None = None,
    intercept_stddev: float | None = None,
    dispersion: float | None = None,
    exposure: Sequence[np.ndarray] | None = None,
    offset: Sequence[np.ndarray] | None = None,
    weights: Sequence[np.ndarray] | None = None,
    trials: Sequence[np.ndarray] | None = None,
    names: Sequence[str] | None = None,
    stratified: bool = False,
    second_order: bool = False,
    secure_sums: bool = False,
    classes: Sequence[str] | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    bounds: Mapping[str, tuple[float, float]] | None = None,
    seed: int | None = None,
    robust: str | None = None,
) -> Posterior:
    """Fit a generalised linear model by Newton's method on sums of clients.

        log p(b | all rows) = sum_k sum_(i at k) log p(y_i | x_i' b) - sum_j b_j^2 / (2 s_j^2) + constant
        posterior: N(b*, (information + diag(1 / s^2))^-1) at its maximum b*

    Each message brings every client the coefficients, and the server the sums of log likelihood, gradient [p] and
    information [p, p], for p coefficients. These are sums over rows, so that the result equals that of all rows in one
    place up to rounding, however the rows lie. The Gaussian family needs one message, the others five to ten. Links are
    the canonical ones: identity, logit and log; log for "gamma" and "negative_binomial"; for "cox" the partial
    likelihood with Efron's ties (`tfp_bfl.glm.cox`), which has no intercept. Further parameters, with a flat prior,
    follow the coefficients: log theta, and of "ordinal" the cutpoints in place of an intercept (`families`).

    Args:
      clients: `data.Clients`, in the units of its table, or a list of (features [n, d], outcome [n]) of each client.
        The outcome of `data.Clients` without a target is the number that names the class.
        There are p = d + 1 coefficients, the intercept first; d for "cox". For "cox" the outcome is (time, event)
        [n, 2], with an event of 1, or 0 for a censored row; or (time, event, entry) [n, 3] for rows that are at risk
        at entry < t <= time.
      family: a name of `FAMILIES`, or "cox"; "multinomial" for numbers of classes from 0: each column has a coefficient
        for each class but the first, of its difference from the first one; "ordinal" for numbers of ordered levels.
      prior_stddev: s of the Gaussian prior on each coefficient, with the intercept; None for a flat prior. Of classes,
        of the difference of any two of them.
      intercept_stddev: s of the intercept; None for `prior_stddev`, infinity for a flat prior.
      dispersion: the variance of a Gaussian outcome; None to estimate it by the maximum of the marginal likelihood,
        RSS / (N - p) under a flat prior. Of gamma outcomes variance over squared mean; None: by Pearson's statistic.
      exposure: counts only: of each client's rows [n]; its logarithm is added to the linear predictor.
      offset: of each client's rows [n]: added to the linear predictor; not for "multinomial".
      weights: of each client's rows [n]: how often the row occurs, a whole number of at least 0.
      trials: "bernoulli" only: of each client's rows [n]; the outcome is then the number of events among them.
      names: of the d features.
      stratified: "cox" only: each client has a baseline hazard of its own; then no event times leave a client.
      second_order: replace maximum and curvature by mean and covariance to second order (`newton.expand`), which
        takes 2 p + 1 more messages: for few events, where the posterior is moderately skewed. Where it is more skewed
        than that, maximum and curvature stay, with a warning. For families with canonical links and "cox".
      secure_sums: add the clients' sums in fixed point, as secure aggregation between sites does (`sums`). "cox" then
        needs stratified.
      classes: "multinomial" and "ordinal": names of the classes [C]; those of `data.Clients` or their numbers if None.
      epsilon: "gaussian" only: differential privacy of each row, by noise that is added once to the sums of all rows;
        the posterior then includes the noise (`tfp_bfl.glm.noisy_sums`). None without noise.
      delta: of (epsilon, delta); None for 1e-5.
      bounds: with epsilon: column -> its least and largest value, "outcome" for the outcome. Rows are cut there, so
        that one row has little influence; they must be known without the rows.
      robust: the covariance A^-1 M A^-1 in place of A^-1, with A the information and M the sum of g g' over scores g of
        "rows", or of "clients", rows of which may then depend on each other; None for A^-1. It is right for large
        numbers of rows or clients where the variance of the outcome is not that of the family; it has no factor for
        small numbers.
      seed: of the noise, to repeat a simulation; None for one of the operating system, as privacy requires.

    Raises:
      InvalidArgument: bad input; coefficients that the rows do not determine (collinear columns); or a likelihood
        without a maximum (separation). The message names the column.

    Example:
      >>> import numpy as np
      >>> import tfp_bfl as bfl
      >>> x = np.array([[0.0], [1.0], [2.0], [3.0]])
      >>> clients = [(x, np.array([1.0, 3.0, 5.0, 7.2])), (x, np.array([1.2, 2.8, 5.1, 6.9]))]
      >>> print(bfl.glm.fit(clients, names=["dose"]).table())
      coefficient   mean       sd  95 % from     to  df
      (intercept)  1.025  0.08874     0.8079  1.242   6
      dose             2  0.04743      1.884  2.116   6

    Source: McCullagh & Nelder 1989, chapter 2; MacKay 1992 for the dispersion.
    """
    model = Model(family, prior_stddev, intercept_stddev, dispersion, stratified, second_order, robust=robust)
    model.check(exposure)
    private = [name for name, x in (("delta", delta), ("bounds", bounds), ("seed", seed)) if x is not None]
    if epsilon is None and private:
        raise InvalidArgument(f"{private[0]} is for differential privacy: give epsilon too.")
    table, federation = _read(clients, model, names, Beside(exposure, offset, weights, trials), secure_sums, classes)
    if epsilon is not None:
        privacy = RowPrivacy(epsilon, 1e-5 if delta is None else delta, dict(bounds or {}))
        privacy.check(family, table.names[1:])
        if robust:
            raise InvalidArgument("A robust variance needs a second message, which epsilon does not cover: give one.")
        return fit_private(table, model, privacy, secure_sums, seed)
    posterior = estimate(federation, model, further=len(table.further))
    return in_classes(posterior, table.classes) if table.classes else posterior


def fit_hierarchical(
    clients: Given,
    family: str = "gaussian",
    *,
    random: Sequence[str] = (INTERCEPT,),
    features: str | Features | None = None,
    prior_stddev: float | str | None = None,
    intercept_stddev: float | None = None,
    between_stddev: float | None = None,
    exposure: Sequence[np.ndarray] | None = None,
    offset: Sequence[np.ndarray] | None = None,
    weights: Sequence[np.ndarray] | None = None,
    trials: Sequence[np.ndarray] | None = None,
    names: Sequence[str] | None = None,
    restricted: bool | None = None,
    second_order: bool = False,
    secure_sums: bool = False,
    classes: Sequence[str] | None = None,
) -> Hierarchical:
    """Fit a generalised linear model with random effects of the clients, by empirical Bayes.

        eta_i = x_i' b + z_i' u_k,   u_k ~ N(0, L L'),   z_i: the columns of x_i that are named in `random`

    The effects u_k are integrated out by adaptive quadrature at each client, which sends the sums of its marginal
    likelihood (`effects.client_sums`). Newton's method on them gives the maximum over b, L and, for Gaussian outcomes,
    the standard deviation of the residuals; the posterior of b is N(b*, its block of the inverse information), so that
    the uncertainty of L is in it to first order.

    Args:
      clients, exposure, offset, weights, trials, names, intercept_stddev, classes: as of `fit`.
      family: "gaussian", "bernoulli", "poisson" or "multinomial", in which u_k are independent between the predictors
        of `families`, with one covariance: L L' is that of the difference of any two classes.
      random: names of the coefficients that differ between clients, at most three.
      features: further columns of the model, which each client computes: "random:NUMBER" or "random:NUMBER:SEED"
        (`random_features.RandomFeatures`), or a function from columns [n, d] to these and further ones [n, d + m].
      prior_stddev: as of `fit`; or "fitted" for those with the largest marginal likelihood (`priors`), one of the given
        columns and one of further features, on columns divided by their standard deviations. The intercept then has a
        flat prior. Features need a prior: "fitted", or a number.
      between_stddev: s of a half-normal prior on the diagonal of L; None for a flat one.
      restricted: "gaussian" only: variances by restricted maximum likelihood, which integrates the coefficients out,
        and intervals of Student's t by Satterthwaite's degrees of freedom (`restricted`); None for True, unless
        second_order. False for maximum likelihood, whose variances are too small with few clients.
      second_order: as of `fit`, over all parameters.
      secure_sums: as of `fit`. The effects of the clients, which are no sums, are computed beside them.

    Example:
      >>> import numpy as np
      >>> import tfp_bfl as bfl
      >>> rng = np.random.default_rng(0)
      >>> clients = [(x := rng.normal(size=(8, 1)), u + x[:, 0] + rng.normal(size=8)) for u in rng.normal(size=30)]
      >>> result = bfl.glm.fit_hierarchical(clients, names=["dose"])
      >>> result.between_stddev.round(2), result.posterior.mean.round(2)
      (array([0.93]), array([-0.12,  1.08]))

    Source: Pinheiro & Bates 2000, chapters 2 and 7.
    """
    lookup(CANONICAL, family, "family of a hierarchical model")
    is_fitted, of_effects = prior_stddev == FITTED, (random, between_stddev, restricted)
    if isinstance(prior_stddev, str) and not is_fitted:
        raise InvalidArgument(f"prior_stddev is {shown(prior_stddev)}, but must be a number or {FITTED!r}.")
    if features is not None and prior_stddev is None:
        raise InvalidArgument(f"Features need a prior: give prior_stddev={FITTED!r}, or a number.")
    if is_fitted and intercept_stddev is not None:
        raise InvalidArgument("A fitted prior leaves that of the intercept flat: leave intercept_stddev out.")
    given = None if isinstance(prior_stddev, str) else prior_stddev
    model = Model(family, given, intercept_stddev, None, False, second_order, *of_effects)
    model.check(exposure)
    table, federation = _read(clients, model, names, Beside(exposure, offset, weights, trials), secure_sums, classes)
    num_given, messages = len(table.names), 0
    if num_given == 1 and (is_fitted or features is not None):
        raise InvalidArgument("There are no columns: features and a fitted prior need at least one.")
    if features is not None:
        layout_of(federation, model)  # Features have no random effects.
        if isinstance(features, str):
            check_features(features)
            columns, messages, q = ask_columns(federation, family), 1, table.num_predictors
            features = draw_features(features, columns.means[q::q], columns.stddevs[q::q])
        table = expand_rows(table, features)
        num_rows = sum(len(rows.design) for rows in table.clients)
        if family == "gaussian" and num_rows <= len(table.names):
            raise InvalidArgument(
                f"There are {num_rows:,} rows for {len(table.names):,} coefficients: use fewer features, or more rows."
            )
        check_size(table)
        federation = InProcess(table, family, secure_sums)
    if is_fitted:
        groups = np.where(np.arange(len(table.names)) < num_given, 0, 1)
        groups[0] = FLAT
        groups = np.repeat(groups, table.num_predictors)
        without = functools.partial(estimate, federation, model._replace(second_order=False))
        with_effects = functools.partial(_fit_with_effects, federation, model)
        result = fit_priors(federation, model, groups, without, with_effects)
    else:
        result = _fit_with_effects(federation, model)
    of = family, table.names, result.random, result.parameters, result.posterior.mean
    effects = [own_effect(rows, *of) for rows in table.clients]
    posterior = dataclasses.replace(result.posterior, messages=result.posterior.messages + messages)
    result = dataclasses.replace(result, posterior=posterior, effects=effects, features=features)
    return effects_in_classes(result, table.classes) if table.classes else result


def _read(
    clients: Given,
    model: Model,
    names: Sequence[str] | None,
    beside: Beside,
    secure_sums: bool,
    classes: Sequence[str] | None,
) -> tuple[DesignRows, InProcess]:
    if beside.trials is not None and model.family != "bernoulli":
        raise InvalidArgument(f"trials is for the family 'bernoulli', but the family is {model.family!r}.")
    if beside.offset is not None and model.family == "multinomial":
        raise InvalidArgument("offset is for families of one linear predictor, but the family is 'multinomial'.")
    table = read(clients, FAMILIES.get(model.family), names, beside, intercept=model.family not in ("cox", ORDINAL))
    table = with_classes(table, clients, classes, model)
    check_size(table)
    if model.robust == CLIENTS and len(table.clients) < 2:
        raise InvalidArgument("There is one client, but a robust variance by clients compares several: give by rows.")
    return table, InProcess(table, model.family, secure_sums)


def fit_federation(federation: Federation, model: Model) -> Posterior | Hierarchical:
    """Fit a model to clients that answer questions, in this process or at sites; they keep their effects."""
    model.check()
    return _fit_with_effects(federation, model) if model.random else estimate(federation, model)


def _fit_with_effects(federation: Federation, model: Model, precision: np.ndarray | None = None) -> Hierarchical:
    layout = layout_of(federation, model)
    return add_effects(federation, estimate(federation, model._replace(second_order=False), precision), model, layout)


class OneMessage(NamedTuple):
    """A posterior from one message, and what it costs beside the exact one.

    Fields:
      posterior: combined from the clients' own maxima and information.
      clients: each client's own posterior, with the same prior.
      exact: the posterior from as many messages as it takes; None if it was not computed.
      distance: (mean - exact mean) / exact standard deviation [p]; None without `exact`.
    """

    posterior: Posterior
    clients: list[Posterior]
    exact: Posterior | None
    distance: np.ndarray | None


def one_message(
    clients: Given,
    family: str = "bernoulli",
    *,
    prior_stddev: float | None = None,
    intercept_stddev: float | None = None,
    exposure: Sequence[np.ndarray] | None = None,
    offset: Sequence[np.ndarray] | None = None,
    names: Sequence[str] | None = None,
    client_names: Sequence[str] | None = None,
    compare: bool = True,
    classes: Sequence[str] | None = None,
) -> OneMessage:
    """Combine the clients' own maxima b_k and information A_k, which each client computes alone and sends once.

        A = sum_k A_k - (K - 1) P,   b = A^-1 sum_k A_k b_k,   P = diag(1 / s^2), in each A_k and counted once in A

    It is exact where the log likelihoods are quadratic (Gaussian outcomes with a known dispersion), and near the exact
    posterior where each client has many rows.

    Args:
      clients, family, prior_stddev, intercept_stddev, exposure, offset, names, classes: as of `fit`; not "cox".
      client_names: of the clients, for errors; their numbers if None.
      compare: compute the exact posterior too, and the distance from it; it takes further messages.

    Source: Jonker, Pazira & Coolen 2024 (BFI).
    """
    lookup(CANONICAL, family, "family of one message")
    model = Model(family, prior_stddev, intercept_stddev)
    model.check(exposure)
    table, federation = _read(clients, model, names, Beside(exposure, offset), False, classes)
    own = []
    for number, rows in enumerate(table.clients):
        try:
            own.append(estimate(InProcess(table._replace(clients=[rows]), family), model))
        except InvalidArgument as error:
            name = client_names[number] if client_names else number
            raise InvalidArgument(f"Client {name} can't be fitted alone: {error}") from None
    information = [np.linalg.inv(one.covariance) for one in own]
    combined = sum(information) - (len(own) - 1) * np.diag(own[0].precision)
    mean, count = solve(combined, sum(x @ one.mean for x, one in zip(information, own))), sum(x.count for x in own)
    posterior = dataclasses.replace(
        own[0],
        mean=mean,
        covariance=inverse(combined),
        count=count,
        events=sum(one.events for one in own),
        num_clients=len(own),
        messages=1,
        log_likelihood=float("nan"),
        warnings=(),
        dispersion=sum(one.count * one.dispersion for one in own) / count,
        degrees_of_freedom=None,
        sums=None,
        sums_at=None,
    )
    of_classes = lambda one: in_classes(one, table.classes) if table.classes else one
    posterior, own = of_classes(posterior), list(map(of_classes, own))
    if not compare:
        return OneMessage(posterior, own, None, None)
    exact = of_classes(estimate(federation, model))
    return OneMessage(posterior, own, exact, (posterior.mean - exact.mean) / exact.stddev)
