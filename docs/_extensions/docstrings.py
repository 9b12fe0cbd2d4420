"""This library's docstrings, for Sphinx: an indented block that follows a blank line is an equation or code."""

import re
from typing import Any

from sphinx.application import Sphinx

BULLET = re.compile(r"\s*[-*] ")
PLURAL = re.compile(r"(`[^`\s][^`]*`)(?=\w)")  # of a name: `Rule`s
EQUATION = re.compile(r"(log )?[^\s:`]+ (=|<-) ")
FUNCTION = re.compile(r"<function [^<>]*(<lambda>)?>")  # as a default


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _indented_equations(lines: list[str]) -> list[str]:
    """Return the lines, with paragraphs that begin as equations indented."""
    result: list[str] = []
    equation = False
    for line in lines:
        if result and not result[-1].strip():
            equation = bool(EQUATION.match(line))
        equation &= bool(line.strip())
        result.append("    " + line if equation else line)
    return result


def literal_blocks(lines: list[str]) -> list[str]:
    """Return the lines, with `::` before each block that is indented more than the paragraph before it."""
    result: list[str] = []
    above = 0
    inside = None  # the indentation of the text around the block
    for number, line in enumerate(_indented_equations(lines)):
        if line.strip():
            indent = _indent(line)
            if inside is not None and indent <= inside:
                inside = None
            before = result[-1] if result else ""
            if inside is None and number and not before.strip() and indent > above:
                result += [" " * above + "::", ""]
                inside = above
            if inside is None:
                above = indent + 2 * bool(BULLET.match(line))
        result.append(line)
    return result


def _as_restructured_text(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    lines[:] = literal_blocks([PLURAL.sub(r"\1\\ ", line) for line in lines])


def _with_dashes(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    lines[:] = [line.replace("** -- ", "** \N{EN DASH} ", 1) for line in lines]


def _shorter(app: Sphinx, what: str, name: str, thing: Any, options: Any, signature: str | None, returned: Any) -> Any:
    return signature and FUNCTION.sub("...", signature), returned


def _without_aliases(app: Sphinx, what: str, name: str, thing: Any, skip: bool, options: Any) -> bool | None:
    """Leave out the fields of NamedTuples, which their class describes."""
    return True if type(thing).__name__ == "_tuplegetter" else None


def _examples_as_code(app: Sphinx, context: Any, lines: list[str]) -> None:
    lines[:] = ["::", "", *("   " + line.removeprefix("| ") for line in lines)] if lines else []


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("autodoc-process-docstring", _as_restructured_text, priority=100)  # before napoleon
    app.connect("autodoc-process-docstring", _with_dashes, priority=900)  # after it
    app.connect("autodoc-process-signature", _shorter)
    app.connect("sphinx-click-process-epilog", _examples_as_code)
    app.connect("autodoc-skip-member", _without_aliases)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
