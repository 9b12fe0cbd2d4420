"""The command `tfp-bfl glm`: a generalised linear model of a table whose rows belong to clients."""

from __future__ import annotations

import csv
import io
import json
import os
import pathlib
from collections.abc import Sequence
from typing import Any, Optional

import click
import numpy as np

from tfp_bfl.errors import InvalidArgument, check_number, lookup
from tfp_bfl.files import name as path_name

EXAMPLES = """
\b
Examples:
  tfp-bfl glm radon.csv --outcome log.radon --client-column county \\
      --only basement,uranium --random "(intercept)"
  tfp-bfl glm heart.csv --outcome num --event-value 1,2,3,4 \\
      --family bernoulli --client-column dataset --prior-stddev 2.5 \\
      --missing indicate --output heart_model
  tfp-bfl glm lung.csv --outcome time --event status --family cox \\
      --client-column inst --only age,sex,ph.ecog
"""
FAMILIES = ("gaussian", "bernoulli", "poisson", "cox")
# More coefficients or clients than these a forest plot does not draw: the largest clients are drawn.
_MOST_PANELS, _MOST_CLIENTS = 12, 25


def _names(text: Optional[str]) -> list[str]:
    return [name.strip() for name in (text or "").split(",") if name.strip()]


@click.command("glm", epilog=EXAMPLES)
@click.argument("table", metavar="TABLE")
@click.option("--outcome", required=True, metavar="COLUMN", help="Outcome; the time of survival for cox.")
@click.option("--client-column", metavar="COLUMN", help="Client of each row; all rows are one client if not given.")
@click.option(
    "--family", default="gaussian", show_default=True, metavar="NAME", help=f"Distribution: {', '.join(FAMILIES)}."
)
@click.option("--event", metavar="COLUMN", help="Event of each row for cox: of two values the larger one is an event.")
@click.option("--event-value", metavar="VALUES", help="Values that count as an event, such as 1,2,3.")
@click.option("--exposure", metavar="COLUMN", help="Time or size at which counts were collected.")
@click.option("--only", metavar="COLUMNS", help="Columns to use; all others but the outcome if not given.")
@click.option("--drop", metavar="COLUMNS", help="Columns to leave out.")
@click.option("--categorical", metavar="COLUMNS", help="Columns of numbers that are categories.")
@click.option(
    "--missing",
    default="drop",
    show_default=True,
    metavar="WAY",
    help="Rows with empty cells: drop them, or indicate empty cells by a column.",
)
@click.option("--separator", metavar="TEXT", help="Separator of a .csv or .tsv file; that of the header if not given.")
@click.option("--random", metavar="NAMES", help='Coefficients that differ between clients, such as "(intercept),age".')
@click.option(
    "--prior-stddev", type=float, metavar="NUMBER", help="Standard deviation of the prior; flat if not given."
)
@click.option("--intercept-stddev", type=float, metavar="NUMBER", help="Standard deviation of the intercept's prior.")
@click.option("--stratified", is_flag=True, help="A baseline hazard for each client (cox).")
@click.option("--second-order", is_flag=True, help="Mean and covariance to second order, for few events.")
@click.option("--one-message", is_flag=True, help="Compare with the combination of the clients' own fits.")
@click.option("--level", type=float, default=0.95, show_default=True, metavar="SHARE", help="Probability of intervals.")
@click.option("--output", metavar="FOLDER", help="New folder for report.html, coefficients.csv and posterior.json.")
def glm_model(table: str, family: str, output: Optional[str], **given: Any) -> None:
    """Fit a generalised linear model to TABLE from sums of its clients; the result is that of all rows in one place."""
    lookup(dict.fromkeys(FAMILIES), family, "family")
    if not 0 < check_number(given["level"], "--level") < 1:
        raise InvalidArgument(f"--level is {given['level']:g}, but must be above 0 and below 1, such as 0.95.")
    if output is not None:
        _check_output(output)
    _check_options(family, given)
    from tfp_bfl.glm import design

    read = design.read_design(
        table,
        design.Outcome(given["outcome"], family, given["event"], _names(given["event_value"]), given["exposure"]),
        given["client_column"],
        only=_names(given["only"]),
        drop=_names(given["drop"]),
        categorical=_names(given["categorical"]),
        missing=given["missing"],
        separator=given["separator"],
    )
    result = _fit(read, family, given)
    posterior = result.posterior if hasattr(result, "posterior") else result
    further = _further(result, read, family, given)
    notes = [*read.notes, *posterior.warnings]
    for line in (_headline(posterior), *notes):
        click.echo(line)
    click.echo(posterior.table(given["level"]))
    for line in further:
        click.echo(line)
    if output is not None:
        _write(pathlib.Path(output), result, posterior, read, family, given, [*notes, *further])
        click.echo(f"{output} holds report.html, coefficients.csv and posterior.json.")


