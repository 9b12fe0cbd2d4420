"""A site of a federation: its configuration file, and its answers to the requests of the server.

What its file forbids, and messages of another form, raise `InvalidArgument`; data that can't be read `Withheld`.
"""

from __future__ import annotations

import json
import os
from typing import Annotated, Any

import numpy as np
import pydantic

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl.app.one_run import build
from tfp_bfl.app.one_run.records import passes_of
from tfp_bfl.app.options.config import RunConfig
from tfp_bfl.data.agreement import NO_OPTIONS, TableOptions
from tfp_bfl.data.cells import TEXT_KINDS
from tfp_bfl.errors import InvalidArgument, shown
from tfp_bfl.files import write_whole
from tfp_bfl.files.arrays import stored_arrays, to_bytes
from tfp_bfl.sites.arrays import Arrays
from tfp_bfl.sites.bounds import SentWeights
from tfp_bfl.sites.deployment import member
from tfp_bfl.sites.deployment.channel import BEGIN, DESCRIBE, MOST_BYTES, NO_RUN, ROUND, SCORE, Withheld, withholding
from tfp_bfl.sites.deployment.disclosure import count_job
from tfp_bfl.sites.deployment.jobs import from_json, make_job, table_options
from tfp_bfl.sites.deployment.party_file import FILE, read_file, secret_of
from tfp_bfl.sites.schema import TABLE, parse_options, rare_classes

# Folder of the encodings of the runs.
ENCODINGS = "encodings"


class _Request(pydantic.BaseModel):
    """A request for a description: options of tables, and whether the run has masks."""

    table: dict[str, Any]
    secure_sums: bool


class _Job(pydantic.BaseModel):
    """The job of a run: options of the run, number of the site and of all sites, and the largest weight under masks."""

    options: dict[str, Any]
    number: int
    parties: int
    run: str
    version: str
    content: Any = pydantic.Field(alias="schema")
    secure_sums: Annotated[float, pydantic.Field(gt=0, allow_inf_nan=False, strict=True)] | None = None
    offers: dict[str, Any] = {}
    max_examples: int | None = None


