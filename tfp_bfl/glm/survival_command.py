"""The command `tfp-bfl survival`: curves of survival and the log-rank test of a table with the clients' rows."""

import os
import pathlib
from collections.abc import Callable
from typing import Any

import click
import numpy as np

from tfp_bfl.data.cells import MOST_LEVELS
from tfp_bfl.data.names import canonical, client_names, natural
from tfp_bfl.errors import InvalidArgument, check_number, lookup
from tfp_bfl.files import figure_format
from tfp_bfl.files import name as path_name
from tfp_bfl.glm.command import names_of
from tfp_bfl.output import Record, in_formats

EXAMPLES = """
\b
Example:
  tfp-bfl survival lung.csv --duration time --event status --by sex \\
      --client-column inst --horizon 365 --figure lung.svg
"""


@click.command("survival", epilog=EXAMPLES)
@click.argument("table", metavar="TABLE")
@click.option("--duration", metavar="COLUMN", required=True, help="Time of the event, or of censoring.")
@click.option("--event", metavar="COLUMN", required=True, help="Event: of two values the larger one is an event.")
@click.option("--entry", metavar="COLUMN", help="Time after which a row is at risk; the start if not given.")
@click.option("--event-value", metavar="VALUES", help="Values that count as an event, such as 1,2,3.")
@click.option("--by", metavar="COLUMN", help="Groups: a curve for each, and the log-rank test.")
@click.option("--strata", metavar="COLUMN", help="Strata within which the log-rank test compares groups.")
@click.option("--stratified", is_flag=True, help="Make each client a stratum of the log-rank test.")
@click.option("--client-column", metavar="COLUMN", help="Client of each row; all rows are one client if not given.")
@click.option("--separator", metavar="TEXT", help="Separator of a .csv or .tsv file; that of the header if not given.")
@click.option("--times", metavar="NUMBERS", help="Times of the table, such as 0,12,24; round ones if not given.")
@click.option("--horizon", metavar="NUMBER", type=float, help="Time up to which the restricted mean is computed.")
@click.option("--level", metavar="SHARE", type=float, default=0.95, show_default=True, help="Probability of intervals.")
@click.option("--figure", metavar="FILE", help="New file for the curves: .png, .pdf or .svg.")
@in_formats
def survival_curves(table: str, figure: str | None, horizon: float | None, level: float, **given: Any) -> Record:
    """Estimate survival in TABLE by Kaplan and Meier, with the log-rank test, from sums of its clients.

    The result is that of all rows in one place. Intervals are those of log(-log S).
    """
    path = pathlib.Path(figure or "curves.svg")
    of_figure = figure_format(path)
    if figure and (os.path.lexists(path) or not path.parent.is_dir()):
        raise InvalidArgument(f"{path_name(path)} can't be written: give --figure a new file in a folder that exists.")
    if (given["strata"] or given["stratified"]) and not given["by"]:
        raise InvalidArgument("--strata and --stratified are for the log-rank test: give --by with the groups.")
    if given["stratified"] and not given["client_column"]:
        raise InvalidArgument("--stratified makes each client a stratum: give --client-column.")
    if horizon is not None:
        check_number(horizon, "--horizon")
    from tfp_bfl import glm
    from tfp_bfl.glm.survival import as_times

    times = as_times(np.array(names_of(given["times"])), "--times") if given["times"] else None
    clients, groups, strata, notes = _read(pathlib.Path(table), given)
    result, test = glm.kaplan_meier(clients, groups=groups, times=times, horizon=horizon, level=level), None
    if given["by"]:
        try:
            test = glm.log_rank(clients, groups, strata=strata, stratified=given["stratified"])
            notes += test.notes
        except InvalidArgument as error:
            if len(result.curves) < 2:
                raise
            notes.append(str(error))
    if figure:
        _draw(result, given["duration"], path, of_figure)
    rows, events = (sum(x) for x in zip(*((c.num_rows, np.sum(c.events)) for c in result.curves.values())))
    of_clients = f"{len(clients):,} client{'s' if len(clients) > 1 else ''}, {result.messages} messages to each"
    click.echo(f"survival: {rows:,} rows, {events:,.0f} events, {of_clients}")
    for part in (*notes, result.table(), "", result.at_times(), *(["", test.table(), test] if test else [])):
        click.echo(part)

    def record() -> dict[str, Any]:
        of_curves: dict[str, Any] = {"medians": {g: curve.quantile() for g, curve in result.curves.items()}}
        if horizon is not None:
            of_curves["restricted_means"] = {g: curve.restricted_mean(horizon) for g, curve in result.curves.items()}
        return {**result._asdict(), **of_curves, "log_rank": test, "notes": notes}

    return record