def _check_output(output: str) -> None:
    parent = pathlib.Path(output).parent
    if not output or os.path.lexists(output) or (parent.exists() and not parent.is_dir()):
        raise InvalidArgument(f"{path_name(output or '.')} exists or can't be a folder: give --output a new folder.")


def _check_options(family: str, given: dict[str, Any]) -> None:
    for option, of in (
        ("random", "gaussian, bernoulli and poisson"),
        ("one_message", "gaussian, bernoulli and poisson"),
    ):
        if given[option] and family == "cox":
            raise InvalidArgument(f"--{option.replace('_', '-')} is for {of}, but the family is cox.")
    if given["stratified"] and (given["random"] or family != "cox"):
        raise InvalidArgument("--stratified is for the family cox: leave it out.")
    if (given["random"] or given["one_message"]) and not given["client_column"]:
        raise InvalidArgument("--random and --one-message compare clients: give --client-column.")


def _options(read: Any, given: dict[str, Any]) -> dict[str, Any]:
    priors = {name: given[name] for name in ("prior_stddev", "intercept_stddev")}
    return {"names": read.names, "exposure": read.exposure, **priors}


def _fit(read: Any, family: str, given: dict[str, Any]) -> Any:
    from tfp_bfl import glm

    options = {**_options(read, given), "second_order": given["second_order"]}
    if given["random"]:
        return glm.fit_hierarchical(read.clients, family, random=_names(given["random"]), **options)
    return glm.fit(read.clients, family, stratified=given["stratified"], **options)


def _headline(posterior: Any) -> str:
    clients = f"{posterior.num_clients:,} client{'s' if posterior.num_clients > 1 else ''}"
    messages = f"{posterior.messages} message{'s' if posterior.messages > 1 else ''} to each"
    events = "" if posterior.family == "gaussian" else f", {posterior.events:,} events"
    return f"{posterior.family}: {posterior.count:,} rows{events}, {clients}, {messages}"


def _further(result: Any, read: Any, family: str, given: dict[str, Any]) -> list[str]:
    """Return lines below the table: dispersion, standard deviations between clients, distance of one message."""
    lines = []
    posterior = result.posterior if hasattr(result, "posterior") else result
    if family == "gaussian":
        lines.append(f"Residual sd: {np.sqrt(posterior.dispersion):.4g}.")
    if hasattr(result, "between_stddev"):
        of = ", ".join(f"{name} {sd:.4g}" for name, sd in zip(result.random, result.between_stddev))
        lines.append(f"Sd between clients: {of}.")
    if given["one_message"]:
        lines.append(_one_message(read, family, given))
    return lines


def _one_message(read: Any, family: str, given: dict[str, Any]) -> str:
    """Return how far the combination of the clients' fits is from the exact one, or why there is none."""
    from tfp_bfl import glm

    try:
        one = glm.one_message(read.clients, family, client_names=read.client_names, **_options(read, given))
    except InvalidArgument as error:
        return f"There is no posterior from one message: {error}"
    assert one.distance is not None
    worst = int(np.argmax(np.abs(one.distance)))
    without = ", both without random effects" if given["random"] else ""
    return (
        f"One message is {np.abs(one.distance[worst]):.2g} posterior standard deviations off at most "
        f"({one.posterior.names[worst]}{without})."
    )


