"""Types of options that are text, and that Python and YAML may give as lists: names, and the size of images."""

import csv
from typing import Annotated, Any

from pydantic import BeforeValidator

from tfp_bfl.data.names import canonical
from tfp_bfl.data.sizes import parse_size
from tfp_bfl.files.tables import to_csv


def names_in(value: str | None) -> tuple[str, ...]:
    """Return the names in a list separated by commas, quoted where they hold one."""
    return tuple(next(csv.reader([value]), [])) if value else ()


def _name(value: Any) -> Any:
    return canonical(value) if isinstance(value, str) else value


def _names(value: Any) -> Any:
    return _name((to_csv([value]).rstrip("\n") or None) if isinstance(value, (list, tuple)) else value)


def _size(value: Any) -> str | None:
    size = parse_size(value)
    return None if size is None else f"{size[0]},{size[1]}"


Name = Annotated[str, BeforeValidator(_name)]
Names = Annotated[str | None, BeforeValidator(_names)]
Size = Annotated[str | None, BeforeValidator(_size)]
