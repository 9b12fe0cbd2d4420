"""The server of a linear model over sites: it asks for columns and sums, and writes the folder of the fit.

A site that does not answer, or refuses, is named and left out, and the fit begins again without it. Under masks the run
ends instead once a sum was read: a second sum without the site would reveal its own.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl.errors import Error, InvalidArgument
from tfp_bfl.files import write_whole
from tfp_bfl.files.arrays import stored_arrays, to_bytes
from tfp_bfl.glm import report
from tfp_bfl.glm.agreement import AgreedColumn, AgreedColumns, Encoding, agree, check_description
from tfp_bfl.glm.checks import apart
from tfp_bfl.glm.design import num_sums, settle
from tfp_bfl.glm.federation import TIMES, Question, answer_length, ask_sums, check_columns
from tfp_bfl.glm.fitting import fit_federation
from tfp_bfl.glm.hierarchical import Hierarchical
from tfp_bfl.glm.outcomes import BESIDE
from tfp_bfl.glm.posterior import Posterior
from tfp_bfl.glm.revision import revise_by_sums
from tfp_bfl.glm.sums import PARTS, Sums, decode
from tfp_bfl.sites.deployment import jobs, keys
from tfp_bfl.sites.deployment.attendance import Attendance, SitesLeft, Submission, without_misfits
from tfp_bfl.sites.deployment.channel import MOST_BYTES, SUMS, TALK, TRAFFIC, collect, read_json
from tfp_bfl.sites.masks import KEY_BYTES

Forms = Mapping[str, tuple[type, tuple[int, ...]]]
# A site whose answers are not finite for more questions in a row leaves: each question after the first halves the step,
# and costs the other sites some of the numbers that they answer.
_MOST_NOT_FINITE = 6
_NOT_FINITE = "its sums are not finite, or the coefficients exceed a bound that its log states"


class Sites:
    """The sites of a run that answer questions (`glm.federation.Federation`); with masks only their sum is read."""

    def __init__(self, run: Submission, job: jobs.GlmJob, attendance: Attendance):
        self.run, self.job, self.attendance, self.asked = run, job, attendance, attendance.names
        self.is_secure, self.num_clients = run.secure_sums, len(self.asked)
        self.step, self.answered, self.most_bytes = 0, jobs.Answered(), 0
        self.names: Sequence[str] = ()
        self.parts: dict[str, Sums] = {}  # Of the last sums at coefficients, without masks.
        self.removed: Sequence[str] = ()  # Sites whose sums are subtracted; under masks they do it themselves.
        self.num_cells = 0  # Numbers of an answer before the columns of the design are known.
        self.not_finite: Sequence[str] = ()  # Sites with numbers in their last answer that are not finite.
        self._in_a_row: dict[str, int] = {}

    def talk(self, messages: Mapping[str, Any]) -> dict[str, str]:
        """Send messages in JSON, and return the reasons of the sites that refuse or do not answer."""
        content = {site: json.dumps(what).encode() for site, what in messages.items()}
        return collect(self.run.channel, TALK, content, lambda site, reply: read_json(reply))[1]

    def begin(self, plan: AgreedColumns, how: Mapping[str, Any]) -> None:
        """Send the job to all sites; raise `SitesLeft` for those that refuse, or whose keys most refuse."""
        offers = self.attendance.offers if self.is_secure else {}
        job = {**how, "version": bfl.__version__, "sites": self.num_clients, "offers": offers}
        job |= {"events": list(plan.events), "columns": _columns(plan)}
        message = {"step": "begin", "run": self.run.name, "job": job}
        if refused := self.talk({site: {**message, "number": k} for k, site in enumerate(self.asked)}):
            raise SitesLeft(keys.false_keys(refused, self.asked) or refused)

    def encode(self, encoding: Encoding, names: Sequence[str]) -> None:
        """Send the encoding of rows, by which the coefficients have these names."""
        if refused := self.talk({site: {"step": "encode", **encoding._asdict()} for site in self.asked}):
            raise SitesLeft(refused)
        self.names = names

    def check_finite(self) -> None:
        """Raise SitesLeft for sites with numbers in their last answer that are not finite."""
        if self.not_finite:
            raise SitesLeft(dict.fromkeys(self.not_finite, _NOT_FINITE))

    def total(self, question: Question) -> np.ndarray:
        """Implement `Federation.total`."""
        size = len(self.names)
        is_first, family = question.kind == jobs.CELLS, self.job.model.family
        length = self.num_cells if is_first else answer_length(family, question, size)
        if self.is_secure:  # Each site receives all masked answers with the next question.
            proofs = np.uint8, (len(self.asked), KEY_BYTES)
            found = self._answers(question, {"masked": (np.int64, (length + 1, PARTS)), "proofs": proofs})
            stacked = {name: np.stack([part[name] for part in found.values()]) for name in ("masked", "proofs")}
            self.answered = jobs.Answered(**stacked)
            return decode(np.sum(stacked["masked"], 0, np.int64))
        parts = self._sums(question, length)
        # At coefficients that are too large sums of rows are not finite either.
        self.not_finite = [site for site, part in parts.items() if not np.all(np.isfinite(part))]
        self._in_a_row = {site: self._in_a_row.get(site, 0) + 1 for site in self.not_finite}
        most = 0 if question.kind in (jobs.CELLS, "first", "columns") else _MOST_NOT_FINITE
        if wrong := [site for site, number in self._in_a_row.items() if number > most]:
            raise SitesLeft(dict.fromkeys(wrong, _NOT_FINITE))
        if question.kind == "sums":
            self.parts = {site: Sums.unpack(part, size) for site, part in parts.items()}
        total: np.ndarray = np.sum([-part if site in self.removed else part for site, part in parts.items()], 0)
        self.answered = jobs.Answered(total)
        return total

    def event_times(self) -> np.ndarray:
        """Implement `Federation.event_times`."""
        parts = self._sums(Question(TIMES, np.zeros((1, len(self.names)))), -1)
        wrong = [site for site, x in parts.items() if not (np.all(np.isfinite(x)) and np.all(np.diff(x) > 0))]
        if wrong:
            raise SitesLeft(dict.fromkeys(wrong, "its times of events are not finite and ascending"))
        times = np.unique(np.concatenate([*parts.values()]))
        self.answered = jobs.Answered(times)
        return times

    def _sums(self, question: Question, length: int) -> dict[str, np.ndarray]:
        answers = self._answers(question, {"sums": (np.float64, (length,))})
        return {site: found["sums"] for site, found in answers.items()}

    def _answers(self, question: Question, forms: Forms) -> dict[str, dict[str, np.ndarray]]:
        """Return the answer of each site; `forms` has the type and shape of each array, -1 for any length."""
        content = to_bytes(jobs.to_arrays(question, self.step, self.answered))
        self.step += 1
        read = lambda site, reply: self._read(reply, forms)
        parts, reasons = collect(self.run.channel, SUMS, dict.fromkeys(self.asked, content), read)
        if reasons:
            raise SitesLeft(reasons)
        return parts

    def _read(self, reply: bytes, forms: Forms) -> dict[str, np.ndarray]:
        arrays = stored_arrays(reply, "answer", MOST_BYTES)
        as_asked = lambda found, shape: len(found) == len(shape) and all(n in (m, -1) for m, n in zip(found, shape))
        fits = lambda form, kind, shape: form.dtype == kind and as_asked(form.shape, shape)
        if set(arrays) != set(forms) or not all(fits(arrays.form(name), *forms[name]) for name in forms):
            raise InvalidArgument("its answer does not have the required form")
        self.most_bytes = max(self.most_bytes, len(reply))
        return {name: arrays[name] for name in forms}


def serve_glm(options: Mapping[str, Any], run: Submission) -> None:
    """Fit a linear model over sites by the options of `jobs.GlmJob`, and write its folder."""
    if run.max_examples is not None:
        raise InvalidArgument("A linear model counts each row once: leave max_examples out.")
    job = jobs.make_glm_job(options, run.secure_sums, run.without)
    run.progress.phase("asking the sites for their columns")
    how: dict[str, Any] = {"options": dict(options), "secure_sums": run.secure_sums}
    asked: list[str] | None = None
    if job.revise is not None:  # The sums of the earlier fit are no site's business.
        asked, shared = [*job.revise.add, *job.revise.remove], {"clients": job.revise.record.get("clients", [])}
        how["options"]["revise"] = {"record": shared, "add": job.revise.add, "remove": job.revise.remove}
    reserved = [*job.columns.reserved, *job.table.drop]
    check = lambda site, summary: check_description(site, summary, reserved, job.table.only)
    attendance = Attendance.gather(run.channel, run.expelled, {"step": "describe", **how}, check, TALK, asked)
    run.folder.mkdir(parents=True, exist_ok=True)
    if job.revise is not None:
        return _revise(run, job, job.revise, attendance, how)
    least = max(run.quorum, 2 if run.secure_sums else 1)
    agreed = lambda some: agree(some, job.columns, job.missing, job.table)
    while True:
        attendance.check(least)
        plan, left = without_misfits(attendance.reported, agreed, least)
        run.leave(left)
        attendance.leave_out(left)
        sites = Sites(run, job, attendance)
        try:
            sites.begin(plan, how)
            result, encoding, notes = _fit(sites, plan)
            break
        except SitesLeft as error:
            if run.secure_sums and sites.step:
                raise Error(
                    f"Without an answer of every site the masks do not cancel ({error}): submit "
                    "the run again with the same sites when all answer, since a sum without one site reveals its own."
                ) from None
            run.leave(error.reasons)
            attendance.leave_out(error.reasons)
    columns = {"columns": _columns(plan), "events_of": list(plan.events), "encoding": encoding._asdict()}
    columns["options"] = job.options
    _finish(sites, result, notes, columns)


def _columns(plan: AgreedColumns) -> list[Any]:
    return [[column.name, column.kind, list(column.levels)] for column in plan.columns]


def _fit(sites: Sites, plan: AgreedColumns) -> tuple[Posterior | Hierarchical, Encoding, list[str]]:
    """Return the fit, how rows are encoded, and sentences on the columns."""
    job = sites.job
    sites.num_cells = num_sums(plan)
    encoding, notes = settle(plan, job.missing, sites.total(Question(jobs.CELLS, np.zeros((1, 0)))))
    sites.encode(encoding, jobs.names_of(job, encoding, plan))
    try:
        return fit_federation(sites, job.model), encoding, notes
    except (Error, ValueError):
        sites.check_finite()
        raise


def _revise(
    run: Submission, job: jobs.GlmJob, revision: jobs.Revision, attendance: Attendance, how: Mapping[str, Any]
) -> None:
    """Add the sums of sites that join an earlier fit, and subtract those of sites that leave; no other computes."""
    record = revision.record
    try:
        posterior = report.from_json(record)
        columns = tuple(AgreedColumn(str(n), str(kind), tuple(levels)) for n, kind, levels in record["columns"])
        plan = AgreedColumns(columns, tuple(record["events_of"]), (), job.table.date_unit)
        encoding = Encoding(*(tuple(record["encoding"][part]) for part in Encoding._fields))
    except (KeyError, TypeError, ValueError):
        raise InvalidArgument("The record of the fit does not have the form of posterior.json.") from None
    levels = {column.name: {*column.levels} for column in columns if column.levels}
    for site, summary in attendance.reported.items():
        own = {column: {*found} for column, _, found in summary["columns"]}
        unknown = [f"{column}: {x}" for column in levels for x in sorted(own.get(column, set()) - levels[column])]
        if unknown:
            raise InvalidArgument(f"{site} has levels that the fit has not ({', '.join(unknown[:5])}): fit anew.")
    sites = Sites(run, job, attendance)
    sites.removed = revision.remove
    try:
        if attendance.refused:
            raise SitesLeft(attendance.refused)
        sites.begin(plan, how)
        sites.encode(encoding, posterior.names)
        at = np.zeros(len(sites.names)) if posterior.sums_at is None else posterior.sums_at
        change = ask_sums(sites, Question("sums", at))[0]
        sites.check_finite()
    except SitesLeft as error:
        raise Error(f"A revision needs an answer of each of its sites ({error}).") from None
    if not np.all(np.isfinite(change.information)):
        raise InvalidArgument(
            "The sums of the sites that join or leave are too large for secure sums: change units by a power of ten."
        )
    revised = revise_by_sums(posterior, [(change, 1, len(revision.add) - len(revision.remove))])
    assert posterior.sums is not None and revised.posterior.sums is not None
    # Of sites that join and others that leave, only the sums of all sites have a size. A column may be 0 in the rows of
    # these sites.
    sums = revised.posterior.sums if revision.add and revision.remove else change
    check_columns(sites, sums, np.diag(posterior.sums.information))
    kept = {part: record[part] for part in ("columns", "events_of", "encoding", "options")}
    kept["clients"] = revision.clients
    moved = (
        f"The revised maximum is {revised.moved:.2g} posterior standard deviations from the coefficients of the sums."
    )
    _finish(sites, revised.posterior, [moved], kept)


def _finish(sites: Sites, result: Posterior | Hierarchical, notes: Sequence[str], columns: Mapping[str, Any]) -> None:
    run, job, attendance, posterior = sites.run, sites.job, sites.attendance, report.posterior_of(result)
    shared = {part: x for part, x in report.as_json(result).items() if part not in ("sums", "sums_at")}
    sites.talk({site: {"step": "finish", "run": run.name, "result": shared} for site in sites.asked})
    clients = columns.get("clients", list(attendance.names))
    own = sites.parts if len(sites.parts) == len(clients) else {}  # A revision has those of few sites.
    warnings = [*attendance.absences(), *notes, *posterior.warnings, *_doubts(own, result)]
    if sites.is_secure and len(clients) == 2:
        warnings.append("Of two sites, each can compute the sums of the other from the result and its own.")
    of = {name: getattr(job, name) for name in ("event_value", *BESIDE)} | {"column": job.outcome}
    found = None if isinstance(result, Hierarchical) else report.estimates_by_sums(posterior, own, job.level)
    fit = run.folder, result, clients, job.level
    about = report.About(f"tables of {len(clients)} sites", command=run.command)
    report.write_folder(*fit, warnings, of, about, found, columns)
    for summary in attendance.reported.values():
        summary.pop(keys.OFFER, None)
    attendance.write(run.folder)
    table = [str(posterior.table(job.level)), *report.standard_deviations(result)]
    lines = [report.headline(posterior), *warnings, *table]
    summary = {"family": job.model.family, "rows": posterior.count, "messages": posterior.messages}
    summary |= {"largest_answer_bytes": sites.most_bytes, "parties": clients, TRAFFIC: run.channel.traffic}
    summary |= {"warnings": warnings, "lines": lines}
    write_whole(run.folder / "summary.json", json.dumps(summary, indent=2) + "\n")
    run.progress.announce(lines[0])


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