_Parts = list[np.ndarray]


def _read(path: pathlib.Path, given: dict[str, Any]) -> tuple[_Parts, _Parts, _Parts, list[str]]:
    """Read outcomes, groups and strata by client, without rows that have an empty cell, and sentences on the rows."""
    from tfp_bfl.data.tables import read_table
    from tfp_bfl.glm.outcomes import Outcome, check_outcome, note_event, read_outcome

    options = ("duration", "event", "by", "strata", "client_column", "entry")
    named = {option: canonical(given[option]) for option in options if given[option]}
    table = read_table(path, given["separator"], text=[named[option] for option in options[2:5] if option in named])
    where = path_name(path)
    for option, name in named.items():
        lookup(dict.fromkeys(table.column_names), name, "column", f"in {where} for --{option.replace('_', '-')}")
        if [*named.values()].count(name) > 1:
            raise InvalidArgument(f"Two options name the column {name!r}, but each needs its own.")
    outcome = Outcome(
        named["duration"], "cox", named["event"], names_of(given["event_value"]), entry=named.get("entry")
    )
    values, notes = read_outcome(table, outcome, where), note_event(table, outcome, where)
    check_outcome(values, outcome, where)
    everybody = np.full(len(values), "all", object)
    groups, strata = (table[named[x]].categories if x in named else everybody for x in ("by", "strata"))
    owners = everybody
    if "client_column" in named:
        distinct, of_clients = client_names(table[named["client_column"]].distinct[1], named["client_column"])
        owners, notes = table[named["client_column"]].spread(distinct), notes + of_clients
    filled = np.all(np.isfinite(values), 1) & (groups != "") & (strata != "") & (owners != "")
    if count := int(np.sum(~filled)):
        notes.append(
            f"{count} row{'s' if count > 1 else ''} left out with an empty cell in {', '.join(named.values())}."
        )
    if not 0 < len({*groups[filled]}) <= MOST_LEVELS:
        number = f"{len({*groups[filled]})} groups in rows without an empty cell"
        raise InvalidArgument(f"{where} has {number}, but must have 1 to {MOST_LEVELS}: name another column by --by.")
    places = [np.flatnonzero(filled & (owners == name)) for name in sorted({*owners[filled]}, key=natural)]
    by_client: Callable[[np.ndarray], _Parts] = lambda column: [column[place] for place in places]
    return by_client(values), by_client(groups), by_client(strata), notes


def _draw(result: Any, time: str, path: pathlib.Path, form: str) -> None:
    """Draw S(t) of each group as steps, its intervals as bands, and the numbers at risk below.

    A curve ends at the last time at which a row of its group is known to be at risk.
    """
    from tfp_bfl.plots import style

    heights = [3.4, 0.7 + 0.24 * len(result.curves)]
    figure = style.new_figure(sum(heights))
    axes, below = figure.subplots(2, 1, sharex=True, height_ratios=heights)
    for number, (name, curve) in enumerate(result.curves.items()):
        look, known = style.line(number), curve.at_risk > 0
        x = np.append(0.0, curve.times[known])
        survival, low, high = (np.append(1.0, y[known]) for y in (curve.survival, curve.low, curve.high))
        axes.step(x, survival, where="post", label=style.plain(name, 30), **look)
        axes.fill_between(x, low, high, step="post", color=look["color"], alpha=0.15, linewidth=0)
        for j in np.searchsorted(curve.times, result.times):
            below.text(curve.times[j], number, f"{curve.at_risk[j]:,.0f}", ha="center", va="center", color=style.INK)
    style.tidy(axes, y="survival")
    axes.set_ylim(0, 1.02)
    axes.tick_params(labelbottom=True)
    style.legend(axes)
    style.tidy(below, "Number at risk", style.plain(time, 60), grid=None)
    below.set_yticks(range(len(result.curves)), [style.plain(name, 20) for name in result.curves])
    below.set_ylim(len(result.curves) - 0.5, -0.5)
    below.set_xticks(result.times)
    style.save(figure, path, form)
