"""The results of a run over sites, from sums over their test data: model, scores, report and summary."""

from __future__ import annotations

import json
import pathlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl.app.options import resolve
from tfp_bfl.app.options.refusals import OF_ONE_PLACE, OF_TABLES
from tfp_bfl.evaluation.sums import add_sums, from_sums, is_of_numbers, reliability_of, risk_coverage_of
from tfp_bfl.files import write_whole
from tfp_bfl.files.arrays import write_arrays
from tfp_bfl.files.tables import to_csv
from tfp_bfl.plots.figures import reliability_bars, risk_coverage
from tfp_bfl.plots.page import Cell, Section, Table, picture
from tfp_bfl.plots.sections import RELIABILITY
from tfp_bfl.plots.tables import DASH, faulty_rounds
from tfp_bfl.sites.deployment.channel import TRAFFIC

# File with the sums of the last scores (`evaluation.score_sums`): over all sites, and of each site under its name.
SCORES = "scores.npz"
_OF_CLASSES = {"accuracy": ("accuracy", ".3f"), "test_nll": ("NLL", ".3f"), "ece": ("ECE", ".3f")}
_OF_NUMBERS = {"rmse": ("RMSE", ".4g"), "test_nll": ("NLL", ".3f"), "coverage": ("coverage of 90 % intervals", ".3f")}
_OF_BOTH = {"epistemic": ("epistemic variance", ".2g")}
Sums = Mapping[str, np.ndarray]
Traffic = Mapping[str, Mapping[str, Any]]


def write_results(
    folder: pathlib.Path,
    stated: Mapping[str, Any],
    tables: Mapping[str, Any],
    parties: bfl.data.Parties,
    result: bfl.federated.SimulationResult,
    scores: Mapping[str, Any],
    privacy: Mapping[str, float],
    traffic: Traffic,
) -> None:
    """Write the files of a complete run, summary.json last.

    Args:
      stated: options of the run (`resolve.stated`); `tables` are those of tables that are given.
      result: of the rounds, with all warnings for the summary.
      scores: site -> its sums for the last model.
      privacy: epsilon and delta of the run, if it has noise.
      traffic: of each site (`channel.Counted`).
    """
    schema, last = parties.source, result.rounds[-1]
    metrics = {name: x for name, x in last.items() if isinstance(x, (int, float)) and not isinstance(x, bool)}
    metrics |= {name: sum(row[name] for row in result.rounds) for name in ("seconds", "train_seconds")}
    metrics |= privacy
    of_clients = bfl.evaluation.scores_of_sums(scores)
    data = {"dataset": schema.name, "num_examples": int(parties.sizes.sum()), "parties": list(parties.names)}
    data |= {"columns": [list(column) for column in schema.columns]} if schema.columns else {}
    data |= {"encoding": [feature._asdict() for feature in schema.encoding]} if schema.encoding else {}
    data |= {"target": list(schema.target)} if schema.target else {}
    options = {option: x for option, x in stated.items() if option not in (*OF_ONE_PLACE, *OF_TABLES)}
    options |= {option: to_csv([x]).rstrip("\n") if isinstance(x, list) else x for option, x in tables.items()}
    info = bfl.export.Info(list(schema.class_names) or None, options, metrics, data)
    shutil.rmtree(folder / "saved_model", ignore_errors=True)  # Of a server that died before the summary.
    bfl.export.save(result.model, folder / "saved_model", info)
    variance = metrics.get("aleatoric", 0) + metrics.get("epistemic", 0)
    shown = {name: x for name, x in {**metrics, "clients": of_clients}.items() if name != "round"}
    page = bfl.plots.RunResults(
        name=folder.name,
        config=options,
        summary=shown | ({"epistemic_share": metrics["epistemic"] / variance} if variance else {}),
        rounds=result.rounds,
        probabilities=None,
        labels=np.zeros(0, np.int32),
        uncertainties={},
        class_names=schema.class_names,
        warnings=result.warnings,
        sections=list(sections({site: scores.get(site) for site in parties.names}, result.rounds, traffic)),
        client_names=parties.names,
        statement=bfl.export.statement(options),
    )
    title = f"{folder.name}: {options['model']}, {options['algorithm']}"
    bfl.plots.write_report(folder / "report.html", [page], title=title)
    if scores:
        of_each = {f"{site}/{name}": x for site, sums in scores.items() for name, x in sums.items()}
        write_arrays(folder / SCORES, {**add_sums(list(scores.values())), **of_each})
    summary = {
        **metrics,
        "method": resolve.method(options),
        "parties": {site: from_sums(sums) for site, sums in scores.items()},
        "clients": of_clients,
        TRAFFIC: traffic,
        "warnings": result.warnings,
    }
    write_whole(folder / "summary.json", json.dumps(summary, indent=2) + "\n")


def sections(
    of_sites: Mapping[str, Sums | None], rounds: Sequence[Mapping[str, Any]], traffic: Traffic
) -> Iterator[Section]:
    """Yield the sections of a report on the sites, together and each, without an example.

    `of_sites` has the sums of each site (`evaluation.score_sums`), or None, and `rounds` what was recorded of each.
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


def _messages(traffic: Traffic) -> Table:
    """Return the messages of each site, and the time that it computed."""
    rows = []
    for name, own in traffic.items():
        kilobytes = [f"{own[key] / 1e3:,.0f}" for key in ("sent_bytes", "received_bytes")]
        rows.append((name, [Cell(x) for x in (str(own["answers"]), *kilobytes, f"{own['seconds']:.1f}")]))
    return Table("Messages", ["site", "answers", "kB to the site", "kB from the site", "computation (s)"], rows)
