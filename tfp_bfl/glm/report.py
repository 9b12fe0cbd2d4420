"""The folder of a fit: report.html, coefficients.csv, posterior.json, and predictions.csv of another table."""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfp_bfl.data.names import canonical, client_names
from tfp_bfl.data.tables import as_table, read_table
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.files import name as path_name
from tfp_bfl.files.tables import to_csv
from tfp_bfl.files.writing import write_bytes
from tfp_bfl.glm.agreement import CATEGORY
from tfp_bfl.glm.checks import check_determined, misfit
from tfp_bfl.glm.design import Design, encode
from tfp_bfl.glm.families import DISPERSED, FAMILIES, NEGATIVE_BINOMIAL
from tfp_bfl.glm.fitting import fit
from tfp_bfl.glm.given import read_archive
from tfp_bfl.glm.hierarchical import Hierarchical
from tfp_bfl.glm.newton import inverse, solve
from tfp_bfl.glm.noisy_sums import noise_of
from tfp_bfl.glm.posterior import Coefficients, Posterior, as_text, mean_of, quantile
from tfp_bfl.glm.random_features import RandomFeatures
from tfp_bfl.glm.sums import Sums, pack
from tfp_bfl.plots.forest import Estimate, forest_plot
from tfp_bfl.plots.page import About, Cell, Section, Table, page_text, picture, write_page

Result = Posterior | Hierarchical
# More coefficients or clients than these a forest plot does not draw: the largest clients are drawn.
_MOST_PANELS, _MOST_CLIENTS = 12, 25


class Estimates(NamedTuple):
    """Coefficients of the largest clients, in the order of their numbers, and the pooled ones."""

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
    events = "" if posterior.family in DISPERSED else f", {posterior.events:,} events"
    events = f", {len(posterior.classes)} classes" if posterior.classes else events
    return f"{posterior.family}: {posterior.count:,} rows{events}, {clients}, {messages}"


def private_notes(posterior: Posterior, notes: Sequence[str]) -> list[str]:
    """Return sentences on the rows; in their place, with differential privacy, what it is: they may hold counts."""
    private = posterior.privacy
    if private is None:
        return list(notes)
    return [
        f"Differential privacy of each row: epsilon {private.epsilon:g}, delta {private.delta:g}. Each sum of columns "
        f"scaled to [-1, 1] has noise of standard deviation {noise_of(private):.3g}, which the intervals include. "
        "Names of columns and of levels are not hidden."
    ]


def standard_deviations(result: Result) -> list[str]:
    """Return lines with the dispersion of the outcome, and the standard deviations between clients."""
    lines, posterior = [], posterior_of(result)
    if posterior.family == "gaussian":
        lines.append(f"Residual sd: {np.sqrt(posterior.dispersion):.4g}.")
    elif posterior.family == "gamma":
        lines.append(f"Dispersion (variance over squared mean): {posterior.dispersion:.4g}.")
    elif posterior.family == NEGATIVE_BINOMIAL:
        theta = np.exp(posterior.mean[-1])
        lines.append(f"Theta: {theta:.4g}, sd {theta * posterior.stddev[-1]:.4g}.")
    if isinstance(result, Hierarchical):
        of = ", ".join(f"{name} {sd:.4g}" for name, sd in zip(result.random, result.between_stddev))
        lines.append(f"Sd between clients: {of}.")
    if isinstance(result, Hierarchical) and result.prior_stddevs:
        of = ", ".join(f"{what} {sd:.3g}" for what, sd in zip(("columns", "features"), result.prior_stddevs))
        lines.append(f"Prior sd, on columns with sd 1: {of}. Log marginal likelihood: {result.log_evidence:.2f}.")
    return lines


def given_rows(result: Result, level: float) -> Coefficients:
    """Return the rows of the table of coefficients without those of random features."""
    number = result.num_features * result.posterior.num_predictors if isinstance(result, Hierarchical) else 0
    table = posterior_of(result).table(level)
    return Coefficients(table[: len(table) - number])


def checks(posterior: Posterior) -> list[tuple[str, str]]:
    """Return the name and the outcome of each check that a fit has passed, or of which it warns."""
    size, family = len(posterior.names), posterior.family
    limit = FAMILIES["poisson" if family == "cox" else family].limit(posterior.count, posterior.events)
    what = "rows" if family in DISPERSED else "events"
    rows = [(f"{what} for each coefficient", f"{limit / size:.3g}; ten or more are recommended")]
    has_prior = bool(np.all(posterior.precision > 0))
    determined = "the prior determines all coefficients" if has_prior else "the rows determine all coefficients"
    rows.append(("collinear columns", determined))
    if size > 1:
        correlation = posterior.covariance / np.outer(posterior.stddev, posterior.stddev) - np.eye(size)
        i, j = divmod(int(np.argmax(np.abs(correlation))), size)
        pair = f"{posterior.names[i]} and {posterior.names[j]}"
        rows.append(("largest posterior correlation", f"{correlation[i, j]:.2f}, of {pair}"))
    if family not in DISPERSED:
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


