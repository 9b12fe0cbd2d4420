"""The sections of a report on sites: from sums over their test data, without an example."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tfp_bfl.evaluation.sums import add_sums, from_sums, is_of_numbers, reliability_of, risk_coverage_of
from tfp_bfl.plots.calibration import reliability_bars
from tfp_bfl.plots.page import Cell, Section, Table, picture
from tfp_bfl.plots.retention import risk_coverage
from tfp_bfl.plots.sections import RELIABILITY
from tfp_bfl.plots.tables import DASH, faulty_rounds

_OF_CLASSES = {"accuracy": ("accuracy", ".3f"), "test_nll": ("NLL", ".3f"), "ece": ("ECE", ".3f")}
_OF_NUMBERS = {"rmse": ("RMSE", ".4g"), "test_nll": ("NLL", ".3f"), "coverage": ("coverage of 90 % intervals", ".3f")}
_OF_BOTH = {"epistemic": ("epistemic variance", ".2g")}
Sums = Mapping[str, np.ndarray]


def sections(
    of_sites: Mapping[str, Sums | None],
    rounds: Sequence[Mapping[str, Any]],
    traffic: Mapping[str, Mapping[str, Any]],
) -> Iterator[Section]:
    """Yield the sections on the sites, together and each.

    Args:
      of_sites: site -> its sums (`evaluation.score_sums`); None for a site that gives none.
      rounds: what was recorded of each round.
      traffic: site -> its "answers", "sent_bytes", "received_bytes" and "seconds" of computation.
    """
    reported = [sums for sums in of_sites.values() if sums is not None]
    numbers = any(map(is_of_numbers, reported))
    if reported and not numbers:
        total = add_sums(reported)
        how = (
            "From sums over the sites' test data: the error rate on the examples of lowest uncertainty. The lower on "
            "the left, the better the entropy detects errors."
        )
        yield Section("Error rate and coverage", how, pictures=[picture(risk_coverage(risk_coverage_of(total)))])
        yield Section("Reliability diagram", RELIABILITY, pictures=[picture(reliability_bars(reliability_of(total)))])
    how = "Each site on its own test data. A dash: the site shares no scores."
    tables = [_scores(of_sites, numbers, faulty_rounds(rounds)), *([_messages(traffic)] if traffic else [])]
    yield Section("Sites", how, tables=tables)


def _scores(of_sites: Mapping[str, Sums | None], numbers: bool, faulty: Mapping[str, int]) -> Table:
    """Return the scores of each site, and the rounds in which it was left out."""
    columns, rows = {**(_OF_NUMBERS if numbers else _OF_CLASSES), **_OF_BOTH}, []
    for number, (name, sums) in enumerate(of_sites.items()):
        scores = from_sums(sums) if sums is not None else {}
        cells = [f"{sums['count']:.0f}" if sums is not None else DASH]
        cells += [f"{scores[key]:{form}}" if key in scores else DASH for key, (_, form) in columns.items()]
        rows.append((name, [Cell(x) for x in (*cells, str(faulty.get(str(number), 0)))]))
    head = ["site", "test examples", *(heading for heading, _ in columns.values()), "faulty rounds"]
    return Table("Sites", head, rows)


def _messages(traffic: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return the messages of each site, and the time that it computed."""
    rows = []
    for name, own in traffic.items():
        kilobytes = [f"{own[key] / 1e3:,.0f}" for key in ("sent_bytes", "received_bytes")]
        rows.append((name, [Cell(x) for x in (str(own["answers"]), *kilobytes, f"{own['seconds']:.1f}")]))
    return Table("Messages", ["site", "answers", "kB to the site", "kB from the site", "computation (s)"], rows)
