"""The options of posteriors after a training: `run --algorithm laplace --start RUN`, and bench."""

from collections.abc import Mapping
from typing import Any, ClassVar

import pydantic

from tfp_bfl.app.options.own_model import OPTIONS as CODE
from tfp_bfl.app.options.own_model import names_code
from tfp_bfl.app.options.refusals import NoTruthAsNumber, refusal
from tfp_bfl.errors import InvalidArgument, lookup
from tfp_bfl.options.group import extra
from tfp_bfl.options.method import Method
from tfp_bfl.options.methods import ALGORITHMS, POSTERIORS, canonical, fields


class After(NoTruthAsNumber):
    """Options of a posterior at the weights of a complete run."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)
    algorithm: ClassVar[str]


def _class_of(method: Method) -> type[After]:
    options: Any = {name: (field.annotation, field) for name, field in method.options.items()}
    made = pydantic.create_model(f"{method.recipe}_options", __base__=After, **options)
    made.algorithm = method.recipe
    return made


AFTER = {name: _class_of(method) for name, method in POSTERIORS.items()}


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
        if names := extra(field, "names"):
            names.check(getattr(options, name))
    return options


def split_after(given: Mapping[str, Any]) -> tuple[str | None, str, dict[str, str], dict[str, Any]]:
    """Return start, algorithm, the code of the run and the other options of a posterior after a training.

    Without a start the options are those of a training, and None is returned for it.
    """
    start, algorithm = given.get("start"), canonical(str(given.get("algorithm", "")))
    if algorithm not in AFTER if start is not None else algorithm in AFTER and algorithm not in ALGORITHMS:
        raise InvalidArgument(
            f"{algorithm} finds a posterior at the weights of a complete run: give it as start."
            if start is None
            else f"start is the run of a posterior after its training: give the algorithm {' or '.join(AFTER)} with it."
        )
    own = {name for kind in AFTER.values() for name in kind.model_fields} - {*fields(), "rounds"}
    if start is None and (names := [name for name in given if name in own]):
        raise InvalidArgument(
            f"{names[0]} is an option of {' and '.join(AFTER)}, which start from a run: leave it out."
        )
    rest = {name: x for name, x in given.items() if name not in ("start", "algorithm")}
    code = {name: str(rest.pop(name)) for name in CODE if names_code(rest.get(name))}
    return start, algorithm, code, rest
