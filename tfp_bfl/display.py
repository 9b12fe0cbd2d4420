"""Objects that show themselves in a few lines, in a console and in a notebook."""

import html
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

Kind = TypeVar("Kind")
Facts = Mapping[str, object]


def shows(facts: Callable[[Any], Facts]) -> Callable[[type[Kind]], type[Kind]]:
    """Return a decorator that gives a class a `__repr__` of one line for each fact, and a table in notebooks.

    Args:
      facts: object -> name -> value of what is shown; values without text are left out.

    Example:
      >>> @shows(lambda x: {"members": len(x)})
      ... class Group(list): ...
      >>> Group("ab")
      Group
        members  2
    """

    def decorate(kind: type[Kind]) -> type[Kind]:
        def rows(shown: Any) -> list[tuple[str, str]]:
            return [(name, text) for name, value in facts(shown).items() if (text := _text(value))]

        def in_lines(self: Any) -> str:
            lines = rows(self)
            width = max((len(name) for name, _ in lines), default=0)
            return "\n".join([type(self).__name__, *(f"  {name:{width}}  {text}" for name, text in lines)])

        def as_table(self: Any) -> str:
            cell = lambda tag, text: f"<{tag} style='text-align: left'>{html.escape(text)}</{tag}>"
            lines = "".join(f"<tr>{cell('th', name)}{cell('td', text)}</tr>" for name, text in rows(self))
            return f"<table><caption>{html.escape(type(self).__name__)}</caption>{lines}</table>"

        for name, method in {"__repr__": in_lines, "_repr_html_": as_table}.items():
            setattr(kind, name, method)
        return kind

    return decorate


def _text(value: object) -> str:
    """Return a value in words: of a mapping its items, numbers with four digits."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name.replace('_', ' ')} {_text(x)}" for name, x in value.items())
    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def progress_bar(console: Console, doing: str) -> Progress:
    """Return a bar with rounds, times and the field `scores` after the text or field of a task that `doing` names."""
    columns = (TextColumn(doing), MofNCompleteColumn(), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    return Progress(*columns, TextColumn("{task.fields[scores]}"), console=console)
