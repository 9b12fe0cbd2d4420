"""Signatures of functions that pass keywords on: they show each keyword with its type and default."""

import inspect
from collections.abc import Callable, Iterable
from inspect import Parameter


def keywords_of(function: Callable[..., object]) -> dict[str, Parameter]:
    """Return the parameters that can be given by name alone."""
    return {name: x for name, x in inspect.signature(function).parameters.items() if x.kind is x.KEYWORD_ONLY}


def show(function: Callable[..., object], more: Iterable[Parameter]) -> None:
    """Let the signature of a function show keywords in the place of its `**options`.

    Args:
      function: that takes them.
      more: parameters; those of a name that the function has already are left out.
    """
    signature = inspect.signature(function)
    own = {name: x for name, x in signature.parameters.items() if x.kind is not x.VAR_KEYWORD}
    others = {x.name: x.replace(kind=Parameter.KEYWORD_ONLY) for x in more if x.name not in own}
    shown = signature.replace(parameters=[*own.values(), *others.values()])
    function.__signature__ = shown  # type: ignore[attr-defined]
