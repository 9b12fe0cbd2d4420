"""The results of a run over sites: the exported model, scores from sums, the report and the summary."""

from __future__ import annotations

import json
import pathlib
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl.app.options import resolve
from tfp_bfl.app.options.config import RunConfig
from tfp_bfl.app.options.refusals import OF_ONE_PLACE, OF_TABLES
from tfp_bfl.files import write_whole
from tfp_bfl.files.arrays import write_arrays
from tfp_bfl.files.tables import to_csv
from tfp_bfl.sites.deployment.traffic import TRAFFIC

# File with the sums of the last scores (`evaluation.score_sums`): over all sites, and of each site under its name.
SCORES = "scores.npz"


def write_results(
    folder: pathlib.Path,
    config: RunConfig,
    weights: str,
    schema: bfl.data.Schema,
    parties: bfl.data.Parties,
    result: bfl.federated.SimulationResult,
    scores: Mapping[str, Any],
    privacy: Mapping[str, float],
    warnings: Sequence[str],
    tables: Mapping[str, Any],
    traffic: Mapping[str, Mapping[str, Any]],
    trained: Mapping[str, Any],
) -> None:
    """Write the files of a complete run, summary.json last.

    Args:
      folder: of the run.
      config, weights: the settled options, and what the weights of the model are.
      schema: of the sites' data.
      parties: the sites.
      result: of the rounds.
      scores: site -> its sums for the last model.
      privacy: epsilon and delta of the run, if it has noise.
      warnings: sentences for the summary.
      tables: the options of tables that are given.
      traffic: of each site (`traffic.Counted`).
      trained: `BayesianProcess.settings`.
    """
    last = result.rounds[-1]
    metrics = {name: x for name, x in last.items() if isinstance(x, (int, float)) and not isinstance(x, bool)}
    metrics |= {name: sum(row[name] for row in result.rounds) for name in ("seconds", "train_seconds")}
    metrics |= privacy
    of_clients = bfl.evaluation.scores_of_sums(scores)
    of_sites = {site: bfl.evaluation.from_sums(sums) for site, sums in scores.items()}
    data = {"dataset": schema.name, "num_examples": int(parties.sizes.sum()), "parties": list(parties.names)}
    data.update({"columns": [list(column) for column in schema.columns]} if schema.columns else {})
    data.update({"encoding": [feature._asdict() for feature in schema.encoding]} if schema.encoding else {})
    data.update({"target": list(schema.target)} if schema.target else {})
    settings = resolve.stated(config, weights, trained)
    options = {option: x for option, x in settings.items() if option not in (*OF_ONE_PLACE, *OF_TABLES)}
    options |= {option: to_csv([x]).rstrip("\n") if isinstance(x, list) else x for option, x in tables.items()}
    info = bfl.export.Info(list(schema.class_names) or None, options, metrics, data)
    shutil.rmtree(folder / "saved_model", ignore_errors=True)  # Of a server that died before the summary.
    bfl.export.save(result.model, folder / "saved_model", info)
    every = {site: scores.get(site) for site in parties.names}
    _report(folder, options, {**metrics, "clients": of_clients}, result, schema, every, traffic, warnings)
    if scores:
        of_each = {f"{site}/{name}": x for site, sums in scores.items() for name, x in sums.items()}
        write_arrays(folder / SCORES, {**bfl.evaluation.add_sums(list(scores.values())), **of_each})
    summary = {
        **metrics,
        "method": resolve.method(options),
        "parties": of_sites,
        "clients": of_clients,
        TRAFFIC: traffic,
        "warnings": [*warnings, *result.warnings],
    }
    write_whole(folder / "summary.json", json.dumps(summary, indent=2) + "\n")


def _report(
    folder: pathlib.Path,
    options: Mapping[str, Any],
    metrics: Mapping[str, Any],
    result: bfl.federated.SimulationResult,
    schema: bfl.data.Schema,
    of_sites: Mapping[str, Any],
    traffic: Mapping[str, Mapping[str, Any]],
    warnings: Sequence[str],
) -> None:
    """Write the report of the run, from the rounds and the sites' sums."""
    from tfp_bfl.sites.deployment.sections import sections  # Which imports TensorFlow.

    summary = {name: x for name, x in metrics.items() if name != "round"}
    variance = summary.get("aleatoric", 0) + summary.get("epistemic", 0)
    summary.update({"epistemic_share": summary["epistemic"] / variance} if variance else {})
    run = bfl.plots.RunResults(
        name=folder.name,
        config=options,
        summary=summary,
        rounds=result.rounds,
        probabilities=None,
        labels=np.zeros(0, np.int32),
        uncertainties={},
        class_names=schema.class_names,
        warnings=[*warnings, *result.warnings],
        sections=list(sections(of_sites, result.rounds, traffic)),
        client_names=tuple(of_sites),
        statement=bfl.export.statement(options),
    )
    bfl.plots.write_report(
        folder / "report.html", [run], title=f"{folder.name}: {options['model']}, {options['algorithm']}"
    )
