"""A site of a linear model: it describes its columns, and answers questions with sums over its rows, masked or not.

What its file forbids, a table that does not fit the job, questions that are not of the job or would reveal a second
sum, and messages of another form raise `InvalidArgument`.
"""

import hashlib
import hmac
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pydantic

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl.data.names import as_names
from tfp_bfl.data.tables import read_table
from tfp_bfl.errors import InvalidArgument, shown
from tfp_bfl.files import name as path_name
from tfp_bfl.files import write_whole
from tfp_bfl.files.arrays import stored_arrays, to_bytes
from tfp_bfl.glm.agreement import CATEGORY, AgreedColumn, AgreedColumns, Encoding, describe
from tfp_bfl.glm.design import SiteCells, settle
from tfp_bfl.glm.fitting import fit_federation
from tfp_bfl.glm.hierarchical import own_effect
from tfp_bfl.glm.protocol import MOST_QUESTIONS, Answers
from tfp_bfl.glm.rows import Rows
from tfp_bfl.glm.sums import decode, encode
from tfp_bfl.sites.arrays import Arrays, digest_of
from tfp_bfl.sites.deployment import jobs, member
from tfp_bfl.sites.deployment.channel import MOST_BYTES, NO_RUN, TALK, withholding
from tfp_bfl.sites.deployment.disclosure import check_cells, check_share, count_job
from tfp_bfl.sites.deployment.jobs import check_name
from tfp_bfl.sites.deployment.party_file import PartyFile, read_file
from tfp_bfl.sites.masks import KEY_BYTES, Promises, add_masks, context_of, proof_of, table_of

# Folder of the results at a site; file with how many numbers the site has sent in a run without masks.
RESULTS, ANSWERED = "linear_models", "answered.json"
# Digest of the last question, and its answer.
_NOTHING: tuple[str, dict[str, np.ndarray]] = ("", {})
_TABLES = (".csv", ".tsv", ".parquet")


class _Job(pydantic.BaseModel):
    """The job of a run: its options, and the columns (name, kind, levels) and events that all sites agreed on."""

    options: dict[str, Any]
    secure_sums: bool
    version: str
    sites: int
    columns: list[tuple[str, str, tuple[str, ...]]]
    events: tuple[str, ...]
    offers: dict[str, Any]


