"""Checks that depend on the data: whether a method serves a setting, and whether its options and models fit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl.app.one_run import datasets
from tfp_bfl.app.one_run.build import check_models
from tfp_bfl.app.options.config import RunConfig
from tfp_bfl.bench.plan import Plan
from tfp_bfl.bench.scores import set_aside
from tfp_bfl.bench.spaces import DEFAULTS
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.options import fits


def why_not(config: RunConfig) -> str | None:
    """Return why the method of a configuration cannot serve its data; None if it can.

    Raises:
      InvalidArgument: there is no such dataset.
    """
    if not datasets.regresses(config):
        return None
    try:
        fits.check_numbers(config, scored=True)
    except InvalidArgument as error:
        return str(error)
    return None


def check_score(score: str, config: RunConfig, where: str = "") -> None:
    """Check that the score of the trials is one of the data's task.

    Args:
      score: of the trials.
      config: names the data.
      where: follows the labels in the error, such as " of the setting 'a'".

    Raises:
      InvalidArgument: it is not.
    """
    of_numbers = datasets.regresses(config)
    if score == ("accuracy" if of_numbers else "rmse"):
        labels = "numbers" if of_numbers else "classes"
        raise InvalidArgument(f"score is {score}, but the labels{where} are {labels}: use nll.")


def check_task(plan: Plan, setting: str) -> None:
    """Check that the score of the trials and the out-of-distribution images fit the data of a setting.

    Raises:
      InvalidArgument: they don't.
    """
    config = plan.config(setting, next(iter(plan.methods)), plan.seeds[0])
    check_score(plan.score, config, f" of the setting {setting!r}")
    ood = plan.oods.get(setting)
    if ood is None:
        return
    if datasets.regresses(config) or datasets.is_own(config):
        raise InvalidArgument(f"ood of the setting {setting!r} is of images of a named dataset: leave it out.")
    own, other = (bfl.data.peek(name, data_dir=config.data_dir) for name in (config.dataset, ood))
    if own.element_shape != other.element_shape:
        raise InvalidArgument(
            f"ood of the setting {setting!r} is {ood} with examples {list(other.element_shape)}, but those of "
            f"{config.dataset} are {list(own.element_shape)}: name a dataset of that form."
        )


def configs_of(plan: Plan, pairs: Iterable[tuple[str, str]]) -> Iterator[tuple[str, RunConfig]]:
    """Yield the configurations of methods in settings, with each end or value of the search spaces.

    Args:
      plan: of the benchmark.
      pairs: (setting, method).

    Returns:
      (what an error begins with, configuration).
    """
    for setting, method in pairs:
        for chosen in (DEFAULTS, *plan.methods[method].edges):
            where = f"The method {method!r} in the setting {setting!r}: "
            yield where, plan.config(setting, method, plan.seeds[0], chosen)


def check_cells(plan: Plan, pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Check the data and the models of methods in settings, as `check_clients` and `check_models`.

    Args:
      plan: of the benchmark.
      pairs: (setting, method).

    Returns:
      The digest of the data of each setting whose data may name clients.

    Raises:
      InvalidArgument: they do not fit; the message names the method and the setting.
    """
    digests = check_clients(configs_of(plan, pairs), plan.hold_out)
    check_models(configs_of(plan, pairs))
    found = {x: digests.get(datasets.key(plan.config(x, method, plan.seeds[0]))) for x, method in pairs}
    return {setting: digest for setting, digest in found.items() if digest}


def check_clients(configs: Iterable[tuple[str, RunConfig]], share: float) -> dict[tuple[Any, ...], str]:
    """Check the data of configurations as `datasets.check`, and that their clients can give examples to hold out.

    Args:
      configs: (what an error begins with, configuration).
      share: of each client's examples that is held out.
    """
    return datasets.check(configs, lambda clients, seed: set_aside(clients, share, seed))
