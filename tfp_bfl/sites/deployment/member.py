"""Rules of a site for each run, of networks and of linear models alike, and the record of what it has answered.

A server that repeats honest fits reads the difference of two sums: the row by which two sets of rows differ. The rows
of linear models are therefore recorded, as bits, in the folder of the run. A run with masks has one job for its name,
one set of sites, and promises. A ledger has the privacy budget that was spent. What the site's file forbids raises
`InvalidArgument`.
"""

import contextlib
import hashlib
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
import pydantic

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl.errors import Error, InvalidArgument
from tfp_bfl.files import write_whole
from tfp_bfl.files.arrays import read_arrays, write_arrays
from tfp_bfl.files.writing import locked
from tfp_bfl.privacy import Steps
from tfp_bfl.sites.arrays import digest_of
from tfp_bfl.sites.deployment import keys
from tfp_bfl.sites.deployment.disclosure import log_refusal
from tfp_bfl.sites.deployment.jobs import check_name
from tfp_bfl.sites.deployment.party_file import PartyFile, secret_of

# Folder of what a site keeps of its runs, each in a folder of its name; of a run's sets of rows.
MEMORY, ROWS = "memory", "rows"
# Files with the digest of the job, and with the sites of a linear model, in the memory of a run with masks.
JOB, MEMBERS = "job", "members.json"
_MOST_BYTES = 2**33
NO_FORM = "The message of the server does not have the required form."
_OTHER_JOB = "It has sent masked messages in another run of the name {}: give this one another name."
Message = TypeVar("Message", bound=pydantic.BaseModel)


def parsed(form: type[Message], content: object) -> Message:
    """Parse a message of the server, as JSON or as its content; the sender need not be trusted."""
    try:
        if isinstance(content, (str, bytes)):
            content = json.loads(content)
        return form.model_validate(content)
    except (RecursionError, ValueError):
        raise InvalidArgument(NO_FORM) from None


class Member:
    """A site, which refuses what its file forbids; its `folder` is `local` of its kit."""

    # A sentence on the answers of this site.
    seen = "The server sees nothing."

    def __init__(self, folder: str | os.PathLike[str]):
        self._folder = pathlib.Path(folder)
        # The folder of the certificates in a kit.
        self._startup = self._folder.parent / "startup"
        self._open = contextlib.ExitStack()

    def reply(self, task: str, content: bytes) -> bytes:
        """Return the answer to a task of the server; a refusal is logged in the folder of the site."""
        try:
            return self._reply(task, content)
        except Error as error:
            log_refusal(self._folder, task, getattr(error, "at_site", error))
            raise

    def _reply(self, task: str, content: bytes) -> bytes:
        raise NotImplementedError

    def _with_offer(self, summary: Mapping[str, Any]) -> dict[str, Any]:
        """Return a description with the site's key offer for masks, if it has a certificate."""
        offer = keys.offer(self._startup, secret_of(self._folder))
        return {**summary, **({keys.OFFER: offer} if offer else {})}

    @staticmethod
    def _check_allowed(file: PartyFile, is_secure: bool, **chosen: str) -> None:
        """Check masks, and the chosen algorithm, model or rule, against the site's file."""
        if file.only_secure_sums and not is_secure:
            raise InvalidArgument("Its file allows only runs with secure sums: submit with --secure-sums.")
        for name, value in chosen.items():
            allowed = getattr(file, f"{name}s")
            if allowed and value not in allowed:
                raise InvalidArgument(f"Its file allows {name} {' or '.join(allowed)}, not {value}.")

    def _check_run(self, file: PartyFile, run: str, version: str, sites: int) -> pathlib.Path:
        """Check a run, of which the server reads sums over `sites` sites, and return the folder of its memory."""
        if version != bfl.__version__:
            raise InvalidArgument(
                f"The server has tfp_bfl {version}, the site {bfl.__version__}: install the same version."
            )
        if sites < file.min_parties:
            raise InvalidArgument(f"Its file allows no run of fewer than {file.min_parties} sites.")
        own = self._folder / MEMORY / check_name(run)
        others = [path for path in (self._folder / MEMORY).glob("*") if path.is_dir() and path != own]
        if len(others) >= file.max_runs:
            raise InvalidArgument(
                f"It has answered in {len(others):,} runs, the most that max_runs of its file allows: each further "
                "run reveals more of its rows."
            )
        return own

    def _keys(
        self, memory: pathlib.Path, number: int, sites: int, offers: Mapping[str, Any] | None
    ) -> dict[int, bytes]:
        """Return the keys of this site with the others, by their numbers; none, of a run without masks (None)."""
        if offers is None:
            if (memory / JOB).exists():
                raise InvalidArgument(_OTHER_JOB.format(memory.name))
            return {}
        names = sorted(offers)
        if not 0 <= number < len(names) == sites:
            raise InvalidArgument(f"Masks require the keys of all {sites} sites, and the server forwards {len(names)}.")
        shared = keys.agree(self._startup, secret_of(self._folder), names[number], offers)
        return {names.index(other): key for other, key in shared.items()}


