"""TFF's optimizers by name, for the server's step."""

from __future__ import annotations

from typing import Any

from tfp_bfl.errors import InvalidArgument, check_number, lookup
from tfp_bfl.federated.tff.installation import require_tff

tff = require_tff()

SERVER_OPTIMIZERS = {
    "sgd": tff.learning.optimizers.build_sgdm,
    "adam": tff.learning.optimizers.build_adam,
    "yogi": tff.learning.optimizers.build_yogi,
    "adagrad": tff.learning.optimizers.build_adagrad,
}


def server_optimizer(name: str, learning_rate: float, **options: Any) -> Any:
    """An optimizer of `tff.learning.optimizers` for `tfp_bfl.servers.optimize`.

    Args:
      name: "sgd", "adam", "yogi" or "adagrad" (FedAvgM, FedAdam, FedYogi, FedAdagrad of Reddi et al. 2021).
      learning_rate: of the server.
      **options: of TFF's `build_sgdm` (momentum), `build_adam` (beta_1, beta_2, epsilon) and so on.

    Raises:
      InvalidArgument: no such optimizer, or options that it does not take.
    """
    build = lookup(SERVER_OPTIMIZERS, name, "server optimizer")
    check_number(learning_rate, "The server's learning_rate")
    try:
        return build(learning_rate=learning_rate, **options)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"The server optimizer {name!r} does not take these options: {error}") from None
