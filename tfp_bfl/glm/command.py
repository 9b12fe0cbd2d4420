"""The command `tfp-bfl glm`: a generalised linear model of a table with the clients' rows."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import click
import numpy as np

from tfp_bfl.errors import InvalidArgument, check_number, lookup
from tfp_bfl.files import name as path_name
from tfp_bfl.glm.options import FAMILIES, model_options, names_of

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


@click.command("glm", epilog=EXAMPLES)
@click.argument("table", metavar="TABLE")
@model_options
@click.option("--client-column", metavar="COLUMN", help="Client of each row; all rows are one client if not given.")
@click.option("--separator", metavar="TEXT", help="Separator of a .csv or .tsv file; that of the header if not given.")
@click.option("--one-message", is_flag=True, help="Compare with the combination of the clients' own fits.")
@click.option("--predict", metavar="TABLE", help="Rows to predict, of known and new clients; needs --output.")
@click.option("--output", metavar="FOLDER", help="New folder for report.html, coefficients.csv and posterior.json.")
def glm_model(table: str, family: str, output: str | None, **given: Any) -> None:
    """Fit a generalised linear model to TABLE from sums of its clients; the result is that of all rows in one place."""
    lookup(dict.fromkeys(FAMILIES), family, "family")
    if not 0 < check_number(given["level"], "--level") < 1:
        raise InvalidArgument(f"--level is {given['level']:g}, but must be above 0 and below 1, such as 0.95.")
    if output is not None:
        _check_output(output)
    _check_options(family, {**given, "output": output})
    from tfp_bfl.glm import design, predictions, report

    read = design.read_design(
        table,
        design.Outcome(given["outcome"], family, given["event"], names_of(given["event_value"]), given["exposure"]),
        given["client_column"],
        only=names_of(given["only"]),
        drop=names_of(given["drop"]),
        categorical=names_of(given["categorical"]),
        missing=given["missing"],
        separator=given["separator"],
        date_unit=given["date_unit"],
    )
    rows = _rows_to_predict(read, given) if given["predict"] else None
    result = _fit(read, family, given)
    posterior = report.posterior_of(result)
    notes = [*read.notes, *posterior.warnings]
    further = [_one_message(read, family, given)] if given["one_message"] else []
    for line in (report.headline(posterior), *notes):
        click.echo(line)
    click.echo(posterior.table(given["level"]))
    for line in (*report.standard_deviations(result), *further):
        click.echo(line)
    if output is not None:
        of = {name: given[name] for name in ("event", "event_value", "exposure")} | {"column": given["outcome"]}
        drawn = report.estimates(result, read.clients, read.client_names, read.exposure, given["level"], _priors(given))
        how = given["level"], [*notes, *further], of, drawn
        report.write_folder(pathlib.Path(output), result, read.client_names, *how)
        if rows is not None:
            predicted = pathlib.Path(output) / "predictions.csv"
            for line in predictions.write_predictions(predicted, rows, result, read.client_names, given["level"]):
                click.echo(line)
        files = "report.html, coefficients.csv, posterior.json" + (" and predictions.csv" if rows else "")
        click.echo(f"{output} holds {files}.")


def _rows_to_predict(read: Any, given: dict[str, Any]) -> Any:
    """Return the rows of --predict in the columns of the fit, before anything is fitted or written."""
    from tfp_bfl.glm import predictions

    if not os.path.isfile(given["predict"]):
        raise InvalidArgument(f"There is no file {path_name(given['predict'])} to predict.")
    rows = pathlib.Path(given["predict"])
    return predictions.read_rows(rows, read.plan, read.encoding, given["client_column"], given["separator"])


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
    if given["predict"] and not given["output"]:
        raise InvalidArgument("--predict writes predictions.csv: give --output FOLDER.")
    if (given["random"] or given["one_message"]) and not given["client_column"]:
        raise InvalidArgument("--random and --one-message compare clients: give --client-column.")


def _priors(given: dict[str, Any]) -> dict[str, Any]:
    return {name: given[name] for name in ("prior_stddev", "intercept_stddev")}


def _options(read: Any, given: dict[str, Any]) -> dict[str, Any]:
    return {"names": read.names, "exposure": read.exposure, **_priors(given)}


def _fit(read: Any, family: str, given: dict[str, Any]) -> Any:
    from tfp_bfl import glm

    options = {**_options(read, given), "second_order": given["second_order"]}
    if given["random"]:
        return glm.fit_hierarchical(read.clients, family, random=names_of(given["random"]), **options)
    return glm.fit(read.clients, family, stratified=given["stratified"], **options)


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
