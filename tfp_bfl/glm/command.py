"""The command `tfp-bfl glm`, a generalised linear model of a table with the clients' rows, and its options."""

import functools
import os
import pathlib
from collections.abc import Callable
from typing import Any

import click
import numpy as np

from tfp_bfl.data.names import as_names, canonical
from tfp_bfl.errors import InvalidArgument, check_number, lookup
from tfp_bfl.files import name as path_name
from tfp_bfl.output import Record, command_line, in_formats

# The first ones are those of `families.CANONICAL`, which needs SciPy.
CANONICAL = ("gaussian", "bernoulli", "poisson", "multinomial")
FAMILIES = (*CANONICAL, "gamma", "negative_binomial", "ordinal", "cox")
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


def names_of(text: str | None) -> list[str]:
    """Return the names in a list separated by commas."""
    return [name for name in as_names((text or "").split(",")) if name]


# Metavariable and help of the options of a linear model; a switch has no metavariable.
_OPTIONS = {
    "outcome": ("COLUMN", "Outcome; the time of survival for cox."),
    "family": ("NAME", f"Distribution: {', '.join(FAMILIES)}."),
    "event": ("COLUMN", "Event of each row for cox: of two values the larger one is an event."),
    "event_value": ("VALUES", "Values that count as an event, such as 1,2,3."),
    "exposure": ("COLUMN", "Time or size at which counts were collected."),
    "entry": ("COLUMN", "Time after which a row is at risk (cox)."),
    "offset": ("COLUMN", "Added to the linear predictor."),
    "weights": ("COLUMN", "How often each row occurs."),
    "trials": ("COLUMN", "Trials of each row, of which the outcome counts events (bernoulli)."),
    "only": ("COLUMNS", "Columns to use; all others but the outcome if not given."),
    "drop": ("COLUMNS", "Columns to leave out."),
    "categorical": ("COLUMNS", "Columns of numbers that are categories."),
    "date_unit": ("UNIT", "Unit in which dates become numbers: days, weeks, months or years."),
    "missing": ("WAY", "Rows with empty cells: drop them, or indicate empty cells by a column."),
    "random": ("NAMES", 'Coefficients that differ between clients, such as "(intercept),age".'),
    "prior_stddev": ("NUMBER", "Standard deviation of the prior; flat if not given."),
    "intercept_stddev": ("NUMBER", "Standard deviation of the intercept's prior."),
    "stratified": ("", "A baseline hazard for each client (cox)."),
    "second_order": ("", "Mean and covariance to second order, for few events."),
    "level": ("SHARE", "Probability of intervals."),
}
# Coefficients that are printed; all are in coefficients.csv.
_MOST_PRINTED = 20
DEFAULTS: dict[str, Any] = {"family": "gaussian", "missing": "drop", "level": 0.95}


def model_options(function: Callable[..., None], needs_outcome: bool = True) -> Callable[..., None]:
    """Give a command the options of a linear model."""
    for name, (metavar, words) in reversed(_OPTIONS.items()):
        kind: dict[str, Any] = {"metavar": metavar, "type": float if metavar in ("NUMBER", "SHARE") else str}
        kind |= {"default": DEFAULTS[name], "show_default": True} if name in DEFAULTS else {}
        kind = kind if metavar else {"is_flag": True}
        flag = f"--{name.replace('_', '-')}"
        function = click.option(flag, required=needs_outcome and name == "outcome", help=words, **kind)(function)
    return function


