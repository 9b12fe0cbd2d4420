"""The job that a server sends to its sites: options without code and the schema of the data, as JSON.

What is not valid raises `InvalidArgument`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl.app.options import own_model
from tfp_bfl.app.options.config import RunConfig, make_config, names_in
from tfp_bfl.app.options.refusals import OF_ONE_PLACE, OF_TABLES
from tfp_bfl.data.agreement import TableOptions
from tfp_bfl.data.encoding import parse_features
from tfp_bfl.errors import InvalidArgument, shown
from tfp_bfl.sites.schema import parse_options

_RUN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
# Algorithm -> what its server needs.
_NEEDS_DATA = {
    "fed_be": "requires unlabelled examples",
    "fsgld": "fits a Gaussian to the data of each client before the first round",
}


def check_name(name: str) -> str:
    """Check the name of a run, which also names folders, and return it."""
    if not _RUN_NAME.fullmatch(name):
        raise InvalidArgument(f"The run's name is {shown(name)}, but must be letters, digits, and - _ . between them.")
    return name


def make_job(options: Mapping[str, Any], number: int) -> RunConfig:
    """Return the configuration of a run over `number` sites, without options of one place and without code."""
    for name in options:
        if name in OF_ONE_PLACE:
            raise InvalidArgument(
                f"{name} is of runs with all data in one place, but each site has its own and answers for itself: "
                "leave it out."
            )
    for name in own_model.OPTIONS:
        if own_model.names_code(options.get(name)):
            raise InvalidArgument(
                f"{name} is {shown(options[name])}, but sites run no code from messages: use one of this library."
            )
    table_options(options)
    rest = {name: x for name, x in options.items() if name not in OF_TABLES}
    config = make_config(None, {**rest, "clients": number, "partition": "iid"})
    if reason := _NEEDS_DATA.get(config.algorithm):
        raise InvalidArgument(f"{config.algorithm} {reason}, and the server of sites has none: use another algorithm.")
    if options.get("potential_curvature") is not None:
        raise InvalidArgument(
            "potential_curvature compares the step size with the clients' data, and sites do not send data: leave it "
            "out, and compare with chains.step_size.largest_step_size."
        )
    return config


def table_options(options: Mapping[str, Any]) -> TableOptions:
    """Return how all sites of a run read their tables; in its options columns may be text separated by commas."""
    given = {name: options[name] for name in OF_TABLES if options.get(name) is not None}
    listed = {name: names_in(x) if isinstance(x, str) and name != "date_unit" else x for name, x in given.items()}
    return parse_options(listed)


def to_json(schema: bfl.data.Schema) -> dict[str, Any]:
    """Return a schema as JSON."""
    content = dataclasses.asdict(schema)
    content |= {"columns": [list(c) for c in schema.columns], "target": schema.target and list(schema.target)}
    return {**content, "encoding": [feature._asdict() for feature in schema.encoding]}


def from_json(content: Any) -> bfl.data.Schema:
    """Return the schema that `to_json` wrote; the sender need not be trusted."""
    try:
        columns = tuple(bfl.data.Column(str(n), float(m), float(s)) for n, m, s in content["columns"])
        target = content["target"] and bfl.data.Column(*content["target"])
        shape, names = tuple(map(int, content["element_shape"])), tuple(map(str, content["class_names"]))
        encoding = parse_features(content.get("encoding", []))
        if encoding and [c.name for c in columns] != [name for feature in encoding for name in feature.columns]:
            raise ValueError(encoding)
        of_data = str(content["name"]), shape, bool(content["is_image"]), names, columns, target, encoding
        return bfl.data.Schema(*of_data)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise InvalidArgument("The schema from the server does not have the required form.") from None
