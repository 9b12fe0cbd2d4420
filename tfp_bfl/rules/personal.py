"""The rule of clients whose variances are their own: kept under its former name for this release."""

from __future__ import annotations

from typing import Union

from tfp_bfl.contracts import WEIGHTS, GatherRule, ModelRule, Rule
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.rules.whole_model import whole_model


def personal(num_clients: int, rule: Union[Rule, str] = "log_linear_pool") -> ModelRule:
    """Return `whole_model(rule)`: what clients send beside their weights needs no rule of its own any more.

    Args:
      num_clients: has no effect.
      rule: for the weights.

    Raises:
      InvalidArgument: a rule that needs all clients' posteriors at once.
    """
    del num_clients
    whole = whole_model(rule)
    if isinstance(whole, GatherRule) or whole.takes != WEIGHTS:
        raise InvalidArgument(f"personal takes a rule such as 'log_linear_pool', not {whole.name!r}.")
    return whole
