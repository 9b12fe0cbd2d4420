"""Signatures of functions that pass keywords on: they show each keyword with its type and default."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from inspect import Parameter
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])


def keywords_of(function: Callable[..., object]) -> dict[str, Parameter]:
    """Return the parameters that can be given by name alone."""
    return {name: x for name, x in inspect.signature(function).parameters.items() if x.kind is x.KEYWORD_ONLY}


def show(function: Callable[..., object], more: Iterable[Parameter]) -> inspect.Signature:
    """Let the signature of a function show keywords in the place of its `**options`, and return it.

    Args:
      function: that takes them.
      more: parameters; those of a name that the function has already are left out.
    """
    signature = inspect.signature(function)
    own = {name: x for name, x in signature.parameters.items() if x.kind is not x.VAR_KEYWORD}
    others = {x.name: x.replace(kind=Parameter.KEYWORD_ONLY) for x in more if x.name not in own}
    signature = signature.replace(parameters=[*own.values(), *others.values()])
    function.__signature__ = signature  # type: ignore[attr-defined]
    return signature


def with_keywords(kind: Any, **defaults: object) -> Callable[[_Function], _Function]:
    """Give a function the keywords of a typed dictionary, with defaults, in the place of its `**options`."""

    def decorate(function: _Function) -> _Function:
        hint = lambda name: getattr(kind.__annotations__[name], "__forward_arg__", kind.__annotations__[name])
        more = [Parameter(x, Parameter.KEYWORD_ONLY, default=y, annotation=hint(x)) for x, y in defaults.items()]

        @functools.wraps(function)
        def filled(*args: Any, **options: Any) -> Any:
            try:
                bound = signature.bind(*args, **options)
            except TypeError as error:
                raise TypeError(f"{function.__name__}() {error}") from None
            bound.apply_defaults()
            return function(*bound.args, **bound.kwargs)

        signature = show(filled, more)
        return filled  # type: ignore[return-value]

    return decorate
