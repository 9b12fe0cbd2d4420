"""The rule of clients with personal variances, under its former name for this release."""

from __future__ import annotations

from tfp_bfl.contracts import WEIGHTS, AnyRule, ModelRule
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.rules.whole_model import whole_model
from tfp_bfl.weights import ModelWeights


def personal(num_clients: int, rule: AnyRule = "log_linear_pool") -> ModelRule[ModelWeights, ModelWeights]:
    """Return `whole_model(rule)`: what clients send beside their weights needs no rule of its own any more.

    Args:
      num_clients: has no effect.
      rule: for the weights.

    Raises:
      InvalidArgument: a rule that needs all clients' posteriors at once.
    """
    del num_clients
    whole = whole_model(rule)
    if whole.takes != WEIGHTS:
        raise InvalidArgument(f"personal takes a rule such as 'log_linear_pool', not {whole.name!r}.")
    return whole
