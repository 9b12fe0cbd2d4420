"""Write the tables of a benchmark as results.md, and as results.csv with all digits."""

from __future__ import annotations

import pathlib

from tfp_bfl.bench import ranks
from tfp_bfl.bench.reading import Bench, arrange, read, score_of, shorten
from tfp_bfl.bench.summary import (
    HOW_TO_READ,
    HOW_TO_READ_RANKS,
    across,
    at_budget,
    budgets,
    costs,
    differences,
    failures,
    header,
    methods_of,
    scores,
    tested,
    unranked,
    within,
)
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.files.tables import to_csv, to_markdown
from tfp_bfl.files.writing import write_whole
from tfp_bfl.plots.page import Cell, Table
from tfp_bfl.plots.repeats import Repeated, digits


def write_tables(folder: pathlib.Path, reference: str | None = None) -> list[pathlib.Path]:
    """Write results.md, and results.csv with all digits, from the records into their folder. Old ones are replaced.

    Args:
      folder: with records.jsonl.
      reference: the method that others are compared with; None for "fed_avg" if it occurs, else the first.

    Raises:
      InvalidArgument: as `read` and `arrange`.
    """
    bench = arrange(read(folder), reference)
    paths = [pathlib.Path(folder) / "results.md", pathlib.Path(folder) / "results.csv"]
    write_whole(paths[0], _markdown(bench))
    write_whole(paths[1], to_csv(_numeric(bench)))
    return paths


def _markdown(bench: Bench) -> str:
    notes = "\n".join(f"- {note}" for note in (*HOW_TO_READ, *HOW_TO_READ_RANKS))
    parts = [
        f"# Benchmark\n\n{header(bench)} Reference: {_plain(shorten(bench.reference))}.\n\n{notes}\n",
        "## Ranks\n",
    ]
    ranked = [key for key in bench.score_keys() if score_of(key).sign]
    parts += [_ranks(bench, key) for key in ranked] if len(bench.settings) > 1 else [f"{ranks.NO_RANKS}\n"]
    if len(bench.settings) > 1:
        tables = [across(bench, key) for key in ranked[:1]]
        parts += [f"## {_plain(table.title)}\n\n{_rows(table)}" for table in tables if table.rows]
    for setting in bench.settings:
        parts.append(f"## {_plain(shorten(setting))}\n")
        tables = [scores(bench, setting), differences(bench, setting), costs(bench, setting)]
        for table in (*tables, *(at_budget(bench, setting, limit) for limit in budgets(bench, setting))):
            if table.rows and len(table.head) > 1:
                parts.append(f"### {_plain(table.title)}\n\n{_rows(table)}")
    failed = failures(bench)
    parts.append(f"## Failed cells\n\n{_rows(failed) if failed.rows else 'None.'}")
    return "\n".join(parts)


def _ranks(bench: Bench, key: str) -> str:
    heading = f"### {_plain(score_of(key).label)}\n"
    try:
        ranked = ranks.ranking(bench, key)
    except InvalidArgument as reason:
        return f"{heading}\n{reason}\n"
    rows = [(method, [Cell(f"{value:.3f}")]) for method, value in zip(ranked.methods, ranked.average)]
    notes = " ".join([tested(ranked)[1], unranked(ranked)]).strip()
    return f"{heading}\n{_rows(Table('', ['Method', 'Average rank'], rows))}\n{_plain(notes)}\n"


def _rows(table: Table) -> str:
    bold = lambda cell: f"**{_plain(cell.text)}**" if cell.is_best else _plain(cell.text)
    return to_markdown([table.head, *([_plain(shorten(name)), *map(bold, cells)] for name, cells in table.rows)])


def _plain(words: str) -> str:
    """Return text that Markdown shows as it is."""
    escaped = "".join(f"\\{letter}" if letter in "\\`*[]" else letter for letter in words)
    return escaped.replace("&", "&amp;").replace("<", "&lt;")


def _numeric(bench: Bench) -> list[list[str]]:
    """Return a line for each setting, method and quantity, with all digits."""
    rows = [["setting", "method", "kind", "budget", "quantity", "seeds", "mean", "sd", "difference", "low", "high"]]
    for setting in bench.settings:
        methods = methods_of(bench, setting)
        kinds: list[tuple[str, str, list[Repeated]]] = [
            ("score", "", [bench.scores(setting, m) for m in methods]),
            ("cost", "", [Repeated(m, {r.seed: r.cost for r in bench.cells[setting, m]}) for m in methods]),
        ]
        for limit in budgets(bench, setting):
            points = [Repeated(m, within(bench.cells[setting, m], limit)) for m in methods]
            kinds.append((f"at_{limit.unit}", repr(limit.amount), points))
        for kind, limited, groups in kinds:
            reference = next((group for group in groups if group.name == bench.reference), None)
            for group in groups:
                keys = dict.fromkeys(key for values in group.scores.values() for key in values)
                start = [setting, group.name, kind, limited]
                for key in keys:
                    rows.append([*start, key, str(len(group.seeds(key))), *digits(group, reference, key)])
    return rows