def estimates(result: Result, design: Design, level: float, options: Mapping[str, Any]) -> Estimates | None:
    """Return the coefficients of the largest clients, and the pooled ones; None for one client.

    With random effects they are the posterior means of the clients' coefficients; otherwise each client is fitted
    alone, with NaN for one that does not determine the coefficients. With differential privacy there are none.
    """
    clients, posterior = design.clients, posterior_of(result)
    if len(clients) < 2 or posterior.privacy is not None:
        return None
    largest = sorted(np.argsort([-len(x) for x, _ in clients], kind="stable")[:_MOST_CLIENTS].tolist())
    half, names, found = posterior.interval(level)[:, 1] - posterior.mean, list(posterior.names), []
    places = list(range(len(names)))[:_MOST_PANELS]
    if isinstance(result, Hierarchical):
        q = posterior.num_predictors
        places = [posterior.columns.index(name) * q + a for name in result.random for a in range(q)]
    for k in largest:
        mean = own = np.full(len(places), np.nan)
        if isinstance(result, Hierarchical):
            effect = result.effects[k]
            along = np.eye(len(names))[places] + effect.slope
            variance = np.diag(along @ posterior.covariance @ along.T + effect.covariance)
            mean, own = posterior.mean[places] + effect.mean, (half / posterior.stddev)[places] * np.sqrt(variance)
        else:
            offset = None if design.offset is None else [design.offset[k]]
            try:
                one = fit([clients[k]], posterior.family, **{**options, "offset": offset})
                mean, own = one.mean[places], (one.interval(level)[:, 1] - one.mean)[places]
            except InvalidArgument:
                pass  # The client does not determine the coefficients alone.
        found.append(Estimate(design.client_names[k], mean, mean - own, mean + own))
    return _estimates(posterior, places, found, level)


def estimates_by_sums(posterior: Posterior, parts: Mapping[str, Sums], level: float) -> Estimates | None:
    """Return each client's own coefficients by one Newton step from the pooled ones; None without sums of clients.

        b_k = b + (information_k + diag(1 / s^2))^-1 (gradient_k - diag(1 / s^2) b),   b = posterior.sums_at

    For Gaussian outcomes, with the dispersion of all clients, it is the client's own fit.

    `parts` maps each client to its sums at `posterior.sums_at`.
    """
    if posterior.sums_at is None or len(parts) < 2:
        return None
    at, precision, places = posterior.sums_at, posterior.precision, list(range(len(posterior.names)))[:_MOST_PANELS]
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
    return _estimates(posterior, places, found[:_MOST_CLIENTS], level)


def _estimates(posterior: Posterior, places: list[int], clients: list[Estimate], level: float) -> Estimates:
    low, high = posterior.interval(level)[places].T
    pooled = Estimate("pooled", posterior.mean[places], low, high, is_pooled=True)
    return Estimates([posterior.names[j] for j in places], clients, pooled)


