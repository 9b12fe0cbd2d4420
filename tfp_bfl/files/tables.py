"""Tables of text as CSV, Markdown and LaTeX: the first row is the head."""

import csv
import io
import re
from collections.abc import Callable, Iterable, Sequence

Rows = Sequence[Sequence[str]]
# Numbers with a sign, also with an interval beside them: no formula that a spreadsheet could run.
_SIGNED = re.compile(r"[-+][-+±0-9.,eE%()\[\] ]*")
_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$"}


def to_csv(rows: Iterable[Iterable[object]]) -> str:
    """Format rows with commas, quoted where a cell requires it.

    A text that a spreadsheet would run as a formula (it begins with =, +, - or @ and is no number) gets an apostrophe
    before it (OWASP, "CSV injection").

    Example:
      >>> print(to_csv([["label", "change"], ["=1+1", -0.5]]), end="")
      label,change
      '=1+1,-0.5
    """
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(map(_inert, row) for row in rows)
    return text.getvalue()


def _inert(cell: object) -> object:
    is_formula = isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t", "\r"))
    return f"'{cell}" if is_formula and not _SIGNED.fullmatch(str(cell)) else cell


def to_markdown(rows: Rows) -> str:
    """Format rows with pipes; **x** is bold."""
    lines = ["| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |" for row in rows]
    lines.insert(1, "|" + "---|" * len(rows[0]))
    return "\n".join(lines) + "\n"


def to_latex(rows: Rows) -> str:
    """Return a tabular of booktabs: the first column to the left, the others to the right; **x** is bold."""
    head, *body = [" & ".join(map(_latex, row)) + r" \\" for row in rows]
    columns = "l" + "r" * (len(rows[0]) - 1)
    lines = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", head, r"\midrule", *body, r"\bottomrule"]
    return "\n".join([*lines, r"\end{tabular}"]) + "\n"


def to_float(tabulars: Sequence[str], caption: str, label: str | None) -> str:
    """Return a table environment of LaTeX with a caption above its tabulars, and a label."""
    head = [r"\begin{table}", r"\centering", rf"\caption{{{_latex(caption)}}}"]
    head += [rf"\label{{{label}}}"] if label else []
    return "\n".join([*head, "\\par\\medskip\n".join(tabulars) + r"\end{table}"]) + "\n"


def _latex(cell: str) -> str:
    inner = cell[2:-2] if cell.startswith("**") and cell.endswith("**") and len(cell) > 4 else None
    text = re.sub(r"[\\~^±&%$#_{}]", lambda m: _LATEX.get(m[0], "\\" + m[0]), cell if inner is None else inner)
    return text if inner is None else rf"\textbf{{{text}}}"


def note_in(suffix: str, text: str) -> str:
    """Return a note to stand below a table in the format of a suffix: a paragraph; "" for .csv."""
    if suffix == ".tex":
        return rf"\par\smallskip{{\footnotesize {_latex(text)}}}" + "\n"
    return f"{text}\n" if suffix == ".md" else ""


# suffix of a file -> how a table is written in it
FORMATS: dict[str, Callable[[Rows], str]] = {".csv": to_csv, ".md": to_markdown, ".tex": to_latex}