class GlmSite(member.Member):
    """A site of linear models, which refuses what its file forbids."""

    _cells: SiteCells | None = None
    _rows: Rows | None = None
    _answers: Answers | None = None

    def _reply(self, task: str, content: bytes) -> bytes:
        if task == TALK:
            return self.converse(content)
        return to_bytes(self.sums(stored_arrays(content, "message", MOST_BYTES)))

    def converse(self, content: bytes) -> bytes:
        """Answer a message in JSON: a request to describe the table, a job, an encoding or a result."""
        try:
            message = json.loads(content)
            steps: Any = {"describe": self._describe, "begin": self._begin, "encode": self._encode}
            steps["finish"] = self._finish
            return json.dumps(steps[message.pop("step")](**message)).encode()
        except InvalidArgument:
            raise
        except (LookupError, TypeError, ValueError, AttributeError):
            raise InvalidArgument(member.NO_FORM) from None

    def _describe(self, options: object, secure_sums: bool) -> dict[str, Any]:
        file = read_file(self._folder)
        job = self._allowed(file, options, secure_sums)
        with withholding("table"):
            table, where = self._table(file, job.table.categorical)
        member.check_number(table.num_rows, file.min_rows)
        with withholding("table"):
            summary = {**describe(table, job.columns, where, job.table), "version": bfl.__version__}
        return self._with_offer(summary) if secure_sums else summary

    def _begin(self, run: str, number: int, job: Any) -> dict[str, Any]:
        """Begin a run: the rows of this site follow from the columns that all sites agreed on."""
        self._cells = self._rows = self._answers = None
        self._asked, self._last = 0, _NOTHING
        self._open.close()
        self._is_bound = False
        file, content = read_file(self._folder), member.parsed(_Job, job)
        self._secure_sums, self._sites = content.secure_sums, content.sites
        self._job = self._allowed(file, content.options, self._secure_sums)
        # The least number of sites of which the server reads a sum, and of which the fit is.
        least = content.sites if self._job.revise is None else len(self._job.revise.clients)
        least = min(least, content.sites) if self._secure_sums else least
        self._memory = self._check_run(file, run, content.version, least)
        if self._secure_sums and least < 2:
            raise InvalidArgument("Its sums with masks are of two sites or more.")
        self._run, self._number, self._most = run, int(number), file.max_rounds
        columns = tuple(AgreedColumn(*column) for column in content.columns)
        self._plan = AgreedColumns(columns, content.events, (), self._job.table.date_unit)
        self._digest = member.digest_of_job(job)
        count_job(file, self._folder, self._digest)
        self._masks, offers = bytes.fromhex(self._digest), content.offers if self._secure_sums else None
        self._shared = self._keys(self._memory, self._number, content.sites, offers)
        if self._secure_sums:
            self._signs = jobs.signs_of(content.offers, self._job.revise)
            member.check_members(self._memory, self._signs)
            self._promises = Promises(member.PromiseFiles(self._memory / "promises"))
        with withholding("table"):
            table, where = self._table(file, [x.name for x in columns if x.kind == CATEGORY])
            cells = SiteCells(table, self._job.columns, self._plan, self._job.missing, where)
            if self._secure_sums:  # Zeros of all sites but one would leave the sums of that one in the clear.
                cells.check_presence(of_events=self._job.model.stratified)
        member.check_number(int(cells.chosen.sum()), file.min_rows)
        self._set = member.RowSet(self._folder, self._run, self._digest, self._plan.names, cells.chosen)
        self._set.check(file.min_rows)
        check_cells(file, cells, self._job.missing == "indicate")
        self._cells = cells
        if self._secure_sums:
            self.seen = "The server sees the sums of all sites, and masked numbers of this site."
        elif self._job.model.family == "cox" and not self._job.model.stratified:
            self.seen = "The server sees sums over the rows at risk at each time of an event, which reveal single rows."
        else:
            self.seen = "The server sees the sums over the rows of this site: log likelihood, gradient and information."
        return {}

    def _encode(self, means: Any, indicators: Any, left_out: Any) -> dict[str, Any]:
        """Encode the rows with the means and indicators of all sites."""
        encoding = Encoding(tuple(map(float, means)), tuple(map(str, indicators)), tuple(map(str, left_out)))
        if self._rows is not None:
            raise InvalidArgument("It has encoded its rows in this run: one encoding follows from the sums of columns.")
        model, names = self._job.model, jobs.names_of(self._job, encoding, self._plan)
        check_share(read_file(self._folder), len(names), len(np.unique(self._begun().places)))
        with withholding("table"):
            self._rows = self._begun().rows(encoding)
        fit = None if self._job.revise else lambda earlier: fit_federation(earlier, model)
        most = MOST_QUESTIONS + (2 * len(names) + 1) * model.second_order
        of_run = names, self._sites, self._secure_sums, most
        self._answers, self._encoding = Answers(self._rows, model.family, fit, *of_run), encoding
        path = self._memory / ANSWERED
        if not self._secure_sums and path.exists():
            record = json.loads(path.read_text())
            # Of earlier fits of this run with as few sites. An honest server begins again without a site that left.
            self._answers.numbers = int(record["numbers"]) if self._sites >= record["sites"] else 0
        # Sites with another encoding have no masks in common.
        self._masks = hashlib.sha256(self._digest.encode() + json.dumps(encoding).encode()).digest()
        return {}

    def _finish(self, run: str, result: Any) -> dict[str, Any]:
        """Write the result of a run to the folder of the site, with this site's own effect."""
        if self._rows is not None and "random" in result:
            family, names, random = (result[name] for name in ("family", "names", "random"))
            parameters, mean = np.array(result["parameters"]), np.array(result["mean"])
            effect = own_effect(self._rows, family, names, random, parameters, mean)
            result = {**result, "effect": {name: x.tolist() for name, x in effect._asdict().items()}}
        folder = self._folder / RESULTS
        folder.mkdir(exist_ok=True)
        write_whole(folder / f"{check_name(run)}.json", json.dumps(result, indent=1) + "\n")
        return {}

    def sums(self, message: Arrays) -> dict[str, np.ndarray]:
        """Return the answer to a question: sums over the rows, masked where the job says so."""
        cells = self._begun()
        size = 0 if self._rows is None else self._rows.design.shape[1]
        question, step, answered = jobs.from_arrays(message, self._job, size)
        digest = digest_of(message)
        if digest == self._last[0]:  # The same message again, whose answer was lost.
            return self._last[1]
        if step >= self._most:
            raise InvalidArgument(f"Its file allows at most {self._most} rounds: it answers no further question.")
        if step != self._asked:
            raise InvalidArgument(f"The question has the number {step}, but the next one of this fit is {self._asked}.")
        self._set.record()
        if self._answers is None:
            numbers = cells.sums()
        else:
            total = self._total(answered) if self._secure_sums and step else answered.total
            if step == 1 and self._job.revise is None:  # Of the sums of columns, of this site among others.
                own = cells.sums()
                if len(total) != len(own) or np.any(total[:2] < own[:2]):
                    raise InvalidArgument("The total of the sums of columns can't hold those of this site.")
                if settle(self._plan, self._job.missing, total)[0] != self._encoding:
                    raise InvalidArgument(
                        "The means and indicators for empty cells do not follow from the sums of columns."
                    )
            numbers = self._answers.answer(question, total)
            if not self._secure_sums:  # With masks a promise allows one question for each step.
                self._memory.mkdir(parents=True, exist_ok=True)
                record = {"sites": self._sites, "numbers": self._answers.numbers}
                write_whole(self._memory / ANSWERED, json.dumps(record))
        found = self._masked(message, numbers, step) if self._secure_sums else {"sums": numbers}
        self._asked, self._last = step + 1, (digest, found)
        return found

    def _masked(self, message: Arrays, numbers: np.ndarray, step: int) -> dict[str, np.ndarray]:
        if not self._is_bound:  # Once a masked answer leaves the site.
            self._open = member.bind(self._memory, self._digest)
            member.check_members(self._memory, self._signs)
            write_whole(self._memory / member.MEMBERS, json.dumps(self._signs))
            self._is_bound = True
        sign = self._signs[sorted(self._signs)[self._number]]
        encoded, digest = encode(sign * numbers), bytes.fromhex(digest_of(message))
        self._promises.answer(step, digest, None, hashlib.sha256(encoded.tobytes()).digest())
        self._context = context_of(self._run, self._masks, digest)
        add_masks([encoded], self._shared, self._context, self._number)
        proofs = {other: proof_of(key, self._context, encoded) for other, key in self._shared.items()}
        return {"masked": encoded, "proofs": table_of(proofs, len(self._signs))}

    def _total(self, answered: jobs.Answered) -> np.ndarray:
        """Compute the total of the last question from the masked answers, each of which its site has proved."""
        masked, proofs, own = answered.masked, answered.proofs, self._last[1]["masked"]
        shape = len(self._signs), *own.shape
        is_whole = masked.shape == shape and proofs.shape == (*shape[:1], *shape[:1], KEY_BYTES)
        if not is_whole or not np.array_equal(masked[self._number], own):
            raise InvalidArgument("The masked answers of the last question are not those of all sites of the run.")
        for other, key in self._shared.items():
            expected = proof_of(key, self._context, masked[other])
            if not hmac.compare_digest(expected, proofs[other, self._number].tobytes()):
                raise InvalidArgument(f"The masked answer of {sorted(self._signs)[other]} is not the one that it sent.")
        return decode(np.sum(masked, 0, np.int64))

    def _begun(self) -> SiteCells:
        if self._cells is None:
            raise InvalidArgument(NO_RUN)
        return self._cells

    def _allowed(self, file: PartyFile, options: object, secure_sums: bool) -> jobs.GlmJob:
        self._check_allowed(file, secure_sums, algorithm=jobs.GLM)
        if (file.models or file.rules) and jobs.GLM not in file.algorithms:
            raise InvalidArgument(f"Its file limits models or rules, but its algorithms do not name {jobs.GLM}.")
        if file.max_example_epsilon is not None:
            raise InvalidArgument(
                "Its file allows only runs with differential privacy, which linear models do not have."
            )
        job = jobs.make_glm_job(options, secure_sums)
        if job.model.family == "cox" and not job.model.stratified and not file.allow_single_posteriors:
            raise InvalidArgument(
                "Its file allows only sums, and one baseline hazard requires times of events: submit with --stratified."
            )
        return job

    def _table(self, file: PartyFile, text: Sequence[str]) -> tuple[Any, str]:
        """Return the table of the site's file without the columns that the file drops, and its name.

        The columns of `text` are read as text: levels are as they are written, whatever else the file holds.
        """
        path = pathlib.Path(file.data)
        where = path_name(path)
        if path.suffix.lower() not in _TABLES:
            raise InvalidArgument(f"{where} is no table, but a linear model requires one: {', '.join(_TABLES)}.")
        table = read_table(path, file.separator, text=text)
        drop = as_names(file.drop)
        for unknown in (name for name in drop if name not in table.column_names):
            raise InvalidArgument(f"{where} has no column {shown(unknown)}, which its file drops.")
        return table.select([name for name in table.column_names if name not in drop]), where
