"""Registration with the core: three commands, and the linear models among the baselines of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfp_bfl.glm.characteristics_command import table_one_of
from tfp_bfl.glm.command import glm_model
from tfp_bfl.glm.survival_command import survival_curves

if TYPE_CHECKING:
    from tfp_bfl.data import Clients, Source
    from tfp_bfl.evaluation import Baseline

COMMANDS = (glm_model, survival_curves, table_one_of)


def baselines(clients: Clients, test: Source) -> list[Baseline]:
    """Score the linear models (`glm.baselines`), which import TensorFlow."""
    from tfp_bfl.glm.baselines import linear_baselines

    return linear_baselines(clients, test)
