"""Methods of the benchmark that the command line has no name for, as functions of a file."""

from __future__ import annotations

from typing import Any

import tfp_bfl as bfl


def fed_lap(
    model_fn: Any,
    element_spec: Any,
    local_epochs: int,
    batch_size: int,
    learning_rate: Any = 0.03,
    likelihood: str = "categorical",
) -> Any:
    """Build FedLap: point weights by partitioned inference with a fixed precision."""
    return bfl.algorithms.fed_lap(
        model_fn,
        element_spec=element_spec,
        local_epochs=local_epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        likelihood=likelihood,
    )