@click.command("glm", epilog=EXAMPLES)
@click.argument("table", metavar="[TABLE]", required=False)
@functools.partial(model_options, needs_outcome=False)
@click.option("--client-column", metavar="COLUMN", help="Client of each row; all rows are one client if not given.")
@click.option("--separator", metavar="TEXT", help="Separator of a .csv or .tsv file; that of the header if not given.")
@click.option("--one-message", is_flag=True, help="Compare with the combination of the clients' own fits.")
@click.option("--predict", metavar="TABLE", help="Rows to predict, of known and new clients; needs --output.")
@click.option("--output", metavar="FOLDER", help="New folder for report.html, coefficients.csv and posterior.json.")
@click.option(
    "--features",
    metavar="NAME",
    help="Further columns: random:NUMBER or random:NUMBER:SEED; or a run folder, for the inputs of its last layer.",
)
@click.option("--fitted-prior", is_flag=True, help="Prior by the marginal likelihood; needs --random.")
@click.option(
    "--export", metavar="FOLDER", help="New folder for a SavedModel with the client as input; needs --random."
)
@click.option("--leave-out", metavar="CLIENTS", help="Clients of which --export holds no random effect.")
@click.option("--robust", metavar="UNIT", help="Robust (sandwich) variance, by rows or by clients.")
@click.option("--epsilon", metavar="NUMBER", type=float, help="Differential privacy of each row (gaussian).")
@click.option("--delta", metavar="NUMBER", type=float, help="Delta of --epsilon; 1e-5 if not given.")
@click.option(
    "--bounds",
    metavar="RANGES",
    help="With --epsilon: least and largest value of each column of numbers, such as age=0:100,dose=0:5.",
)
@in_formats
def glm_model(table: str | None, family: str, output: str | None, **given: Any) -> Record:
    """Fit a generalised linear model to TABLE from sums of its clients; the result is that of all rows in one place.

    TABLE is a .csv, .tsv or .parquet file, or an archive .npz with features, labels and clients. With --features RUN
    the rows are those of the run.
    """
    lookup(dict.fromkeys(FAMILIES), family, "family")
    if not 0 < check_number(given["level"], "--level") < 1:
        raise InvalidArgument(f"--level is {given['level']:g}, but must be above 0 and below 1, such as 0.95.")
    if output is not None:
        _check_output(output)
    run = None if (given["features"] or "random:").startswith("random:") else given["features"]
    given |= {"features": None} if run else {}
    _check_options(family, {**given, "output": output})
    if given["export"]:
        _check_output(given["export"], "--export")
        nested = [os.path.abspath(path) + os.sep for path in (output or os.devnull, given["export"])]
        if nested[0].startswith(nested[1]) or nested[1].startswith(nested[0]):
            raise InvalidArgument("--export and --output name one folder, or one within the other: give two.")
    from tfp_bfl import glm
    from tfp_bfl.glm import design, report
    from tfp_bfl.glm.posterior import Coefficients

    how: dict[str, Any] = {name: names_of(given[name]) for name in ("only", "drop", "categorical")}
    how |= {name: given[name] for name in ("missing", "separator", "date_unit")}
    source: Any = _source(table, run, family, given)
    if (given["random"] or given["one_message"]) and not given["client_column"]:
        raise InvalidArgument("--random and --one-message compare clients: give --client-column.")
    columns = {name: given[name] for name in design.BESIDE}
    outcome = design.Outcome(given["outcome"], family, event_values=names_of(given["event_value"]), **columns)
    read = design.read_design(source, outcome, given["client_column"], **how)
    left_out = names_of(given["leave_out"])
    for name in left_out:
        lookup(dict.fromkeys(read.client_names), name, "client", "for --leave-out")
    rows = None
    if given["predict"]:  # Read before anything is fitted or written.
        if not os.path.isfile(given["predict"]):
            raise InvalidArgument(f"There is no file {path_name(given['predict'])} to predict.")
        rows = report.read_rows(pathlib.Path(given["predict"]), read, given["client_column"], given["separator"])
    options = {name: given[name] for name in ("prior_stddev", "intercept_stddev")}
    options |= {"names": read.names, "offset": read.offset}
    options |= {"classes": read.plan.events} if family in ("multinomial", "ordinal") else {}
    if given["epsilon"] is not None:
        options |= {"epsilon": given["epsilon"], "delta": given["delta"], "bounds": _bounds(read, given)}
    second = {"second_order": given["second_order"]}
    result: report.Result
    if given["random"]:
        # A given number is the prior of features too.
        is_fitted = given["fitted_prior"] or ((run or given["features"]) and given["prior_stddev"] is None)
        more: dict[str, Any] = {"prior_stddev": "fitted"} if is_fitted else {}
        more |= {"features": given["features"], "random": names_of(given["random"])}
        result = glm.fit_hierarchical(read.clients, family, **{**options, **second, **more})
    else:
        # Not in `options`, by which the report fits each client alone.
        second |= {"robust": given["robust"]}
        result = glm.fit(read.clients, family, stratified=given["stratified"], **options, **second)
    posterior = report.posterior_of(result)
    notes = [*report.private_notes(posterior, read.notes), *posterior.warnings]
    further = [_one_message(read, family, bool(given["random"]), options)] if given["one_message"] else []
    for line in (report.headline(posterior), *notes):
        click.echo(line)
    coefficients = report.given_rows(result, given["level"])
    click.echo(Coefficients(coefficients[:_MOST_PRINTED]))
    if (rest := len(coefficients) - _MOST_PRINTED) > 0:
        where = f"{output}/coefficients.csv" if output else "coefficients.csv of --output"
        click.echo(f"... and {rest:,} more in {where}.")
    for line in (*report.standard_deviations(result), *further):
        click.echo(line)
    if given["export"]:
        assert isinstance(result, glm.Hierarchical)
        result.save(given["export"], read.client_names, left_out)
        known = len(read.clients) - len({*left_out})
        click.echo(f"{given['export']} holds a SavedModel with {known:,} client{'s' if known != 1 else ''}.")
    if output is not None:
        of = {name: given[name] for name in ("event_value", *design.BESIDE)} | {"column": given["outcome"]}
        drawn = report.estimates(result, read, given["level"], options)
        fitted = pathlib.Path(output), result, read.client_names, given["level"]
        about = report.About(str(table or run), command=command_line())
        report.write_folder(*fitted, [*notes, *further], of, about, drawn)
        if rows is not None:
            predicted = pathlib.Path(output) / "predictions.csv"
            for line in report.write_predictions(predicted, rows, result, read.client_names, given["level"]):
                click.echo(line)
        files = "report.html, coefficients.csv, posterior.json" + (" and predictions.csv" if rows else "")
        click.echo(f"{output} holds {files}.")

    def record() -> dict[str, Any]:
        rows = [dict(zip(("name", "mean", "sd", "low", "high"), row.values())) for row in coefficients]
        words = {"notes": notes, "further": further}
        found = {name: x for name, x in report.as_json(result).items() if not name.startswith("sums")}
        return {**found, "coefficients": rows, "level": given["level"], "clients": read.client_names, **words}

    return record


