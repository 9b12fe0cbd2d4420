"""Jobs that a server sends to its sites, as JSON without code: of networks with the schema of the data, and of linear
models with the form of questions and answers.

What is not valid raises `InvalidArgument`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pydantic

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl.app.options import own_model
from tfp_bfl.app.options.config import RunConfig, make_config, names_in
from tfp_bfl.app.options.refusals import OF_ONE_PLACE, OF_TABLES
from tfp_bfl.data.agreement import TableOptions
from tfp_bfl.data.encoding import parse_features
from tfp_bfl.data.names import as_names
from tfp_bfl.errors import InvalidArgument, check_number, lookup, shown
from tfp_bfl.glm.agreement import MISSING, AgreedColumns, Encoding
from tfp_bfl.glm.command import DEFAULTS
from tfp_bfl.glm.families import FAMILIES
from tfp_bfl.glm.federation import TIMES, Question
from tfp_bfl.glm.outcomes import BESIDE, Outcome
from tfp_bfl.glm.posterior import Model
from tfp_bfl.glm.rows import INTERCEPT
from tfp_bfl.glm.sums import PARTS
from tfp_bfl.sites.arrays import Arrays
from tfp_bfl.sites.masks import KEY_BYTES
from tfp_bfl.sites.schema import parse_options

_RUN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
# Algorithm -> what its server needs.
_NEEDS_DATA = {
    "fed_be": "requires unlabelled examples",
    "fsgld": "fits a Gaussian to the data of each client before the first round",
}
# Key of the options of a linear model; the name by which party.yaml allows it among the algorithms.
GLM = "glm"
# Kind of the question for sums of `encoding.SiteCells`, beside those of `glm.federation`.
CELLS = "cells"
# Options of a fit that jobs have.
_OF_FIT = tuple(x for x in Model._fields if x not in ("dispersion", "between_stddev", "restricted", "robust"))
_MOST_POINTS = 100  # Of one question.


def check_name(name: str) -> str:
    """Check the name of a run, which also names folders, and return it."""
    if not _RUN_NAME.fullmatch(name):
        raise InvalidArgument(f"The run's name is {shown(name)}, but must be letters, digits, and - _ . between them.")
    return name


def make_job(options: Mapping[str, Any], number: int) -> RunConfig:
    """Return the configuration of a run over `number` sites, without options of one place and without code."""
    for name in (name for name in options if name in OF_ONE_PLACE):
        raise InvalidArgument(
            f"{name} is of runs with all data in one place, but each site has its own and answers for itself: leave it "
            "out."
        )
    for name in own_model.OPTIONS:
        if own_model.names_code(options.get(name)):
            raise InvalidArgument(
                f"{name} is {shown(options[name])}, but sites run no code from messages: use one of this library."
            )
    table_options(options)
    rest = {name: x for name, x in options.items() if name not in OF_TABLES}
    config = make_config(None, {**rest, "clients": number, "partition": "iid"})
    if reason := _NEEDS_DATA.get(config.algorithm):
        raise InvalidArgument(f"{config.algorithm} {reason}, and the server of sites has none: use another algorithm.")
    if options.get("potential_curvature") is not None:
        raise InvalidArgument(
            "potential_curvature compares the step size with the clients' data, and sites do not send data: leave it "
            "out, and compare with chains.step_size.largest_step_size."
        )
    return config


def table_options(options: Mapping[str, Any]) -> TableOptions:
    """Return how all sites of a run read their tables; in its options columns may be text separated by commas."""
    given = {name: options[name] for name in OF_TABLES if options.get(name) is not None}
    listed = {name: names_in(x) if isinstance(x, str) and name != "date_unit" else x for name, x in given.items()}
    return parse_options(listed)


def to_json(schema: bfl.data.Schema) -> dict[str, Any]:
    """Return a schema as JSON."""
    content = dataclasses.asdict(schema)
    content |= {"columns": [list(c) for c in schema.columns], "target": schema.target and list(schema.target)}
    return {**content, "encoding": [feature._asdict() for feature in schema.encoding]}


def from_json(content: Any) -> bfl.data.Schema:
    """Return the schema that `to_json` wrote; the sender need not be trusted."""
    try:
        columns = tuple(bfl.data.Column(str(n), float(m), float(s)) for n, m, s in content["columns"])
        target = content["target"] and bfl.data.Column(*content["target"])
        shape, names = tuple(map(int, content["element_shape"])), tuple(map(str, content["class_names"]))
        encoding = parse_features(content.get("encoding", []))
        if encoding and [c.name for c in columns] != [name for feature in encoding for name in feature.columns]:
            raise ValueError(encoding)
        return bfl.data.Schema(str(content["name"]), shape, bool(content["is_image"]), names, columns, target, encoding)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise InvalidArgument("The schema from the server does not have the required form.") from None


class Revision(pydantic.BaseModel):
    """Names of sites that join an earlier fit, and leave it, by the content of its posterior.json."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    record: dict[str, Any]
    add: list[str] = []
    remove: list[str] = []

    @property
    def clients(self) -> list[str]:
        """The names of the sites of the revised fit."""
        return sorted({*map(str, self.record.get("clients", [])), *self.add} - {*self.remove})


