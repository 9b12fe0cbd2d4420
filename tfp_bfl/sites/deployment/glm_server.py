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
from tfp_bfl.glm.agreement import AgreedColumn, AgreedColumns, agree, check_description
from tfp_bfl.glm.checks import apart
from tfp_bfl.glm.design import Encoding, num_sums, settle
from tfp_bfl.glm.federation import Question, ask_sums, check_columns
from tfp_bfl.glm.hierarchical import Hierarchical
from tfp_bfl.glm.posterior import Posterior
from tfp_bfl.glm.revision import revise_by_sums
from tfp_bfl.glm.sums import Sums
from tfp_bfl.sites.deployment import keys
from tfp_bfl.sites.deployment.attendance import Attendance, SitesLeft, gather, reasons_of
from tfp_bfl.sites.deployment.channel import TALK, Channel
from tfp_bfl.sites.deployment.glm_job import CELLS, GlmJob, Revision, fit_job, make_glm_job, names_of
from tfp_bfl.sites.deployment.glm_sites import NOT_FINITE, Sites
from tfp_bfl.sites.deployment.job import is_complete
from tfp_bfl.sites.deployment.misfits import without_misfits
from tfp_bfl.sites.deployment.traffic import TRAFFIC, Counted


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
    if is_complete(folder, name, again):
        return folder
    if max_examples is not None:
        raise InvalidArgument("A linear model counts each row once: leave max_examples out.")
    job, channel = make_glm_job(options, secure_sums, without), Counted(channel)
    progress.phase("asking the sites for their columns")
    how: dict[str, Any] = {"options": dict(options), "secure_sums": secure_sums}
    asked: list[str] | None = None
    if job.revise is not None:  # The sums of the earlier fit are no site's business.
        asked, shared = [*job.revise.add, *job.revise.remove], {"clients": job.revise.record.get("clients", [])}
        how["options"]["revise"] = {"record": shared, "add": job.revise.add, "remove": job.revise.remove}
    reserved = [name for name in (job.columns.column, job.columns.event, job.columns.exposure, *job.drop) if name]
    check = lambda site, summary: check_description(site, summary, reserved, job.only)
    expelled = dict.fromkeys(without, "the run was submitted without it")
    attendance = gather(channel, expelled, {"step": "describe", **how}, check, TALK, asked)
    folder.mkdir(parents=True, exist_ok=True)
    if job.revise is not None:
        return _revise(channel, folder, name, job, job.revise, attendance, how, progress)
    least = max(quorum, 2 if secure_sums else 1)
    while True:
        attendance.check(least)
        plan, left = without_misfits(
            attendance.reported,
            lambda some: agree(some, job.columns, job.missing, job.date_unit, job.categorical),
            least,
        )
        _leave_out(attendance, left, progress)
        sites = Sites(channel, attendance.names, job.family, secure_sums)
        try:
            _begin(sites, name, attendance, plan, how)
            result, encoding, notes = _fit(sites, job, plan)
            break
        except SitesLeft as error:
            if secure_sums and sites.step:
                raise Error(
                    f"Without an answer of every site the masks do not cancel ({reasons_of(error.reasons)}): submit "
                    "the run again with the same sites when all answer, since a sum without one site reveals its own."
                ) from None
            _leave_out(attendance, error.reasons, progress)
    columns = {"columns": _columns(plan), "events_of": list(plan.events), "encoding": encoding._asdict()}
    columns["options"] = job.model_dump()
    return _finish(sites, folder, name, job, result, notes, attendance, columns, progress)


def _leave_out(attendance: Attendance, reasons: Mapping[str, str], progress: Reporter) -> None:
    for site, reason in reasons.items():
        progress.phase(f"Without {site}: {reason}")
    attendance.leave_out(reasons)


def _begin(sites: Sites, name: str, attendance: Attendance, plan: AgreedColumns, how: Mapping[str, Any]) -> None:
    """Send the job to all sites.

    Raises:
      SitesLeft: sites refuse, or most refuse the keys of some.
    """
    offers = attendance.offers if how["secure_sums"] else {}
    job = {**how, "version": bfl.__version__, "sites": len(sites.asked), "offers": offers, "events": list(plan.events)}
    job["columns"] = _columns(plan)
    message = {"step": "begin", "run": name, "job": job}
    refused = sites.talk({site: {**message, "number": k} for k, site in enumerate(attendance.names)})[1]
    if refused:
        raise SitesLeft(keys.false_keys(refused, attendance.names) or refused)


