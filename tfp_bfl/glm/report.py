"""The folder of a fit: report.html, coefficients.csv and posterior.json."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfp_bfl.errors import InvalidArgument
from tfp_bfl.files.tables import to_csv
from tfp_bfl.files.writing import write_bytes
from tfp_bfl.glm.checks import check_determined, misfit
from tfp_bfl.glm.families import FAMILIES
from tfp_bfl.glm.fitting import fit
from tfp_bfl.glm.hierarchical import Hierarchical
from tfp_bfl.glm.newton import inverse, solve
from tfp_bfl.glm.posterior import Posterior, quantile
from tfp_bfl.glm.sums import Sums, pack
from tfp_bfl.plots.forest import Estimate, forest_plot
from tfp_bfl.plots.page import Cell, Section, Table, picture, write_page

Result = Posterior | Hierarchical
# More coefficients or clients than these a forest plot does not draw: the largest clients are drawn.
_MOST_PANELS, _MOST_CLIENTS = 12, 25


class Estimates(NamedTuple):
    """Coefficients of clients side by side.

    Fields:
      names: of the coefficients [p].
      clients: of the largest clients, in the order of their numbers.
      pooled: of all clients.
    """

    names: list[str]
    clients: list[Estimate]
    pooled: Estimate


def posterior_of(result: Result) -> Posterior:
    """Return the posterior of the coefficients of a result."""
    return result.posterior if isinstance(result, Hierarchical) else result


def headline(posterior: Posterior) -> str:
    """Return a line with family, rows, events, clients and messages."""
    clients = f"{posterior.num_clients:,} client{'s' if posterior.num_clients > 1 else ''}"
    messages = f"{posterior.messages} message{'s' if posterior.messages > 1 else ''} to each"
    events = "" if posterior.family == "gaussian" else f", {posterior.events:,} events"
    return f"{posterior.family}: {posterior.count:,} rows{events}, {clients}, {messages}"


def standard_deviations(result: Result) -> list[str]:
    """Return lines with the standard deviations of residuals and between clients."""
    lines, posterior = [], posterior_of(result)
    if posterior.family == "gaussian":
        lines.append(f"Residual sd: {np.sqrt(posterior.dispersion):.4g}.")
    if isinstance(result, Hierarchical):
        of = ", ".join(f"{name} {sd:.4g}" for name, sd in zip(result.random, result.between_stddev))
        lines.append(f"Sd between clients: {of}.")
    return lines


def checks(posterior: Posterior) -> list[tuple[str, str]]:
    """Return the name and the outcome of each check that a fit has passed, or of which it warns."""
    size, family = len(posterior.names), posterior.family
    limit = FAMILIES["poisson" if family == "cox" else family].limit(posterior.count, posterior.events)
    what = "rows" if family == "gaussian" else "events"
    rows = [(f"{what} for each coefficient", f"{limit / size:.3g}; ten or more are recommended")]
    has_prior = bool(np.all(posterior.precision > 0))
    determined = "the prior determines all coefficients" if has_prior else "the rows determine all coefficients"
    rows.append(("collinear columns", determined))
    if size > 1:
        correlation = posterior.covariance / np.outer(posterior.stddev, posterior.stddev) - np.eye(size)
        i, j = divmod(int(np.argmax(np.abs(correlation))), size)
        pair = f"{posterior.names[i]} and {posterior.names[j]}"
        rows.append(("largest posterior correlation", f"{correlation[i, j]:.2f}, of {pair}"))
    if family != "gaussian":
        found = "the prior bounds coefficients that separate" if has_prior else "none: the likelihood has a maximum"
        rows.append(("separation", found))
    if family == "poisson" and posterior.sums is not None and posterior.count > size:
        ratio, doubted = posterior.sums.pearson[0] / (posterior.count - size), misfit(posterior.sums, size)
        found = f"{ratio:.3g} per degree of freedom, {'above 1: see the warnings' if doubted else '1 not rejected'}"
        rows.append(("Pearson's statistic", found))
    if family == "cox":
        rejected = any("changes with time" in warning for warning in posterior.warnings)
        rows.append(("proportional hazards", "rejected: see the warnings" if rejected else "not rejected"))
    return rows


def estimates(
    result: Result,
    clients: Sequence[tuple[np.ndarray, np.ndarray]],
    client_names: Sequence[str],
    exposure: Sequence[np.ndarray] | None,
    level: float,
    priors: Mapping[str, Any],
) -> Estimates | None:
    """Return the coefficients of the largest clients, and the pooled ones; None for one client.

    With random effects they are the posterior means of the clients' coefficients; otherwise each client is fitted
    alone, with NaN for one that does not determine the coefficients.

    Args:
      result: of all clients.
      clients: (features [n, p], outcome) of each.
      client_names: of each.
      exposure: of each client's rows; None without.
      level: of the intervals.
      priors: prior_stddev and intercept_stddev of the fit.
    """
    if len(clients) < 2:
        return None
    posterior = posterior_of(result)
    largest = sorted(np.argsort([-len(x) for x, _ in clients], kind="stable")[:_MOST_CLIENTS].tolist())
    half = posterior.interval(level)[:, 1] - posterior.mean
    size, found = len(posterior.names), []
    if isinstance(result, Hierarchical):
        places = [list(posterior.names).index(name) for name in result.random]
        factor = half / posterior.stddev
        for k in largest:
            effect = result.effects[k]
            mean = posterior.mean[places] + effect.mean
            along = np.eye(size)[places] + effect.slope
            variance = np.diag(along @ posterior.covariance @ along.T + effect.covariance)
            own = factor[places] * np.sqrt(variance)
            found.append(Estimate(client_names[k], mean, mean - own, mean + own))
    else:
        places = list(range(size))[:_MOST_PANELS]
        names = posterior.names if posterior.family == "cox" else posterior.names[1:]
        for k in largest:
            alone = None if exposure is None else [exposure[k]]
            try:
                one = fit([clients[k]], posterior.family, names=names, exposure=alone, **priors)
                low, high = one.interval(level)[places].T
                found.append(Estimate(client_names[k], one.mean[places], low, high))
            except InvalidArgument:
                nothing = np.full(len(places), np.nan)
                found.append(Estimate(client_names[k], nothing, nothing, nothing))
    mean, half = posterior.mean[places], half[places]
    pooled = Estimate("pooled", mean, mean - half, mean + half, is_pooled=True)
    return Estimates([posterior.names[j] for j in places], found, pooled)


def estimates_by_sums(posterior: Posterior, parts: Mapping[str, Sums], level: float) -> Estimates | None:
    """Return each client's own coefficients by one Newton step from the pooled ones; None without sums of clients.

        b_k = b + (information_k + diag(1 / s^2))^-1 (gradient_k - diag(1 / s^2) b),   b = posterior.sums_at

    For Gaussian outcomes, with the dispersion of all clients, it is the client's own fit.

    Args:
      posterior: of all clients.
      parts: client -> its sums at `posterior.sums_at`.
      level: of the intervals.
    """
    if posterior.sums_at is None or len(parts) < 2:
        return None
    at, precision, places = posterior.sums_at, posterior.precision, range(len(posterior.names))[:_MOST_PANELS]
    found = []
    for name, sums in parts.items():
        mean, stddev = np.full((2, len(at)), np.nan)
        information = sums.information / posterior.dispersion + np.diag(precision)
        try:
            check_determined(information, posterior.names)
            mean = at + solve(information, sums.gradient / posterior.dispersion - precision * at)
            stddev = np.sqrt(np.diag(inverse(information)))
        except (np.linalg.LinAlgError, InvalidArgument):
            pass  # The client does not determine the coefficients alone.
        half = quantile(level) * stddev
        found.append(Estimate(name, mean[places], (mean - half)[places], (mean + half)[places]))
    low, high = posterior.interval(level)[places].T
    pooled = Estimate("pooled", posterior.mean[places], low, high, is_pooled=True)
    return Estimates([posterior.names[j] for j in places], found[:_MOST_CLIENTS], pooled)


def write_folder(
    folder: pathlib.Path,
    result: Result,
    client_names: Sequence[str],
    level: float,
    notes: Sequence[str],
    outcome: Mapping[str, Any],
    found: Estimates | None = None,
    columns: Mapping[str, Any] | None = None,
) -> None:
    """Write the files of a fit to a new folder.

    Args:
      folder: the folder.
      result: of the fit.
      client_names: of all clients.
      level: of the intervals.
      notes: sentences above the report.
      outcome: column, event and exposure of the outcome, for posterior.json.
      found: coefficients of clients; None leaves them out.
      columns: further content of posterior.json.
    """
    posterior = posterior_of(result)
    table = posterior.table(level)
    folder.mkdir(parents=True, exist_ok=True)
    write_bytes(folder / "coefficients.csv", to_csv([list(table[0]), *(row.values() for row in table)]).encode("utf-8"))
    record = {**as_json(result), "clients": list(client_names), "outcome": dict(outcome), "notes": list(notes)}
    record |= columns or {}
    write_bytes(folder / "posterior.json", (json.dumps(record, indent=1) + "\n").encode("utf-8"))
    rows = [
        (
            str(r["coefficient"]),
            [Cell(_number(value), is_words=isinstance(value, str)) for value in list(r.values())[1:]],
        )
        for r in table
    ]
    passed = [(name, [Cell(outcome, is_words=True)]) for name, outcome in checks(posterior)]
    how = "Posterior mean, standard deviation and central interval of each coefficient."
    sections = [
        Section("Coefficients", how, tables=[Table("Coefficients", list(table[0]), rows)], is_wide=True),
        *_of_clients(found, len(client_names), len(posterior.names), isinstance(result, Hierarchical), level),
        Section("Checks", "Warnings stand above.", tables=[Table("Checks", ["check", "result"], passed)], is_wide=True),
    ]
    statements = [f"{headline(posterior)}.", *standard_deviations(result)]
    write_page(folder / "report.html", f"{posterior.family} model", statements, notes, [], sections)


def as_json(result: Result) -> dict[str, Any]:
    """Return the numbers of a result as JSON."""
    posterior = posterior_of(result)
    record: dict[str, Any] = {
        "family": posterior.family,
        "names": list(posterior.names),
        "mean": posterior.mean.tolist(),
        "covariance": posterior.covariance.tolist(),
        "dispersion": posterior.dispersion,
        "prior_precision": posterior.precision.tolist(),
        "rows": posterior.count,
        "events": posterior.events,
        "messages": posterior.messages,
        "log_likelihood": posterior.log_likelihood,
    }
    if posterior.sums is not None and posterior.sums_at is not None:  # By which clients join and leave.
        record["sums"], record["sums_at"] = pack(*posterior.sums).tolist(), posterior.sums_at.tolist()
        record["given_dispersion"] = posterior.given_dispersion
        if posterior.family == "poisson":
            record["pearson_statistic"] = float(posterior.sums.pearson[0])
    if posterior.degrees_of_freedom is not None:
        record["degrees_of_freedom"] = np.asarray(posterior.degrees_of_freedom).tolist()
    if isinstance(result, Hierarchical):
        record["random"] = list(result.random)
        record["between_covariance"] = result.between.tolist()
        record["parameters"] = result.parameters.tolist()
        record["effects"] = [effect.mean.tolist() for effect in result.effects]
    return record


def from_json(record: Mapping[str, Any]) -> Posterior:
    """Return the posterior of `as_json`, of a model without random effects.

    Args:
      record: of posterior.json.

    Raises:
      InvalidArgument: it has another form.
    """
    try:
        names, arrays = list(map(str, record["names"])), {}
        for name, shape in (("mean", 1), ("covariance", 2), ("prior_precision", 1)):
            arrays[name] = np.array(record[name], np.float64)
            if arrays[name].shape != (len(names),) * shape or not np.all(np.isfinite(arrays[name])):
                raise ValueError
        has_sums = "sums" in record
        given = record.get("given_dispersion")
        return Posterior(
            names,
            arrays["mean"],
            arrays["covariance"],
            str(record["family"]),
            int(record["rows"]),
            int(record["events"]),
            len(record["clients"]),
            int(record["messages"]),
            float(record["log_likelihood"]),
            arrays["prior_precision"],
            float(record["dispersion"]),
            sums=Sums.unpack(np.array(record["sums"], np.float64), len(names)) if has_sums else None,
            sums_at=np.array(record["sums_at"], np.float64) if has_sums else None,
            given_dispersion=None if given is None else float(given),
        )
    except (KeyError, TypeError, ValueError):
        raise InvalidArgument("The record of the fit does not have the form of posterior.json.") from None


def _of_clients(
    found: Estimates | None, num_clients: int, size: int, is_hierarchical: bool, level: float
) -> list[Section]:
    """Return the forest plot of the clients, and their numbers below it."""
    if found is None:
        return []
    how = "Estimates of clients with their intervals, and the pooled one (diamond, dashed line)."
    if not is_hierarchical:
        how += " Clients that do not determine the coefficients alone have no line."
    if num_clients > len(found.clients):
        how += f" The {len(found.clients)} largest of {num_clients:,} clients are shown."
    if size > len(found.names):
        how += f" {len(found.names)} of {size} coefficients are shown."
    every = [*found.clients, found.pooled]
    rows = [(e.label, [Cell(_interval(e, j)) for j in range(len(found.names))]) for e in every]
    numbers = Table("Clients", ["client", *found.names], rows)
    says = f"Estimate and {100 * level:g} % interval of each client."
    return [
        Section("Clients", how, pictures=[picture(forest_plot(found.names, every))], is_wide=True),
        Section("Coefficients of the clients", says, tables=[numbers], is_folded=True),
    ]


def _interval(estimate: Estimate, number: int) -> str:
    mean, low, high = estimate.mean[number], estimate.low[number], estimate.high[number]
    return f"{mean:.4g} [{low:.4g}, {high:.4g}]" if np.isfinite(mean) else "\u2013"


def _number(value: object) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"
