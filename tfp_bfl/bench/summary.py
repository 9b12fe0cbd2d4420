"""Tables of a benchmark: scores, differences to a reference method, scores at equal cost, and failed cells."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tfp_bfl.bench import ranks
from tfp_bfl.bench.reading import Bench, BenchRecord, score_of, shorten
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.evaluation.repeats import Difference, over_seeds
from tfp_bfl.labels import duration
from tfp_bfl.plots.page import Cell, Table, table
from tfp_bfl.plots.score_tables import ScoreForm, difference_cells, score_cells
from tfp_bfl.plots.tables import DASH, text

# Costs of a cell -> heading, in the order of tables.
COSTS = {
    "cpu_seconds": "Training time (CPU s)",
    "seconds": "Elapsed time (s)",
    "trial_seconds": "Tuning time (s)",
    "upload_mb": "Upload (MB)",
    "download_mb": "Download (MB)",
    "peak_mb": "Peak memory (MB)",
}
_MAIN_COSTS = ("upload_mb", "download_mb", "cpu_seconds")
# What a budget limits -> its unit.
BUDGETS = {"mb": "MB", "seconds": "CPU s"}
# Of a point of a trajectory, what is no score.
_NOT_SCORES = ("round", *BUDGETS)
_LETTERS = 200
HOW_TO_READ = (
    "Scores are means ± standard deviations over seeds, on the test data.",
    "Differences are a method's score less the reference method's with the same seeds, with 95 % intervals "
    "(Student's t). An interval says what other seeds would give; it says nothing about other data. "
    "With two seeds intervals are very wide, and with one seed there are none.",
    "A bold score is better than each score of the setting that is not bold: all these paired intervals exclude 0; "
    "several bold scores share the first place. A difference is bold if its interval excludes 0. All other differences "
    "are within the noise of seeds.",
    "Intervals are not adjusted for their number: about 1 in 20 excludes 0 where two methods are equal.",
    "An interval contains neither the luck of the trials nor that of the test rows.",
    "Megabytes are sums over clients and rounds. Training time is the CPU time of all clients and the server. Methods "
    'spend different rounds, bytes and time. "Not finished" counts the runs in which the NLL still falls at the last '
    "evaluation: their order is that after so many rounds. A method of which most runs are not finished is never bold.",
)
HOW_TO_READ_RANKS = (
    "Rank 1 is best. A method's average rank is the mean over settings of the rank of its mean score over seeds. "
    "Ties share their ranks. A method without a value for each seed of a setting gets the worst rank there.",
    "Friedman's test asks whether all methods are equal; if it does not reject that, no two methods may be called "
    "different. If it does, two methods differ where their average ranks differ by the critical difference (CD) of "
    "Nemenyi's test or more (5 % level). The tests take settings as independent; settings that share data are not.",
)


class Budget(NamedTuple):
    """Hold a limit of cost in one setting, of "mb" or "seconds", and where the amount comes from, for readers."""

    unit: str
    amount: float
    source: str


def spent(bench: Bench) -> tuple[int, float]:
    """Sum the trials and the elapsed seconds of all cells and trials.

    Records of one method and setting with the same time of their trials share these trials, which count once; failed
    cells do not record the time.
    """
    number, times = 0, [r.cost.get("seconds", 0.0) for r in bench.records]
    for cell in bench.cells.values():
        trials = {r.cost["trial_seconds"]: r.trials for r in cell if "trial_seconds" in r.cost}
        number += sum(trials.values()) if trials else max(r.trials for r in cell)
        times += trials
    return number, math.fsum(times)


def mean(values: Sequence[float]) -> float | None:
    """Return the mean, which does not depend on the order; None without values."""
    return math.fsum(values) / len(values) if values else None


def cost_of(cell: Sequence[BenchRecord], *keys: str) -> float | None:
    """Return the sum of costs, the mean over the seeds that have them all; None without any."""
    return mean([sum(record.cost[key] for key in keys) for record in cell if set(keys) <= set(record.cost)])


def text_of(value: float | None) -> str:
    """Return a number as `number` formats it; a dash for none."""
    return DASH if value is None else number(value)


def number(value: float, scale: float | None = None, sign: bool = False) -> str:
    """Format a score with decimals by its size, or by that of another number of the same score."""
    size = abs(value if scale is None else scale)
    digits = 0 if size >= 1000 else 1 if size >= 100 else 2 if size >= 10 else 3 if size >= 0.02 or not size else 4
    form = f"{'+' if sign else ''}.{'1e' if 0 < size < 1e-3 or size >= 1e6 else f'{digits}f'}"
    shown = format(value, form)
    return shown if float(shown) else format(0.0, form)  # Without -0.000.


def mean_text(values: Sequence[float]) -> str:
    """Format mean and standard deviation over seeds; a dash without values."""
    if not values:
        return DASH
    found = over_seeds(values)
    if found.number < 2:
        return number(found.mean)
    # Decimals enough for the standard deviation, which can be far smaller than the mean.
    scale = max(10 * found.stddev, abs(found.mean) / 10, 1e-3 if abs(found.mean) >= 1e-3 else 0.0)
    return f"{number(found.mean, scale)} ± {number(found.stddev, scale)}"


class _Adaptive(ScoreForm):
    """Scores with decimals by their size, as `number`."""

    def sign(self, key: str) -> int:
        return score_of(key).sign

    def mean(self, values: Sequence[float], key: str) -> str:
        return mean_text(values)

    def difference(self, found: Difference, key: str) -> str:
        scale = max(abs(found.low), abs(found.high))
        middle, low, high = (number(x, scale, True) for x in (found.mean, found.low, found.high))
        return f"{middle} [{low}, {high}]"


FORM = _Adaptive()


def _table(title: str, methods: Sequence[str], columns: Mapping[str, Sequence[Cell | str]]) -> Table:
    rows = [(method, [cells[i] for cells in columns.values()]) for i, method in enumerate(methods)]
    return table(title, ["Method", *columns], rows)


def methods_of(bench: Bench, setting: str) -> list[str]:
    return [method for method in bench.methods if (setting, method) in bench.cells]


def scores(bench: Bench, setting: str) -> Table:
    """Return the scores of the methods in a setting."""
    methods = methods_of(bench, setting)
    groups = [bench.scores(setting, method) for method in methods]
    cells = [bench.cells[setting, method] for method in methods]
    columns: dict[str, Sequence[Cell | str]] = {
        "Seeds": [str(len(group.scores)) for group in groups],
        **{score_of(key).label: score_cells(groups, key, FORM) for key in bench.score_keys(setting)},
        "Rounds": [*map(rounds, cells)],
        **{COSTS[key]: [text_of(cost_of(cell, key)) for cell in cells] for key in _MAIN_COSTS},
        "Not finished": [*map(unfinished, cells)],
    }
    return _table("Scores", methods, columns)


def rounds(cell: Sequence[BenchRecord]) -> str:
    """Return the rounds of a cell's trainings; a dash if no record states them."""
    return ", ".join(f"{n:,}" for n in sorted({record.num_rounds for record in cell if record.num_rounds})) or DASH