def _bounds(read: Any, given: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """Return the bounds of each column of the design, of 0 and 1 for a level of text, and of the outcome."""
    from tfp_bfl.data.cells import FACTOR
    from tfp_bfl.glm.posterior import OUTCOME

    levels = [name for feature in read.plan.features() if feature.kind == FACTOR for name in feature.columns]
    found = {name: (0.0, 1.0) for name in levels if name in read.names}
    for part in filter(None, (given["bounds"] or "").split(",")):
        name, _, text = part.rpartition("=")
        low, _, high = text.partition(":")
        try:
            values = float(low), float(high)
        except ValueError:
            raise InvalidArgument(
                f"--bounds has {part!r}, but must have NAME=LEAST:LARGEST, such as age=0:100."
            ) from None
        found[OUTCOME if canonical(name) == canonical(given["outcome"]) else canonical(name)] = values
    return found


def _source(table: str | None, run: str | None, family: str, given: dict[str, Any]) -> Any:
    """Return the path of a table, or the table of an archive or a run, with the names of its columns in `given`."""
    if run and not os.path.isfile(os.path.join(run, "config.yaml")):
        must = "must be random:NUMBER, such as random:40, or the folder of a run"
        raise InvalidArgument(f"features is {path_name(run)}, but {must}.")
    if (table is None) == (run is None):
        raise InvalidArgument("Give TABLE, or --features RUN without TABLE, which takes the rows of the run.")
    is_archive = str(table).lower().endswith(".npz")
    if run is None and not is_archive:
        if given["outcome"] is None:
            raise InvalidArgument("--outcome is missing: name the column with the outcome.")
        return table
    from tfp_bfl.glm.given import CLIENT, OUTCOME, read_archive, read_run

    source = read_archive(str(table)) if run is None else read_run(run, family)
    given["outcome"] = given["outcome"] or OUTCOME
    if CLIENT in source.column_names:
        given["client_column"] = given["client_column"] or CLIENT
    return source


def _check_output(output: str, option: str = "--output") -> None:
    parent = pathlib.Path(output).parent
    if not output or os.path.lexists(output) or (parent.exists() and not parent.is_dir()):
        raise InvalidArgument(f"{path_name(output or '.')} exists or can't be a folder: give {option} a new folder.")


def _check_options(family: str, given: dict[str, Any]) -> None:
    for option in ("random", "one_message"):
        if given[option] and family not in CANONICAL:
            option = option.replace("_", "-")
            of = f"{', '.join(CANONICAL[:-1])} and {CANONICAL[-1]}"
            raise InvalidArgument(f"--{option} is for {of}, but the family is {family}.")
    if given["robust"] and (given["random"] or given["one_message"]):
        raise InvalidArgument(
            "--robust is for models without --random and --one-message, which have their own variance."
        )
    if given["robust"] == "clients" and not given["client_column"]:
        raise InvalidArgument("--robust clients compares clients: give --client-column.")
    if given["stratified"] and (given["random"] or family != "cox"):
        raise InvalidArgument("--stratified is for the family cox: leave it out.")
    if given["predict"] and not given["output"]:
        raise InvalidArgument("--predict writes predictions.csv: give --output FOLDER.")
    if given["epsilon"] is None and (given["bounds"] or given["delta"] is not None):
        raise InvalidArgument("--delta and --bounds are for differential privacy: give --epsilon too.")
    if given["epsilon"] is not None:
        if family != "gaussian" or given["random"] or given["one_message"]:
            raise InvalidArgument("--epsilon is for the family gaussian without --random and --one-message.")
        if given["missing"] != "drop":
            raise InvalidArgument("--missing indicate takes means from the rows, without noise: leave it out.")
    for option in ("features", "fitted_prior", "export"):
        if given[option] and not given["random"]:
            raise InvalidArgument(f"--{option.replace('_', '-')} is for models with --random: give its names too.")
    if given["fitted_prior"] and given["prior_stddev"] is not None:
        raise InvalidArgument("--fitted-prior and --prior-stddev exclude each other: give one of them.")
    if given["leave_out"] and not given["export"]:
        raise InvalidArgument("--leave-out is for --export: give a new folder.")


def _one_message(read: Any, family: str, has_effects: bool, options: dict[str, Any]) -> str:
    """Return how far the combination of the clients' fits is from the exact one, or why there is none."""
    from tfp_bfl import glm

    try:
        one = glm.one_message(read.clients, family, client_names=read.client_names, **options)
    except InvalidArgument as error:
        return f"There is no posterior from one message: {error}"
    assert one.distance is not None
    worst = int(np.argmax(np.abs(one.distance)))
    without = ", both without random effects" if has_effects else ""
    return (
        f"One message is {np.abs(one.distance[worst]):.2g} posterior standard deviations off at most "
        f"({one.posterior.names[worst]}{without})."
    )
