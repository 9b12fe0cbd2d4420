"""The server of a federation of sites: attendance, rounds, scores from sums, and the folder and report of the run."""

from __future__ import annotations

import collections
import functools
import json
import logging
import pathlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl.app.one_run import build, records, trackers
from tfp_bfl.app.one_run.run_folder import owned, recorder
from tfp_bfl.app.options import resolve
from tfp_bfl.app.options.config import RunConfig
from tfp_bfl.app.options.refusals import OF_ONE_PLACE, OF_TABLES
from tfp_bfl.data.agreement import TableOptions
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.evaluation.sums import add_sums, from_sums, is_of_numbers, reliability_of, risk_coverage_of
from tfp_bfl.export.info import with_scores
from tfp_bfl.files import write_whole
from tfp_bfl.files.arrays import stored_arrays, to_bytes, write_arrays
from tfp_bfl.files.tables import to_csv
from tfp_bfl.plots.figures import reliability_bars, risk_coverage
from tfp_bfl.plots.page import About, Section, picture, table
from tfp_bfl.plots.sections import RELIABILITY
from tfp_bfl.plots.tables import DASH, faulty_rounds
from tfp_bfl.sites.arrays import NO_ANSWER
from tfp_bfl.sites.deployment import channel
from tfp_bfl.sites.deployment.attendance import PARTIES, Attendance, SitesLeft, Submission, without_misfits
from tfp_bfl.sites.deployment.glm_server import serve_glm
from tfp_bfl.sites.deployment.jobs import GLM, check_name, from_json, make_job, table_options, to_json
from tfp_bfl.sites.schema import TABLE, notes, parse_options, unseen

logger = logging.getLogger(__name__)

# Consecutive rounds without an answer after which a site is not asked in each round, and the largest number of rounds
# without asking it.
_PATIENCE, _LONGEST_REST = 2, 16

# File with the encoding of the sites' tables, and their classes.
SCHEMA = "schema.json"
# File with the sums of the last scores (`evaluation.score_sums`): over all sites, and of each site under its name.
SCORES = "scores.npz"
_OF_CLASSES = {"test_nll": ("NLL", ".3f"), "ece": ("ECE", ".3f")}
_OF_NUMBERS = {"test_nll": ("NLL", ".3f"), "coverage": ("coverage of 90 % intervals", ".3f")}
_OF_BOTH = {"epistemic": ("epistemic variance", ".2g")}
Sums = Mapping[str, np.ndarray]
Traffic = Mapping[str, Mapping[str, Any]]


def serve(options: Mapping[str, Any], run: Submission) -> pathlib.Path:
    """Run a federation to its end, or resume an interrupted run, and return its folder.

    The folder holds the files of a run (config.yaml, metrics.jsonl, checkpoints/, saved_model/, summary.json) and
    parties.json with the sites and the descriptions of their data. summary.json has the scores of each site, and
    scores.npz the sums behind them. `options` are those of `tfp-bfl run`, except those that describe data; or
    {"glm": options of `GlmJob`}.
    """
    check_name(run.name)
    if (run.folder / "summary.json").exists():
        if run.again:
            return run.folder
        raise InvalidArgument(f"The run {run.name} is complete: give a new run another name.")
    if GLM in options:
        serve_glm(options[GLM], run)
        return run.folder
    expelled = run.expelled
    while True:
        try:
            _serve(options, run, expelled)
            return run.folder
        except SitesLeft as error:
            # No round was done: the run begins again without these sites.
            expelled |= error.reasons
            run.leave(error.reasons)
            for file in (PARTIES, SCHEMA, "config.yaml"):
                (run.folder / file).unlink(missing_ok=True)


