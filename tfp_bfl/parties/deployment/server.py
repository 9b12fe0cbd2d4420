"""The server's side of a federation: who takes part, the rounds, scores from sums, and the run's folder."""

from __future__ import annotations

import collections
import functools
import json
import logging
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable, Optional

import numpy as np

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl.app.one_run import build, records
from tfp_bfl.app.one_run.progress import Reporter
from tfp_bfl.app.one_run.run_folder import owned, recorder
from tfp_bfl.app.options import resolve
from tfp_bfl.app.options.config import OF_ONE_PLACE, RunConfig
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.files import write_whole
from tfp_bfl.files.arrays import stored_arrays, to_bytes, write_arrays
from tfp_bfl.parties.comparison import score_doubts
from tfp_bfl.parties.deployment.attendance import gather
from tfp_bfl.parties.deployment.channel import BEGIN, MOST_BYTES, NO_RUN, ROUND, SCORE, Channel, Refusal, Reply
from tfp_bfl.parties.deployment.job import check_name, make_job, to_json
from tfp_bfl.parties.deployment.site import OFFER

logger = logging.getLogger(__name__)

# Silent rounds in a row after which a party is not waited for in each round, and the most rounds without asking it.
_PATIENCE, _LONGEST_REST = 2, 16

# In a result's folder, why there is no more of it.
FAILURE = "failure.txt"
# The sums from which the last scores are (`evaluation.score_sums`): over all parties, and of each under its name.
SCORES = "scores.npz"
# Where a server keeps runs, from its folder; no job names another.
RUNS = "runs"
# Under which name a server has its lines about a run.
TOLD = "told"


def serve(
    options: Mapping[str, Any],
    name: str,
    folder: pathlib.Path,
    channel: Channel,
    quorum: int,
    tell: Reporter,
    *,
    secure_sums: bool = False,
    max_examples: Optional[int] = None,
    without: Sequence[str] = (),
    again: bool = False,
) -> pathlib.Path:
    """Run a federation to its end, or go on from where it broke off, and return its folder.

    The folder holds what a run's does: config.yaml, metrics.jsonl, checkpoints/, saved_model/, summary.json; and
    parties.json: who takes part, and what their data look like. summary.json has what each scored, scores.npz the sums
    from which that is.

    Args:
      options: of `tfp-bfl run`, but those of data.
      name: of the run; the same name goes on with it.
      folder: new, or of the same run.
      channel: that reaches the sites.
      quorum: the fewest sites that must take part, and give a sound answer in each round.
      tell: what is told of progress.
      secure_sums: sites mask what they send, so that only the sum over those who answer can be read here.
      max_examples: that a site counts as having, whatever it says; None for what it says.
      without: sites that are not asked.
      again: whoever submitted it has not seen how it ended: a run that is complete is returned as it is.

    Raises:
      InvalidArgument: the options are no run's, or the data of the sites do not fit each other.
      Error: fewer sites than the quorum.
    """
    check_name(name)
    if (folder / "summary.json").exists():
        if again:
            return folder
        raise InvalidArgument(f"The run {name} is complete: give another one another name.")
    tell.phase("asking the sites for descriptions of their data")
    there = gather(folder, channel, quorum, without)
    names, reported = there.names, there.counted(max_examples)
    schema = bfl.data.agree(name, reported)
    offers = {party: summary.get(OFFER) for party, summary in reported.items()}
    config = make_job(options, len(names))
    sizes = np.array([summary["num_examples"] for summary in reported.values()], np.int64)
    parties = bfl.data.Parties(schema, names, sizes)
    sums = _largest(offers, sizes) if secure_sums else None
    process = build.process(config, schema, lambda: None, secure_sums=sums)
    config, weights = build.settle(config, schema)
    bfl.federated.check_clients(process, parties)
    hidden = records.privacy(config, {}, [summary["num_examples"] for summary in there.reported.values()])
    settled = functools.partial(resolve.resolved, regression=schema.target is not None, weights=weights)
    with owned(folder, config, settled):
        there.write(folder)
        job = {"options": dict(options), "parties": len(names), "run": name, "schema": to_json(schema)}
        job |= {"version": bfl.__version__, "secure_sums": sums, "offers": offers if secure_sums else {}}
        job |= {"max_examples": max_examples}
        jobs = {party: json.dumps({**job, "number": number}).encode() for number, party in enumerate(names)}
        there.begin(channel, jobs, quorum)
        there.write(folder)
        doubts = there.doubts(max_examples)
        for warning in [*there.absences(), *doubts]:
            tell.phase(warning)
        tell.announce(f"{len(names)} sites with {sizes.min():,} to {sizes.max():,} examples; {config.rounds:,} rounds")
        sums_of = bfl.evaluation.NUMBER_SUMS if schema.target else bfl.evaluation.SUMS
        carrier = _Carrier(channel, names, jobs, there.refused, tell.note, quorum)
        tests = {party: reported[party].get("num_test", 0) for party in names}
        scores = _Scores(channel, tests, sums_of, tell.note, carrier)
        with recorder(folder, config, tell, None) as on_round:
            result = bfl.federated.simulate_parties(
                process,
                parties,
                carrier,
                config.rounds,
                quorum,
                bfl.federated.SealedEngine if secure_sums else bfl.federated.PartyEngine,
                cohort_size=config.cohort_size,
                seed=config.seed,
                checkpoint_dir=folder / "checkpoints",
                evaluate=scores.of,
                evaluate_every=config.evaluate_every,
                on_round=on_round,
                # A party answers a round with masks once: no round is gone back over.
                checkpoint_every=1 if secure_sums else config.checkpoint_every,
                keep_checkpoints=config.keep_checkpoints,
                max_retries=config.max_retries,
            )
        there.write(folder)
        suspects = score_doubts(scores.last)
        for warning in suspects:
            tell.phase(warning)
        warnings = [*there.absences(), *doubts, *scores.absences(), *suspects]
        _write(folder, config, weights, schema, parties, result, scores.last, hidden, warnings)
    return folder


