"""Registration with the core: the command `glm`, and the linear models among the baselines of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfp_bfl.glm.command import glm_model

if TYPE_CHECKING:
    from tfp_bfl.data import Clients, Source
    from tfp_bfl.evaluation import Baseline

COMMANDS = (glm_model,)


def baselines(clients: Clients, test: Source) -> list[Baseline]:
    """Score the linear models (`glm.baselines`), which import TensorFlow."""
    from tfp_bfl.glm.baselines import linear_baselines

    return linear_baselines(clients, test)
