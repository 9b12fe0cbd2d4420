"""The tables of the benchmark's page, between marks `<!-- table: NAME -->` and `<!-- /table -->`, from its records."""

from __future__ import annotations

import math
import pathlib
import re
from collections.abc import Iterable, Sequence

import numpy as np

from tfp_bfl.bench import ranks, reading, summary
from tfp_bfl.bench.reading import Bench, BenchRecord, is_finished
from tfp_bfl.files.tables import FORMATS
from tfp_bfl.plots.score_tables import compare

HERE = pathlib.Path(__file__).parent
PAGE = HERE / "README.md"
MARK = re.compile(r"<!-- table: (\w+) -->\n(.*?)<!-- /table -->", re.DOTALL)
SETTINGS = {
    "images": {
        "digits_iid": "digits, IID",
        "digits_dirichlet": "digits, Dirichlet(0.1)",
        "digits_two_classes": "digits, two classes",
        "fashion_dirichlet": "Fashion-MNIST, Dirichlet(0.1)",
    },
    "natural": {name: name for name in ("heart", "contraception", "radon", "schools", "exams", "lecturers")},
    "longer": {"digits_two_classes_120": "digits, two classes, 120 rounds"},
}
WORDS = {
    **{"laplace": "`laplace` after `fed_avg`", "last_layer": "`last_layer` after `fed_avg`"},
    **{"ensemble": "`ensemble`, five models", "fed_opt": "`fed_opt`, Adam at the server"},
    **{"reptile": "`reptile`, personal", "meta_vd": "`meta_vd`, personal", "fl_swag": "`fl_swag`, one round"},
    **{"one_shot": "`one_shot`, one round"},
}
# Trains as the reference does and leaves the means of the weights as they are: a control of the trials.
CONTROL = "laplace"
SCORE = "test_nll"


def bench_of(name: str) -> Bench:
    """Return the records of one of the benchmark's files."""
    return reading.arrange(reading.read(HERE / "results" / name))


def luck_of(bench: Bench) -> float:
    """Return the largest mean difference in NLL, over the settings, of `CONTROL` from the reference: what the choice of
    the trials alone can do.
    """
    found = [
        compare(bench.scores(setting, CONTROL), bench.scores(setting, bench.reference), SCORE)
        for setting in bench.settings
    ]
    return max((abs(difference.mean) for difference in found if difference), default=0.0)


def difference(bench: Bench, setting: str, method: str, luck: float) -> str:
    """Return a method's NLL minus the reference's; bold where all of its interval is farther from zero than the luck
    of the trials, which is infinite for a row that is not finished.
    """
    cell = bench.cells.get((setting, method), ())
    if not cell:
        return "-"
    if any(record.failed is not None for record in cell):
        return "failed"
    if method == bench.reference:
        return "0.000"
    found = compare(bench.scores(setting, method), bench.scores(setting, bench.reference), SCORE)
    if found is None:
        return "-"
    text = f"{found.mean:+.3f}".replace("+0.000", "0.000").replace("-0.000", "0.000")
    return f"**{text}**" if max(found.low, -found.high) > luck else text


def average_ranks(bench: Bench) -> dict[str, float]:
    """Return method -> mean of its ranks over the settings that it serves, lowest first; a failed method is last."""
    found: dict[str, list[float]] = {method: [] for method in bench.methods}
    for setting in bench.settings:
        there = [method for method in bench.methods if (setting, method) in bench.cells]
        means = [_mean(bench.cells[setting, method]) for method in there]
        for method, rank in zip(there, ranks.rank(np.array([means]), -1)[0]):
            found[method].append(float(rank))
    averages = {method: float(np.mean(own)) for method, own in found.items() if own}
    return dict(sorted(averages.items(), key=lambda x: x[1]))


def _mean(cell: Sequence[BenchRecord]) -> float:
    values = [record.scores.get(SCORE, math.nan) for record in cell]
    return math.nan if any(record.failed is not None for record in cell) else float(np.mean(values))


def _costs(cells: Iterable[Sequence[BenchRecord]], key: str) -> list[float]:
    """Return the mean cost over the seeds of each cell that recorded it."""
    values = ([record.cost[key] for record in cell if key in record.cost] for cell in cells)
    return [float(np.mean(own)) for own in values if own]


def between(values: Sequence[float]) -> str:
    """Return the least and the largest of some numbers, with two digits."""
    shown = list(dict.fromkeys(f"{x:,.0f}" if x >= 10 else f"{x:.2g}" for x in (min(values), max(values))))
    return " to ".join(shown)


def main_table(name: str) -> list[list[str]]:
    """Return differences in NLL by setting, and what each method spends: rounds, megabytes, CPU seconds; the runs that
    are not finished, with a dagger where most are; and its average rank.
    """
    bench, titles = bench_of(name), SETTINGS[name]
    luck = luck_of(bench_of("images") if name == "longer" else bench)  # Its rates are those of the trials of images.
    costs = ("rounds", "MB up", "MB down", "CPU s", "not finished")
    with_ranks = len(titles) > 1
    lines = [["method", *titles.values(), *costs, *(["average rank"] * with_ranks)]]
    for method, average in average_ranks(bench).items():
        cells = {setting: bench.cells[setting, method] for setting in titles if (setting, method) in bench.cells}
        spent = {key: _costs(cells.values(), key) for key in ("upload_mb", "download_mb", "cpu_seconds")}
        every = [record for own in cells.values() for record in own]
        is_unfinished = not is_finished(every)
        lines.append(
            [
                WORDS.get(method, f"`{method}`") + " †" * is_unfinished,
                *(difference(bench, setting, method, math.inf if is_unfinished else luck) for setting in titles),
                summary.rounds(every),
                *map(between, spent.values()),
                summary.unfinished(every),
                *([f"{average:.1f}"] * with_ranks),
            ]
        )
    return lines


def filled(text: str) -> str:
    """Return the page with its marked tables as of the records."""
    return MARK.sub(lambda m: f"<!-- table: {m[1]} -->\n{FORMATS['.md'](main_table(m[1]))}<!-- /table -->", text)


def fill_page() -> None:
    """Write the tables into the benchmark's page."""
    before = PAGE.read_text(encoding="utf-8")
    after = filled(before)
    if after != before:
        PAGE.write_text(after, encoding="utf-8")