class GlmJob(pydantic.BaseModel):
    """The options of a linear model over sites, as of `tfp-bfl glm`; of the fit in `model`, of reading in `table`."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    outcome: str
    model: Model
    table: TableOptions
    event: str | None = None
    event_value: list[str] = []
    exposure: str | None = None
    entry: str | None = None
    offset: str | None = None
    weights: str | None = None
    trials: str | None = None
    missing: str = DEFAULTS["missing"]
    level: float = DEFAULTS["level"]
    revise: Revision | None = None

    _random = pydantic.field_validator("model")(lambda model: model._replace(random=list(as_names(model.random))))

    @property
    def columns(self) -> Outcome:
        """The columns of the outcome."""
        beside = {name: getattr(self, name) for name in BESIDE}
        return Outcome(self.outcome, self.model.family, event_values=self.event_value, **beside).in_one_form()

    @property
    def options(self) -> dict[str, Any]:
        """The options by which `make_glm_job` makes this job."""
        of_fit = {name: getattr(self.model, name) for name in _OF_FIT}
        return {**self.model_dump(exclude={"model", "table"}), **of_fit, **self.table._asdict()}


def make_glm_job(options: Any, secure_sums: bool, without: Sequence[str] = ()) -> GlmJob:
    """Check the options of a job, as JSON, and return them; the sites `without` are not asked."""
    try:
        of_fit, of_table = ({x: options[x] for x in names if x in options} for names in (_OF_FIT, TableOptions._fields))
        rest = {name: x for name, x in options.items() if name not in (*of_fit, *of_table)}
        job = GlmJob(model=Model(**{"family": DEFAULTS["family"], **of_fit}), table=parse_options(of_table), **rest)
        model, family = job.model, job.model.family
    except (TypeError, pydantic.ValidationError):
        raise InvalidArgument("The options of the linear model do not have the required form.") from None
    lookup(MISSING, job.missing, "way with empty cells")
    if family == "multinomial":
        raise InvalidArgument(
            "Between sites there is no multinomial model, as the bounds by which a site checks questions are of one "
            "linear predictor: give --family bernoulli with --event-value, or fit one table with tfp-bfl glm."
        )
    if family in FAMILIES and not FAMILIES[family].is_canonical:
        raise InvalidArgument(
            f"Between sites there is no {family} model, as a site checks its questions for canonical links and for "
            "coefficients alone: give another --family, or fit one table with tfp-bfl glm."
        )
    model.check()
    if not 0 < check_number(job.level, "--level") < 1:
        raise InvalidArgument(f"--level is {job.level:g}, but must be above 0 and below 1, such as 0.95.")
    job.columns.check()
    if model.random and family == "cox":
        raise InvalidArgument("--random is for gaussian, bernoulli and poisson, but the family is cox.")
    if job.revise is not None:
        if without:
            raise InvalidArgument("A revision asks only the sites that it adds and removes: leave --without out.")
        _check_revision(job, job.revise, secure_sums)
    if secure_sums and family == "cox" and not model.stratified:
        raise InvalidArgument(
            "One baseline hazard for all sites needs the times of events of each site, which are no sum: with "
            "--secure-sums give --stratified, a baseline hazard for each site."
        )
    return job


def _check_revision(job: GlmJob, revision: Revision, secure_sums: bool) -> None:
    asked, clients = [*revision.add, *revision.remove], revision.record.get("clients", [])
    if job.model.family == "cox" or job.model.random or job.model.second_order:
        raise InvalidArgument(
            "Sites join and leave fits of gaussian, bernoulli and poisson outcomes without random effects and second "
            "order: submit a new fit."
        )
    if not asked or len(set(asked)) < len(asked):
        raise InvalidArgument("A revision requires sites to add or to remove, each once.")
    wrong = [f"{site} is in the fit already" for site in revision.add if site in clients]
    wrong += [f"{site} is not in the fit" for site in revision.remove if site not in clients]
    if wrong:
        raise InvalidArgument(f"{wrong[0]}, whose sites are {', '.join(map(str, clients))}.")
    if secure_sums and len(asked) < 2:
        raise InvalidArgument(
            "With --secure-sums at least two sites must join or leave at once: the sum of one site is its own."
        )
    if secure_sums and len(revision.clients) < 2:
        raise InvalidArgument(
            "With --secure-sums at least two sites must be left in the revised fit: its sums are those of the only one."
        )


def signs_of(sites: Iterable[str], revision: Revision | None) -> dict[str, int]:
    """Return how the sums of each site count in the sum with masks: 1, or -1 where a revision subtracts them."""
    if revision is None:
        return dict.fromkeys(sites, 1)
    signs = {**dict.fromkeys(revision.add, 1), **dict.fromkeys(revision.remove, -1)}
    if set(signs) != set(sites):
        raise InvalidArgument("The sites with masks are not those that the revision adds and removes.")
    return signs


def names_of(job: GlmJob, encoding: Encoding, plan: AgreedColumns) -> list[str]:
    """Return the names of the coefficients [p]; Cox's model has no intercept."""
    return [*([INTERCEPT] if job.model.family != "cox" else []), *encoding.names(plan)]


