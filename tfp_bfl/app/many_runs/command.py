"""The command about many runs: runs."""

from __future__ import annotations

import pathlib

import click

from tfp_bfl.errors import InvalidArgument


@click.command("runs")
@click.argument("folder", metavar="[FOLDER]", default="runs")
def list_runs(folder: str) -> None:
    """List the runs in FOLDER (runs if none is named): what each is, how far it is, and its scores."""
    from tfp_bfl.app.many_runs.listing import described

    path = pathlib.Path(folder)
    if not path.is_dir():
        raise InvalidArgument(f"There is no folder {folder}: name the one that your runs are in.")
    lines = described(path)
    click.echo("\n".join(lines) if lines else f"There is no run in {folder}.")