def check_number(number: int, least: int) -> None:
    """Refuse a run over fewer rows than `least`; the number itself is not sent."""
    if number < least:
        raise InvalidArgument(
            f"It has fewer than {least} rows for this run, the least that min_rows of its file allows: sums of few "
            "rows reveal them."
        )


def digest_of_job(job: Mapping[str, Any]) -> str:
    """Compute the digest of a job without the number of the site: the same at all sites."""
    content = {name: x for name, x in job.items() if name not in ("number", "offers")}
    try:
        content["halves"] = {site: offer["public"] for site, offer in sorted(dict(job.get("offers", {})).items())}
    except (KeyError, TypeError, ValueError):
        raise InvalidArgument("The key offers from the server do not have the required form.") from None
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


class RowSet:
    """The rows of a linear model at a site, beside those of its earlier runs.

    `folder` is that of the site, `run` the name of the run, `job` the digest of its job, `columns` are the names of the
    columns of the model, and `rows` [n] whether each row of the table is in it.
    """

    def __init__(self, folder: pathlib.Path, run: str, job: str, columns: list[str], rows: np.ndarray):
        self._memory, self._path = folder / MEMORY, folder / MEMORY / run / ROWS / f"{job[:32]}.npz"
        self._columns, self._rows = columns, rows

    def check(self, least: int) -> None:
        """Check that the rows are those of each earlier run with a column in common, or differ by `least` at least."""
        for path in sorted(self._memory.glob(f"*/{ROWS}/*.npz")):
            if path == self._path:
                continue
            found = read_arrays(path, "rows of a run", _MOST_BYTES)
            earlier = np.unpackbits(found["rows"], count=int(found["number"])).astype(bool)
            columns = {*found["columns"].tobytes().decode().split("\n")}
            width = max(len(earlier), len(self._rows))
            one, other = (np.pad(x, (0, width - len(x))) for x in (earlier, self._rows))
            if columns & {*self._columns} and 0 < np.count_nonzero(one != other) < least:
                raise InvalidArgument(
                    f"Its rows in this run differ from those in the run {path.parts[-3]} by fewer than {least}, the "
                    "least that min_rows of its file allows: the difference of two sums would reveal these rows. "
                    "Submit with the columns and the outcome of that run, or with --missing indicate if cells of "
                    "columns are empty."
                )

    def record(self) -> None:
        """Record the rows before the first answer."""
        if not self._path.exists():
            self._path.parent.mkdir(parents=True, exist_ok=True)
            columns = np.frombuffer("\n".join(self._columns).encode(), np.uint8)
            arrays = {"rows": np.packbits(self._rows), "number": np.array(len(self._rows)), "columns": columns}
            write_arrays(self._path, arrays)


def bind(folder: pathlib.Path, digest: str) -> contextlib.ExitStack:
    """Bind a run with masks to the digest of its job; the result holds the file open, and locked, until it is closed.

    Another job in the memory `folder` of the run, or another process that takes part in it, is refused.
    """
    with contextlib.ExitStack() as opened:
        try:
            file = opened.enter_context(locked(folder / JOB, wait=False))
        except BlockingIOError:
            raise InvalidArgument("Another process of this site takes part in this run: end that one.") from None
        file.seek(0)
        recorded = file.read()
        if recorded not in ("", digest):
            raise InvalidArgument(_OTHER_JOB.format(folder.name))
        if not recorded:
            file.write(digest)
            file.flush()
            os.fsync(file.fileno())
        return opened.pop_all()


def check_members(folder: pathlib.Path, signs: Mapping[str, int]) -> None:
    """Check that the sum of a linear model and those of earlier ones with masks do not reveal the sums of one site.

    They do if a combination of them is the sum of one site, such as the difference of two sets that differ by one.
    `folder` is the memory of the run, and `signs` are 1, or -1 for a site whose sums are subtracted.
    """
    files = [path for path in sorted(folder.parent.glob(f"*/{MEMBERS}")) if path.parent != folder]
    sets = [*(json.loads(path.read_text(encoding="utf-8")) for path in files), signs]
    names = sorted({site for one in sets for site in one})
    matrix = np.array([[one.get(site, 0) for site in names] for one in sets], np.float64)
    # A site is within the span of the sets if the projection leaves it as it is.
    within = np.diag(np.linalg.pinv(matrix) @ matrix) > 1 - 1e-9
    if np.any(within):
        site = names[int(np.argmax(within))]
        raise InvalidArgument(
            f"With the sums of earlier runs with masks, of other sites, this one would reveal those of {site}: submit "
            "with the same sites as before."
        )