class Answered(NamedTuple):
    """The answers to the last question, from which a site recomputes the next one.

    Fields:
      total: sum of the answers [n]; with masks, each site computes it from the other fields.
      masked: answers with masks [K, n + 1, 3], in the order of the sites' numbers.
      proofs: of each masked answer for each site (`masks.proof_of`) [K, K, 32].
    """

    total: np.ndarray = np.zeros(0)
    masked: np.ndarray = np.zeros((0, 0, PARTS), np.int64)
    proofs: np.ndarray = np.zeros((0, 0, KEY_BYTES), np.uint8)


def to_arrays(question: Question, step: int, answered: Answered) -> dict[str, np.ndarray]:
    """Return a question as named arrays, with its number in the run and the answers to the last one."""
    parts = {**question._asdict(), **answered._asdict(), "step": step}
    parts["kind"] = np.frombuffer(question.kind.encode(), np.uint8)
    return {name: np.asarray(parts[name], dtype) for name, (dtype, _) in _RANKS.items()}


_RANKS: Mapping[str, tuple[type, int]] = {
    "kind": (np.uint8, 1),
    "step": (np.int64, 0),
    "columns": (np.int64, 1),
    "nodes": (np.int64, 0),
    "points": (np.float64, 2),
    "centre": (np.float64, 1),
    "times": (np.float64, 1),
    "total": (np.float64, 1),
    "masked": (np.int64, 3),
    "proofs": (np.uint8, 3),
}


def from_arrays(arrays: Arrays, job: GlmJob, size: int) -> tuple[Question, int, Answered]:
    """Return the question that `to_arrays` wrote, its number and the last answers; the sender need not be trusted.

    A question that the job does not need is refused. `size`: number of columns of the design; 0 before it is known.
    """
    wrong = InvalidArgument("The question of the server does not have the required form, or is not of this job.")
    if set(arrays) != set(_RANKS):
        raise wrong
    parts = {name: np.asarray(arrays[name]) for name in _RANKS}
    for name, (dtype, rank) in _RANKS.items():
        if parts[name].dtype != dtype or parts[name].ndim != rank:
            raise wrong
        # A total is NaN if the coefficients were too large for the sums.
        if dtype is np.float64 and name != "total" and not np.all(np.isfinite(parts[name])):
            raise wrong
    kind, columns, points = bytes(parts["kind"]).decode("ascii", "replace"), parts["columns"], parts["points"]
    allowed, width = {CELLS}, size
    if size and job.model.family == "cox":
        allowed = {"columns", "stratum", "trend"} if job.model.stratified else {"columns", "risk", TIMES}
    elif size:
        allowed = {"first", "sums"} | ({"effects", "restricted"} if job.model.random else set())
    if kind in ("effects", "restricted"):
        width += len(columns) * (len(columns) + 1) // 2 + (job.model.family == "gaussian")
    fits = (
        kind in allowed
        and 1 <= len(points) <= _MOST_POINTS
        and points.shape[1] == width
        and len(columns) <= 3
        and np.all((columns >= 0) & (columns < max(size, 1)))
        and 0 <= int(parts["nodes"]) <= 50
        and len(parts["centre"]) in (0, size)
        and int(parts["step"]) >= 0
    )
    if not fits:
        raise wrong
    asked = Question(kind, points, tuple(columns.tolist()), int(parts["nodes"]), parts["centre"], parts["times"])
    return asked, int(parts["step"]), Answered(*(parts[name] for name in Answered._fields))