def _serve(options: Mapping[str, Any], run: Submission, expelled: Mapping[str, str]) -> None:
    """Run a federation without the expelled sites; raise `SitesLeft` if most refuse the keys of some before round 1."""
    folder, progress, quorum = run.folder, run.progress, run.quorum
    progress.phase("asking the sites for descriptions of their data")
    tables = table_options(options)
    of_tables = {name: list(x) if isinstance(x, tuple) else x for name, x in tables._asdict().items() if x}
    request = {"table": tables._asdict(), "secure_sums": run.secure_sums}
    attendance = Attendance.resumed(folder, expelled) or Attendance.gather(run.channel, expelled, request)
    attendance.check(quorum)
    schema = _agreed(run, attendance, tables)
    attendance.pool_rare(schema)
    names, reported = attendance.names, attendance.counted(run.max_examples)
    config = make_job(options, len(names))
    sizes = np.array([summary["num_examples"] for summary in reported.values()], np.int64)
    parties = bfl.data.Parties(schema, names, sizes)
    sums = largest_weight(config, sizes) if run.secure_sums else None
    trackers.check(config.tracker)
    process = build.process(config, schema, lambda: None, secure_sums=sums)
    config, weights = build.settle(config, schema)
    bfl.federated.check_clients(process, parties)
    privacy = records.privacy(config, {}, [summary["num_examples"] for summary in attendance.reported.values()])
    settled = functools.partial(resolve.resolved, regression=schema.target is not None, weights=weights)
    with owned(folder, config, settled):
        write_whole(folder / SCHEMA, json.dumps({"options": tables._asdict(), **to_json(schema)}, indent=1) + "\n")
        attendance.write(folder)
        job = {"options": {**options, **of_tables}, "parties": len(names), "run": run.name, "schema": to_json(schema)}
        job |= {"version": bfl.__version__, "secure_sums": sums, "max_examples": run.max_examples}
        job |= {"offers": attendance.offers if run.secure_sums else {}}
        jobs = {site: json.dumps({**job, "number": number}).encode() for number, site in enumerate(names)}
        attendance.begin(run.channel, jobs, quorum, (folder / "checkpoints").exists())
        attendance.write(folder)
        doubts = attendance.doubts(run.max_examples)
        with_tables = {site: x[TABLE] for site, x in reported.items() if TABLE in x}
        for warning in [*attendance.absences(), *notes(with_tables, schema), *doubts]:
            progress.phase(warning)
        progress.announce(
            f"{len(names)} sites with {sizes.min():,} to {sizes.max():,} examples; {config.rounds:,} rounds"
        )
        carrier = Carrier(run, attendance, jobs)
        scores = _Scores(carrier, {site: reported[site].get("num_test", 0) for site in names}, schema)
        with (
            trackers.tracking(config, folder) as tracker,
            recorder(folder, config, progress, tracker.round) as on_round,
        ):
            # A site answers each round with masks only once: no round can be repeated.
            every = 1 if run.secure_sums else config.checkpoint_every
            result = bfl.sites.simulate_parties(
                *(process, parties, carrier, config.rounds, quorum),
                make_engine=bfl.sites.SealedEngine if run.secure_sums else bfl.sites.PartyEngine,
                cohorts=bfl.federated.Cohorts(config.cohort_size, max_retries=config.max_retries),
                seed=config.seed,
                checkpoints=bfl.federated.Checkpointing(folder / "checkpoints", every, config.keep_checkpoints),
                monitor=bfl.federated.Monitor(scores.of, config.evaluate_every, on_round=on_round),
            )
            tracker.scores(result.rounds[-1])
        attendance.write(folder)
        of_clients = bfl.evaluation.scores_of_sums(scores.last)
        suspects = [*bfl.evaluation.client_warnings(of_clients), *unseen(names, scores.last)]
        for line in [*suspects, *run.channel.lines()]:
            progress.phase(line)
        warnings = [*attendance.absences(), *doubts, *scores.absences(), *suspects]
        result = result._replace(warnings=[*warnings, *result.warnings])
        stated = resolve.stated(config, weights, resolve.at_last(process.settings, result.rounds)).items()
        recorded = {option: x for option, x in stated if option not in (*OF_ONE_PLACE, *OF_TABLES)}
        recorded |= {name: to_csv([x]).rstrip("\n") if isinstance(x, list) else x for name, x in of_tables.items()}
        write_results(run, recorded, parties, result, scores.last, privacy)


def largest_weight(config: RunConfig, sizes: np.ndarray) -> float:
    """Return the largest weight of a site, by whose steps masked numbers are rounded: 1 where all count alike."""
    alike = config.algorithm == "bayesian_admm" or config.weighting == "equal"
    return 1.0 if alike else float(sizes.max())


def _agreed(run: Submission, attendance: Attendance, tables: TableOptions) -> bfl.data.Schema:
    """Return the schema of a run: that of its beginning, if it resumes; a site that does not fit is absent."""
    path = run.folder / SCHEMA
    # Without the sites that it is of, as when a server ended between both files, it would be of others.
    if not (path.exists() and (run.folder / PARTIES).exists()):
        agree = lambda some: bfl.sites.agree(run.name, some, tables)
        schema, left = without_misfits(attendance.counted(run.max_examples), agree, run.quorum)
        attendance.leave_out(left)
        return schema
    record = json.loads(path.read_text(encoding="utf-8"))
    if parse_options(record["options"]) != tables:
        raise InvalidArgument(
            f"The run {run.name} began with other values of --drop, --only, --categorical or --date-unit: give a new "
            "run another name."
        )
    return from_json(record)


