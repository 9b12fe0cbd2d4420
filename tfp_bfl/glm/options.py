"""The options of a linear model, of a table in one place and of tables at sites."""

from __future__ import annotations

from collections.abc import Callable

import click

from tfp_bfl.data.names import as_names

FAMILIES = ("gaussian", "bernoulli", "poisson", "cox")


def names_of(text: str | None) -> list[str]:
    """Return the names in a list separated by commas."""
    return [name for name in as_names((text or "").split(",")) if name]


def model_options(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of a linear model."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


_OPTIONS = (
    click.option("--outcome", required=True, metavar="COLUMN", help="Outcome; the time of survival for cox."),
    click.option(
        "--family", default="gaussian", show_default=True, metavar="NAME", help=f"Distribution: {', '.join(FAMILIES)}."
    ),
    click.option(
        "--event", metavar="COLUMN", help="Event of each row for cox: of two values the larger one is an event."
    ),
    click.option("--event-value", metavar="VALUES", help="Values that count as an event, such as 1,2,3."),
    click.option("--exposure", metavar="COLUMN", help="Time or size at which counts were collected."),
    click.option("--only", metavar="COLUMNS", help="Columns to use; all others but the outcome if not given."),
    click.option("--drop", metavar="COLUMNS", help="Columns to leave out."),
    click.option("--categorical", metavar="COLUMNS", help="Columns of numbers that are categories."),
    click.option(
        "--date-unit", metavar="UNIT", help="Unit in which dates become numbers: days, weeks, months or years."
    ),
    click.option(
        "--missing",
        default="drop",
        show_default=True,
        metavar="WAY",
        help="Rows with empty cells: drop them, or indicate empty cells by a column.",
    ),
    click.option(
        "--random", metavar="NAMES", help='Coefficients that differ between clients, such as "(intercept),age".'
    ),
    click.option(
        "--prior-stddev", type=float, metavar="NUMBER", help="Standard deviation of the prior; flat if not given."
    ),
    click.option(
        "--intercept-stddev", type=float, metavar="NUMBER", help="Standard deviation of the intercept's prior."
    ),
    click.option("--stratified", is_flag=True, help="A baseline hazard for each client (cox)."),
    click.option("--second-order", is_flag=True, help="Mean and covariance to second order, for few events."),
    click.option(
        "--level", type=float, default=0.95, show_default=True, metavar="SHARE", help="Probability of intervals."
    ),
)