class _Carrier:
    """`federated.Transport` by a channel: rounds' messages as bytes.

    A site that was started anew or did not hear of the run gets its job before the next round, and takes part again.
    All sites of a round have one deadline. A site that was silent in `_PATIENCE` rounds in a row is left out of the
    next rounds without being waited for, first as many as that, and after each further silent round twice as many,
    at most `_LONGEST_REST`. It is asked nonetheless where the quorum needs it.

    Args:
      channel: that reaches the sites.
      names: of the sites, by their numbers.
      jobs: name -> that site's job.
      refused: name -> why that site takes no part, which is kept up to date.
      tell: is given a line when a site does not answer, and when it answers again.
      quorum: the fewest answers of a round.

    Attributes:
      silent: the sites that did not answer when they were last asked.
    """

    def __init__(
        self,
        channel: Channel,
        names: Sequence[str],
        jobs: Mapping[str, bytes],
        refused: dict[str, str],
        tell: Callable[[str], None],
        quorum: int = 1,
    ):
        self._channel, self._names, self._jobs, self._refused, self._tell = channel, names, jobs, refused, tell
        self._quorum = quorum
        self._again: set[str] = set()
        self.silent: set[str] = set()
        # Of a silent party: silent rounds in a row, and rounds for which it is not asked.
        self._misses: collections.Counter[str] = collections.Counter()
        self._rest: collections.Counter[str] = collections.Counter()

    def ask(self, numbers: Sequence[int], message: Mapping[str, np.ndarray]) -> Iterator[tuple[int, Any]]:
        """Implement `federated.Transport.ask`."""
        invited = [self._names[number] for number in numbers]
        resting = self._resting(invited)
        for party in resting:
            yield self._names.index(party), f"it has not answered in {self._misses[party]} rounds and was not asked"
        asked = [party for party in invited if party not in resting]
        self._begin_again([party for party in asked if party in self._again])
        silent = set(asked)
        for party, reply in self._channel.ask(ROUND, dict.fromkeys(asked, to_bytes(message))):
            silent.discard(party)
            if isinstance(reply, Refusal) and reply == NO_RUN:
                self._again.add(party)
            elif not isinstance(reply, Refusal):
                self._refused.pop(party, None)
            yield self._names.index(party), _arrays(reply)
        for party in sorted(silent - self.silent):
            self._tell(f"{party} did not answer in time: rounds go on without it until it answers again")
        for party in sorted(self.silent.intersection(asked) - silent):
            self._tell(f"{party} answers again")
        for party in asked:
            self._misses[party] = self._misses[party] + 1 if party in silent else 0
            beyond = self._misses[party] - _PATIENCE
            self._rest[party] = min(_PATIENCE * 2**beyond, _LONGEST_REST) if beyond >= 0 else 0
        self.silent = silent | self.silent.difference(asked)

    def _resting(self, invited: Sequence[str]) -> list[str]:
        """Return the sites that are left out of this round for their silence."""
        found = [party for party in invited if self._rest[party]]
        if len(invited) - len(found) < self._quorum:
            return []
        for party in found:
            self._rest[party] -= 1
        return found

    def _begin_again(self, parties: Sequence[str]) -> None:
        if not parties:
            return
        for party, reply in self._channel.ask(BEGIN, {party: self._jobs[party] for party in parties}):
            self._again.discard(party)
            if isinstance(reply, Refusal):
                self._refused[party] = str(reply)
            logger.warning(
                "%s was told of the run again: %s", party, str(reply) if isinstance(reply, Refusal) else "it takes part"
            )