def unfinished(cell: Sequence[BenchRecord]) -> str:
    """Return how many runs end while their NLL still falls, of those with evaluations between rounds; else a dash."""
    known = [finished for record in cell if (finished := record.is_finished) is not None]
    return f"{known.count(False)} of {len(known)}" if known else DASH


def differences(bench: Bench, setting: str) -> Table:
    """Return the differences of the methods to the reference in a setting."""
    methods = [method for method in methods_of(bench, setting) if method != bench.reference]
    groups = [bench.scores(setting, method) for method in methods]
    reference = bench.scores(setting, bench.reference)
    columns = {score_of(key).label: difference_cells(groups, reference, key, FORM) for key in bench.score_keys(setting)}
    return _table(f"Difference to {shorten(bench.reference)}", methods, columns)


def across(bench: Bench, key: str) -> Table:
    """Return the differences of the methods to the reference in one score, with a column for each setting."""
    methods = [method for method in bench.methods if method != bench.reference]
    columns: dict[str, list[Cell]] = {}
    for setting in bench.settings:
        if key in bench.score_keys(setting) and (setting, bench.reference) in bench.cells:
            there = [method for method in methods if (setting, method) in bench.cells]
            groups = [bench.scores(setting, method) for method in there]
            cells = difference_cells(groups, bench.scores(setting, bench.reference), key, FORM)
            found = dict(zip(there, cells))
            columns[shorten(setting)] = [found.get(method, Cell(DASH)) for method in methods]
    title = f"{score_of(key).label}: difference to {shorten(bench.reference)} in each setting"
    return _table(title, methods, columns)


