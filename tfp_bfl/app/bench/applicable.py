"""Checks of a plan that depend on the data: whether a method serves a setting, and whether score and images fit."""

from __future__ import annotations

from typing import Optional

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl.app.bench.plan import Plan
from tfp_bfl.app.one_run import build
from tfp_bfl.app.options.algorithms import algorithm_options, serves
from tfp_bfl.errors import InvalidArgument


def why_not(plan: Plan, setting: str, method: str) -> Optional[str]:
    """Return why a method cannot serve a setting; None if it can."""
    config = plan.config(setting, method, plan.seeds[0])
    if not build.regresses(config):
        return None
    if not algorithm_options(config.algorithm).regression:
        return f"{config.algorithm} is of classification, and the labels are numbers."
    if serves("evaluate_clients", config.algorithm):
        return f"{config.algorithm} has personal models, which are measured for classes only."
    return None


def check_task(plan: Plan, setting: str) -> None:
    """Check that the score of the trials and the out-of-distribution images fit the data of a setting.

    Raises:
      InvalidArgument: they don't.
    """
    config = plan.config(setting, next(iter(plan.methods)), plan.seeds[0])
    of_numbers = build.regresses(config)
    if plan.score == ("accuracy" if of_numbers else "rmse"):
        labels = "numbers" if of_numbers else "classes"
        raise InvalidArgument(
            f"score is {plan.score}, but the labels of the setting {setting!r} are {labels}: use nll."
        )
    ood = plan.oods.get(setting)
    if ood is None:
        return
    if of_numbers or build.is_own(config):
        raise InvalidArgument(f"ood of the setting {setting!r} is of images of a named dataset: leave it out.")
    own, other = (bfl.data.peek(name, data_dir=config.data_dir) for name in (config.dataset, ood))
    if own.element_shape != other.element_shape:
        raise InvalidArgument(
            f"ood of the setting {setting!r} is {ood} with examples {list(other.element_shape)}, but those of "
            f"{config.dataset} are {list(own.element_shape)}: name a dataset of that form."
        )