def _write(
    folder: pathlib.Path,
    result: Any,
    posterior: Any,
    read: Any,
    family: str,
    given: dict[str, Any],
    notes: Sequence[str],
) -> None:
    """Write report, table and posterior to a new folder."""
    from tfp_bfl.files.writing import write_bytes
    from tfp_bfl.plots.forest import forest_plot
    from tfp_bfl.plots.page import Cell, Section, Table, picture, write_page

    table = posterior.table(given["level"])
    folder.mkdir(parents=True)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(table[0]))
    writer.writeheader()
    writer.writerows(table)
    write_bytes(folder / "coefficients.csv", text.getvalue().encode("utf-8"))
    record = {
        "family": family,
        "names": list(posterior.names),
        "mean": posterior.mean.tolist(),
        "covariance": posterior.covariance.tolist(),
        "dispersion": posterior.dispersion,
        "prior_precision": posterior.precision.tolist(),
        "rows": posterior.count,
        "events": posterior.events,
        "clients": read.client_names,
        "messages": posterior.messages,
        "log_likelihood": posterior.log_likelihood,
        "outcome": {name: given[name] for name in ("event", "event_value", "exposure")} | {"column": given["outcome"]},
        "notes": list(notes),
    }
    if hasattr(result, "effects"):
        record["random"] = list(result.random)
        record["between_covariance"] = result.between.tolist()
        record["effects"] = [effect.mean.tolist() for effect in result.effects]
    write_bytes(folder / "posterior.json", (json.dumps(record, indent=1) + "\n").encode("utf-8"))
    rows = [(str(r["coefficient"]), [Cell(_number(value)) for value in list(r.values())[1:]]) for r in table]
    sections = [
        Section(
            "Coefficients",
            "Posterior mean, standard deviation and central interval of each coefficient.",
            tables=[Table("Coefficients", list(table[0]), rows)],
            is_wide=True,
        )
    ]
    drawn = _estimates(result, posterior, read, family, given)
    if drawn:
        names, estimates = drawn
        how = "Estimates of clients with their intervals, and the pooled one (diamond, dashed line)."
        if not hasattr(result, "effects"):
            how += " Clients that do not determine the coefficients alone have no line."
        if len(read.clients) > _MOST_CLIENTS:
            how += f" The {_MOST_CLIENTS} largest of {len(read.clients):,} clients are shown."
        if len(posterior.names) > len(names):
            how += f" {len(names)} of {len(posterior.names)} coefficients are shown."
        sections.append(Section("Clients", how, pictures=[picture(forest_plot(names, estimates))], is_wide=True))
    write_page(folder / "report.html", f"{family} model", [f"{_headline(posterior)}."], notes, [], sections)


def _number(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"


def _estimates(result: Any, posterior: Any, read: Any, family: str, given: dict[str, Any]) -> Optional[tuple[Any, Any]]:
    """Return names and lines of the forest plot: the largest clients, and the pooled estimate; None for one client."""
    from tfp_bfl import glm
    from tfp_bfl.plots.forest import Estimate

    if len(read.clients) < 2:
        return None
    largest = sorted(np.argsort([-len(x) for x, _ in read.clients], kind="stable")[:_MOST_CLIENTS].tolist())
    size = len(posterior.names)
    z = posterior.interval(given["level"])[:, 1] - posterior.mean
    estimates = []
    if hasattr(result, "effects"):
        shown = [list(posterior.names).index(name) for name in result.random]
        factor = z / posterior.stddev
        for k in largest:
            effect = result.effects[k]
            mean = posterior.mean[shown] + effect.mean
            along = np.eye(size)[shown] + effect.slope
            variance = np.diag(along @ posterior.covariance @ along.T + effect.covariance)
            half = factor[shown] * np.sqrt(variance)
            estimates.append(Estimate(read.client_names[k], mean, mean - half, mean + half))
    else:
        shown = list(range(size))[:_MOST_PANELS]
        options = {name: given[name] for name in ("prior_stddev", "intercept_stddev")}
        for k in largest:
            own = None if read.exposure is None else [read.exposure[k]]
            try:
                alone = glm.fit([read.clients[k]], family, names=read.names, exposure=own, **options)
                low, high = alone.interval(given["level"])[shown].T
                estimates.append(Estimate(read.client_names[k], alone.mean[shown], low, high))
            except InvalidArgument:
                nothing = np.full(len(shown), np.nan)
                estimates.append(Estimate(read.client_names[k], nothing, nothing, nothing))
    mean = posterior.mean[shown]
    estimates.append(Estimate("pooled", mean, mean - z[shown], mean + z[shown], is_pooled=True))
    return [posterior.names[j] for j in shown], estimates
