"""The options of a run on the command line, from the fields of its configuration.

pydantic-settings would replace this module at most: it builds a parser of argparse, without completion and without help
by algorithm; its YAML reader takes aliases and files of any size; and version 2.16 requires Python 3.11.
"""

import functools
import re
import textwrap
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import click

from tfp_bfl.app.options.config import fields
from tfp_bfl.app.options.own_model import OPTIONS as CODE
from tfp_bfl.app.options.own_model import check_trust, load, options_of, type_of
from tfp_bfl.app.options.refusals import read_yaml
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.options.group import extra
from tfp_bfl.options.methods import ALGORITHMS, POSTERIORS, canonical, default_in_words, in_words, serves, takers

# A list of choices that is longer than this follows the help text.
_LONGEST_CHOICES = 32
_ALGORITHM, _PARAMETERS = "--algorithm", "parameters of functions"
_OF_CODE = "user-supplied functions"
# What --vary and --space name.
_FILE = re.compile(r"\.py(:|$)")
_ROLE = re.compile(rf"(?:^|\s)({'|'.join(CODE)})=(\S+)")


class Grouped(click.Command):
    """A command with help that shows the options of few algorithms separately, below the common ones.

    With `--algorithm NAME` before `--help` it shows the options of that algorithm alone.
    """

    first: Sequence[str] = ("dataset", "model", "algorithm", "rule", "rounds", "output")

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        algorithm = canonical(_value_of(_ALGORITHM, args))
        ctx.meta[_ALGORITHM] = algorithm if algorithm in ALGORITHMS else None
        if not ctx.resilient_parsing:
            ctx.meta[_PARAMETERS] = _parameters_in(args, {flag for x in self.params for flag in x.opts})
        return super().parse_args(ctx, args)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [*super().get_params(ctx), *ctx.meta.get(_PARAMETERS, ())]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        algorithm = ctx.meta.get(_ALGORITHM)
        first: dict[str, Any] = {name: None for name in self.first if algorithm is None or serves(name, algorithm)}
        groups: dict[tuple[str, ...], list[Any]] = {(): []}
        for parameter in self.get_params(ctx):
            name, record = str(parameter.name), parameter.get_help_record(ctx)
            if algorithm is not None and not serves(name, algorithm):
                continue
            if parameter in ctx.meta.get(_PARAMETERS, ()):
                groups.setdefault((_OF_CODE,), []).append(record)
                continue
            if name in first:
                first[name] = record
            else:
                of = (algorithm,) if algorithm is not None and takers(name) else takers(name)
                groups.setdefault(of, []).append(record)
        with formatter.section("Options"):
            formatter.write_dl(list(first.values()))
        # Of all algorithms, of most, of one.
        for algorithms, records in sorted(groups.items(), key=lambda group: (bool(group[0]), -len(group[0]))):
            title = f"Options of {in_words(algorithms)}" if algorithms else "More options"
            title = f"Options of {_OF_CODE}" if algorithms == (_OF_CODE,) else title
            with formatter.section(f"\n{' ' * formatter.current_indent}".join(textwrap.wrap(title, 76))):
                formatter.write_dl(records)


def _parameters_in(args: Sequence[str], known: set[str]) -> list[click.Option]:
    """Return the options that are parameters of the functions that arguments name as FILE.py:FUNCTION.

    The code is run where arguments hold an option that is not known, or ask for help.
    """
    given = {arg.partition("=")[0] for arg in args if arg.startswith("--")}
    if not given - known:
        return []
    code = [*_code_in(args)]
    if given - known != {"--help"} and (file := _value_of("--config", args)):
        check_trust(read_yaml(file), dict(code), file)  # An option may be a parameter of its code.
    options: dict[str, click.Option] = {}
    for role, value in code:
        function = load(value, role)
        for name, parameter in options_of(role, function).items():
            flag, default = _flag(name), None if parameter.default is parameter.empty else parameter.default
            if flag in known:
                continue
            words = f"Parameter of the {role} function.{'' if default is None else f'  [default: {default}]'}"
            try:
                kind = type_of(role, function, name)
                is_switch, metavar = kind is bool, _value_in_words(kind)
            except InvalidArgument:  # Which is said of it where it is given.
                options[flag] = click.Option([flag, name], hidden=True)
                continue
            if is_switch:
                options[flag] = click.Option([_switch(name, default), name], is_flag=True, default=None, help=words)
            else:
                options[flag] = click.Option([flag, name], metavar=metavar, help=words)
    return list(options.values())


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _switch(name: str, default: object) -> str:
    """Return the flags of an option that is true or false, with --no-NAME but where false is the default."""
    return _flag(name) if default is False else f"{_flag(name)}/--no{_flag(name)[1:]}"


