"""The algorithms that a configuration can name: what each is, the options of its own, and its defaults.

A new algorithm is one more entry in `ALGORITHMS`; an option that is new with it is a field of `config.RunConfig` too.
The help, the errors and the record of a run ask here what an option belongs to.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple


class Algorithm(NamedTuple):
    """What the command line knows of an algorithm.

    Fields:
      summary: of its clients and its server, in one line.
      options: those that say nothing to an algorithm without them, and are refused there.
      defaults: those that differ from the fields' own.
      point_weights: models with variational layers are refused.
    """

    summary: str
    options: tuple[str, ...]
    defaults: dict[str, Any]
    point_weights: bool = False


def _averaging(summary: str, *options: str, point_weights: bool = False, **defaults: Any) -> Algorithm:
    """A recipe of `tfp_bfl.algorithms.posterior_averaging`."""
    shared = (
        *("momentum", "learning_rate_decay", "silent_rounds", "max_change_norm"),
        *("server_optimizer", "server_learning_rate", "server_momentum"),
        *(() if point_weights else ("prior_stddev",)),
    )
    own = {"kind": "deterministic", "rounds": 30, "learning_rate": 0.03, "momentum": 0.9, **defaults}
    return Algorithm(summary, (*shared, *options), own, point_weights)


_KERNEL = ("kernel_start", "kernel", "bandwidth", "bandwidth_scale")
ALGORITHMS = {
    "variational": Algorithm(
        "clients fit a posterior by the ELBO, many rounds; the server pools by a rule",
        (
            *("rule", "weighting", "robust", "max_change_norm", "prior_stddev"),
            *("update_prior", "learning_rate_decay", "silent_rounds"),
        ),
        {},
    ),
    "fl_swag": Algorithm(
        "one round of SWAG posteriors and their product; clients join and leave",
        (
            *("last_layer", "diagonal_only", "min_examples", "burn_in_epochs", "collect_every"),
            *("max_columns", "min_variance", "momentum", "weight_decay"),
        ),
        {"kind": "deterministic", "rounds": 1, "local_epochs": 20, "learning_rate": 0.05},
        point_weights=True,
    ),
    "fed_opt": _averaging("federated averaging (FedAvg); with a server_optimizer FedOpt", "weighting"),
    "fed_prox": _averaging("FedAvg whose clients are held near the server's weights", "weighting", "proximal"),
    "fed_ag": _averaging(
        "FedAvg that predicts with draws from the Gaussian of the clients' weights", "weighting", point_weights=True
    ),
    "fed_be": _averaging(
        "an ensemble drawn from the clients' weights teaches the server's model on unlabelled examples",
        "unlabelled_share",
        point_weights=True,
    ),
    "fed_pa": _averaging(
        "clients sample by averaged SGD and send the step to the mode of their posteriors' product",
        *("weighting", "shrinkage", "burn_in_rounds"),
    ),
    "fed_sgld": _averaging(
        "FedAvg with noise after each round, whose rounds are samples of the posterior",
        *("weighting", "burn_in_rounds", "step_size", "max_samples"),
        point_weights=True,
    ),
    "fed_kp": _averaging("each weight's mode of a kernel density over the clients, for their mean", *_KERNEL),
    "fed_kppa": _averaging(
        "the clients of fed_pa with the server of fed_kp",
        *("shrinkage", "burn_in_rounds"),
        *_KERNEL,
        kernel_start="clients",
    ),
}
_FED = tuple(name for name in ALGORITHMS if name.startswith("fed_"))


def takers(option: str) -> tuple[str, ...]:
    """The algorithms that an option is of; none for one that says something to all."""
    return tuple(name for name, algorithm in ALGORITHMS.items() if option in algorithm.options)


def serves(option: str, algorithm: str) -> bool:
    """Whether an option says something to an algorithm."""
    return not takers(option) or algorithm in takers(option)


def names(algorithms: Iterable[str]) -> str:
    """Algorithms in words, such as "variational and fl_swag"; all of the family fed_* by that name."""
    algorithms = tuple(algorithms)
    if set(_FED) <= set(algorithms):
        algorithms = (*(name for name in algorithms if name not in _FED), "fed_*")
    *most, last = algorithms
    return f"{', '.join(most)} and {last}" if most else last


def default_in_words(option: str, default: Any) -> str:
    """The default of an option's field, and those of the algorithms that have another; "" for none."""
    others: dict[str, list[str]] = {}
    for name in takers(option) or ALGORITHMS:
        value = ALGORITHMS[name].defaults.get(option, default)
        others.setdefault("" if value is None else str(value), []).append(name)
    if len(others) == 1:
        return next(iter(others))
    others.pop(str(default), None)
    return "; ".join([str(default), *(f"{value} for {names(have)}" for value, have in others.items())])