class PromiseFiles:
    """The promises of a site in a run, in a file for each round, written before the answer is sent."""

    suffix = "json"

    def __init__(self, folder: pathlib.Path):
        self._folder = folder

    def _path(self, number: int) -> pathlib.Path:
        return self._folder / f"{number:06d}.{self.suffix}"

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and self._path(number).exists()

    def __getitem__(self, number: int) -> Any:
        return json.loads(self._path(number).read_text(encoding="utf-8"))

    def __setitem__(self, number: int, kept: dict[str, Any]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._write(self._path(number), kept)

    def _write(self, path: pathlib.Path, kept: dict[str, Any]) -> None:
        write_whole(path, json.dumps(kept))


class VersionFiles(PromiseFiles):
    """The memory of a site between rounds, in a file for each of the last rounds in which it took part.

    The server can return to its oldest checkpoint, at most `back` rounds before its state: earlier files are deleted.
    """

    suffix = "npz"

    def __init__(self, folder: pathlib.Path, back: int):
        super().__init__(folder)
        self._back = back

    def __getitem__(self, number: int) -> dict[str, np.ndarray]:
        arrays = read_arrays(self._path(number), "memory", _MOST_BYTES)
        numbers = [int(path.stem) for path in self._folder.glob("*.npz") if path.stem.isdigit()]
        oldest = max((x for x in numbers if x <= number - self._back), default=0)
        for earlier in numbers:
            if earlier < oldest:
                self._path(earlier).unlink(missing_ok=True)
        return arrays

    def _write(self, path: pathlib.Path, kept: dict[str, Any]) -> None:
        write_arrays(path, kept)


class Ledger:
    """Ledger of privacy costs: charges rounds before they are answered, in a file for each run.

    A run is charged for all its rounds when it begins, and only once, even after interruptions. Its name identifies one
    job, and each round one message: a second answer would reveal more than was charged. A lock on the folder
    serialises the processes that read and charge.

    `folder` has the files; `run`, `job` and `rounds` are the name of the run, the digest of its job and the number of
    its rounds; `steps` are the noisy steps of one round; `limit` bounds epsilon over all runs, at `delta`.
    """

    def __init__(self, folder: pathlib.Path, run: str, job: str, steps: Steps, rounds: int, limit: float, delta: float):
        self._folder, self._run, self._job = folder, run, job
        self._steps = steps._replace(number=steps.number * rounds)
        self._rounds = rounds
        with locked(self._folder / ".lock"):
            others = {path.stem: self._read(path) for path in sorted(self._folder.glob("*.json"))}
            recorded = others.pop(self._run, None)
            known = recorded and (Steps(*recorded["told"]), recorded["rounds"], recorded.get("job"))
            if known and known != (self._steps, self._rounds, self._job):
                raise InvalidArgument(f"It has taken part in another run of the name {self._run}: give another name.")
            spent = [Steps(*entry["told"]) for entry in others.values()]
            before = bfl.privacy.composed_epsilon(spent, delta) or 0.0
            after = bfl.privacy.composed_epsilon([*spent, self._steps], delta)
            if after is None or after > limit:
                reached = "without a bound" if after is None else f"{after:.3g}"
                raise InvalidArgument(
                    f"Its file allows epsilon {limit:g} for an example over all runs, which would be {reached} with "
                    f"this one, after {before:.3g}: ask for more noise, fewer rounds, or a smaller batch."
                )
            self._write(recorded["messages"] if recorded else {})

    def charge(self, message: Mapping[str, np.ndarray]) -> None:
        """Record the message of a round of the run before its answer; the round has no other message."""
        number, digest = str(int(np.asarray(message["round"]))), digest_of(message)
        with locked(self._folder / ".lock"):
            # Another process may have answered a round of this run since.
            messages: dict[str, str] = self._read(self._path)["messages"]
            if messages.setdefault(number, digest) != digest:
                raise InvalidArgument(
                    f"It has answered another message of round {int(number) + 1}: a second answer would reveal more of "
                    "its examples than was agreed to."
                )
            self._write(messages)

    @property
    def _path(self) -> pathlib.Path:
        return self._folder / f"{self._run}.json"

    def _write(self, messages: Mapping[str, str]) -> None:
        entry = {"job": self._job, "told": list(self._steps), "rounds": self._rounds, "messages": messages}
        write_whole(self._path, json.dumps(entry))

    @staticmethod
    def _read(path: pathlib.Path) -> dict[str, Any]:
        try:
            entry = json.loads(path.read_text(encoding="utf-8"))
            noise, rate, number = entry["told"]
            is_valid = noise >= 0 and 0 < rate <= 1 and number >= 0 and all(map(str.isdigit, entry["messages"]))
            if is_valid and isinstance(entry["rounds"], int):
                return dict(entry)
        except (OSError, ValueError, KeyError, TypeError):
            pass
        raise InvalidArgument(f"{path.name} of its ledger can't be read: the epsilon that it has spent is unknown.")