def read_rows(
    path: pathlib.Path, design: Design, client_column: str | None = None, separator: str | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Read the client of each row of a table, "" for a new one [N], and features of a fit, NaN in gaps [N, p]."""
    text = [column.name for column in design.plan.columns if column.kind == CATEGORY]
    if path.suffix.lower() == ".npz":
        table = as_table(read_archive(path), path_name(path))
    else:
        table = read_table(path, separator, text=[name for name in (client_column, *text) if name])
    column, owners = canonical(client_column or ""), np.full(table.num_rows, "", object)
    if column in table.column_names:  # By the names of the fit.
        owners = table[column].spread(client_names(table[column].distinct[1], column)[0])
    return owners, encode(table, design.plan, design.encoding, path_name(path))


def write_predictions(
    path: pathlib.Path, rows: tuple[np.ndarray, np.ndarray], result: Result, client_names: Sequence[str], level: float
) -> list[str]:
    """Write a prediction for each row to a .csv file, and return sentences on them.

    The file has the row, its client, whether the client is new, the mean of the outcome, its central interval, and mean
    and standard deviation of the linear predictor; of classes, the probability of each. The interval is that of the
    mean outcome, not of an outcome; for "cox" the outcome is the hazard relative to a row of zeros, and for counts with
    an exposure that of one unit. With Student's t the last column, df, has its degrees of freedom for the row.
    """
    (owners, features), posterior = rows, posterior_of(result)
    whole = ~np.any(np.isnan(features), 1)
    known = {name: number for number, name in enumerate(client_names)}
    has_t = posterior.degrees_of_freedom is not None
    centre, stddev, degrees = (np.full(len(owners), np.nan) for _ in range(3))
    mean = np.full((len(owners), *[len(posterior.classes)] * bool(posterior.classes)), np.nan)
    for owner in dict.fromkeys(owners.tolist()):
        own = (owners == owner) & whole
        given = (features[own], known.get(owner)) if isinstance(result, Hierarchical) else (features[own],)
        mean[own] = result.predict(*given)
        if posterior.classes:
            continue
        centre[own], stddev[own] = result.linear_predictor(*given)
        found = result.degrees_at(*given)
        degrees[own] = np.nan if found is None else found
    half = quantile(level, degrees if has_t else None) * stddev
    low, high = (mean_of(posterior.family)(centre + sign * half) for sign in (-1, 1))
    percent = f"{100 * level:g} %"
    of_row = {"mean": mean, f"{percent} from": low, "to": high, "linear predictor": centre, "sd": stddev}
    of_row |= {"df": degrees} if has_t else {}
    if posterior.classes:
        of_row = {f"probability of {name}": mean[:, c] for c, name in enumerate(posterior.classes)}
    head = ["row", "client", "new client", *of_row]
    lines = (
        [k + 1, owner, "no" if owner in known else "yes", *(x[k] if whole[k] else "" for x in of_row.values())]
        for k, owner in enumerate(owners)
    )
    write_bytes(path, to_csv([head, *lines]).encode("utf-8"))
    new = sum(owner not in known for owner in owners)
    notes = [f"{len(owners):,} predictions, {new:,} of them for new clients."]
    if not np.all(whole):
        notes.append(f"{int(np.sum(~whole))} rows have an empty cell, or a level that the fit has not: no prediction.")
    return notes


def write_folder(
    folder: pathlib.Path,
    result: Result,
    client_names: Sequence[str],
    level: float,
    notes: Sequence[str],
    outcome: Mapping[str, Any],
    about: About,
    found: Estimates | None = None,
    columns: Mapping[str, Any] | None = None,
) -> None:
    """Write the files of a fit to a new folder.

    Args:
      folder, result, client_names, level: of the fit and its intervals.
      notes: sentences above the report.
      outcome: column, event and exposure of the outcome, for posterior.json.
      about: data and command of the report's title block.
      found: coefficients of clients; None leaves them out.
      columns: further content of posterior.json.
    """
    posterior = posterior_of(result)
    table, printed = posterior.table(level), given_rows(result, level)
    folder.mkdir(parents=True, exist_ok=True)
    write_bytes(folder / "coefficients.csv", to_csv([list(table[0]), *(row.values() for row in table)]).encode("utf-8"))
    record = {**as_json(result), "clients": list(client_names), "outcome": dict(outcome), "notes": list(notes)}
    record |= columns or {}
    write_bytes(folder / "posterior.json", (json.dumps(record, indent=1) + "\n").encode("utf-8"))
    rows = [
        (
            str(r["coefficient"]),
            [Cell(as_text(value), is_words=isinstance(value, str) and value != "") for value in list(r.values())[1:]],
        )
        for r in printed
    ]
    passed = [(name, [Cell(outcome, is_words=True)]) for name, outcome in checks(posterior)]
    how = "Posterior mean, standard deviation and central interval of each coefficient."
    sections = [
        Section("Coefficients", how, tables=[Table("Coefficients", list(table[0]), rows)], is_wide=True),
        *_of_clients(found, len(client_names), len(posterior.names), isinstance(result, Hierarchical), level),
        Section(
            "Checks",
            "Warnings, if any, are above.",
            tables=[Table("Checks", ["check", "result"], passed)],
            is_wide=True,
        ),
    ]
    more = {name: ", ".join(x) if isinstance(x, list) else x for name, x in outcome.items() if x and name != "column"}
    of = ", ".join([outcome["column"], *(f"{name.replace('_', ' ')} {x}" for name, x in more.items())])
    named = ", ".join([*map(str, client_names[:_MOST_CLIENTS]), *["..."] * (len(client_names) > _MOST_CLIENTS)])
    statements = [f"{headline(posterior)}.", *standard_deviations(result), f"Clients: {named}."]
    title = f"{posterior.family} model of {outcome['column']} in {pathlib.Path(about.data).name}"
    about = about._replace(outcome=of)
    page = page_text(title, about, sections, statements=statements, warnings=notes)
    write_page(folder / "report.html", page)


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
        **({"classes": list(posterior.classes)} if posterior.classes else {}),
        **({"privacy": posterior.privacy._asdict()} if posterior.privacy else {}),
        **({"robust": posterior.robust} if posterior.robust else {}),
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
        if isinstance(result.features, RandomFeatures):
            record["features"] = {name: x.tolist() for name, x in result.features._asdict().items()}
        if result.prior_stddevs:
            record["prior_stddevs"], record["log_evidence"] = list(result.prior_stddevs), result.log_evidence
    return record


def from_json(record: Mapping[str, Any]) -> Posterior:
    """Return the posterior of posterior.json (`as_json`), of a model without random effects."""
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
            classes=tuple(map(str, record.get("classes", ()))),
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
    rows = [(e.label, [Cell(_interval(*x)) for x in zip(e.mean, e.low, e.high)]) for e in every]
    numbers = Table("Clients", ["client", *found.names], rows)
    says = f"Estimate and {100 * level:g} % interval of each client."
    return [
        Section("Clients", how, pictures=[picture(forest_plot(found.names, every))], is_wide=True),
        Section("Coefficients of the clients", says, tables=[numbers], is_folded=True),
    ]


def _interval(mean: float, low: float, high: float) -> str:
    return f"{mean:.4g} [{low:.4g}, {high:.4g}]" if np.isfinite(mean) else "\u2013"