def _code_in(args: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Return (role, FILE.py:FUNCTION) of code that arguments name, in options and in values that are varied."""
    for before, arg in zip(("", *args), args):
        flag, equals, value = arg.partition("=")
        role = (flag if equals and arg.startswith("--") else before).lstrip("-")
        if role in CODE and _FILE.search(arg):
            yield role, value if equals and arg.startswith("--") else arg
        for named, values in _ROLE.findall(arg):
            yield from ((named, x) for x in re.split("[,;]", values) if _FILE.search(x))


def _value_of(flag: str, args: Sequence[str]) -> str:
    """Return the value of an option in arguments, "" for none."""
    for i, arg in enumerate(args):
        name, equals, value = arg.partition("=")
        if name == flag:
            return value if equals else "".join(args[i + 1 : i + 2])
    return ""


def config_options(command: Any, without: Sequence[str] = ()) -> Any:
    """Add an option for each field of a configuration but those; the values are checked by it, not by click."""
    words = {name: default_in_words(name, field.default) for name, field in fields().items()}
    return _with_options(command, {name: x for name, x in fields().items() if name not in without}, words)


def after_options(algorithm: str) -> Any:
    """Add the options of an algorithm that follows a training; for "" those of all that no run has."""
    every = {name: field for method in POSTERIORS.values() for name, field in method.options.items()}
    own = POSTERIORS[algorithm].options if algorithm else {name: x for name, x in every.items() if name not in fields()}
    words = {name: str(field.default or "") for name, field in own.items()}
    return lambda command: _with_options(command, own, words)


def _with_options(command: Any, options: dict[str, Any], defaults: Mapping[str, str]) -> Any:
    """Add an option for each field, with its default in words."""
    for name, field in reversed(options.items()):
        flag = _flag(name)
        if isinstance(field.default, bool):
            flags = _switch(name, field.default)
            option = click.option(flags, name, is_flag=True, default=None, help=field.description)
        else:
            default, names = defaults[name], extra(field, "names")
            choices = [*{**ALGORITHMS, **POSTERIORS}] if flag == _ALGORITHM else names.entries if names else []
            short = "|".join(choices) if len("|".join(choices)) <= _LONGEST_CHOICES else ""
            words = [str(field.description)]
            unsaid = [choice for choice in choices if choice.partition(":")[0] not in words[0]]
            words += [f"One of {', '.join(choices)}."] if unsaid and not short else []
            words += [f" [default: {default}]"] if default else []
            option = click.option(
                flag,
                name,
                metavar=short or ("NAME" if choices else _value_in_words(field.annotation)),
                help=" ".join(words),
                shell_complete=functools.partial(_completions, choices) if choices else None,
            )
        command = option(command)
    return command


def code_options(command: Any, purpose: str = "") -> Any:
    """Add the options that name the code of a run again, which the command gets as a mapping, `code`."""

    @functools.wraps(command)
    def with_code(*args: Any, **given: Any) -> Any:
        named = {name: value for name in CODE if (value := given.pop(name)) is not None}
        return command(*args, code=named, **given)

    for name in reversed(CODE):
        words = f"The {name} of RUN where it is code, which is run{purpose}."
        with_code = click.option(f"--{name}", metavar="FILE.py:FUNCTION", help=words)(with_code)
    return with_code


def _completions(choices: Sequence[str], ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    del ctx, parameter
    return [choice for choice in choices if choice.startswith(incomplete)]


def _value_in_words(annotation: object) -> str:
    """Return what an option takes: INTEGER, NUMBER, TEXT, or the choices of a Literal."""
    if typing.get_origin(annotation) is Literal:
        return "|".join(map(str, typing.get_args(annotation)))
    types = str(annotation)
    return "NUMBER" if "float" in types else "INTEGER" if "int" in types else "TEXT"