def costs(bench: Bench, setting: str) -> Table:
    """Return the mean costs over seeds and the values that tuning chose."""
    methods = methods_of(bench, setting)
    cells = [bench.cells[setting, method] for method in methods]
    every = {heading: [text_of(cost_of(cell, key)) for cell in cells] for key, heading in COSTS.items()}
    columns: dict[str, Sequence[Cell | str]] = {name: x for name, x in every.items() if set(x) != {DASH}}
    columns["Chosen values"] = [Cell(chosen(cell), is_words=True) for cell in cells]
    return _table("Cost and chosen values", methods, columns)


def chosen(cell: Sequence[BenchRecord]) -> str:
    """Return the values that tuning chose; by seed where seeds differ."""
    texts = {record.seed: shorten(text(record.chosen), _LETTERS) for record in cell if record.failed is None}
    if len(set(texts.values())) < 2:
        return next(iter(texts.values()), DASH)
    return "; ".join(f"seed {seed}: {values}" for seed, values in texts.items())


def budget(bench: Bench, setting: str, unit: str) -> Budget | None:
    """Return the limit of cost, of "mb" or "seconds", at which the methods of a setting are compared.

    The limit is what the reference method used in all its rounds, the largest over its seeds: the reference, against
    which all differences are read, is then scored with its complete training. A setting in which the reference has no
    trajectory takes the smallest total of a method; None if no trajectory has this unit.
    """
    spent_by = lambda cell: [point[unit] for record in cell for point in record.rounds if unit in point]
    used = {method: spent_by(bench.cells[setting, method]) for method in methods_of(bench, setting)}
    totals = {method: max(amounts) for method, amounts in used.items() if amounts}
    if not totals:
        return None
    if bench.reference in totals:
        return Budget(unit, totals[bench.reference], f"all rounds of {shorten(bench.reference)}")
    least = min(totals, key=lambda method: totals[method])
    source = f"{shorten(bench.reference)} has no trajectory; all rounds of the cheapest method, {shorten(least)}"
    return Budget(unit, totals[least], source)


def within(cell: Sequence[BenchRecord], limit: Budget) -> dict[int, Mapping[str, float]]:
    """Return seed -> the last point of its trajectory within a budget; seeds without one are absent."""
    most = limit.amount * (1 + 1e-9)
    points = {r.seed: [p for p in r.rounds if p.get(limit.unit, math.inf) <= most] for r in cell}
    return {seed: there[-1] for seed, there in points.items() if there}


def budgets(bench: Bench, setting: str) -> list[Budget]:
    """Return the limits of cost at which the methods of a setting are compared, as far as records have the costs."""
    return [found for unit in BUDGETS if (found := budget(bench, setting, unit))]


def at_budget(bench: Bench, setting: str, limit: Budget) -> Table:
    """Return the scores of each method's current model at its last evaluation within a budget."""
    methods = methods_of(bench, setting)
    points = [within(bench.cells[setting, method], limit) for method in methods]
    groups = [bench.scores(setting, method)._replace(scores=there) for method, there in zip(methods, points)]
    keys = list(dict.fromkeys(key for there in points for point in there.values() for key in point))
    rounds = [mean_text([point["round"] for point in there.values()]).split(" ")[0] for there in points]
    columns: dict[str, Sequence[Cell | str]] = {
        "Round": [DASH if r == DASH else f"{float(r):g}" for r in rounds],
        **{score_of(key).label: score_cells(groups, key, FORM) for key in keys if key not in _NOT_SCORES},
        "Note": [Cell(_note(bench.cells[setting, m], x, limit), is_words=True) for m, x in zip(methods, points)],
    }
    title = f"At most {number(limit.amount)} {BUDGETS[limit.unit]} ({limit.source})"
    return _table(title, methods, columns)


