"""The options of a run on the command line, from the fields of its configuration."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import click


class Grouped(click.Command):
    """A command whose help shows the options of few algorithms apart, below those of all.

    Attributes:
      first: what matters, in this order.
    """

    first: Sequence[str] = ("dataset", "model", "algorithm", "rule", "rounds", "output")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from tfp_bfl.app.options import in_words, takers

        first: dict[str, Any] = dict.fromkeys(self.first)
        groups: dict[tuple[str, ...], list[Any]] = {(): []}
        for parameter in self.get_params(ctx):
            name, record = str(parameter.name), parameter.get_help_record(ctx)
            if name in first:
                first[name] = record
            else:
                groups.setdefault(takers(name), []).append(record)
        with formatter.section("Options"):
            formatter.write_dl(list(first.values()))
        # Of all algorithms, of most, of one.
        for algorithms, records in sorted(groups.items(), key=lambda group: (bool(group[0]), -len(group[0]))):
            title = f"Options of {in_words(algorithms)}" if algorithms else "More options"
            with formatter.section(f"\n{' ' * formatter.current_indent}".join(textwrap.wrap(title, 76))):
                formatter.write_dl(records)


def config_options(command: Any, without: Sequence[str] = ()) -> Any:
    """An option for each field of `RunConfig` but those; the values are checked by it, not by click."""
    from tfp_bfl.app.config import RunConfig
    from tfp_bfl.app.options import default_in_words

    for name, field in reversed(RunConfig.model_fields.items()):
        if name in without:
            continue
        flag = f"--{name.replace('_', '-')}"
        if isinstance(field.default, bool):
            both = f"{flag}/--no-{flag[2:]}" if field.default else flag
            option = click.option(both, name, is_flag=True, default=None, help=field.description)
        else:
            default = default_in_words(name, field.default)
            words = f"{field.description}{f'  [default: {default}]' if default else ''}"
            option = click.option(flag, name, metavar="VALUE", help=words)
        command = option(command)
    return command
