"""Checks of an algorithm against a run: the one place that looks at what `methods.Method` requires and gives."""

from typing import Any

from tfp_bfl.errors import InvalidArgument
from tfp_bfl.options import choices
from tfp_bfl.options.methods import ADAPTED, CLASSES, EVEN, PERSONAL, POINT, SAMPLES, method_of
from tfp_bfl.options.posterior_groups import are_all

# Weightings that compare no posteriors.
_BY_SIZE = ("equal", "train_size")
# The kinds of models that fit a requirement, what its algorithms do, and why other kinds do not fit.
_KINDS = {
    "kind flipout": (("flipout",), "finds a posterior over weights with a fixed prior", "has none"),
    "variational weights": (choices.VARIATIONAL.entries, "keeps a posterior over weights for each client", "has none"),
    "kind variational_dropout": (("variational_dropout",), "gives each client dropout of its own", "learns none"),
}


def check(config: Any) -> None:
    """Raise InvalidArgument where a configuration does not fit its algorithm."""
    _check_kind(config)
    if config.has("weighting") and config.weighting not in _BY_SIZE:
        _check_comparison(config)
    requires = method_of(config.algorithm).requires
    if EVEN in requires and config.popularity is not None and not are_all(config):
        raise InvalidArgument(
            "popularity draws clients unevenly, and the chain would be of another posterior: leave popularity out."
        )
    if "one client" in requires and config.cohort_size != 1:
        raise InvalidArgument(
            f"cohort_size is {config.cohort_size}, but in {config.algorithm} one client runs the chain in each round: "
            "leave it out, or give 1."
        )
    if config.ensemble is not None:
        _check_ensemble(config, config.ensemble)


def _check_kind(config: Any) -> None:
    requires, kind, recipe = method_of(config.algorithm).requires, config.kind, config.algorithm
    variational = choices.VARIATIONAL.entries
    if POINT in requires and kind in variational:
        raise InvalidArgument(f"{recipe} finds a posterior over point weights: use kind 'deterministic'.")
    for name, (kinds, does, lacks) in _KINDS.items():
        if name in requires and kind not in (None, *kinds):
            raise InvalidArgument(f"{recipe} {does}, and kind {kind!r} {lacks}: use kind {kinds[0]!r}.")


def _check_comparison(config: Any) -> None:
    method, use = method_of(config.algorithm), "use 'equal' or 'train_size'"
    if POINT in method.requires:
        raise InvalidArgument(
            f"Weighting by {config.weighting} compares posteriors, which {config.algorithm} does not: {use}."
        )
    if config.kind not in (None, *choices.VARIATIONAL.entries):
        raise InvalidArgument(
            f"Weighting by {config.weighting} compares posteriors, kind {config.kind!r} has none: use kind 'flipout'."
        )
    if config.has("variances"):
        raise InvalidArgument(
            f"Weighting by {config.weighting} compares posteriors, and those of {config.algorithm} have variances of "
            f"the clients' own: {use}."
        )


def _check_ensemble(config: Any, members: int) -> None:
    gives = method_of(config.algorithm).gives
    of_one = ("pretrain_share", "privacy_clip_norm", "example_clip_norm")
    for name in (*of_one, *(["evaluate_clients"] if ADAPTED in gives else [])):
        if getattr(config, name):
            raise InvalidArgument(f"{name} belongs to runs of one model: leave {name} or ensemble out.")
    if PERSONAL in gives:
        raise InvalidArgument(f"{config.algorithm} trains a model for each client: leave ensemble out.")
    if config.num_samples < members:
        raise InvalidArgument(
            f"num_samples is {config.num_samples}, but the ensemble has {members} members: give at least as many."
        )


def check_numbers(config: Any, labels: str = "the labels are numbers", scored: bool = False) -> None:
    """Raise InvalidArgument where a configuration does not fit labels that are numbers.

    Args:
      scored: each client is scored, whatever `evaluate_clients` says.
    """
    method = method_of(config.algorithm)
    if CLASSES in method.requires:
        raise InvalidArgument(f"{config.algorithm} is of classification, and {labels}: choose another algorithm.")
    if scored and ADAPTED in method.gives:
        raise InvalidArgument(
            f"{config.algorithm} has personal models, which are measured for classes only: choose another algorithm."
        )
    for name in ("pretrain_share", "class_weight", *(["evaluate_clients"] if ADAPTED in method.gives else [])):
        if getattr(config, name):
            raise InvalidArgument(f"{name} is of classification, and {labels}: leave it out.")


def is_private(config: Any, process: Any = None) -> bool:
    """Return whether a run hides clients or examples by noise; `process` shows it of an algorithm of the user."""
    if config.privacy_clip_norm or config.example_clip_norm:
        return True
    return process is not None and (process.privacy is not None or process.client_work.needs.is_private)


def check_exact(config: Any, what: str, run: str, process: Any = None) -> None:
    """Raise InvalidArgument for a run with differential privacy, of which no exact sums may be computed."""
    if is_private(config, process):
        raise InvalidArgument(
            f"{run} is a run with differential privacy, and {what} is computed from exact sums over its examples, "
            "which epsilon does not cover: give a run without it."
        )


def check_one_network(config: Any, what: str, process: Any = None) -> None:
    """Raise InvalidArgument for a training that ends with an ensemble, a chain or personal models."""
    many = config.ensemble is not None or {PERSONAL, SAMPLES} & method_of(config.algorithm).gives
    if many or (process is not None and (process.is_personal or process.thinning is not None)):
        source = "An ensemble" if config.ensemble is not None else config.algorithm
        raise InvalidArgument(
            f"{source} ends with more than one network, and {what} is at the weights of one: use fed_opt without "
            "ensemble."
        )


def check_start(config: Any, what: str, run: str, process: Any = None) -> None:
    """Raise InvalidArgument for a complete run at whose weights a posterior can't be found.

    Args:
      what: the posterior, as an error names it.
      run: the folder.
      process: of the run, which shows what an algorithm of the user does; None before it is built.
    """
    check_exact(config, what, run, process)
    if config.kind in choices.VARIATIONAL.entries:
        raise InvalidArgument(
            f"{what} is a posterior over point weights, and {run} is a run of kind {config.kind!r}: run it with "
            "--algorithm fed_opt --kind deterministic."
        )
    check_one_network(config, what, process)
    if config.class_weight is not None:
        raise InvalidArgument(
            f"{run} was trained with class weights, and {what} is of the likelihood without them: run it again "
            "without class_weight."
        )
