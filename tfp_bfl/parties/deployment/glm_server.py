"""The server of a linear model over sites: it asks for columns and sums, and writes the folder of the fit."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Optional, Union

import numpy as np

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl.app.one_run.progress import Reporter
from tfp_bfl.errors import Error, InvalidArgument
from tfp_bfl.files import write_whole
from tfp_bfl.files.arrays import stored_arrays, to_bytes
from tfp_bfl.glm import report
from tfp_bfl.glm.agreement import Column, Encoding, Plan, agree, check_description, num_sums, settle
from tfp_bfl.glm.federation import Question, answer_length, ask_sums
from tfp_bfl.glm.fit import fit_federation
from tfp_bfl.glm.fixed_point import PARTS, decode
from tfp_bfl.glm.hierarchical import Hierarchical, fit_hierarchical_federation
from tfp_bfl.glm.posterior import Posterior
from tfp_bfl.glm.revise import revise_by_sums
from tfp_bfl.glm.rows import INTERCEPT
from tfp_bfl.glm.sums import Sums
from tfp_bfl.parties.arrays import NO_ANSWER
from tfp_bfl.parties.deployment import keys
from tfp_bfl.parties.deployment.attendance import PARTIES
from tfp_bfl.parties.deployment.channel import MOST_BYTES, SUMS, TALK, Channel, Refusal, Reply
from tfp_bfl.parties.deployment.glm_job import CELLS, TIMES, GlmJob, Revision, make_glm_job, to_arrays
from tfp_bfl.parties.deployment.job import check_name
from tfp_bfl.parties.deployment.site import OFFER

_NOT_FINITE = "its sums are not finite"


class _SitesLeft(Exception):
    """Some sites did not answer a question, or refused it: name -> reason."""

    def __init__(self, reasons: Mapping[str, str]):
        super().__init__()
        self.reasons = dict(reasons)


class _Sites:
    """Sites that answer questions (`glm.federation.Federation`).

    Args:
      channel: to the sites.
      asked: names of the sites.
      family: the name of the outcome's distribution.
      secure_sums: whether their answers are masked, so that only their sum can be read.
    """

    def __init__(self, channel: Channel, asked: Sequence[str], family: str, secure_sums: bool):
        self._family = family
        self._channel, self.asked, self.is_secure = channel, list(asked), secure_sums
        self._step = 0
        self.names: Sequence[str] = ()
        # Of the last sums at coefficients, without masks.
        self.parts: dict[str, Sums] = {}
        self.most_bytes = 0
        # Sites whose sums are subtracted; under masks they do it themselves.
        self.removed: Sequence[str] = ()
        # Numbers of an answer before the columns of the design are known.
        self.num_cells = 0
        # Sites with numbers in their last answer that are not finite.
        self.not_finite: Sequence[str] = ()

    @property
    def num_clients(self) -> int:
        """The number of sites."""
        return len(self.asked)

    def talk(self, messages: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
        """Return the replies of the sites to messages in JSON, and the reasons of those that refuse."""
        replies = dict(self._channel.ask(TALK, {site: json.dumps(what).encode() for site, what in messages.items()}))
        found, reasons = {}, {}
        for site in messages:
            reply = replies.get(site, Refusal(NO_ANSWER))
            try:
                found[site] = json.loads(reply) if isinstance(reply, bytes) else None
            except (ValueError, RecursionError):
                reasons[site] = "its answer is not JSON"
            if isinstance(reply, Refusal):
                del found[site]
                reasons[site] = str(reply)
        return found, reasons

    def total(self, question: Question) -> np.ndarray:
        """Implement `Federation.total`."""
        name, kind = ("masked", np.int64) if self.is_secure else ("sums", np.float64)
        size = len(self.names)
        length = self.num_cells if question.kind == CELLS else answer_length(self._family, question, size)
        parts = self._answers(question, name, kind, (length + 1, PARTS) if self.is_secure else (length,))
        # At coefficients that are too large sums of rows are not finite either.
        self.not_finite = [site for site, part in parts.items() if not np.all(np.isfinite(part))]
        if self.not_finite and question.kind in (CELLS, "first", "columns"):
            raise _SitesLeft(dict.fromkeys(self.not_finite, _NOT_FINITE))
        if question.kind == "sums" and not self.is_secure:
            self.parts = {site: Sums.unpack(part, size) for site, part in parts.items()}
        signs = {site: -1 if site in self.removed and not self.is_secure else 1 for site in parts}
        total: np.ndarray = np.sum(np.stack([signs[site] * part for site, part in parts.items()]), 0, kind)
        return decode(total) if self.is_secure else total

    def event_times(self) -> np.ndarray:
        """Implement `Federation.event_times`."""
        parts = self._answers(Question(TIMES, np.zeros((1, len(self.names)))), "sums", np.float64, (-1,))
        wrong = [site for site, x in parts.items() if not (np.all(np.isfinite(x)) and np.all(np.diff(x) > 0))]
        if wrong:
            raise _SitesLeft(dict.fromkeys(wrong, "its times of events are not finite and ascending"))
        return np.unique(np.concatenate([*parts.values()]))

    def _answers(self, question: Question, name: str, kind: type, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
        """Return the answer of each site, in the order of their names; -1 in a shape stands for any length."""
        content = to_bytes(to_arrays(question, self._step))
        self._step += 1
        reasons, parts = dict.fromkeys(self.asked, NO_ANSWER), {}
        for site, reply in self._channel.ask(SUMS, dict.fromkeys(self.asked, content)):
            try:
                parts[site] = _array(reply, name, kind, shape)
                reasons.pop(site, None)
                self.most_bytes = max(self.most_bytes, len(reply))
            except InvalidArgument as error:
                reasons[site] = str(error)
        if reasons:
            raise _SitesLeft(reasons)
        return dict(sorted(parts.items()))


def _array(reply: Reply, name: str, kind: type, shape: tuple[int, ...]) -> np.ndarray:
    if isinstance(reply, Refusal):
        raise InvalidArgument(str(reply))
    arrays = stored_arrays(reply, "answer", MOST_BYTES)
    is_whole = set(arrays) == {name} and arrays.form(name).dtype == kind
    found = arrays.form(name).shape if is_whole else ()
    if not is_whole or len(found) != len(shape) or any(n not in (m, -1) for m, n in zip(found, shape)):
        raise InvalidArgument("its answer does not have the required form")
    return arrays[name]


def serve_glm(
    options: Mapping[str, Any],
    name: str,
    folder: pathlib.Path,
    channel: Channel,
    quorum: int,
    progress: Reporter,
    *,
    secure_sums: bool = False,
    max_examples: Optional[int] = None,
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
    job = make_glm_job(options, secure_sums, without)
    progress.phase("asking the sites for their columns")
    refused: dict[str, str] = dict.fromkeys(without, "the run was submitted without it")
    asked = [*job.revise.add, *job.revise.remove] if job.revise else channel.names
    sites = _Sites(channel, [site for site in asked if site not in refused], job.family, secure_sums)
    how: dict[str, Any] = {"options": dict(options), "secure_sums": secure_sums}
    if job.revise is not None:  # The sums of the earlier fit are no site's business.
        sites.removed = job.revise.remove
        shared = {"clients": job.revise.record.get("clients", [])}
        how["options"]["revise"] = {"record": shared, "add": job.revise.add, "remove": job.revise.remove}
    described, reasons = sites.talk({site: {"step": "describe", **how} for site in sites.asked})
    refused |= reasons
    for site in sorted(described):
        try:
            reserved = (job.outcome, job.event, job.exposure, *job.drop)
            check_description(site, described[site], [name for name in reserved if name], job.only)
            if secure_sums and not keys.is_offer(described[site].get(OFFER)):
                raise InvalidArgument("It can't mask its answers: its folder startup has no certificate.")
        except InvalidArgument as error:
            refused[site] = str(error)
            del described[site]
    folder.mkdir(parents=True, exist_ok=True)
    if job.revise is not None:
        return _revise(sites, folder, name, job, job.revise, described, refused, how, progress)
    while True:
        _check(len(described), quorum, refused, secure_sums)
        plan = agree(described, job.columns, job.missing)
        sites = _Sites(channel, sorted(described), job.family, secure_sums)
        left = _begin(sites, name, described, plan, how)
        if not left:
            try:
                result, encoding, notes = _fit(sites, job, plan)
                break
            except _SitesLeft as error:
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


def _begin(
    sites: _Sites, name: str, described: Mapping[str, Any], plan: Plan, how: Mapping[str, Any]
) -> dict[str, str]:
    """Send the job to all sites, and return the reasons of those that refuse."""
    offers = {site: summary[OFFER] for site, summary in described.items()} if how["secure_sums"] else {}
    job = {**how, "version": bfl.__version__, "sites": len(described), "offers": offers, "events": list(plan.events)}
    job["columns"] = _columns(plan)
    message = {"step": "begin", "run": name, "job": job}
    refused = sites.talk({site: {**message, "number": k} for k, site in enumerate(sorted(described))})[1]
    # Where most other sites refuse the key of one, that one is left out in their place.
    counts = {site: [*refused.values()].count(keys.not_signed(site)) for site in described}
    false = {site: keys.not_signed(site) for site, count in counts.items() if 2 * count > len(described) - 1}
    return false or refused


def _columns(plan: Plan) -> list[Any]:
    return [[column.name, column.kind, list(column.levels)] for column in plan.columns]


def _fit(sites: _Sites, job: GlmJob, plan: Plan) -> tuple[Union[Posterior, Hierarchical], Encoding, list[str]]:
    """Return the fit, how rows are encoded, and sentences on the columns.

    Raises:
      _SitesLeft: sites did not answer, or refused.
    """
    sites.num_cells = num_sums(plan)
    encoding, notes = settle(plan, job.missing, sites.total(Question(CELLS, np.zeros((1, 0)))))
    _encode(sites, encoding)
    sites.names = [*([INTERCEPT] if job.family != "cox" else []), *encoding.names(plan)]
    options: dict[str, Any] = {
        name: getattr(job, name) for name in ("prior_stddev", "intercept_stddev", "second_order")
    }
    try:
        if job.random:
            return fit_hierarchical_federation(sites, job.family, random=job.random, **options), encoding, notes
        return fit_federation(sites, job.family, stratified=job.stratified, **options), encoding, notes
    except (Error, ValueError):
        if not sites.not_finite:
            raise
        raise _SitesLeft(dict.fromkeys(sites.not_finite, _NOT_FINITE)) from None


def _encode(sites: _Sites, encoding: Encoding) -> None:
    message = {"step": "encode", **encoding._asdict()}
    refused = sites.talk(dict.fromkeys(sites.asked, message))[1]
    if refused:
        raise _SitesLeft(refused)


def _revise(
    sites: _Sites,
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
        plan = Plan(columns, tuple(record["events_of"]))
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
            raise _SitesLeft(left)
        _encode(sites, encoding)
        sites.names = posterior.names
        at = np.zeros(len(sites.names)) if posterior.sums_at is None else posterior.sums_at
        change = ask_sums(sites, Question("sums", at))[0]
        if sites.not_finite:
            raise _SitesLeft(dict.fromkeys(sites.not_finite, _NOT_FINITE))
    except _SitesLeft as error:
        raise Error(f"A revision needs an answer of each of its sites ({_reasons(error.reasons)}).") from None
    revised = revise_by_sums(posterior, [(change, 1, len(revision.add) - len(revision.remove))])
    kept = {part: record[part] for part in ("columns", "events_of", "encoding", "options")}
    kept["clients"] = revision.clients
    moved = (
        f"The revised maximum is {revised.moved:.2g} posterior standard deviations from the coefficients of the sums."
    )
    return _finish(sites, folder, name, job, revised.posterior, [moved], described, refused, kept, progress)


def _finish(
    sites: _Sites,
    folder: pathlib.Path,
    name: str,
    job: GlmJob,
    result: Union[Posterior, Hierarchical],
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
