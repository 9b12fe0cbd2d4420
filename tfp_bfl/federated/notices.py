"""What a run tells of its posterior, in whole sentences: where it says nothing, or no longer does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

# The posterior counts as collapsed once its median standard deviation is this share of what it was at first, or most
# weights are at the floor.
COLLAPSED_SHARE = 0.05
# Below this log(q95 / q05) the standard deviations are all the same number.
SAME_LOG_RATIO = 0.05


def collapse_warning(number: int) -> str:
    """What to tell the user when the posterior has lost its spread."""
    return (
        f"The posterior collapsed in round {number}: its median standard deviation is below {COLLAPSED_SHARE:.0%} of "
        "what it was at first, or at its floor: the model is all but deterministic, its epistemic uncertainty near "
        "zero; rules such as log_linear_pool or naive_weighted_average keep the spread."
    )


def has_collapsed(row: Mapping[str, Any], first_stddev: float) -> bool:
    """Whether a round's metrics are of a posterior that has lost its spread."""
    if "stddev_median" not in row:
        return False
    shrunk = row["stddev_median"] < COLLAPSED_SHARE * first_stddev
    return shrunk or (row["share_at_floor"] > 0.5 and row["stddev_median"] < first_stddev)


def one_shot_warning(rule: str, rounds: int) -> str:
    """What to tell the user who repeats a rule for one round."""
    return (
        f"The rule {rule} is for one round: in each of {rounds} it counts again what clients were sent, and variances "
        "shrink by about the number of clients; log_linear_pool and partitioned_vi are for many rounds."
    )


def spread_warning(row: Mapping[str, Any]) -> Optional[str]:
    """What to tell the user whose standard deviations are all the same number; None where they are not, or none."""
    ratio = row.get("stddev_log_ratio")
    if ratio is None or ratio >= SAME_LOG_RATIO:
        return None
    return (
        f"The standard deviations of all weights are the same number (log of their 95 % over their 5 % quantile: "
        f"{ratio:.3f}), that of the start, the optimizer or a floor: the data have not determined them, and "
        "epistemic uncertainty says little; variational training needs more rounds, or inference 'curvature'."
    )
