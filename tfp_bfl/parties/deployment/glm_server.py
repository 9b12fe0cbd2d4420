"""The server of a linear model over sites: it asks for columns and sums, and writes the folder of the fit."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl.app.one_run.progress import Reporter
from tfp_bfl.errors import Error, InvalidArgument
from tfp_bfl.files import write_whole
from tfp_bfl.glm import report
from tfp_bfl.glm.agreement import Column, Plan, agree
from tfp_bfl.glm.descriptions import check_description
from tfp_bfl.glm.encoding import Encoding, num_sums, settle
from tfp_bfl.glm.federation import Question, ask_sums, check_columns
from tfp_bfl.glm.hierarchical import Hierarchical
from tfp_bfl.glm.posterior import Posterior
from tfp_bfl.glm.revision import revise_by_sums
from tfp_bfl.glm.sums import Sums
from tfp_bfl.parties.arrays import NO_ANSWER
from tfp_bfl.parties.deployment import keys
from tfp_bfl.parties.deployment.attendance import PARTIES
from tfp_bfl.parties.deployment.channel import Channel
from tfp_bfl.parties.deployment.glm_job import CELLS, GlmJob, Revision, fit_job, make_glm_job, names_of
from tfp_bfl.parties.deployment.glm_sites import NOT_FINITE, Sites, SitesLeft
from tfp_bfl.parties.deployment.job import check_name
from tfp_bfl.parties.deployment.misfits import without_misfits
from tfp_bfl.parties.deployment.site import OFFER
from tfp_bfl.parties.deployment.traffic import TRAFFIC, Counted


def serve_glm(
    options: Mapping[str, Any],
    name: str,
    folder: pathlib.Path,
    channel: Channel,
    quorum: int,
    progress: Reporter,
    *,
    secure_sums: bool = False,
    max_examples: int | None = None,
    without: Sequence[str] = (),
    again: bool = False,
) -> pathlib.Path:
    """Fit a linear model over sites, and return its folder.

    A site that does not answer, or refuses, is named and left out, and the fit begins again without it. Under masks the
    run ends instead once a sum was read: a second sum without the site would reveal its own.

    Args:
      options: of the model (`glm_job.GlmJob`).
      name, folder, channel, quorum, progress, secure_sums, without, again: as of `server.serve`.
      max_examples: None; rows are not weighted.

    Raises:
      InvalidArgument: the options are not valid, or the tables of the sites do not fit each other.
      Error: the sites are fewer than the quorum, or one left a run with masks.
    """
    check_name(name)
    if (folder / "summary.json").exists():
        if again:
            return folder
        raise InvalidArgument(f"The run {name} is complete: give a new run another name.")
    if max_examples is not None:
        raise InvalidArgument("A linear model counts each row once: leave max_examples out.")
    job, channel = make_glm_job(options, secure_sums, without), Counted(channel)
    progress.phase("asking the sites for their columns")
    refused: dict[str, str] = dict.fromkeys(without, "the run was submitted without it")
    asked = [*job.revise.add, *job.revise.remove] if job.revise else channel.names
    sites = Sites(channel, [site for site in asked if site not in refused], job.family, secure_sums)
    how: dict[str, Any] = {"options": dict(options), "secure_sums": secure_sums}
    if job.revise is not None:  # The sums of the earlier fit are no site's business.
        sites.removed = job.revise.remove
        shared = {"clients": job.revise.record.get("clients", [])}
        how["options"]["revise"] = {"record": shared, "add": job.revise.add, "remove": job.revise.remove}
    described, reasons = sites.talk({site: {"step": "describe", **how} for site in sites.asked})
    refused |= reasons
    for site in sorted(described):
        try:
            reserved = (job.columns.column, job.columns.event, job.columns.exposure, *job.drop)
            check_description(site, described[site], [name for name in reserved if name], job.only)
        except InvalidArgument as error:
            refused[site] = str(error)
            del described[site]
    wrong = keys.unusable({site: x.get(OFFER) for site, x in described.items()}) if secure_sums else {}
    refused, described = {**refused, **wrong}, {site: x for site, x in described.items() if site not in wrong}
    folder.mkdir(parents=True, exist_ok=True)
    if job.revise is not None:
        return _revise(sites, folder, name, job, job.revise, described, refused, how, progress)
    while True:
        _check(len(described), quorum, refused, secure_sums)
        least = max(quorum, 2 if secure_sums else 1)
        plan, left = without_misfits(
            described, lambda some: agree(some, job.columns, job.missing, job.date_unit, job.categorical), least
        )
        for site in left:
            progress.phase(f"Without {site}: {left[site]}")
            del described[site]
        refused |= left
        sites = Sites(channel, sorted(described), job.family, secure_sums)
        left = _begin(sites, name, described, plan, how)
        if not left:
            try:
                result, encoding, notes = _fit(sites, job, plan)
                break
            except SitesLeft as error:
                left = error.reasons
                if secure_sums:
                    raise Error(
                        f"Without an answer of every site the masks do not cancel ({_reasons(left)}): submit the run "
                        "again with the same sites when all answer, since a sum without one site reveals its own."
                    ) from None
        for site in left:
            progress.phase(f"Without {site}: {left[site]}")
            del described[site]
        refused |= left
    columns = {"columns": _columns(plan), "events_of": list(plan.events), "encoding": encoding._asdict()}
    columns["options"] = job.model_dump()
    return _finish(sites, folder, name, job, result, notes, described, refused, columns, progress)


def _begin(sites: Sites, name: str, described: Mapping[str, Any], plan: Plan, how: Mapping[str, Any]) -> dict[str, str]:
    """Send the job to all sites, and return the reasons of those that refuse."""
    offers = {site: summary[OFFER] for site, summary in described.items()} if how["secure_sums"] else {}
    job = {**how, "version": bfl.__version__, "sites": len(described), "offers": offers, "events": list(plan.events)}
    job["columns"] = _columns(plan)
    message = {"step": "begin", "run": name, "job": job}
    refused = sites.talk({site: {**message, "number": k} for k, site in enumerate(sorted(described))})[1]
    return keys.false_keys(refused, described) or refused


def _columns(plan: Plan) -> list[Any]:
    return [[column.name, column.kind, list(column.levels)] for column in plan.columns]


def _fit(sites: Sites, job: GlmJob, plan: Plan) -> tuple[Posterior | Hierarchical, Encoding, list[str]]:
    """Return the fit, how rows are encoded, and sentences on the columns.

    Raises:
      SitesLeft: sites did not answer, or refused.
    """
    sites.num_cells = num_sums(plan)
    encoding, notes = settle(plan, job.missing, sites.total(Question(CELLS, np.zeros((1, 0)))))
    _encode(sites, encoding)
    sites.names = names_of(job.family, encoding, plan)
    try:
        return fit_job(job, sites), encoding, notes
    except (Error, ValueError):
        if not sites.not_finite:
            raise
        raise SitesLeft(dict.fromkeys(sites.not_finite, NOT_FINITE)) from None


def _encode(sites: Sites, encoding: Encoding) -> None:
    message = {"step": "encode", **encoding._asdict()}
    refused = sites.talk(dict.fromkeys(sites.asked, message))[1]
    if refused:
        raise SitesLeft(refused)


def _revise(
    sites: Sites,
    folder: pathlib.Path,
    name: str,
    job: GlmJob,
    revision: Revision,
    described: Mapping[str, Any],
    refused: Mapping[str, str],
    how: Mapping[str, Any],
    progress: Reporter,
) -> pathlib.Path:
    """Add the sums of sites that join an earlier fit, and subtract those of sites that leave; no other site computes.

    Raises:
      InvalidArgument: a site has a level that the fit has not, or no coefficients are determined.
      Error: one of these sites does not answer, or refuses.
    """
    record = revision.record
    try:
        posterior = report.from_json(record)
        columns = tuple(Column(str(n), str(kind), tuple(levels)) for n, kind, levels in record["columns"])
        plan = Plan(columns, tuple(record["events_of"]), (), job.date_unit)
        encoding = Encoding(*(tuple(record["encoding"][part]) for part in Encoding._fields))
    except (KeyError, TypeError, ValueError):
        raise InvalidArgument("The record of the fit does not have the form of posterior.json.") from None
    levels = {column.name: {*column.levels} for column in columns if column.levels}
    for site in sites.asked:
        own = {column: {*found} for column, _, found in described.get(site, {}).get("columns", ())}
        unknown = [f"{column}: {x}" for column in levels for x in sorted(own.get(column, set()) - levels[column])]
        if unknown:
            raise InvalidArgument(f"{site} has levels that the fit has not ({', '.join(unknown[:5])}): fit anew.")
    try:
        left = {site: refused.get(site, NO_ANSWER) for site in sites.asked if site not in described}
        left |= _begin(sites, name, described, plan, how) if not left else {}
        if left:
            raise SitesLeft(left)
        _encode(sites, encoding)
        sites.names = posterior.names
        at = np.zeros(len(sites.names)) if posterior.sums_at is None else posterior.sums_at
        change = ask_sums(sites, Question("sums", at))[0]
        if sites.not_finite:
            raise SitesLeft(dict.fromkeys(sites.not_finite, NOT_FINITE))
    except SitesLeft as error:
        raise Error(f"A revision needs an answer of each of its sites ({_reasons(error.reasons)}).") from None
    if not np.all(np.isfinite(change.information)):
        raise InvalidArgument(
            "The sums of the sites that join or leave are too large for secure sums: change units by a power of ten."
        )
    revised = revise_by_sums(posterior, [(change, 1, len(revision.add) - len(revision.remove))])
    _check_resolution(sites, revision, change, posterior, revised.posterior)
    kept = {part: record[part] for part in ("columns", "events_of", "encoding", "options")}
    kept["clients"] = revision.clients
    moved = (
        f"The revised maximum is {revised.moved:.2g} posterior standard deviations from the coefficients of the sums."
    )
    return _finish(sites, folder, name, job, revised.posterior, [moved], described, refused, kept, progress)


def _check_resolution(sites: Sites, revision: Revision, change: Sums, earlier: Posterior, revised: Posterior) -> None:
    """Refuse columns that are too small for the secure sums of sites that join, or that leave.

    Raises:
      InvalidArgument: as of `federation.check_columns`.
    """
    assert earlier.sums is not None and revised.sums is not None
    # Of sites that join and others that leave, only the sums of all sites have a size.
    sums = revised.sums if revision.add and revision.remove else change
    # A column may be 0 in the rows of these sites.
    check_columns(sites, sums, np.diag(earlier.sums.information))


def _finish(
    sites: Sites,
    folder: pathlib.Path,
    name: str,
    job: GlmJob,
    result: Posterior | Hierarchical,
    notes: Sequence[str],
    described: Mapping[str, Any],
    refused: Mapping[str, str],
    columns: Mapping[str, Any],
    progress: Reporter,
) -> pathlib.Path:
    """Send the result to the sites, and write the folder."""
    posterior = report.posterior_of(result)
    shared = {part: x for part, x in report.as_json(result).items() if part not in ("sums", "sums_at")}
    message = {"step": "finish", "run": name, "result": shared}
    sites.talk(dict.fromkeys(sites.asked, message))
    absences = [f"Without {site}: {reason}" for site, reason in sorted(refused.items())]
    warnings = [*absences, *notes, *posterior.warnings]
    if sites.is_secure and len(columns.get("clients", described)) == 2:
        warnings.append("Of two sites, each can compute the sums of the other from the result and its own.")
    of = {"column": job.outcome, "event": job.event, "event_value": job.event_value, "exposure": job.exposure}
    clients = columns.get("clients", sorted(described))
    own = sites.parts if len(sites.parts) == len(clients) else {}  # A revision has those of few sites.
    found = None if isinstance(result, Hierarchical) else report.estimates_by_sums(posterior, own, job.level)
    report.write_folder(folder, result, clients, job.level, warnings, of, found, columns)
    known = {site: {part: x for part, x in summary.items() if part != OFFER} for site, summary in described.items()}
    parties = {**known, **{site: {"refused": reason} for site, reason in refused.items()}}
    write_whole(folder / PARTIES, json.dumps(parties, indent=1) + "\n")
    lines = [
        report.headline(posterior),
        *warnings,
        str(posterior.table(job.level)),
        *report.standard_deviations(result),
    ]
    summary = {
        "family": job.family,
        "rows": posterior.count,
        "messages": posterior.messages,
        "largest_answer_bytes": sites.most_bytes,
        "parties": clients,
        TRAFFIC: sites.traffic,
        "warnings": warnings,
        "lines": lines,
    }
    write_whole(folder / "summary.json", json.dumps(summary, indent=2) + "\n")
    progress.announce(lines[0])
    return folder


def _check(number: int, quorum: int, refused: Mapping[str, str], secure_sums: bool) -> None:
    least = max(quorum, 2 if secure_sums else 1)
    if number < least:
        raise Error(f"{number} sites take part, but the quorum is {least} ({_reasons(refused)}).")


def _reasons(reasons: Mapping[str, str]) -> str:
    return "; ".join(f"{site}: {reason}" for site, reason in sorted(reasons.items())) or "no other site is connected"
