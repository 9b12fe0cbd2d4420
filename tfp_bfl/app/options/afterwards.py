"""The options of posteriors after a training, each in one place: `run --algorithm laplace --start RUN`, and bench."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pydantic

from tfp_bfl.app.options.own_model import OPTIONS as CODE
from tfp_bfl.app.options.own_model import names_code
from tfp_bfl.app.options.refusals import NoTruthAsNumber, refusal
from tfp_bfl.errors import InvalidArgument, lookup
from tfp_bfl.options import choices
from tfp_bfl.options.group import Count, Positive, extra, option
from tfp_bfl.options.methods import canonical


class After(NoTruthAsNumber):
    """Options of a posterior at the weights of a complete run."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)
    what: ClassVar[str] = ""
    summary: ClassVar[str] = ""

    prior_stddev: Positive | None = option(
        None, "Standard deviation of the prior; by default fitted by the marginal likelihood."
    )
    temperature: Positive | None = option(
        None, "Posterior temperature; by default by the run's held-out rows, without them 0.01, for regression 1."
    )


class AfterLaplace(After):
    what: ClassVar[str] = "Laplace's approximation"
    summary: ClassVar[str] = "a posterior at the weights of a run (--start), by one more round"

    structure: str = option(
        "last_layer",
        "Precision of laplace: last_layer for the full matrix of the last layer, or diagonal for all weights.",
        names=choices.STRUCTURES,
    )
    prior_by_layer: bool = option(False, "Fit a prior standard deviation for each layer, of laplace with diagonal.")


class AfterLastLayer(After):
    what: ClassVar[str] = "The posterior of the last layer"
    summary: ClassVar[str] = "the exact posterior of the last layer of a run (--start), from sums of its clients"

    noise_stddev: Positive | None = option(
        None,
        "Standard deviation of the labels' noise in regression, of last_layer; by default fitted by the marginal "
        "likelihood.",
    )
    rounds: Count | None = option(
        None, "Number of messages from each client; by default 1 for regression, 10 for classes."
    )


AFTER: dict[str, type[After]] = {"laplace": AfterLaplace, "last_layer": AfterLastLayer}
# Options that no training has.
_OWN = ("structure", "prior_by_layer", "noise_stddev")


def after_options(algorithm: str, given: Mapping[str, Any]) -> After:
    """Return the options of an algorithm that follows a training."""
    lookup(AFTER, algorithm, "algorithm after a training")
    kind = AFTER[algorithm]
    for name in given:
        lookup(dict.fromkeys(kind.model_fields), name, f"option of {algorithm}")
    try:
        options = kind(**given)
    except pydantic.ValidationError as error:
        raise refusal(error, f" of {algorithm}") from None
    for name, field in kind.model_fields.items():
        names = extra(field, "names")
        if names:
            names.check(getattr(options, name))
    return options


def split_after(given: Mapping[str, Any]) -> tuple[str | None, str, dict[str, str], dict[str, Any]]:
    """Return start, algorithm, the code of the run and the other options of a posterior after a training."""
    start, algorithm = given.get("start"), canonical(str(given.get("algorithm", "")))
    if (start is None) == (algorithm in AFTER):
        raise InvalidArgument(
            f"{algorithm} finds a posterior at the weights of a complete run: give it as start."
            if start is None
            else f"start is the run of a posterior after its training: give the algorithm {' or '.join(AFTER)} with it."
        )
    if start is None and (names := [name for name in given if name in _OWN]):
        raise InvalidArgument(
            f"{names[0]} is an option of {' and '.join(AFTER)}, which start from a run: leave it out."
        )
    rest = {name: x for name, x in given.items() if name not in ("start", "algorithm")}
    code = {name: str(rest.pop(name)) for name in CODE if names_code(rest.get(name))}
    return start, algorithm, code, rest