class _Scores:
    """Scores of a model on what the sites hold out, from sums. Sites that were silent in the round are not asked.

    Attributes:
      last: site -> its sums, of the last model scored.
    """

    def __init__(
        self,
        channel: Channel,
        sizes: Mapping[str, int],
        spec: Mapping[str, Any],
        tell: Callable[[str], None],
        carrier: _Carrier,
    ):
        self._channel, self._sizes, self._spec, self._tell = channel, sizes, spec, tell
        self._carrier = carrier
        self._without: list[str] = []
        self.last: dict[str, dict[str, np.ndarray]] = {}

    def absences(self) -> list[str]:
        """Return a sentence on whom the last scores leave out; nothing where they are over all."""
        if not self._without or not self.last:
            return []
        return [f"The scores are over the test data of {_and([*self.last])}, without those of {_and(self._without)}."]

    def of(self, model: Any) -> dict[str, float]:
        """Return the scores over all sites that answered, and their number `num_scored`; nothing if none did."""
        content = to_bytes(bfl.federated.to_arrays(bfl.models.predictive_weights(model)))
        answers = {}
        asked = [party for party in self._sizes if party not in self._carrier.silent]
        for party, reply in self._channel.ask(SCORE, dict.fromkeys(asked, content)):
            try:
                arrays = _arrays(reply)
                if isinstance(arrays, str):
                    raise InvalidArgument(arrays)
                sums = bfl.federated.from_arrays(arrays, self._spec)
                bfl.evaluation.check_sums(sums, self._sizes[party])
                answers[party] = sums
            except InvalidArgument as error:
                logger.warning("The scores are without those of %s: %s", party, error)
        self.last = dict(sorted(answers.items()))
        without = [party for party in self._sizes if party not in answers]
        if without != self._without and answers:
            over = f"the test data of {_and([*self.last])}"
            self._tell(f"the scores are over {over}{f', without {_and(without)}' if without else ' again'}")
        self._without = without
        if not answers:
            return {}
        return {**bfl.evaluation.from_sums(bfl.evaluation.add_sums(list(answers.values()))), "num_scored": len(answers)}


def _and(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _arrays(reply: Reply) -> Any:
    if isinstance(reply, Refusal):
        return str(reply)
    try:
        return stored_arrays(reply, "answer", MOST_BYTES)
    except InvalidArgument as error:
        return str(error)


def _largest(offers: Mapping[str, Any], sizes: np.ndarray) -> float:
    """Return the bound of the sites' weights, of whom each must have offered half of a key."""
    without = [party for party, offer in offers.items() if offer is None]
    if without:
        raise InvalidArgument(
            f"{', '.join(without)} can't mask their messages: secure sums require each site's certificate in its "
            "folder startup, as `tfp-bfl deploy init` makes it."
        )
    return float(sizes.max())


def _write(
    folder: pathlib.Path,
    config: RunConfig,
    weights: str,
    schema: bfl.data.Schema,
    parties: bfl.data.Parties,
    result: bfl.federated.SimulationResult,
    scores: Mapping[str, Any],
    hidden: Mapping[str, float],
    warnings: Sequence[str],
) -> None:
    last = result.rounds[-1]
    metrics = {name: x for name, x in last.items() if isinstance(x, (int, float)) and not isinstance(x, bool)}
    metrics |= hidden
    of_parties = {party: bfl.evaluation.from_sums(sums) for party, sums in scores.items()}
    data = {"dataset": schema.name, "num_examples": int(parties.sizes.sum()), "parties": list(parties.names)}
    data.update({"columns": [list(column) for column in schema.columns]} if schema.columns else {})
    data.update({"target": list(schema.target)} if schema.target else {})
    settings = resolve.stated(config, schema.target is not None, weights)
    options = {option: x for option, x in settings.items() if option not in OF_ONE_PLACE}
    info = bfl.export.Info(list(schema.class_names) or None, options, metrics, data)
    bfl.export.save(result.model, folder / "saved_model", info)
    _report(folder, options, metrics, result, schema, {party: scores.get(party) for party in parties.names})
    if scores:
        of_each = {f"{party}/{name}": x for party, sums in scores.items() for name, x in sums.items()}
        write_arrays(folder / SCORES, {**bfl.evaluation.add_sums(list(scores.values())), **of_each})
    summary = {
        **metrics,
        "method": resolve.method(options),
        "parties": of_parties,
        "warnings": [*warnings, *result.warnings],
    }
    write_whole(folder / "summary.json", json.dumps(summary, indent=2) + "\n")


def _report(
    folder: pathlib.Path,
    options: Mapping[str, Any],
    metrics: Mapping[str, Any],
    result: bfl.federated.SimulationResult,
    schema: bfl.data.Schema,
    of_parties: Mapping[str, Any],
) -> None:
    """Return the page about the run, from the rounds and the sites' sums."""
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
        warnings=result.warnings,
        parties=of_parties,
        statement=bfl.export.statement(options),
    )
    bfl.plots.write_report(
        folder / "report.html", [run], title=f"{folder.name}: {options['model']}, {options['algorithm']}"
    )
