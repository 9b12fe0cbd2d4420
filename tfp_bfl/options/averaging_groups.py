"""Groups of options of the recipes of `tfp_bfl.algorithms.posterior_averaging` alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfp_bfl.errors import InvalidArgument
from tfp_bfl.options import choices
from tfp_bfl.options.group import Group, Positive, Share, group, option


@group
class Distillation(Group):
    """The server learns from unlabelled examples."""

    unlabelled_share: Share = option(0.1, "Fraction of the data that the server holds without labels.", argument=None)

    def check(self, config: Any) -> None:
        if self.unlabelled_share + (config.pretrain_share or 0) >= 1:
            raise InvalidArgument(
                f"unlabelled_share and pretrain_share are {self.unlabelled_share} and {config.pretrain_share}, which "
                "leaves the clients nothing: together they must be below 1."
            )

    def arguments(self, config: Any, given: dict[str, Any], unlabelled: Callable[[], Any]) -> dict[str, Any]:
        return {**given, "features": unlabelled()}


@group
class Density(Group):
    """A kernel density over the clients."""

    kernel_start: str = option(
        "clients",
        "Starting points of mean shift: all clients (clustered), or their mean.",
        argument="start",
        names=choices.STARTS,
    )
    kernel: str = option(
        "epanechnikov", "Kernel of the density.", argument="kernel_options.kernel", names=choices.KERNELS
    )
    bandwidth: str = option(
        "silverman",
        "Selector of the bandwidth (see `tfp-bfl list`).",
        argument="kernel_options.bandwidth",
        names=choices.BANDWIDTHS,
    )
    bandwidth_scale: Positive = option(1.0, "Factor of the bandwidth.", argument="kernel_options.scale")
