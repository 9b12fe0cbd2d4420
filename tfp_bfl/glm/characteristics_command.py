"""The command `tfp-bfl table-one`: the columns of a table by group, from sums of its clients."""

import os
import pathlib
from typing import Any

import click

from tfp_bfl.errors import InvalidArgument
from tfp_bfl.files import name as path_name
from tfp_bfl.files.tables import to_csv, to_latex, to_markdown
from tfp_bfl.files.writing import write_bytes
from tfp_bfl.glm.command import names_of
from tfp_bfl.output import Record, in_formats

EXAMPLES = """
\b
Example:
  tfp-bfl table-one lung.csv --by sex --client-column inst \\
      --categorical status,ph.ecog --output table_one.tex
"""
_LISTS = ("only", "drop", "categorical")
_FORMS = {".csv": to_csv, ".md": to_markdown, ".tex": to_latex}


@click.command("table-one", epilog=EXAMPLES)
@click.argument("table", metavar="TABLE")
@click.option("--by", metavar="COLUMN", help="Groups, two to ten, each a column of the result.")
@click.option("--client-column", metavar="COLUMN", help="Client of each row; all rows are one client if not given.")
@click.option("--only", metavar="COLUMNS", help="Columns to describe; all if not given.")
@click.option("--drop", metavar="COLUMNS", help="Columns to leave out.")
@click.option("--categorical", metavar="COLUMNS", help="Columns of numbers that are categories.")
@click.option("--separator", metavar="TEXT", help="Separator of a .csv or .tsv file; that of the header if not given.")
@click.option("--output", metavar="FILE", help="New file for the table: .csv, .md or .tex.")
@in_formats
def table_one_of(table: str, output: str | None, **given: Any) -> Record:
    """Describe the columns of TABLE by group, from sums of its clients; the result is that of all rows in one place."""
    path = pathlib.Path(output or "table.csv")
    if path.suffix.lower() not in _FORMS:
        raise InvalidArgument(f"{path_name(path)} must end with .csv, .md or .tex.")
    if output and (os.path.lexists(path) or not path.parent.is_dir()):
        raise InvalidArgument(f"{path_name(path)} can't be written: give --output a new file in a folder that exists.")
    from tfp_bfl import glm

    of: dict[str, Any] = {name: names_of(x) if name in _LISTS else x for name, x in given.items()}
    found = glm.table_one(table, **of)
    rows = found.table()
    for line in (*found.notes, str(rows)):
        click.echo(line)
    if output:
        cells = [list(rows[0]), *(list(row.values()) for row in rows)]
        write_bytes(path, _FORMS[path.suffix.lower()](cells).encode("utf-8"))
        click.echo(f"{path_name(path)} holds the table.")
    return found._asdict