class Site(member.Member):
    """A site that answers the requests of a server, and refuses what its file forbids."""

    def __init__(self, folder: str | os.PathLike[str]):
        """Read the file of a site's folder; the data are read when a run needs them."""
        super().__init__(folder)
        self._file = read_file(folder)
        if self._file.max_example_epsilon is not None:
            bfl.privacy.composed_epsilon([], self._file.delta)  # Raises MissingDependency.
        self._read: tuple[TableOptions | None, bfl.data.PartData | None] = None, None
        self._party: bfl.sites.Party | None = None
        self._why_not = NO_RUN
        self._ledger: member.Ledger | None = None

    def _reply(self, task: str, content: bytes) -> bytes:
        if task == DESCRIBE:
            return self.describe(content.decode()).encode()
        if task == BEGIN:
            self.begin(content.decode())
            return b""
        return to_bytes({ROUND: self.answer, SCORE: self.score}[task](stored_arrays(content, "message", MOST_BYTES)))

    def data(self, options: TableOptions = NO_OPTIONS) -> bfl.data.PartData:
        """Return the site's data, a table read by the options of a run."""
        if self._read[0] != options or self._read[1] is None:
            file, how = self._file, options._asdict()
            how |= {"left_out": how.pop("drop"), "drop": file.drop, "separator": file.separator}
            with withholding("data"):
                self._read = options, bfl.data.read_part(file.data, file.label, file.test_data, file.task, **how)
        assert self._read[1] is not None
        return self._read[1]

    def describe(self, request: str = "") -> str:
        """Return the description of the data as JSON, without examples, and the site's key offer for masks."""
        options, is_secure = NO_OPTIONS, self._file.only_secure_sums
        if request:
            asked = member.parsed(_Request, request)
            self._check_allowed(self._file, asked.secure_sums)
            options, is_secure = parse_options(asked.table), asked.secure_sums
        data = self.data(options)
        member.check_number(data.train.num_examples, self._file.min_rows)
        cells = data.train.features.columns if is_secure and isinstance(data.train, bfl.data.Part) else ()
        if texts := [shown(x.name) for x in cells if x.kind in TEXT_KINDS]:
            few = f"{', '.join(texts[:5])}{' and others' if len(texts) > 5 else ''}"
            raise InvalidArgument(
                f"With secure sums it describes no categories ({few}): which categories all sites have is no sum, so "
                "that the server would read those of each site with their counts. Leave these columns out with --drop, "
                "or give them as columns of 0 and 1."
            )
        described = bfl.sites.describe(data.train, options, self._file.max_categories)
        return json.dumps(self._with_offer({**described, "num_test": data.test.num_examples}))

    def begin(self, message: str) -> None:
        """Begin a run with the job of the server: options, schema, name, and the number of the site."""
        self._party = None
        try:
            self._party = self._begin(message)
        except InvalidArgument as error:
            self._why_not = str(error)
            raise

    def _begin(self, message: str) -> bfl.sites.Party:
        job = member.parsed(_Job, message)
        config, sums, run = make_job(job.options, job.parties), job.secure_sums, job.run
        memory = self._check_run(self._file, run, job.version, job.parties)
        self._check(config, sums)
        digest, self._ledger = member.digest_of_job(json.loads(message)), None
        count_job(self._file, self._folder, digest)
        schema = from_json(job.content)
        self._config = config
        data = self.data(table_options(job.options))
        member.check_number(data.train.num_examples, self._file.min_rows)
        with withholding("data"):
            self._source, self._held = bfl.sites.fitted(data.train, schema), bfl.sites.fitted(data.test, schema)
        if schema.columns:
            (self._folder / ENCODINGS).mkdir(exist_ok=True)
            write_whole(self._folder / ENCODINGS / f"{run}.json", json.dumps(job.content, indent=1) + "\n")
        self._process = build.process(config, schema, lambda: None, secure_sums=sums)
        self.seen = self._check_rule(sums)
        # A server that resumes from a checkpoint requires the memory of the rounds since that checkpoint.
        back = config.checkpoint_every * config.keep_checkpoints
        shared = self._keys(memory, job.number, job.parties, None if sums is None else job.offers)
        steps = SentWeights(self._process, member.VersionFiles(memory / "weights", back), job.parties)
        # After the checks, which cost nothing, and before the name is bound to the job.
        if (limit := self._file.max_example_epsilon) is not None:
            number = data.train.num_examples
            steps_of_round = bfl.privacy.example_steps(config.example_noise, number, *passes_of(config, number))
            of_run = run, digest, steps_of_round, config.rounds
            self._ledger = member.Ledger(self._folder / "ledger", *of_run, limit, self._file.delta)
        charge = None if self._ledger is None else self._ledger.charge
        own = self._process, self._source, job.number, secret_of(self._folder), run
        arguments = *own, member.VersionFiles(memory, back), charge, job.max_examples
        fields: dict[str, Any] = {"rounds": config.rounds, "job": bytes.fromhex(digest), "steps": steps}
        if sums is None:
            return bfl.sites.Party(*arguments, **fields)
        self._open.close()
        self._open = member.bind(memory, digest)
        fields |= {"keys": shared, "promises": member.PromiseFiles(memory / "promises")}
        return bfl.sites.SealedParty(*arguments, min_parties=max(2, self._file.min_parties), **fields)

    def answer(self, message: Arrays) -> dict[str, np.ndarray]:
        """Return the result of the site's work in a round, or proofs or seeds of masks (`sites.SealedParty`)."""
        return self._begun().answer(message)

    def score(self, weights: Arrays) -> dict[str, np.ndarray]:
        """Return sums of a model's scores on the site's test data (`evaluation.score_sums`)."""
        self._begun()
        if not self._file.share_scores or self._ledger:
            raise InvalidArgument("It does not share scores.")
        model = self._process.model_fn()
        loaded = bfl.sites.from_arrays(weights, bfl.weights.predictive_spec(model, weights))
        model = bfl.weights.predictive_model(model, loaded)
        config, data = self._config, (model, self._held.features, self._held.labels)
        drawn: dict[str, Any] = {"num_samples": config.num_samples, "seed": config.seed}
        drawn["precision"] = config.evaluation_precision
        if (target := self._held.target) is not None:
            loaded = bfl.evaluation.evaluate_regression(*data, **drawn, scale=target.scale, shift=target.mean)
            truth = target.mean + target.scale * np.asarray(self._held.labels, np.float64)
            return bfl.evaluation.number_sums(loaded, truth)
        return bfl.evaluation.score_sums(bfl.evaluation.evaluate(*data, **drawn), self._held.labels)

    def _begun(self) -> bfl.sites.Party:
        if self._party is None:
            raise InvalidArgument(self._why_not)
        return self._party

    def _check_rule(self, sums: object) -> str:
        name = str(self._process.description["rule"])
        # Quantisation and clipping are compatible with sums.
        plain = name.removeprefix("quantised ").removeprefix("clipped ")
        self._check_allowed(self._file, sums is not None, rule=plain)
        is_sum = self._process.is_sum or sums is not None  # Masks leave the server nothing but sums.
        if not is_sum and not self._file.allow_single_posteriors:
            raise InvalidArgument(
                f"Its file allows only rules that use only the sum of the sites' messages, and {plain} uses each "
                "message separately."
            )
        if sums is not None:
            return (
                f"The server sees the sum of the sites' messages for the rule {plain}, and masked numbers of this site."
            )
        use = "adds it to the other messages" if self._process.is_sum else "uses it separately"
        return f"The server sees each message of this site. The rule {plain} {use}."

    def _check(self, config: RunConfig, sums: object) -> None:
        self._check_allowed(self._file, sums is not None, algorithm=config.algorithm, model=config.model)
        if self._file.max_example_epsilon is not None and not (config.example_clip_norm and config.example_noise):
            raise InvalidArgument(
                "Its file allows only runs with differential privacy of examples: submit with --example-clip-norm and "
                "--example-noise."
            )
        if config.rounds > self._file.max_rounds:
            raise InvalidArgument(f"Its file allows at most {self._file.max_rounds} rounds, not {config.rounds}.")


def check(folder: str | os.PathLike[str], options: TableOptions = NO_OPTIONS) -> str:
    """Check a site's file and data; return a sentence on them, and below it the description that a server receives."""
    site = Site(folder)
    request = {"table": options._asdict(), "secure_sums": site._file.only_secure_sums}
    try:
        data, summary = site.data(options), json.loads(site.describe(json.dumps(request)))
    except Withheld as error:
        raise InvalidArgument(error.at_site) from None
    classes, table = summary["class_names"], summary.get(TABLE)
    kinds = f"{len(classes)} classes" if classes else f"the target {shown(summary['target'][0])}"
    notes = "".join(f"{note}\n" for note in data.notes)
    shape = summary["element_shape"] if table is None else f"{len(table)} columns"
    return (
        f"{summary['num_examples']:,} training examples ({shape}), {kinds}, according to {FILE}.\n"
        f"{notes}{rare_classes(data.train)}"
        "When a run begins, a server that requests a description of the data receives this, and nothing else:\n"
        f"{json.dumps(summary, indent=1, ensure_ascii=False)}"
    )
