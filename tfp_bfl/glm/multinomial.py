"""More than two classes: their names, also of ordered ones, and coefficients as differences from the first class.

A fit has the coordinates of `families.contrasts`, in which the prior is the same for each predictor; a result has

    log p_c / p_1 = x' b_c,   b_c = sum_a T_ca theta_a,   T_ca = B_ca - B_1a   for c = 2, ..., C

in which the prior of b_c is N(0, s^2), with a covariance of s^2 / 2 between classes. The order of classes changes no
prediction.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from tfp_bfl.data import Clients
from tfp_bfl.errors import InvalidArgument, shown
from tfp_bfl.glm.families import FAMILIES, ORDINAL, contrasts
from tfp_bfl.glm.hierarchical import Hierarchical
from tfp_bfl.glm.posterior import Model, Posterior
from tfp_bfl.glm.rows import INTERCEPT, DesignRows, Given

FAMILY = "multinomial"
# Of coefficients: their information has the square of this number.
_MOST_COEFFICIENTS = 2500


def with_classes(table: DesignRows, clients: Given, names: Sequence[str] | None, model: Model) -> DesignRows:
    """Return the table with the names of its classes, those given or of the data, numbers from 0 if None, and of the
    further parameters.

    A class without rows is refused if its intercept has a flat prior, as cutpoints have.
    """
    further = FAMILIES[model.family].further if model.family in FAMILIES else None
    if model.family not in (FAMILY, ORDINAL):
        if names is not None:
            raise InvalidArgument(
                f"classes is for the families {FAMILY} and {ORDINAL}, but the family is {model.family!r}."
            )
        return with_further(table, further(())) if further else table
    labels = np.concatenate([rows.outcome for rows in table.clients]).astype(np.int64)
    if names is None and isinstance(clients, Clients) and clients.source.target is None:
        names = clients.source.class_names
    classes = tuple(map(str, range(np.max(labels) + 1) if names is None else names))
    if len(classes) < 2 or len({*classes}) < len(classes):
        raise InvalidArgument(f"There must be two or more different classes, not {shown(classes)}.")
    if model.family == ORDINAL and len(classes) == 2:
        raise InvalidArgument(f"An ordinal outcome has three or more levels, not {shown(classes)}: use 'bernoulli'.")
    if np.max(labels) >= len(classes):
        raise InvalidArgument(f"A row has the class {np.max(labels)}, but there are {len(classes)}, numbered from 0.")
    counts = np.bincount(labels, minlength=len(classes))
    if np.any(counts == 0) and (further or not model.precision([INTERCEPT])[0]):
        name = classes[int(np.argmin(counts))]
        if further:
            raise InvalidArgument(f"No row is of the level {name!r}, so that it has no cutpoints: leave the level out.")
        raise InvalidArgument(
            f"No row is of the class {name!r}, and the prior of its intercept is flat: leave the class out, or give "
            "intercept_stddev or prior_stddev as a number."
        )
    return with_further(table._replace(classes=classes), further(classes) if further else ())


def with_further(table: DesignRows, names: tuple[str, ...]) -> DesignRows:
    """Return the table with the names of further parameters, none of which may be that of a column."""
    if twice := {*table.names} & {*names}:
        raise InvalidArgument(f"The name {min(twice)!r} is that of a parameter of the family: rename the column.")
    return table._replace(further=names)


def check_size(table: DesignRows) -> None:
    """Refuse more coefficients than fit into the messages."""
    size = len(table.names) * table.num_predictors + len(table.further)
    if table.classes and size > _MOST_COEFFICIENTS:
        raise InvalidArgument(
            f"{len(table.names):,} columns and {len(table.classes):,} classes have {size:,} coefficients, and each "
            f"message has {size**2 * 8e-6:,.0f} MB: use fewer columns, for at most {_MOST_COEFFICIENTS:,} coefficients "
            f"({_MOST_COEFFICIENTS**2 * 8e-6:.0f} MB)."
        )


def in_classes(posterior: Posterior, classes: Sequence[str]) -> Posterior:
    """Return the posterior of the differences from the first class; its sums keep the coordinates of the fit.

    That of an ordinal outcome has the names of its levels beside it.
    """
    if posterior.family == ORDINAL:
        return dataclasses.replace(posterior, classes=tuple(classes))
    lift = _lift(len(posterior.names), len(classes) - 1)
    columns = posterior.names[:: len(classes) - 1]
    return dataclasses.replace(
        posterior,
        names=[f"{name}: {other}" for name in columns for other in classes[1:]],
        mean=lift @ posterior.mean,
        covariance=lift @ posterior.covariance @ lift.T,
        classes=tuple(classes),
    )


def effects_in_classes(result: Hierarchical, classes: Sequence[str]) -> Hierarchical:
    """Return the hierarchical model of the differences from the first class."""
    q = len(classes) - 1
    lift, of_effects = _lift(len(result.posterior.names), q), _lift(len(result.random) * q, q)
    effects = [
        effect._replace(
            mean=of_effects @ effect.mean,
            covariance=of_effects @ effect.covariance @ of_effects.T,
            slope=np.linalg.solve(lift.T, (of_effects @ effect.slope).T).T,
        )
        for effect in result.effects
    ]
    of_all = np.eye(len(result.parameters))
    of_all[: len(lift), : len(lift)] = lift
    return dataclasses.replace(
        result,
        posterior=in_classes(result.posterior, classes),
        effects=effects,
        parameters=of_all @ result.parameters,
        covariance=of_all @ result.covariance @ of_all.T,
    )


def _lift(size: int, predictors: int) -> np.ndarray:
    """Return the matrix from coefficients [size] of the predictors to differences from the first class."""
    basis = contrasts(predictors)
    return np.kron(np.eye(size // predictors), basis[1:] - basis[:1])