class Carrier:
    """Transport (`sites.Transport`) over a channel: the messages of rounds as bytes.

    A site that was restarted or missed its job gets the job before the next round, and takes part again. All sites
    of a round have one deadline. A site that did not answer in `_PATIENCE` consecutive rounds is not asked in the next
    `_PATIENCE` rounds. Each further round without its answer doubles this number, up to `_LONGEST_REST`. If the quorum
    requires it, the site is asked anyway. Reasons of absence in `attendance` are updated; `silent` are the sites that
    did not answer the last time they were asked.
    """

    def __init__(self, run: Submission, attendance: Attendance, jobs: Mapping[str, bytes]):
        self.run, self._attendance, self._jobs = run, attendance, jobs
        self._names = attendance.names
        self._again: set[str] = set()
        self.silent: set[str] = set()
        # For each site: consecutive rounds without an answer, and remaining rounds without asking it.
        self._misses: collections.Counter[str] = collections.Counter()
        self._rest: collections.Counter[str] = collections.Counter()

    def ask(self, numbers: Sequence[int], message: Mapping[str, np.ndarray]) -> Iterator[tuple[int, Any]]:
        """Implement `sites.Transport.ask`."""
        invited = [self._names[number] for number in numbers]
        resting = [site for site in invited if self._rest[site]]
        if len(invited) - len(resting) < self.run.quorum:
            resting = []
        for site in resting:
            self._rest[site] -= 1
            yield self._names.index(site), f"it has not answered in {self._misses[site]} rounds and was not asked"
        asked = [site for site in invited if site not in resting]
        jobs = {site: self._jobs[site] for site in sorted(self._again.intersection(asked))}
        if jobs:
            begun, refused = channel.collect(self.run.channel, channel.BEGIN, jobs, lambda site, reply: "it takes part")
            refused = {site: why for site, why in refused.items() if why != NO_ANSWER}
            for site, outcome in {**begun, **refused}.items():
                self._again.discard(site)
                logger.warning("%s got the job again: %s", site, outcome)
            self._attendance.refused.update(refused)
        silent = set(asked)
        for site, reply in self.run.channel.ask(channel.ROUND, dict.fromkeys(asked, to_bytes(message))):
            silent.discard(site)
            answer: Any = reply
            if not isinstance(reply, channel.Refusal):
                self._attendance.refused.pop(site, None)
                try:
                    answer = stored_arrays(reply, "answer", channel.MOST_BYTES)
                except InvalidArgument as error:
                    answer = str(error)
            elif reply == channel.NO_RUN:
                self._again.add(site)
            yield self._names.index(site), answer
        for site in sorted(silent - self.silent):
            self.run.progress.note(f"{site} did not answer in time: rounds continue without it until it answers again")
        for site in sorted(self.silent.intersection(asked) - silent):
            self.run.progress.note(f"{site} answers again")
        for site in asked:
            self._misses[site] = self._misses[site] + 1 if site in silent else 0
            beyond = self._misses[site] - _PATIENCE
            self._rest[site] = min(_PATIENCE * 2**beyond, _LONGEST_REST) if beyond >= 0 else 0
        self.silent = silent | self.silent.difference(asked)


class _Scores:
    """Scores of a model on the test data of the sites, from sums. Sites that did not answer the round are not asked.

    `sizes` are the numbers of their test examples; `last` are the sums of each site for the last model.
    """

    def __init__(self, carrier: Carrier, sizes: Mapping[str, int], schema: bfl.data.Schema):
        self._carrier, self._sizes = carrier, sizes
        self._spec = bfl.evaluation.NUMBER_SUMS if schema.target else bfl.evaluation.SUMS
        self._without: list[str] = []
        self.last: dict[str, dict[str, np.ndarray]] = {}

    def absences(self) -> list[str]:
        """Return a sentence with the sites that the last scores leave out; nothing if there are none."""
        if not self._without or not self.last:
            return []
        return [f"The scores are over the test data of {_and([*self.last])}, without those of {_and(self._without)}."]

    def of(self, model: object) -> dict[str, float]:
        """Return the scores over the sites that answered, and their number `num_scored`; nothing if none did."""
        content = to_bytes(bfl.sites.to_arrays(bfl.weights.predictive_weights(model)))

        def read(site: str, reply: bytes) -> dict[str, np.ndarray]:
            sums = bfl.sites.from_arrays(stored_arrays(reply, "answer", channel.MOST_BYTES), self._spec)
            bfl.evaluation.check_sums(sums, self._sizes[site])
            return sums

        asked = [site for site in self._sizes if site not in self._carrier.silent]
        to = self._carrier.run.channel
        self.last, reasons = channel.collect(to, channel.SCORE, dict.fromkeys(asked, content), read)
        for site, reason in reasons.items():
            if reason != NO_ANSWER:
                logger.warning("The scores are without those of %s: %s", site, reason)
        without = [site for site in self._sizes if site not in self.last]
        if without != self._without and self.last:
            change = f", without {_and(without)}" if without else " again"
            self._carrier.run.progress.note(f"the scores are over the test data of {_and([*self.last])}{change}")
        self._without = without
        if not self.last:
            return {}
        scores = from_sums(add_sums(list(self.last.values())))
        return {**scores, "num_scored": len(self.last)}