def _note(cell: Sequence[BenchRecord], there: Mapping[int, Mapping[str, float]], limit: Budget) -> str:
    """Return why seeds of a cell have no point within a budget, or nothing."""
    missing = [record for record in cell if record.seed not in there]
    if not missing:
        return ""
    first = [point[limit.unit] for r in missing for point in r.rounds if limit.unit in point]
    least = f"first at {number(min(first))} {BUDGETS[limit.unit]}" if first else "no trajectory"
    have_failed = all(record.failed is not None for record in missing)
    why = "failed" if have_failed else f"none within the budget, {least}"
    return why if not there else f"{len(there)} of {len(cell)} seeds; {why}"


def failures(bench: Bench) -> Table:
    """Return the failed cells with their reasons."""
    words = lambda text: Cell(text, is_words=True)
    rows: list[tuple[str, list[Cell | str]]] = [
        (shorten(r.setting), [words(shorten(r.method)), str(r.seed), words(shorten(r.failed, _LETTERS))])
        for r in bench.records
        if r.failed is not None
    ]
    return table("Failed cells", ["Setting", "Method", "Seed", "Reason"], rows)


def rankings(bench: Bench) -> dict[str, ranks.Ranking | str]:
    """Return label -> ranking of each score with a direction, or why it has none; of one setting "" -> the reason."""
    if len(bench.settings) < 2:
        return {"": ranks.NO_RANKS}
    found: dict[str, ranks.Ranking | str] = {}
    for key in filter(lambda key: score_of(key).sign, bench.score_keys()):
        try:
            found[score_of(key).label] = ranks.ranking(bench, key)
        except InvalidArgument as reason:
            found[score_of(key).label] = str(reason)
    return found


def tested(ranked: ranks.Ranking) -> tuple[ranks.Comparison | None, str]:
    """Return the tests of a ranking, None for two methods, and a sentence with their results."""
    if len(ranked.methods) < 3:
        return None, "Two methods: their difference is in the tables; Friedman's test needs three methods or more."
    found = ranks.compare(ranked)
    n, k = len(ranked.settings), len(ranked.methods)
    p = f"p = {found.p:.3f}" if found.p >= 1e-3 else "p < 0.001"
    result = f"Friedman chi2 = {found.chi2:.2f}, {p}, {n} settings, {k} methods; CD = {found.difference:.2f}."
    if found.p >= ranks.ALPHA:
        result += " The test does not reject that all methods are equal: read no difference from the ranks."
    elif found.difference > k - 1:
        result += " CD is larger than the range of ranks: more settings are needed to separate two methods."
    return found, result


def unranked(ranked: ranks.Ranking) -> str:
    """Return a sentence on methods with the worst rank for lack of a value and on methods left out; "" if none."""
    worst = "; ".join(f"{shorten(method)} in {shorten(setting)}" for setting, method in ranked.absent)
    left_out = ", ".join(map(shorten, ranked.left_out))
    parts = {
        "Worst rank for lack of a value": worst,
        "Without this score or without cells in a setting, not ranked": left_out,
    }
    return " ".join(f"{what}: {who}." for what, who in parts.items() if who)


def header(bench: Bench) -> str:
    """Return a sentence with the numbers of settings, methods, seeds and trials, and the time."""
    trials, seconds = spent(bench)
    counts = {"setting": len(bench.settings), "method": len(bench.methods)}
    counts |= {"seed": len({r.seed for r in bench.records}), "tuning trial": trials}
    parts = [f"{n} {name}{'' if n == 1 else 's'}" for name, n in counts.items()]
    return f"{', '.join(parts)}; {duration(seconds)} of computation."
