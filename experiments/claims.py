"""The claims of all studies, read from their pages, and the tables of them on the front page: `nox -s tables`.

The table under "## Claims" of a study's page is the record of its claims. The front page repeats it without its control
and counts verdicts, between marks `<!-- table: NAME -->` and `<!-- /table -->`.
"""

from __future__ import annotations

import itertools
import pathlib
import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from tfp_bfl.files.tables import FORMATS

HERE = pathlib.Path(__file__).parent
PAGE = HERE / "README.md"
VERDICTS = ("supported", "contradicted", "inconclusive")
# Of a verdict: the control leaves it as it is; it has the same effect by itself, or reverses it; nothing was measured.
HOLDS = ("yes", "no", "no control")
# Of an inconclusive claim: there is no effect that a control could explain.
NOTHING = "-"
MARK = re.compile(r"<!-- table: (\w+) -->\n(.*?)<!-- /table -->", re.DOTALL)


class Claim(NamedTuple):
    """A row of a study's table of claims; `verdict` is one of `VERDICTS`, and may say why after a colon."""

    claim: str
    published: str
    ours: str
    control: str
    holds: str
    verdict: str


HEAD = ("claim", "published", "ours, 95 % interval, seeds", "control", "holds against its control", "verdict")


def table_under(text: str, heading: str) -> list[list[str]]:
    """Return the cells of the first table under a heading, its head first."""
    lines = text.split(f"\n{heading}\n", 1)[1].splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith("|"))
    rows = list(itertools.takewhile(lambda line: line.startswith("|"), lines[first:]))
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows[:1] + rows[2:]]


def claims_of(study: str) -> list[Claim]:
    """Return the claims of a study."""
    return [
        Claim(*row) for row in table_under((HERE / study / "README.md").read_text(encoding="utf-8"), "## Claims")[1:]
    ]


def studies() -> list[str]:
    """Return the names of the studies whose pages have claims, in alphabetical order."""
    pages = sorted(HERE.glob("*/README.md"))
    return [page.parent.name for page in pages if "\n## Claims\n" in page.read_text(encoding="utf-8")]


def counts(claims: Sequence[Claim]) -> list[str]:
    """Return the numbers of claims by verdict, those that are supported and contradicted also by their control."""
    verdicts = Counter(claim.verdict.partition(":")[0] for claim in claims)
    held = Counter((claim.verdict, claim.holds) for claim in claims)
    cells = [[verdicts[name], *(held[name, how] for how in HOLDS)] for name in VERDICTS[:2]]
    return [*map(str, itertools.chain(*cells)), str(verdicts[VERDICTS[2]])]


def counts_table(every: dict[str, list[Claim]]) -> list[list[str]]:
    """Return the counts of each study and of all."""
    of_verdict = [[name, *(f"... {how}" for how in HOLDS)] for name in VERDICTS[:2]]
    rows = [[f"[{study}](#{study})", *counts(claims)] for study, claims in every.items()]
    total = ["**all**", *counts([claim for claims in every.values() for claim in claims])]
    return [["study", *itertools.chain(*of_verdict), VERDICTS[2]], *rows, total]


def filled(text: str) -> str:
    """Return the front page with its marked tables as of the pages of the studies."""
    every = {study: claims_of(study) for study in studies()}
    shown = [n for n, name in enumerate(HEAD) if name != "control"]
    tables = {study: [[row[n] for n in shown] for row in (HEAD, *claims)] for study, claims in every.items()}
    tables["counts"] = counts_table(every)
    return MARK.sub(lambda m: f"<!-- table: {m[1]} -->\n{FORMATS['.md'](tables[m[1]])}<!-- /table -->", text)


def fill_page() -> None:
    """Write the tables into the front page."""
    before = PAGE.read_text(encoding="utf-8")
    after = filled(before)
    if after != before:
        PAGE.write_text(after, encoding="utf-8")
