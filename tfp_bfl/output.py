"""The form of what a command prints: lines for people, or one JSON object for programs."""

import contextlib
import functools
import itertools
import json
import math
import re
import shlex
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import click

from tfp_bfl.errors import MissingDependency

# What a command returns: a function that makes its record, so that text alone does not compute it.
Record = Callable[[], Any] | None


def in_formats(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option --format to a command, which prints its lines and returns a function that makes its record.

    With `--format json` the lines go to standard error, and the record alone to standard output. A command may return
    an exit status beside that function.
    """

    @click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", help="Form of the output.")
    @functools.wraps(command)
    def formatted(form: str, **given: Any) -> int:
        with contextlib.redirect_stdout(sys.stderr) if form == "json" else contextlib.nullcontext():
            found = command(**given)
        record, status = found if isinstance(found, tuple) else (found, 0)
        if form == "json" and record is not None:
            click.echo(json.dumps(plain(record()), indent=1))
        return status

    return formatted


def command_line() -> str:
    """Return the command of the command line as a shell reads it; "" where a program calls the library."""
    context = click.get_current_context(silent=True)
    arguments = context and context.find_root().obj
    return shlex.join(["tfp-bfl", *arguments]) if arguments else ""


def plain(value: Any) -> Any:
    """Return a result as JSON has it: null for numbers that are not finite."""
    value = value._asdict() if hasattr(value, "_asdict") else value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, Mapping):
        return {name: plain(x) for name, x in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(x) for x in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def asks_for_json(arguments: Sequence[str]) -> bool:
    """Return whether a command line has `--format json`."""
    return "--format=json" in arguments or ("--format", "json") in itertools.pairwise(arguments)


def error_record(problem: object, status: int, options: Collection[str]) -> dict[str, Any]:
    """Return an error as JSON has it; option: the first that the message names, null where it names none.

    Messages name an option as "--batch-size" or, at their beginning, as in Python: "batch_size is 0, but ...", of which
    those in `options` are taken.
    """
    message, codes = str(problem), {2: "bad_input", 130: "interrupted"}
    code = "missing_package" if isinstance(problem, MissingDependency) else codes.get(status, "failed")
    words = (
        "--" + word.strip("-").replace("_", "-") for word in re.findall(r"--[a-z][a-z-]*|^[a-z_]+(?= is )", message)
    )
    option = next((word for word in words if word in options or word in message), None)
    return {"error": {"code": code, "message": message, "option": option}}