def _and(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def write_results(
    run: Submission,
    options: dict[str, Any],
    parties: bfl.data.Parties,
    result: bfl.federated.SimulationResult,
    scores: Mapping[str, Any],
    privacy: Mapping[str, float],
) -> None:
    """Write the files of a complete run, summary.json last.

    `result` has all warnings for the summary; `scores` are the sums of each site for the last model; `privacy` has
    epsilon and delta if the run has noise.
    """
    folder, traffic, schema, last = run.folder, run.channel.traffic, parties.source, result.rounds[-1]
    metrics = {name: x for name, x in last.items() if isinstance(x, (int, float)) and not isinstance(x, bool)}
    metrics |= {name: sum(row[name] for row in result.rounds) for name in ("seconds", "train_seconds")}
    metrics |= privacy
    of_clients = bfl.evaluation.scores_of_sums(scores)
    data = {"dataset": schema.name, "num_examples": int(parties.sizes.sum()), "parties": list(parties.names)}
    data |= {"columns": [list(column) for column in schema.columns]} if schema.columns else {}
    data |= {"encoding": [feature._asdict() for feature in schema.encoding]} if schema.encoding else {}
    data |= {"target": list(schema.target)} if schema.target else {}
    info = bfl.export.Info(list(schema.class_names) or None, options, metrics, data)
    shutil.rmtree(folder / "saved_model", ignore_errors=True)  # Of a server that died before the summary.
    bfl.export.save(result.model, folder / "saved_model", with_scores(info, {**metrics, "clients": of_clients}))
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
        about=About(
            data=f"{int(parties.sizes.sum()):,} training examples of {_and(parties.names)}",
            outcome=f"{schema.target.name}, a number" if schema.target else f"classes {', '.join(schema.class_names)}",
            command=run.command,
        ),
    )
    title = f"{folder.name}: {options['model']} of {len(parties.names)} sites, {options['algorithm']}"
    bfl.plots.write_report(folder / "report.html", [page], title=title)
    if scores:
        of_each = {f"{site}/{name}": x for site, sums in scores.items() for name, x in sums.items()}
        write_arrays(folder / SCORES, {**add_sums(list(scores.values())), **of_each})
    summary = {
        **metrics,
        "method": resolve.method(options),
        "parties": {site: from_sums(sums) for site, sums in scores.items()},
        "clients": of_clients,
        channel.TRAFFIC: traffic,
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
    columns, rows, faulty = {**(_OF_NUMBERS if numbers else _OF_CLASSES), **_OF_BOTH}, [], faulty_rounds(rounds)
    for number, (name, sums) in enumerate(of_sites.items()):
        scores = from_sums(sums) if sums is not None else {}
        cells = [f"{sums['count']:.0f}" if sums is not None else DASH]
        cells += [f"{scores[key]:{form}}" if key in scores else DASH for key, (_, form) in columns.items()]
        rows.append((name, [*cells, str(faulty.get(str(number), 0))]))
    head = ["site", "test examples", *(heading for heading, _ in columns.values()), "faulty rounds"]
    tables = [table("Sites", head, rows)]
    if traffic:
        head = ["site", "answers", "kB to the site", "kB from the site", "computation (s)"]
        forms = {"answers": "{}", "sent_bytes": "{:,.0f}", "received_bytes": "{:,.0f}", "seconds": "{:.1f}"}
        scale = lambda key, x: x / 1e3 if key.endswith("bytes") else x
        of_site = lambda own: [form.format(scale(key, own[key])) for key, form in forms.items()]
        tables.append(table("Messages", head, [(name, of_site(own)) for name, own in traffic.items()]))
    how = "Each site on its own test data. A dash: the site shares no scores."
    yield Section("Sites", how, tables=tables, is_wide=True)