def _columns(plan: AgreedColumns) -> list[Any]:
    return [[column.name, column.kind, list(column.levels)] for column in plan.columns]


def _fit(sites: Sites, job: GlmJob, plan: AgreedColumns) -> tuple[Posterior | Hierarchical, Encoding, list[str]]:
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
    channel: Counted,
    folder: pathlib.Path,
    name: str,
    job: GlmJob,
    revision: Revision,
    attendance: Attendance,
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
        columns = tuple(AgreedColumn(str(n), str(kind), tuple(levels)) for n, kind, levels in record["columns"])
        plan = AgreedColumns(columns, tuple(record["events_of"]), (), job.date_unit)
        encoding = Encoding(*(tuple(record["encoding"][part]) for part in Encoding._fields))
    except (KeyError, TypeError, ValueError):
        raise InvalidArgument("The record of the fit does not have the form of posterior.json.") from None
    levels = {column.name: {*column.levels} for column in columns if column.levels}
    for site, summary in attendance.reported.items():
        own = {column: {*found} for column, _, found in summary["columns"]}
        unknown = [f"{column}: {x}" for column in levels for x in sorted(own.get(column, set()) - levels[column])]
        if unknown:
            raise InvalidArgument(f"{site} has levels that the fit has not ({', '.join(unknown[:5])}): fit anew.")
    sites = Sites(channel, attendance.names, job.family, how["secure_sums"])
    sites.removed = revision.remove
    try:
        if attendance.refused:
            raise SitesLeft(attendance.refused)
        _begin(sites, name, attendance, plan, how)
        _encode(sites, encoding)
        sites.names = posterior.names
        at = np.zeros(len(sites.names)) if posterior.sums_at is None else posterior.sums_at
        change = ask_sums(sites, Question("sums", at))[0]
        if sites.not_finite:
            raise SitesLeft(dict.fromkeys(sites.not_finite, NOT_FINITE))
    except SitesLeft as error:
        raise Error(f"A revision needs an answer of each of its sites ({reasons_of(error.reasons)}).") from None
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
    return _finish(sites, folder, name, job, revised.posterior, [moved], attendance, kept, progress)


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
    attendance: Attendance,
    columns: Mapping[str, Any],
    progress: Reporter,
) -> pathlib.Path:
    """Send the result to the sites, and write the folder."""
    posterior = report.posterior_of(result)
    shared = {part: x for part, x in report.as_json(result).items() if part not in ("sums", "sums_at")}
    message = {"step": "finish", "run": name, "result": shared}
    sites.talk(dict.fromkeys(sites.asked, message))
    clients = columns.get("clients", list(attendance.names))
    own = sites.parts if len(sites.parts) == len(clients) else {}  # A revision has those of few sites.
    warnings = [*attendance.absences(), *notes, *posterior.warnings, *_doubts(own, result)]
    if sites.is_secure and len(clients) == 2:
        warnings.append("Of two sites, each can compute the sums of the other from the result and its own.")
    of = {"column": job.outcome, "event": job.event, "event_value": job.event_value, "exposure": job.exposure}
    found = None if isinstance(result, Hierarchical) else report.estimates_by_sums(posterior, own, job.level)
    report.write_folder(folder, result, clients, job.level, warnings, of, found, columns)
    for summary in attendance.reported.values():
        summary.pop(keys.OFFER, None)
    attendance.write(folder)
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


def _doubts(parts: Mapping[str, Sums], result: Posterior | Hierarchical) -> list[str]:
    """Return a warning on a site whose coefficients stand apart from those of all others, which agree."""
    if isinstance(result, Hierarchical) or result.sums is None:
        return []
    ratio = result.sums.pearson[0] / max(result.count - len(result.names), 1)
    return [
        f"{site}'s coefficients differ from those of the other sites by more than chance (p = {p:.1g}), and the others "
        "agree: are its columns in other units, its outcomes swapped, its patients others, or its sums false? "
        f"--without {site} leaves it out."
        for site, p in apart(parts, max(result.dispersion, float(ratio))).items()
    ]
